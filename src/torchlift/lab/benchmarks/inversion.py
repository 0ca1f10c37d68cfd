"""Stable inversion against decoders and against back-propagation through the composed network."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from statistics import median_high
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchlift.core.solution import Record
from torchlift.data import load_digits, load_mnist, psnr
from torchlift.functions.priors import Box, TotalVariation
from torchlift.inversion import Discrepancy, Exact, LCurve, Sure, WeightRule, calibrate, invert
from torchlift.lab.benchmarks.autoencoder import Autoencoder
from torchlift.lab.benchmarks.measure import PeakMemory
from torchlift.networks import Network, lift
from torchlift.prox import SoftThreshold

Report = Callable[[str], None]
"""Called with one line on what is being done."""

#: What is known about pictures of digits.
PRIOR = TotalVariation() + Box(0.0, 1.0)

#: The noise of the paper, at which the targets stand and times are taken with most care.
NOISE = 0.1


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Arguments:
        images: reported ones.
        choice: other ones, on which weights and anchors are chosen.
        noise: standard deviations of the noise on codes.
        adam_steps: steps of the reference.
        sweeps, long_sweeps: of `"sweep"`, and of the rules for the weight.
        default_steps: of the default algorithm; None for its own number.
        repeats: timings at the paper's noise, of which the median counts.
        reach: how many factors of 2 (of 4 for anchors) the search for weights may go from its start.
        seed: of the noise.
    """

    images: int = 100
    choice: int = 32
    noise: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    adam_steps: int = 300
    sweeps: int = 120
    long_sweeps: int = 300
    default_steps: int | None = None
    repeats: int = 3
    reach: int = 8
    seed: int = 0


TINY = Scale(
    images=3, choice=2, noise=(0.1,), adam_steps=6, sweeps=6, long_sweeps=12, default_steps=6, repeats=1, reach=1
)


@dataclass(frozen=True, eq=False)
class Sample:
    """Codes to invert, and what a good answer is.

    Arguments:
        network: what made the codes.
        y: noisy codes.
        x: the true inputs.
        guess: a decoder's output for y; None where there is no decoder.
        decoder: that decoder.
        noise: standard deviation.
    """

    network: Network
    y: Tensor
    x: Tensor
    guess: Tensor | None
    noise: float
    decoder: Network | None = None


def by_invert(sample: Sample, weight: float, *, start: Tensor | None, anchor: float, **options: Any) -> Tensor:
    """The library's own, with other options."""
    return invert(sample.network, sample.y, PRIOR, weight, start=start, anchor=anchor, **options).x


def by_sure(sample: Sample, weight: float, *, start: Tensor | None, anchor: float) -> Tensor:
    """The same with a weight and an anchor that SURE chooses instead of the given ones."""
    assert sample.decoder is not None
    return invert(sample.network, sample.y, PRIOR, noise_level=sample.noise, start=sample.decoder).x


@dataclass(frozen=True)
class Contestant:
    """A way to invert.

    Arguments:
        name: in tables.
        options: of the method.
        method: (sample, weight, start, anchor, options) ↦ images.
        warm: start from the decoder's output and be anchored there.
        grey: start from the grey image ½ instead of black.
        baseline: whether anyone would write it down with torch alone, or it is nested PDHG.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Callable[..., Tensor] = by_invert
    warm: bool = False
    grey: bool = False
    baseline: bool = False

    def run(self, sample: Sample, weight: float, anchor: float) -> Tensor:
        start = sample.guess if self.warm else torch.full_like(sample.x, 0.5) if self.grey else None
        return self.method(sample, weight, start=start, anchor=anchor, **self.options)


def contestants(scale: Scale, warm: bool) -> list[Contestant]:
    """The reference comes first. All have the same start, prior, weight and anchor; SURE chooses for itself."""
    steps: dict[str, Any] = {"steps": scale.adam_steps}
    baseline: dict[str, Any] = {"warm": warm, "baseline": True}
    nested = {"algorithm": "nested-pdhg", "max_steps": scale.adam_steps}
    usual = {} if scale.default_steps is None else {"max_steps": scale.default_steps}
    methods = [
        Contestant("Adam, rate 0.05", steps, adam, **baseline),
        Contestant("Adam, rate 0.02", {**steps, "rate": 0.02}, adam, **baseline),
        Contestant("nested PDHG", nested, **baseline),
        Contestant("L-BFGS", steps, lbfgs, **baseline),
        Contestant("sweep", {"algorithm": "sweep", "max_steps": scale.sweeps}, warm=warm),
        Contestant("default", usual, warm=warm),
    ]
    return [*methods, Contestant("default, SURE", method=by_sure, warm=True)] if warm else methods


def lbfgs(sample: Sample, weight: float, steps: int, start: Tensor | None = None, anchor: float = 0.0) -> Tensor:
    """The objective of `adam` by torch's own L-BFGS with its line search, the images clamped to [0, 1] in the loss."""
    x, value = _on_modules(sample, weight, start, anchor)
    optimiser = torch.optim.LBFGS([x], max_iter=steps, max_eval=steps, line_search_fn="strong_wolfe", history_size=10)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = value(x.clamp(0, 1))
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)
    return x.detach().clamp(0, 1)


@torch.no_grad()
def objective(sample: Sample, x: Tensor, weight: float, anchor: float, start: Tensor | None) -> float:
    """½‖N(x) − y‖² + ρ TV(x) + λ/2 ‖x − x₀‖², the mean over images."""
    fit = 0.5 * (sample.network(x) - sample.y).square().sum() + weight * TotalVariation().value(x).sum()
    if start is not None:
        fit = fit + 0.5 * anchor * (x - start).square().sum()
    return float(fit) / len(x)


def adam(
    sample: Sample, weight: float, steps: int, start: Tensor | None = None, anchor: float = 0.0, rate: float = 0.05
) -> Tensor:
    """½‖N(x) − y‖² + ρ TV_ε(x) + λ/2 ‖x − x₀‖² by torch's own Adam on torch's own modules, clamped to [0, 1].

    Nothing but one forward and one backward pass per step: what everything else is timed against.
    """
    x, value = _on_modules(sample, weight, start, anchor)
    optimiser = torch.optim.Adam([x], lr=rate)
    with torch.enable_grad():
        for _ in range(steps):
            optimiser.zero_grad()
            value(x).backward()
            optimiser.step()
            with torch.no_grad():
                x.clamp_(0, 1)
    return x.detach()


def _on_modules(
    sample: Sample, weight: float, start: Tensor | None, anchor: float
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Where x begins, and the objective of `adam` with ε = 10⁻³."""
    module = sample.network.to_sequential().requires_grad_(False)
    x0 = torch.zeros_like(sample.x) if start is None else start

    def value(x: Tensor) -> Tensor:
        loss = 0.5 * (module(x) - sample.y).square().sum() + weight * _smooth_variation(x, 1e-3)
        return loss + 0.5 * anchor * (x - x0).square().sum() if anchor else loss

    return x0.clamp(0, 1).requires_grad_(), value


def _smooth_variation(x: Tensor, epsilon: float) -> Tensor:
    """Σ h(‖∇x‖) with h(s) = s²/2ε below ε, s − ε/2 above: the Moreau envelope of total variation's length."""
    down = nn.functional.pad(x[..., 1:, :] - x[..., :-1, :], (0, 0, 0, 1))
    right = nn.functional.pad(x[..., 1:] - x[..., :-1], (0, 1))
    square = down.square() + right.square()
    long = square.clamp_min(epsilon**2).sqrt() - epsilon / 2
    return torch.where(square < epsilon**2, square / (2 * epsilon), long).sum()


def held_out(data: str, scale: Scale) -> tuple[Tensor, Tensor]:
    """Images for the report and, others, for choices; no autoencoder has seen any of them."""
    if data == "mnist":
        images = load_mnist("test").images
        return images[: scale.images], images[len(images) - scale.choice :]
    return load_digits("test").images[: scale.images], load_digits("validation").images[: scale.choice]


@torch.no_grad()
def codes(model: Autoencoder, x: Tensor, noise: float, seed: int) -> Sample:
    """Noisy codes of images."""
    clean = model.encoder(x)
    y = clean + noise * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))
    return Sample(model.encoder, y, x, model.decoder(y), noise, model.decoder)


def autoencoder(
    model: Autoencoder, report: Tensor, choice: Tensor, scale: Scale, say: Report
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """One row per noise with every contestant's gain over the decoder; and five pictures at the paper's noise."""
    rows, pictures = [], {}
    for noise in scale.noise:
        where = f"loss {model.level:g}, noise {noise:g}"
        ours, tuning = codes(model, report, noise, scale.seed), codes(model, choice, noise, scale.seed + 1)
        assert ours.guess is not None
        base = psnr(ours.guess, ours.x)
        repeats = scale.repeats if noise == NOISE else 1
        field = contestants(scale, warm=True)
        cells, images = compare(field, ours, tuning, scale, repeats, lambda text, at=where: say(f"{at}: {text}"))
        clamped = psnr(ours.guess.clamp(0, 1), ours.x)
        rows.append(
            {
                "level": model.level,
                "noise": noise,
                "decoder": mean_error(base),
                "clamped decoder": mean_error(clamped - base),
                "contestants": [
                    {**cell, "gain": mean_error(cell["psnr"] - base), "psnr": mean_error(cell["psnr"])}
                    for cell in cells
                ],
            }
        )
        if noise == NOISE:
            pictures = {"input": ours.x, "decoder": ours.guess, "default": images["default"]}
            pictures["default, SURE"] = images["default, SURE"]
    return rows, {name: tensor[:5].clone() for name, tensor in pictures.items()}


def compare(
    field: Sequence[Contestant], ours: Sample, choice: Sample, scale: Scale, repeats: int, say: Report
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Every contestant in turn on `ours`, with the weight and anchor that are best for the first on `choice`."""
    say(f"{field[0].name}: choosing the weight")
    weight, anchor = choose(field[0], choice, scale.reach)
    seconds: dict[str, list[float]] = {each.name: [] for each in field}
    images: dict[str, Tensor] = {}
    for _ in range(repeats):
        for each in field:
            say(each.name)
            begin = time.process_time()
            images[each.name] = each.run(ours, weight, anchor)
            seconds[each.name].append(time.process_time() - begin)
    times = {name: median_high(values) for name, values in seconds.items()}
    say("default: time to the others' objectives")
    path = descent(next(each for each in field if each.name == "default"), ours, weight, anchor)
    cells = []
    for each in field:
        end = objective(ours, images[each.name], weight, anchor, ours.guess if each.warm else None)
        there = (seconds for seconds, value in path if value <= end)  # the default, at where a baseline ended
        cells.append(
            {
                "name": each.name,
                "baseline": each.baseline,
                "weight": weight,
                "anchor": anchor,
                "objective": end,
                "psnr": psnr(images[each.name], ours.x),
                "seconds": times[each.name],
                "time ratio": times[each.name] / times[field[0].name],
                "reached": next(there, None) if each.baseline else None,
            }
        )
    return cells, images


def descent(contestant: Contestant, sample: Sample, weight: float, anchor: float) -> list[tuple[float, float]]:
    """(processor seconds, mean objective of the network) after every step of `invert`."""
    path: list[tuple[float, float]] = []
    begin = time.process_time()

    def note(record: Record) -> None:
        if "lifted" not in record.extra:
            path.append((time.process_time() - begin, record.value))

    replace(contestant, options={**contestant.options, "progress": note}).run(sample, weight, anchor)
    return path


def choose(contestant: Contestant, sample: Sample, reach: int) -> tuple[float, float]:
    """The weight, and for warm starts the anchor, of largest mean PSNR: uphill in factors of 2 and 4."""

    def settings(place: tuple[int, int]) -> tuple[float, float]:
        return 2 * sample.noise**2 * 2.0 ** place[0], 10 * sample.noise**2 * 4.0 ** place[1] if contestant.warm else 0.0

    @cache
    def quality(place: tuple[int, int]) -> float:
        mean = float(psnr(contestant.run(sample, *settings(place)), sample.x).mean())
        return mean if math.isfinite(mean) else -math.inf

    here = (0, 0)
    moves = [(1, 0), (-1, 0), *([(0, 1), (0, -1)] if contestant.warm else [])]
    while True:
        best = max([here, *((here[0] + a, here[1] + b) for a, b in moves)], key=quality)
        if best == here or max(map(abs, best)) >= reach:
            return settings(best)
        here = best


def rules(model: Autoencoder, report: Tensor, scale: Scale, say: Report) -> list[dict[str, Any]]:
    """The rules for the weight at the paper's noise, against the best single weight for these very images."""
    sample = codes(model, report, NOISE, scale.seed)
    assert sample.guess is not None
    base = psnr(sample.guess, sample.x)

    def row(name: str, weight: float | WeightRule) -> dict[str, Any]:
        say(f"loss {model.level:g}: {name}")
        begin = time.process_time()
        inverted = invert(sample.network, sample.y, PRIOR, weight, noise_level=NOISE, max_steps=scale.long_sweeps)
        seconds = time.process_time() - begin
        return {
            "level": model.level,
            "rule": name,
            "weight": float(inverted.weight.mean()),
            "gain": mean_error(psnr(inverted.x, sample.x) - base),
            "seconds": seconds,
            "trace": [] if inverted.weight_trace is None else inverted.weight_trace.rows(),
        }

    steps = min(60, scale.sweeps)
    tried = [row("best single weight", 2.0**k / 100) for k in range(-3, 4)]
    best = max(tried, key=lambda each: each["gain"][0])
    every: list[WeightRule] = [Sure(steps=steps), Discrepancy(steps=steps), LCurve(steps=steps)]
    named = {rule.name: rule for rule in every}
    named |= {f"{rule.name}, per image": replace(rule, per_image=True) for rule in every}
    return [best, *(row(name, rule) for name, rule in named.items())]


def coverage(model: Autoencoder, report: Tensor, held: Tensor, scale: Scale, say: Report) -> list[dict[str, Any]]:
    """The share of true pixels inside 90 % intervals at every noise, as they come and calibrated on held-out images.

    Both sets are inverted in one call, in which SURE chooses weight, anchor and whether pixels at a bound stay: with
    settings that differ between the two a calibration would be worthless.
    """
    rows, known, images = [], len(held), torch.cat([held, report])
    for noise in scale.noise:
        say(f"loss {model.level:g}, noise {noise:g}: coverage")
        sample = codes(model, images, noise, scale.seed)
        inverted = invert(sample.network, sample.y, PRIOR, noise_level=noise, start=sample.decoder)
        plain = inverted.interval(0.9)
        bars = inverted.interval(0.9, calibration=calibrate(plain.deviation[:known], inverted.x[:known], held))
        rows.append(
            {
                "level": model.level,
                "noise": noise,
                "held out": len(held),
                "images": len(report),
                "chosen": "" if inverted.weight_trace is None else inverted.weight_trace.note,
                "uncalibrated": mean_error(plain.coverage(images)[known:]),
                "calibrated": mean_error(bars.coverage(images)[known:]),
                "factor": bars.factor,
                "width": float(bars.width[known:].mean()),
            }
        )
    return rows


def mean_error(values: Tensor) -> list[float]:
    """Mean and standard error."""
    values = values.double()
    spread = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return [float(values.mean()), spread]


class Other(NamedTuple):
    """Another network with random weights, and images to be found again."""

    network: Network
    report: Tensor
    choice: Tensor


def others(scale: Scale) -> dict[str, Other]:
    """A dense network of five tanh layers, one of strided convolutions, and a soft-threshold perceptron."""
    digits = held_out("digits", scale)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(scale.seed)
        widths = (784, 500, 450, 420, 400, 392)
        dense = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.Tanh())]
        convolutions = [
            *(nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 4, stride=2, padding=1), nn.ReLU()),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
        ]
        single = [nn.Linear(784, 784), SoftThreshold(0.1).to_module()]
        for module in (*dense, *single):
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, gain=5 / 3)
        for module in convolutions:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
    shapes = painted(scale.images + scale.choice, 64, scale.seed)
    return {
        "tanh, 5 dense layers": Other(lift(nn.Sequential(nn.Flatten(), *dense), (1, 28, 28)), *digits),
        "ReLU, 3 strided convolutions": Other(
            lift(nn.Sequential(*convolutions), (1, 64, 64)), shapes[: scale.images], shapes[scale.images :]
        ),
        "soft-threshold perceptron": Other(lift(nn.Sequential(nn.Flatten(), *single), (1, 28, 28)), *digits),
    }


def painted(count: int, side: int, seed: int) -> Tensor:
    """Synthetic images (count, 1, side, side): six discs and rectangles of random grey on black, in turn."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(side, dtype=torch.float32) / side
    images = torch.zeros(count, side, side)
    for k in range(6):
        top, left, height, width, grey = torch.rand(5, count, 1, 1, generator=generator)
        down, right = (place[:, None] - top) / (0.05 + 0.2 * height), (place - left) / (0.05 + 0.2 * width)
        inside = (down.square() + right.square() < 1) if k % 2 else (down.abs() < 1) & (right.abs() < 1)
        images = torch.where(inside, grey, images)
    return images[:, None]


@torch.no_grad()
def other(name: str, case: Other, scale: Scale, say: Report) -> list[dict[str, Any]]:
    """Every algorithm on one of the other networks, with noise of 5 % of the outputs' size; PSNR itself, no decoder."""
    clean = case.network(case.report)
    noise = 0.05 * float(clean.std())

    def noisy(x: Tensor, seed: int) -> Sample:
        y = case.network(x)
        y = y + noise * torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        return Sample(case.network, y, x, None, noise)

    field = contestants(scale, warm=False)
    grey = [replace(each, name=f"{each.name}, grey start", grey=True) for each in field if each.baseline]
    field = [*field, *grey]
    field = [
        replace(each, options={**each.options, "on_infeasible": "project"}) if each.name == "sweep" else each
        for each in field
    ]
    if case.network.depth == 1:
        options = {"algorithm": Exact(tolerance=1e-5), "max_steps": 4 * scale.adam_steps}
        field.append(Contestant("exact", options))
    ours, choice = noisy(case.report, scale.seed), noisy(case.choice, scale.seed + 1)
    cells, _ = compare(field, ours, choice, scale, 1, lambda text: say(f"{name}: {text}"))
    return [{"network": name, "noise": noise, **cell, "psnr": mean_error(cell["psnr"])} for cell in cells]


def growth(model: Autoencoder, images: Tensor, scale: Scale, say: Report) -> list[dict[str, Any]]:
    """Time and memory per image of one call, for more and more images."""
    rows = []
    for count in sorted({max(1, len(images) // 8), max(1, len(images) // 2), len(images)}):
        say(f"{count} images in one call")
        sample = codes(model, images[:count], NOISE, scale.seed)
        begin = time.process_time()
        invert(sample.network, sample.y, PRIOR, algorithm="sweep", max_steps=scale.sweeps, tolerance=0.0)
        seconds = time.process_time() - begin
        together = min(count, 128)
        with PeakMemory() as memory:
            invert(sample.network, sample.y[:together], PRIOR, algorithm="sweep", max_steps=3)
        rows.append(
            {
                "images": count,
                "seconds per image": seconds / count,
                "at once": together,
                "bytes per image": memory.peak / together,
            }
        )
    return rows
