"""The comparisons of `torchlift bench training`: digits, sleeping layers, inverse problems, unrolled networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from torchlift.data import TASKS, load_digits, load_mnist
from torchlift.functions.losses import CrossEntropy
from torchlift.lab.benchmarks.training import CHOOSING, Case, Contestant, Data, baselines
from torchlift.liftings import Bregman, Conventional
from torchlift.networks import LISTA, MLP, Network, PrimalDual, ResNet
from torchlift.operators import Dense, Identity, dct_matrix
from torchlift.prox import ProximalActivation, ReLU, SoftThreshold, Tanh
from torchlift.training import BackPropagation, TrainOptions, initialise_weights

SIDE = 28
PIXELS = SIDE * SIDE
#: Of Adam for the matrices and for the numbers of unrolled networks, the best one in most tasks first.
RATES = [(1e-3, 1e-1), (1e-3, 2e-1), (1e-3, 3e-2), (5e-4, 1e-1), (2e-3, 1e-1)]


@dataclass(frozen=True)
class Scale:
    """How large the comparisons are.

    Arguments:
        full: all of MNIST and the stated budgets; otherwise the bundled digits and a few steps, for tests.
        seconds: budgets of the inverse problems.
    """

    full: bool = True
    seconds: tuple[float, ...] = (10.0,)

    def epochs(self, number: int) -> dict[str, Any]:
        return {"epochs": number if self.full else 1}

    def time(self, seconds: float) -> dict[str, Any]:
        return {"time_limit": seconds} if self.full else {"steps": 4}


# -- classification ---------------------------------------------------------------------------------------------------


def _mlp(widths: Sequence[int], activation: ProximalActivation, start: str | None, seed: int) -> Network:
    """From torch's default initialisation, or another one."""
    generator = torch.Generator().manual_seed(seed)
    network = MLP(widths, activation, generator=generator)
    if start is not None:
        initialise_weights(network, start, generator=generator)
    return network


@lru_cache(maxsize=2)
def _digits(full: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(images, labels) for training and for the report."""
    parts = [load_mnist(split) if full else load_digits(split) for split in ("train", "test")]
    pairs = [(part.images.flatten(1), part.labels) for part in parts]
    return (pairs[0], pairs[1]) if full else ((pairs[0][0][:600], pairs[0][1][:600]), pairs[1])


def classification(full: bool, seed: int) -> Data:
    """Choices are made on a sixth of the training data, which is then not trained on."""
    (y, x), report = _digits(full)
    kept = len(y) * 5 // 6
    choice = (y[kept:], x[kept:])
    return Data((y[:kept], x[:kept]) if seed >= CHOOSING else (y, x), choice, report)


def _digit_case(
    scale: Scale, name: str, widths: Sequence[int], epochs: int, target: float | None, activation: ProximalActivation,
    batch: int = 200, rates: Sequence[float] = (1e-3, 3e-3), starts: Sequence[str | None] = (None, "he"),
) -> Case:  # fmt: skip
    build = {start: partial(_mlp, widths, activation, start) for start in starts}
    others = [
        replace(baseline, name=f"{baseline.name}{'' if start is None else ', He'}")
        for start, make in build.items()
        for baseline in baselines(make, rates if scale.full else rates[:1], (batch,))
    ]
    ours = Contestant("lifted", partial(_mlp, widths, activation, None), {"batch_size": batch})
    data = partial(classification, scale.full)
    return Case(name, data, "accuracy", scale.epochs(epochs), [ours], others, target, CrossEntropy())


def mnist(scale: Scale) -> list[Case]:
    """ReLU networks, where back-propagation is at home."""
    wide = [PIXELS, *[600] * 10, 10]
    return [
        _digit_case(scale, "784-256-256-10, 1 epoch", [PIXELS, 256, 256, 10], 1, 96.5, ReLU()),
        _digit_case(scale, "784-256-256-10, 10 epochs", [PIXELS, 256, 256, 10], 10, 98.3, ReLU()),
        _digit_case(scale, "784-100-100-10, 2 epochs", [PIXELS, 100, 100, 10], 2, 97.6, ReLU()),
        _digit_case(scale, "10 × 600, 3 epochs", wide, 3, 97.4, ReLU(), rates=(1e-3,)),
    ]


def dead(scale: Scale) -> list[Case]:
    """Deep networks from torch's default initialisation, whose gradients vanish. Both sides start there."""
    settings = [
        ("5 × 256 soft-threshold 0.3, 5 epochs", [256] * 5, 5, 95.5, SoftThreshold(0.3)),
        ("10 × 256 soft-threshold 0.3, 5 epochs", [256] * 10, 5, None, SoftThreshold(0.3)),
        ("30 × 128 tanh, 5 epochs", [128] * 30, 5, None, Tanh()),
        ("30 × 128 ReLU, 5 epochs", [128] * 30, 5, None, ReLU()),
        ("50 × 128 ReLU, 5 epochs", [128] * 50, 5, None, ReLU()),
    ]
    return [
        _digit_case(
            scale, name, [PIXELS, *hidden, 10], epochs, target, activation, rates=(1e-3,), starts=(None,)
        )
        for name, hidden, epochs, target, activation in settings
    ]  # fmt: skip


# -- inverse problems -------------------------------------------------------------------------------------------------


def _pair(
    task: str, count: int | None, generator: torch.Generator, split: str = "train", flat: bool = False
) -> tuple[Any, ...]:
    """Degraded images, the images, and where the operator needs one, a context."""
    x = load_digits(split).images[:count]
    degraded = TASKS[task].degrade(x, generator)
    if flat:
        return degraded.y.flatten(1), x.flatten(1)
    return (degraded.y, x) if degraded.context is None else (degraded.y, x, degraded.context)


def restored(full: bool, task: str, flat: bool, seed: int) -> Data:
    """5,000 images; choices on the 1,000 images of the test split, the report on the 500 of the validation split."""
    parts = (("train", 10 * seed), ("test", 10 * seed + 1), ("validation", 10 * seed + 2))
    count = None if full else 200
    return Data(*(_pair(task, count, torch.Generator().manual_seed(number), split, flat) for split, number in parts))


def _denoiser(scale: Scale, threshold: float, start: str | None, seed: int) -> Network:
    return _mlp([PIXELS] * (9 if scale.full else 3), SoftThreshold(threshold), start, seed)


#: Lifted training of the dense networks: every layer is fitted first, then all of them are trained.
FITTED: dict[str, Any] = {"weights": "layer-wise", "batch_size": 50}


def imaging(scale: Scale) -> list[Case]:
    """The paper's 7 × 784 soft-threshold networks.

    Back-propagation starts as the identity, and in cases of their own, which only report, from our layer-wise fit.
    """
    margins = {"denoising": 0.4, "deblurring": 1.0, "inpainting": 0.1}
    cases = []
    for seconds in scale.seconds:
        for threshold in (0.2, 0.02):
            for task, margin in margins.items():
                build = partial(_denoiser, scale, threshold, "identity")
                rates = (3e-4, 5e-4, 1e-3) if scale.full else (5e-4,)
                others = baselines(build, rates, (50, 100) if scale.full else (50,))
                target = margin if seconds == 10 and threshold == 0.2 else 0.5
                name = f"{task}, threshold {threshold}, {seconds:g} s"
                data = partial(restored, scale.full, task, True)
                fitted = Contestant("lifted", build, FITTED)
                ours = [fitted, Contestant("lifted, from the identity", build, {"batch_size": 50})]
                budget = scale.time(seconds)
                cases.append(Case(name, data, "psnr", budget, ours, others, target, select=True, goal="margin"))
                rates = (1e-4, 3e-4, 1e-3) if scale.full else (3e-4,)
                same = baselines(build, rates, (50,), weights="layer-wise")
                name = f"{task} from the layer-wise fit, threshold {threshold}, {seconds:g} s"
                cases.append(Case(name, data, "psnr", budget, [fitted], same, select=True, goal="margin"))
    return cases


def imaging_default(scale: Scale) -> list[Case]:
    """The same networks from torch's default initialisation, where back-propagation has no gradient."""
    data = partial(restored, scale.full, "denoising", True)
    build = partial(_denoiser, scale, 0.2, None)
    ours = [Contestant("lifted, layer-wise first", build, FITTED), Contestant("lifted", build)]
    others = baselines(build, (1e-3,), (100,))
    name = "denoising, threshold 0.2, default initialisation"
    return [Case(name, data, "psnr", scale.time(20.0), ours, others, 22.0, select=True)]


def starts(scale: Scale) -> list[Case]:
    """Where weights and lifted variables begin: denoising, 7 × 784, threshold 0.2; nothing to beat."""
    data = partial(restored, scale.full, "denoising", True)
    build = partial(_denoiser, scale, 0.2, None)
    ways = ("keep", "he", "orthogonal", "lsuv", "identity", "identity-fit", "layer-wise")
    weights = [
        Contestant(f"weights {'default' if way == 'keep' else way}", build, {"weights": way, "batch_size": 50})
        for way in ways
    ]
    through = partial(_denoiser, scale, 0.2, "identity")
    states = [
        Contestant(
            f"states {how}", through, {"lifting": Bregman(0.1), "weights": "keep", "options": TrainOptions(states=how)}
        )
        for how in ("forward", "input", "random", "warm")
    ]
    return [
        Case("starting weights, 10 s", data, "psnr", scale.time(10.0), weights, [], select=True),
        Case("starting lifted variables, 20 s", data, "psnr", scale.time(20.0), states, [], select=True),
    ]


# -- unrolled networks ------------------------------------------------------------------------------------------------


def _lista(task: str, seed: int) -> Network:
    operator, context = _model(task)
    dictionary = dct_matrix(SIDE, SIDE).T if task == "inpainting" else torch.eye(PIXELS)
    return LISTA(operator, dictionary.contiguous(), 5, context=context)


def _primal_dual(task: str, seed: int) -> Network:
    operator, context = _model(task)
    return PrimalDual(operator, 0.7 * dct_matrix(SIDE, SIDE), 8, context=context)


def unrolled_network(kind: str, task: str) -> Network:
    """ "LISTA" or "PrimalDual" for a task, at the start of its algorithm."""
    return (_lista if kind == "LISTA" else _primal_dual)(task, 0)


def _model(task: str) -> tuple[Any, Any]:
    x = load_digits("train").images[:2]
    return TASKS[task].operator((1, SIDE, SIDE), x), TASKS[task].degrade(x, torch.Generator().manual_seed(0)).context


def two_rates(
    matrices: float, numbers: float, parameters: Sequence[Tensor], fused: bool = True
) -> torch.optim.Optimizer:
    """Adam with a rate of its own for thresholds and step sizes, which are learned by their logarithms."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "lr": matrices},
        {"params": [p for p in parameters if p.ndim <= 1], "lr": numbers},
    ]
    return torch.optim.Adam([group for group in groups if group["params"]], fused=fused)


def _unrolled_case(
    scale: Scale, name: str, data: Callable[[int], Data], build: Callable[[int], Network], seconds: float,
    rates: Sequence[tuple[float, float]], target: float, metric: str = "psnr",
) -> Case:  # fmt: skip
    """Ours against back-propagation with Adam, by rates of matrices and of numbers."""

    def options(pair: tuple[float, float], fused: bool) -> dict[str, Any]:
        solver = BackPropagation(partial(two_rates, *pair, fused=fused), "cosine")
        return {"lifting": Conventional(), "solver": solver, "batch_size": 50}

    ours = [Contestant("lifted", build, {"batch_size": 50})]
    others = [
        Contestant(f"Adam {pair[0]:g} and {pair[1]:g}", build, options(pair, True), options(pair, False))
        for pair in (rates if scale.full else rates[:1])
    ]
    return Case(name, data, metric, scale.time(seconds), ours, others, target, select=True)


def _redrawn(full: bool, task: str, seed: int) -> Data:
    return replace(restored(full, task, False, seed), training=partial(_pair, task, None if full else 200))


def unrolled(scale: Scale) -> list[Case]:
    """LISTA and primal-dual networks that know the forward model, and in inpainting each image's mask."""
    goals = {
        "LISTA": (_lista, {"denoising": 23.4, "deblurring": 25.3, "inpainting": 24.5}),
        "PrimalDual": (_primal_dual, {"denoising": 26.5, "deblurring": 28.3, "inpainting": 26.0}),
    }
    return [
        _unrolled_case(
            scale, f"{kind}, {task}, 8 s", partial(restored, scale.full, task, False), partial(make, task), 8.0, RATES,
            target,
        )
        for kind, (make, targets) in goals.items()
        for task, target in targets.items()
    ]  # fmt: skip


def redrawn(scale: Scale) -> list[Case]:
    """Primal-dual networks with new noise and masks in every epoch."""
    targets = {"denoising": 27.0, "deblurring": 28.6, "inpainting": 27.0}
    return [
        _unrolled_case(
            scale, f"PrimalDual, {task}, redrawn, 30 s", partial(_redrawn, scale.full, task),
            partial(_primal_dual, task), 30.0, RATES[:1], target,  # one setting only: a run takes half a minute
        )
        for task, target in targets.items()
    ]  # fmt: skip


def sensing(scale: Scale) -> list[Case]:
    """Compressed sensing, 250 × 500: ten coupled layers of LISTA on sparse codes drawn anew in every epoch."""
    rows, columns = (250, 500) if scale.full else (25, 50)
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    matrix = matrix / torch.linalg.vector_norm(matrix, dim=0)
    draw = partial(_codes, matrix, 5000 if scale.full else 100)

    def data(seed: int) -> Data:
        held = [draw(torch.Generator().manual_seed(10 * seed + number)) for number in (1, 2)]
        return Data(draw, *held)

    def build(seed: int) -> Network:
        identity = Identity((columns,))
        return LISTA(Dense(matrix), identity, 10, form="coupled", threshold=0.1, learnable=("coupling", "threshold"))

    rates = [(4e-3, 1e-1), (2e-3, 1e-1), (8e-3, 1e-1), (4e-3, 3e-2)]
    return [_unrolled_case(scale, f"coupled LISTA, {rows} × {columns}, 30 s", data, build, 30.0, rates, -19.0, "nmse")]


def _codes(matrix: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sparse codes, a tenth of whose entries are standard normal, and their measurements without noise."""
    shape = (count, matrix.shape[1])
    chosen = torch.rand(shape, generator=generator) < 0.1
    x = torch.where(chosen, torch.randn(shape, generator=generator), 0.0)
    return x @ matrix.T, x


def resnet(scale: Scale) -> list[Case]:
    """A residual network against its twin."""

    def build(seed: int) -> Network:
        return ResNet(PIXELS, [128] * 8, 10, generator=torch.Generator().manual_seed(seed))

    data = partial(classification, scale.full)
    ours = [Contestant("lifted", build, {"batch_size": 200})]
    others = baselines(build, (1e-3, 3e-3) if scale.full else (1e-3,), (200,))
    return [Case("ResNet 8 × 128, 3 epochs", data, "accuracy", scale.epochs(3), ours, others, None, CrossEntropy())]


FAMILIES: dict[str, Callable[[Scale], list[Case]]] = {
    "mnist": mnist,
    "dead": dead,
    "imaging": imaging,
    "default-start": imaging_default,
    "unrolled": unrolled,
    "redrawn": redrawn,
    "sensing": sensing,
    "resnet": resnet,
    "starts": starts,
}
