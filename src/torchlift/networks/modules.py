"""Two small modules that `lift` understands besides torch's own: Residual and RungeKutta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_choice, check_instance, check_number, check_positive
from torchlift.core.errors import invalid_value


class Residual(nn.Module):
    """x ↦ x + step · branch(x), a block with a skip connection.

    Arguments:
        *modules: the branch, as for `nn.Sequential`; it must keep the shape.
        step: the factor h of a forward Euler step.
    """

    def __init__(self, *modules: nn.Module, step: float = 1.0) -> None:
        super().__init__()
        for position, module in enumerate(modules):
            check_instance(f"Residual module {position}", module, nn.Module, "an nn.Module")
        if not modules:
            invalid_value("Residual", "at least one module", "none")
        self.branch = nn.Sequential(*modules)
        self.step = check_number("Residual step", step)

    def forward(self, input: Tensor) -> Tensor:
        update = self.branch(input)
        if update.shape != input.shape:
            invalid_value("Residual branch", f"output shape {tuple(input.shape)}", tuple(update.shape))
        return torch.add(input, update, alpha=self.step)

    def extra_repr(self) -> str:
        return f"step={self.step:g}"


@dataclass(frozen=True)
class Tableau:
    """An explicit Runge–Kutta method: stages U_i = u + h Σ_{k<i} a_ik F(U_k), step u + h Σ b_i F(U_i).

    Arguments:
        a: row i holds a_i1, …, a_i,i-1 (the first row is empty).
        b: one weight per stage, summing to 1.
    """

    a: tuple[tuple[float, ...], ...]
    b: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.a) != len(self.b) or any(len(row) != i for i, row in enumerate(self.a)):
            sizes = [len(row) for row in self.a]
            expected = f"rows of a with lengths 0, 1, …, {len(self.b) - 1}"
            invalid_value("Tableau", expected, sizes, "Only explicit methods can be unrolled.")
        for weight in (*self.b, *(entry for row in self.a for entry in row)):
            check_number("Tableau entry", weight)
        if abs(sum(self.b) - 1) > 1e-9:
            invalid_value("Tableau b", "weights that sum to 1", sum(self.b))


#: Explicit Runge–Kutta methods by name.
TABLEAUS = {
    "euler": Tableau(((),), (1.0,)),
    "midpoint": Tableau(((), (0.5,)), (0.0, 1.0)),
    "heun": Tableau(((), (1.0,)), (0.5, 0.5)),
    "kutta3": Tableau(((), (0.5,), (-1.0, 2.0)), (1 / 6, 2 / 3, 1 / 6)),
    "rk4": Tableau(((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}


def as_tableau(value: Any) -> Tableau:
    """A `Tableau`, or the name of one."""
    if isinstance(value, Tableau):
        return value
    check_instance("tableau", value, str, "a Tableau or a name")
    return TABLEAUS[check_choice("tableau", value, TABLEAUS)]


class RungeKutta(nn.Module):
    """One explicit Runge–Kutta step of u' = outer(σ(inner(u))); all stages share the weights.

    Arguments:
        inner: the affine map W u + b.
        activation: σ, as a module.
        outer: the linear map V, without bias.
        step: the step size h > 0.
        tableau: the method, by name or as a `Tableau`.
    """

    def __init__(
        self, inner: nn.Module, activation: nn.Module, outer: nn.Module, step: float = 1.0, tableau: Any = "euler"
    ) -> None:
        super().__init__()
        self.inner, self.activation, self.outer = inner, activation, outer
        self.step = check_positive("RungeKutta step", step)
        self.tableau = as_tableau(tableau)

    def forward(self, input: Tensor) -> Tensor:
        slopes: list[Tensor] = []
        for row in self.tableau.a:
            stage = self._advance(input, row, slopes)
            slopes.append(self.outer(self.activation(self.inner(stage))))
        return self._advance(input, self.tableau.b, slopes)

    def _advance(self, start: Tensor, weights: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
        for weight, slope in zip(weights, slopes, strict=True):
            if weight:
                start = torch.add(start, slope, alpha=self.step * weight)
        return start

    def extra_repr(self) -> str:
        return f"step={self.step:g}, stages={len(self.tableau.b)}"
