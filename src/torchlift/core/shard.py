"""The samples of a batch that this process holds, and means over the samples of all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from torchlift.core.tensors import Sharing


class Shard:
    """All samples of a batch: one process is a mesh of size one.

    Code that averages over samples takes a shard and asks it for sums and means.
    `parallel.MeshShard` answers for one process of many.
    """

    #: Whether all samples are here.
    whole: bool = True
    #: False on a process that stands in with a copy of another one's sample.
    counted: bool = True
    #: n_r/n for terms of single samples.
    scale: float = 1.0

    def samples(self, batch: Tensor) -> int:
        """The number of samples on all processes, given those that are here."""
        return len(batch)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all processes, along both axes of a mesh."""
        return list(numbers)

    def sum_(self, *tensors: Tensor) -> None:
        """Overwrite tensors that hold sums over the samples here by sums over all samples."""

    @contextmanager
    def summing(self) -> Iterator[Callable[..., None]]:
        """`sum_` of what the function that is given here is called with: begun at once, and ended with the context.

        All processes hand over the same tensors in the same order, and leave them alone from then on.
        """
        yield lambda *tensors: None

    def mean_(self, *tensors: Tensor) -> None:
        """Overwrite tensors that hold means over the samples here by means over all samples."""

    def mean(self, tensor: Tensor, meanwhile: Callable[[], object] | None = None) -> Tensor:
        """The mean over all samples from that over the samples here, which is left as it is.

        Arguments:
            tensor: the mean over the samples here.
            meanwhile: is called while the processes exchange theirs.
        """
        return tensor

    def gather(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """The samples of all processes, which lie along `dim`."""
        return tensor

    def sharing(self, replicated: str = "") -> Sharing | None:
        """How norms and products of points become those of all processes; None for one process.

        Arguments:
            replicated: the block of which every process along "data" has a copy.
        """
        return None

    def which(self, condition: bool) -> str:
        """The names of the ranks where a condition holds; empty for one process."""
        return ""


#: The shard of a single process.
WHOLE = Shard()
