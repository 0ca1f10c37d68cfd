"""Experiment `implicit-stability`: implicit against explicit stochastic gradient over learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from torchlift.core.problem import CompositeProblem, Problem
from torchlift.core.tensors import Point
from torchlift.data import as_batches, load_digits
from torchlift.functions.losses import SquaredError
from torchlift.lab.reproduction.confidence import Interval, confidence, every
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective
from torchlift.objective.batches import TrainingBatches
from torchlift.prox import ReLU
from torchlift.report.records import Claim, Curves, Series, Table
from torchlift.solvers import (
    Backtracking,
    Diminishing,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalGradient,
    StochasticProblem,
    Stopping,
    ridge_least_squares,
    solve,
)

IMPLICIT, EXPLICIT = "implicit", "explicit"
METHODS = (IMPLICIT, EXPLICIT)

#: Rates in a decade. A coarser grid would favour the method whose best rates lie together less closely.
PER_DECADE = 2
#: Learning rates τ of the schedule τ/(k + 1)^0.6: seven decades.
RATES = tuple(10.0 ** (k / PER_DECADE) for k in range(-3 * PER_DECADE, 4 * PER_DECADE + 1))
POWER = 0.6

BATCH, WIDTH = 50, 64

#: A rate is usable where every run gains nine tenths of what could be gained from where it starts.
USABLE = 0.1

#: Implicit steps lose nothing where their excess at the best rate is at most this much larger than the explicit ones'.
MARGIN = 1.1


class ImplicitStability(Experiment):
    """Final objectives of both methods over learning rates and starting points."""

    name: ClassVar[str] = "implicit-stability"
    minutes: ClassVar[float] = 7.0
    title: ClassVar[str] = "Implicit against explicit stochastic gradient"
    about: ClassVar[str] = "final objective by learning rate and starting point, for regression and a lifted network"

    def run(self, work: Work) -> ExperimentResult:
        images = work.choose(tiny=100, small=5000, paper=5000)
        seeds = work.choose(tiny=2, small=8, paper=20)
        rates = RATES[:: 4 * PER_DECADE] if work.scale == "tiny" else RATES
        steps = {"regression": work.choose(4, 600, 6000), "network": work.choose(2, 100, 2000)}
        runs = {"regression": seeds, "network": work.choose(1, 2, 10)}
        tasks = [Regression(images, work.seed), LiftedNetwork(images, work.seed)]
        lines = [(task, start, method) for task in tasks for start in task.starts for method in METHODS]

        def make(task: Regression | LiftedNetwork, start: float, method: str, rate: float) -> Part:
            return _finals(task, start, method, rate, steps[task.name], runs[task.name])

        places = [(*line, rate) for line in lines for rate in rates]
        found = work.each("{0.name} from {1:g}, {2}, rate {3:g}", places, make)
        sweeps = []
        for task, start, method in lines:
            finals = torch.stack([found[task, start, method, rate][0]["finals"] for rate in rates])
            sweeps.append(Sweep(task.name, method, start, rates, finals, task.value(task.start(start))))
        studies = [Study.of(task.name, task.least, sweeps) for task in tasks]
        claims = work.decided(judge(studies))
        configuration = {"images": images, "rates": rates, "power": POWER, "batch": BATCH, "width": WIDTH}
        configuration |= {"steps": steps, "runs": runs, "starts": {task.name: task.starts for task in tasks}}
        return ExperimentResult(_summary(studies), claims, [*map(_curves, studies), _table(studies)], configuration)


def _digits(images: int) -> tuple[Tensor, Tensor]:
    """Digits of 14 × 14 pixels and their classes as unit vectors."""
    data = load_digits("train")
    y = nn.functional.avg_pool2d(data.images[:images], 2).flatten(1).double()
    return y, nn.functional.one_hot(data.labels[:images].long(), 10).double()


class LeastSquares(CompositeProblem):
    """½‖AΘ − T‖²/n on a batch, with its exact minimiser near an anchor."""

    def __init__(self, A: Tensor, T: Tensor) -> None:
        self.A, self.T = A, T
        super().__init__(lambda x: 0.5 * (A @ x - T).square().sum() / len(A), lambda x: A.T @ (A @ x - T) / len(A))

    def minimise(
        self, point: Point, block: str, tolerance: float, anchor: Point | None = None, strength: float = 0.0
    ) -> Point:
        near = torch.zeros_like(point["x"][0]) if anchor is None else anchor["x"][0]
        return Point({"x": near + ridge_least_squares(self.A, self.T - self.A @ near, strength * len(self.A))})


class Regression(StochasticProblem):
    """Linear regression from digits to classes: convex, with a known minimum, implicit steps exact.

    Starts are at distances of 0, 10 and 1,000 times the solution's norm from zero.
    """

    name = "regression"
    starts: tuple[float, ...] = (0.0, 10.0, 1000.0)

    def __init__(self, images: int, seed: int) -> None:
        y, self.T = _digits(images)
        self.A, self.seed, self.draw = torch.cat([y, torch.ones(len(y), 1, dtype=y.dtype)], 1), seed, 0
        self.best = torch.linalg.lstsq(self.A, self.T, driver="gelsd").solution
        self.least = self.value(Point({"x": self.best}))

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("x",)

    def batch(self, count: int, parameters: Point) -> tuple[Problem, Point]:
        generator = torch.Generator().manual_seed((1009 * self.seed + self.draw) * 1_000_003 + count)
        chosen = torch.randint(len(self.A), (BATCH,), generator=generator)
        return LeastSquares(self.A[chosen], self.T[chosen]), parameters

    def value(self, parameters: Point) -> float:
        return 0.5 * float((self.A @ parameters["x"][0] - self.T).square().sum()) / len(self.A)

    def start(self, size: float) -> Point:
        direction = torch.randn(self.best.shape, generator=torch.Generator().manual_seed(self.seed)).double()
        return Point({"x": size * float(self.best.norm() / direction.norm()) * direction})

    def run(self, method: str, start: Point, rate: float, steps: int, draw: int) -> float:
        self.draw = draw
        if method == IMPLICIT:
            solver = ImplicitStochasticGradient(Diminishing(rate, POWER))
            return self.value(solve(self, solver, start, stopping=Stopping(steps, change=None), record_every=0).point)
        x = start["x"][0]
        for k in range(steps):
            (gradient,) = self.batch(k, start)[0].gradient(Point({"x": x}))["x"]
            x = x - rate / (k + 1) ** POWER * gradient
        return self.value(Point({"x": x}))


class LiftedNetwork:
    """A network with one hidden layer of ReLU: implicit steps on its lifted objective (Bregman), explicit steps by
    back-propagation.

    The implicit problem of a batch is not solved exactly, but by five steps of linearised
    block-coordinate descent with backtracking. Starts are the usual random weights times 1, 3 and 10.
    """

    name = "network"
    starts: tuple[float, ...] = (1.0, 3.0, 10.0)
    least: float | None = None
    inner = LinearisedBCD(ProximalGradient(Backtracking()))
    inner_steps = 5

    def __init__(self, images: int, seed: int) -> None:
        self.data, self.seed = _digits(images), seed
        generator = torch.Generator().manual_seed(seed)
        self.network = MLP([196, WIDTH, 10], activation=ReLU(), generator=generator, dtype=torch.float64)
        self.objective = Objective(self.network, Bregman(), SquaredError())
        self.usual = self._problem(0).start()

    def _problem(self, draw: int) -> TrainingBatches:
        return TrainingBatches(self.objective, as_batches(self.data, batch_size=BATCH, seed=1000 * self.seed + draw))

    def value(self, parameters: Point) -> float:
        return self._problem(0).value(parameters)

    def start(self, size: float) -> Point:
        return Point({"parameters": [size * tensor for tensor in self.usual["parameters"]]})

    def run(self, method: str, start: Point, rate: float, steps: int, draw: int) -> float:
        problem = self._problem(draw)
        if method == IMPLICIT:
            solver = ImplicitStochasticGradient(Diminishing(rate, POWER), self.inner, self.inner_steps)
            stopping = Stopping(steps, change=None)
            return problem.value(solve(problem, solver, start, stopping=stopping, record_every=0).point)
        point = start
        for k in range(steps):
            problem.publish(point)
            y, x, _ = problem.batches.batch(k)
            parameters = dict(self.network.named_parameters())
            named = [parameters[name] for name in problem.names]
            with torch.enable_grad():
                loss = self.objective.loss.value(self.network(y), x).mean()
                gradients = torch.autograd.grad(loss, named)
            moved = zip(point["parameters"], gradients, strict=True)
            point = Point({"parameters": [value - rate / (k + 1) ** POWER * slope for value, slope in moved]})
        return problem.value(point)


def _finals(task: Regression | LiftedNetwork, start: float, method: str, rate: float, steps: int, runs: int) -> Part:
    """The objective at the end of several runs that draw other batches; infinite where it is not a number."""
    finals = [task.run(method, task.start(start), rate, steps, draw) for draw in range(runs)]
    return {"finals": torch.tensor(finals, dtype=torch.float64).nan_to_num(nan=math.inf)}, {}


@dataclass(frozen=True, eq=False)
class Sweep:
    """The ends of one method from one start: finals (rates, runs), and the objective at the start."""

    task: str
    method: str
    start: float
    rates: Sequence[float]
    finals: Tensor
    first: float

    @property
    def diverged(self) -> Tensor:
        """At which rates some run ended above its start: (rates,)."""
        return (self.finals > self.first).any(1)

    @property
    def growth(self) -> float:
        """The largest objective at an end over that at the start."""
        return float(self.finals.max()) / self.first

    @property
    def best(self) -> int:
        """The rate with the least mean objective."""
        return int(self.finals.mean(1).argmin())


@dataclass(frozen=True, eq=False)
class Study:
    """All sweeps of a task, and its least objective: known, or the least that any run reached."""

    task: str
    least: float
    sweeps: Sequence[Sweep]

    @staticmethod
    def of(task: str, least: float | None, sweeps: Sequence[Sweep]) -> Study:
        of_task = [sweep for sweep in sweeps if sweep.task == task]
        reached = min(float(sweep.finals.min()) for sweep in of_task)
        return Study(task, reached if least is None else least, of_task)

    def of_method(self, method: str) -> list[Sweep]:
        """The sweeps of a method, one per start, the usual one first."""
        return [sweep for sweep in self.sweeps if sweep.method == method]

    def usable(self, sweep: Sweep) -> int:
        """How many rates are usable: all runs gain nine tenths of what can be gained from their start."""
        reached = min(float(other.finals.min()) for other in self.sweeps)
        return int((sweep.finals <= reached + USABLE * (sweep.first - reached)).all(1).sum())

    def ratio(self) -> Interval:
        """log of the implicit over the explicit excess, each at its best rate from the usual start, run by run."""
        ours, theirs = (self.of_method(method)[0] for method in METHODS)
        return confidence((ours.finals[ours.best] - self.least).log() - (theirs.finals[theirs.best] - self.least).log())


def judge(studies: Sequence[Study]) -> list[Claim]:
    """Claims; thresholds are the constants above and one decade of rates."""
    claims = []
    for study in studies:
        name = study.task.capitalize()
        ours, theirs = (study.of_method(method)[0] for method in METHODS)
        limit = [rate for rate, bad in zip(theirs.rates, theirs.diverged.tolist(), strict=True) if bad]
        claims.append(
            Claim.of(
                f"{name}: beyond a limit of the learning rate explicit steps end above their start, implicit never",
                f"explicit ends above its start at rates {_listed(limit)}, implicit at "
                + _listed(r for r, bad in zip(ours.rates, ours.diverged.tolist(), strict=True) if bad)
                + f"; largest end over start: {theirs.growth:.3g} and {ours.growth:.3g}",
                bool(theirs.diverged[-1]) and not bool(ours.diverged.any()),
            )
        )
        counts = [study.usable(ours), study.usable(theirs)]
        claims.append(
            Claim.of(
                f"{name}: implicit steps are robust to the learning rate (usable over at least a "
                "decade more than explicit ones)",
                f"usable of {len(ours.rates)} rates, {PER_DECADE} a decade: implicit {counts[0]}, explicit {counts[1]}",
                counts[0] >= counts[1] + PER_DECADE,
            )
        )
        pairs = list(zip(study.of_method(IMPLICIT)[1:], study.of_method(EXPLICIT)[1:], strict=True))
        claims.append(
            Claim.of(
                f"{name}: implicit steps are robust to the starting point (usable over at least a "
                "decade more than explicit ones from every start)",
                "usable rates: "
                + "; ".join(f"start {a.start:g}: {study.usable(a)} and {study.usable(b)}" for a, b in pairs),
                every(_more_usable(study.usable(a), study.usable(b)) for a, b in pairs),
            )
        )
    convex = studies[0]
    ratio = convex.ratio()
    mean, low, high = torch.tensor(ratio, dtype=torch.float64).exp().tolist()
    claims.append(
        Claim.of(
            f"{convex.task.capitalize()}: implicit steps lose no efficiency (excess over the minimum at the best rate "
            f"at most {MARGIN - 1:.0%} larger than that of explicit steps)",
            f"implicit over explicit: {mean:.3f} [{low:.3f}, {high:.3f}]",
            ratio.at_most(math.log(MARGIN)),
        )
    )
    return claims


def _more_usable(implicit: int, explicit: int) -> bool | None:
    """True if implicit steps have a decade of rates more; None where neither method comes near the minimum."""
    return None if implicit == explicit == 0 else implicit >= explicit + PER_DECADE


def _listed(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:.0e}" for rate in rates) or "none"


def _summary(studies: Sequence[Study]) -> str:
    parts = []
    for study in studies:
        ours, theirs = (study.of_method(method)[0] for method in METHODS)
        parts.append(
            f"{study.task}: {study.usable(ours)} of {len(ours.rates)} learning rates, {PER_DECADE} a decade, are "
            f"usable with implicit steps and {study.usable(theirs)} with explicit ones"
        )
    return (
        "Stochastic gradient with the schedule τ/(k + 1)^0.6 on digits. " + "; ".join(parts) + ". A rate is usable "
        "where every run gains nine tenths of what could be gained from its start."
    )


def _curves(study: Study) -> Curves:
    series = []
    worst = 1e3 * study.sweeps[0].first  # beyond, the curve is left out: it goes through the roof
    for sweep in study.sweeps:
        mean = [value if value <= worst else None for value in sweep.finals.mean(1).tolist()]
        low = [a if b is not None else None for a, b in zip(sweep.finals.amin(1).tolist(), mean, strict=True)]
        high = [a if b is not None else None for a, b in zip(sweep.finals.amax(1).tolist(), mean, strict=True)]
        label = f"{sweep.method}, start {sweep.start:g}"
        series.append(Series(label, sweep.rates, mean, low, high, sweep.method == EXPLICIT, f"start {sweep.start:g}"))
    return Curves(
        f"{study.task}-by-rate",
        f"Final objective by learning rate: {study.task}",
        "learning rate τ",
        "objective at the end",
        series,
        x_log=True,
        y_log=True,
        note="Mean of the runs, bands from least to largest. Points above 1,000 times the usual start are left out.",
    )


def _table(studies: Sequence[Study]) -> Table:
    rows = []
    for study in studies:
        for sweep in study.sweeps:
            mean = sweep.finals.mean(1)
            rows.append(
                [
                    *(study.task, sweep.start, sweep.method, sweep.first, sweep.rates[sweep.best]),
                    *(float(mean.min()), study.usable(sweep), int(sweep.diverged.sum())),
                ]
            )
    columns = {
        "task": "", "start": "g", "method": "", "objective at the start": ".3g", "best rate": ".0e",
        "at its end": ".4g", "usable rates": "", "rates that end above the start": "",
    }  # fmt: skip
    return Table.of("usable", "Best and usable learning rates", columns, rows)
