"""A physics of deepinv as an inverse problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchlift.contrib.deepinv.operator import LinearPhysics, from_physics
from torchlift.contrib.deepinv.package import part
from torchlift.core.checks import Shape, check_instance
from torchlift.core.errors import invalid_value
from torchlift.data import Task
from torchlift.operators import LinearOperator

ZeroNoise, GaussianNoise = part("physics").ZeroNoise, part("physics").GaussianNoise


@dataclass(frozen=True, eq=False)
class PhysicsTask(Task):
    """The inverse problem y = A(x) + noise of a `deepinv.physics.LinearPhysics`, without noise or with a Gaussian one.

    Arguments:
        physics: the forward model; its noise becomes `noise`, the standard deviation.
    """

    physics: Any
    noise: float = field(init=False)

    def __post_init__(self) -> None:
        check_instance("PhysicsTask", self.physics, LinearPhysics, "a deepinv.physics.LinearPhysics")
        object.__setattr__(self, "noise", _deviation(self.physics.noise_model))

    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        operator = from_physics(self.physics, shape)
        return operator if like is None else operator.map_tensors(lambda _, tensor: tensor.to(like))


def _deviation(noise_model: Any) -> float:
    if isinstance(noise_model, ZeroNoise):
        return 0.0
    if isinstance(noise_model, GaussianNoise) and noise_model.sigma.numel() == 1:
        return float(noise_model.sigma)
    hint = "Measure with the physics itself: y = physics(x)."
    invalid_value("PhysicsTask noise", "no noise, or Gaussian noise of one strength", type(noise_model).__name__, hint)
