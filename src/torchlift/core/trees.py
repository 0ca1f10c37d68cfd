"""Trees of dataclasses, points and tuples, such as operators and states of solvers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchlift.core.tensors import Point


def parts(node: Any) -> dict[str, Any] | None:
    """What a point, a tuple or a dataclass is made of, by name; None for a leaf."""
    if isinstance(node, Point):
        return dict(node)
    if isinstance(node, tuple):
        return {str(index): item for index, item in enumerate(node)}
    if hasattr(node, "__dataclass_fields__") and not isinstance(node, type):
        return {name: getattr(node, name) for name in node.__dataclass_fields__}
    return None


def leaves(node: Any, path: str = "", stop: type | None = None) -> dict[str, Any]:
    """All leaves by dotted path, such as {"operators.0.weight": …}.

    Arguments:
        node: the tree.
        path: what the paths begin with.
        stop: nodes of this type count as leaves.
    """
    inner = None if stop is not None and isinstance(node, stop) else parts(node)
    if inner is None:
        return {path: node}
    below = (leaves(part, f"{path}.{name}" if path else name, stop) for name, part in inner.items())
    return {place: leaf for part in below for place, leaf in part.items()}


def map_leaves(function: Callable[..., Any], node: Any, *others: Any, kind: Any = Tensor, path: str = "") -> Any:
    """A tree like `node` with function(path, leaf, the others' leaves) for each leaf; those not of `kind` stay.

    Fields were checked when `node` was built, and their shapes stay: constructors are passed by.
    """
    if isinstance(node, kind):
        return function(path, node, *others)
    inner = parts(node)
    if inner is None:
        return node
    theirs = [parts(other) or {} for other in others]
    start = f"{path}." if path else ""
    new = {
        name: map_leaves(function, part, *(tree[name] for tree in theirs), kind=kind, path=start + name)
        for name, part in inner.items()
    }
    if isinstance(node, Point):
        return node.like(tensor for block in new.values() for tensor in block)
    if isinstance(node, tuple):
        return tuple(new.values())
    twin = object.__new__(type(node))
    for name, value in new.items():
        object.__setattr__(twin, name, value)
    return twin
