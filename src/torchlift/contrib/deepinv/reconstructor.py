"""A network as a reconstructor of deepinv, and a reconstructor of deepinv as a module that `train` takes."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from torchlift.contrib.deepinv.package import part
from torchlift.contrib.deepinv.physics import LinearPhysics
from torchlift.core.checks import Shape, check_instance, check_shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.networks import Network
from torchlift.networks.unrolled import Unrolled
from torchlift.operators.physics import PhysicsOperator, physics_operator

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


Reconstructor = part("models").Reconstructor


class NetworkReconstructor(Reconstructor):
    """x = N(y), called as `reconstructor(y, physics)`; made by `as_reconstructor`.

    Attributes:
        network: N, not a copy: what deepinv's `Trainer` learns is learned by it.
    """

    def __init__(self, network: Network, image_shape: Shape) -> None:
        super().__init__()
        self.network = network
        self.image_shape = image_shape
        self._tried: PhysicsOperator | None = None

    def forward(self, y: Tensor, physics: Any = None, **kwargs: Any) -> Tensor:
        """N(y) as images.

        Arguments:
            y: measurements (B, …).
            physics: the forward model in place of the network's own, where the network is an unrolled algorithm;
                other networks do not look at it.
            kwargs: what deepinv tells every reconstructor; not used.
        """
        check_tensor("reconstructor measurements", y)
        if isinstance(self.network, Unrolled) and physics is not None:
            network = self.network.with_operator(self._operator(physics, y))
        else:
            network = self.network
        shape = network.in_shape
        if y.shape[1:].numel() == math.prod(shape):
            y = y.reshape(-1, *shape)  # a dense network takes images as vectors
        return network(y).reshape(-1, *self.image_shape)

    def _operator(self, physics: Any, y: Tensor) -> PhysicsOperator:
        """A with the present parameters of the physics, which may be those of each image; tried when it is new."""
        if self._tried is not None and self._tried.physics is physics:
            return self._tried.present()
        hint = "An unrolled network needs A and its adjoint."
        check_instance("reconstructor physics", physics, LinearPhysics, "a deepinv.physics.LinearPhysics", hint)
        self._tried = physics_operator("reconstructor physics", physics, self.network.out_shape, batch=len(y))
        return self._tried


def as_reconstructor(network: Network, image_shape: Any = None) -> Any:
    """A network as a `deepinv.models.Reconstructor`, for `deepinv.Trainer`, `deepinv.test` and its benchmarks.

    A dense network gets its measurements as vectors. An unrolled algorithm (`LISTA`, `PrimalDual`) takes the physics
    that it is called with as its forward model, with the steps and weights it has learned.

    Arguments:
        network: N, any network of torchlift.
        image_shape: shape of one output, such as (1, 28, 28); by default that of the network.
    """
    hint = "Try torchlift.lift(module) for an nn.Sequential; other modules need no adapter."
    check_instance("as_reconstructor", network, Network, "a torchlift network", hint)
    shape = network.out_shape if image_shape is None else check_shape("as_reconstructor image_shape", image_shape)
    if math.prod(shape) != math.prod(network.out_shape):
        invalid_value("as_reconstructor image_shape", f"as many entries as outputs {network.out_shape}", shape)
    return NetworkReconstructor(network, shape)
