"""What every linear operator promises, checked on all examples of the registry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts.kept import assert_all_kept, assert_kept
from torchlift import operators
from torchlift.core.errors import InvalidValueError
from torchlift.operators import OPERATORS, Conv2d, ConvTranspose2d, LinearOperator, adjoint_error
from torchlift.operators.examples import Example
from torchlift.testing.operators import CHECKS, norm_bound


@pytest.fixture(params=OPERATORS.values(), ids=OPERATORS.keys())
def example(request: pytest.FixtureRequest) -> Example:
    return request.param(torch.Generator().manual_seed(1))


def draw(shape: tuple[int, ...]) -> Tensor:
    return torch.randn((2, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_every_operator_has_an_example():
    public = [getattr(operators, name) for name in operators.__all__]
    kinds = {k for k in public if isinstance(k, type) and issubclass(k, LinearOperator)} - {LinearOperator}
    assert kinds == {type(make(torch.Generator()).operator) for make in OPERATORS.values()}


def test_promises(example: Example) -> None:
    assert_all_kept(CHECKS, *example)


def test_norm_bound_by_lanczos(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small operators have exact norms, so the other way is tried by force."""
    monkeypatch.setattr("torchlift.operators.norms.EXACT_UP_TO", 0)
    assert_kept(norm_bound, *example)


def test_compiles_in_one_graph(example: Example) -> None:
    operator, context = example

    def normal_map(x: Tensor) -> Tensor:
        return operator.adjoint(operator(x, context), context)

    x = draw(operator.in_shape)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(normal_map, fullgraph=True, backend="aot_eager")(x), normal_map(x))


def test_calling_says_what_is_wrong(example: Example) -> None:
    operator, context = example
    with pytest.raises(InvalidValueError, match="input: expected shape"):
        operator(torch.zeros(operator.in_shape, dtype=torch.float64), context)
    with pytest.raises(InvalidValueError, match="at least one sample"):
        operator(torch.zeros(0, *operator.in_shape, dtype=torch.float64), context)
    with pytest.raises(InvalidValueError, match="floating-point"):
        operator(torch.zeros(2, *operator.in_shape, dtype=torch.int64), context)


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
