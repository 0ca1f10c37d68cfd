"""A physics of deepinv as an operator."""

from __future__ import annotations

from typing import Any

from torchlift.contrib.deepinv.package import part
from torchlift.core.checks import check_instance
from torchlift.operators import Context, LinearOperator
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
