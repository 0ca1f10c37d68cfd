"""The cases of `torchlift bench league`: digits, dead layers, inverse problems, unrolled networks, photographs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.errors import invalid_value
from torchlift.data import TASKS, load_digits, load_images, load_mnist
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.lab.benchmarks.step_modules import AUTOENCODER, VGG
from torchlift.lab.problem import SIDE
from torchlift.liftings import Bregman
from torchlift.networks import LISTA, MLP, PrimalDual, ResNet
from torchlift.operators import Dense, Identity, dct_matrix
from torchlift.prox import ProximalActivation, ReLU, SoftThreshold, Tanh
from torchlift.training import METRICS, Metric, TrainOptions, initialise_weights

PIXELS = SIDE**2
#: Squared error of a sample, summed over its entries: the measure of autoencoders in the literature.
ERROR = Metric("error", lambda output, target: (output - target).flatten(1).square().sum(1))
MEASURES = {**METRICS, ERROR.name: ERROR}


@dataclass(frozen=True)
class Data:
    """Training data as `train` takes it, held-out data for choices, and data for the report."""

    training: Any
    choice: tuple[Any, ...]
    report: tuple[Any, ...]


@dataclass(frozen=True)
class Baseline:
    """An optimiser with its trials.

    Arguments:
        make: (setting, parameters) ↦ optimiser.
        settings: of the trials, the most usual one first.
        anneal: of the learning rate.
        centring: eliminate biases as ours does.
        averages: whether an exponential average of the weights is judged.
        extra: whether it comes from pytorch_optimizer.
    """

    make: Callable[[float, list[Tensor]], torch.optim.Optimizer]
    settings: tuple[float, ...]
    anneal: Any = "cosine"
    centring: bool = False
    averages: bool = False
    extra: bool = False


@dataclass(frozen=True)
class Case:
    """A network, data and a budget.

    Arguments:
        name: of the case; `family` is that of a group of cases.
        build: makes the module, with torch's start.
        data: seed ↦ data.
        metric: "accuracy" (%), "psnr" or "nmse" (dB), or "error" (squared error of a sample, summed over its entries).
        epochs: budget in epochs of fused AdamW; None where it is given in seconds.
        seconds: budget of processor time.
        batch_size: of baselines.
        baselines: further ones, in this case only.
        variants: further settings of `train`, in this case only; names begin with "ours, ".
    """

    family: str
    name: str
    build: Callable[[], nn.Module]
    data: Callable[[int], Data]
    metric: str
    epochs: int | None = None
    seconds: float = 0.0
    batch_size: int = 100
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def loss(self) -> Loss:
        return CrossEntropy() if self.metric == "accuracy" else SquaredError()


def cases(tiny: bool = False, cifar: Path | None = None) -> dict[str, Case]:
    """All cases by name; that of CIFAR-10 where its folder is given.

    Arguments:
        tiny: a few of the bundled digits and small networks, for tests.
        cifar: folder of image files train/CLASS/NAME and test/CLASS/NAME.
    """
    made = [*_digits(tiny), *_dead(tiny), *_imaging(tiny), *_unrolled(tiny), *_sensing(tiny), *_starts(tiny)]
    if cifar is not None:
        data = partial(_photographs, cifar)
        made.append(Case("convolutions", "CIFAR-10, VGG", VGG, data, "accuracy", seconds=120.0))
    return {case.name: case for case in made}


# -- digits -----------------------------------------------------------------------------------------------------------


def _mlp(widths: Sequence[int], activation: ProximalActivation) -> nn.Module:
    return MLP(widths, activation).to_sequential()


def _classify(family: str, name: str, build: Callable[[], nn.Module], epochs: int, tiny: bool) -> Case:
    name = f"{name}, {epochs} epoch{'' if epochs == 1 else 's'}"
    return Case(family, name, build, lambda seed: classification(tiny), "accuracy", epochs, batch_size=200)


def _digits(tiny: bool) -> list[Case]:
    """Networks that train from torch's start, and a deep autoencoder."""

    def residual() -> nn.Module:
        return ResNet(PIXELS, [128] * 8, 10).to_sequential()

    settings = [
        ("mnist 784-256-256", [256, 256], ReLU(), (1, 10)),
        ("mnist 784-100-100", [100, 100], ReLU(), (2,)),
        ("mnist 5 × 256 tanh", [256] * 5, Tanh(), (1,)),
        ("mnist 10 × 600", [600] * 10, ReLU(), (1, 3)),
    ]
    autoencoder = partial(_mlp, AUTOENCODER, Tanh())
    return [
        *(
            _classify("mnist", name, partial(_mlp, [PIXELS, *hidden, 10], activation), epochs, tiny)
            for name, hidden, activation, budgets in settings
            for epochs in budgets
        ),
        *(_classify("resnet", "mnist ResNet 8 × 128", residual, epochs, tiny) for epochs in (1, 3)),
        Case("mnist", "deep autoencoder, 10 s", autoencoder, lambda seed: _reproduced(tiny), "error", None, 10.0, 50),
    ]


def _dead(tiny: bool) -> list[Case]:
    """Deep networks whose gradients vanish at torch's start."""
    settings = [
        ("mnist 5 × 256 soft-threshold", [256] * 5, SoftThreshold(0.3), (1, 5)),
        ("mnist 10 × 256 soft-threshold", [256] * 10, SoftThreshold(0.3), (5,)),
        ("mnist 30 × 64", [64] * 30, ReLU(), (1,)),
        ("mnist 30 × 128 tanh", [128] * 30, Tanh(), (5,)),
        ("mnist 30 × 128 ReLU", [128] * 30, ReLU(), (5,)),
        ("mnist 50 × 128 ReLU", [128] * 50, ReLU(), (5,)),
    ]
    return [
        _classify("dead", name, partial(_mlp, [PIXELS, *hidden, 10], activation), epochs, tiny)
        for name, hidden, activation, budgets in settings
        for epochs in budgets
    ]


@lru_cache(maxsize=2)
def classification(tiny: bool) -> Data:
    """Choices are made on a sixth of the training images, which is not trained on."""
    training, report = (
        (part.images.flatten(1), part.labels) for part in map(load_digits if tiny else load_mnist, ("train", "test"))
    )
    y, x = (tensor[: 600 if tiny else None] for tensor in training)
    kept = len(y) * 5 // 6
    return Data((y[:kept], x[:kept]), (y[kept:], x[kept:]), report)


def _reproduced(tiny: bool) -> Data:
    images = [load_digits(split).images for split in ("train", "test", "validation")]
    return Data(*((y, y) for y in (part[: 200 if tiny else None].flatten(1) for part in images)))


def _photographs(folder: Path, seed: int) -> Data:
    """CIFAR-10; choices are made on a tenth of the training images, which is not trained on."""
    images, labels = load_cifar(folder, "train")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order[len(order) // 10 :], order[: len(order) // 10]
    training, choice = ((images[part], labels[part]) for part in parts)
    return Data(training, choice, load_cifar(folder, "test"))


def cifar_classes(folder: Path, split: str) -> list[Path]:
    """The folders of the classes, by name; refused where there are none."""
    classes = sorted(path for path in (folder / split).glob("*") if path.is_dir())
    if not classes:
        expected = f"folders {split}/CLASS of image files"
        invalid_value(f"load_cifar {folder}", expected, "none", "Unpack the archive, and name the folder around it.")
    return classes


def load_cifar(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) in [0, 1] and labels of "train" or "test".

    Arguments:
        folder: of files train/CLASS/NAME and test/CLASS/NAME; classes are numbered by their names.
        split: "train" or "test".
    """
    classes = cifar_classes(folder, split)
    images = [torch.stack(load_images(path, channels=3)) for path in classes]
    labels = [torch.full((len(batch),), number) for number, batch in enumerate(images)]
    return torch.cat(images).float() / 255, torch.cat(labels)


# -- inverse problems -------------------------------------------------------------------------------------------------


def _imaging(tiny: bool) -> list[Case]:
    """Dense soft-threshold networks, as in the paper."""
    return [
        Case(
            "imaging", f"{task}, threshold {threshold}, {seconds:.0f} s",
            partial(_mlp, [PIXELS] * 8, SoftThreshold(threshold)), partial(restored, tiny, task, True), "psnr",
            seconds=seconds,
        )
        for task, threshold, seconds in product(TASKS, (0.2, 0.02), (10.0, 30.0))
    ]  # fmt: skip


def _unrolled(tiny: bool) -> list[Case]:
    """LISTA and primal-dual networks that know the forward model, and in inpainting each image's mask."""
    adam = {"Adam, two rates": Baseline(two_rates, (1e-3, 5e-4, 2e-3))}
    return [
        Case(
            family, f"{kind}, {task}, {budget}", partial(unrolled_network, kind, task),
            partial(restored, tiny, task, False, redrawn=family == "redrawn"), "psnr", None, seconds, 50, adam,
        )
        for family, kinds, budget, seconds in (
            ("unrolled", ("LISTA", "PrimalDual"), "8 s", 8.0),
            ("redrawn", ("PrimalDual",), "redrawn, 30 s", 30.0),
        )
        for kind, task in product(kinds, TASKS)
    ]  # fmt: skip


def restored(tiny: bool, task: str, flat: bool, seed: int, redrawn: bool = False) -> Data:
    """5,000 images; choices on the 1,000 images of the test split, the report on the 500 of the validation split.

    Arguments:
        redrawn: draw noise and masks of the training images anew in every epoch.
    """

    def degraded(split: str, generator: torch.Generator) -> tuple[Any, ...]:
        x = load_digits(split).images[: 200 if tiny else None]
        y, context = (drawn := TASKS[task].degrade(x, generator)).y, drawn.context
        if flat:
            return y.flatten(1), x.flatten(1)
        return (y, x) if context is None else (y, x, context)

    parts = [
        degraded(split, torch.Generator().manual_seed(10 * seed + number))
        for number, split in enumerate(("train", "test", "validation"))
    ]
    return Data(partial(degraded, "train") if redrawn else parts[0], *parts[1:])


def unrolled_network(kind: str, task: str) -> nn.Module:
    """ "LISTA" or "PrimalDual" for a task, at the start of its algorithm."""
    x = load_digits("train").images[:2]
    operator = TASKS[task].operator((1, SIDE, SIDE), x)
    context = TASKS[task].degrade(x, torch.Generator().manual_seed(0)).context
    if kind == "PrimalDual":
        return PrimalDual(operator, 0.7 * dct_matrix(SIDE, SIDE), 8, context=context)
    dictionary = dct_matrix(SIDE, SIDE).T if task == "inpainting" else torch.eye(PIXELS)
    return LISTA(operator, dictionary.contiguous(), 5, context=context)


def two_rates(rate: float, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Adam with a rate of 0.1 for thresholds and step sizes, which are learned by their logarithms."""
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "lr": rate},
        {"params": [p for p in parameters if p.ndim <= 1], "lr": 0.1},
    ]
    return torch.optim.Adam([group for group in groups if group["params"]], fused=True)


def _sensing(tiny: bool) -> list[Case]:
    """Compressed sensing, 250 × 500: ten coupled layers of LISTA on sparse codes drawn anew in every epoch."""
    rows, columns = (25, 50) if tiny else (250, 500)
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    matrix = matrix / torch.linalg.vector_norm(matrix, dim=0)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Codes, a tenth of whose entries are standard normal, and their measurements without noise."""
        shape = (100 if tiny else 5000, columns)
        chosen = torch.rand(shape, generator=generator) < 0.1
        x = torch.where(chosen, torch.randn(shape, generator=generator), 0.0)
        return x @ matrix.T, x

    def data(seed: int) -> Data:
        return Data(draw, *(draw(torch.Generator().manual_seed(10 * seed + number)) for number in (1, 2)))

    def build() -> nn.Module:
        learnable = ("coupling", "threshold")
        return LISTA(Dense(matrix), Identity((columns,)), 10, form="coupled", threshold=0.1, learnable=learnable)

    adam = {"Adam, two rates": Baseline(two_rates, (4e-3, 2e-3, 8e-3))}
    return [Case("sensing", f"coupled LISTA, {rows} × {columns}, 30 s", build, data, "nmse", None, 30.0, 50, adam)]


def _starts(tiny: bool) -> list[Case]:
    """The paper's denoiser from several starts of its weights and of its lifted variables."""
    widths = [PIXELS] * (3 if tiny else 9)
    weights = ("keep", "he", "orthogonal", "lsuv", "identity", "identity-fit", "layer-wise")
    states = ("forward", "input", "random", "warm")

    def identity() -> nn.Module:
        network = MLP(widths, SoftThreshold(0.2))
        initialise_weights(network, "identity")
        return network

    def options(how: str) -> dict[str, Any]:
        return {"lifting": Bregman(0.1), "weights": "keep", "options": TrainOptions(states=how)}

    case = partial(Case, data=partial(restored, tiny, "denoising", True), metric="psnr")
    plain = partial(_mlp, widths, SoftThreshold(0.2))
    weighted = {f"ours, weights {how}": {"weights": how, "batch_size": 50} for how in weights}
    lifted = {f"ours, states {how}": options(how) for how in states}
    fitted = {"ours, layer-wise": weighted["ours, weights layer-wise"]}
    name = "denoising, threshold 0.2, 7 × 784, 20 s"
    return [
        case("default-start", name, plain, seconds=20.0, variants=fitted),
        case("starts", "starting weights, 10 s", plain, seconds=10.0, variants=weighted),
        case("starts", "starting lifted variables, 20 s", identity, seconds=20.0, variants=lifted),
    ]
