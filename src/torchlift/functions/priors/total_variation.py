"""Total variation: images are made of flat pieces with short edges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from torchlift.core.checks import Shape, check_choice, check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions.base import Part, Prior
from torchlift.functions.group_norm import GroupNorm
from torchlift.operators import FiniteDifference

Channels = Literal["separate", "coupled"]


@dataclass(frozen=True)
class TotalVariation(Prior):
    """R(x) = Σ_pixels ‖(∇x)_pixel‖, with forward differences and no differences across the border.

    Arguments:
        isotropic: measure the length of the gradient; otherwise add up the sizes of its two entries.
        channels: "separate" adds up the channels; "coupled" takes the length over all of them, so that
            colours change at the same edges.

    Reference: Rudin, Osher & Fatemi, Physica D 60 (1992); Chambolle, Journal of
    Mathematical Imaging and Vision 20 (2004); Blomgren & Chan, IEEE Transactions
    on Image Processing 7 (1998), for colours.
    """

    isotropic: bool = True
    channels: Channels = "separate"

    def __post_init__(self) -> None:
        check_choice("TotalVariation channels", self.channels, get_args(Channels))

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        gradient = _gradient("TotalVariation", shape)
        return (Part(GroupNorm(dim=_axes(self.isotropic, self.channels, shape)), gradient),)


@dataclass(frozen=True)
class HuberTV(Prior):
    """Total variation that is quadratic for small gradients, so that slopes do not turn into stairs.

        R(x) = Σ_pixels h(‖(∇x)_pixel‖),   h(s) = s − δ/2 if s ≥ δ, s²/2δ otherwise

    Arguments:
        delta: δ > 0, the length from which a gradient counts as an edge.
        isotropic, channels: as in `TotalVariation`.

    Reference: Chambolle & Pock, Journal of Mathematical Imaging and Vision 40
    (2011), section 6.2.1.
    """

    delta: float = 0.01
    isotropic: bool = True
    channels: Channels = "separate"

    def __post_init__(self) -> None:
        check_positive("HuberTV delta", self.delta)
        check_choice("HuberTV channels", self.channels, get_args(Channels))

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        axes, gradient = _axes(self.isotropic, self.channels, shape), _gradient("HuberTV", shape)
        return (Part(GroupNorm(dim=axes, delta=float(self.delta)), gradient),)


def _axes(isotropic: bool, channels: Channels, shape: Shape) -> tuple[int, ...]:
    """The axes of ∇x (batch, direction, channel, height, width) that belong together; there may be no channels."""
    return ((1,) if isotropic else ()) + ((2,) if channels == "coupled" and len(shape) == 3 else ())


def _gradient(name: str, shape: Shape) -> FiniteDifference:
    return FiniteDifference(shape if len(shape) == 2 else image_shape(name, shape, "(height, width) or "))


def image_shape(name: str, shape: Shape, others: str = "") -> Shape:
    """(channels, height, width), or an error that names the prior and what else it takes."""
    if len(shape) == 3:
        return shape
    hint = "For vectors try L1() or Tikhonov()."
    if len(shape) == 1 and (side := math.isqrt(shape[0])) ** 2 == shape[0] and side > 2:
        hint = f"If these are images, invert nn.Sequential(nn.Flatten(), network) with input_shape=(1, {side}, {side})."
    invalid_value(name, f"images of shape {others}(channels, height, width)", f"shape {shape}", hint)
