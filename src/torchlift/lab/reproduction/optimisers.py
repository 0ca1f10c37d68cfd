"""The paper's comparison of optimisers on the lifted Bregman objective, and ours beside them."""

from __future__ import annotations

import bisect
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torchlift.lab.benchmarks.solvers import (
    EXACT,
    PAPER,
    RATE,
    SWEEP,
    SWEEP_ADAM,
    THRESHOLD,
    begin,
    measure,
    methods,
    steps_per_epoch,
)
from torchlift.lab.problem import LAYERS, MU, Images, build, load_images
from torchlift.lab.reproduction.confidence import over_seeds
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.lab.reproduction.restoration import Size
from torchlift.lab.trajectory import Trajectory, both_splits, follow, part_of, series, trajectory_of
from torchlift.report.records import Cell, Claim, Curves, Figure, Series, Table

#: Measurements of sweeps.
MARKS = 20
NOISY = "noisy images"


@dataclass(frozen=True)
class RaceSize(Size):
    """How large; `steps` are those of the paper's optimisers, and exact steps are all measured.

    Arguments:
        exact: steps of exact block-coordinate descent, each of which takes as long as tens of the others.
        epochs: of the sweeps over batches.
    """

    exact: int = 1
    epochs: int = 1


TINY_SIZE = RaceSize(14, 20, 10, steps=2, every=1, exact=1, epochs=2)
# Half the resolution and a quarter of the images, as in the inverse problems. Still more images than the 197 weights of
# a unit, or exact steps would fit every layer perfectly.
SMALL_SIZE = RaceSize(14, 500, 200, steps=1000, every=20, seeds=3, exact=10, epochs=40)
PAPER_SIZE = RaceSize(28, 2000, 500, steps=5000, every=100, exact=50, epochs=500)


class Optimisers(Experiment):
    """Objective and PSNR of the forward pass on the way of every optimiser."""

    on_devices = True
    timed = True
    name = "optimisers"
    title = "Optimisers of the lifted Bregman objective"
    about = "gradient, heavy-ball, Nesterov and Adam on 2,000 noisy images, and our solvers (figure on optimisers)"

    def run(self, work: Work) -> ExperimentResult:
        size: RaceSize = work.choose(TINY_SIZE, SMALL_SIZE, PAPER_SIZE).asked(work)
        names, seeds = list(methods()), range(work.seed, work.seed + size.seeds)
        work.expect(len(names) * size.seeds)
        said, runs = {}, []
        for seed in seeds:
            images = load_images("denoising", size.training, size.validation, seed, size.side, work.device)
            runs.append({name: _run(work, name, images, size, seed) for name in names})
            said[seed] = work.decided(claims(runs[-1], float(images.degraded.mean()), size.steps))
        trajectories = runs[0]
        noisy = float(load_images("denoising", 1, size.validation, work.seed, size.side).degraded.mean())
        return ExperimentResult(
            _summary(trajectories, noisy),
            over_seeds(said),
            figures(trajectories, noisy),
            {
                "network": f"{LAYERS} hidden layers of {size.side**2} units, torch's default start",
                "threshold": THRESHOLD, "seeds": list(seeds),
                "mu": MU, "noise": 0.15, "images": size.training, "validation images": size.validation,
                "steps": size.steps, "exact steps": size.exact, "epochs of sweeps": size.epochs,
                "z begins as": "replicated input; forward pass in sweeps",
                "steps from bounds": {"gradient": "1/L", "Nesterov": "1/L", "heavy-ball": "0.19/L, β = 0.9"},
                "Adam": RATE,
            },
        )  # fmt: skip


def _run(work: Work, name: str, images: Images, size: RaceSize, seed: int) -> Trajectory:
    """One method as a part of the experiment."""
    part_name = name if seed == work.seed else f"{name}, seed {seed}"
    steps, every = (size.exact, 1) if name == EXACT else (size.steps, size.every)
    if name in (SWEEP_ADAM, SWEEP):
        steps = size.epochs * steps_per_epoch(name, images)
        every = max(1, steps // MARKS)

    def part() -> Part:
        network = build(THRESHOLD, seed, side=size.side).to(work.device)
        step = begin(name, network, images, seed, lambda count: 1 - count / steps)
        look, folder = partial(measure, network, images, step), work.training_folder(part_name)
        return part_of({}, follow(step, look, every=every, steps=steps, folder=folder))

    _, record = work.part(part_name, part)
    shutil.rmtree(work.training_folder(part_name), ignore_errors=True)
    return trajectory_of(record)


# -- claims -----------------------------------------------------------------------------------------------------------


def claims(trajectories: Mapping[str, Trajectory], noisy: float, steps: int) -> list[Claim]:
    """Three claims of the paper and two of ours.

    The paper's curves are drawn every 100 steps, so they have hundreds of steps at the least.
    """
    ends = {name: trajectory.last["objective"] for name, trajectory in trajectories.items()}
    values = ", ".join(f"{name} {ends[name]:.4g}" for name in PAPER)
    after = f"objective after {trajectories['Adam'].steps[-1]} steps"
    share = _share_of_lead({name: trajectories[name].column("objective") for name in PAPER}, "Adam")
    quality = {name: trajectories[name].last["training psnr"] for name in PAPER}
    leads = _share_of_lead({name: [-x for x in trajectories[name].column("training psnr")] for name in PAPER}, "Adam")
    best = min(PAPER, key=ends.__getitem__)
    accelerated = [name for name in ("heavy-ball", "Nesterov") if ends[name] < ends["gradient"]]
    return [
        Claim.of(
            "Momentum accelerates the gradient method: heavy-ball and Nesterov end at smaller objectives.",
            f"{after}: {values}",
            len(accelerated) == 2,
        ),
        Claim.of(
            "Adam is the most favourable of the four: smallest objective at the end and most of the time.",
            f"{after}: {values}; Adam leads at {share:.0%} of the measurements",
            best == "Adam" and share > 0.5,
        ),
        Claim.of(
            "Adam leads in PSNR of the reconstructed images too: highest at the end and most of the time.",
            f"PSNR of training images after {steps:,} steps: "
            + ", ".join(f"{name} {value:.2f} dB" for name, value in quality.items())
            + f"; Adam leads at {leads:.0%} of the measurements",
            max(quality, key=quality.__getitem__) == "Adam" and leads > 0.5,
        ),
        _per_second(trajectories),
        _not_the_forward_pass(trajectories, noisy),
    ]


def _share_of_lead(columns: Mapping[str, Sequence[float]], name: str) -> float:
    """The share of measurements after the start at which a column is the smallest; columns have equal steps."""
    rounds = list(zip(*columns.values(), strict=False))[1:]  # one that failed is shorter
    place = list(columns).index(name)
    return sum(values[place] == min(values) for values in rounds) / max(1, len(rounds))


def _per_second(trajectories: Mapping[str, Trajectory]) -> Claim:
    """At the time at which the faster of two runs had ended."""
    moment = min(trajectories[name].last["seconds"] for name in (EXACT, "Adam"))
    ours, adam = (at_time(trajectories[name], moment) for name in (EXACT, "Adam"))
    measured = f"after {moment:.1f} s {EXACT} {ours:.4g}, Adam {adam:.4g}"
    statement = "Exact block-coordinate descent descends faster per second than Adam."
    return Claim.of(statement, measured, ours < adam, "torchlift")


def at_time(trajectory: Trajectory, seconds: float) -> float:
    """The objective last measured by then."""
    times = trajectory.column("seconds")
    return trajectory.column("objective")[bisect.bisect_right(times, seconds) - 1]


def _not_the_forward_pass(trajectories: Mapping[str, Trajectory], noisy: float) -> Claim:
    """Whether the smallest objective belongs to lifted variables of their own, and to a useless network."""
    kept = [*PAPER, EXACT]
    best = min(kept, key=lambda name: trajectories[name].last["objective"])
    last, sweep = trajectories[best].last, trajectories[SWEEP].last
    return Claim.of(
        "A small objective is no good forward pass: where z is free the smallest one belongs to a network that is "
        "worse on new images than leaving them noisy.",
        f"{best}: objective {last['objective']:.4g}, validation {last['validation psnr']:.2f} dB (noisy images: "
        f"{noisy:.2f} dB); {SWEEP}: objective {sweep['objective']:.4g}, validation {sweep['validation psnr']:.2f} dB",
        last["validation psnr"] < noisy,
        "torchlift",
    )


def _summary(trajectories: Mapping[str, Trajectory], noisy: float) -> str:
    best = min(PAPER, key=lambda name: trajectories[name].last["objective"])
    good = max(trajectories, key=lambda name: trajectories[name].last["validation psnr"])
    return (
        f"Of the paper's four optimisers {best} ends at the smallest lifted Bregman objective. The best forward pass "
        f"on new images is that of {good}, {trajectories[good].last['validation psnr']:.1f} dB, where the noisy "
        f"images have {noisy:.1f} dB."
    )


# -- what to look at --------------------------------------------------------------------------------------------------


def figures(trajectories: Mapping[str, Trajectory], noisy: float) -> list[Figure]:
    four = {name: trajectories[name] for name in PAPER}

    def over(x: str, y: str, drawn: Mapping[str, Trajectory]) -> list[Series]:
        return [series(name, run.column(x), run.column(y)) for name, run in drawn.items()]

    longest = max(run.last["seconds"] for run in trajectories.values())
    psnr = [line for name, run in four.items() for line in both_splits(name, run, "psnr")]
    return [
        _table(trajectories, noisy),
        Curves(
            "objective", "Lifted Bregman objective over steps", "steps", "objective", over("step", "objective", four),
            y_log=True,
        ),
        Curves(
            "psnr", "Forward pass over steps", "steps", "PSNR in dB",
            [*psnr, series(NOISY, [0, four["Adam"].steps[-1]], [noisy, noisy])],
        ),
        Curves(
            "objective-seconds", "Objective over time, all solvers", "seconds", "objective",
            over("seconds", "objective", trajectories), y_log=True,
            note="Sweeps keep z at the forward pass: their objective is the loss itself.",
        ),
        Curves(
            "psnr-seconds", "Forward pass on validation images over time, all solvers", "seconds", "PSNR in dB",
            [*over("seconds", "validation psnr", trajectories), series(NOISY, [0, longest], [noisy, noisy])],
        ),
    ]  # fmt: skip


def _table(trajectories: Mapping[str, Trajectory], noisy: float) -> Table:
    columns = {
        "solver": "", "steps": "", "seconds": ".1f", "objective": ".4g", "PSNR training (dB)": ".2f",
        "PSNR validation (dB)": ".2f", "remark": "",
    }  # fmt: skip
    rows: list[list[Cell]] = [[NOISY, None, None, None, None, noisy, ""]]
    for name, trajectory in trajectories.items():
        last = trajectory.last
        quality = [last["training psnr"], last["validation psnr"]]
        rows.append([name, last["step"], last["seconds"], last["objective"], *quality, trajectory.failure])
    return Table.of("results", "Where every solver ends", columns, rows)
