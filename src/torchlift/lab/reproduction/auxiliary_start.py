"""Where the auxiliary variables start: the replicated input against random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean as mean

import torch

from torchlift.lab.problem import LAYERS, MU
from torchlift.lab.reproduction.confidence import confidence
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Work
from torchlift.lab.reproduction.restoration import SHOWN, Outcome, Reader, Size, Trainings, lifted_bregman, pictures
from torchlift.lab.trajectory import series
from torchlift.report.records import Cell, Claim, Curves, Table

TASK, THRESHOLD, RATE = "denoising", 0.2, 8e-4
STARTS = {"input": "replicated input", "random": "standard normal"}


TINY = Size(14, 4, 4, 2, 1, 2)
SMALL = Size(14, 1250, 500, 1200, 100, 3)
PAPER = Size(28, 5000, 500, 50_000, 100, 3)

Outcomes = Mapping[str, Sequence[Outcome]]
"""Start ↦ outcomes, seed by seed."""


class AuxiliaryStart(Experiment):
    """The published training of a denoiser, but for the start of z."""

    on_devices = True
    name = "auxiliary-start"
    minutes = 9.0
    title = "Where auxiliary variables start"
    about = "z begins as the replicated input or as random numbers, denoising at threshold 0.2 (section on training)"

    def run(self, work: Work) -> ExperimentResult:
        size: Size = work.choose(TINY, SMALL, PAPER).asked(work)
        work.expect(1 + len(STARTS) * size.seeds)
        trainings = Trainings.of(work, TASK, size)
        outcomes = {
            start: [
                trainings.run(
                    f"{name}, seed {seed}", THRESHOLD,
                    partial(lifted_bregman, rate=RATE, states=start, seed=seed), seed=seed,
                )
                for seed in trainings.images
            ]
            for start, name in STARTS.items()
        }  # fmt: skip
        shown = {"ground truth": trainings.first.validation_x[:SHOWN].cpu()}
        shown |= {name: outcomes[start][0].outputs["validation"][:SHOWN] for start, name in STARTS.items()}
        ends = {start: mean([run.mean for run in runs]) for start, runs in outcomes.items()}
        return ExperimentResult(
            f"Validation images after {size.steps:,} steps of lifted Bregman training as published, by the start of z: "
            f"{', '.join(f'{STARTS[start]} {value:.1f} dB' for start, value in ends.items())}.",
            work.decided(claims(outcomes)),
            [
                _table(outcomes, trainings.read),
                _curves(outcomes),
                pictures("validation-images", "Validation images", shown, "ground truth"),
            ],
            {
                "task": TASK, "network": f"{LAYERS} hidden layers of {size.side**2} units", "threshold": THRESHOLD,
                "mu": MU, "images": size.training, "steps": size.steps, "seeds": list(trainings.images),
                "method": f"proximal Adam, {RATE:g} on both blocks", "classifier": trainings.read.record(),
            },
        )  # fmt: skip


def claims(outcomes: Outcomes) -> list[Claim]:
    """The paper calls the replicated input better and more stable.

    More stable is the start from which more seeds learn, and where these are as many, the one with the smaller
    spread. (Networks that have learnt nothing all give the mean image: their spread is no stability.)
    """
    replicated, random = (outcomes[start] for start in STARTS)
    gaps = torch.tensor([a.mean - b.mean for a, b in zip(replicated, random, strict=True)])
    margin = confidence(gaps)
    values = {start: [run.mean for run in runs] for start, runs in outcomes.items()}
    spread = {start: max(column) - min(column) for start, column in values.items()}
    learnt = {start: sum(run.recognised["validation"] for run in runs) for start, runs in outcomes.items()}
    read = [100 * mean([run.accuracy["validation"] for run in runs]) for runs in (replicated, random)]
    return [
        Claim.of(
            "Auxiliary variables that begin as the replicated input lead to better networks than random ones.",
            f"validation images, {replicated[0].trajectory.steps[-1]:,} steps: {mean(values['input']):.2f} against "
            f"{mean(values['random']):.2f} dB, {read[0]:.0f} against {read[1]:.0f} % of the digits read; difference "
            f"{margin.text('+.2f')} dB over {len(gaps)} seeds",
            margin.above(0),
        ),
        Claim.of(
            "They lead to more stable results.",
            f"smallest to largest validation PSNR over {len(gaps)} seeds: {spread['input']:.2f} against "
            f"{spread['random']:.2f} dB; recognisable digits with {learnt['input']} against {learnt['random']} seeds",
            (learnt["input"], -spread["input"]) > (learnt["random"], -spread["random"]),
        ),
    ]


def _table(outcomes: Outcomes, read: Reader) -> Table:
    rows: list[list[Cell]] = [
        [STARTS[start], run.trajectory.steps[-1], run.trajectory.last["training psnr"], run.mean,
         100 * run.accuracy["validation"], run.trajectory.last["objective"]]
        for start, runs in outcomes.items()
        for run in runs
    ]  # fmt: skip
    columns = {
        "z begins as": "", "steps": "", "PSNR training (dB)": ".2f", "PSNR validation (dB)": ".2f",
        "read, validation (%)": ".1f", "objective": ".3g",
    }  # fmt: skip
    return Table.of("results", "Every seed", columns, rows, read.note)


def _curves(outcomes: Outcomes) -> Curves:
    drawn = [
        series(
            f"{STARTS[start]}, {number}", run.trajectory.steps, run.trajectory.column("validation psnr"), group=start
        )
        for start, runs in outcomes.items()
        for number, run in enumerate(runs, 1)
    ]
    return Curves("psnr", "Validation images by the start of z", "steps", "PSNR in dB", drawn)
