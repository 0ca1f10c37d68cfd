"""Stacks of operators: one parameter per held tensor, traced and saved like any module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.operators import Conv2d, Dense, Identity, Mask, OperatorStack, Reshape


def dense_stack(count: int = 3, trainable: bool = True) -> OperatorStack:
    return OperatorStack([Dense(torch.randn(4, 4)) for _ in range(count)], trainable)


def nested_stack() -> OperatorStack:
    def one() -> Reshape:
        conv = Conv2d(torch.randn(1, 1, 3, 2), (1, 2, 2), padding="same")
        return torch.rand(()) * (Reshape((1, 2, 2), 4) @ Mask(torch.rand(1, 2, 2)) @ conv)

    return OperatorStack([one(), one()])


class Net(nn.Module):
    """Uses forward and adjoint of dense and nested operators."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = dense_stack()
        self.nested = nested_stack()
        self.fixed = OperatorStack([Mask(torch.rand(4))], trainable=False)

    def forward(self, x: Tensor) -> Tensor:
        for operator in self.dense.operators():
            x = operator(x).relu()
        first, second = self.nested.operators()
        (mask,) = self.fixed.operators()
        return first.adjoint(mask(x)) - second.T(x)


def test_dense_layers_share_one_parameter():
    weights = torch.randn(3, 5, 4)
    stack = OperatorStack([Dense(w) for w in weights])
    assert list(stack.state_dict()) == ["weight"]
    assert torch.equal(stack.weight, weights) and isinstance(stack.weight, nn.Parameter)
    assert len(stack) == len(stack.operators()) == 3
    assert all(torch.equal(op.weight, w) for op, w in zip(stack.operators(), weights, strict=True))


def test_names_of_nested_operators_follow_their_paths():
    names = set(nested_stack().state_dict())
    assert names == {"factor", "operator_operators_1_mask", "operator_operators_2_weight"}


def test_buffers():
    stack = dense_stack(trainable=False)
    assert not list(stack.parameters()) and dict(stack.named_buffers()).keys() == {"weight"}
    assert not stack.operators()[0].weight.requires_grad


def test_the_operators_do_not_share_memory_with_the_originals():
    weight = torch.ones(2, 2)
    stack = OperatorStack([Dense(weight)])
    weight.zero_()
    assert stack.weight.sum() == 4


def test_gradients_return_through_one_node():
    stack = dense_stack()
    x = torch.randn(2, 4)
    operators = stack.operators()
    nodes = {operator.weight.grad_fn for operator in operators}
    assert len(nodes) == 1 and type(nodes.pop()).__name__ == "UnbindBackward0"
    sum(operator(x).sum() for operator in operators).backward()
    assert torch.equal(stack.weight.grad, x.sum(0).expand(3, 4, 4))


def test_operators_without_tensors():
    stack = OperatorStack([Identity(3), Identity(3)])
    assert not stack.state_dict() and len(stack.operators()) == 2


def test_follows_to_deepcopy_and_state_dict():
    net = Net()
    twin = copy.deepcopy(net).double()
    x = torch.randn(3, 4)
    torch.testing.assert_close(twin(x.double()).float(), net(x))
    assert twin.dense.weight.data_ptr() != net.dense.weight.data_ptr()
    other = Net()
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x), net(x))


def test_compiles_as_one_graph():
    net, x = Net(), torch.randn(3, 4)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), net(x))
    compiled(x).sum().backward()
    gradient = net.dense.weight.grad.clone()
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(gradient, net.dense.weight.grad)


def test_exports_with_any_batch_size():
    net = Net()
    program = torch.export.export(net, (torch.randn(3, 4),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    x = torch.randn(5, 4)
    torch.testing.assert_close(program.module()(x), net(x))


def test_functional_call():
    net, x = Net(), torch.randn(3, 4)
    zeros = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    assert torch.func.functional_call(net, zeros, (x,)).abs().max() == 0


def test_refuses_what_is_not_alike():
    with pytest.raises(InvalidValueError, match="at least one operator"):
        OperatorStack([])
    with pytest.raises(InvalidTypeError, match="operator 1: expected a LinearOperator, got Tensor"):
        OperatorStack([Dense(torch.ones(2, 2)), torch.ones(2, 2)])
    with pytest.raises(InvalidValueError, match=r"float32\[2, 2\].*float32\[2, 3\].*stacks of their own"):
        OperatorStack([Dense(torch.ones(2, 2)), Dense(torch.ones(2, 3))])
    with pytest.raises(InvalidValueError, match="float64"):
        OperatorStack([Dense(torch.ones(2, 2)), Dense(torch.ones(2, 2).double())])
    with pytest.raises(InvalidValueError, match="Identity"):
        OperatorStack([Dense(torch.ones(2, 2)), Identity(2)])
    weight = torch.ones(1, 1, 3, 3)
    with pytest.raises(InvalidValueError, match="operator 1: expected the structure of operator 0"):
        OperatorStack([Conv2d(weight, (1, 5, 5)), Conv2d(weight, (1, 5, 5), stride=2)])
