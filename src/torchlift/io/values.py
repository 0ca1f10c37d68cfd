"""What networks are made of as JSON values, and back, with a look at what a description claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from torchlift import operators
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.networks import Residual, RungeKutta, Tableau
from torchlift.operators import Compose, LinearOperator, Sum
from torchlift.prox import ACTIVATIONS, ProximalActivation, as_activation

OPERATORS: dict[str, type[LinearOperator]] = {
    kind.__name__: kind
    for kind in (
        *(operators.Adjoint, Compose, operators.Scaled, Sum, operators.Identity, operators.Reshape, operators.Zero),
        *(operators.Dense, operators.Conv2d, operators.ConvTranspose2d, operators.AveragePool2d),
        *(operators.Blur, operators.DownSample, operators.FiniteDifference, operators.Mask, operators.Separable),
        *(operators.CosineTransform, operators.Fourier, operators.Radon, operators.WaveletTransform),
    )
}
"""The operators that a saved network may be made of, by the names of their classes."""

SIGMAS: dict[str, type[ProximalActivation]] = {kind.__name__: kind for kind in ACTIVATIONS.values()}
"""The activations, by the names of their classes."""

DTYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float16, torch.bfloat16, torch.float32)}
DTYPES |= {"float64": torch.float64, "bool": torch.bool}


def describe_operator(operator: LinearOperator) -> dict[str, Any]:
    """Class and fields; of tensors the shape, because their values are among the network's parameters."""
    return _describe(operator, OPERATORS, "operator", lambda t: {"shape": list(t.shape), "dtype": dtype_name(t.dtype)})


def build_operator(description: Any) -> LinearOperator:
    """The operator, with zeros for its tensors."""
    kind, values = _named(
        description, OPERATORS, "operator", lambda t: torch.zeros(t["shape"], dtype=DTYPES[t["dtype"]])
    )
    if kind in (Compose, Sum):
        return kind(*values["operators"])
    return kind(**values)


def describe_activation(activation: ProximalActivation) -> dict[str, Any]:
    """Class and fields, tensors with their values."""
    return _describe(activation, SIGMAS, "activation", lambda t: {"values": t.tolist(), "dtype": dtype_name(t.dtype)})


def build_activation(description: Any) -> ProximalActivation:
    kind, values = _named(
        description, SIGMAS, "activation", lambda t: torch.tensor(t["values"], dtype=DTYPES[t["dtype"]])
    )
    return kind(**values)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _describe(
    thing: Any, classes: Mapping[str, type], what: str, describe_tensor: Callable[[Tensor], dict[str, Any]]
) -> dict[str, Any]:
    name = type(thing).__name__
    if classes.get(name) is not type(thing):
        hint = "Keep the code that builds the network, and load into it: load_model(folder, into=network)."
        invalid_type(f"save_model {what}", f"one of {', '.join(sorted(classes))}", thing, hint)

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            return describe_tensor(value)
        if isinstance(value, LinearOperator):
            return describe_operator(value)
        return [plain(item) for item in value] if isinstance(value, tuple | list) else value

    return {"class": name} | {field.name: plain(getattr(thing, field.name)) for field in fields(thing) if field.init}


def _named(
    description: Any, classes: Mapping[str, type], what: str, tensor: Callable[[Mapping[str, Any]], Tensor]
) -> tuple[Any, dict[str, Any]]:
    """The class that a description names, and its arguments."""
    if not isinstance(description, Mapping) or description.get("class") not in classes:
        got = description.get("class") if isinstance(description, Mapping) else description
        invalid_value(f"load_model {what}", f"one of {', '.join(sorted(classes))}", repr(got))

    def value(item: Any) -> Any:
        if isinstance(item, Mapping):
            return build_operator(item) if "class" in item else tensor(item)
        return tuple(map(value, item)) if isinstance(item, list) else item

    return classes[description["class"]], {name: value(item) for name, item in description.items() if name != "class"}


_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")

#: The arguments of torch's modules that are attributes of the same name.
MODULES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv2d: _CONVOLUTION,
    nn.ConvTranspose2d: (*_CONVOLUTION, "output_padding"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding", "count_include_pad"),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
}
_BY_NAME = {kind.__name__: kind for kind in MODULES}
_WITH_BIAS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def describe_modules(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    return [_describe_module(module) for module in modules]


def build_modules(descriptions: Any) -> list[nn.Module]:
    if not isinstance(descriptions, list):
        invalid_value("load_model modules", "a list", type(descriptions).__name__)
    return [_build_module(description) for description in descriptions]


def check_arguments(name: str, given: Iterable[str], arguments: Collection[str]) -> None:
    """Refuse what a description of this version does not have: it may mean something, or hide something."""
    surplus = sorted(set(given) - set(arguments))
    if surplus:
        invalid_value(f"load_model {name}", f"{', '.join(sorted(arguments))} only", ", ".join(surplus)[:80])


def _describe_module(module: Any) -> dict[str, Any]:
    if isinstance(module, Residual):
        return {"module": "Residual", "branch": describe_modules(module.branch), "step": module.step}
    if isinstance(module, RungeKutta):
        parts = describe_modules([module.inner, module.activation, module.outer])
        return {"module": "RungeKutta", "parts": parts, "step": module.step, "tableau": vars(module.tableau)}
    if type(module) not in MODULES:
        return {"module": "activation", "activation": describe_activation(as_activation(module))}
    description = {name: getattr(module, name) for name in MODULES[type(module)]}
    if isinstance(module, _WITH_BIAS):
        description["bias"] = module.bias is not None
    return {"module": type(module).__name__} | description


def _build_module(description: Any) -> nn.Module:
    if not isinstance(description, Mapping):
        invalid_value("load_model module", "a JSON object", repr(description))
    given = dict(description)
    name = given.pop("module", None)
    if name == "activation":
        return build_activation(given["activation"]).to_module()
    if name == "Residual":
        return Residual(*build_modules(given["branch"]), step=given["step"])
    if name == "RungeKutta":
        a, b = given["tableau"]["a"], given["tableau"]["b"]
        tableau = Tableau(tuple(map(tuple, a)), tuple(b))
        return RungeKutta(*build_modules(given["parts"]), step=given["step"], tableau=tableau)
    if name not in _BY_NAME:
        names = ", ".join([*_BY_NAME, "Residual", "RungeKutta", "activation"])
        invalid_value("load_model module", f"one of {names}", repr(name))
    kind: Any = _BY_NAME[name]
    check_arguments(name, given, {*MODULES[kind], *(("bias",) if kind in _WITH_BIAS else ())})
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return kind(**options)


MOST_ITERATIONS = 100_000
"""Of an unrolled network; shared weights would make any number of them free to claim."""

_CONVOLUTIONS = ("Conv2d", "ConvTranspose2d")


def check_claim(architecture: Any, stored: int) -> None:
    """Refuse an architecture with more parameters than are stored beside it: building it would take the memory.

    Arguments:
        architecture: JSON values, of which nothing is known yet.
        stored: how many numbers the file of tensors holds.
    """
    if (claimed := _claimed(architecture)) > stored:
        invalid_value("load_model", f"an architecture of at most the {stored} numbers that are stored", claimed)
    iterations = architecture.get("iterations") if isinstance(architecture, Mapping) else None
    if isinstance(iterations, int) and iterations > MOST_ITERATIONS:
        invalid_value("load_model iterations", f"at most {MOST_ITERATIONS}", iterations)


def _claimed(description: Any) -> int:
    """Numbers that the parameters of a description consist of; what is no size counts nothing, and fails later."""
    if isinstance(description, list):
        return sum(map(_claimed, description))
    if not isinstance(description, Mapping):
        return 0
    size = description.get
    if size("module") == "Linear":
        return _product(size("in_features"), size("out_features"))
    if size("module") in _CONVOLUTIONS:
        kernel = size("kernel_size")
        sides = kernel if isinstance(kernel, list) else [kernel, kernel]
        return _product(size("in_channels"), size("out_channels"), *sides) // max(1, _size(size("groups")))
    if size("network") == "Shallow":
        hidden = size("hidden")
        widths = sum(map(_size, hidden)) if isinstance(hidden, list) else _size(hidden)
        return _product(size("in_features"), widths) + _product(widths, size("out_features"))
    shape = size("shape")
    if size("network") in ("DDFB", "ScCP", "FirmDenoiser"):
        copies = 1 if size("tied") else size("iterations")
        channels = shape[0] if isinstance(shape, list) and shape else 0
        return _product(copies, size("features"), channels, size("size"), size("size"))
    if isinstance(shape, list) and "dtype" in description:
        return _product(*shape)
    inner = sum(map(_claimed, description.values()))
    untied = size("network") in ("LISTA", "PrimalDual") and not size("tied")
    return max(inner, _size(size("iterations"))) if untied else inner


def _product(*sizes: Any) -> int:
    return math.prod(map(_size, sizes))


def _size(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
