"""Networks from settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise

import torch
from torch import nn

from torchlift.cli.settings.data import Samples
from torchlift.cli.settings.fields import check_choice
from torchlift.cli.settings.memory import check_fits
from torchlift.cli.settings.own_code import call_named, reason
from torchlift.cli.settings.settings import NetworkSettings
from torchlift.core.checks import Shape, check_number, check_positive, check_size
from torchlift.core.errors import InvalidValueError, TorchliftError, invalid_value, message
from torchlift.networks import LISTA, MLP, Chain, Network, Perceptron, PrimalDual, ResNet, Shallow, lift
from torchlift.operators import Dense, FiniteDifference, LinearOperator, Reshape, dct_matrix
from torchlift.operators.context import map_context
from torchlift.prox import ACTIVATIONS, ProximalActivation, as_activation

_LAYERS = ("widths", "depth", "activation", "threshold", "parameters")
_UNROLLED = ("threshold", "iterations", "dictionary", "scale", "step", "tied")

#: The settings that each kind reads, beside `kind` and `dtype`.
USES: dict[str, tuple[str, ...]] = {
    "MLP": _LAYERS,
    "ResNet": (*_LAYERS, "tableau"),
    "Shallow": _LAYERS,
    "Perceptron": ("activation", "threshold", "parameters"),
    "LISTA": (*_UNROLLED, "form"),
    "PrimalDual": _UNROLLED,
}
#: What the unrolled networks start from where nothing is said.
THRESHOLD, ITERATIONS = 0.1, 8


def build_network(settings: NetworkSettings, samples: Samples, seed: int = 0) -> Network:
    """The network that the settings describe, for these data.

    Args:
        settings: [network].
        samples: tell sizes, and the forward model H of unrolled networks.
        seed: of the weights.
    """
    own = ":" in settings.kind
    kind = "own" if own else check_choice("[network] kind", settings.kind, (*USES, "module:function"))
    blank = NetworkSettings()
    for name in (field.name for field in fields(settings)):
        used = name in ("kind", "dtype", *USES.get(kind, ()))
        if not used and getattr(settings, name) != getattr(blank, name):
            able = [other for other, uses in USES.items() if name in uses]
            hint = f"It belongs to {', '.join(able)}. Leave it out."
            invalid_value(f"[network] {name}", f"nothing for {settings.kind}", getattr(settings, name), hint)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _own(settings.kind, samples) if own else _built(kind, settings, samples)
    return network.to(torch_dtype(settings))


def _built(kind: str, settings: NetworkSettings, samples: Samples) -> Network:
    try:
        return _BUILDERS[kind](settings, samples)
    except TorchliftError:
        raise
    except (ArithmeticError, ValueError, RuntimeError, MemoryError) as error:  # such as a step of 1/0² or no room
        where = f"[network] {settings.kind}"
        raise InvalidValueError(message(where, "numbers of ordinary size", reason(error))) from error


def torch_dtype(settings: NetworkSettings) -> torch.dtype:
    return torch.float64 if settings.dtype == "float64" else torch.float32


def reads_context(network: Network) -> bool:
    """Whether the forward model of an unrolled network may depend on the sample; networks of one's own might."""
    return not isinstance(network, Chain | Shallow)


def _mlp(settings: NetworkSettings, samples: Samples) -> Network:
    before, after = math.prod(samples.in_shape), math.prod(samples.out_shape)
    widths = [before, *_hidden(settings, before), after]
    check_fits("[network] widths", sum((a + 1) * b for a, b in pairwise(widths)), settings.dtype)
    return MLP(widths, _activation(settings))


def _resnet(settings: NetworkSettings, samples: Samples) -> Network:
    before, after = math.prod(samples.in_shape), math.prod(samples.out_shape)
    inner = _hidden(settings, before)
    check_fits("[network] widths", (2 * sum(inner) + after) * (before + 1), settings.dtype)
    return ResNet(before, inner, after, _activation(settings), tableau=settings.tableau or "euler")


def _shallow(settings: NetworkSettings, samples: Samples) -> Network:
    before, after = math.prod(samples.in_shape), math.prod(samples.out_shape)
    blocks = _hidden(settings, before, usual=1)
    check_fits("[network] widths", sum(blocks) * (before + after + 1), settings.dtype)
    return Shallow(before, blocks, after, _activation(settings), output_bias=True)


def _perceptron(settings: NetworkSettings, samples: Samples) -> Network:
    before, after = math.prod(samples.in_shape), math.prod(samples.out_shape)
    check_fits("[network] kind", (before + 1) * after, settings.dtype)
    return Perceptron(before, after, _activation(settings))


def _lista(settings: NetworkSettings, samples: Samples) -> Network:
    H, iterations = _forward_model(settings, samples), _iterations(settings)
    coupled = settings.form == "coupled"  # its matrices start from one sample's H
    return LISTA(
        H,
        _dictionary(settings, H.in_shape, 1 if settings.tied else iterations + 2),
        iterations,
        threshold=_positive(settings, "threshold", THRESHOLD),
        step=None if settings.step is None else check_positive("[network] step", settings.step),
        form=settings.form or "ista",
        tied=settings.tied,
        context=map_context(samples.train.context, lambda t: t[:1]) if coupled else samples.train.context,
    )


def _primal_dual(settings: NetworkSettings, samples: Samples) -> Network:
    H, iterations = _forward_model(settings, samples), _iterations(settings)
    return PrimalDual(
        H,
        _dictionary(settings, H.in_shape, 1 if settings.tied else iterations),
        iterations,
        threshold=_positive(settings, "threshold", THRESHOLD),
        step=None if settings.step is None else check_positive("[network] step", settings.step),
        tied=settings.tied,
        context=samples.train.context,
    )


def _hidden(settings: NetworkSettings, before: int, usual: int = 2) -> list[int]:
    widths = [check_size("[network] widths", width) for width in settings.widths] or [before]
    if settings.depth is None:
        return widths if settings.widths else widths * usual
    depth = check_size("[network] depth", settings.depth)
    if len(widths) not in (1, depth):
        invalid_value("[network] depth", f"{len(widths)}, the number of widths", depth, "Give one width, or no depth.")
    if depth > 10_000:
        invalid_value("[network] depth", "at most 10,000 layers", depth)
    return widths * depth if len(widths) == 1 else widths


def _activation(settings: NetworkSettings) -> ProximalActivation:
    name = settings.activation
    soft = name in ("soft-threshold", "group-soft-threshold")
    if settings.threshold is not None and not soft:
        hint = "Set activation = 'soft-threshold', or leave it out."
        invalid_value("[network] threshold", f"nothing for {name or 'relu'}", settings.threshold, hint)
    numbers = (settings.threshold,) if settings.threshold is not None else settings.parameters
    if soft and not numbers:
        invalid_value("[network] threshold", f"a number > 0 for {name}", "nothing", "The paper takes 0.2 and 0.02.")
    if name is None:
        name = "relu"
    if not numbers:
        return as_activation(name)
    kind = ACTIVATIONS[check_choice("[network] activation", name, ACTIVATIONS)]
    names = [field.name for field in fields(kind) if str(field.type).startswith("float")]  # type: ignore[arg-type]
    if len(numbers) > len(names):
        wanted = f"at most {len(names)} ({', '.join(names)})" if names else "none"
        invalid_value("[network] parameters", f"{wanted} for {name}", len(numbers))
    try:
        return kind(**{key: check_number("[network] parameters", n) for key, n in zip(names, numbers, strict=False)})
    except TypeError as error:
        if isinstance(error, TorchliftError):
            raise
        invalid_value("[network] parameters", f"{len(names)} ({', '.join(names)}) for {name}", len(numbers))


def _forward_model(settings: NetworkSettings, samples: Samples) -> LinearOperator:
    if samples.task is None or len(samples.in_shape) != 3:
        hint = "Set [data] task to denoising, deblurring or inpainting, or choose an MLP."
        invalid_value(f"[network] {settings.kind}", "images and a task, whose forward model it unrolls", "none", hint)
    like = torch.empty(0, dtype=torch_dtype(settings))
    return samples.task.operator(samples.out_shape, like)


def _dictionary(settings: NetworkSettings, shape: Shape, copies: int) -> LinearOperator:
    """L for LISTA (code → image) and PrimalDual (image → coefficients); orthonormal, times the scale."""
    analysis, pixels, dtype = settings.kind == "PrimalDual", math.prod(shape), torch_dtype(settings)
    known = ("dct", "identity", "random", *(("differences",) if analysis else ()))
    name = check_choice("[network] dictionary", settings.dictionary or "dct", known)
    scale = _positive(settings, "scale", 1.0)
    if name == "differences":
        return scale * FiniteDifference(shape) if scale != 1.0 else FiniteDifference(shape)
    check_fits("[network] dictionary", copies * pixels**2, settings.dtype)
    if name == "dct":
        one = dct_matrix(*shape[1:], dtype=dtype)
        matrix = torch.block_diag(*[one] * shape[0])  # each channel by itself
    elif name == "identity":
        matrix = torch.eye(pixels, dtype=dtype)
    else:
        matrix = torch.linalg.qr(torch.randn(pixels, pixels, dtype=dtype)).Q
    flat = Dense((scale * (matrix if analysis else matrix.T)).contiguous())
    reshape = Reshape(shape, (pixels,))
    return flat @ reshape if analysis else Reshape((pixels,), shape) @ flat


def _iterations(settings: NetworkSettings) -> int:
    given = check_size("[network] iterations", ITERATIONS if settings.iterations is None else settings.iterations)
    if given > 10_000:
        invalid_value("[network] iterations", "at most 10,000", given)
    return given


def _positive(settings: NetworkSettings, name: str, usual: float) -> float:
    value = getattr(settings, name)
    return usual if value is None else check_positive(f"[network] {name}", value)


def _own(path: str, samples: Samples) -> Network:
    made = call_named(f"[network] kind {path!r}", path)
    if isinstance(made, Network):
        return made
    leaf = next((each for each in made.modules() if not list(each.children())), None)
    return lift(made, None if isinstance(leaf, nn.Linear) else samples.in_shape)


_BUILDERS: dict[str, Callable[[NetworkSettings, Samples], Network]] = {
    "MLP": _mlp,
    "ResNet": _resnet,
    "Shallow": _shallow,
    "Perceptron": _perceptron,
    "LISTA": _lista,
    "PrimalDual": _primal_dual,
}
