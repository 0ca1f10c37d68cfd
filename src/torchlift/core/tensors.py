# pyright: reportPrivateImportUsage=false
"""Points of named blocks of tensors, and their arithmetic.

All tensors of a point lie in one flat tuple, so that an operation on a whole
point is one `torch._foreach_*` call however many blocks and tensors it has.
Nothing here is recorded by autograd and nothing is changed in place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from torchlift.core.checks import check_instance, check_tensor
from torchlift.core.errors import invalid_value

Layout: TypeAlias = tuple[tuple[str, int], ...]
"""(block, number of tensors), in order."""

Factor: TypeAlias = "float | tuple[Tensor, ...]"
"""One number for a block, or one tensor that broadcasts per tensor of it."""


class Sharing(Protocol):
    """How sums over the entries that one process holds become sums over those of all processes."""

    def totals(self, sums: Mapping[str, float]) -> dict[str, float]:
        """One sum per block, the same on every process; all processes ask at the same time."""
        ...


class Point(Mapping[str, tuple[Tensor, ...]]):
    """An immutable mapping from block names to tuples of tensors.

    `Point({"x": tensor})` and `Point({"x": [a, b]})` are both understood;
    `point["x"]` is always a tuple. Tensors are detached, never copied.

    A point may be one process's part of a larger one. Then `sharing` makes
    products and norms those of the whole; arithmetic hands it on. Its result is
    a new point even where a process holds nothing, because solvers tell by
    identity whether a point has moved, and must do so alike everywhere.
    """

    __slots__ = ("_layout", "_tensors", "sharing")

    def __init__(self, blocks: Mapping[str, Tensor | Sequence[Tensor]], sharing: Sharing | None = None) -> None:
        check_instance("Point", blocks, Mapping, "a mapping from block names to tensors", 'Try Point({"x": tensor}).')
        tensors: list[Tensor] = []
        layout: list[tuple[str, int]] = []
        for name, value in blocks.items():
            items = (value,) if isinstance(value, Tensor) else tuple(value)
            tensors += [check_tensor(f"Point block {name!r}", item).detach() for item in items]
            layout.append((name, len(items)))
        self._layout: Layout = tuple(layout)
        self._tensors: tuple[Tensor, ...] = tuple(tensors)
        self.sharing = sharing

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of all blocks, in order."""
        return self._tensors

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._layout)

    @property
    def dtype(self) -> torch.dtype:
        """The least precise dtype of all tensors: what tolerances must respect."""
        dtypes = {tensor.dtype for tensor in self._tensors} or {torch.float64}
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    def __getitem__(self, block: str) -> tuple[Tensor, ...]:
        start, stop = _ranges(self._layout)[block]
        return self._tensors[start:stop]

    def __iter__(self) -> Iterator[str]:
        return iter(self.blocks)

    def __len__(self) -> int:
        return len(self._layout)

    def like(self, tensors: Iterable[Tensor]) -> Point:
        """A point of the same blocks with other tensors; trusted, not checked."""
        twin = object.__new__(Point)
        twin._layout = self._layout
        twin._tensors = tuple(tensors)
        twin.sharing = self.sharing
        return twin

    def select(self, blocks: Sequence[str]) -> Point:
        """Only the named blocks."""
        if tuple(blocks) == self.blocks:
            return self
        return _assemble({name: self[name] for name in blocks}, self.sharing)

    def merge(self, other: Point) -> Point:
        """This point with the blocks of `other` in place of its own."""
        if other._layout == self._layout:
            return other
        return _assemble({name: other[name] if name in other else self[name] for name in self}, self.sharing)

    def spread(self, factors: Mapping[str, float]) -> list[float]:
        """One number per tensor from one number per block."""
        return [factors[name] for name, count in self._layout for _ in range(count)]

    # Comparing tensors is ambiguous: points are equal only if they are the same object.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {[tuple(t.shape) for t in self[name]]}" for name in self)
        return f"Point({parts})"


def as_point(value: Point | Mapping[str, Tensor | Sequence[Tensor]] | Tensor) -> Point:
    """A point from itself, from a mapping, or from one tensor, which becomes the block "x"."""
    if isinstance(value, Point):
        return value
    return Point({"x": value} if isinstance(value, Tensor) else value)


@torch.no_grad()
def copy_into(tensors: Iterable[Tensor], targets: Iterable[Tensor]) -> None:
    """Write tensors over others, one by one."""
    for tensor, target in zip(tensors, targets, strict=True):
        target.copy_(tensor)


def add(a: Point, b: Point, alpha: float = 1.0) -> Point:
    """a + alpha·b."""
    if not a.tensors:
        return a.like(())
    return a.like(torch._foreach_add(a.tensors, _matching(a, b), alpha=alpha))


def subtract(a: Point, b: Point) -> Point:
    """a − b."""
    if not a.tensors:
        return a.like(())
    return a.like(torch._foreach_sub(a.tensors, _matching(a, b)))


def add_scaled(a: Point, b: Point, factors: Mapping[str, Factor]) -> Point:
    """a + c·b with one factor c per block."""
    if not a.tensors:
        return a.like(())
    numbers = {name: factor for name, factor in factors.items() if not isinstance(factor, tuple)}
    if len(numbers) == len(factors):
        return _add_numbers(a, b, numbers)
    per_block = {name: _times(b[name], factors[name]) for name in a}
    return add(a, _assemble(per_block, a.sharing))


def scale(a: Point, factor: float) -> Point:
    """factor·a."""
    return a.like(torch._foreach_mul(a.tensors, factor) if a.tensors else ())


def lerp(a: Point, b: Point, weight: float) -> Point:
    """a + weight·(b − a)."""
    if not a.tensors:
        return a.like(())
    return a.like(torch._foreach_lerp(a.tensors, _matching(a, b), weight))


def clone(a: Point) -> Point:
    """A copy that shares no memory."""
    return a.like(tensor.clone() for tensor in a.tensors)


def zeros_like(a: Point) -> Point:
    return a.like(torch.zeros_like(tensor) for tensor in a.tensors)


def dot(a: Point, b: Point) -> float:
    """⟨a, b⟩, summed over all blocks."""
    pairs = zip(a.tensors, _matching(a, b), strict=True)
    values = _numbers([torch.dot(x.reshape(-1), y.reshape(-1)) for x, y in pairs])
    if a.sharing is None:
        return math.fsum(values)
    return sum(a.sharing.totals(_per_block(a, values, sum)).values())  # fsum would refuse ∞ − ∞ on one process alone


def norm(a: Point) -> float:
    """‖a‖₂ over all blocks."""
    return math.hypot(*(_norms(a) if a.sharing is None else block_norms(a).values()))


def block_norms(a: Point) -> dict[str, float]:
    """‖·‖₂ of each block, with one wait for the device."""
    norms = _per_block(a, _norms(a), lambda values: math.hypot(*values))
    if a.sharing is None:
        return norms
    totals = a.sharing.totals({name: value * value for name, value in norms.items()})
    return {name: math.sqrt(total) for name, total in totals.items()}


def finite_blocks(a: Point) -> dict[str, bool]:
    """Whether all entries of each block are finite."""
    counts = {name: sum(not bool(tensor.isfinite().all()) for tensor in a[name]) for name in a}
    return {name: count == 0 for name, count in (counts if a.sharing is None else a.sharing.totals(counts)).items()}


def tensor_norms(a: Point) -> list[float]:
    """‖·‖₂ of each tensor; half precision is summed in single.

    Where the point is shared, each tensor stands for an equal part of the whole
    point instead, so that their norm is that of the whole on every process.
    """
    if a.sharing is None:
        return _norms(a)
    return [norm(a) / math.sqrt(len(a.tensors))] * len(a.tensors)


def _add_numbers(a: Point, b: Point, factors: Mapping[str, float]) -> Point:
    distinct = set(factors.values())
    if len(distinct) == 1:
        return add(a, b, distinct.pop())
    products = torch._foreach_mul(_matching(a, b), a.spread(factors))
    return a.like(torch._foreach_add(a.tensors, products))


def _times(tensors: tuple[Tensor, ...], factor: Factor) -> tuple[Tensor, ...]:
    other = factor if isinstance(factor, tuple) else (factor,) * len(tensors)
    return tuple(tensor * part for tensor, part in zip(tensors, other, strict=True))


def _numbers(parts: Sequence[Tensor]) -> list[float]:
    """Scalars as Python numbers, with one wait for the device."""
    if len(parts) <= 1:
        return [float(part) for part in parts]
    if len({(part.dtype, part.device) for part in parts}) == 1:
        return torch.stack(tuple(parts)).tolist()
    return [float(part) for part in parts]


def _norms(a: Point) -> list[float]:
    """‖·‖₂ of each tensor that this process holds."""
    if not a.tensors:
        return []
    half = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in a.tensors)
    parts = torch._foreach_norm(a.tensors, 2, dtype=torch.float32) if half else torch._foreach_norm(a.tensors, 2)
    return _numbers(parts)


def _per_block(a: Point, values: list[float], join: Callable[[list[float]], float]) -> dict[str, float]:
    """One number per block from one number per tensor."""
    return {name: join(values[start:stop]) for name, (start, stop) in _ranges(a._layout).items()}


def _assemble(blocks: Mapping[str, tuple[Tensor, ...]], sharing: Sharing | None) -> Point:
    """A point from tensors that are known to be good."""
    point = object.__new__(Point)
    point._layout = tuple((name, len(items)) for name, items in blocks.items())
    point._tensors = tuple(item for items in blocks.values() for item in items)
    point.sharing = sharing
    return point


def _matching(a: Point, b: Point) -> tuple[Tensor, ...]:
    if a._layout is not b._layout and a._layout != b._layout:
        invalid_value("points", f"the blocks {dict(a._layout)}", dict(b._layout), "Use `select` or `merge` first.")
    return b.tensors


@functools.lru_cache(maxsize=256)
def _ranges(layout: Layout) -> dict[str, tuple[int, int]]:
    ranges: dict[str, tuple[int, int]] = {}
    start = 0
    for name, count in layout:
        ranges[name] = (start, start + count)
        start += count
    return ranges
