"""Frozen dataclasses as trees whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def leaves(node: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors below a dataclass by dotted path, looking into tuples: {"operators.0.weight": …}."""
    tensors: dict[str, Tensor] = {}
    for name, value in _items(node):
        if isinstance(value, Tensor):
            tensors[prefix + name] = value
        elif _is_branch(value):
            tensors.update(leaves(value, f"{prefix}{name}."))
    return tensors


def replace_leaves(node: Any, function: Callable[[str, Tensor], Tensor], prefix: str = "") -> Any:
    """A copy of a dataclass with every tensor t below it replaced by function(path, t)."""
    # The fields were checked when `node` was built, and their shapes stay: copy them past the constructor.
    twin = object.__new__(type(node))
    for name in node.__dataclass_fields__:
        object.__setattr__(twin, name, _replaced(getattr(node, name), function, prefix + name))
    return twin


def _replaced(value: Any, function: Callable[[str, Tensor], Tensor], path: str) -> Any:
    if isinstance(value, Tensor):
        return function(path, value)
    if isinstance(value, tuple):
        return tuple(_replaced(item, function, f"{path}.{index}") for index, item in enumerate(value))
    return replace_leaves(value, function, f"{path}.") if _is_branch(value) else value


def _items(node: Any) -> list[tuple[str, Any]]:
    if isinstance(node, tuple):
        return [(str(index), item) for index, item in enumerate(node)]
    return [(name, getattr(node, name)) for name in node.__dataclass_fields__]


def _is_branch(value: Any) -> bool:
    return isinstance(value, tuple) or hasattr(value, "__dataclass_fields__")
