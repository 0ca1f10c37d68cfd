"""Priors without a formula: a denoiser in place of a proximal map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from torchlift.core.errors import invalid_type
from torchlift.functions.base import Amount, Function, check_step
from torchlift.functions.l1 import L1


@dataclass(frozen=True)
class PlugAndPlay(Function):
    """A prior known through its proximal map: denoise(x, step) = argmin_p ½‖p − x‖² + step·R(p).

    A trained denoiser may stand in for it: then iterations still make sense,
    but no objective decreases, and R counts as 0 where no `function` is given.

    Arguments:
        denoise: maps images (B, …) and steps (B, 1, …) to images, or has a method `prox` that does, such as the
            networks of `torchlift.io.load_denoiser`.
        function: R, one value per image, if it is known.

    Reference: Venkatakrishnan, Bouman & Wohlberg, Plug-and-play priors for
    model based reconstruction (2013).
    """

    denoise: Callable[[Tensor, Tensor], Tensor]
    function: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        for name, given in (("denoise", self.denoise), ("function", self.function)):
            if not callable(given) and not (name == "function" and given is None):
                invalid_type(f"PlugAndPlay {name}", "a callable", given)

    def value(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0]) if self.function is None else self.function(x)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        steps = x.new_ones(len(x), *(1,) * (x.ndim - 1)) * check_step(step, x)
        return getattr(self.denoise, "prox", self.denoise)(x, steps)

    @classmethod
    def example(cls) -> Function:
        return cls(L1().prox, L1().value)
