"""Wrong things to give to a door, and whether its annotation admits them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import torchlift as tl

#: What is given, how it is made, and the words of an annotation that admit it.
ANYTHING = {"Any", "object", "P", "S", "T", "N", "Number", "inspect"}
NUMBERS = {"float", "Amount", "Factor", "Real", "Cell", "Schedule"}
TENSORS = {"Tensor", "Context", "Amount", "Factor", "Start", "Tensors", "Map", "Context'"}
LISTS = {"Sequence", "Iterable", "Collection", "Data", "Start", "Rows", "Activations", "Blocks", "Shape", "list"}
TUPLES = LISTS | {"tuple", "Pair", "Slices", "Tensors"}
MAPPINGS = {"Mapping", "dict", "Context", "Context'", "Blocks", "Start", "StateDict"}
FUNCTIONS = {"Callable", "Map", "Draw", "Data", "Callback", "Mean", "Activation", "Metric", "Schedule", "FusedRow"}
STRINGS = {"str", "Path", "PathLike", "Activations", "Cell"}
MODULES = {"Module", "Activations", "Callable", "Draw", "Data", "Map", "Callback", "Mean", "Activation"}
MODULES |= {"Budget", "SolverLike", "LossLike"}  # functions

WRONG: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "None": (lambda: None, {"None", "Context", "Context'", "Cell"}),
    "a word": (lambda: "nonsense", STRINGS),
    "bytes": (lambda: b"nonsense", LISTS & {"Sequence", "Iterable"}),
    "True": (lambda: True, {"bool", "Switch", "Cell"}),
    "-1": (lambda: -1, NUMBERS | {"int", "Pair", "Shape", "Literal"}),
    "0": (lambda: 0, NUMBERS | {"int", "Pair", "Shape", "Literal"}),
    "1.5": (lambda: 1.5, NUMBERS),
    "nan": (lambda: float("nan"), set(NUMBERS)),
    "inf": (lambda: float("inf"), NUMBERS),
    "a number beyond floats": (lambda: 10**400, NUMBERS | {"int", "Pair", "Shape"}),
    "a complex number": (lambda: 1j, set()),
    "an object": (object, set()),
    "an empty list": (list, TUPLES),  # a list is as good as a tuple
    "a list of words": (lambda: ["nonsense"], LISTS),
    "a list of None": (lambda: [None], LISTS),
    "an empty tuple": (tuple, TUPLES),
    "a dictionary": (lambda: {"nonsense": "nonsense"}, MAPPINGS | {"Iterable", "Data", "Collection"}),
    "a set": (lambda: {1}, {"Iterable", "Collection", "frozenset"}),
    "an iterator": (lambda: (number for number in ["nonsense"]), {"Iterable"}),
    "a function of nothing": (lambda: lambda: None, FUNCTIONS),
    "a function of five": (lambda: lambda a, b, c, d, e: None, FUNCTIONS),
    "a class": (lambda: tl.ReLU, {"Callable", "Draw", "Data", "Map"}),
    "an abstract class": (lambda: tl.operators.LinearOperator, {"Callable", "Draw", "Data", "Map"}),
    "a module that is no network": (lambda: nn.GELU(), MODULES),
    "whole numbers": (lambda: torch.ones(2, 3, dtype=torch.long), TENSORS | {"Data"}),
    "other precision": (lambda: torch.full((2, 3), 0.5, dtype=torch.float64), TENSORS | {"Data"}),
    "a strange shape": (lambda: torch.full((5, 1, 7), 0.5), TENSORS | {"Data"}),
    "an empty tensor": (lambda: torch.empty(0), TENSORS | {"Data"}),
    "a number as a tensor": (lambda: torch.tensor(0.5), TENSORS | {"Data"}),
    "nan in a tensor": (lambda: torch.full((2, 3), float("nan")), TENSORS | {"Data"}),
    "complex numbers": (lambda: torch.full((2, 3), 1j), TENSORS | {"Data"}),
    "another device": (lambda: torch.ones(2, 3, device="meta"), TENSORS | {"Data"}),
    "an array": (lambda: np.ones((2, 3)), {"Data", "ndarray"}),
    "a dtype of whole numbers": (lambda: torch.int64, {"dtype"}),
    "a device that is none": (lambda: torch.device("meta"), {"device"}),
    "a file as a folder": (lambda: "file/inside", STRINGS),
    "a file": (lambda: "file", STRINGS),
    "a NUL": (lambda: "a\0b", STRINGS),
    "an empty word": (lambda: "", STRINGS),
    "a name that is too long": (lambda: "a" * 300, STRINGS),
    "no Unicode": (lambda: "\udcff", STRINGS),
    "a folder that cannot be": (lambda: "/proc/nothing/here", STRINGS),
}

_WORD = re.compile(r"[A-Za-z_']+")
_TEXT = re.compile(r"Literal\[[^]]*\]")


def admitted(kind: str, annotation: str) -> bool:
    """Whether a value of this kind is of a type that the annotation names (its worth is another matter)."""
    words = set(_WORD.findall(annotation.replace("ForwardRef(", "").replace(")", "")))
    words = {word.strip("'") for word in words}
    if "Literal" in words and kind in ("a word", "a NUL"):
        return True  # of the right type; whether it is refused is up to the values
    if "tuple" in words and (kind, "str" in words) == ("a list of words", True):
        return True  # a list is as good as a tuple
    if "tuple" in words and (kind, "None, ..." in annotation) == ("a list of None", True):
        return True
    return bool(words & (WRONG[kind][1] | ANYTHING))


_PATHS = [kind for kind, (_, words) in WRONG.items() if words is STRINGS and kind != "a word"]
_TENSORS = [kind for kind, (_, words) in WRONG.items() if words >= TENSORS and kind != "a strange shape"]


def kinds(annotation: str) -> list[str]:
    """What is tried for an argument: strange texts where texts are expected, strange tensors where tensors are."""
    texts, tensors = admitted("a word", annotation), admitted("a strange shape", annotation)
    return [kind for kind in WRONG if (texts or kind not in _PATHS) and (tensors or kind not in _TENSORS)]
