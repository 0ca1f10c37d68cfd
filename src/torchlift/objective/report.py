"""An objective split into the parts that people look at."""

from __future__ import annotations

import html
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """Means over the samples of a batch.

    `gaps[j]` is the root mean square over samples of ‖z_j − σ_j(v_j)‖: which
    layer is inconsistent, and by how much.
    """

    loss: float
    coupling: float
    penalties: tuple[float, ...]
    regularisation: float
    free_energy: float
    gaps: tuple[float, ...]

    @property
    def total(self) -> float:
        """The objective itself."""
        return self.loss + self.coupling + sum(self.penalties) + self.regularisation - self.free_energy

    def rows(self) -> list[tuple[str, str, str]]:
        """(part, value, feasibility gap) as text; parts that do not occur are left out."""
        lines = [("loss", f"{self.loss:.6g}", "")]
        if self.coupling:
            lines.append(("coupling", f"{self.coupling:.6g}", ""))
        pairs = zip(self.penalties, self.gaps, strict=True)
        lines += [(f"layer {j}", f"{penalty:.6g}", f"{gap:.3g}") for j, (penalty, gap) in enumerate(pairs, start=1)]
        if self.regularisation:
            lines.append(("regularisation", f"{self.regularisation:.6g}", ""))
        if self.free_energy:
            lines.append(("free energy", f"−{self.free_energy:.6g}", ""))
        return [*lines, ("total", f"{self.total:.6g}", "")]

    def __str__(self) -> str:
        table = [("part", "value", "‖z − σ(v)‖"), *self.rows()]
        widths = [max(len(row[k]) for row in table) for k in range(3)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)

    def _repr_html_(self) -> str:
        head = "<tr><th>part</th><th>value</th><th>‖z − σ(v)‖</th></tr>"
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.rows())
        return f"<table>{head}{body}</table>"
