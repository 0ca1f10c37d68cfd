"""Points whose entries are spread over a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchlift.core.solution import Result, StepFailure
from torchlift.parallel.mesh import Mesh


@dataclass(frozen=True, eq=False)
class MeshSharing:
    """Sums over all processes, in which blocks that the axis "data" has copies of count once.

    Arguments:
        mesh: the processes.
        copied: the block that every process along "data" has the same of.
        counted: whether this process's own samples count; not where it only stands in for one that has none.
    """

    mesh: Mesh
    copied: str = "parameters"
    counted: bool = True

    def totals(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The sums over all processes; where one is NaN, all fail at this place and name who it comes from."""
        mine = [total if self._counts(name) else 0.0 for name, total in sums.items()]
        found = dict(zip(sums, self.mesh.sum_numbers(mine), strict=True))
        bad = [name for name, total in found.items() if math.isnan(total)]
        if bad:
            where = self.mesh.which(any(math.isnan(sums[name]) for name in bad))
            raise StepFailure(Result.NOT_FINITE, f"block {bad[0]!r} is not finite on {where}")
        return found

    def _counts(self, block: str) -> bool:
        return self.mesh.data_rank == 0 if block == self.copied else self.counted
