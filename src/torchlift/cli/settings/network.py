"""Networks from settings, of which `BUILDERS` says which each kind reads, and from code of the user's own."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchlift import networks
from torchlift.cli.settings.data import Samples
from torchlift.core.checks import Shape, check_choice, check_number, check_positive, check_size
from torchlift.core.errors import InvalidValueError, TorchliftError, invalid_type, invalid_value, message
from torchlift.core.memory import available_memory, format_bytes
from torchlift.networks import Network
from torchlift.networks.denoisers import Denoiser
from torchlift.operators import (
    Dense,
    FiniteDifference,
    Identity,
    LinearOperator,
    Reshape,
    Separable,
    convolutional_dictionary,
    dct_matrix,
)
from torchlift.operators.context import select_context
from torchlift.prox import ACTIVATIONS, ProximalActivation, as_activation

if TYPE_CHECKING:
    from torchlift.cli.settings.settings import NetworkSettings


def call_named(where: str, path: str) -> Network | nn.Sequential:
    """What a function without arguments returns; modules of the current folder are found too.

    Arguments:
        where: names the setting in messages.
        path: "package.module:function".
    """
    module, _, name = path.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts):
        invalid_value(where, "module:function, such as mypackage.models:denoiser", repr(path))
    if module.endswith(".py"):
        invalid_value(where, "the name of a module", repr(module), f"Write {module.removesuffix('.py')}:{name}.")
    with _current_folder_importable():
        try:
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            made = function()
        except TorchliftError:
            raise
        except Exception as error:  # whatever the user's code does, with `--debug` to see where
            hint = "Modules of the current folder and installed ones are found; --debug shows more."
            raise InvalidValueError(message(where, "a function that can be called", reason(error), hint)) from error
    if not isinstance(made, Network | nn.Sequential):
        invalid_type(where, "a function that returns a Network or an nn.Sequential", made)
    return made


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    before = list(sys.path)
    sys.path.append(str(Path.cwd()))  # last: nothing in it can take the place of an installed package
    try:
        yield
    finally:
        sys.path[:] = before


#: What the unrolled networks start from where nothing is said.
THRESHOLD, ITERATIONS = 0.1, 8
DICTIONARIES = ("dct", "identity", "random", "convolution", "differences")
SMALL = 1024
"""Entries of an image up to which dictionaries are full matrices; beyond, one for the rows and one for the columns."""
MOST = 10_000
"""Layers or iterations."""


@dataclass(frozen=True)
class Site:
    """What a network is built for.

    Arguments:
        samples: tell sizes, and the forward model H of unrolled networks.
        dtype: of parameters, "float32" or "float64".
    """

    samples: Samples
    dtype: str

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers in an input and in an output."""
        return math.prod(self.samples.in_shape), math.prod(self.samples.out_shape)

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


def check_fits(where: str, numbers: int, site: Site) -> None:
    """Refuse so many numbers if there is no room for them twice: values and gradients. `train` looks closer."""
    needed, there = 2 * numbers * site.torch_dtype.itemsize, available_memory()
    if needed > there:
        got = f"{numbers:.3g} numbers, {format_bytes(needed)} with their gradients"
        invalid_value(where, f"something that fits into {format_bytes(there)} of memory", got)


def build_network(settings: NetworkSettings, samples: Samples, seed: int = 0) -> Network:
    """The network that the settings describe, for these data, with weights of a seed."""
    by_path = ":" in settings.kind
    kind = "own" if by_path else check_choice("[network] kind", settings.kind, (*BUILDERS, "module:function"))
    used = () if by_path else BUILDERS[kind].reads
    blank = type(settings)()
    for name in (field.name for field in fields(settings)):
        if name not in ("kind", "dtype", *used) and getattr(settings, name) != getattr(blank, name):
            able = [other for other, builder in BUILDERS.items() if name in builder.reads]
            hint = f"It belongs to {', '.join(able)}. Leave it out."
            invalid_value(f"[network] {name}", f"nothing for {settings.kind}", getattr(settings, name), hint)
    site = Site(samples, settings.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _own(settings.kind, samples) if by_path else _built(kind, site, settings)
    return network.to(site.torch_dtype)


def _built(kind: str, site: Site, settings: NetworkSettings) -> Network:
    try:
        return BUILDERS[kind].build(site, settings)
    except TorchliftError:
        raise
    except (ArithmeticError, ValueError, RuntimeError, MemoryError) as error:  # such as a step of 1/0² or no room
        raise InvalidValueError(message(f"[network] {kind}", "numbers of ordinary size", reason(error))) from error


def reads_context(network: Network) -> bool:
    """Whether the forward model of an unrolled network may depend on the sample; networks of one's own might."""
    return not isinstance(network, networks.Chain | networks.Shallow | Denoiser)


def _mlp(site: Site, settings: NetworkSettings) -> Network:
    before, after = site.sizes
    sizes = [before, *_hidden(settings, before), after]
    check_fits("[network] widths", sum((a + 1) * b for a, b in pairwise(sizes)), site)
    return networks.MLP(sizes, _activation(settings))


def _resnet(site: Site, settings: NetworkSettings) -> Network:
    before, after = site.sizes
    inner = _hidden(settings, before)
    check_fits("[network] widths", (2 * sum(inner) + after) * (before + 1), site)
    return networks.ResNet(before, inner, after, _activation(settings), tableau=settings.tableau or "euler")


def _shallow(site: Site, settings: NetworkSettings) -> Network:
    before, after = site.sizes
    blocks = _hidden(settings, before, default=1)
    check_fits("[network] widths", sum(blocks) * (before + after + 1), site)
    return networks.Shallow(before, blocks, after, _activation(settings), output_bias=True)


def _perceptron(site: Site, settings: NetworkSettings) -> Network:
    before, after = site.sizes
    check_fits("[network] kind", (before + 1) * after, site)
    return networks.Perceptron(before, after, _activation(settings))


def _lista(site: Site, settings: NetworkSettings) -> Network:
    H, count, context = _forward_model("LISTA", site), _iterations(settings), site.samples.train.context
    coupled = settings.form == "coupled"  # its matrices start from one sample's H
    return networks.LISTA(
        H,
        _dictionary(site, settings, H.in_shape, 1 if settings.tied else count + 2, analysis=False),
        count,
        form=settings.form or "ista",
        context=select_context(context, slice(1)) if coupled else context,
        **_of_unrolled(settings),
    )


def _primal_dual(site: Site, settings: NetworkSettings) -> Network:
    H, count = _forward_model("PrimalDual", site), _iterations(settings)
    L = _dictionary(site, settings, H.in_shape, 1 if settings.tied else count, analysis=True)
    return networks.PrimalDual(H, L, count, context=site.samples.train.context, **_of_unrolled(settings))


def _of_unrolled(settings: NetworkSettings) -> dict[str, Any]:
    """Options that LISTA and PrimalDual share."""
    return {
        "threshold": _positive("threshold", settings.threshold, THRESHOLD),
        "step": None if settings.step is None else check_positive("[network] step", settings.step),
        "tied": settings.tied,
    }


def _denoiser(make: type[Denoiser], site: Site, settings: NetworkSettings) -> Network:
    name, H = make.__name__, _forward_model(make.__name__, site)
    if not isinstance(H, Identity):
        hint = "PrimalDual and LISTA know the forward model of other tasks."
        invalid_value(f"[network] {name}", "[data] task = 'denoising'", "another task", hint)
    given = {"threshold": settings.threshold, "features": settings.features, "size": settings.filter_size}
    options = {key: value for key, value in given.items() if value is not None}
    return make(_image(H.in_shape), _iterations(settings), tied=settings.tied, dtype=site.torch_dtype, **options)


def _hidden(settings: NetworkSettings, before: int, default: int = 2) -> list[int]:
    widths, depth = settings.widths, settings.depth
    sizes = [check_size("[network] widths", width) for width in widths] or [before]
    if depth is None:
        return sizes if widths else sizes * default
    check_size("[network] depth", depth)
    if len(sizes) not in (1, depth):
        invalid_value("[network] depth", f"{len(sizes)}, the number of widths", depth, "Give one width, or no depth.")
    if depth > MOST:
        invalid_value("[network] depth", f"at most {MOST:,} layers", depth)
    return sizes * depth if len(sizes) == 1 else sizes


def _activation(settings: NetworkSettings) -> ProximalActivation:
    name, threshold = settings.activation or "relu", settings.threshold
    soft = name in ("soft-threshold", "group-soft-threshold")
    if threshold is not None and not soft:
        hint = "Set activation = 'soft-threshold', or leave it out."
        invalid_value("[network] threshold", f"nothing for {name}", threshold, hint)
    numbers = (threshold,) if threshold is not None else settings.parameters
    if soft and not numbers:
        invalid_value("[network] threshold", f"a number > 0 for {name}", "nothing", "The paper takes 0.2 and 0.02.")
    if not numbers:
        return as_activation(name)
    kind = ACTIVATIONS[check_choice("[network] activation", name, ACTIVATIONS)]
    names = [field.name for field in fields(kind) if str(field.type).startswith("float")]  # type: ignore[arg-type]
    if len(numbers) > len(names):
        expected = f"at most {len(names)} ({', '.join(names)})" if names else "none"
        invalid_value("[network] parameters", f"{expected} for {name}", len(numbers))
    try:
        return kind(**{key: check_number("[network] parameters", n) for key, n in zip(names, numbers, strict=False)})
    except TypeError as error:
        if isinstance(error, TorchliftError):
            raise
        invalid_value("[network] parameters", f"{len(names)} ({', '.join(names)}) for {name}", len(numbers))


def _forward_model(kind: str, site: Site) -> LinearOperator:
    samples = site.samples
    if samples.task is None or len(samples.in_shape) != 3:
        hint = "Set [data] task to denoising, deblurring or inpainting, or choose an MLP."
        invalid_value(f"[network] {kind}", "images and a task, whose forward model it unrolls", "none", hint)
    return samples.task.operator(samples.out_shape, torch.empty(0, dtype=site.torch_dtype))


def _dictionary(site: Site, settings: NetworkSettings, shape: Shape, copies: int, *, analysis: bool) -> LinearOperator:
    """L for LISTA (code → image) and, with `analysis`, PrimalDual (image → coefficients); orthonormal, times the scale.

    Arguments:
        site, shape: what it is for.
        settings: name the dictionary and its scale.
        copies: how many of it the network has, for the memory.
        analysis: whether it maps images to coefficients.
    """
    choices = DICTIONARIES if analysis else DICTIONARIES[:-1]
    name = check_choice("[network] dictionary", settings.dictionary or "dct", choices)
    factor, pixels, dtype = _positive("scale", settings.scale, 1.0), math.prod(shape), site.torch_dtype
    if name == "differences":
        return FiniteDifference(shape) if factor == 1.0 else factor * FiniteDifference(shape)
    if name == "convolution":
        bank = convolutional_dictionary(_image(shape), dtype=dtype).map_tensors(lambda _, weight: factor * weight)
        return bank.T if analysis else bank
    if pixels > SMALL:
        channels, height, width = _image(shape)
        check_fits("[network] dictionary", copies * (height**2 + width**2), site)
        pair = Separable(factor * _basis(name, height, dtype), _basis(name, width, dtype), (channels, height, width))
        return pair if analysis else pair.T
    check_fits("[network] dictionary", copies * pixels**2, site)
    if name == "dct":
        one = dct_matrix(*shape[1:], dtype=dtype)
        matrix = torch.block_diag(*[one] * shape[0])  # each channel by itself
    else:
        matrix = _basis(name, pixels, dtype)
    flat = Dense((factor * (matrix if analysis else matrix.T)).contiguous())
    return flat @ Reshape(shape, (pixels,)) if analysis else Reshape((pixels,), shape) @ flat


def _image(shape: Shape) -> tuple[int, int, int]:
    channels, height, width = shape  # `_forward_model` refuses anything else
    return channels, height, width


def _basis(name: str, size: int, dtype: torch.dtype) -> Tensor:
    """An orthonormal matrix: for the rows or columns of an image, or for all of its pixels."""
    if name == "dct":
        return dct_matrix(1, size, dtype=dtype)
    if name == "identity":
        return torch.eye(size, dtype=dtype)
    return torch.linalg.qr(torch.randn(size, size, dtype=dtype)).Q


def _iterations(settings: NetworkSettings) -> int:
    count = check_size("[network] iterations", ITERATIONS if settings.iterations is None else settings.iterations)
    if count > MOST:
        invalid_value("[network] iterations", f"at most {MOST:,}", count)
    return count


def _positive(name: str, value: float | None, default: float) -> float:
    return default if value is None else check_positive(f"[network] {name}", value)


def _own(path: str, samples: Samples) -> Network:
    made = call_named(f"[network] kind {path!r}", path)
    if isinstance(made, Network):
        return made
    leaf = next((module for module in made.modules() if not list(module.children())), None)
    return networks.lift(made, None if isinstance(leaf, nn.Linear) else samples.in_shape)


class Builder(NamedTuple):
    """What builds a kind of network, and the settings that it reads, beside `kind` and `dtype`."""

    build: Callable[[Site, NetworkSettings], Network]
    reads: tuple[str, ...]


_ACTIVATION = ("activation", "threshold", "parameters")
_LAYERS = ("widths", "depth", *_ACTIVATION)
_UNROLLED = ("threshold", "iterations", "tied")
_WITH_DICTIONARY = (*_UNROLLED, "dictionary", "scale", "step")
_WITH_FILTERS = (*_UNROLLED, "features", "filter_size")

BUILDERS = {
    "MLP": Builder(_mlp, _LAYERS),
    "ResNet": Builder(_resnet, (*_LAYERS, "tableau")),
    "Shallow": Builder(_shallow, _LAYERS),
    "Perceptron": Builder(_perceptron, _ACTIVATION),
    "LISTA": Builder(_lista, (*_WITH_DICTIONARY, "form")),
    "PrimalDual": Builder(_primal_dual, _WITH_DICTIONARY),
    "DDFB": Builder(partial(_denoiser, networks.DDFB), _WITH_FILTERS),
    "ScCP": Builder(partial(_denoiser, networks.ScCP), _WITH_FILTERS),
    "FirmDenoiser": Builder(partial(_denoiser, networks.FirmDenoiser), _WITH_FILTERS),
}
"""What builds each kind of network."""
