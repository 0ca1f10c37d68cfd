"""Plans of memory against what training takes, refusals, and lifted variables that outlive their batch."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchlift as tl
from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError
from torchlift.core.memory import available_memory, format_bytes, read_available
from torchlift.data import Batches, as_batches
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.functions.regularisers import Ridge
from torchlift.lab.benchmarks.measure import PeakMemory
from torchlift.liftings import Bregman, Contrastive, Conventional
from torchlift.solvers import LinearisedBCD, ProximalAdam
from torchlift.training import Phase, SweepDescent
from torchlift.training.memory import MemoryPlan, plan_memory
from torchlift.training.plan import PlannedPhase
from training.runs import called


def mlp(*widths: int) -> tl.networks.MLP:
    torch.manual_seed(0)
    return tl.networks.MLP(list(widths))


def convolutional() -> tl.networks.Network:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()]
    return tl.lift(nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * 100, 3)), (1, 10, 10))


class Module(nn.Sequential):
    """One that is not of this library."""

    in_shape, out_shape = (1, 10, 10), (3,)

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.1)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(6 * 100, 3))


def data(network: Any, samples: int, labels: bool = False) -> tuple[Tensor, Tensor]:
    y = torch.randn(samples, *network.in_shape)
    if labels:
        return y, torch.randint(0, network.out_shape[0], (samples,))
    return y, torch.randn(samples, *network.out_shape)


def measured(network: nn.Module, phase: Phase, batches: Any, loss: Loss) -> int:
    with PeakMemory() as memory:
        method = phase.begin(network, loss, batches)
        for _ in range(6):
            method.step()
        method.publish()
        method.objective_value()
    return memory.peak


FULL = partial(Phase, Bregman(), batch_size="full")
CASES: dict[str, tuple[Callable[[], nn.Module], int, Phase]] = {
    "sweeps, wide": (lambda: mlp(300, 200, 200, 4), 400, Phase(batch_size=50)),
    "sweeps, large batch": (lambda: mlp(20, 30, 30, 4), 2000, Phase(batch_size=1000)),
    "sweeps, deep": (lambda: mlp(*[40] * 6, 4), 400, Phase(batch_size=100)),
    "sweeps, convolutions": (convolutional, 200, Phase(batch_size=100)),
    "sweeps, Adam": (lambda: mlp(60, 50, 50, 4), 400, Phase(solver=torch.optim.Adam, batch_size=200)),
    "sweeps, full": (lambda: mlp(60, 50, 50, 4), 400, Phase(batch_size="full")),
    "sweeps, a module": (Module, 400, Phase(batch_size=100)),
    "contrastive": (lambda: mlp(30, 64, 64, 4), 600, Phase(Contrastive(), batch_size=200)),
    "full, wide": (lambda: mlp(100, 80, 80, 4), 700, FULL(solver=None)),
    "full, bounds": (lambda: mlp(30, 64, 64, 4), 700, FULL(solver=LinearisedBCD())),
    "full, Adam": (lambda: mlp(30, 64, 64, 4), 700, FULL(solver=ProximalAdam())),
    "full, convolutions": (convolutional, 150, FULL(solver=None)),
    "implicit": (lambda: mlp(30, 64, 64, 4), 600, Phase(Bregman(), batch_size=200)),
    "back-propagation": (lambda: mlp(100, 80, 80, 4), 600, Phase(Conventional(), torch.optim.Adam, batch_size=200)),
}


def plan_of(
    network: nn.Module, phase: Phase, batches: Batches, loss: Loss, *, validation: Batches | None = None
) -> MemoryPlan:
    return plan_memory(PlannedPhase(phase, network, batches, loss), validation)


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_what_training_takes(case: str) -> None:
    make, samples, phase = CASES[case]
    network = make()
    loss = CrossEntropy()
    batches = as_batches(data(network, samples, labels=True), batch_size=None if phase.full else phase.batch_size)  # type: ignore[arg-type]
    before, random = [parameter.clone() for parameter in network.parameters()], torch.get_rng_state()
    plan = plan_of(network, phase, batches, loss)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    found = measured(copy.deepcopy(network), phase, batches, loss)
    assert plan.needed == pytest.approx(found, rel=0.15)


@pytest.mark.parametrize("case", ["sweeps, convolutions", "sweeps, a module", "back-propagation"])
def test_large_samples_are_planned_from_very_few(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, samples, phase = CASES[case]
    network, loss = make(), CrossEntropy()
    batches = as_batches(data(network, samples, labels=True), batch_size=phase.batch_size)  # type: ignore[arg-type]
    usual = plan_of(network, phase, batches, loss)
    monkeypatch.setattr("torchlift.training.small_run.LARGE", 0)
    assert plan_of(network, phase, batches, loss).needed == pytest.approx(usual.needed, rel=0.02)


def test_samples_that_can_not_even_be_tried_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = convolutional()
    batches = as_batches(data(network, 10, labels=True), batch_size=2)
    monkeypatch.setattr("torchlift.training.memory.available_memory", lambda device: 10_000)
    with pytest.raises(InvalidValueError, match="Patches cuts squares"):
        plan_of(network, Phase(batch_size=2), batches, CrossEntropy())


def test_the_parts_of_a_plan() -> None:
    network = mlp(30, 20, 20, 4)
    size = 4 * sum(parameter.numel() for parameter in network.parameters())
    batches = as_batches(data(network, 100), batch_size=50)
    held_out = as_batches(data(network, 10), batch_size=10)
    adam = plan_of(network, Phase(Conventional(), torch.optim.Adam), batches, SquaredError(), validation=held_out)
    assert adam.parameters == adam.best == size
    assert adam.data == 110 * (30 + 4) * 4
    assert adam.lifted == 0
    assert adam.solver == pytest.approx(3 * size, rel=0.05)  # gradients and two moments
    sweeps = plan_of(network, Phase(batch_size=50), batches, SquaredError())
    assert sweeps.best == 0
    assert sweeps.lifted == 0  # they follow the forward pass
    # gradient, origin, average, the one that was kept, momentum and s
    assert sweeps.solver == pytest.approx(6 * size, rel=0.05)
    exact = plan_of(network, FULL(), as_batches(data(network, 100)), SquaredError())
    assert exact.lifted == 100 * (20 + 20) * 4


def test_a_large_evaluation_counts() -> None:
    network = mlp(2, 300, 300, 1)
    batches, held_out = (as_batches(data(network, n), batch_size=2) for n in (4, 5000))
    without = plan_of(network, Phase(batch_size=2), batches, SquaredError())
    beside = plan_of(network, Phase(batch_size=2), batches, SquaredError(), validation=held_out)
    y = torch.randn(1000, 2)
    with PeakMemory() as memory, torch.no_grad():
        network(y)
    assert beside.needed - beside.best >= max(without.needed, beside.solver + memory.peak)


@pytest.mark.parametrize(
    ("storage", "dtype", "lifted", "mapped"),
    [("memory", None, 90_000, 0), ("memory", torch.bfloat16, 45_000, 0), ("here", torch.bfloat16, 0, 45_000)],
)
def test_kept_variables_of_all_samples_count_once(
    storage: str, dtype: torch.dtype | None, lifted: int, mapped: int
) -> None:
    network = mlp(5, 15, 15, 4)
    batches = as_batches(data(network, 750), batch_size=50)
    plain = plan_of(network, Phase(Bregman(), batch_size=50), batches, SquaredError())
    phase = Phase(Bregman(), batch_size=50, states="warm", state_dtype=dtype, state_storage=storage)
    plan = plan_of(network, phase, batches, SquaredError())
    assert (plan.lifted - plain.lifted, plan.mapped) == (lifted, mapped)
    assert plan.solver == plain.solver


def test_data_of_every_kind() -> None:
    network = mlp(5, 6, 2)
    y, x = data(network, 40)
    sizes = [
        plan_of(network, Phase(batch_size=10), as_batches(kind, batch_size=10), SquaredError()).data // (7 * 4)
        for kind in ((y, x), lambda generator: (y, x), DataLoader(TensorDataset(y, x), batch_size=8))
    ]
    assert sizes == [40, 120, 8]


def test_plans_for_people() -> None:
    plan = MemoryPlan(parameters=1_500_000, data=20_000, solver=7, lifted=999, workspace=1000, mapped=3 * 10**12)
    assert dict(plan.rows)["total"] == plan.total == 1_522_006
    assert str(plan).splitlines() == [
        "parameters                 1.5 MB",
        "data                        20 kB",
        "solver                        7 B",
        "lifted variables            999 B",
        "workspace                    1 kB",
        "total                     1.52 MB",
        "lifted variables on disk     3 TB",
    ]
    assert format_bytes(999_600) == "1 MB"


def test_available_memory_is_some_of_the_machine() -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_memory() <= physical


def test_available_memory_respects_every_limit(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert read_available(tmp_path) == physical  # a system without such files
    write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    8000 kB\n")
    assert read_available(tmp_path) == 8000 * 1024
    write("sys/fs/cgroup/memory.max", "max\n")
    write("sys/fs/cgroup/memory.current", "4000\n")
    assert read_available(tmp_path) == 8000 * 1024
    write("sys/fs/cgroup/memory.max", "7000000\n")
    write("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 1000\n")
    assert read_available(tmp_path) == 7_000_000 - 4000 + 1000
    write("proc/self/cgroup", "4:memory:/jobs/one\n")
    write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "6000")
    write("sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "1000")
    assert read_available(tmp_path) == 5000  # of the group above
    write("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "500")
    write("sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "600")
    assert read_available(tmp_path) == 0


def train(network: tl.networks.Network, samples: int = 60, **settings: Any) -> Any:
    torch.manual_seed(1)
    chosen = {"lifting": Bregman(), "batch_size": 20, "steps": 7, "progress": False} | settings
    return tl.train(network, data(network, samples), **called(chosen))


def refused(network: tl.networks.Network, match: str, **settings: Any) -> None:
    before = [parameter.clone() for parameter in network.parameters()]
    with pytest.raises(InvalidValueError, match=match):
        train(network, **settings)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_training_is_refused_beforehand_with_what_would_fit(tmp_path: Path) -> None:
    network = mlp(5, 30, 30, 4)
    many: dict[str, Any] = {"samples": 2000, "memory_limit": 500_000, "steps": 2}
    with pytest.raises(
        InvalidValueError, match=r"at most the 500 kB allowed, got .* MB for phase 'Bregman, LinearisedBCD'"
    ) as caught:
        train(network, **many, batch_size=1000, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fitting = re.search(r"These would fit: batch_size=(\d+) \(", str(caught.value))
    assert fitting is not None
    size = int(fitting[1])
    refused(network, "got", **many, batch_size=2 * size)
    refused(network, r"These would fit: batch_size=100 \(", **many, batch_size="full")
    assert not train(network, **many, batch_size=size).failed
    refused(network, "Use a smaller network or less data", memory_limit=1000)


def test_kept_variables_that_do_not_fit() -> None:
    network = mlp(5, 60, 60, 4)
    words = r"state_dtype=torch.bfloat16 \(.*\), state_storage='a folder on a disk' \(.*\), states='forward' \("
    refused(network, words, samples=4000, states="warm", memory_limit=1_700_000)
    refused(network, "fit: state_storage=", samples=4000, states="warm", memory_limit=900_000)


def test_too_much_for_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchlift.training.memory.available_memory", lambda device: 1000)
    refused(mlp(5, 4, 2), "available in all")


def test_too_much_for_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("torchlift.training.memory.shutil.disk_usage", lambda place: usage)
    with pytest.raises(DataError, match=r"expected 1.92 kB on the disk, got 100 B free"):
        train(mlp(5, 4, 4, 2), states="warm", state_storage=tmp_path / "new" / "states")


@pytest.mark.parametrize("solver", [None, LinearisedBCD()], ids=["default", "by bounds"])
def test_warm_training_resumes_bit_for_bit(solver: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"solver": solver, "states": "warm", "state_dtype": torch.bfloat16, "batch_size": 10}
    settings |= {"samples": 30, "checkpoint_every": 0}
    whole, broken, cold = mlp(5, 6, 6, 2), mlp(5, 6, 6, 2), mlp(5, 6, 6, 2)
    train(whole, **settings, state_storage=tmp_path / "states")
    train(broken, **settings, folder=tmp_path / "run", callback=lambda row: row["step"] >= 4, evaluate_every=4)
    train(broken, **settings, folder=tmp_path / "run", resume=True, evaluate_every=4)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), broken.parameters(), strict=True))
    train(cold, **settings | {"states": "forward", "state_dtype": None})
    assert not all(torch.equal(a, b) for a, b in zip(whole.parameters(), cold.parameters(), strict=True))


def test_warm_states_need_no_lifting_to_be_named() -> None:
    network = mlp(5, 6, 2)
    assert not train(network, lifting=None, solver=LinearisedBCD(), states="warm").failed
    refused(network, "states='warm': expected a method with lifted variables, got SweepDescent",
            lifting=None, states="warm")  # fmt: skip


def test_refused_settings() -> None:
    network = mlp(5, 6, 2)
    refused(network, r"states='warm': expected a method with lifted variables, got SweepDescent",
            lifting=None, solver=SweepDescent(), states="warm")  # fmt: skip
    refused(network, "states='random': expected a method with lifted variables, got BackPropagation, Adam",
            lifting=Conventional(), solver=torch.optim.Adam, states="random")  # fmt: skip
    refused(network, r"state_dtype: .* got states='forward'. Use states='warm'", state_dtype=torch.bfloat16)
    for name, value in {
        "state_dtype": torch.bfloat16,
        "state_storage": "somewhere",
        "coupling": 1.0,
        "state_regularisers": Ridge(1e-3),
        "parameter_regularisers": {"*": Ridge(1e-3)},
    }.items():
        words = rf"train {name}: expected a method with lifted variables, got SweepDescent.* Give a lifting"
        refused(network, words, lifting=None, **{name: value})
    assert not Path("somewhere").exists()
    refused(network, r"state_storage: .* got the full batch", batch_size="full", states="warm", state_storage="x")
    with pytest.raises(InvalidTypeError, match=r"train state_dtype: expected a dtype such as torch\.bfloat16"):
        Phase(state_dtype="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="train state_storage: expected 'memory' or a folder, got int"):
        Phase(state_storage=3)  # type: ignore[arg-type]
    for limit in (0, -1.0):
        with pytest.raises(InvalidValueError, match="train memory_limit: expected a number > 0"):
            train(network, memory_limit=limit)
    loader = DataLoader(TensorDataset(*data(network, 30)), batch_size=10)
    with pytest.raises(InvalidValueError, match="the same in every epoch, got a loader"):
        tl.train(network, loader, lifting=Bregman(), options=tl.TrainOptions(states="warm"), steps=2, progress=False)
