"""States as tensors and numbers, so that a checkpoint needs no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.tensors import Point

Number: TypeAlias = "float | int | bool | None"
T = TypeVar("T")


def state_to_parts(state: object) -> tuple[dict[str, Tensor], dict[str, Number]]:
    """All tensors and all numbers of a state, by dotted path: safetensors and JSON can hold them.

    Looks into dataclasses, points and tuples.
    """
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Number] = {}
    _visit(state, "", tensors, numbers)
    return tensors, numbers


def state_from_parts(template: T, tensors: Mapping[str, Tensor], numbers: Mapping[str, Number]) -> T:
    """The state whose parts these are; `template` gives its structure, such as `solver.init(problem, start)`."""
    own_tensors, own_numbers = state_to_parts(template)
    for what, expected, given in (("tensors", own_tensors, tensors), ("numbers", own_numbers, numbers)):
        if expected.keys() != given.keys():
            hint = "Use the solver and the problem that the state was saved with."
            odd = sorted(expected.keys() ^ given.keys())
            invalid_value(f"saved {what}", f"the names {sorted(expected)}", f"a difference in {odd}", hint)
    return _rebuild(template, "", tensors, numbers)


def state_points(state: object, path: str = "") -> dict[str, Point]:
    """All points of a state, by the same paths as its parts."""
    if isinstance(state, Point):
        return {path: state}
    if state is None or isinstance(state, Tensor | bool | int | float):
        return {}
    points: dict[str, Point] = {}
    for name, value in _items(state, path):
        points |= state_points(value, _join(path, name))
    return points


def _visit(node: Any, path: str, tensors: dict[str, Tensor], numbers: dict[str, Number]) -> None:
    if isinstance(node, Tensor):
        tensors[path] = node
    elif node is None or isinstance(node, bool | int | float):
        numbers[path] = node
    else:
        for name, value in _items(node, path):
            _visit(value, _join(path, name), tensors, numbers)


def _rebuild(node: Any, path: str, tensors: Mapping[str, Tensor], numbers: Mapping[str, Number]) -> Any:
    if isinstance(node, Tensor):
        return _same_shape(path, tensors[path], node)
    if node is None or isinstance(node, bool | int | float):
        return numbers[path]
    parts = {name: _rebuild(value, _join(path, name), tensors, numbers) for name, value in _items(node, path)}
    if isinstance(node, Point):
        return Point(parts, node.sharing)
    return tuple(parts.values()) if isinstance(node, tuple) else replace(node, **parts)


def _items(node: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(node, Point):
        return list(node.items())
    if isinstance(node, tuple):
        return [(str(index), value) for index, value in enumerate(node)]
    if is_dataclass(node):
        return [(item.name, getattr(node, item.name)) for item in fields(node)]
    invalid_type(f"state field {path!r}", "a tensor, a number, a point, a tuple or a dataclass", node)


def _same_shape(path: str, tensor: Tensor, like: Tensor) -> Tensor:
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        expected = f"{like.dtype} of shape {tuple(like.shape)}"
        invalid_value(f"saved tensor {path!r}", expected, f"{tensor.dtype} of shape {tuple(tensor.shape)}")
    return tensor.to(like.device)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
