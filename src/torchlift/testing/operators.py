"""What every linear operator promises, and `check_operator`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_instance
from torchlift.core.errors import InvalidValueError
from torchlift.operators import Context, LinearOperator, adjoint_error
from torchlift.operators.context import context_batch, map_context, select_context
from torchlift.testing.compare import at_most, close, refuses, require
from torchlift.testing.report import Check, NotApplicable, Report, report

BATCH = 2
#: Entries of a matrix up to which promises about it are tried.
DENSE_ENTRIES = 1 << 22


def check_operator(operator: LinearOperator, context: Context = None) -> Report:
    """Whether a linear operator of one's own is linear, has the right adjoint, and keeps all that torchlift relies on.

    Everything is tried in double precision on a copy of the tensors it holds.

    Arguments:
        operator: an instance of a subclass of `LinearOperator`.
        context: of two or more samples, where the operator needs one.

    Example:
        >>> import torchlift as tl
        >>> tl.check_operator(tl.operators.FiniteDifference((1, 5, 4))).ok
        True
    """
    hint = "Derive it from torchlift.operators.LinearOperator, and pass an instance."
    check_instance("check_operator", operator, LinearOperator, "a linear operator", hint)
    context_batch("check_operator context", context)
    operator = operator.map_tensors(lambda _, tensor: tensor.detach().double())
    context = map_context(context, lambda tensor: tensor[:BATCH].double())
    return report(operator.symbol(), [(check, [(operator, context)]) for check in CHECKS])


def draw(shape: Shape, context: Context, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A batch of the size of the context."""
    generator = torch.Generator().manual_seed(seed)
    count = BATCH if context is None else context_batch("context", context)
    return torch.randn((count, *shape), generator=generator, dtype=torch.float64).to(dtype)


def of_sample(context: Context, index: int) -> Context:
    return select_context(context, slice(index, index + 1))


def both_ways(operator: LinearOperator) -> tuple[tuple[str, Callable[..., Tensor], Shape], ...]:
    """forward and adjoint, with their names and the shape of one argument."""
    return ("forward", operator.forward, operator.in_shape), ("adjoint", operator.adjoint, operator.out_shape)


def shapes(operator: LinearOperator, context: Context) -> None:
    """forward maps (B, *in_shape) to (B, *out_shape), adjoint the other way, and .T exchanges them."""
    x, y = draw(operator.in_shape, context), draw(operator.out_shape, context)
    for name, actual, expected in (
        ("forward", operator(x, context).shape, y.shape),
        ("adjoint", operator.adjoint(y, context).shape, x.shape),
        (".T.in_shape", operator.T.in_shape, operator.out_shape),
        (".T.out_shape", operator.T.out_shape, operator.in_shape),
    ):
        require(tuple(actual) == tuple(expected), f"{name} gives shape {tuple(actual)}, not {tuple(expected)}")


def linear(operator: LinearOperator, context: Context) -> None:
    """forward and adjoint are linear: A(2.5a − b) = 2.5 A a − A b."""
    for name, apply, shape in both_ways(operator):
        a, b = draw(shape, context, 1), draw(shape, context, 2)
        expected = 2.5 * apply(a, context) - apply(b, context)
        close(f"{name}(2.5a − b)", apply(2.5 * a - b, context), expected, 1e-12, _room(expected), a=a, b=b)


def adjoint(operator: LinearOperator, context: Context) -> None:
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩ for random x and y."""
    for seed in range(3):
        error = torch.tensor(adjoint_error(operator, context, seed), dtype=torch.float64)
        at_most("|⟨A x, y⟩ − ⟨x, Aᵀ y⟩| relative to the norms", error, 1e-12, seed=seed)


def affine(operator: LinearOperator, context: Context) -> None:
    """affine(x, b) = A x + b, for a full bias, one per channel, and none."""
    x, full = draw(operator.in_shape, context), draw(operator.out_shape, context)[0]
    plain = operator.forward(x, context)
    close("affine(x, None)", operator.affine(x, None, context), plain, 0.0)
    per_channel = full[(..., *[slice(1)] * (full.ndim - 1))]
    for bias in (full, per_channel):
        close("affine(x, b)", operator.affine(x, bias, context), plain + bias, 1e-12, _room(plain), bias=bias)


def samples_are_independent(operator: LinearOperator, context: Context) -> None:
    """A batch gives what its samples give one by one."""
    x = draw(operator.in_shape, context)
    together = operator.forward(x, context)
    alone = torch.cat([operator.forward(x[i : i + 1], of_sample(context, i)) for i in range(len(x))])
    close("forward, one sample at a time,", alone, together, 1e-12, _room(together))


def inputs_are_left_alone(operator: LinearOperator, context: Context) -> None:
    """forward and adjoint do not change their argument."""
    for name, apply, shape in both_ways(operator):
        x = draw(shape, context)
        kept = x.clone()
        apply(x, context)
        close(f"the argument after {name}", x, kept, 0.0)


def dense_matrix(operator: LinearOperator, context: Context) -> None:
    """to_dense() is the matrix of forward, and its transpose that of adjoint."""
    x, y = draw(operator.in_shape, context), draw(operator.out_shape, context)
    for i in range(len(x)):
        context_of_sample = of_sample(context, i)
        matrix = _dense(operator, context_of_sample)
        forward = operator.forward(x[i : i + 1], context_of_sample).flatten()
        back = operator.adjoint(y[i : i + 1], context_of_sample).flatten()
        close("to_dense() @ x", matrix @ x[i].flatten(), forward, 1e-12, _room(forward))
        close("to_dense().T @ y", matrix.T @ y[i].flatten(), back, 1e-12, _room(back))


def norm_bound(operator: LinearOperator, context: Context) -> None:
    """norm_bound() is at least ‖A‖₂ and at most 1 % above it, for the adjoint too."""
    count = 1 if context is None else context_batch("context", context)
    norms = [torch.linalg.matrix_norm(_dense(operator, of_sample(context, i)), 2) for i in range(count)]
    truth = torch.stack(norms).max()
    for name, bound in (
        ("norm_bound()", operator.norm_bound(context)),
        (".T.norm_bound()", operator.T.norm_bound(context)),
    ):
        actual = torch.tensor(bound, dtype=truth.dtype)
        at_most("‖A‖₂", truth * (1 - 1e-12), actual, norm_bound=bound)
        at_most(name, actual, truth * 1.01, norm=float(truth))


def dtypes_are_kept(operator: LinearOperator, context: Context) -> None:
    """float32 and bfloat16 operators keep the dtype, with errors of a few roundings."""
    exact = operator.forward(draw(operator.in_shape, context), context)
    for dtype in (torch.float32, torch.bfloat16):
        twin = operator.map_tensors(lambda _, tensor, dtype=dtype: tensor.to(dtype))
        converted = map_context(context, lambda tensor, dtype=dtype: tensor.to(dtype))
        forward = twin.forward(draw(operator.in_shape, context, dtype=dtype), converted)
        back = twin.adjoint(draw(operator.out_shape, context, dtype=dtype), converted)
        for name, result in (("forward", forward), ("adjoint", back)):
            require(result.dtype == dtype, f"{name} of {dtype} has dtype {result.dtype}")
        tolerance = 30 * torch.finfo(dtype).eps
        close(f"forward in {dtype}", forward.double(), exact, tolerance, tolerance * float(1 + exact.abs().max()))
        if operator.tensors():
            actual = _dense(twin, of_sample(converted, 0)).dtype
            require(actual == dtype, f"to_dense() of tensors in {dtype} has dtype {actual}")


def gradients(operator: LinearOperator, context: Context) -> None:
    """Autograd reaches the argument and every tensor that the operator holds."""
    names = list(operator.tensors())
    leaves = [tensor.detach().clone().requires_grad_() for tensor in operator.tensors().values()]
    x = draw(operator.in_shape, context).requires_grad_()
    y = draw(operator.out_shape, context).requires_grad_()

    def both(x: Tensor, y: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        twin = operator.map_tensors(lambda path, _: values[names.index(path)])
        return twin.forward(x, context), twin.adjoint(y, context)

    torch.autograd.gradcheck(both, (x, y, *leaves), fast_mode=True)


def vmap(operator: LinearOperator, context: Context) -> None:
    """torch.func.vmap goes through forward and adjoint."""
    for name, apply, shape in both_ways(operator):
        x = draw(shape, context)
        actual = torch.func.vmap(lambda x, apply=apply: apply(x, context))(torch.stack((x, -x, 2 * x)))
        expected = 2 * apply(x, context)
        close(f"vmap of {name}", actual[2], expected, 1e-12, _room(expected))


def devices_are_followed(operator: LinearOperator, context: Context) -> None:
    """Nothing stays behind when operator, context and argument move to another device."""
    # On the device without memory, a tensor left behind on the CPU is an error.
    twin = operator.map_tensors(lambda _, tensor: tensor.to("meta"))
    moved = map_context(context, lambda tensor: tensor.to("meta"))
    x, y = draw(operator.in_shape, context).to("meta"), draw(operator.out_shape, context).to("meta")
    for name, result, expected in (("forward", twin.forward(x, moved), y), ("adjoint", twin.adjoint(y, moved), x)):
        require(result.is_meta, f"{name} stays on {result.device}")
        require(result.shape == expected.shape, f"{name} has shape {tuple(result.shape)}, not {tuple(expected.shape)}")


def tensors_can_be_replaced(operator: LinearOperator, context: Context) -> None:
    """map_tensors visits every held tensor once and gives an operator of the same class and values."""
    seen: dict[str, Tensor] = {}
    twin: Any = operator.map_tensors(lambda path, tensor: seen.setdefault(path, tensor.clone()))
    require(type(twin) is type(operator) and twin is not operator, f"map_tensors gave {twin}")
    require(
        list(seen) == list(operator.tensors()) == list(twin.tensors()),
        f"map_tensors visited {list(seen)}, tensors() names {list(operator.tensors())}",
    )
    for path, tensor in operator.tensors().items():
        close(path, seen[path], tensor, 0.0)
    x = draw(operator.in_shape, context)
    close("forward of the copy", twin(x, context), operator(x, context), 0.0)
    require(isinstance(operator.symbol(), str) and operator.symbol() == twin.symbol(), "symbol() is not a lasting text")


def calls_are_checked(operator: LinearOperator, context: Context) -> None:
    """Calling it refuses a missing batch axis, a wrong shape, an empty batch and whole numbers."""
    shape = operator.in_shape
    for name, wrong in (
        ("no batch axis", torch.zeros(shape, dtype=torch.float64)),
        ("one axis too many", torch.zeros(BATCH, *shape, 2, dtype=torch.float64)),
        ("an empty batch", torch.zeros(0, *shape, dtype=torch.float64)),
        ("whole numbers", torch.zeros(BATCH, *shape, dtype=torch.int64)),
    ):
        refused = refuses(operator, wrong, context, error=InvalidValueError)
        require(refused, f"a call with {name} went through; leave `__call__` to LinearOperator and override `forward`")


def _dense(operator: LinearOperator, context: Context) -> Tensor:
    if math.prod(operator.in_shape) * math.prod(operator.out_shape) > DENSE_ENTRIES:
        raise NotApplicable(f"its matrix would have more than {DENSE_ENTRIES:,} entries; try a smaller instance")
    return operator.to_dense(context)


def _room(expected: Tensor) -> float:
    """What rounding may change in sums of many terms: an absolute tolerance of the size of the result."""
    return 1e-12 * float(1 + expected.abs().max())


#: Called with an operator in double precision and a context.
CHECKS: tuple[Check, ...] = (
    shapes, linear, adjoint, affine, samples_are_independent, inputs_are_left_alone, dense_matrix, norm_bound,
    dtypes_are_kept, gradients, vmap, devices_are_followed, tensors_can_be_replaced, calls_are_checked,
)  # fmt: skip
