"""The modules of a chain as JSON values, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import nn

from torchlift.core.errors import invalid_value
from torchlift.io.values import build_activation, describe_activation
from torchlift.networks import Residual, RungeKutta, Tableau
from torchlift.prox import as_activation

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")

#: The arguments of torch's modules that are attributes of the same name.
ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv2d: _CONVOLUTION,
    nn.ConvTranspose2d: (*_CONVOLUTION, "output_padding"),
    nn.AvgPool2d: ("kernel_size", "stride", "padding", "count_include_pad"),
    nn.Flatten: ("start_dim", "end_dim"),
    nn.Unflatten: ("dim", "unflattened_size"),
}
_BY_NAME = {kind.__name__: kind for kind in ARGUMENTS}
_WITH_BIAS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def describe_modules(modules: Iterable[nn.Module]) -> list[dict[str, Any]]:
    return [_describe(module) for module in modules]


def build_modules(descriptions: Any) -> list[nn.Module]:
    if not isinstance(descriptions, list):
        invalid_value("load_model modules", "a list", type(descriptions).__name__)
    return [_build(description) for description in descriptions]


def check_arguments(name: str, given: Iterable[str], arguments: Collection[str]) -> None:
    """Refuse what a description of this version does not have: it may mean something, or hide something."""
    surplus = sorted(set(given) - set(arguments))
    if surplus:
        invalid_value(f"load_model {name}", f"{', '.join(sorted(arguments))} only", ", ".join(surplus)[:80])


def _describe(module: Any) -> dict[str, Any]:
    if isinstance(module, Residual):
        return {"module": "Residual", "branch": describe_modules(module.branch), "step": module.step}
    if isinstance(module, RungeKutta):
        parts = describe_modules([module.inner, module.activation, module.outer])
        return {"module": "RungeKutta", "parts": parts, "step": module.step, "tableau": vars(module.tableau)}
    if type(module) not in ARGUMENTS:
        return {"module": "activation", "activation": describe_activation(as_activation(module))}
    description = {name: getattr(module, name) for name in ARGUMENTS[type(module)]}
    if isinstance(module, _WITH_BIAS):
        description["bias"] = module.bias is not None
    return {"module": type(module).__name__} | description


def _build(description: Any) -> nn.Module:
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
    check_arguments(name, given, {*ARGUMENTS[kind], *(("bias",) if kind in _WITH_BIAS else ())})
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return kind(**options)
