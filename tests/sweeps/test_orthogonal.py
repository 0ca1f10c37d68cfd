"""Orthogonalised gradients from their factors: the singular value decomposition as oracle, and who gets them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.sweeps import Centring, RelativeStep, orthogonal, sweeping
from torchlift.sweeps.orthogonal import Factors, is_narrow, orthogonal_directions, orthogonalise


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def polar(matrix: Tensor, rank: int) -> Tensor:
    """UVᵀ over the largest singular values."""
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank] @ v[:rank]


FACTORS = [Factors(randn(0, 6, 40), randn(1, 6, 31)), Factors(3 * randn(2, 6, 12), randn(3, 6, 50))]


def test_converges_to_the_orthogonal_factor() -> None:
    for (r, x), made in zip(FACTORS, orthogonalise(FACTORS, polish=12), strict=True):
        assert torch.allclose(made.direction, polar(r.T @ x, 6), atol=1e-8)
        assert torch.allclose(made.direction @ made.direction.T @ made.direction, made.direction, atol=1e-8)


def test_the_quick_form_has_its_singular_vectors_and_nearly_equal_values() -> None:
    for (r, x), made in zip(FACTORS, orthogonalise(FACTORS), strict=True):
        u, _, v = torch.linalg.svd(r.T @ x, full_matrices=False)
        inside = u[:, :6].T @ made.direction @ v[:6].T
        values = inside.diagonal()
        assert float(values.min()) > 0.6 and float(values.max()) < 1.3
        assert torch.allclose(inside, values.diag(), atol=1e-10)


def test_mean_squares_come_from_the_small_matrices() -> None:
    for (r, x), made in zip(FACTORS, orthogonalise(FACTORS), strict=True):
        assert torch.allclose(made.square, made.direction.square().mean())
        assert torch.allclose(made.energy, (r.T @ x).square().mean())


def test_no_signal_gives_no_direction() -> None:
    (made,) = orthogonalise([Factors(torch.zeros(4, 30), torch.ones(4, 20))])
    assert float(made.direction.abs().max()) == 0 and made.square.isfinite()


MOMENTA = [randn(8, 20, 3, 3, 3), 5 * randn(9, 20, 3, 3, 3), randn(10, 60, 18), torch.zeros(17, 17).double()]


def test_directions_have_the_singular_vectors_of_the_momentum_and_size_1() -> None:
    for momentum, direction in zip(MOMENTA[:3], orthogonal_directions(MOMENTA), strict=False):
        assert direction.shape == momentum.shape
        assert torch.allclose(direction.square().mean(), torch.ones((), dtype=torch.float64))
        u, _, v = torch.linalg.svd(momentum.flatten(1), full_matrices=False)
        inside = u.T @ direction.flatten(1) @ v.T
        values = inside.diagonal()
        assert torch.allclose(inside, values.diag(), atol=1e-9)
        assert float(values.max() / values.min()) < 2.2  # those of the momentum differ by up to 5
    assert float(orthogonal_directions(MOMENTA)[3].abs().max()) == 0


def test_directions_are_those_of_double_precision() -> None:
    momentum = randn(11, 48, 96)
    single, double = orthogonal_directions([momentum.float()])[0], orthogonal_directions([momentum])[0]
    assert single.dtype == torch.float32
    assert float((single - double).norm() / double.norm()) < 0.02  # bfloat16 where the processor has it


@pytest.mark.parametrize("instructions", [[], ["avx512_bw"], ["amx_bf16"], ["avx512_bf16"], ["bf16"]])
def test_bfloat16_only_where_the_processor_multiplies_it(
    instructions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere torch emulates it, at a quarter of the speed of single precision."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True), raising=False)
    orthogonal._multiplies_bfloat16.cache_clear()
    quick = orthogonal._quick_dtype(torch.ones(64, 64))
    orthogonal._multiplies_bfloat16.cache_clear()
    assert (quick is torch.bfloat16) is any("bf16" in name for name in instructions)


@pytest.mark.parametrize(
    ("shape", "share", "narrow"),
    [((64, 784), 0.3, True), ((64, 784), 0.6, False), ((256, 256), 0.1, False), ((10, 64), 0.1, False),
     ((256, 256, 3, 3), 0.1, True), ((64, 64, 3, 3), 0.6, True),
     ((300, 300, 3, 3), 0.1, False), ((64, 1, 3, 3), 0.1, False), ((64,), 0.1, False)],
)  # fmt: skip
def test_narrow_matrices_and_filters(shape: tuple[int, ...], share: float, narrow: bool) -> None:
    assert is_narrow(shape, share) is narrow


def test_first_step_of_filters_is_along_their_centred_gradient() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Conv2d(16, 20, 3), nn.ReLU(), nn.Conv2d(20, 18, 3))
    module = module.double()
    y, layer = randn(12, 3, 2, 8, 8) + 1, module[2]
    assert isinstance(layer, nn.Conv2d)
    optimiser, before = RelativeStep(module), layer.weight.detach().clone()
    u = module[:2](y).detach()
    module(y).square().sum().backward()
    means = u.mean((0, 2, 3))  # of every channel, the same for all taps
    assert layer.weight.grad is not None and layer.bias is not None and layer.bias.grad is not None
    centred = layer.weight.grad - layer.bias.grad[:, None, None, None] * means[:, None, None]
    optimiser.step()
    share = 0.6 * 0.03
    moved = (before * (1 - share**2 / 8) - layer.weight.detach()) / (share * before.square().mean().sqrt())
    assert torch.allclose(moved, orthogonal_directions([centred])[0], atol=1e-9)


def test_orthogonalised_layers_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps along noise end where what they add to the mean square is what shrinking takes off."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    optimiser = RelativeStep(module, start=0.1, momentum=0.0, average=0.0)
    monkeypatch.setattr("torchlift.sweeps.relative_step.LONGER", 0.0)  # ρ stays where it is
    monkeypatch.setattr("torchlift.sweeps.relative_step.LONG_RUN", 10_000)
    sizes = [float(layer.weight.detach().square().mean().sqrt()) for layer in module]  # type: ignore[union-attr]
    growth = []
    for count in range(3000):
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimiser.step()
        if count >= 2000:
            pairs = zip(module.parameters(), sizes, strict=True)
            growth += [float(p.detach().square().mean().sqrt()) / size for p, size in pairs]
    assert sum(growth) / len(growth) == pytest.approx(2, rel=0.1)


def test_filters_of_groups_are_left_alone() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(32, 32, 3, groups=2), nn.Conv2d(32, 32, 3))
    flags = [group.get("matrix") for group in tl.sweeps.parameter_groups(module)]
    assert flags == [False, True]


# -- who is orthogonalised --------------------------------------------------------------------------------------------

Y, X = randn(4, 4, 24) + 1, randn(5, 4, 22)


@pytest.fixture
def from_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers are orthogonalised from their factors, as wide ones are."""
    monkeypatch.setattr(orthogonal, "MATRIX_SIDE", 0)


@pytest.fixture(params=["momentum", "factors"])
def both_forms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "factors":
        monkeypatch.setattr(orthogonal, "MATRIX_SIDE", 0)


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(24, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 22)]
    return nn.Sequential(*layers).double()


def first(module: nn.Sequential) -> nn.Linear:
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    return layer


def backward(module: nn.Module, y: Tensor = Y, x: Tensor = X, scale: float = 1.0) -> None:
    with sweeping():
        loss = 0.5 * scale * (module(y) - x).square().sum()
    loss.backward()


def test_layers_that_are_wide_for_the_batch_and_not_square() -> None:
    module = plain()
    centring = Centring(module)
    backward(module)
    means = {id(mean.weight): mean for mean in centring.take()}
    factors = [means[id(layer.weight)].factors for layer in module if isinstance(layer, nn.Linear)]
    assert [bool(known) for known in factors] == [True, False, False, False]  # square, narrow, narrow
    r, u = factors[0][0]
    assert torch.allclose(r.T @ u, first(module).weight.grad)  # type: ignore[arg-type]
    backward(module, Y.repeat(3, 1), X.repeat(3, 1))  # 12 samples are too many
    assert not any(mean.factors for mean in centring.take())


def test_networks_with_few_outputs_are_left_alone() -> None:
    module = nn.Sequential(nn.Linear(24, 30), nn.ReLU(), nn.Linear(30, 10)).double()
    centring = Centring(module)
    module(Y).square().sum().backward()
    assert not any(mean.factors for mean in centring.take())


@pytest.mark.usefixtures("from_factors")
def test_first_step_is_along_the_orthogonalised_gradient() -> None:
    module = plain()
    before, optimiser = first(module).weight.detach().clone(), RelativeStep(module)
    twin = copy.deepcopy(module)
    for part in twin.modules():
        part._forward_pre_hooks.clear()
        part._forward_hooks.clear()
    backward(twin)
    gradient, signal = first(twin).weight.grad, first(twin).bias.grad
    centred = gradient - torch.outer(signal, Y.mean(0))  # type: ignore[operator, arg-type]
    backward(module)
    optimiser.step()
    moved = (before - first(module).weight.detach()) / (0.03 * before.square().mean().sqrt())
    assert torch.allclose(moved.square().mean(), torch.ones((), dtype=torch.float64))
    expected = polar(centred, 3)  # centring takes one direction off
    cosine = (moved * expected).sum() / moved.norm() / expected.norm()
    assert float(cosine) > 0.97


@pytest.mark.usefixtures("from_factors")
def test_other_terms_of_the_gradient_are_not_lost() -> None:
    """The gradient of a penalty is not that of the factors: the step is the usual one."""
    steps = []
    for wide in (5, 10**6):
        module = plain()
        optimiser = RelativeStep(module)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(orthogonal, "WIDE", wide)
            backward(module)
            first(module).weight.square().sum().mul(50).backward()
            optimiser.step()
        steps.append([p.detach().clone() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*steps, strict=True))


@pytest.mark.usefixtures("both_forms")
def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    whole, halves = plain(), plain()
    for module, parts in ((whole, [slice(0, 4)]), (halves, [slice(0, 2), slice(2, 4)])):
        optimiser = RelativeStep(module)
        for part in parts:
            (module(Y[part]) - X[part]).square().sum().backward()
        optimiser.step()
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(whole.parameters(), halves.parameters(), strict=True))


def chain() -> nn.Module:
    return tl.networks.MLP(
        [24, 30, 22], tl.Tanh(), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )  # fmt: skip


@pytest.mark.usefixtures("both_forms")
def test_a_chain_and_its_plain_module_take_the_same_steps() -> None:
    one = chain()
    two = one.to_sequential()  # type: ignore[attr-defined]
    for module in (one, two):
        optimiser = RelativeStep(module)
        for _ in range(6):
            optimiser.zero_grad()
            backward(module)
            optimiser.step()
    assert all(
        torch.allclose(a, b, atol=1e-9)
        for a, b in zip(one.to_sequential().parameters(), two.parameters(), strict=True)  # type: ignore[attr-defined]
    )


@pytest.mark.usefixtures("both_forms")
@pytest.mark.parametrize("build", [plain, chain], ids=["plain", "chain"])
def test_goes_on_from_a_state_dict(build: Callable[[], nn.Module]) -> None:
    def steps(module: nn.Module, optimiser: RelativeStep) -> list[Tensor]:
        for _ in range(7):
            optimiser.zero_grad()
            backward(module)
            optimiser.step()
        return [p.detach().clone() for p in module.parameters()]

    whole, resumed = build(), build()
    optimiser, again = RelativeStep(whole), RelativeStep(resumed)
    steps(whole, optimiser)
    resumed.load_state_dict(whole.state_dict())
    again.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(steps(whole, optimiser), steps(resumed, again), strict=True))


@pytest.mark.usefixtures("both_forms")
def test_a_loop_of_ones_own_is_train() -> None:
    data = randn(6, 40, 24).float(), randn(7, 40, 22).float()
    one, two = plain().float(), plain().float()
    optimiser = RelativeStep(one)
    for k in range(10):
        for group in optimiser.param_groups:
            group["lr"] = 1 - k / 10
        optimiser.zero_grad()
        with sweeping():
            loss = tl.losses.SquaredError().mean(one(data[0][4 * k : 4 * k + 4]), data[1][4 * k : 4 * k + 4])
        loss.backward()
        optimiser.step()
    optimiser.swap_average()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=4)
    solver = tl.training.SweepDescent(anneal="linear")
    tl.train(two, loader, solver=solver, steps=10, weights="keep", progress=False)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_hooks_go_with_the_optimiser() -> None:
    module = plain()
    optimiser = RelativeStep(module)
    backward(module)
    del optimiser
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_goes_on_as_before_from_a_state_of_an_earlier_version() -> None:
    """Which had no key for matrices: no step is orthogonalised then."""
    module = plain()
    groups = [{**group, "matrix": False} for group in tl.sweeps.parameter_groups(module)]
    optimiser = RelativeStep(groups)
    backward(module)
    optimiser.step()
    saved = copy.deepcopy(optimiser.state_dict())
    for group in saved["param_groups"]:
        del group["matrix"]
    again, twin = plain(), plain()
    for copied in (again, twin):
        copied.load_state_dict(module.state_dict())
    resumed, same = RelativeStep(again, centring=False), RelativeStep(list(tl.sweeps.parameter_groups(twin)))
    resumed.load_state_dict(saved)
    same.load_state_dict({**copy.deepcopy(saved), "param_groups": optimiser.state_dict()["param_groups"]})
    for copied, stepped in ((again, resumed), (twin, same)):
        backward(copied)
        stepped.step()
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), twin.parameters(), strict=True))
