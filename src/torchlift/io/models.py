"""Save a network, and build it again from what was saved; the bundled denoisers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_instance
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.files import parsing
from torchlift.core.trees import leaves
from torchlift.io.stored import load_tensors, save_tensors
from torchlift.io.values import (
    DTYPES,
    build_activation,
    build_modules,
    build_operator,
    check_arguments,
    check_claim,
    describe_activation,
    describe_modules,
    describe_operator,
    dtype_name,
)
from torchlift.networks import DDFB, LISTA, Chain, FirmDenoiser, Network, PrimalDual, ScCP, Shallow
from torchlift.operators import LinearOperator, Mask

DENOISERS: dict[str, Any] = {kind.__name__: kind for kind in (DDFB, ScCP, FirmDenoiser)}

ARGUMENTS = {
    "Chain": {"in_shape", "modules"},
    "Shallow": {"in_features", "hidden", "out_features", "activation", "bias", "output_bias"},
    "LISTA": {"H", "dictionary", "iterations", "form", "tied"},
    "PrimalDual": {"H", "L", "iterations", "constraint", "tied"},
    "DDFB": {"shape", "iterations", "features", "size", "tied", "constraint", "adjoint"},
    "ScCP": {"shape", "iterations", "features", "size", "tied", "constraint", "adjoint"},
    "FirmDenoiser": {"shape", "iterations", "features", "size", "tied"},
}
"""What the description of each architecture consists of."""


def save_model(folder: str | Path, network: Network) -> Path:
    """Write `tensors.safetensors` and `record.json`, the architecture, into a folder of their own.

    Arguments:
        folder: created, or one that holds an earlier model.
        network: any of torchlift's architectures. Of a `Network` of one's own, a `GraphNetwork` and one whose
            activations hold parameters only the numbers are saved, to be loaded into another instance of it.
    """
    check_instance("save_model network", network, Network, hint="Lift an nn.Sequential first: tl.lift(module).")
    frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    dtype = None if network.like is None else dtype_name(network.like.dtype)
    record = {"architecture": _describe(network), "dtype": dtype, "frozen": frozen}
    return save_tensors(folder, network.state_dict(), record, kind="model")


def load_model(folder: str | Path, *, into: Network | None = None) -> Network:
    """The network that `save_model` wrote, on the CPU; chains such as MLP and ResNet come back as `Chain`.

    Arguments:
        folder: what `save_model` was given; `model` in the folder of a run of `torchlift train`.
        into: a network of the same architecture to load the numbers into, for one that torchlift cannot build.

    Raises:
        DataError: there is no model, it is damaged, or it does not fit `into`.
    """
    tensors, record = load_tensors(folder, kind="model")
    network = _rebuilt(record, tensors, folder) if into is None else into
    fill(network, tensors, f"model {folder}", "It is a model of another network.")
    return network


def _rebuilt(record: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: str | Path) -> Network:
    """The network that a record describes, with placeholders for its numbers."""
    with parsing(f"model {folder}", "an architecture of this version"):
        network = _build(record["architecture"], sum(tensor.numel() for tensor in tensors.values()))
        if record["dtype"] is not None:
            network = network.to(DTYPES[record["dtype"]])
        for name in record["frozen"]:
            network.get_parameter(name).requires_grad_(False)
        return network


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: str, hint: str) -> None:
    """Load tensors into a module; the first one that does not fit is named.

    Arguments:
        where: begins messages.
        hint: ends them.
    """
    declared = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    saved = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if declared != saved:
        name = next(name for name in (*declared, *saved) if declared.get(name) != saved.get(name))
        expected, got = (f"{name} {shapes.get(name, 'absent')}" for shapes in (declared, saved))
        raise DataError(message(where, expected, got, hint))
    module.load_state_dict(dict(tensors))


def _describe(network: Network) -> dict[str, Any]:
    if isinstance(network, Chain | Shallow) and len(network.activation):
        return {"network": f"{type(network).__name__} with parameters in its activations"}  # loaded into another
    if isinstance(network, Chain):
        modules = describe_modules(network.to_sequential())
        return {"network": "Chain", "in_shape": list(network.in_shape), "modules": modules}
    if type(network) is Shallow:
        return {
            "network": "Shallow",
            "in_features": network.in_shape[0],
            "hidden": [shape[0] for shape in network.operators().W.row_shapes],
            "out_features": network.out_shape[0],
            "activation": [describe_activation(activation) for activation in network.activations],
            "bias": any(name.endswith("bias") for name, _ in network.hidden.named_parameters()),
            "output_bias": network.bias is not None,
        }
    if type(network) is LISTA:
        weights = network.dictionary if network.form == "ista" else network.coupling
        return {
            "network": "LISTA",
            "H": describe_operator(network.physics.template),
            "dictionary": describe_operator(network.dictionary.stack.template),
            "iterations": network.iterations,
            "form": network.form,
            "tied": weights.stack.count == 1,
        }
    if type(network) is PrimalDual:
        return {
            "network": "PrimalDual",
            "H": describe_operator(network.physics.template),
            "L": describe_operator(network.analysis.stack.template),
            "iterations": network.iterations,
            "constraint": describe_activation(network.constraint),
            "tied": network.analysis.stack.count == 1,
        }
    if type(network) in DENOISERS.values():
        return {"network": type(network).__name__, **_denoiser(network)}
    return {"network": type(network).__name__}


def _denoiser(network: Any) -> dict[str, Any]:
    """Arguments of a denoiser with learned filters."""
    features, _, size, _ = network.filters.stack.weight.shape[1:]
    given = {"shape": list(network.in_shape), "iterations": network.iterations, "features": features, "size": size}
    given["tied"] = network.count == 1
    if type(network) is not FirmDenoiser:
        given |= {"constraint": describe_activation(network.constraint), "adjoint": network.adjoint}
    return given


def _build(description: Mapping[str, Any], stored: int) -> Network:
    """The architecture; its numbers are placeholders. Steps are given, so no norm of zeros is divided by."""
    check_claim(description, stored)
    given = dict(description)
    kind = given.pop("network")
    if kind in ARGUMENTS:
        check_arguments(kind, given, ARGUMENTS[kind])
    if kind == "Chain":
        return Chain(nn.Sequential(*build_modules(given["modules"])), tuple(given["in_shape"]))
    if kind == "Shallow":
        given["activation"] = [build_activation(entry) for entry in given["activation"]]
        return Shallow(**given)
    if kind == "LISTA":
        H, L = build_operator(given.pop("H")), build_operator(given.pop("dictionary"))
        if given["form"] == "coupled" and math.prod(H.out_shape) * math.prod(L.in_shape) > stored:
            got = f"{H.out_shape} × {L.in_shape}"
            invalid_value("load_model LISTA", f"a coupling of at most {stored} numbers", got)
        return LISTA(H, L, step=1.0, context=_example_context(H), **given)
    if kind == "PrimalDual":
        H, L = build_operator(given.pop("H")), build_operator(given.pop("L"))
        constraint = build_activation(given.pop("constraint"))
        return PrimalDual(H, L, step=1.0, dual_step=1.0, constraint=constraint, **given)
    if kind in DENOISERS:
        if "constraint" in given:
            given["constraint"] = build_activation(given["constraint"])
        return DENOISERS[kind](tuple(given.pop("shape")), given.pop("iterations"), **given)
    hint = "Build the network as before and load into it: load_model(folder, into=network)."
    raise DataError(message("model", "an architecture of torchlift", repr(kind), hint))


def _example_context(operator: LinearOperator) -> dict[str, Tensor] | None:
    """One sample with ones for every mask that the operator asks the context for."""
    nodes = leaves(operator, stop=Mask).values()
    masks = [node for node in nodes if isinstance(node, Mask) and node.mask is None]
    # views of one number, which take no memory whatever the shape
    return {mask.key: torch.ones(()).expand(1, *mask.in_shape) for mask in masks} or None


NOISE = 25 / 255
"""Standard deviation of the noise that they were trained for."""

_FOLDER = Path(__file__).parent / "files"


def load_denoiser(*, certified: bool = False) -> DDFB | FirmDenoiser:
    """A trained denoiser of colour photographs (B, 3, H, W) of any size, values in [0, 1].

    It is trained for white noise of standard deviation 25/255; `denoiser.prox(y, s)` removes noise of s times that.
    `tl.priors.PlugAndPlay(denoiser)` is a prior for `tl.invert`. The photographs of `tl.data.load_photographs` were
    not used in training.

    Arguments:
        certified: a firmly nonexpansive one (`FirmDenoiser`), with which plug-and-play methods without momentum
            converge, instead of the one that denoises best (`DDFB`).
    """
    return cast("DDFB | FirmDenoiser", load_model(_FOLDER / ("firm-denoiser" if certified else "denoiser")))
