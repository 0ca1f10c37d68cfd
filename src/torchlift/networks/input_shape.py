"""The shape of one input, where only a module and its outputs are known."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from torchlift.core.checks import Shape
from torchlift.networks.trace import without_memory

_CONVOLUTIONS: dict[type[nn.Module], int] = {
    nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3,
    nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3,
}  # fmt: skip
_SIZES = {1: "length", 2: "height, width", 3: "depth, height, width"}
#: Modules that return what they get in its own shape, which they leave open.
_OPEN = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.PReLU)
#: Pixels in a row that are tried, and sizes that strides may make equal: where more lead to the same, a pooling has
#: forgotten the size.
LARGEST, MOST = 512, 32


def first_layer(module: nn.Module) -> nn.Module:
    """The first module inside that has a say in the shape of inputs: one with parameters, or a flattening."""
    # the weight of a parametrised layer is made by a child, inside which there are no layers
    made = {id(part) for each in module.modules() if is_parametrized(each) for part in each.parametrizations.modules()}  # type: ignore[union-attr]
    parts = [part for part in module.modules() if id(part) not in made]
    leaves = [part for part in parts if is_parametrized(part) or not list(part.children())]
    telling = [part for part in leaves if isinstance(part, nn.Flatten) or [*part.parameters()]]
    return next((part for part in telling if not isinstance(part, _OPEN)), telling[0] if telling else module)


def known_shape(module: nn.Module) -> Shape | None:
    """The shape of one input where the first layer tells it, as `nn.Linear` does."""
    first = first_layer(module)
    return (first.in_features,) if isinstance(first, nn.Linear) else None


def shape_example(module: nn.Module) -> str:
    """What to write for the shape of one input that the first layer does not tell."""
    first = first_layer(module)
    sizes = _SIZES[_CONVOLUTIONS.get(type(first), 2)]
    return f"({getattr(first, 'in_channels', 'channels')}, {sizes})"


def fitting_shapes(module: nn.Module, out_shape: Shape) -> list[Shape]:
    """Shapes of one input for which a module returns outputs of this shape, the most likely first.

    Layers that act on each token or pixel alone leave the other axes to be found: those
    of the outputs are tried for tokens, and all sizes for pixels. Of the sizes that
    strides make equal, the one that can be halved most often comes first. What is
    flattened first is a square grey or colour image if it has so many numbers.
    """
    first, (*tokens, _) = first_layer(module), out_shape
    if isinstance(first, nn.Linear):
        candidates = [(first.in_features,), (*tokens, first.in_features)]
    elif isinstance(first, (nn.LayerNorm, nn.RMSNorm)):
        normalised = tuple(first.normalized_shape)
        candidates = [normalised, (*out_shape[: -len(normalised)], *normalised)]
    elif isinstance(first, nn.RNNBase):
        candidates = [(*tokens, first.input_size)]
    elif isinstance(first, nn.Flatten):
        candidates = _before_flattening(module)
    elif type(first) in _CONVOLUTIONS:
        return _images(module, first.in_channels, _CONVOLUTIONS[type(first)], out_shape)  # type: ignore[arg-type]
    else:
        return []
    stand_in = without_memory(module)
    return [shape for shape in dict.fromkeys(candidates) if _output(stand_in, shape) == out_shape]


def _images(module: nn.Module, channels: int, axes: int, out_shape: Shape) -> list[Shape]:
    stand_in, sizes = without_memory(module), out_shape[-axes:]
    fitting: list[list[int]] = [[] for _ in range(axes)]
    for size in range(1, LARGEST + 1):
        output = _output(stand_in, (channels, *[size] * axes))
        if output is None:
            continue
        if len(output) != len(out_shape):
            break
        if len(output) != axes + 1:  # pixels were joined: a layer after that knows how many, and all sizes are alike
            fits = [output == out_shape] * axes
        elif output[0] != out_shape[0] or min(output[-axes:]) > max(sizes):
            break
        else:
            fits = [made == expected for made, expected in zip(output[-axes:], sizes, strict=True)]
        for side, fit in zip(fitting, fits, strict=True):
            if fit:
                side.append(size)
        if max(map(len, fitting)) > MOST:
            return []
    ordered = [sorted(side, key=lambda size: size & -size, reverse=True) for side in fitting]
    square = len(out_shape) != axes + 1 or len(set(sizes)) == 1
    choices = zip(*ordered, strict=True) if square else product(*ordered)
    return [(channels, *choice) for choice in choices]


def _before_flattening(module: nn.Module) -> list[Shape]:
    count = next((part.in_features for part in module.modules() if isinstance(part, nn.Linear)), 0)
    sides = {channels: math.isqrt(count // channels) for channels in (1, 3)}
    squares = [(channels, side, side) for channels, side in sides.items() if channels * side**2 == count]
    return squares or [(count,)]


def _output(stand_in: nn.Module, shape: Shape) -> Shape | None:
    """The shape of one output, None where the forward pass fails."""
    dtype = next((p.dtype for p in stand_in.parameters()), torch.float32)
    try:
        with torch.no_grad():
            output = stand_in(torch.empty(2, *shape, dtype=dtype, device="meta"))
    except Exception:  # whatever a forward pass says to inputs of a size that it cannot take
        return None
    return tuple(output.shape[1:]) if isinstance(output, Tensor) and output.shape[:1] == (2,) else None
