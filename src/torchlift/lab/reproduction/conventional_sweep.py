"""Where conventional training fails: thresholds × learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product

from torchlift.lab.problem import LAYERS, SIDE, Images
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Work
from torchlift.lab.reproduction.restoration import (
    PUBLISHED_STEPS,
    SHOWN,
    SPLITS,
    Outcome,
    Reader,
    Size,
    Trainings,
    conventional,
    pictures,
    remaining,
)
from torchlift.lab.trajectory import both_splits
from torchlift.report.records import Cell, Claim, Curves, Figure, Pictures, Table

#: The paper does not say on which task it swept; denoising is the one that both settings share.
TASK = "denoising"
THRESHOLDS = (0.2, 0.1, 0.05, 0.04, 0.02)
RATES = (1e-3, 5e-4, 4e-4)
BEST_RATE, WORKING = 5e-4, 0.02


TINY = Size(SIDE, 3, 3, 1, 1)
# On two threads a step takes about 0.25 ms per image where the network is alive, 30 ms where it is silent: at
# threshold 0.02 three runs of 1,000 images × 500 steps × 0.25 ms, at the others twelve of 500 × 30 ms; 375 s + 180 s.
SMALL = Size(SIDE, 1000, 500, 500, 25)
PAPER = Size(SIDE, 5000, 500, PUBLISHED_STEPS, 100)

# The order of learning rates needs all steps, but not all pixels: at half the resolution they take half an hour. (The
# thresholds need the full width: torch's biases are larger in narrow layers, and 0.05 silences none of 196 units.)
HALF = Size(14, 1250, 500, 2000, 100)

Key = tuple[float, float]
"""Threshold, learning rate."""


class ConventionalSweep(Experiment):
    """Back-propagation on all images with Adam, from torch's default start."""

    on_devices = True
    name = "conventional-sweep"
    minutes = 12.0
    title = "Where conventional training fails"
    about = "thresholds 0.2 to 0.02 × learning rates of Adam, 7 × 784 soft-threshold network (section on training)"

    def run(self, work: Work) -> ExperimentResult:
        size: Size = work.choose(TINY, SMALL, replace(PAPER, steps=work.steps or PAPER.steps))
        keys, halved = list(product(THRESHOLDS, RATES)), work.scale == "small"
        work.expect(1 + len(keys) + (1 + len(RATES) if halved else 0))
        trainings = Trainings.of(work, TASK, size)
        outcomes = {key: _train(trainings, key) for key in keys}
        order = _at_half_resolution(work) if halved else {rate: outcomes[WORKING, rate] for rate in RATES}
        return ExperimentResult(
            _summary(outcomes),
            work.decided(claims(outcomes, order, work.scale)),
            figures(outcomes, order, trainings.first, trainings.read),
            {
                "task": TASK, "network": f"{LAYERS} hidden layers of 784 units, torch's default start",
                "thresholds": list(THRESHOLDS), "learning rates": list(RATES), "optimiser": "Adam, all images per step",
                "images": size.training, "validation images": size.validation, "steps": size.steps,
                "classifier": trainings.read.record(),
            },
        )  # fmt: skip


def _train(trainings: Trainings, key: Key, prefix: str = "") -> Outcome:
    threshold, rate = key
    name = f"{prefix}threshold {threshold:g}, learning rate {rate:g}"
    return trainings.run(name, threshold, partial(conventional, rate=rate))


def _at_half_resolution(work: Work) -> dict[float, Outcome]:
    """Learning rate ↦ outcome, at the threshold that works."""
    trainings = Trainings.of(work, TASK, replace(HALF, steps=work.steps or HALF.steps))
    return {rate: _train(trainings, (WORKING, rate), "half resolution, ") for rate in RATES}


# -- claims -----------------------------------------------------------------------------------------------------------


def claims(outcomes: Mapping[Key, Outcome], order: Mapping[float, Outcome], scale: str) -> list[Claim]:
    """Three claims of the paper and our reason for them.

    What is recognisable after fewer steps counts; what is not could still become so, unless the
    network is silent. The order of the final losses needs all steps.

    Arguments:
        order: at the threshold that works, by learning rate; at scale "small" with half the resolution.
    """
    whole = scale == "paper"
    works = {key: outcome for key, outcome in outcomes.items() if key[0] == WORKING}
    fails = {key: outcome for key, outcome in outcomes.items() if key[0] > WORKING}
    readable = [key for key, outcome in fails.items() if outcome.readable]
    lost = all(outcome.silent for outcome in fails.values()) or whole
    losses = {rate: outcome.trajectory.last["training error"] for rate, outcome in order.items()}
    runs = list(order.values())
    steps = runs[0].trajectory.steps[-1]
    ended = steps >= PUBLISHED_STEPS
    reads = ", ".join(f"{key[1]:g}: {outcome.accuracy['validation']:.0%}" for key, outcome in works.items())
    highest = max(outcome.accuracy["validation"] for outcome in fails.values())
    failing = sum(outcome.silent for outcome in fails.values())
    best = min(losses, key=losses.__getitem__)
    return [
        Claim.of(
            f"With threshold {WORKING:g} recognisable digits are recovered at every learning rate.",
            f"a classifier of clean digits reads, by learning rate, {reads} of the validation outputs after "
            f"{next(iter(works.values())).trajectory.steps[-1]} steps",
            True if all(outcome.readable for outcome in works.values()) else False if whole else None,
        ),
        Claim.of(
            f"With thresholds above {WORKING:g} they are not, at any learning rate.",
            f"{len(readable)} of {len(fails)} runs recognisable, at most {highest:.0%} read",
            False if readable else True if lost else None,
        ),
        Claim.of(
            f"With threshold {WORKING:g} the learning rate {BEST_RATE:g} ends at the lowest training loss.",
            f"mean squared error after {steps:,} steps"
            + (", half the resolution: " if scale == "small" else ": ")
            + ", ".join(f"{rate:g}: {loss:.3g}" for rate, loss in losses.items())
            + ("" if ended else f"; {remaining(runs)}"),
            best == BEST_RATE if ended else None,
        ),
        Claim.of(
            "The failures are no matter of learning rates: the last hidden layer is zero for every training image, and "
            "only the output's bias has a gradient.",
            f"{failing} of {len(fails)} runs above {WORKING:g}, {sum(outcome.silent for outcome in works.values())} of "
            f"{len(works)} at {WORKING:g}",
            failing == len(fails) and not any(outcome.silent for outcome in works.values()),
            "torchlift",
        ),
    ]


def _summary(outcomes: Mapping[Key, Outcome]) -> str:
    readable = sorted({key[0] for key, outcome in outcomes.items() if outcome.readable})
    silent = sorted({key[0] for key, outcome in outcomes.items() if outcome.silent})
    names = ["none" if not values else ", ".join(f"{value:g}" for value in values) for values in (readable, silent)]
    return (
        f"Thresholds at which conventional training recovers recognisable digits: {names[0]}. Thresholds at which the "
        f"network ends with an output that does not depend on the input: {names[1]}. Torch draws biases from "
        f"±1/√{SIDE**2} = ±0.036: a larger threshold lets no layer stay active once the signal has faded on its way."
    )


# -- what to look at --------------------------------------------------------------------------------------------------


def figures(
    outcomes: Mapping[Key, Outcome],
    order: Mapping[float, Outcome],
    images: Images,
    read: Reader,
) -> list[Figure]:
    thresholds = {f"threshold {key[0]:g}": outcome for key, outcome in outcomes.items() if key[1] == BEST_RATE}
    rates = {f"rate {rate:g}": outcome for rate, outcome in order.items()}
    return [
        _table(outcomes, images, read),
        _curves("error-by-threshold", f"Reconstruction error, learning rate {BEST_RATE:g}", thresholds),
        _curves("error-by-rate", f"Reconstruction error, threshold {WORKING:g}", rates),
        _pictures(outcomes, images),
    ]


def _table(outcomes: Mapping[Key, Outcome], images: Images, read: Reader) -> Table:
    columns = {
        "threshold": "", "learning rate": "", "training error": ".3g", "PSNR training (dB)": ".2f",
        "PSNR validation (dB)": ".2f", "read, training (%)": ".1f", "read, validation (%)": ".1f", "recognisable": "",
        "remark": "",
    }  # fmt: skip
    rows: list[list[Cell]] = []
    for (threshold, rate), outcome in outcomes.items():
        last = outcome.trajectory.last
        rows.append([
            threshold, rate, last["training error"], last["training psnr"], last["validation psnr"],
            *(100 * outcome.accuracy[split] for split in SPLITS), outcome.readable, outcome.remark,
        ])  # fmt: skip
    note = f"The noisy validation images have {float(images.degraded.mean()):.2f} dB. {read.note}"
    return Table.of("results", "All thresholds and learning rates", columns, rows, note)


def _curves(name: str, title: str, chosen: Mapping[str, Outcome]) -> Curves:
    drawn = [line for label, outcome in chosen.items() for line in both_splits(label, outcome.trajectory, "error")]
    return Curves(name, title, "steps", "mean squared error", drawn, y_log=True)


def _pictures(outcomes: Mapping[Key, Outcome], images: Images) -> Pictures:
    x = images.validation_x[:SHOWN]
    rows = {"ground truth": x, "observation": images.validation_y[:SHOWN]}
    for threshold in THRESHOLDS:
        rows[f"threshold {threshold:g}"] = outcomes[threshold, BEST_RATE].outputs["validation"][:SHOWN]
    title = f"Validation images, learning rate {BEST_RATE:g}"
    return pictures("validation-images", title, rows, "ground truth")
