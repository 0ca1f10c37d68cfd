"""Deblurring, denoising and inpainting: the trainings they are made of, what counts as recognisable, the claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import DataError
from torchlift.data import as_batches, load_digits
from torchlift.functions.losses import SquaredError
from torchlift.lab.problem import MU, Images, build, load_images
from torchlift.lab.reproduction import Experiment, ExperimentResult, Options, Work, inverse_problems, restoration
from torchlift.lab.reproduction.inverse_problems import (
    KEYS,
    SETTINGS,
    Deblurring,
    Denoising,
    Inpainting,
    Key,
    claims,
)
from torchlift.lab.reproduction.restoration import (
    SPLITS,
    Outcome,
    Reader,
    Size,
    Trainings,
    conventional,
    lifted_bregman,
    recommended,
    silent,
)
from torchlift.lab.trajectory import Trajectory, follow, series
from torchlift.liftings import Bregman, Conventional
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingProblem
from torchlift.prox import Identity, SoftThreshold
from torchlift.report.records import HeatMap, Pictures, Table
from torchlift.training import BackPropagation, Phase, TrainStep
from torchlift.training.lifted_step import LiftedStep
from torchlift.training.step import snapshot

# -- the trainings ----------------------------------------------------------------------------------------------------


def small_images(count: int = 5, size: int = 6) -> Images:
    generator = torch.Generator().manual_seed(1)
    return Images(*(torch.rand(count, size, generator=generator, dtype=torch.float64) for _ in range(4)))


def small_network(size: int = 6) -> MLP:
    return MLP([size] * 4, SoftThreshold(0.05), generator=torch.Generator().manual_seed(2)).double()


def test_lifted_bregman_is_the_published_iteration() -> None:
    """θ ← θ − α m̂/(√q̂ + ε), then z ← S_{αμλ/B}(z − α m̂/(√q̂ + ε)) at the new θ; first steps have m̂ = g, q̂ = g²."""
    images, network, rate = small_images(), small_network(), 8e-4
    twin = small_network()
    method = lifted_bregman(network, images, rate)
    assert isinstance(method, LiftedStep) and isinstance(method.problem, TrainingProblem)
    objective = Objective(twin, Bregman(MU))
    z = objective.initialise(images.y, "input")
    assert all(torch.equal(layer, images.y) for layer in z)
    gradients = objective.gradients(images.y, images.x, z).parameters
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.sub_(rate * gradients[name] / (gradients[name].abs() + 1e-8))
    moved = []
    for layer, g in zip(z, objective.gradients(images.y, images.x, z).z, strict=True):
        step = layer - rate * g / (g.abs() + 1e-8)
        moved.append(torch.nn.functional.softshrink(step, rate * MU * 0.05 / len(images.y)))
    method.step()
    method.publish()
    for (name, ours), theirs in zip(network.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)
    for ours, theirs in zip(method.problem.states(method.state.point), moved, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_only_the_last_bias_of_a_silent_network_has_a_gradient() -> None:
    images = load_images("denoising", 6, 2, 0)
    network = build(0.2, 0)
    assert silent(network, images.y)
    (network(images.y) - images.x).square().sum().backward()
    counts = [int(parameter.grad.count_nonzero()) for parameter in network.parameters() if parameter.grad is not None]
    assert sum(count > 0 for count in counts) == 1
    assert sum(counts) == 784
    assert not silent(build(0.02, 0), images.y)


def test_mean_image_makes_the_iterates_of_all_images_in_a_silent_network() -> None:
    images = load_images("denoising", 6, 2, 0)
    short, whole = build(0.2, 0), build(0.2, 0)
    method = conventional(short, images, 5e-4)
    phase = Phase(Conventional(), BackPropagation(partial(torch.optim.Adam, lr=5e-4)), batch_size="full")
    batches = as_batches((images.y, images.x), batch_size=None)
    full = phase.begin(whole, SquaredError(), batches)
    for _ in range(3):
        method.step()
        full.step()
    for (name, ours), theirs in zip(short.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)
    before = snapshot(build(0.2, 0))
    changed = [name for name, parameter in whole.named_parameters() if not torch.equal(parameter, before[name])]
    assert len(changed) == 1


def test_living_network_is_trained_on_all_images() -> None:
    images = load_images("denoising", 6, 2, 0)
    network = build(0.02, 0)
    expected = float(SquaredError().value(network(images.y).detach(), images.x).mean())
    assert conventional(network, images, 5e-4).step() == pytest.approx(expected, rel=1e-5)


# -- being followed ---------------------------------------------------------------------------------------------------


SWEPT = partial(recommended, steps=7, seed=0, batch_size=2, back_propagation=False, rate=1e-2)


@pytest.mark.parametrize(
    ("way", "values"), [(partial(conventional, rate=1e-2), 5), (partial(lifted_bregman, rate=1e-2), 5), (SWEPT, 4)]
)
def test_interrupted_training_goes_on_as_if_nothing_had_happened(
    way: Callable[..., TrainStep], values: int, tmp_path: Path
) -> None:
    """The average of sweeps changes in every fifth step, so that steps 6 and 7 are judged alike."""
    images = small_images()

    def start(fail_at: int | None, folder: Path) -> Trajectory:
        network = small_network()
        method = way(network, images)

        def measure() -> dict[str, float]:
            if method.count == fail_at:
                raise RuntimeError("the power is off")
            with torch.no_grad():
                return {"error": float((network(images.y) - images.x).square().mean())}

        return follow(method, measure, every=2, steps=7, folder=folder, between=0.0)

    whole = start(None, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="power"):
        start(6, tmp_path / "cut")
    resumed = start(None, tmp_path / "cut")
    assert whole.steps == resumed.steps == [0, 2, 4, 6, 7]
    assert whole.column("error") == resumed.column("error")
    assert len(set(whole.column("error"))) == values


def test_failed_training_says_so(tmp_path: Path) -> None:
    images = small_images()
    found = follow(conventional(small_network(), images, 1e200), dict, every=1, steps=9, folder=tmp_path)
    assert "loss" in found.failure and found.steps[-1] < 9


def test_numbers_that_are_not_finite_are_gaps() -> None:
    assert series("a", [0, 1, 2], [1.0, math.nan, math.inf]).y == [1.0, None, None]


def small_reader() -> Reader:
    return Reader(small_network(), dict.fromkeys(SPLITS, torch.zeros(5, dtype=torch.int64)), dict.fromkeys(SPLITS, 1.0))


# -- what is recognisable ---------------------------------------------------------------------------------------------


def exact_reader() -> Reader:
    """Images that are ten numbers, the largest of which is the label."""
    network = MLP([10, 10], Identity())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.eye(10) if parameter.numel() == 100 else torch.zeros(10))
    labels = torch.tensor([0, 0, 0, 1, 2, 3, 4, 5])
    return Reader(network, dict.fromkeys(SPLITS, labels), dict.fromkeys(SPLITS, 1.0))


def test_bar_lies_half_way_between_chance_and_clean_images() -> None:
    read = exact_reader()
    clean = torch.eye(10)[read.labels["validation"]]
    assert read.chance("validation") == pytest.approx(3 / 8)
    assert read.bar("validation") == pytest.approx((3 / 8 + 1) / 2)
    assert read.accuracy(clean, "validation") == 1.0
    same = torch.eye(10)[[0] * 8]  # an image that does not depend on the input
    assert read.accuracy(same, "validation") == pytest.approx(3 / 8)


def test_bundled_images_are_degraded_differently_in_training_and_validation() -> None:
    images = load_images("denoising", 4, 3, 5)
    assert torch.equal(images.validation_x, load_digits("validation").images[:3].flatten(1))
    assert not torch.equal((images.y - images.x)[:3], images.validation_y - images.validation_x)
    assert 15.5 < float(images.degraded.mean()) < 17.5  # 20 log₁₀(1/0.15) = 16.5
    half = load_images("denoising", 4, 3, 5, 14)
    pixels = images.validation_x.reshape(3, 14, 2, 14, 2).mean((2, 4))
    torch.testing.assert_close(half.validation_x.reshape(3, 14, 14), pixels)
    assert half.side == 14 and 15.5 < float(half.degraded.mean()) < 17.5  # the noise is as strong


# -- claims ---------------------------------------------------------------------------------------------------------


def outcome(
    decibels: float,
    read: float = 0.9,
    *,
    silent: bool = False,
    training: float = 20.0,
    best: float | None = None,
    processor: float = 9.0,
) -> Outcome:
    """One with a validation PSNR, an accuracy of the classifier, a training PSNR, and a PSNR half way."""

    def row(step: int, value: float) -> dict[str, float]:
        names = ("validation psnr", "selection psnr", "held-out psnr")
        return {
            "step": step, "seconds": 0.0, "processor": processor, "training psnr": training, "held-out read": read,
            **dict.fromkeys(names, value),
        }  # fmt: skip

    noise = torch.linspace(-0.1, 0.1, 50)
    accuracy: dict[str, float] = dict.fromkeys(SPLITS, read)
    rows = [row(50, decibels - 1 if best is None else best), row(100, decibels)]
    return Outcome(Trajectory(rows), decibels + noise, accuracy, dict.fromkeys(SPLITS, read >= 0.5), silent)


def good() -> dict[Key, Outcome]:
    """What the paper and we expect."""
    found = {key: outcome(24.0 if key[1] == "lifted" else 23.0) for key in KEYS}
    found["published", "conventional", 0.2] = outcome(11.0, 0.11, silent=True)
    found["published", "conventional", 0.02] = outcome(18.0, training=25.0, best=24.5)
    found["published", "lifted", 0.2] = outcome(18.0, processor=100.0)
    return found


def said(found: dict[Key, Outcome], whole: bool = False, fits: bool = True, seeds: int = 1) -> list[str]:
    """After 100 steps, which are all or few of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inverse_problems, "PUBLISHED_STEPS", 100 if whole else 50_000)
        runs = {key: [run] * seeds for key, run in found.items()}
        return [each.outcome for each in claims(runs, [torch.full((50,), 16.0)] * seeds, 0.5, fits)]


def test_claims_can_hold() -> None:
    assert said(good(), whole=True) == ["held"] * 8
    assert said(good(), seeds=3) == said(good())
    assert said(good()) == ["held"] * 3 + ["not decidable"] + ["held"] * 4  # overfitting takes all steps


def test_what_seeds_disagree_about_is_open() -> None:
    runs = {key: [run] * 3 for key, run in good().items()}
    runs["published", "lifted", 0.2] = [outcome(18.0), outcome(18.0), outcome(11.0, 0.2)]
    runs["recommended", "lifted", 0.2] = [outcome(23.1), outcome(24.0), outcome(22.0)]
    found = [each.outcome for each in claims(runs, [torch.full((50,), 16.0)] * 3, 0.5)]
    assert [found[number] for number in (0, 1, 6)] == [OPEN] * 3


NO, OPEN = "did not hold", "not decidable"


def test_best_step_is_chosen_on_other_images_than_it_is_measured_on() -> None:
    rows = [{"step": 1, "selection psnr": 3.0, "held-out psnr": 1.0}, {"step": 2, "selection psnr": 2.0,
            "held-out psnr": 9.0}]  # fmt: skip
    run = Outcome(Trajectory(rows), torch.zeros(2), {}, {}, False)
    assert run.best["step"] == 1 and run.best["held-out psnr"] == 1.0


@pytest.mark.parametrize(
    ("key", "changed", "index", "small", "paper"),
    [
        (("published", "lifted", 0.2), outcome(11.0, 0.2), 0, OPEN, NO),
        (("published", "lifted", 0.2), outcome(11.0, 0.2), 1, OPEN, NO),
        (("published", "conventional", 0.2), outcome(20.0, 0.8), 2, NO, NO),
        (("published", "conventional", 0.2), outcome(12.0, 0.2), 2, OPEN, "held"),  # alive, but not there yet
        (("published", "conventional", 0.02), outcome(25.0, training=25.0), 3, OPEN, NO),
        (("published", "conventional", 0.02), outcome(18.0, training=15.0), 3, OPEN, NO),
        (("published", "conventional", 0.02), outcome(18.0, training=25.0, best=21.0), 4, NO, NO),
        (("recommended", "lifted", 0.2), outcome(24.0, 0.2), 5, NO, NO),
        (("recommended", "lifted", 0.2), outcome(15.0), 5, NO, NO),  # worse than the input
        (("recommended", "lifted", 0.2), outcome(22.0), 6, NO, NO),
        (("recommended", "lifted", 0.2), outcome(23.0), 6, OPEN, OPEN),  # the same
        (("recommended", "lifted", 0.2), outcome(17.0), 7, NO, NO),
        (("recommended", "lifted", 0.2), outcome(24.0, processor=101.0), 7, NO, NO),  # better, but later
    ],
)
def test_claims_can_fail(key: Key, changed: Outcome, index: int, small: str, paper: str) -> None:
    found = {**good(), key: changed}
    assert said(found)[index] == small
    assert said(found, whole=True)[index] == paper


def test_inpainting_makes_no_claim_about_the_fit() -> None:
    found = {**good(), ("published", "conventional", 0.02): outcome(18.0, training=15.0)}
    assert [said(found, whole=True, fits=fits)[3] for fits in (True, False)] == [NO, "held"]
    assert Denoising().fits and Deblurring().fits and not Inpainting().fits


# -- the experiments --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[Denoising(), Inpainting()], ids=lambda experiment: experiment.name)
def result(request: pytest.FixtureRequest, tiny: Callable[[Experiment], Work]) -> ExperimentResult:
    return request.param.run(tiny(request.param))


def test_tiny_run_shows_all_settings_side_by_side(result: ExperimentResult) -> None:
    figures = {figure.name: figure for figure in result.figures}
    table = figures["results"]
    assert isinstance(table, Table)
    assert [tuple(row[:3]) for row in table.rows[2:]] == list(KEYS)
    for split in SPLITS:
        pictures = figures[f"{split}-images"]
        assert isinstance(pictures, Pictures) and pictures.truth == "ground truth"
        assert len(pictures.rows) == 2 + len(KEYS)
        assert all(images.shape == (4, 14, 14) for images in pictures.rows.values())
    assert {f"{measure}-{setting}" for measure in ("psnr", "error") for setting in SETTINGS} <= set(figures)
    assert {claim.outcome for claim in result.claims} == {"not decidable"}


def test_tiny_run_maps_the_gap_of_every_layer(result: ExperimentResult) -> None:
    maps = [figure for figure in result.figures if isinstance(figure, HeatMap)]
    assert [each.name for each in maps] == ["gaps-0-2", "gaps-0-02"]
    for each in maps:
        assert len(each.y) == 7 and each.x[0] == 0
        values: Tensor = each.values
        assert bool((values > 0).all())


def small_trainings(folder: Path, steps: int, options: Options | None = None) -> Trainings:
    work = Work("tiny", 0, folder) if options is None else Work("tiny", 0, folder, options=options)
    return Trainings(work, Size(6, 5, 5, steps, 1), small_reader(), {0: small_images()})


def test_checkpoints_are_removed_once_a_part_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoration, "build", lambda threshold, seed, side: small_network())
    way = partial(lifted_bregman, rate=1e-3)
    trainings = small_trainings(tmp_path, 2)
    first = trainings.run("one", 0.05, way)
    assert not trainings.work.training_folder("one").exists()
    again = small_trainings(tmp_path, 2).run("one", 0.05, way)  # read, not repeated
    assert first.trajectory == again.trajectory


def test_asked_for_steps_go_on_from_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoration, "build", lambda threshold, seed, side: small_network())

    def train(steps: int, folder: Path) -> Mapping[str, Tensor]:
        trainings = small_trainings(folder, steps, Options(steps=steps))
        return trainings.run("one", 0.05, partial(lifted_bregman, rate=1e-3)).outputs

    for steps in (2, 5):
        train(steps, tmp_path / "longer")
    assert torch.equal(train(5, tmp_path / "whole")["validation"], train(5, tmp_path / "longer")["validation"])
    with pytest.raises(DataError, match="at most 3 steps, got 5"):
        train(3, tmp_path / "longer")


def test_published_learning_rates() -> None:
    assert {experiment.name: experiment.rate for experiment in (Deblurring(), Denoising(), Inpainting())} == {
        "deblurring": 8e-4,
        "denoising": 8e-4,
        "inpainting": 1e-4,
    }
