"""`lift` takes modules as people write them, never differs from them in silence, and leaves them as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import torchlift as tl
from torchlift.core.errors import InvalidTypeError, InvalidValueError, NotRepresentableError
from torchlift.networks import Chain, GraphNetwork
from torchlift.operators import Conv2d, Dense, Functional


class Own(nn.Module):
    """A module whose forward is a function of itself and the input."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _y(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _assert_equal(module: nn.Module, y: Tensor) -> GraphNetwork:
    """Lifts, and compares outputs, states, and the dense form of every sample."""
    network = tl.lift(module.double(), y)
    assert isinstance(network, GraphNetwork)
    expected, states = module(y), network.states(y)
    torch.testing.assert_close(states.output, expected, rtol=0, atol=1e-12)
    form, context = network.operators(), network.context(y)
    for row, bias, j in zip(network.plan.rows, form.b, range(network.depth), strict=True):
        if row.kind != "opaque":
            value = form.W.row(j, states.u, context)
            assert value is not None
            torch.testing.assert_close(value if bias is None else value + bias, states.v[j], rtol=0, atol=1e-11)
    value = form.K.row(0, states.u, context)
    assert value is not None
    torch.testing.assert_close(value if form.d[0] is None else value + form.d[0], expected, rtol=0, atol=1e-11)
    return network


LINEAR: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv1d, strided, dilated": (nn.Conv1d(4, 6, 3, 2, 1, 2, groups=2), (4, 11)),
    "conv3d": (nn.Conv3d(1, 2, 2, padding=1), (1, 3, 4, 3)),
    "conv, reflect": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 5, 4)),
    "conv, replicate": (nn.Conv2d(2, 2, 3, padding=1, padding_mode="replicate"), (2, 5, 4)),
    "conv, circular": (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", groups=2), (2, 5, 4)),
    "conv, depthwise same": (nn.Conv2d(3, 3, 3, padding="same", groups=3), (3, 5, 6)),
    "conv transposed": (nn.ConvTranspose1d(2, 3, 3, 2, 1, 1), (2, 5)),
    "conv transposed, 2-d": (nn.ConvTranspose2d(2, 3, 3, 2, 1, 1), (2, 5, 4)),
    "linear over the last axis": (nn.Linear(4, 3), (5, 4)),
    "adaptive pooling": (nn.AdaptiveAvgPool2d((2, 3)), (2, 5, 7)),
    "pooling, ceil": (nn.AvgPool2d(2, ceil_mode=True), (1, 5, 5)),
    "pooling, 3-d": (nn.AvgPool3d(2), (1, 4, 4, 4)),
    "upsample": (nn.Upsample(scale_factor=2, mode="bicubic"), (1, 4, 3)),
    "pixel shuffle": (nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(4, 4, 1), nn.PixelShuffle(2)), (1, 4, 6)),
    "padding with a number": (nn.ConstantPad2d(1, 0.7), (1, 3, 3)),
    "zero padding": (nn.ZeroPad2d((1, 0, 2, 1)), (1, 3, 3)),
    "instance norm, running statistics": (nn.InstanceNorm2d(2, affine=True, track_running_stats=True), (2, 4, 4)),
    "projection skip": (Own(lambda m, x: m.a(x) + m.b(x), a=nn.Linear(4, 3), b=nn.Linear(4, 3)), (4,)),
    "concatenation": (Own(lambda m, x: torch.cat([m.a(x), x, torch.ones_like(x)], 1), a=nn.Linear(4, 3)), (4,)),
    "split": (Own(lambda m, x: m.a(x.chunk(2, 1)[0]) - 2 * m.a(x.split(3, 1)[1]), a=nn.Linear(3, 2)), (6,)),
    "arithmetic": (Own(lambda m, x: 1.5 - (x * torch.arange(4.0) + 2) / 3 + torch.sub(x, x.flip(1), alpha=2)), (4,)),
    "batch elsewhere": (Own(lambda m, x: m.a(x).transpose(0, 1).mean(0), a=nn.Linear(3, 2)), (4, 3)),
    "einsum": (Own(lambda m, x: torch.einsum("bij,kj->bik", x, m.a.weight), a=nn.Linear(3, 2)), (4, 3)),
    "in place": (Own(lambda m, x: m.a(x).add_(1).mul_(2), a=nn.Linear(3, 2)), (3,)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_maps_are_blocks(name: str) -> None:
    module, shape = LINEAR[name]
    network = _assert_equal(nn.Sequential(module.eval(), Own(lambda m, x: F.relu(x))), _y(*shape))
    assert network.plan.contextual == network.plan.opaque == ()
    for block in network.operators().W.blocks.values():
        assert tl.operators.adjoint_error(block) < 1e-12


def test_known_blocks_are_used() -> None:
    module = Own(
        lambda m, x: F.relu(m.b(torch.flatten(F.relu(m.bn(m.a(x))), 1))),
        a=nn.Conv2d(1, 2, 3), bn=nn.BatchNorm2d(2), b=nn.Linear(8, 2),
    ).eval()  # fmt: skip
    form = _assert_equal(module, _y(1, 4, 4)).operators()
    kinds = [type(part) for block in form.W.blocks.values() for part in getattr(block, "operators", (block,))]
    assert Conv2d in kinds and Dense in kinds and Functional not in kinds
    assert form.b[0] is not None and form.b[0].shape == (2, 1, 1)  # a bias per channel, not per pixel


SIGMAS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "relu6": (F.relu6, type(tl.ReLU6()).__name__),
    "relu, in place": (lambda x: F.relu(x, inplace=True), "ReLU"),
    "method": (lambda x: x.sigmoid(), "Sigmoid"),
    "tanh_": (lambda x: x.tanh_(), "Tanh"),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.25), "Box"),
    "clamp": (lambda x: x.clamp(min=0, max=1), "Box"),
    "clamp below": (lambda x: torch.clamp(x, min=0.1), "Box"),
    "leaky": (lambda x: F.leaky_relu(x, 0.3), "LeakyReLU"),
    "module": (nn.Hardtanh(0, 1), "Box"),
    "prelu": (nn.PReLU(3), "PReLU"),
    "softmax": (lambda x: x.softmax(-1), "Softmax"),
    "softshrink": (nn.Softshrink(0.2), "SoftThreshold"),
    "softplus": (F.softplus, "Softplus"),
    "elu": (lambda x: F.elu(x, 0.5), "ELU"),
    "ours": (tl.SoftThreshold(torch.tensor(0.1)).to_module(), "SoftThreshold"),
}


@pytest.mark.parametrize("name", SIGMAS)
def test_activations_by_module_function_and_method(name: str) -> None:
    sigma, kind = SIGMAS[name]
    parts = {"sigma": sigma} if isinstance(sigma, nn.Module) else {}
    module = Own(lambda m, x: m.b(getattr(m, "sigma", sigma)(m.a(x))), a=nn.Linear(4, 3), b=nn.Linear(3, 2), **parts)
    network = _assert_equal(module, _y(4))
    assert [type(activation).__name__ for activation in network.activations] == [kind]


AT_CONTEXT: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "max-pooling": (nn.MaxPool2d(2), (2, 4, 6)),
    "max-pooling, padded, dilated": (nn.MaxPool2d(3, 2, 1, 2, ceil_mode=True), (2, 7, 8)),
    "max-pooling, 1-d": (nn.MaxPool1d(2), (2, 6)),
    "adaptive max-pooling": (nn.AdaptiveMaxPool2d(2), (2, 5, 4)),
    "layer norm": (nn.LayerNorm(6), (2, 6)),
    "layer norm, two axes": (nn.LayerNorm((2, 6), bias=False), (2, 6)),
    "group norm": (nn.GroupNorm(2, 4), (4, 3, 3)),
    "instance norm": (nn.InstanceNorm2d(2, affine=True), (2, 4, 4)),
    "batch norm, training": (nn.BatchNorm2d(2).train(), (2, 4, 4)),
}


@pytest.mark.parametrize("name", AT_CONTEXT)
def test_maps_at_a_context(name: str) -> None:
    module, shape = AT_CONTEXT[name]
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    y = _y(*shape)
    network = _assert_equal(nn.Sequential(Own(lambda m, x: x * 2 + 0.3), module, nn.ReLU(), nn.Flatten()), y)
    (key,) = network.context(y)
    assert key == "1" + key[1:] and key in network.picture()
    form, context = network.operators(), network.context(y)
    block = next(block for block in form.W.blocks.values() if "·" in block.symbol() or key in block.symbol())
    assert tl.operators.adjoint_error(block, context) < 1e-12
    other = _y(*shape, seed=1)
    # at the context of y the network is another function, linear behind the pooling; renewed, it is the module
    assert not torch.allclose(network(other, context), network(other))
    with pytest.raises(InvalidValueError, match="context"):
        form.W(network.states(y).u)


def test_opaque_rows_hold_jacobians() -> None:
    module = Own(lambda m, x: m.b(F.gelu(m.a(x)) * torch.sin(x)), a=nn.Linear(3, 3), b=nn.Linear(3, 2))
    y = _y(3)
    network = _assert_equal(module, y)
    assert [row.kind for row in network.plan.rows] == ["opaque", "opaque", "opaque"]
    assert all(text in network.picture() for text in ("gelu", "sin", "mul", "opaque"))
    form, context, states = network.operators(), network.context(y), network.states(y)
    for (j, k), block in form.W.blocks.items():
        x = _y(*block.in_shape, seed=4)
        row = network.plan.rows[j]

        def value(u_k: Tensor, row: Any = row, k: int = k) -> Tensor:
            return network._evaluate(row, [u_k if i == k else u for i, u in enumerate(states.u)], None)

        step = 1e-6
        expected = (value(states.u[k] + step * x) - value(states.u[k] - step * x)) / (2 * step)
        torch.testing.assert_close(block(x, context), expected, rtol=0, atol=1e-8)
    with pytest.raises(NotRepresentableError, match="gelu is neither linear"):
        form.W.blocks[0, 0].norm_bound(context)


OPAQUE: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "attention": (Own(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2, batch_first=True)), (5, 4), "a"),
    "recurrent": (Own(lambda m, x: m.a(x)[0][:, -1], a=nn.LSTM(3, 4, batch_first=True)), (5, 3), "a"),
    "gates": (Own(lambda m, x: F.glu(m.a(x), -1), a=nn.Linear(4, 6)), (4,), "glu"),
    "excitation": (Own(lambda m, x: x * m.a(x.mean(2)).sigmoid().unsqueeze(2), a=nn.Linear(2, 2)), (2, 5), "mul"),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_opaque_rows_are_named_by_their_module(name: str) -> None:
    module, shape, path = OPAQUE[name]
    network = _assert_equal(module, _y(*shape))
    assert path in [row.path for row in network.plan.opaque]


# -- never wrong in silence -------------------------------------------------------------------------------------------


class Reversed(nn.Sequential):
    """A subclass with a forward of its own, which the modules alone do not tell."""

    def forward(self, input: Tensor) -> Tensor:
        for module in reversed(list(self)):
            input = module(input)
        return input


def test_subclasses_of_sequential_run_their_own_forward() -> None:
    module = Reversed(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    _assert_equal(module, _y(3))
    nested = nn.Sequential(nn.Linear(3, 3), Reversed(nn.Tanh(), nn.Linear(3, 3)))
    _assert_equal(nested, _y(3))
    with pytest.raises(NotRepresentableError, match="forward method of its own"):
        Chain(module)


def test_hooks_that_change_outputs_are_recorded() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    module[1].register_forward_hook(lambda _, __, output: output * 2)
    module.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
    _assert_equal(module, _y(3))
    assert len(module[1]._forward_hooks) == 1


REFUSED: dict[str, tuple[nn.Module, tuple[int, ...], list[str]]] = {
    "softmax over the batch": (nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=0)), (3,), ["1", "samples"]),
    "softmax over the batch, function": (Own(lambda m, x: F.softmax(x, 0)), (3,), ["softmax", "samples"]),
    "branch on values": (Own(lambda m, x: x if x.sum() > 0 else -x), (3,), ["branches"]),
    "branch on the batch": (Own(lambda m, x: x if x.shape[0] > 2 else -x), (3,), ["batch size"]),
    "dropout": (Own(lambda m, x: m.inner(x), inner=nn.Sequential(nn.Dropout(0.5))), (3,), ["inner.0", "random"]),
    "mixes samples": (Own(lambda m, x: x - x.mean(0)), (3,), ["samples"]),
    "two outputs": (Own(lambda m, x: (x, x)), (3,), ["tuple"]),
    "no input": (Own(lambda m, x: m.a.weight, a=nn.Linear(3, 3)), (3,), ["input"]),
    "writes into a part": (Own(lambda m, x: _write(x.clone())), (3,), ["part of a tensor"]),
    "reads a number": (Own(lambda m, x: x * float(x.max())), (3,), ["number"]),
    "slope above 1": (nn.Sequential(nn.Linear(3, 3), nn.PReLU(init=1.5)), (3,), ["1.prelu", "(0, 1]"]),
}


def _write(x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_lifted_is_refused_by_name(name: str) -> None:
    module, shape, words = REFUSED[name]
    with pytest.raises(NotRepresentableError) as caught:
        tl.lift(module.double(), _y(*shape))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_difference_is_refused_with_the_first_module_that_differs() -> None:
    """A module that computes something else when it is recorded."""

    class Sly(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) if isinstance(x, Tensor) else F.relu(x + 1)

    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Sequential(Sly()), nn.Linear(3, 2)).double()
    with pytest.raises(NotRepresentableError, match=r"first at 2\.0"):
        tl.lift(module, _y(3))


def test_inputs_of_lift() -> None:
    module = Own(lambda m, x: F.relu(m.a(x)), a=nn.Conv2d(1, 2, 3))
    for network in (
        tl.lift(module, (1, 5, 5)),
        tl.lift(module, input_shape=(1, 5, 5)),
        tl.lift(module, torch.zeros(1, 1, 5, 5)),
    ):
        assert network.in_shape == (1, 5, 5) and network.out_shape == (2, 3, 3)
    assert isinstance(tl.lift(nn.Sequential(nn.Linear(3, 2), nn.ReLU())), Chain)
    assert isinstance(tl.lift(nn.Sequential(nn.Linear(3, 2), nn.GELU())), GraphNetwork)
    with pytest.raises(InvalidValueError, match="input_shape"):
        tl.lift(module)
    with pytest.raises(InvalidValueError, match="2 inputs"):
        tl.lift(module, (torch.zeros(1, 1, 5, 5), torch.zeros(1)))
    with pytest.raises(InvalidValueError, match="real numbers"):
        tl.lift(module, torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(InvalidTypeError, match="not lifted yet"):
        tl.lift(tl.networks.MLP([3, 2]))


# -- the module stays as it is, weights are shared or written back ----------------------------------------------------


def test_lifting_leaves_the_module_alone() -> None:
    module = Own(
        lambda m, x: m.c(F.relu(m.norm(m.a(x)))), a=nn.Linear(3, 4), norm=nn.BatchNorm1d(4).train(), c=nn.Linear(4, 2)
    )
    module.c.eval()
    hooks: list[int] = []
    module.a.register_forward_hook(lambda *_: hooks.append(1))
    before = copy.deepcopy(module.state_dict())
    modes = [part.training for part in module.modules()]
    state = torch.get_rng_state()
    network = tl.lift(module, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [part.training for part in module.modules()] and len(module.a._forward_hooks) == 1
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    network.eval()
    assert network.module.norm.training  # the mode of the module stays


def test_weights_are_copied_shared_or_written_back() -> None:
    module = Own(
        lambda m, x: m.b(F.relu(m.norm(m.a(x)))), a=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), b=nn.Linear(4, 2)
    ).eval()
    y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    copied, shared = tl.lift(module, y), tl.lift(module, y, share=True)
    assert isinstance(copied, GraphNetwork) and isinstance(shared, GraphNetwork)
    assert shared.module.a.weight is module.a.weight and shared.module.norm.running_mean is module.norm.running_mean
    assert copied.module.a.weight is not module.a.weight
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(0.1)
    assert not torch.equal(copied(y), module(y))
    copied.load_back(module)
    assert torch.equal(copied(y), module(y)) and torch.equal(shared(y), module(y))
    assert torch.equal(copied.to_sequential()(y), module(y))
    with pytest.raises(InvalidValueError, match="load_back"):
        copied.load_back(nn.Linear(3, 4))

    sequential = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    chain = tl.lift(sequential)
    assert isinstance(chain, Chain)
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.add_(0.1)
    chain.load_back(sequential)
    torch.testing.assert_close(sequential(y), chain(y))


def test_parts_of_a_network() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    y = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    network = tl.lift(module, y)
    assert isinstance(network, GraphNetwork)
    part = network.up_to("1")
    assert torch.equal(part(y), module[1](module[0](y))) and part.out_shape == (4,)
    assert part.module is network.module
    with pytest.raises(InvalidValueError, match="one of 0, 1, 2"):
        network.up_to("3")


def test_printing() -> None:
    assert "in_features=784, out_features=16" in str(tl.networks.MLP([784, 16, 2], tl.SoftThreshold(0.2)))
    assert str(tl.networks.MLP([4, 3, 2])).startswith("MLP(\n  (0): Linear(in_features=4")
    network = tl.lift(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)))
    assert "3 → 2, 1 states, 1 of them opaque" in str(network) and "GELU" in str(network)
    assert "Dense, 4 → 3" in str(tl.networks.Shallow(4, 3, 2))
    states, form = network.states(torch.zeros(1, 3)), network.operators()
    assert max(len(repr(item)) for item in (states, form, form.b, form.W)) < 120


# -- random graphs ----------------------------------------------------------------------------------------------------


STEPS: tuple[Callable[[Tensor, Tensor, nn.Module], Tensor], ...] = (
    lambda a, b, f: f(a),
    lambda a, b, f: F.relu(f(a)),
    lambda a, b, f: a + f(b),
    lambda a, b, f: a - 2 * b,
    lambda a, b, f: torch.cat([a[:, :2], b[:, 2:]], 1),
    lambda a, b, f: torch.tanh(a) + b,
    lambda a, b, f: F.layer_norm(a, (4,)) + b,
    lambda a, b, f: a * b,
    lambda a, b, f: F.silu(f(b)).flip(1),
)


class Random(nn.Module):
    """A program of random steps on a list of values of one shape."""

    def __init__(self, steps: list[tuple[int, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in steps])

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for (kind, i, j), layer in zip(self.steps, self.layers, strict=True):
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(STEPS[kind](a, b, layer))
        return values[-1] + values[0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_random_graphs(steps: list[tuple[int, int, int]]) -> None:
    torch.manual_seed(0)
    module = Random(steps)
    _assert_equal(module, _y(4))


def test_dropout_inside_attention_is_known_by_the_mode_of_training() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(NotRepresentableError, match=r"in training mode.*call its eval\(\) first"):
        tl.lift(layer, (5, 8))
    tl.lift(layer.eval(), (5, 8))
