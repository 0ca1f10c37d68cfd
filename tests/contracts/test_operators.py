"""What every linear operator promises, checked on all examples of the registry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchlift import operators
from torchlift.core.errors import InvalidValueError
from torchlift.operators import OPERATORS, Conv2d, ConvTranspose2d, LinearOperator, adjoint_error
from torchlift.operators.context import map_context
from torchlift.operators.examples import Example

BATCH = 2


@pytest.fixture(params=OPERATORS.values(), ids=OPERATORS.keys())
def example(request: pytest.FixtureRequest) -> Example:
    return request.param(torch.Generator().manual_seed(1))


def draw(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((BATCH, *shape), generator=generator, dtype=torch.float64).to(dtype)


def of_sample(example: Example, index: int) -> Example:
    return example._replace(context=map_context(example.context, lambda t: t[index : index + 1]))


def true_norm(example: Example) -> float:
    """The largest singular value over all samples of the context."""
    operator, context = example
    count = 1 if context is None else BATCH
    matrices = [operator.to_dense(of_sample(example, i).context).double() for i in range(count)]
    return max(float(torch.linalg.matrix_norm(matrix, 2)) for matrix in matrices)


def test_every_operator_has_an_example():
    public = [getattr(operators, name) for name in operators.__all__]
    kinds = {k for k in public if isinstance(k, type) and issubclass(k, LinearOperator)} - {LinearOperator}
    assert kinds == {type(make(torch.Generator()).operator) for make in OPERATORS.values()}


def test_shapes(example):
    operator, context = example
    x, y = draw(operator.in_shape), draw(operator.out_shape)
    assert operator(x, context).shape == y.shape
    assert operator.adjoint(y, context).shape == x.shape
    assert operator.T.in_shape == operator.out_shape and operator.T.out_shape == operator.in_shape


def test_linear(example):
    operator, context = example
    for apply, shape in ((operator.forward, operator.in_shape), (operator.adjoint, operator.out_shape)):
        a, b = draw(shape, 1), draw(shape, 2)
        combined = apply(2.5 * a - b, context)
        torch.testing.assert_close(combined, 2.5 * apply(a, context) - apply(b, context), rtol=1e-12, atol=1e-12)


def test_affine_adds_the_bias(example):
    operator, context = example
    x = draw(operator.in_shape)
    full = draw(operator.out_shape)[0]
    per_channel = full[(..., *[slice(1)] * (full.ndim - 1))]
    assert torch.equal(operator.affine(x, None, context), operator.forward(x, context))
    for bias in (full, per_channel):
        expected = operator.forward(x, context) + bias
        torch.testing.assert_close(operator.affine(x, bias, context), expected, rtol=0, atol=1e-12)


def test_adjoint(example):
    operator, context = example
    for seed in range(3):
        assert adjoint_error(operator, context, seed) <= 1e-12


def test_samples_are_independent(example):
    operator, context = example
    x = draw(operator.in_shape)
    alone = [operator.forward(x[i : i + 1], of_sample(example, i).context) for i in range(BATCH)]
    torch.testing.assert_close(torch.cat(alone), operator.forward(x, context), rtol=1e-12, atol=1e-12)


def test_inputs_are_left_alone(example):
    operator, context = example
    x, y = draw(operator.in_shape), draw(operator.out_shape)
    kept = x.clone(), y.clone()
    operator.forward(x, context), operator.adjoint(y, context)
    assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])


def test_dense_matrix_agrees_with_forward_and_adjoint(example):
    x, y = draw(example.operator.in_shape), draw(example.operator.out_shape)
    for i in range(BATCH):
        operator, context = of_sample(example, i)
        matrix = operator.to_dense(context)
        assert matrix.dtype == torch.float64
        forward = operator.forward(x[i : i + 1], context).flatten()
        adjoint = operator.adjoint(y[i : i + 1], context).flatten()
        torch.testing.assert_close(matrix @ x[i].flatten(), forward, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(matrix.T @ y[i].flatten(), adjoint, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("exact_up_to", [512, 0], ids=["exact", "lanczos"])
def test_norm_bound(example, exact_up_to, monkeypatch):
    monkeypatch.setattr("torchlift.operators.norms.EXACT_UP_TO", exact_up_to)
    truth, bound = true_norm(example), example.operator.norm_bound(example.context)
    assert truth * (1 - 1e-12) <= bound <= truth * 1.01
    assert example.operator.T.norm_bound(example.context) == pytest.approx(bound, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_is_kept(example, dtype):
    operator = example.operator.map_tensors(lambda _, t: t.to(dtype))
    context = map_context(example.context, lambda t: t.to(dtype))
    forward = operator.forward(draw(operator.in_shape, dtype=dtype), context)
    adjoint = operator.adjoint(draw(operator.out_shape, dtype=dtype), context)
    assert forward.dtype == adjoint.dtype == dtype
    exact = example.operator.forward(draw(operator.in_shape), example.context)
    tolerance = 30 * torch.finfo(dtype).eps
    torch.testing.assert_close(forward.double(), exact, rtol=tolerance, atol=tolerance * float(1 + exact.abs().max()))
    if operator.tensors():
        assert operator.to_dense(of_sample(Example(operator, context), 0).context).dtype == dtype


def test_gradients_reach_held_tensors_and_inputs(example):
    operator, context = example
    names = list(operator.tensors())
    leaves = [t.detach().clone().requires_grad_() for t in operator.tensors().values()]
    x, y = draw(operator.in_shape).requires_grad_(), draw(operator.out_shape).requires_grad_()

    def both(x: Tensor, y: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        twin = operator.map_tensors(lambda path, _: values[names.index(path)])
        return twin.forward(x, context), twin.adjoint(y, context)

    assert torch.autograd.gradcheck(both, (x, y, *leaves), fast_mode=True)


def test_vmap(example):
    operator, context = example
    x, y = draw(operator.in_shape), draw(operator.out_shape)
    inputs, outputs = torch.stack((x, -x, 2 * x)), torch.stack((y, -y, 2 * y))
    forward = torch.func.vmap(lambda x: operator.forward(x, context))(inputs)
    adjoint = torch.func.vmap(lambda y: operator.adjoint(y, context))(outputs)
    torch.testing.assert_close(forward[2], 2 * operator.forward(x, context), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(adjoint[2], 2 * operator.adjoint(y, context), rtol=1e-12, atol=1e-12)


def test_follows_the_device(example):
    """On the device without memory, a tensor left behind on the CPU is an error."""
    operator = example.operator.map_tensors(lambda _, t: t.to("meta"))
    context = map_context(example.context, lambda t: t.to("meta"))
    x, y = draw(operator.in_shape).to("meta"), draw(operator.out_shape).to("meta")
    assert operator.forward(x, context).shape == y.shape and operator.forward(x, context).is_meta
    assert operator.adjoint(y, context).shape == x.shape and operator.adjoint(y, context).is_meta


def test_all_compile_in_one_graph():
    examples = [make(torch.Generator().manual_seed(1)) for make in OPERATORS.values()]

    def normal_maps(xs: list[Tensor]) -> list[Tensor]:
        return [a.adjoint(a(x, context), context) for (a, context), x in zip(examples, xs, strict=True)]

    xs = [draw(operator.in_shape) for operator, _ in examples]
    compiled = torch.compile(normal_maps, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(xs), normal_maps(xs))


def test_map_tensors_round_trip(example):
    operator, context = example
    seen: dict[str, Tensor] = {}
    twin = operator.map_tensors(lambda path, t: seen.setdefault(path, t.clone()))
    assert type(twin) is type(operator) and twin is not operator
    assert list(seen) == list(operator.tensors()) == list(twin.tensors())
    assert all(torch.equal(a, b) for a, b in zip(seen.values(), operator.tensors().values(), strict=True))
    x = draw(operator.in_shape)
    assert torch.equal(twin(x, context), operator(x, context))
    assert isinstance(operator.symbol(), str) and operator.symbol() == twin.symbol()


def test_calling_checks_the_input(example):
    operator, context = example
    with pytest.raises(InvalidValueError, match="input: expected shape"):
        operator(torch.zeros(operator.in_shape, dtype=torch.float64), context)
    with pytest.raises(InvalidValueError, match="expected shape"):
        operator(torch.zeros(BATCH, *operator.in_shape, 2, dtype=torch.float64), context)
    with pytest.raises(InvalidValueError, match="at least one sample"):
        operator(torch.zeros(0, *operator.in_shape, dtype=torch.float64), context)
    with pytest.raises(InvalidValueError, match="floating-point"):
        operator(torch.zeros(BATCH, *operator.in_shape, dtype=torch.int64), context)


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@settings(max_examples=150, deadline=None)
@given(
    size=pairs(1, 9),
    kernel=pairs(1, 4),
    stride=pairs(1, 4),
    padding=pairs(0, 4),
    dilation=pairs(1, 3),
    groups=st.integers(1, 3),
    channels=pairs(1, 2),
)
def test_convolution_geometry(size, kernel, stride, padding, dilation, groups, channels):
    shape = (channels[0] * groups, *size)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(channels[1] * groups, channels[0], *kernel, generator=generator, dtype=torch.float64)
    room = [n + 2 * p - d * (k - 1) - 1 for n, p, d, k in zip(size, padding, dilation, kernel, strict=True)]
    if min(room) < 0:
        with pytest.raises(InvalidValueError, match="fits into the padded image"):
            Conv2d(weight, shape, stride, padding, dilation, groups)
        return
    operator = Conv2d(weight, shape, stride, padding, dilation, groups)
    x = draw(shape)
    assert operator.forward(x).shape[1:] == operator.out_shape
    assert operator.adjoint(operator.forward(x)).shape == x.shape
    assert adjoint_error(operator) <= 1e-12


@settings(max_examples=150, deadline=None)
@given(
    size=pairs(1, 5),
    kernel=pairs(1, 4),
    stride=pairs(1, 4),
    padding=pairs(0, 2),
    spare=pairs(0, 3),
    dilation=pairs(1, 3),
    groups=st.integers(1, 3),
)
def test_transposed_convolution_geometry(size, kernel, stride, padding, spare, dilation, groups):
    shape = (2 * groups, *size)
    weight = torch.randn(2 * groups, 2, *kernel, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    arguments = (weight, shape, stride, padding, spare, dilation, groups)
    try:
        reference = torch.nn.functional.conv_transpose2d(
            draw(shape), weight, None, stride, padding, spare, groups, dilation
        )
    except RuntimeError:
        with pytest.raises(InvalidValueError):
            ConvTranspose2d(*arguments)
        return
    operator = ConvTranspose2d(*arguments)
    assert operator.out_shape == reference.shape[1:]
    assert torch.equal(operator.forward(draw(shape)), reference)
    assert adjoint_error(operator) <= 1e-12
