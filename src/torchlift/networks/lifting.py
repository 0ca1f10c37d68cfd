"""`lift`: the unified form of a module of torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

from torchlift.core.checks import Shape, check_instance, check_shape
from torchlift.core.errors import NotProximalError, NotRepresentableError, invalid_type, invalid_value
from torchlift.networks.base import Network
from torchlift.networks.chain import Chain
from torchlift.networks.graph import GraphNetwork
from torchlift.networks.input_shape import first_layer, known_shape, shape_example
from torchlift.networks.verify import verify

_Sizes = int | Iterable[int] | None
_Example = Tensor | tuple[Tensor, ...] | _Sizes


@overload  # a chain, or a graph where it holds other modules
def lift(
    module: nn.Sequential, example_inputs: _Example = ..., *, input_shape: _Sizes = ..., share: bool = ...
) -> Any: ...
@overload
def lift(
    module: nn.Module, example_inputs: _Example = ..., *, input_shape: _Sizes = ..., share: bool = ...
) -> GraphNetwork: ...
def lift(
    module: nn.Module,
    example_inputs: Tensor | tuple[Tensor, ...] | int | Iterable[int] | None = None,
    *,
    input_shape: int | Iterable[int] | None = None,
    share: bool = False,
) -> Network:
    """The unified form of a module: its states, and the block operators between them.

    An `nn.Sequential` of dense layers, convolutions, average-pooling, `Residual`,
    `RungeKutta` and proximal activations becomes a `Chain`, whose equal dense
    layers are stacked. Every other module is recorded and becomes a `GraphNetwork`,
    which says what is linear, proximal, linear at a context, or opaque. What
    cannot be recorded is refused with the path of the module. The outputs are
    compared with the module's, and the module itself does not change.

    Arguments:
        module: a map from one tensor (B, …) to another.
        example_inputs: a batch of inputs, or the shape of one input, such as (1, 28, 28); may be left out when the
            first layer is `nn.Linear`.
        input_shape: the shape by name.
        share: whether the network trains the parameters of `module` itself instead of copies.

    Example:
        >>> net = lift(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        >>> net.depth
        1
    """
    check_instance("lift", module, nn.Module, "an nn.Module")
    if isinstance(module, Network):
        invalid_type("lift", "a module that is not lifted yet", module, "Use the network as it is.")
    module = getattr(module, "_orig_mod", module)  # of a compiled module, whose calls cannot be recorded
    example, shape = _example(example_inputs, input_shape)
    network = _read(module, example, shape, share)
    verify(network, module, _filled(network, example))
    return network


def _read(module: nn.Module, example: Tensor | None, shape: Shape | None, share: bool) -> Network:
    if share or not isinstance(module, nn.Sequential):
        return GraphNetwork(module, _shape(module, shape), share=share, like=example)
    try:
        return Chain(module, shape)
    except (NotRepresentableError, NotProximalError) as error:
        refused = error
    try:
        return GraphNetwork(module, _shape(module, shape), like=example)
    except NotRepresentableError as error:
        if "cannot be recorded" in str(error) and "forward" not in str(refused):
            raise refused from None
        raise


def _example(given: Any, input_shape: Any) -> tuple[Tensor | None, Shape | None]:
    """The example and the shape of one input, from either."""
    if isinstance(given, tuple | list) and len(given) == 1 and isinstance(given[0], Tensor):
        given = given[0]
    if isinstance(given, tuple | list) and any(isinstance(item, Tensor) for item in given):
        hint = "Fix the others in a module of your own whose forward takes one."
        invalid_value("lift example_inputs", "one tensor, the input of the module", f"{len(given)} inputs", hint)
    if isinstance(given, Tensor):
        if given.ndim == 0 or len(given) == 0 or not given.is_floating_point():
            got = f"shape {tuple(given.shape)}, dtype {given.dtype}"
            invalid_value("lift example_inputs", "a batch (B, …) of real numbers", got)
        return given.detach(), check_shape("lift input_shape", tuple(given.shape[1:]))
    chosen = given if input_shape is None else input_shape
    return None, None if chosen is None else check_shape("input_shape", chosen)


def _shape(module: nn.Module, shape: Shape | None) -> Shape:
    shape = known_shape(module) if shape is None else shape
    if shape is None:
        hint = f"Try lift(module, example_inputs) or lift(module, input_shape={shape_example(module)})."
        first = type(first_layer(module)).__name__
        invalid_value("lift", f"an example, because {first} does not tell the shape", "nothing", hint)
    return shape


def _filled(network: Network, example: Tensor | None) -> Tensor:
    """The example, or standard normal numbers."""
    like = torch.empty(0) if network.like is None else network.like
    if example is not None:
        return example.to(like) if network.like is not None else example
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, *network.in_shape, generator=generator).to(like.device, like.dtype)
