"""Any `nn.Module` trains in place: modes, running statistics, dropout, hooks, and what a module is refused for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.core.solution import Result
from torchlift.liftings import Conventional
from torchlift.training import SweepDescent, Training, TrainOptions, evaluate


class Crash(Exception):  # noqa: N818 (no error, but the end of a process)
    """Ends a run from inside a callback, as a crash would."""


def pictures(samples: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vertical and horizontal stripes, noisy, by their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (samples,), generator=generator)
    stripes = (torch.arange(8) // 2 % 2).float().expand(8, 8)
    images = torch.stack([stripes if label else stripes.T for label in labels])[:, None]
    return images + 0.4 * torch.randn(images.shape, generator=generator), labels


class Classifier(nn.Module):
    """Batch norm, dropout, a shortcut and a part that is always frozen in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(6, 2)
        self.seen: list[bool] = []

    def forward(self, y: Tensor) -> Tensor:
        self.seen.append(self.training)
        u = torch.relu(self.norm(self.first(y)))
        u = u + nn.functional.relu(self.second(u))
        return self.out(self.dropout(u.mean((2, 3))))


def classifier() -> Classifier:
    torch.manual_seed(3)
    return Classifier()


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def train(module: nn.Module, **settings: Any) -> Training:
    return tl.train(module, pictures(), **{"batch_size": 15, "epochs": 12, "progress": False, **settings})


# -- training, and what is left behind --------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "sweeps": {},
    "sweeps, Adam": {"solver": partial(torch.optim.Adam, lr=1e-2)},
    "back-propagation": {"lifting": Conventional()},
    "back-propagation, Adam": {"lifting": Conventional(), "solver": partial(torch.optim.Adam, lr=1e-2)},
    "sweeps, centred SGD": {"solver": SweepDescent(partial(torch.optim.SGD, lr=0.1, momentum=0.9), centring=True)},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_module_learns_in_place(name: str) -> None:
    module, held_out = classifier(), pictures(40, seed=1)
    before = tensors(module)
    result = train(module, validation=held_out, epochs=25, **METHODS[name])
    assert result.network is module
    assert result.best["metric"] == "accuracy"
    assert result.best["value"] > 90
    found = evaluate(module, [(*held_out, None)], tl.losses.CrossEntropy(), [tl.training.METRICS["accuracy"]])
    assert found["accuracy"] == result.best["value"]
    assert not any(torch.equal(value, before[key]) for key, value in tensors(module).items())


@pytest.mark.parametrize("name", METHODS)
def test_evaluations_are_in_evaluation_mode(name: str) -> None:
    """Steps are in training mode, evaluations in evaluation mode, and each part has its own mode again afterwards."""
    module = classifier()
    module.dropout.eval()
    module.eval()
    module.second.train()
    modes = {path: part.training for path, part in module.named_modules()}
    result = train(module, validation=pictures(20), epochs=3, **METHODS[name])
    assert result.steps == 12
    assert {path: part.training for path, part in module.named_modules()} == modes
    assert sum(module.seen) == 12  # one pass per step, and no other in training mode
    assert len(module.seen) > 12 + 3


@pytest.mark.parametrize("name", METHODS)
def test_no_hooks_are_left_behind(name: str) -> None:
    module, heard = classifier(), []
    module.first.register_forward_hook(lambda *_: heard.append(1))
    train(module, epochs=2, **METHODS[name])
    assert heard
    for part in module.modules():
        hooks = (part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        assert not any(hooks)
        assert len(part._forward_hooks) == (part is module.first)
    assert not any(parameter._backward_hooks for parameter in module.parameters())


def test_modes_and_hooks_are_given_back_after_a_failure() -> None:
    module = classifier().eval()

    def fail(row: Any) -> None:
        raise Crash

    with pytest.raises(Crash):
        train(module, callback=fail)
    assert not any(part.training for part in module.modules())
    assert not any(part._forward_pre_hooks for part in module.modules())
    result = train(module, lifting=Conventional(), solver=partial(torch.optim.SGD, lr=1e38))
    assert result.result is Result.NOT_FINITE
    assert not any(part.training for part in module.modules())
    assert all(bool(value.isfinite().all()) for value in tensors(module).values())


def test_gradients_of_frozen_parts_are_left_alone() -> None:
    module = classifier()
    module.first.requires_grad_(False)
    before = tensors(module)
    train(module, epochs=2)
    after = tensors(module)
    assert {name for name in before if torch.equal(before[name], after[name])} == {"first.weight", "first.bias"}


def test_the_random_state_of_others_is_left_alone() -> None:
    """Also where dropout draws from it."""
    module = classifier()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(module, epochs=2)
    assert torch.equal(torch.rand(3), expected)


def test_the_seed_decides_on_dropout() -> None:
    found = []
    for seed in (0, 0, 1):
        module = classifier()
        torch.manual_seed(len(found))
        tl.train(module, pictures(), batch_size="full", steps=3, seed=seed, progress=False)
        found.append(tensors(module))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_a_chain_and_its_module_are_trained_alike() -> None:
    """`lift` changes what can be done with a network, not what training makes of it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)).double()
    chain = tl.lift(copy.deepcopy(module), (5,))
    y = torch.randn(80, 5, dtype=torch.double)
    data = (y, torch.stack([y.sum(1), y[:, 0] * y[:, 1]], 1))
    for each in (module, chain):
        tl.train(each, data, batch_size=20, steps=40, progress=False)
    torch.testing.assert_close(module(y), chain(y), rtol=1e-9, atol=1e-9)


# -- resumption -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "with_validation"), [*((name, True) for name in METHODS), ("sweeps", False)])
def test_a_resumed_run_is_the_same(name: str, with_validation: bool, tmp_path: Path) -> None:
    """Bit for bit: parameters, running statistics, and what dropout drew."""
    settings = {**METHODS[name], "validation": pictures(20, seed=1) if with_validation else None}
    settings["options"] = TrainOptions(checkpoint_every=0.0, evaluate_every=3)
    whole = classifier()
    expected = train(whole, **settings)
    for step in (4, 20, 10**6):
        module = classifier()

        def stop(row: Any, step: int = step) -> None:
            if row["step"] >= step:
                raise Crash

        try:
            result = train(module, **settings, folder=tmp_path, resume=True, callback=stop)
        except Crash:
            continue
        assert same(tensors(module), tensors(whole))
        losses = (each.history["loss"] for each in (result, expected))
        assert next(losses) == next(losses)
    assert result.steps == expected.steps == 48


def test_the_best_statistics_belong_to_the_best_parameters() -> None:
    """The network is given back as it was judged, buffers included."""
    module, held_out = classifier(), pictures(40, seed=1)
    result = train(module, validation=held_out, metrics="loss", options=TrainOptions(evaluate_every=2))
    found = evaluate(module, [(*held_out, None)], tl.losses.CrossEntropy())["loss"]
    assert found == pytest.approx(result.best["value"], rel=1e-6)


# -- other data -------------------------------------------------------------------------------------------------------


def sums(samples: int) -> tuple[Tensor, Tensor]:
    y = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return y, y.sum(1, keepdim=True)


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


class Stream(IterableDataset[Any]):
    """So many samples, or no end."""

    def __init__(self, samples: int | None) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator, drawn = torch.Generator().manual_seed(0), 0
        while self.samples is None or drawn < self.samples:
            y = torch.randn(4, generator=generator)
            yield y, y.sum(0, keepdim=True)
            drawn += 1


class Sized(Stream):
    def __len__(self) -> int:
        assert self.samples is not None
        return self.samples


@pytest.mark.parametrize("make", [small, lambda: tl.networks.MLP([4, 16, 1])], ids=["module", "network"])
def test_arrays_of_numpy(make: Callable[[], nn.Module]) -> None:
    y, x = sums(100)
    networks = make(), make()
    networks[1].load_state_dict(networks[0].state_dict())
    arrays = (y.double().numpy(), x.double().numpy())  # what numpy makes by default
    result = tl.train(networks[0], arrays, validation=arrays, epochs=20, progress=False)
    tl.train(networks[1], (y, x), validation=(y, x), epochs=20, progress=False)
    assert same(tensors(networks[0]), tensors(networks[1]))
    losses = result.history["loss"]
    assert losses[-1] < 0.1 * losses[0]
    labels = np.arange(100) % 2
    assert tl.train(nn.Linear(4, 2), (arrays[0], labels), epochs=1, progress=False).steps == 10


@pytest.mark.parametrize("make", [small, lambda: tl.networks.MLP([4, 16, 1])], ids=["module", "network"])
@pytest.mark.parametrize("data", [Stream(50), Sized(50), Stream(None), DataLoader(Stream(50), batch_size=10)])
def test_streams(data: Any, make: Callable[[], nn.Module]) -> None:
    size = None if isinstance(data, DataLoader) else 10
    result = tl.train(make(), data, batch_size=size, steps=150, options=TrainOptions(evaluate_every=50), progress=False)
    assert result.result is Result.MAX_STEPS
    assert [row["step"] for row in result.history] == [50, 100, 150]
    losses = result.history["loss"]
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("data", [Stream(50), Sized(50), Stream(None)])
def test_streams_resume(data: Any, tmp_path: Path) -> None:
    def stop(row: Any) -> None:
        raise Crash

    settings = {"batch_size": 10, "steps": 24, "progress": False}
    options = TrainOptions(evaluate_every=8, checkpoint_every=0.0)
    whole, broken = small(), small()
    tl.train(whole, data, **settings, options=options)
    with pytest.raises(Crash):
        tl.train(broken, data, **settings, options=options, folder=tmp_path, callback=stop)
    tl.train(broken, data, **settings, options=options, folder=tmp_path, resume=True)
    assert same(tensors(whole), tensors(broken))


def test_a_stream_for_validation() -> None:
    options = TrainOptions(memory_limit=1e9)
    result = tl.train(small(), Stream(50), validation=Stream(30), batch_size=10, steps=20, options=options)
    assert result.best["step"] > 0
    with pytest.raises(TorchliftError, match="memory: expected at most the 20 kB allowed"):
        tl.train(small(), Stream(50), validation=Stream(30), batch_size=10, options=TrainOptions(memory_limit=2e4))


def test_a_stream_has_epochs_if_it_has_a_length() -> None:
    assert tl.train(small(), Sized(50), batch_size=10, epochs=2, progress=False).steps == 10
    with pytest.raises(
        TorchliftError, match=r"train epochs: expected data of which an epoch has an end.*steps or time"
    ):
        tl.train(small(), Stream(50), batch_size=10, epochs=2, progress=False)
    with pytest.raises(TorchliftError, match=r"data: expected a data set of known length"):
        tl.train(small(), Stream(50), batch_size="full", steps=2, progress=False)


def test_indices_are_inputs() -> None:
    """Such as those of an embedding."""
    tokens = torch.randint(0, 7, (60, 3), generator=torch.Generator().manual_seed(0))
    labels = (tokens == 2).any(1).long()
    module = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 2))
    result = tl.train(module, (tokens, labels), batch_size=20, steps=150, validation=(tokens, labels), progress=False)
    assert result.best["value"] > 95


@pytest.mark.parametrize("budget", [{"steps": 60}, {"time_limit": 1.0}])
def test_indices_are_inputs_of_short_runs_too(budget: dict[str, Any]) -> None:
    """Starts are compared where small embeddings leave the layer after them dead, and steps are timed."""
    tokens = torch.randint(0, 7, (60, 3), generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 2))
    nn.init.normal_(module[0].weight, std=0.02)
    result = tl.train(module, (tokens, (tokens == 2).any(1).long()), batch_size=20, progress=False, **budget)
    assert "lsuv" in result.message
    with torch.no_grad():
        assert nn.functional.cross_entropy(module(tokens), (tokens == 2).any(1).long()) < 0.6


class Shifted(nn.Module):
    """Changes its inputs in place, as normalisations of one's own may."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, y: Tensor) -> Tensor:
        y -= 0.5
        return self.layers(y)


@pytest.mark.parametrize("settings", [{}, {"batch_size": "full"}, {"loader": True}, {"held_out": True}])
def test_data_are_not_changed_in_place(settings: dict[str, Any]) -> None:
    y, x = sums(60)
    before = y.clone()
    data = DataLoader(TensorDataset(y, x), 20) if settings.pop("loader", False) else (y, x)
    held_out = (y, x) if settings.pop("held_out", False) else None
    result = tl.train(Shifted(), data, validation=held_out, steps=200, progress=False, **settings)
    assert torch.equal(y, before)
    assert "first weights" not in result.message and result.history["loss"][-1] < 0.1 * result.history["loss"][0]
    y -= 7  # what the module is given are copies, the data are still the user's own
    assert isinstance(data, DataLoader) or torch.equal(data[0], y)


@pytest.mark.parametrize("loaded", [False, True])
def test_features_of_another_network_may_carry_its_graph(loaded: bool) -> None:
    y, x = sums(60)
    features = nn.Linear(4, 6)(y)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return features, x

    module = Standard(nn.Linear(6, 8), nn.Linear(8, 1))
    result = tl.train(module, draw if loaded else (features, x), steps=20, progress=False)
    assert result.steps == 20


class Standard(nn.Module):
    """No sequence: torch differentiates it."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last = first, last

    def forward(self, y: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(y)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_sequences_in_a_transformer() -> None:
    """Which torch evaluates as nested tensors, without a shape, in evaluation mode."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 16, padding_idx=0)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder, self.classify = nn.TransformerEncoder(layer, 2), nn.Linear(16, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.classify(self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0).mean(1))

    tokens = torch.randint(1, 20, (60, 7), generator=torch.Generator().manual_seed(0))
    tokens[torch.arange(7) >= torch.randint(2, 7, (60, 1), generator=torch.Generator().manual_seed(1))] = 0
    assert tl.train(Reader(), (tokens, tokens[:, 0] % 2), steps=3, progress=False).steps == 3


def test_batch_norms_get_batches_that_have_statistics() -> None:
    """Two of 21 samples would be mapped to −1 and 1 whatever they are."""
    y, x = sums(21)
    normalised = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    assert tl.train(normalised, (y, x), epochs=3, progress=False).steps == 6
    assert tl.train(small(), (y, x), epochs=3, progress=False).steps == 30


# -- refusals ---------------------------------------------------------------------------------------------------------


class Pair(nn.Linear):
    def forward(self, y: Tensor) -> Any:  # type: ignore[override]
        return super().forward(y), y


class Mean(nn.Linear):
    def forward(self, y: Tensor) -> Tensor:
        return super().forward(y).mean()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 1)),
         r"train data: network: expected data that Sequential can be applied to, got inputs of shape \(8, 4\) and "
         r"dtype torch.float32: mat1 and mat2 shapes cannot be multiplied.* Does it take the shape"),
        (Pair(4, 1), r"train data: network: expected a module that returns one tensor, got a tuple. Wrap the module"),
        (Mean(4, 1), r"train data: network: expected one output per sample, shape \(8, …\), got \(\)"),
        (nn.Linear(4, 2), r"train data: target: expected shape \(100, 2\)"),
    ],
    ids=["inputs", "pair", "mean", "targets"],
)  # fmt: skip
def test_a_module_that_does_not_fit_the_data(module: nn.Module, words: str, tmp_path: Path) -> None:
    before = tensors(module)
    with pytest.raises(TorchliftError, match=words) as caught:
        tl.train(module, sums(100), folder=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert same(before, tensors(module))
    assert not (tmp_path / "run").exists()
    assert module.training


def test_a_module_is_tried_without_changing_it() -> None:
    """Neither running statistics nor random numbers, whatever is refused afterwards."""
    module = classifier()
    before, random = tensors(module), torch.get_rng_state()
    with pytest.raises(TorchliftError, match="train patience"):
        train(module, options=TrainOptions(patience=3))
    assert same(before, tensors(module))
    assert torch.equal(torch.get_rng_state(), random)
