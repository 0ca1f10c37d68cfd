"""`lift`: the unified form of a module of torch, compared with the module that it was read from."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

from torchlift.core.checks import Shape, check_instance, check_shape
from torchlift.core.errors import NotProximalError, NotRepresentableError, invalid_type, invalid_value
from torchlift.networks.base import Network
from torchlift.networks.calls import uses_batch_statistics
from torchlift.networks.chain import Chain
from torchlift.networks.graph import GraphNetwork
from torchlift.networks.input_shape import first_layer, known_shape, shape_example
from torchlift.networks.trace import twin

#: Samples of the example that are compared.
SAMPLES = 1
#: Relative difference that rounding may leave, in units of eps.
ROUNDING = 4096


@torch.no_grad()
def verify(network: Network, module: nn.Module, example: Tensor) -> None:
    """Refuse a lifted network whose output differs from the module's at the example or at a perturbed one.

    Samples are evaluated by the module one set after the other and by the
    network together, so that a module which mixes samples is refused too
    (except where batch norms use the statistics of the batch). Nothing of the
    module changes: a copy is evaluated, and the random state is put back.
    """
    if any(tensor.device.type == "meta" for tensor in module.state_dict().values()):
        return
    copy, state = twin(module), torch.get_rng_state()
    try:
        first = example[:SAMPLES]
        noise = torch.randn(first.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        second = first + (0.1 + first.abs().mean()) * noise.to(first)
        together = torch.cat([first, second])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the module warns of, it will say to its user again
            mixes = isinstance(network, GraphNetwork) and any(map(uses_batch_statistics, network.plan.contextual))
            expected = copy(together) if mixes else torch.cat([copy(first), copy(second)])
        # not its forward pass: that of a recorded module is the module's
        difference = _difference(network.states(together).output, expected)
        if difference is not None:
            path = _first_difference(network, copy, together) if isinstance(network, GraphNetwork) else "the output"
            hint = "Does it read something besides its input, or mix the samples of a batch?"
            if module.training:
                hint = "It is in training mode, where dropout draws random numbers: call its eval() first. " + hint
            raise NotRepresentableError(
                f"lift: the recorded calls differ from the module by {difference:.3g}, first at {path}. {hint}"
            )
    finally:
        torch.set_rng_state(state)


def _difference(output: Tensor, expected: Tensor) -> float | None:
    """The largest difference, None where it is rounding."""
    if output.shape != expected.shape:
        return float("inf")
    room = ROUNDING * torch.finfo(expected.dtype).eps * (1e-6 + float(expected.abs().max()))
    gap = float((output - expected).abs().max()) if output.numel() else 0.0
    return None if gap <= room or (gap != gap and torch.equal(output.isnan(), expected.isnan())) else gap


def _first_difference(network: GraphNetwork, copy: nn.Module, y: Tensor) -> str:
    """The path of the first module whose output matches no recorded call."""
    seen: list[tuple[str, Tensor]] = []
    hooks = [
        part.register_forward_hook(
            lambda _, __, output, name=name: seen.append((name, output)) if isinstance(output, Tensor) else None
        )
        for name, part in copy.named_modules() if name and not list(part.children())
    ]  # fmt: skip
    try:
        copy(y)
    finally:
        for hook in hooks:
            hook.remove()
    states = network.states(y)
    values: dict[str, list[Tensor]] = {}
    for row, v, z in zip(network.plan.rows, states.v, states.z, strict=True):
        for node, value in ((row.source, v), (row.node, z)):
            values.setdefault(node.meta["path"], []).append(value)
    for name, output in seen:
        recorded = values.get(name, [])
        comparable = (value for value in recorded if value.shape == output.shape)
        if recorded and all(_difference(value, output) is not None for value in comparable):
            return name
    return "the output"


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
