"""An operator as a physics of deepinv."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torchlift.contrib.deepinv.operator import LinearPhysics
from torchlift.core.checks import check_instance, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.operators import Context, LinearOperator, OperatorStack



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
