"""What a solver may ask of a problem: values, gradients, proximal maps and bounds, block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from torchlift.core.checks import check_instance
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.tensors import Factor, Point

T = TypeVar("T")


class Problem(ABC):
    """Minimise F(x) = f(x) + g(x) over named blocks, f smooth, g = Σ_b g_b with proximal maps.

    Three methods must be written: `blocks`, `smooth_value` and `gradient`.
    A problem with g ≠ 0 also writes `nonsmooth_value`, `prox` and `smooth`.
    Methods may trust the blocks of their arguments; nothing is changed in place.
    """

    @property
    @abstractmethod
    def blocks(self) -> tuple[str, ...]:
        """The names of the blocks, in order."""

    @abstractmethod
    def smooth_value(self, point: Point) -> float:
        """f."""

    @abstractmethod
    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        """∇f at a whole point, for the named blocks only (all by default)."""

    def nonsmooth_value(self, point: Point) -> float:
        """g; +∞ off its domain."""
        return 0.0

    def parts(self, point: Point) -> Mapping[str, float]:
        """The named summands of F, for records; override it to split f further."""
        return {"smooth": self.smooth_value(point), "nonsmooth": self.nonsmooth_value(point)}

    def value(self, point: Point) -> float:
        """F = f + g."""
        return sum(self.parts(point).values())

    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        """argmin_p ½‖p − x‖² + Σ_b steps[b]·g_b(p) over the blocks that `point` holds.

        A step is a number. Where `elementwise(block)` is true it may also be a
        tuple of tensors, one per tensor of the block.
        """
        return point

    def bound(self, point: Point, block: str) -> float | None:
        """A Lipschitz constant of ∇_block f near `point`, the other blocks fixed; None if unknown."""
        return None

    def minimise(
        self, point: Point, block: str, tolerance: float, anchor: Point | None = None, strength: float = 0.0
    ) -> Point | None:
        """The point with F + strength/2 ‖x − anchor‖² minimised over one block, the others fixed.

        None where the problem knows no better way than first-order steps. The
        anchor may hold some blocks only.
        """
        return None

    def smooth(self, block: str) -> bool:
        """Whether g ≡ 0 on the block."""
        return type(self).nonsmooth_value is Problem.nonsmooth_value

    def proximable(self, block: str) -> bool:
        """Whether `prox` serves the block."""
        return self.smooth(block) or type(self).prox is not Problem.prox

    def elementwise(self, block: str) -> bool:
        """Whether g_b is a sum over entries, so that `prox` takes one step per entry."""
        return self.smooth(block)


class Proximable(Protocol):
    """A convex function of a tensor with a proximal map, its values summed; every `functions.Function` is one."""

    def value(self, x: Tensor) -> Tensor: ...

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor: ...


class CompositeProblem(Problem):
    """F(x) = f(x₁, x₂, …) + Σ_b g_b(x_b) from ordinary functions of tensors.

    Each block is one tensor; f and its gradient take them in the order of
    `blocks`.

    Arguments:
        value: f, a function of the tensors, as a number or a 0-d tensor.
        gradient: ∇f as a tensor or a tuple, one per block; by autograd if left out.
        regulariser: g on all blocks together, or {block: g_b}; blocks without one have g_b = 0.
        bound: a Lipschitz constant of ∇f, for all blocks or {block: constant}.
        blocks: the names.
        elementwise: whether each g_b is a sum over entries (ℓ1, constraints; not the nuclear norm).
    """

    def __init__(
        self,
        value: Callable[..., Tensor | float],
        gradient: Callable[..., Tensor | tuple[Tensor, ...]] | None = None,
        regulariser: Proximable | Mapping[str, Proximable] | None = None,
        bound: float | Mapping[str, float] | None = None,
        *,
        blocks: Sequence[str] = ("x",),
        elementwise: bool = False,
    ) -> None:
        self._blocks = tuple(blocks)
        self._value = value
        self._gradient = gradient
        self._parts = _per_block("regulariser", self._blocks, regulariser)
        self._bounds = _per_block("bound", self._blocks, bound)
        self._elementwise = elementwise
        for name, part in self._parts.items():
            if not callable(getattr(part, "value", None)):
                invalid_type(f"regulariser of {name!r}", "an object with `value` and `prox`", part)

    @property
    def blocks(self) -> tuple[str, ...]:
        return self._blocks

    @torch.no_grad()
    def smooth_value(self, point: Point) -> float:
        return float(self._value(*point.tensors))

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        if self._gradient is None:
            grads = self._by_autograd(point)
        else:
            with torch.no_grad():
                grads = self._gradient(*point.tensors)
        full = point.like((grads,) if isinstance(grads, Tensor) else grads)
        return full if blocks is None else full.select(blocks)

    @torch.no_grad()
    def nonsmooth_value(self, point: Point) -> float:
        return sum(float(part.value(point[name][0]).sum()) for name, part in self._parts.items())

    @torch.no_grad()
    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        return point.like(self._prox_block(name, point[name][0], steps[name]) for name in point)

    def bound(self, point: Point, block: str) -> float | None:
        return self._bounds.get(block)

    def smooth(self, block: str) -> bool:
        return block not in self._parts

    def proximable(self, block: str) -> bool:
        return self.smooth(block) or callable(getattr(self._parts[block], "prox", None))

    def elementwise(self, block: str) -> bool:
        return self.smooth(block) or self._elementwise

    def _prox_block(self, name: str, x: Tensor, step: Factor) -> Tensor:
        if name not in self._parts:
            return x
        return self._parts[name].prox(x, step[0] if isinstance(step, tuple) else step)

    def _by_autograd(self, point: Point) -> tuple[Tensor, ...]:
        leaves = tuple(tensor.detach().requires_grad_() for tensor in point.tensors)
        with torch.enable_grad():
            value = self._value(*leaves)
            value = check_instance("CompositeProblem value", value, Tensor, "a 0-d tensor", "Or give `gradient`.")
            return torch.autograd.grad(value, leaves)


def _per_block(what: str, blocks: tuple[str, ...], given: T | Mapping[str, T] | None) -> dict[str, T]:
    if given is None:
        return {}
    table: dict[str, T] = dict(given) if isinstance(given, Mapping) else dict.fromkeys(blocks, given)
    for name in table:
        if name not in blocks:
            invalid_value(f"{what} of {name!r}", f"one of the blocks {list(blocks)}", repr(name))
    return table
