"""The contract of every architecture: the unified form holds, and it is the network it claims to be."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from contracts.network_cases import CASES, Case
from torchlift.networks import MLP, NETWORKS, Network, Perceptron

TOLERANCE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    """(B, total) from the blocks of a batch."""
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def _dense(case: Case, network: Network, y: Tensor, context: Tensor | None, index: int) -> dict[str, Tensor]:
    form = network.operators()
    own = None if context is None else context[index : index + 1]
    matrices = {name: getattr(form, name).to_dense(own) for name in ("K", "M", "V", "W")}
    return matrices | {"b": form.b.to_dense(), "d": form.d.to_dense()}


def test_every_architecture_has_a_case() -> None:
    covered = {type(case.build()) for case in CASES}
    assert covered >= set(NETWORKS.values())


def test_dense_matrices_satisfy_the_unified_form(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    states = network.states(y, context)
    for i in range(len(y)):
        dense = _dense(case, network, y, context, i)
        u = _flat(states.u)[i]
        output = dense["K"] @ u + dense["d"]
        torch.testing.assert_close(states.output[i].flatten(), output, **TOLERANCE)
        if network.depth:
            z, v = _flat(states.z)[i], _flat(states.v)[i]
            torch.testing.assert_close(dense["M"] @ u, dense["V"] @ z, **TOLERANCE)
            torch.testing.assert_close(dense["W"] @ u + dense["b"], v, **TOLERANCE)
    for activation, v, z in zip(network.operators().activations, states.v, states.z, strict=True):
        assert torch.equal(activation(v), z)


def test_forward_equals_plain_torch(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    expected = case.plain(network, y, context)
    assert expected.abs().max() > 1e-3, "a case whose output vanishes proves nothing"
    torch.testing.assert_close(network(y, context), expected, **TOLERANCE)


def test_block_pattern(case: Case) -> None:
    form = case.build().operators()
    depth = form.depth
    identity = {(j, j + 1) for j in range(depth)}
    assert set(form.W.blocks) == case.W
    assert set(form.K.blocks) == case.K
    assert set(form.M.blocks) == (identity if case.M is None else case.M)
    assert set(form.V.blocks) == ({(j, j) for j in range(depth)} if case.V is None else case.V)


def test_diagonal_of_M_is_the_identity(case: Case) -> None:
    M = case.build().operators().M
    for j, shape in enumerate(M.row_shapes):
        block = M.blocks[j, j + 1].to_dense()
        assert torch.equal(block, torch.eye(math.prod(shape), dtype=block.dtype))


def test_block_adjoints(case: Case) -> None:
    network = case.build()
    context = case.context()
    generator = torch.Generator().manual_seed(3)
    form = network.operators()
    for name in ("K", "M", "V", "W"):
        operator = getattr(form, name)
        if not operator.blocks:
            continue
        x = [torch.randn(3, *s, generator=generator, dtype=torch.float64) for s in operator.column_shapes]
        y = [torch.randn(3, *s, generator=generator, dtype=torch.float64) for s in operator.row_shapes]
        left = sum((a * b).sum() for a, b in zip(operator(x, context), y, strict=True))
        right = sum((a * b).sum() for a, b in zip(x, operator.adjoint(y, context), strict=True))
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_parameters_reach_the_optimiser_once_and_have_gradients(case: Case) -> None:
    network = case.build()
    parameters = list(network.parameters())
    assert len({parameter.data_ptr() for parameter in parameters}) == len(parameters)
    assert set(dict(network.named_parameters())) == set(dict(network.named_parameters(remove_duplicate=False)))
    network(case.input(network), case.context()).square().sum().backward()
    missing = [name for name, p in network.named_parameters() if p.grad is None]
    assert missing == []
    largest = max(float(p.grad.abs().max()) for p in parameters)
    assert largest > 0


def test_state_dict_round_trip(case: Case) -> None:
    network, other = case.build(), case.build()
    y, context = case.input(network), case.context()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    assert not torch.equal(network(y, context), other(y, context))
    other.load_state_dict(network.state_dict())
    assert torch.equal(network(y, context), other(y, context))


def test_deepcopy_is_independent(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    before = network(y, context)
    twin = copy.deepcopy(network)
    assert torch.equal(twin(y, context), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    assert torch.equal(network(y, context), before)


def test_follows_dtype(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    expected = network(y, context)
    single = network.float()(y.float(), None if context is None else context.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_follows_device(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    expected = network(y, context)
    moved = network.cuda()(y.cuda(), None if context is None else context.cuda())
    torch.testing.assert_close(moved.cpu(), expected, rtol=1e-9, atol=1e-9)


def test_to_sequential_is_plain_and_identical(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    plain = network.to_sequential(context)
    assert isinstance(plain, nn.Module) and not isinstance(plain, Network)
    arguments = (y,) if context is None else (y, context)
    # Bit for bit where each module is one block; sums of blocks and folded biases round differently.
    exact = isinstance(network, Perceptron | MLP)
    tolerance = {"rtol": 0, "atol": 0} if exact else TOLERANCE
    torch.testing.assert_close(plain(*arguments), network(y, context), **tolerance)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert plain(*arguments).abs().max() > 0, "the plain module must not share its weights"


def test_compile_full_graph(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    torch.compiler.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(y, context), network(y, context), **TOLERANCE)


def test_export_takes_any_batch_size(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    plain = Network.to_sequential(network, context)
    larger, more = case.input(network, 5), case.context(5)
    for arguments in ((y, context), (larger, more)):
        given = arguments if case.masked else arguments[:1]
        torch.testing.assert_close(plain(*given), network(*arguments), **TOLERANCE)


def test_pictures_show_every_block(case: Case) -> None:
    network = case.build()
    form = network.operators()
    for name in ("W", "M", "V", "K"):
        operator = getattr(form, name)
        lines = str(operator).splitlines()
        assert len(lines) == len(operator.row_shapes) + 1 if operator.row_shapes else lines == ["(no rows)"]
        cells = len(operator.row_shapes) * len(operator.column_shapes)
        assert sum(line.count("·") for line in lines) >= cells - len(operator.blocks)
        html = operator._repr_html_()
        assert html.count("<td") == cells
        assert html.count("background") == len(operator.blocks)
    assert all(f"{name} =" in network.picture() for name in "WMVK")
    assert network._repr_html_().count("<table") == 4
