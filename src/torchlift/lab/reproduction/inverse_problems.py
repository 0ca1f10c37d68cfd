"""Deblurring, denoising and inpainting: lifted Bregman against conventional training, as published and as we advise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import fmean as mean
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchlift.data import psnr
from torchlift.lab.problem import LAYERS, MU, WATCHED, Images, build
from torchlift.lab.reproduction.confidence import Interval, confidence, every
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
    lifted_bregman,
    pictures,
    recommended,
    remaining,
)
from torchlift.lab.trajectory import both_splits, series
from torchlift.report.records import Cell, Claim, Curves, Figure, HeatMap, Pictures, Table, network_blocks

THRESHOLDS = (0.2, 0.02)
SETTINGS = ("published", "recommended")
METHODS = ("conventional", "lifted")

#: Learning rate of conventional training, the best one in the paper's own sweep; also of our back-propagation.
CONVENTIONAL_RATE = 5e-4
#: Samples per step in the recommended settings.
BATCH = 50

TINY = Size(14, 4, 4, 2, 1, seeds=2, batch_steps=2)
# Half the resolution and a quarter of the images: as many images per unit as in the paper. With fewer images than
# units each layer would interpolate. On one thread a step takes 0.05 s lifted and 0.035 s conventional.
SMALL = Size(14, 1250, 500, 2000, 100, seeds=3, batch_steps=1000)
PAPER = Size(28, 5000, 500, PUBLISHED_STEPS, 100, batch_steps=1000)


Key = tuple[str, str, float]
"""Setting, method, threshold."""

KEYS: tuple[Key, ...] = tuple(product(SETTINGS, METHODS, THRESHOLDS))

Outcomes = Mapping[Key, Sequence[Outcome]]
"""What each training led to, seed by seed."""


class InverseProblem(Experiment):
    """Every method, setting and threshold on one task."""

    on_devices: ClassVar[bool] = True
    minutes: ClassVar[float] = 18.0
    task: ClassVar[str]
    rate: ClassVar[float]
    """Learning rate of Adam on both blocks of the lifted problem, as published."""
    slower: ClassVar[float] = 1
    """How many times as many steps scale "small" takes."""
    fits: ClassVar[bool] = True
    """Whether the paper says that conventional training fits the training images well at threshold 0.02."""

    def run(self, work: Work) -> ExperimentResult:
        size = self.size(work)
        work.expect(1 + len(KEYS) * size.seeds)
        trainings = Trainings.of(work, self.task, size)
        outcomes = {key: [self._train(trainings, key, seed) for seed in trainings.images] for key in KEYS}
        first, read = trainings.first, trainings.read
        degraded = [drawn.degraded.cpu() for drawn in trainings.images.values()]
        return ExperimentResult(
            _summary(self.task, size, outcomes, float(first.degraded.mean())),
            work.decided(claims(outcomes, degraded, read.bar("validation"), self.fits)),
            figures(self.task, outcomes, first, read),
            self._configuration(size, list(trainings.images), read),
        )

    def size(self, work: Work) -> Size:
        """The size of the scale, with the numbers of steps and seeds that were asked for."""
        size: Size = work.choose(TINY, replace(SMALL, steps=int(SMALL.steps * self.slower)), PAPER)
        return size.asked(work)

    def _train(self, trainings: Trainings, key: Key, seed: int) -> Outcome:
        setting, method, threshold = key
        name = label(key) if seed == trainings.work.seed else f"{label(key)}, seed {seed}"
        if setting == "published":
            lifted = method == "lifted"
            make = partial(lifted_bregman, rate=self.rate) if lifted else partial(conventional, rate=CONVENTIONAL_RATE)
            return trainings.run(name, threshold, make, seed=seed)
        steps, back = trainings.size.batch_steps, method == "conventional"
        options = {"batch_size": BATCH, "rate": CONVENTIONAL_RATE, "back_propagation": back}
        make = partial(recommended, steps=steps, seed=seed, **options)
        return trainings.run(name, threshold, make, seed=seed, steps=steps)

    def _configuration(self, size: Size, seeds: Sequence[int], read: Reader) -> Mapping[str, Any]:
        return {
            "task": self.task, "network": f"{LAYERS} hidden layers of {size.side**2} units", "mu": MU,
            "thresholds": list(THRESHOLDS), "pixels": f"{size.side} × {size.side}", "images": size.training,
            "validation images": size.validation, "seeds": list(seeds),
            "published": {
                "steps": size.steps, "batch": "all images", "weights": "torch's default, the same for both",
                "conventional": f"Adam, {CONVENTIONAL_RATE:g}",
                "lifted": f"proximal Adam, {self.rate:g} on both blocks, z = replicated input",
            },
            "recommended": {
                "steps": size.batch_steps, "batch": BATCH, "weights": "identity, the same for both",
                "conventional": f"Adam, {CONVENTIONAL_RATE:g}, cosine annealing", "lifted": "defaults of train",
            },
            "classifier": read.record(),
        }  # fmt: skip


class Deblurring(InverseProblem):
    name = task = "deblurring"
    title = "Deblurring"
    about = "Gaussian blur (5 × 5, σ = 1) and noise 0.03, 7 × 784 soft-threshold network (figures on deblurring)"
    rate = 8e-4


class Denoising(InverseProblem):
    name = task = "denoising"
    title = "Denoising"
    about = "Gaussian noise 0.15, 7 × 784 soft-threshold network (figures on denoising)"
    rate = 8e-4


class Inpainting(InverseProblem):
    name = task = "inpainting"
    title = "Inpainting"
    minutes = 35.0
    about = "30 % of the pixels missing, 7 × 784 soft-threshold network (figures on inpainting)"
    rate = 1e-4
    slower = 2.5  # an eighth of the others' rate
    fits = False


def label(key: Key) -> str:
    setting, method, threshold = key
    return f"{method}, {threshold:g}, {setting}"


# -- claims -----------------------------------------------------------------------------------------------------------


def claims(outcomes: Outcomes, degraded: Sequence[Tensor], bar: float, fits: bool = True) -> list[Claim]:
    """The paper's claims and four of ours.

    What is recognisable after fewer steps than the paper takes counts; what
    is not could still become so, unless the network is silent, where further steps change nothing.

    Arguments:
        degraded: PSNR of each degraded validation image, seed by seed.
        bar: the accuracy on validation images from which on digits are recognisable.
        fits: whether a good fit of the training images is part of the third claim.
    """
    lifted, plain = outcomes["published", "lifted", 0.2], outcomes["published", "conventional", 0.2]
    ours, back = outcomes["recommended", "lifted", 0.2], outcomes["recommended", "conventional", 0.2]
    whole, steps = lifted[0].trajectory.steps[-1] >= PUBLISHED_STEPS, lifted[0].trajectory.steps[-1]
    improves = _interval([run.psnr - noisy for run, noisy in zip(ours, degraded, strict=True)])
    margin = _interval(_differences(ours, back))
    silent = all(run.silent for run in plain)
    quiet = "; the last hidden layer is zero for every training image, so no gradient changes it" if silent else ""
    recognised = {split: agreed([run.recognised[split] for run in lifted]) for split in SPLITS}
    readable = agreed([any(run.recognised.values()) for run in plain])
    return [
        *(
            Claim.of(
                f"With threshold 0.2, lifted Bregman training as published recovers recognisable {split} digits.",
                f"{_reads(lifted, split)} after {steps:,} steps"
                + (f" (needed: {bar:.0%}); {_best(lifted)}" if split == "validation" else "")
                + ("" if recognised[split] or whole else f"; {remaining(lifted)}"),
                True if recognised[split] else recognised[split] if whole else None,
            )
            for split in SPLITS
        ),
        Claim.of(
            "With threshold 0.2, conventional training as published does not recover recognisable digits.",
            f"{_reads(plain, 'training')}, {_reads(plain, 'validation')}{quiet}",
            None if readable is None else False if readable else True if silent or whole else None,
        ),
        _overfits(outcomes["published", "conventional", 0.02], outcomes["published", "lifted", 0.02], fits),
        _best_against_best(outcomes["published", "conventional", 0.02], outcomes["published", "lifted", 0.02], steps),
        Claim.of(
            "With threshold 0.2 and our settings, lifted training recovers recognisable validation digits, better "
            "than the input.",
            f"{_reads(ours, 'validation')} (needed: {bar:.0%}); {_gain(improves)} against the input",
            every([agreed([run.recognised["validation"] for run in ours]), improves.above(0)]),
            "torchlift",
        ),
        Claim.of(
            "With threshold 0.2, our settings, the same start and number of steps, lifting beats back-propagation.",
            f"{_mean(ours):.2f} against {_mean(back):.2f} dB on validation images; difference {_gain(margin)}",
            margin.above(0),
            "torchlift",
        ),
        _against_published(ours, lifted),
    ]


def agreed(verdicts: Sequence[bool]) -> bool | None:
    """What all seeds say; None where they differ."""
    return verdicts[0] if len(set(verdicts)) == 1 else None


def _reads(runs: Sequence[Outcome], split: str) -> str:
    quality = [run.trajectory.last[f"{split} psnr"] for run in runs]
    read = [100 * run.accuracy[split] for run in runs]
    return f"{split} outputs: {_range(quality, '.2f')} dB, {_range(read, '.0f')} % read by a classifier of clean digits"


def _range(values: Sequence[float], form: str) -> str:
    """One value, or the smallest and the largest of several seeds."""
    low, high = (f"{value:{form}}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _best(runs: Sequence[Outcome]) -> str:
    steps = [run.best["step"] for run in runs]
    quality, read = [run.best["held-out psnr"] for run in runs], [100 * run.best["held-out read"] for run in runs]
    return (
        f"best, by other images, after {_range(steps, ',')} steps: {_range(quality, '.2f')} dB, "
        f"{_range(read, '.0f')} % read"
    )


def _overfits(plain: Sequence[Outcome], lifted: Sequence[Outcome], fits: bool) -> Claim:
    """Conventional training is no worse on training images and worse on others.

    Only all steps decide: the forward pass of lifted training has ups and downs over hundreds of them.
    """
    statement = "fits the training images but " if fits else ""
    training = [mean([run.trajectory.last["training psnr"] for run in runs]) for runs in (plain, lifted)]
    margin, steps = _interval(_differences(lifted, plain)), lifted[0].trajectory.steps[-1]
    whole = steps >= PUBLISHED_STEPS
    return Claim.of(
        f"With threshold 0.02, conventional training {statement}validates worse than lifted Bregman training.",
        f"after {steps:,} steps training {training[0]:.2f} and {training[1]:.2f} dB, validation {_mean(plain):.2f} and "
        f"{_mean(lifted):.2f} dB (conventional, lifted); lifted − conventional on validation {_gain(margin)}"
        + ("" if whole else f"; {remaining(lifted)}"),
        every([training[0] >= training[1] or not fits, margin.above(0)]) if whole else None,
    )


def _best_against_best(plain: Sequence[Outcome], lifted: Sequence[Outcome], steps: int) -> Claim:
    """Each at the step that half of the validation images choose, on the other half."""
    values = [[run.best["held-out psnr"] for run in runs] for runs in (lifted, plain)]
    gaps = [a - b for a, b in zip(*values, strict=True)]
    margin = confidence(torch.tensor(gaps)) if len(gaps) > 1 else None
    return Claim.of(
        f"With threshold 0.02 and each stopped at its best step of {steps:,}, chosen on other images, conventional "
        "training validates no worse than lifted Bregman training.",
        f"conventional {_best(plain)}; lifted {_best(lifted)}; lifted − conventional {mean(gaps):+.2f} dB"
        + ("" if margin is None else f", {_gain(margin)}"),
        gaps[0] <= 0 if margin is None else margin.at_most(0),
        "torchlift",
    )


def _against_published(ours: Sequence[Outcome], lifted: Sequence[Outcome]) -> Claim:
    """The published method at its best step against ours at its end, and how long both take."""
    ends, bests = [run.trajectory.last for run in ours], [run.best for run in lifted]
    gaps = [a["held-out psnr"] - b["held-out psnr"] for a, b in zip(ends, bests, strict=True)]
    margin = confidence(torch.tensor(gaps))
    better = gaps[0] > 0 if len(gaps) == 1 else margin.above(0)
    seconds = [mean([row["processor"] for row in rows]) for rows in (ends, bests)]
    quality = [mean([row["held-out psnr"] for row in rows]) for rows in (ends, bests)]
    return Claim.of(
        "With threshold 0.2 our settings restore new images better than the published ones at their best step, sooner.",
        f"{quality[0]:.2f} dB after {seconds[0]:.0f} processor seconds against {quality[1]:.2f} dB after "
        f"{seconds[1]:.0f}; difference {_gain(margin)}",
        every([better, seconds[0] < seconds[1]]),
        "torchlift",
    )


def _differences(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> list[Tensor]:
    return [a.psnr - b.psnr for a, b in zip(ours, theirs, strict=True)]


def _interval(values: Sequence[Tensor]) -> Interval:
    """A 95 % interval of the mean: over seeds, or over validation images where there is one seed."""
    return confidence(values[0] if len(values) == 1 else torch.stack([value.mean() for value in values]))


def _gain(interval: Interval) -> str:
    if not math.isfinite(interval.low):
        return f"{interval.mean:+.2f} dB (too few seeds for an interval)"
    return f"{interval.low:+.2f} to {interval.high:+.2f} dB (95 %)"


def _mean(runs: Sequence[Outcome]) -> float:
    return mean([run.mean for run in runs])


def _summary(task: str, size: Size, outcomes: Outcomes, degraded: float) -> str:
    def quality(setting: str, method: str) -> str:
        return f"{_mean(outcomes[setting, method, 0.2]):.1f} dB"

    return (
        f"{task.capitalize()} of digits with a {LAYERS} × {size.side**2} soft-threshold network, threshold 0.2; the "
        f"degraded images have {degraded:.1f} dB. With the published settings and {size.steps:,} steps lifted Bregman "
        f"training ends at {quality('published', 'lifted')} on validation images and conventional training at "
        f"{quality('published', 'conventional')}; with ours lifted training ends at "
        f"{quality('recommended', 'lifted')} and back-propagation at {quality('recommended', 'conventional')}."
    )


# -- what to look at --------------------------------------------------------------------------------------------------


def figures(task: str, outcomes: Outcomes, images: Images, read: Reader) -> list[Figure]:
    """Tables over all seeds; curves and pictures of the first."""
    listed: list[Figure] = [_table(outcomes, images, read), _course(outcomes)]
    firsts = {key: runs[0] for key, runs in outcomes.items()}
    for setting in SETTINGS:
        for measure, unit, log in (("psnr", "PSNR in dB", False), ("error", "mean squared error", True)):
            listed.append(_curves(setting, measure, unit, log, firsts, images))
    listed += [_pictures(task, split, firsts, images) for split in ("training", "validation")]
    listed += [_gaps(threshold, firsts["published", "lifted", threshold]) for threshold in THRESHOLDS]
    return [*listed, _objective(firsts), network_blocks(build(THRESHOLDS[0], 0, side=images.side), "network")]


def _table(outcomes: Outcomes, images: Images, read: Reader) -> Table:
    columns = {
        "settings": "", "training": "", "threshold": "", "steps": "", "PSNR training (dB)": ".2f",
        "PSNR validation (dB)": ".2f", "± over seeds": ".2f", "read, training (%)": ".1f",
        "read, validation (%)": ".1f", "remark": "",
    }  # fmt: skip
    inputs = {"training": images.y[:WATCHED], "validation": images.validation_y}
    rows: list[list[Cell]] = [
        ["", "clean images", None, None, None, None, None, *(100 * read.clean[split] for split in SPLITS), ""],
        ["", "degraded images", None, None,
         float(psnr(inputs["training"], images.x[:WATCHED]).mean()), float(images.degraded.mean()), None,
         *(100 * read.accuracy(inputs[split], split) for split in SPLITS), ""],
    ]  # fmt: skip
    for (setting, method, threshold), runs in outcomes.items():
        over = confidence(torch.tensor([run.mean for run in runs]))
        rows.append([
            setting, method, threshold, runs[0].trajectory.steps[-1],
            mean([run.trajectory.last["training psnr"] for run in runs]), over.mean,
            over.high - over.mean if math.isfinite(over.high) else None,
            *(100 * mean([run.accuracy[split] for run in runs]) for split in SPLITS), runs[0].remark,
        ])  # fmt: skip
    seeds = len(outcomes[KEYS[0]])
    note = f"Last parameters; means over images and {seeds} seeds, half the width of a 95 % interval. {read.note}"
    return Table.of("results", "All settings", columns, rows, note)


def _course(outcomes: Outcomes) -> Table:
    measured = {"processor (s)": ".0f", "PSNR (dB)": ".2f", "read (%)": ".1f"}
    columns = {"settings": "", "training": "", "threshold": "", "best step": "", **measured}
    columns |= {"last step": "", **{f"{name}, last": form for name, form in measured.items()}}
    rows: list[list[Cell]] = []
    for (setting, method, threshold), runs in outcomes.items():
        moments: list[Cell] = []
        for there in ([run.best for run in runs], [run.trajectory.last for run in runs]):
            names = ("step", "processor", "held-out psnr", "held-out read")
            step, seconds, quality, read = (mean([row[name] for row in there]) for name in names)
            moments += [round(step), seconds, quality, 100 * read]
        rows.append([setting, method, threshold, *moments])
    note = (
        "Every other validation image chooses the best step, the rest are measured: means over seeds. Processor time "
        "of the steps, all threads together."
    )
    return Table.of("course", "Where each training is best, and where it ends", columns, rows, note)


def _objective(outcomes: Mapping[Key, Outcome]) -> Curves:
    drawn = []
    for threshold in THRESHOLDS:
        run = outcomes["published", "lifted", threshold].trajectory
        drawn.append(series(f"threshold {threshold:g}", run.steps, run.column("objective")))
    title = "Lifted Bregman objective, published settings"
    return Curves("objective", title, "steps", "objective", drawn, y_log=True)


def _curves(
    setting: str, measure: str, unit: str, log: bool, outcomes: Mapping[Key, Outcome], images: Images
) -> Curves:
    drawn = []
    for (chosen, method, threshold), outcome in outcomes.items():
        if chosen == setting:
            drawn += both_splits(f"{method}, {threshold:g}", outcome.trajectory, measure)
    last = max(outcome.trajectory.steps[-1] for key, outcome in outcomes.items() if key[0] == setting)
    error = float((images.validation_y - images.validation_x).square().mean())
    level = float(images.degraded.mean()) if measure == "psnr" else error
    drawn.append(series("degraded images", [0, last], [level, level], group="degraded"))
    title = f"{'PSNR' if measure == 'psnr' else 'Reconstruction error'}, {setting} settings"
    return Curves(
        f"{measure}-{setting}", title, "steps", unit, drawn, y_log=log, note="The number is the threshold."
    )  # fmt: skip


def _pictures(task: str, split: str, outcomes: Mapping[Key, Outcome], images: Images) -> Pictures:
    y, x = (images.y, images.x) if split == "training" else (images.validation_y, images.validation_x)
    rows = {"ground truth": x[:SHOWN], "observation": y[:SHOWN]}
    rows |= {label(key): outcome.outputs[split][:SHOWN] for key, outcome in outcomes.items()}
    return pictures(f"{split}-images", f"{task.capitalize()}: {split} images", rows, "ground truth")


def _gaps(threshold: float, outcome: Outcome) -> HeatMap:
    values = torch.tensor(outcome.trajectory.column("gaps")).T
    names = [f"layer {j}" for j in range(1, len(values) + 1)]
    return HeatMap(
        f"gaps-{threshold:g}".replace(".", "-"),
        f"How far each layer is from its activation: lifted Bregman as published, threshold {threshold:g}",
        "steps", "", "‖z − σ(W u + b)‖, root mean square over images", outcome.trajectory.steps, names, values,
        log=True, note="Training would end with consistent layers if every gap vanished.",
    )  # fmt: skip
