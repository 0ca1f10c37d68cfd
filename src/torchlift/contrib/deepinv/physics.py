"""Operators as physics of deepinv, its physics as operators, and as inverse problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchlift.contrib.deepinv.package import part
from torchlift.core.checks import Shape, check_instance, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data import Task
from torchlift.operators import Context, LinearOperator, OperatorStack
from torchlift.operators.physics import physics_operator

LinearPhysics = part("physics").LinearPhysics


def from_physics(physics: Any, in_shape: Any = None, context: Context = None) -> LinearOperator:
    """A `deepinv.physics.LinearPhysics` as an operator x ↦ A(x); its noise is left out.

    The operator keeps the tensors that the physics holds now. Parameters that
    differ from image to image are its context, under the names that the physics
    has for them: `operator(x, {"mask": masks})`. Linearity and adjointness are tried.

    Arguments:
        physics: any linear physics whose measurements are one real tensor.
        in_shape: shape of one image, such as (1, 28, 28); by default the `img_size` of the physics.
        context: an example, where the physics has no parameters of its own.

    Example:
        >>> import deepinv, torchlift as tl
        >>> blur = deepinv.physics.Blur(deepinv.physics.functional.gaussian_blur(sigma=1.0), padding="circular")
        >>> H = tl.contrib.deepinv.from_physics(blur, (1, 28, 28))
        >>> tl.check_operator(H).ok
        True
    """
    hint = "A physics that is not linear has no adjoint, and no place in a network of the unified form."
    check_instance("from_physics", physics, LinearPhysics, "a deepinv.physics.LinearPhysics", hint)
    shape = getattr(physics, "img_size", None) if in_shape is None else in_shape
    return physics_operator("from_physics", physics, shape, context)


class OperatorPhysics(LinearPhysics):
    """y = Hx + noise as a `deepinv.physics.LinearPhysics`; made by `as_physics`.

    H is a copy, whose tensors are buffers of the physics.
    """

    def __init__(self, operator: LinearOperator, context: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
        super().__init__(img_size=operator.in_shape, **settings)
        self.operators = OperatorStack([operator], trainable=False)
        for name, tensor in context.items():
            if hasattr(self, name):
                invalid_value("as_physics context", "names that a physics does not use itself", repr(name))
            self.register_buffer(name, check_tensor(f"as_physics context {name!r}", tensor))
        self.per_image = tuple(context)

    @property
    def operator(self) -> LinearOperator:
        """H over the present buffers."""
        (operator,) = self.operators.operators()
        return operator

    def A(self, x: Tensor, **parameters: Any) -> Tensor:
        """Hx, with the parameters of these images, which are kept."""
        self.update_parameters(**parameters)
        return self.operator(x, self._context(x))

    def A_adjoint(self, y: Tensor, **parameters: Any) -> Tensor:
        """Hᵀy, with the parameters of these images, which are kept."""
        self.update_parameters(**parameters)
        return self.operator.T(y, self._context(y))

    def _context(self, batch: Tensor) -> Context:
        """The parameters of each image; those of a single one serve all."""
        held = {name: self.get_buffer(name) for name in self.per_image}
        size = len(batch)
        return {name: t.expand(size, *t.shape[1:]) if len(t) == 1 else t for name, t in held.items()} or None


def as_physics(operator: LinearOperator, *, noise_model: Any = None, context: Context = None, **settings: Any) -> Any:
    """An operator H as a `deepinv.physics.LinearPhysics` y = Hx + noise, for deepinv's algorithms, losses and Trainer.

    Arguments:
        operator: H.
        noise_model: such as `deepinv.physics.GaussianNoise(0.1)`; none by default.
        context: tensors by name, for an H that depends on the image: {"mask": masks}. They become parameters of the
            physics, to be changed by `physics.update(mask=masks)` or `physics(x, mask=masks)`.
        settings: of the physics: `max_iter`, `tol` and `solver` of its pseudo-inverse.

    Example:
        >>> import torch, torchlift as tl
        >>> physics = tl.contrib.deepinv.as_physics(tl.operators.Dense(torch.randn(3, 5)))
        >>> bool(physics.adjointness_test(dtype=torch.float32) < 1e-4)
        True
    """
    check_instance("as_physics", operator, LinearOperator, hint="Wrap a matrix as tl.operators.Dense(matrix).")
    if context is not None and not isinstance(context, Mapping):
        invalid_type("as_physics context", "tensors by name", context, "Try context={'mask': tensor}.")
    if noise_model is not None:
        settings["noise_model"] = noise_model
    return OperatorPhysics(operator, context or {}, settings)


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
