"""States as tensors and numbers, so that a checkpoint needs no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, TypeVar

from torch import Tensor

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.tensors import Point
from torchlift.core.trees import leaves, map_leaves

Number: TypeAlias = "float | int | bool | None"
T = TypeVar("T")

_LEAF = (Tensor, bool, int, float, type(None))


def state_to_parts(state: object) -> tuple[dict[str, Tensor], dict[str, Number]]:
    """All tensors and all numbers of a state, by dotted path: safetensors and JSON can hold them.

    Looks into dataclasses, points and tuples.
    """
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Number] = {}
    for path, leaf in leaves(state).items():
        if not isinstance(leaf, _LEAF):
            invalid_type(f"state field {path!r}", "a tensor, a number, a point, a tuple or a dataclass", leaf)
        if isinstance(leaf, Tensor):
            tensors[path] = leaf
        else:
            numbers[path] = leaf
    return tensors, numbers


def state_from_parts(template: T, tensors: Mapping[str, Tensor], numbers: Mapping[str, Number]) -> T:
    """The state whose parts these are; `template` gives its structure, such as `solver.init(problem, start)`."""
    parts = zip(("tensors", "numbers"), state_to_parts(template), (tensors, numbers), strict=True)
    for what, expected, given in parts:
        if expected.keys() != given.keys():
            hint = "Use the solver and the problem that the state was saved with."
            odd = sorted(expected.keys() ^ given.keys())
            invalid_value(f"saved {what}", f"the names {sorted(expected)}", f"a difference in {odd}", hint)

    def saved(path: str, leaf: Tensor | Number) -> Tensor | Number:
        return _same_shape(path, tensors[path], leaf) if isinstance(leaf, Tensor) else numbers[path]

    return map_leaves(saved, template, kind=_LEAF)


def state_points(state: object) -> dict[str, Point]:
    """All points of a state, by the same paths as its parts."""
    return {path: leaf for path, leaf in leaves(state, stop=Point).items() if isinstance(leaf, Point)}


def _same_shape(path: str, tensor: Tensor, like: Tensor) -> Tensor:
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        expected = f"{like.dtype} of shape {tuple(like.shape)}"
        invalid_value(f"saved tensor {path!r}", expected, f"{tensor.dtype} of shape {tuple(tensor.shape)}")
    return tensor.to(like.device)
