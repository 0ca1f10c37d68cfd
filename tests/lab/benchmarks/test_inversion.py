"""The inversion bench: its reference, its choices, its models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from torchlift.core.errors import DataError, InvalidValueError
from torchlift.inversion import NestedAdam, invert
from torchlift.lab.benchmarks import autoencoder, inversion
from torchlift.lab.benchmarks.autoencoder import Autoencoder, Recipe
from torchlift.lab.benchmarks.inversion import PRIOR, TINY, Contestant, Sample
from torchlift.networks import lift

HASTY = Recipe("digits", learning_rate=1e-3, batch_size=250, window=2, max_epochs=1)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def model() -> Autoencoder:
    (found,) = autoencoder.trained((0.2,), HASTY)
    return found


@torch.no_grad()
def linear(count: int = 4) -> Sample:
    """Blurred 6 × 6 images through one dense layer, with noise 0.1."""
    torch.manual_seed(0)
    network = lift(nn.Sequential(nn.Flatten(), nn.Linear(36, 40)).double(), (1, 6, 6))
    x = inversion.painted(count, 6, 0).double()
    y = network(x)
    return Sample(network, y + 0.1 * torch.randn_like(y), x, None, 0.1)


def test_the_reference_is_the_librarys_nested_adam() -> None:
    """Two implementations of one iteration: torch's optimiser with autograd, and ours."""
    sample = linear()
    start = 0.2 + 0.6 * torch.rand(sample.x.shape, dtype=torch.float64)  # far from the minimum, so that steps descend
    for weight, anchor in ((0.05, 0.0), (0.0, 0.3), (0.2, 0.1)):
        plain = inversion.adam(sample, weight, 5, start, anchor)
        ours = invert(
            sample.network, sample.y, PRIOR, weight, algorithm=NestedAdam(), start=start, anchor=anchor, max_steps=5
        )
        torch.testing.assert_close(plain, ours.x, rtol=0, atol=1e-12)


def test_the_search_goes_uphill_and_stays_in_reach() -> None:
    sample = linear()

    class Known(Contestant):
        def run(self, sample: Sample, weight: float, anchor: float) -> torch.Tensor:
            asked.append((weight, anchor))
            best = torch.tensor([0.08, 2.5])
            miss = (torch.tensor([weight, max(anchor, 1e-9)]).log2() - best.log2()).abs().sum()
            return sample.x + 0.1 * (1 + (miss if self.warm else (torch.tensor(weight).log2() - best[0].log2()).abs()))

    for warm, wanted in ((False, (0.08, 0.0)), (True, (0.08, 1.6))):
        asked: list[tuple[float, float]] = []
        assert inversion.choose(Known("known", warm=warm), sample, 8) == pytest.approx(wanted)
        assert len(set(asked)) == len(asked)
    assert inversion.choose(Known("known"), sample, 1) == pytest.approx((0.04, 0.0))


def test_painted_images_are_images() -> None:
    images = inversion.painted(20, 16, 3)
    assert images.shape == (20, 1, 16, 16)
    assert float(images.min()) == 0 and 0.5 < float(images.max()) <= 1
    assert not torch.equal(images, inversion.painted(20, 16, 4))
    torch.testing.assert_close(images, inversion.painted(20, 16, 3))


def test_mean_and_standard_error() -> None:
    assert inversion.mean_error(torch.tensor([1.0, 3.0])) == pytest.approx([2.0, 1.0])
    assert inversion.mean_error(torch.tensor([1.5])) == [1.5, 0.0]


def test_held_out_images_are_disjoint() -> None:
    report, choice = inversion.held_out("digits", replace(TINY, images=50, choice=50))
    distances = torch.cdist(report.flatten(1), choice.flatten(1))
    assert report.shape == (50, 1, 28, 28) and float(distances.min()) > 0


def test_a_lifted_perceptron_is_found_where_nested_gradients_vanish() -> None:
    scale = replace(TINY, images=4, choice=2, adam_steps=40, sweeps=60, default_steps=60)
    name = "soft-threshold perceptron"
    rows = {row["name"]: row for row in inversion.other(name, inversion.others(scale)[name], scale, lambda _: None)}
    assert rows["Adam, rate 0.05"]["time ratio"] == 1
    for method in ("sweep", "default", "exact"):
        assert rows[method]["psnr"][0] > rows["Adam, rate 0.05"]["psnr"][0] + 10
        assert rows[method]["objective"] < 0.1 * rows["nested PDHG"]["objective"]


def test_lbfgs_and_the_default_minimise_the_same_objective() -> None:
    sample = linear()
    ours = invert(sample.network, sample.y, PRIOR, 0.05).x
    theirs = inversion.lbfgs(sample, 0.05, 200)
    values = [inversion.objective(sample, x, 0.05, 0.0, None) for x in (ours, theirs)]
    assert values[0] <= values[1] * (1 + 1e-4)


def test_training_is_cached_and_repeatable(model: Autoencoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.record["loss"] <= 0.2
    assert model.record["recipe"]["data"] == "digits"
    x = inversion.held_out("digits", TINY)[0]
    with torch.no_grad():
        image = model.decoder(model.encoder(x))
    assert image.shape == x.shape
    monkeypatch.setattr(autoencoder, "train", None)  # a second call must not train
    again = autoencoder.trained((0.2,), HASTY)[0]
    torch.testing.assert_close(again.encoder(x), model.encoder(x), rtol=0, atol=0)


def test_training_is_the_same_every_time(model: Autoencoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    again = autoencoder.trained((0.2,), HASTY)[0]
    assert again.record["steps"] == model.record["steps"]
    assert again.record["loss"] == pytest.approx(model.record["loss"], rel=1e-4)


def test_a_loss_out_of_reach_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"expected a loss of 1e-09, got 0\.\d+ after 1 epochs"):
        autoencoder.trained((0.2, 1e-9), HASTY)
    assert (HASTY.folder / "0.2" / "training").exists()  # what was reached is kept


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"data": "cifar"}, "'mnist' or 'digits', got 'cifar'"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"batch_size": 0}, "batch_size"),
        ({"window": 0}, "window"),
        ({"max_epochs": 0}, "max_epochs"),
    ],
)
def test_bad_recipes_are_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        replace(HASTY, **settings)  # type: ignore[arg-type]


def test_rules_start_with_the_best_single_weight(model: Autoencoder) -> None:
    few = replace(TINY, sweeps=2, long_sweeps=4)
    rows = inversion.rules(model, inversion.held_out("digits", few)[0], few, lambda _: None)
    assert [row["rule"] for row in rows][:4] == ["best single weight", "sure", "discrepancy", "lcurve"]
    assert len(rows) == 7 and all(len(row["trace"]) > 0 for row in rows[1:])


def test_memory_per_image_does_not_grow(model: Autoencoder) -> None:
    images = inversion.held_out("digits", replace(TINY, images=64))[0]
    rows = inversion.growth(model, images, TINY, lambda _: None)
    assert [row["images"] for row in rows] == [8, 32, 64]
    assert rows[-1]["bytes per image"] <= 1.05 * rows[-2]["bytes per image"]
