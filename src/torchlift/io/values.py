"""Frozen dataclasses (operators, activations) as JSON values, and back through their constructors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from torchlift import operators
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.operators import Compose, LinearOperator, Sum
from torchlift.prox import ACTIVATIONS, ProximalActivation

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
