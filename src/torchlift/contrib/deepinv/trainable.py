"""A reconstructor of deepinv as a module that `train` takes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchlift.contrib.deepinv.package import part
from torchlift.core.checks import check_instance

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
    check_instance("with_physics model", model, nn.Module, "a torch.nn.Module")
    check_instance("with_physics physics", physics, Physics, "a deepinv.physics.Physics")
    return WithPhysics(model, physics)
