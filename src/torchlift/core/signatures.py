"""Every public name of a package compares what it is given with its annotations.

A package ends with `check_calls(__name__)`. What is called by other parts of torchlift is trusted and costs
nothing but a `try`; a call from outside is checked:

* afterwards, so that its own words come first: nonsense that it accepted is refused;
* where it fails in our own lines with an error that is not ours, an error that says what was expected and what came
  takes its place.

Errors of the user's own code (a callback, a module, an operator) pass unchanged.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import (
    DataError,
    InvalidTypeError,
    InvalidValueError,
    TorchliftError,
    did_you_mean,
    invalid_type,
    message,
    system_words,
)
from torchlift.core.solution import StepFailure

_compiling, _frame = torch.compiler.is_dynamo_compiling, sys._getframe
_OURS, _INSIDE = "torchlift", "torchlift."
_TRUSTED: set[str] = set()  # our own modules that have called before
#: What every training step calls: it checks by itself what it is given, or calls `explain` where it fails.
EVERY_STEP = (
    "Centring.heard",
    "Centring.take",
    "CrossEntropy.mean",
    "GradientMethod.differentiate",
    "Loss.mean",
    "Perturbation.response",
    "Progress.update",
    "RelativeStep.step",
    "SquaredError.mean",
    "SweepDescent.by_form",
    "SweepDescent.gradients",
    "TensorBatches.batch",
    "sweeping.__init__",
)
_SILENT = ("torch", "numpy", "functools", "contextlib", "dataclasses", "copy", "pathlib")
_OWN_WORDS = (TorchliftError, StepFailure, torch.OutOfMemoryError, MemoryError, RecursionError, Warning, StopIteration)
_WORDS = {
    float: "a number", int: "a whole number", bool: "True or False", str: "a string", Path: "a path", Any: "anything",
    Tensor: "a torch.Tensor", type(None): "None", None: "None", torch.Generator: "a torch.Generator",
    torch.dtype: "a floating-point dtype such as torch.float32", torch.device: "a device of this machine such as 'cpu'",
}  # fmt: skip
_CLASSES: dict[str, Any] = {}  # public classes by name, for annotations that only type checkers can resolve


def check_calls(package: str) -> None:
    """Have the public classes and functions of a package check how they are called.

    Arguments:
        package: its name; what is public stands in its `__all__`.
    """
    module = sys.modules[package]
    for name in vars(module)["__all__"]:
        thing = vars(module).get(name)
        if inspect.isclass(thing) and thing.__module__.startswith(_OURS):
            _CLASSES[name] = thing if _CLASSES.get(name, thing) is thing else object
            if issubclass(thing, BaseException):
                continue
            for base in thing.__mro__:
                if base.__module__.startswith(_OURS):
                    _check_methods(base)
        elif inspect.isfunction(thing) and thing.__module__.startswith(_OURS) and not hasattr(thing, "checks_calls"):
            checked = _checked(thing, name)
            for place in (module, sys.modules[thing.__module__]):
                setattr(place, name, checked)


def _check_methods(owner: type) -> None:
    for name, member in list(vars(owner).items()):
        kind = type(member) if isinstance(member, classmethod | staticmethod) else None
        function = member.__func__ if kind else member
        if name.startswith("_") and name not in ("__init__", "__call__", "__new__"):
            continue
        if f"{owner.__name__}.{name}" in EVERY_STEP:
            continue
        if inspect.isfunction(function) and (kind or _has_arguments(function)):
            if hasattr(function, "checks_calls") or getattr(function, "__isabstractmethod__", False):
                continue
            where = re.sub(r"\.__(init|new|call)__$", "", f"{owner.__name__}.{name}")
            checked = _checked(function, where, method=kind is not staticmethod)
            type.__setattr__(owner, name, kind(checked) if kind else checked)


def _has_arguments(method: types.FunctionType) -> bool:
    code = method.__code__
    return code.co_argcount + code.co_kwonlyargcount > 1 or bool(code.co_flags & inspect.CO_VARARGS)


def _checked(function: Any, where: str, *, method: bool = False) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _compiling() or _frame(1).f_globals.get("__name__") in _TRUSTED:  # solvers call in every step: a short way
            return function(*args, **kwargs)
        caller = str(_frame(1).f_globals.get("__name__", ""))
        if caller.startswith(_INSIDE):
            _TRUSTED.add(caller)
        try:
            result = function(*args, **kwargs)
        except _OWN_WORDS:
            raise
        except Exception as error:
            if _from_outside(_frame(1)):
                _compare(function, where, args, kwargs, method)
                if _in_our_lines(error):
                    _explain(function, where, args, kwargs, error)
            raise
        if caller.partition(".")[0] not in (_OURS, *_SILENT):  # torch calls forward passes too often for comparisons
            _compare(function, where, args, kwargs, method)
        return result

    vars(call)["checks_calls"] = True
    return call


def explain(error: Exception) -> None:
    """For the `except` of a method that is not wrapped: raise an error that says what came, where we know it."""
    frame = _frame(1)
    if isinstance(error, _OWN_WORDS) or not _from_outside(frame.f_back):
        return
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = {name: frame.f_locals[name] for name in names}
    owner = values[names[0]]
    function = getattr(type(owner), code.co_name)
    where = f"{type(owner).__name__}.{code.co_name}"
    _compare(function, where, (), values, method=True)
    if _in_our_lines(error):
        _explain(function, where, (), values, error)


def _from_outside(frame: types.FrameType | None) -> bool:
    """Whether the caller is not torchlift, perhaps through torch."""
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root not in _SILENT:
            return root != _OURS
        frame = frame.f_back
    return True


def _in_our_lines(error: BaseException) -> bool:
    """Whether no line of the user was at work when the error came."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    while trace is not None:
        root = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if root != _OURS and root not in _SILENT and root not in sys.stdlib_module_names:
            return root in ("matplotlib", "safetensors", "rich", "sklearn", "pywt")
        trace = trace.tb_next
    return True


@functools.cache
def _signature(function: Any) -> tuple[inspect.Signature, dict[str, Any]]:
    """The signature, and what its annotations mean; what cannot be resolved means anything."""
    signature, hints = inspect.signature(function), {}
    home = sys.modules.get(function.__module__) or sys.modules[_CLASSES[function.__qualname__.split(".")[0]].__module__]
    names = {**_CLASSES, **vars(home)}
    for name, parameter in signature.parameters.items():
        if parameter.annotation is not parameter.empty:
            holder = types.SimpleNamespace(__annotations__={name: parameter.annotation})
            try:
                hints[name] = get_type_hints(holder, names, include_extras=True)[name]
            except (NameError, TypeError, AttributeError):
                hints[name] = Any
    return signature, hints


def _compare(function: Any, where: str, args: Any, kwargs: Any, method: bool) -> None:
    """Refuse the first argument that is not what its annotation says."""
    signature, hints = _signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return  # Python names the argument that is missing or too much
    if method:
        own = next(iter(given))
        where = where.replace(where.partition(".")[0], getattr(given[own], "__name__", type(given[own]).__name__), 1)
        given = {name: value for name, value in given.items() if name != own}
    for name, value in given.items():
        kind = signature.parameters[name].kind
        values = value if kind is kind.VAR_POSITIONAL else value.values() if kind is kind.VAR_KEYWORD else (value,)
        default = signature.parameters[name].default
        for item in values:
            if item is not default and not fits(item, hints.get(name, Any)):
                _refuse(f"{where} {name}", hints[name], item)


def _refuse(where: str, hint: Any, value: object) -> NoReturn:
    expected = words(hint)
    if isinstance(value, str | os.PathLike | torch.dtype | int | float | complex):
        kinds = tuple(kind for kind in (hint, *get_args(hint)) if type(kind) is type)
        right = isinstance(value, kinds) and not isinstance(value, bool)
        raise (InvalidValueError if right else InvalidTypeError)(message(where, expected, _short(repr(value))))
    if inspect.isroutine(value) and "function of" in expected:
        invalid_type(where, expected, value, f"Its own arguments are {_arguments(value)}.")
    invalid_type(where, expected, value)


def _explain(function: Any, where: str, args: Any, kwargs: Any, error: Exception) -> NoReturn:
    """All types are right and it failed all the same: say what came."""
    try:
        given = _signature(function)[0].bind(*args, **kwargs).arguments
    except TypeError:
        unknown = [name for name in kwargs if name not in (known := inspect.signature(function).parameters)]
        hint = did_you_mean(unknown[0], known) if unknown else ""
        raise InvalidTypeError(message(where, _way_to_call(function, where), str(error), hint)) from None
    if isinstance(error, OSError):
        paths = [value for value in given.values() if isinstance(value, str | os.PathLike)]
        if not paths or error.filename is None:
            raise error
        raise DataError(message(f"{where} {paths[0]}", "a place that can be used", system_words(error))) from error
    came = ", ".join(f"{name} {_shown(value)}" for name, value in given.items() if name != "self")
    reason = f"{type(error).__name__}: {(str(error).splitlines() or ['no words'])[0]}"
    raise InvalidValueError(message(where, "arguments that fit together", came, f"It ends in {reason}")) from error


def _way_to_call(function: Any, where: str) -> str:
    """Its name and its arguments, without those that are options."""
    parameters = inspect.signature(function).parameters.values()
    options = [one for one in parameters if one.kind is one.KEYWORD_ONLY or one.default is not one.empty]
    names = [one.name for one in parameters if one not in options and one.name != "self"]
    return f"{where.rpartition('.')[2]}({', '.join([*names, '…'] if options else names)})"


def _shown(value: object) -> str:
    """An argument in few words."""
    if isinstance(value, Tensor):
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"a tensor {tuple(value.shape)} of {value.dtype}{place}"
    if isinstance(value, tuple | list) and any(isinstance(item, Tensor) for item in value[:4]):
        return f"({', '.join([*map(_shown, value[:4]), *(['…'] if len(value) > 4 else [])])})"
    return f"({type(value).__name__})" if callable(value) else _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that an annotation says; numbers are no truth values, tuples may be lists."""
    origin, inner = get_origin(hint), get_args(hint)
    outer = origin or object
    if hint is Any or hint is object or hint is inspect.Parameter.empty:
        return True
    if hint is None or hint is type(None):
        return value is None
    if isinstance(hint, TypeVar):
        return hint.__bound__ is None or fits(value, hint.__bound__)
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (Union, types.UnionType):
        if isinstance(value, str) and torch.device in inner:
            return _is_device(value)
        if isinstance(value, str) and Path in inner:
            return "\0" not in value
        return any(fits(value, part) for part in inner)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint is float:
        return _real(value) and (not isinstance(value, int) or abs(value) < 1e308)
    if hint is int:
        return _real(value) and isinstance(value, Integral)
    if hint is Path or origin is os.PathLike:
        return isinstance(value, str | os.PathLike) and "\0" not in str(value)
    if hint is torch.dtype:
        return isinstance(value, torch.dtype) and value.is_floating_point
    if hint is torch.device:
        return isinstance(value, torch.device)
    if issubclass(outer, Callable):
        return callable(value) and _takes(value, inner[0] if inner else ...)
    if issubclass(outer, Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items()
        )
    if origin is tuple or issubclass(outer, Sequence):
        return _fits_in_order(value, inner, origin) or (hint == Shape and fits(value, int))
    if issubclass(outer, Iterable):
        if isinstance(value, np.ndarray):
            return all(fits(item, inner[0]) for item in value) if inner and value.ndim else False
        return isinstance(value, origin) and not isinstance(value, str | bytes)
    kind = origin or hint
    if getattr(kind, "_is_protocol", False):
        has_all = all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
        return _is_of_the_user(value) or (has_all and not isinstance(value, type))
    return not isinstance(kind, type) or isinstance(value, kind) or _is_of_the_user(value)


def words(hint: Any) -> str:
    """An annotation as people say it."""
    origin, inner = get_origin(hint), get_args(hint)
    outer = origin or object
    if origin is Annotated:
        return words(inner[0])
    if origin in (Union, types.UnionType):
        said = list(dict.fromkeys(map(words, inner)))
        if "a path" in said and "a string" in said:
            said.remove("a string")
        return " or ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if hint in _WORDS:
        return _WORDS[hint]
    if origin is os.PathLike:
        return "a path"
    if issubclass(outer, Callable):
        return f"a function of {_called(hint)}" if inner and inner[0] is not ... else "a function"
    if issubclass(outer, Mapping):
        return f"a mapping of {_many(inner[0])} to {_many(inner[1])}"
    if issubclass(outer, Iterable):
        several = len(inner) > 1 and inner[1] is not ...
        return f"{len(inner)} values" if several else f"a sequence of {', '.join(map(_many, inner[:1]))}"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _many(hint: Any) -> str:
    return (
        words(hint)
        .replace("a string", "strings")
        .replace("a whole number", "whole numbers")
        .replace("a number", "numbers")
        .removeprefix("an ")
        .removeprefix("a ")
    )


def _called(hint: Any) -> str:
    for part in (hint, *get_args(hint)):
        if issubclass(get_origin(part) or object, Callable) and get_args(part):
            inner = get_args(part)[0]
            return "(" + ", ".join(words(one).split()[-1] for one in inner) + ")" if inner is not ... else "(…)"
    return "(…)"


def _arguments(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return "unknown"


def _takes(value: Any, arguments: Any) -> bool:
    """Whether a function can be called with so many arguments; some that are written in C tell nothing."""
    if arguments is ... or not isinstance(arguments, list | tuple):
        return True
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _fits_in_order(value: Any, inner: tuple[Any, ...], origin: Any) -> bool:
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return False
    if origin is tuple and inner and inner[-1] is not ...:
        return len(value) == len(inner) and all(map(fits, value, inner))
    return all(fits(item, inner[0]) for item in value) if inner and isinstance(value, list | tuple) else True


def _is_of_the_user(value: object) -> bool:
    """An object of a class that we do not know may stand in for one of ours."""
    root = type(value).__module__.partition(".")[0]
    return root not in (_OURS, "torch", "numpy", "pathlib") and root not in sys.stdlib_module_names


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def _is_device(name: str) -> bool:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):  # no such kind, or none of that kind in this machine
        return False
    return True
