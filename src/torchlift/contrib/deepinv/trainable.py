"""A reconstructor of deepinv as a module that `train` takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchlift.contrib.deepinv.package import part
from torchlift.core.errors import invalid_type

Physics = part("physics").Physics


class WithPhysics(nn.Module):
    """y ↦ model(y, physics); made by `with_physics`.

    Attributes:
        model: not a copy: what `train` learns is learned by it.
    """

    def __init__(self, model: nn.Module, physics: Any) -> None:
        super().__init__()
        self.model = model
        # no submodule: a physics is not trained, and its tensors belong to the problem
        object.__setattr__(self, "physics", physics)

    def forward(self, y: Tensor) -> Tensor:
        return self.model(y, self.physics)


def with_physics(model: Any, physics: Any) -> nn.Module:
    """An unfolded network or another reconstructor of deepinv, called as model(y, physics), for `train`.

        tl.train(with_physics(model, physics), (y, x))

    Arguments:
        model: an `nn.Module`, such as `deepinv.optim.PGD(…, unfold=True)`.
        physics: the forward model of all measurements.
    """
    if not isinstance(model, nn.Module):
        invalid_type("with_physics model", "a torch.nn.Module", model)
    if not isinstance(physics, Physics):
        invalid_type("with_physics physics", "a deepinv.physics.Physics", physics)
    return WithPhysics(model, physics)
