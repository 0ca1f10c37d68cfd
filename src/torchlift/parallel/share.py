"""The samples of a batch that one process holds, and means over those of all processes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from torchlift.parallel.mesh import Mesh, Sums


@dataclass(frozen=True, eq=False)
class Share:
    """`counts[r]` samples of a batch are with the processes number r of the axis "data".

    A mean over the batch is the mean of the processes' own means, weighted by
    n_r/n. A process without samples works on a copy of one, with weight 0.
    """

    mesh: Mesh
    counts: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.counts[self.mesh.data_rank]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def weight(self) -> float:
        """n_r/n."""
        return self.count / self.total

    @property
    def scale(self) -> float:
        """n_r/n for what concerns single samples; never 0, so that a sample that only stands in stays finite."""
        return max(self.count, 1) / self.total

    def number(self, value: float) -> float:
        """The mean over all samples from the mean over this process's."""
        return self.mesh.sum_numbers([value * self.weight if self.count else 0.0], "data")[0]

    def mean_(self, *tensors: Tensor) -> None:
        """Overwrite tensors that hold means over this process's samples by means over all, in one exchange."""
        self.mesh.sum_all_(tensors, "data", self.weight)

    def start_means(self, *tensors: Tensor) -> Sums:
        """Begin `mean_`; until `Sums.wait` has ended it, the tensors must be left alone."""
        return self.mesh.start_sums(tensors, "data", self.weight)

    def mean(self, tensor: Tensor) -> Tensor:
        """The same for one tensor, which is left as it is."""
        own = tensor.clone()
        self.mean_(own)
        return own

    def gather(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The samples of all processes, which lie along `dim`."""
        if self.mesh.data == 1:
            return tensor
        own = tensor.narrow(dim, 0, self.count)
        shape = list(own.shape)
        shape[dim] = max(self.counts) - self.count
        padded = torch.cat([own, own.new_zeros(shape)], dim)
        pairs = zip(self.mesh.gather(padded, "data"), self.counts, strict=True)
        return torch.cat([part.narrow(dim, 0, count) for part, count in pairs], dim)


def shares(total: int, processes: int) -> list[slice]:
    """Which samples of a batch each process takes: contiguous, and as equal as can be."""
    ends = [total * r // processes for r in range(processes + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]
