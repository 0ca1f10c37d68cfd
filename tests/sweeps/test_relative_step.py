"""`RelativeStep`: an optimiser like torch's own, an oracle in plain Python, invariances, and the distance it finds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.operators import Dense
from torchlift.sweeps import Centring, RelativeStep, parameter_groups, relative_step
from torchlift.sweeps.parameter_groups import CHANNELS


def randn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)]
    return nn.Sequential(*layers).double()


DATA = (randn(1, 20, 5) + 1, randn(2, 20, 3))
PICTURES = (randn(3, 9, 2, 4, 4) + 1, randn(4, 9, 2))


def steps(
    module: nn.Module, data: tuple[Tensor, Tensor], count: int, optimiser: torch.optim.Optimizer, scale: float = 1.0
) -> list[Tensor]:
    """Parameters after so many steps on the mean squared error times `scale`."""
    for _ in range(count):
        optimiser.zero_grad()
        (scale * (module(data[0]) - data[1]).square().mean()).backward()
        optimiser.step()
    return [p.detach().clone() for p in module.parameters()]


def close(one: Iterable[Tensor], other: Iterable[Tensor], tolerance: float = 1e-12) -> bool:
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(one, other, strict=True))


# -- the formulas -----------------------------------------------------------------------------------------------------


def oracle(module: nn.Sequential, data: tuple[Tensor, Tensor], count: int) -> list[Tensor]:
    """Two dense layers by the formulas of the docstring, layer by layer, without centring and with all rows."""
    beta, beta2, beta3, rho, gain = 0.9, 0.99, 0.99, 0.03, 0.0
    groups = [(layer.weight, layer.bias) for layer in (module[0], module[2])]
    tensors = [tensor for group in groups for tensor in group]
    units = [group[0].detach().square().mean().sqrt().item() for group in groups for _ in group]
    origin = [tensor.detach().clone() for tensor in tensors]
    m, s = ([torch.zeros_like(tensor) for tensor in tensors] for _ in range(2))
    q, peak = [0.0] * len(tensors), [0.0] * len(tensors)
    for k in range(1, count + 1):
        module.zero_grad()
        (module(data[0]) - data[1]).square().mean().backward()
        inner = size = 0.0
        moved = []
        for i, tensor in enumerate(tensors):
            g = tensor.grad
            q[i] = beta2 * q[i] + (1 - beta2) * g.square().mean().item()
            root = math.sqrt(q[i] / (1 - beta2**k))
            peak[i] = max(peak[i], root)
            scaled = g / max(root, 1e-4 * peak[i])
            inner += float((scaled * (origin[i] - tensor.detach())).sum())
            s[i] = beta3 * s[i] + (1 - beta3) * rho**2 * units[i] * scaled
            size += math.sqrt(tensor.numel()) * float(s[i].norm())
            m[i] = beta * m[i] + (1 - beta) * scaled
            moved.append(rho * units[i] * m[i] / (1 - beta**k))
        gain = beta3 * gain + (1 - beta3) * rho**2 * inner
        rho = min(max(rho, 2 * gain / size), 0.5)
        with torch.no_grad():
            for tensor, step in zip(tensors, moved, strict=True):
                tensor.sub_(step)
    return [p.detach().clone() for p in module.parameters()]


def test_follows_the_formulas() -> None:
    module = network()
    expected = oracle(copy.deepcopy(module), DATA, 25)
    assert close(steps(module, DATA, 25, RelativeStep(module, centring=False)), expected, 1e-10)


def test_entries_take_steps_of_adam() -> None:
    """One second moment per entry: Adam with a learning rate relative to the size of the kernel."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 2)).double()
    plain = copy.deepcopy(module)
    kernel = module[0].weight.detach().square().mean().sqrt().item()
    optimiser = RelativeStep(module, centring=False, limit=0.06)  # so that ρ stays at 0.03
    steps(module, PICTURES, 6, optimiser)
    assert optimiser.relative_size == pytest.approx(0.03)
    rates = [
        {"params": [plain[0].weight, plain[0].bias], "lr": 0.03 * kernel},
        {"params": plain[3].parameters(), "lr": 0.03 * CHANNELS},
    ]
    adam = torch.optim.Adam(rates, betas=(0.9, 0.99 ** (1 / 8)), eps=1e-150)
    dense = RelativeStep(plain[4], centring=False, limit=0.06)
    for _ in range(6):
        plain.zero_grad()
        (plain(PICTURES[0]) - PICTURES[1]).square().mean().backward()
        adam.step()
        dense.step()
    assert close(module.parameters(), plain.parameters(), 1e-8)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), "dense"),
        (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), "dense"),
        (nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)), "entries"),
        (nn.TransformerEncoderLayer(8, 2, 16), "entries"),
        (nn.MultiheadAttention(8, 2, kdim=4), "entries"),
    ],
)
def test_linear_layers_of_networks_of_tokens_go_by_entries(module: nn.Module, kind: str) -> None:
    linear = [group for group in parameter_groups(module) if group.get("layers")]
    assert linear and {group["kind"] for group in linear} == {kind}


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8)])
def test_gains_and_shifts_of_channels_move_by_a_smaller_share(norm: nn.Module) -> None:
    groups = parameter_groups(nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2)))
    assert [group.get("scale", 1.0) for group in groups] == [1.0, CHANNELS, 1.0]


def test_steps_of_long_runs_shorten_with_the_root_of_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a schedule of learning rates would shorten them, which does not reach the estimate either where ρ is fixed."""
    plain, scheduled = convolutional(), convolutional()
    optimiser = RelativeStep(scheduled, limit=0.06)
    for step in range(1, 13):
        for group in optimiser.param_groups:
            group["lr"] = min(1.0, (4 / step) ** 0.5)
        steps(scheduled, PICTURES, 1, optimiser)
    monkeypatch.setattr("torchlift.sweeps.relative_step.LONG_RUN", 4)
    assert close(steps(plain, PICTURES, 12, RelativeStep(plain, limit=0.06)), scheduled.parameters(), 1e-9)


def test_steps_without_momentum() -> None:
    """As those with hardly any."""
    one, other = (steps(m, DATA, 20, RelativeStep(m, momentum=β)) for m, β in ((network(), 0.0), (network(), 1e-12)))
    assert close(one, other, 1e-9)


def test_size_of_the_loss_does_not_matter() -> None:
    one, other = (steps(m, DATA, 20, RelativeStep(m), scale) for m, scale in ((network(), 1.0), (network(), 1e6)))
    assert close(one, other, 1e-9)


@pytest.mark.parametrize("kind", ["dense", "convolution", "stack"])
def test_centred_steps_do_not_see_a_shift_of_the_inputs(kind: str) -> None:
    """A shift that the bias undoes gives the same outputs for ever."""
    if kind == "convolution":
        torch.manual_seed(0)
        module: nn.Module = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2)).double()
        (y, x), layer = PICTURES, module[0]  # type: ignore[index]
        shift = torch.tensor([3.0, -2.0], dtype=torch.float64).view(2, 1, 1)
        absorbed = (layer.weight * shift).sum((1, 2, 3))
        bias = layer.bias
    elif kind == "stack":
        module = tl.networks.MLP(
            [5, 5, 5, 3], tl.Tanh(), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        (y, x), shift = DATA, torch.linspace(-3, 3, 5, dtype=torch.float64)
        stack = module.hidden[0]  # type: ignore[index]
        bias, absorbed = stack.bias[0], stack.linear.weight[0] @ shift
    else:
        module, (y, x), shift = network(), DATA, torch.linspace(-3, 3, 5, dtype=torch.float64)
        bias, absorbed = module[0].bias, module[0].weight @ shift  # type: ignore[index]
    plain = copy.deepcopy(module)
    with torch.no_grad():
        bias.sub_(absorbed.detach())
    shifted = steps(module, (y + shift, x), 15, RelativeStep(module, start=0.02, limit=0.06))
    steps(plain, (y, x), 15, RelativeStep(plain, start=0.02, limit=0.06))
    assert torch.allclose(module(y + shift), plain(y), atol=1e-8) and len(shifted) == len(list(plain.parameters()))


def test_the_distance_is_a_lower_bound_in_one_dense_layer() -> None:
    """ρ ≤ max ‖x₀ − x*‖/(c √n) over weight and bias, for squared errors."""
    torch.manual_seed(0)
    layer, y = nn.Linear(4, 3).double(), randn(5, 60, 4)
    solution = [5 * randn(6, 3, 4), 5 * randn(7, 3)]
    x = y @ solution[0].T + solution[1]
    start, unit = [p.detach().clone() for p in layer.parameters()], layer.weight.detach().square().mean().sqrt()
    bound = max(float((a - b).norm() / (unit * a.numel() ** 0.5)) for a, b in zip(start, solution, strict=True))
    optimiser = RelativeStep(layer, limit=1e9, centring=False)
    sizes = []
    for _ in range(200):
        steps(layer, (y, x), 1, optimiser)
        sizes.append(optimiser.relative_size)
    assert sizes == sorted(sizes) and 0.1 * bound < sizes[-1] <= bound


def test_no_step_exceeds_the_limit_shared_by_all_layers() -> None:
    module = nn.Sequential(*[part for _ in range(20) for part in (nn.Linear(4, 4), nn.ReLU())])
    optimiser = RelativeStep(module)
    steps(module, (randn(8, 9, 4).float(), randn(9, 9, 4).float()), 60, optimiser)
    assert optimiser.relative_size <= 1 / 20 + 1e-7


@pytest.mark.parametrize("build", [network, convolutional])
def test_estimates_that_cannot_lengthen_steps_are_left_out(
    build: Callable[[], nn.Sequential], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the limit on; the steps are bit for bit those with them, and so are those after a retreat."""
    ends, made = [], []
    terms = relative_step._Distance.terms

    def counted(self: Any, *arguments: Any) -> Any:
        made[-1] += 1
        return terms(self, *arguments)

    monkeypatch.setattr(relative_step._Distance, "terms", counted)
    for largest in (RelativeStep._largest, lambda optimiser, own: False):
        monkeypatch.setattr(RelativeStep, "_largest", largest)
        module = build()
        made.append(0)
        optimiser = RelativeStep(module, limit=0.05)
        steps(module, DATA if build is network else PICTURES, 40, optimiser)
        optimiser.retreat()
        ends.append(steps(module, DATA if build is network else PICTURES, 40, optimiser))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    assert made[0] < made[1] / 2


@pytest.mark.parametrize(("layers", "most"), [(2, 1 / 2), (20, 1 / 20), (80, 1 / 40), (500, 1 / 100)])
def test_the_limit_grows_as_the_root_of_the_number_of_many_layers(layers: int, most: float) -> None:
    optimiser = RelativeStep(nn.Sequential(*[nn.Linear(1, 1) for _ in range(layers)]), start=9.0)
    optimiser._arrange()
    assert optimiser._most == pytest.approx(most)
    optimiser.retreat()
    assert optimiser._most == pytest.approx(most / 2)


@pytest.mark.parametrize(
    ("layers", "first"),
    [(2, 0.03), (5, 0.03), (6, 0.025), (10, 0.015), (25, 0.015), (40, 1 / 128), (50, 0.005), (100, 0.0025)],
)
def test_deep_networks_begin_with_shorter_steps(layers: int, first: float) -> None:
    module = nn.Sequential(*[nn.Linear(3, 3) for _ in range(layers)]).double()
    optimiser = RelativeStep(module)
    steps(module, (randn(8, 9, 3), randn(9, 9, 3)), 1, optimiser)  # the first estimate is that of no distance
    assert optimiser.relative_size == pytest.approx(first)


@pytest.mark.parametrize("build", [network, convolutional])
def test_a_retreat_begins_anew_from_the_average_with_half_the_sizes(build: Callable[[], nn.Sequential]) -> None:
    module, data = build(), DATA if build is network else PICTURES
    optimiser = RelativeStep(module)
    steps(module, data, 12, optimiser)
    optimiser.swap_average()
    (anew := build()).load_state_dict(module.state_dict())
    optimiser.swap_average()
    optimiser.retreat()
    assert close(module.parameters(), anew.parameters(), 0)
    fresh = RelativeStep(anew, start=0.03 / 2, limit=1 / 2)
    fresh._arrange()
    fresh.state["all parameters"]["units"].copy_(optimiser.state["all parameters"]["units"])  # of the first weights
    assert close(steps(anew, data, 20, fresh), steps(module, data, 20, optimiser), 0)
    (resumed := build()).load_state_dict(module.state_dict())
    saved = RelativeStep(resumed)  # smaller sizes are saved
    saved.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert close(steps(resumed, data, 20, saved), steps(module, data, 20, optimiser), 0)


def test_a_retreat_leads_to_the_average_that_was_kept() -> None:
    module = network()
    optimiser = RelativeStep(module)
    steps(module, DATA, 10, optimiser)
    optimiser.keep_average()
    optimiser.swap_average()
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    optimiser.swap_average()
    steps(module, DATA, 30, optimiser)
    (resumed := network()).load_state_dict(module.state_dict())
    saved = RelativeStep(resumed)
    saved.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    for each, rule in ((module, optimiser), (resumed, saved)):  # what was kept is saved
        rule.retreat()
        assert close(each.parameters(), kept, 0)
        rule.swap_average()  # which forgets what came after it, too
        assert close(each.parameters(), kept, 0)


# -- what parameters are ----------------------------------------------------------------------------------------------


class Bare(nn.Module):
    """The network of `network()` with parameters of its own, called anything."""

    def __init__(self, plain: nn.Sequential) -> None:
        super().__init__()
        self.matrix_of_words = nn.Parameter(plain[0].weight.detach().clone())  # type: ignore[arg-type]
        self.linear_offset = nn.Parameter(plain[0].bias.detach().clone())  # type: ignore[arg-type]
        self.second_bias = nn.Parameter(plain[2].weight.detach().clone())  # type: ignore[arg-type]
        self.weight = nn.Parameter(plain[2].bias.detach().clone())  # type: ignore[arg-type]

    def parameter_groups(self) -> list[dict[str, Any]]:
        pairs = [(self.matrix_of_words, self.linear_offset), (self.second_bias, self.weight)]
        return [{"params": list(pair), "kind": "dense", "layers": 1} for pair in pairs]

    def forward(self, y: Tensor) -> Tensor:
        hidden = torch.tanh(nn.functional.linear(y, self.matrix_of_words, self.linear_offset))
        return nn.functional.linear(hidden, self.second_bias, self.weight)


def test_names_do_not_matter() -> None:
    plain = network()
    bare = Bare(plain)
    assert close(steps(plain, DATA, 8, RelativeStep(plain, centring=False)), steps(bare, DATA, 8, RelativeStep(bare)))


def test_a_chain_and_its_plain_module_take_the_same_steps() -> None:
    chain = tl.networks.MLP([5, 6, 6, 6, 3], tl.Tanh(), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = chain.to_sequential()
    steps(chain, DATA, 12, RelativeStep(chain))
    steps(plain, DATA, 12, RelativeStep(plain))
    assert close(chain.to_sequential().parameters(), plain.parameters(), 1e-9)


def test_groups_of_modules() -> None:
    module = nn.ModuleDict({
        "linear": nn.Linear(3, 4), "conv": nn.Conv1d(2, 3, 3), "norm": nn.LayerNorm(4), "word": nn.Embedding(5, 4),
        "attention": nn.MultiheadAttention(4, 2), "frozen": nn.Linear(2, 2).requires_grad_(False),
    })  # fmt: skip
    groups = parameter_groups(module)
    kinds = [(group["kind"], len(group["params"]), group.get("layers", 0)) for group in groups]
    assert kinds == [
        ("entries", 2, 1), ("entries", 2, 1), ("entries", 2, 0), ("entries", 1, 0),
        ("entries", 2, 1), ("entries", 2, 1),
    ]  # fmt: skip
    owned = [id(p) for group in groups for p in group["params"]]
    assert len(owned) == len(set(owned)) == sum(p.requires_grad for p in module.parameters())


def test_groups_of_unrolled_networks() -> None:
    lista = tl.networks.LISTA(Dense(randn(0, 4, 5)), randn(1, 5, 6), 3)
    groups = parameter_groups(lista)
    assert {group["kind"] for group in groups} == {"entries", "logarithm"}
    assert all(group["stacked"] for group in groups) and sum(group.get("layers", 0) for group in groups) == 0
    optimiser = RelativeStep(lista)
    before = [p.detach().clone() for p in lista.parameters()]
    lista(randn(2, 6, 4)).square().mean().backward()
    optimiser.step()
    assert optimiser.relative_size == pytest.approx(0.015)  # half of what layers begin with
    assert all(not torch.equal(a, b) for a, b in zip(before, lista.parameters(), strict=True))


def test_zeros_move_as_far_as_weights_that_torch_draws() -> None:
    """The last map of a residual branch often starts at zero: a step of it has size ρ/√(3 · inputs)."""
    layer = nn.Linear(12, 5).double()
    nn.init.zeros_(layer.weight)
    steps(layer, (randn(5, 30, 12), randn(6, 30, 5)), 1, RelativeStep(layer))
    assert float(layer.weight.detach().square().mean().sqrt()) == pytest.approx(0.03 / 6)


class Tokens(nn.Module):
    """Parameters that no layer owns and that start near zero, as in transformers and ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(1e-4 * randn(1, 6, 12))
        self.branch = nn.Parameter(torch.full((12,), 1e-6, dtype=torch.float64))
        self.temperature = nn.Parameter(torch.tensor(1e-3, dtype=torch.float64))
        self.read = nn.Linear(12, 12).double()

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.positions
        return tokens + self.temperature * self.read(tokens) + self.branch * tokens.tanh()


def test_what_no_layer_owns_is_not_held_near_zero() -> None:
    module = Tokens()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    steps(module, (randn(2, 30, 6, 12), randn(3, 30, 6, 12)), 1, RelativeStep(module, centring=False))
    moved = {
        name: float((parameter.detach() - before[name]).square().mean().sqrt())
        for name, parameter in module.named_parameters()
    }
    assert moved["positions"] == pytest.approx(0.03 / (3 * 12) ** 0.5)  # as weights that torch draws
    assert moved["branch"] == pytest.approx(0.03 * 0.1 / 12**0.5)
    assert moved["temperature"] == pytest.approx(0.03 * 1e-3)  # one number may have any unit


def test_plain_tensors_count_as_entries() -> None:
    tensor = nn.Parameter(randn(3, 6))
    optimiser = RelativeStep([tensor])
    (tensor.square().sum()).backward()
    optimiser.step()
    assert tensor.isfinite().all() and optimiser.param_groups[0]["kind"] == "entries"


# -- an optimiser like any other --------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [network, convolutional], ids=["dense", "convolutional"])
@pytest.mark.parametrize("after", [3, 40])
def test_goes_on_from_a_state_dict(build: Callable[[], nn.Module], after: int) -> None:
    data = DATA if build is network else PICTURES
    whole = build()
    optimiser = RelativeStep(whole)
    steps(whole, data, after, optimiser)
    resumed = copy.deepcopy(whole)
    for part in resumed.modules():  # the copy has copies of the hooks, which listen to the first optimiser
        part._forward_pre_hooks.clear()
    again = RelativeStep(resumed)
    again.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert all(
        torch.equal(a, b) for a, b in zip(steps(whole, data, 9, optimiser), steps(resumed, data, 9, again), strict=True)
    )


def test_schedulers_and_closures() -> None:
    module, twin = network(), network()
    optimiser, other = RelativeStep(module), RelativeStep(twin)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (module(DATA[0]) - DATA[1]).square().mean()
        loss.backward()
        return loss

    losses = []
    for k in range(10):
        losses.append(float(optimiser.step(closure).detach()))
        scheduler.step()
        for group in other.param_groups:
            group["lr"] = 0.5 * (1 + math.cos(math.pi * k / 10))
        steps(twin, DATA, 1, other)
    assert losses[-1] < losses[0] and close(module.parameters(), twin.parameters())


def test_groups_can_have_learning_rates_of_their_own() -> None:
    module = network()
    groups = parameter_groups(module)
    groups[0]["lr"] = 0.0
    before = [p.detach().clone() for p in module.parameters()]
    after = steps(module, DATA, 5, RelativeStep(groups))
    assert close(before[:2], after[:2]) and not torch.allclose(before[2], after[2])


def test_a_missing_gradient_counts_as_zero() -> None:
    module = network()
    optimiser = RelativeStep(module)
    unused = module[2].weight.detach().clone()
    module[0](DATA[0]).square().mean().backward()
    optimiser.step()
    assert torch.equal(module[2].weight, unused) and all(p.isfinite().all() for p in module.parameters())


def test_the_average() -> None:
    module = network()
    optimiser = RelativeStep(module)
    last = steps(module, DATA, 30, optimiser)
    optimiser.swap_average()
    averaged = [p.detach().clone() for p in module.parameters()]
    assert not close(last, averaged)
    optimiser.swap_average()
    assert all(torch.equal(a, b) for a, b in zip(last, module.parameters(), strict=True))
    none = RelativeStep(twin := network(), average=0.0)
    steps(twin, DATA, 30, none)
    none.swap_average()
    assert close(last, twin.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_keeps_the_dtype(dtype: torch.dtype) -> None:
    module = network(dtype=dtype)
    data = (DATA[0].to(dtype), DATA[1].to(dtype))
    with torch.no_grad():
        before = float((module(data[0]) - data[1]).square().mean())
    after = steps(module, data, 40, RelativeStep(module))
    assert all(p.dtype == dtype and p.isfinite().all() for p in after)
    with torch.no_grad():
        assert float((module(data[0]) - data[1]).square().mean()) < before


def test_hooks_go_with_the_optimiser() -> None:
    module = convolutional()
    optimiser = RelativeStep(module)
    assert any(part._forward_pre_hooks for part in module.modules())
    del optimiser
    assert not any(part._forward_pre_hooks for part in module.modules())
    chain = tl.networks.MLP([3, 3, 2])
    centring = Centring(chain)
    assert all(stack.observers for stack in chain.hidden)  # type: ignore[union-attr]
    del centring
    assert not any(stack.observers for stack in chain.hidden)  # type: ignore[union-attr]


def test_means_are_taken_over_all_passes_since_the_last_step() -> None:
    layer = nn.Linear(3, 2).double()
    centring, (one, two) = Centring(layer), (randn(4, 5, 3), randn(5, 5, 3))
    (layer(one).sum() + layer(two).sum()).backward()
    with torch.no_grad():
        layer(100 + one)  # not recorded, so it does not count
    (mean,) = centring.take()
    assert torch.allclose(mean.inputs, torch.cat([one, two]).mean(0)) and centring.take() == []


def test_means_of_one_channel_can_be_written_to() -> None:
    """Processes that share a batch overwrite them by means over all samples."""
    layer = nn.Conv2d(1, 2, 3).double()
    centring = Centring(layer)
    layer(randn(6, 5, 1, 6, 6)).square().mean().backward()
    (mean,) = centring.take()
    assert mean.inputs.mul_(2).shape == (9,)


@pytest.mark.parametrize("groups", [1, 2])
def test_centred_gradient_of_convolutions(groups: int) -> None:
    """∇W − ∇b ūᵀ with one mean per channel, and W ū in the shape of the bias."""
    layer = nn.Conv2d(4, 6, 3, groups=groups).double()
    centring, y = Centring(layer), randn(6, 5, 4, 6, 6)
    layer(y).square().mean().backward()
    (mean,) = centring.take()
    weight, bias, channels = layer.weight.grad.clone(), layer.bias.grad, y.mean((0, 2, 3)).view(groups, -1)
    expected = weight.clone()
    for o in range(6):
        expected[o] -= bias[o] * channels[o // (6 // groups)].view(-1, 1, 1)
    mean.centre_(weight, bias)
    assert torch.allclose(weight, expected)
    constant = channels.flatten().view(1, 4, 1, 1).expand(1, 4, 3, 3)
    with torch.no_grad():
        assert torch.allclose(mean.pull(layer.weight), (layer(constant) - layer.bias.view(1, -1, 1, 1)).flatten())


@pytest.mark.parametrize(
    ("options", "words"),
    [({"start": 0}, "start"), ({"limit": -1}, "limit"), ({"momentum": 1}, "momentum"), ({"lr": -1}, "lr"),
     ({"average": 2}, "average"), ({"centring": 1}, "centring")],
)  # fmt: skip
def test_bad_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        RelativeStep(network(), **options)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="'dense', 'entries', 'logarithm', got 'matrix'"):
        RelativeStep([{"params": [nn.Parameter(torch.ones(2))], "kind": "matrix"}])


class TiedAutoencoder(nn.Module):
    """Two layers with one weight, and biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 12), nn.Linear(12, 12)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.relu(self.encoder(x)))


def test_a_weight_of_several_owners_is_not_centred() -> None:
    """Its gradient belongs to both layers, the mean input only to one: the step is that of its sum as it is."""
    x = torch.rand(20, 12, generator=torch.Generator().manual_seed(0))
    modules = []
    for centring in (True, False):
        torch.manual_seed(0)
        module = TiedAutoencoder()
        optimiser = tl.RelativeStep(module, centring=centring)
        for _ in range(5):
            optimiser.zero_grad()
            nn.functional.mse_loss(module(x), x).backward()
            optimiser.step()
        modules.append(module)
    for one, other in zip(*(module.parameters() for module in modules), strict=True):
        assert torch.equal(one, other)


def test_an_embedding_that_is_the_output_layer_too_is_trained() -> None:
    embedding, head = nn.Embedding(30, 8), nn.Linear(8, 30)
    head.weight = embedding.weight
    tokens = torch.randint(30, (200, 1), generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(embedding, nn.Flatten(), head)
    result = tl.train(network, (tokens, tokens[:, 0]), steps=60, progress=False)
    assert result.history["loss"][-1] < 0.5 * result.history["loss"][0]


@pytest.mark.parametrize(
    ("module", "layers"),
    [(nn.RNN(3, 4, num_layers=2), 16), (nn.RNNCell(3, 4), 8), (nn.GRU(3, 4), 0), (nn.LSTMCell(3, 4), 0)],
    ids=lambda value: type(value).__name__,
)
def test_recurrences_without_gates_count_as_many_layers(module: nn.Module, layers: int) -> None:
    """What a step changes multiplies from one time to the next, so that the largest ρ is smaller."""
    groups = parameter_groups(module)
    assert sum(group.get("layers", 0) for group in groups) == layers
    assert [p for group in groups for p in group["params"]] == list(module.parameters())


def test_a_retreat_before_any_average_was_kept_leads_to_the_start() -> None:
    """The average of the first steps may have taken in what too long a step led to."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    start = [parameter.detach().clone() for parameter in network.parameters()]
    optimiser = RelativeStep(network, lr=1e6)
    optimiser.keep_average()
    for _ in range(7):
        optimiser.zero_grad()
        network(torch.ones(5, 3)).square().mean().backward()
        optimiser.step()
    optimiser.retreat()
    for parameter, first in zip(network.parameters(), start, strict=True):
        assert torch.equal(parameter, first)


@pytest.mark.parametrize(("outputs", "decodes"), [(3, False), (4, True)])
def test_the_bias_of_a_decoder_moves_outputs_as_far_as_a_step_that_is_not_centred(outputs: int, decodes: bool) -> None:
    """In centred coordinates b' = b + W ū, a gradient step on W and b moves b' by 1 + ‖ū‖² times ∇b."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, outputs))
    x = torch.rand(20, 6, generator=torch.Generator().manual_seed(0))
    optimiser = RelativeStep(network)
    for _ in range(4):
        mean = network[:2](x).detach().mean(0)
        optimiser.zero_grad()
        (network(x) - 5).square().mean().backward()
        optimiser.step()
        weight, bias, output, shift = optimiser.state["all parameters"]["units"].tolist()
        assert weight == bias
        assert shift == pytest.approx(output * (1 + decodes * float(mean.square().sum())), rel=1e-6)


def test_a_decoder_learns_means_that_are_far_off() -> None:
    """From 0.5 to 0.1 behind a sigmoid: the bias alone has to go there, since weights are centred."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 60), nn.Sigmoid())
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(100, 20, generator=generator)
    targets = 0.05 + 0.1 * torch.sigmoid(3 * (x - 0.5) @ torch.randn(20, 60, generator=generator))
    tl.train(network, (x, targets), steps=100, weights="keep", progress=False)
    assert float((network(x).detach() - targets).square().mean()) < 1e-3
