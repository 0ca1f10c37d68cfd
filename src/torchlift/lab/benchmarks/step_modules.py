"""Modules of many kinds, as people write them, for timing one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlift.data.tasks import Deblurring
from torchlift.networks import LISTA, MLP, PrimalDual
from torchlift.operators.transforms import dct_matrix
from torchlift.prox import SoftThreshold


@dataclass(frozen=True)
class StepCase:
    """A module and what it is fed.

    Arguments:
        name: in the table.
        build: makes the module.
        shape: of one input.
        batch: samples per step.
        classes: number of labels; None for a target of the output's shape.
        goal: largest ratio to back-propagation with fused Adam; None where the case only reports.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    classes: int | None = None
    goal: float | None = None


def dense(widths: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def small_convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(800, 10),
    )  # fmt: skip


def convolutions(count: int, channels: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU()]
    for _ in range(count - 2):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 3, padding=1))


class _BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.skip = nn.Identity()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + self.skip(x))


def residual_18(width: int = 64) -> nn.Module:
    """ResNet-18 for pictures of 32 × 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    before = width
    for stage in range(4):
        after = width * 2**stage
        layers += [_BasicBlock(before, after, 1 if stage == 0 else 2), _BasicBlock(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class UNet(nn.Module):
    """Two scales, with a concatenation."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join, self.last = nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.down1(x))
        second = F.relu(self.middle(F.relu(self.down2(F.max_pool2d(first, 2)))))
        return self.last(F.relu(self.join(torch.cat([first, self.up(second)], 1))))


class Transformer(nn.Module):
    """Two layers over the rows of a picture."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Linear(28, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class VGG(nn.Module):
    """32-64-64 with batch norm and max-pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((3, 32), (32, 64), (64, 64)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (32, 64, 64))
        self.head = nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.max_pool2d(torch.relu(norm(conv(x))), 2)
        return self.head(x.flatten(1))


class Depthwise(nn.Module):
    """Inverted residuals with ReLU6, as in MobileNet-V2."""

    def __init__(self, width: int = 24, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, 4 * width, 1), nn.ReLU6(), nn.Conv2d(4 * width, 4 * width, 3, 1, 1, groups=4 * width),
                nn.ReLU6(), nn.Conv2d(4 * width, width, 1),
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class GatedMLP(nn.Module):
    """GELU and layer norms, whose derivative is kept, beside ReLU."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(784, width), nn.LayerNorm(width)
        self.inner, self.head = nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(F.gelu(self.first(x)))
        return self.head(x + F.relu(self.inner(x)))


def one_dimensional() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=4), nn.ReLU(), nn.Conv1d(16, 32, 9, stride=4), nn.LeakyReLU(), nn.Flatten(),
        nn.Linear(1504, 10),
    )  # fmt: skip


def lista() -> nn.Module:
    return LISTA(Deblurring().operator((1, 28, 28)), dct_matrix(28, 28).T.contiguous(), 5)


def primal_dual() -> nn.Module:
    return PrimalDual(Deblurring().operator((1, 28, 28)), 0.7 * dct_matrix(28, 28), 8)


AUTOENCODER = (784, 500, 250, 30, 250, 500, 784)

CASES = (
    StepCase("784-256-256-10 ReLU", lambda: dense((784, 256, 256, 10), nn.ReLU), (784,), 100, 10, 1.15),
    StepCase("two convolutions, dense", small_convolutional, (1, 28, 28), 100, 10, 1.15),
    StepCase("six convolutions of 24 channels", lambda: convolutions(6, 24), (1, 28, 28), 50, None, 1.10),
    StepCase("784, 30 × 64, 10 ReLU", lambda: dense((784, *[64] * 30, 10), nn.ReLU), (784,), 100, 10, 1.5),
    StepCase("7 × 784 soft-threshold", lambda: dense([784] * 9, lambda: nn.Softshrink(0.2)), (784,), 50, None, 1.0),
    StepCase("7 × 784 soft-threshold, MLP", lambda: MLP([784] * 9, SoftThreshold(0.2)), (784,), 50, None, 1.0),
    StepCase("ResNet-18, 32 × 32", residual_18, (3, 32, 32), 8, 10),
    StepCase("U-Net", UNet, (1, 28, 28), 20),
    StepCase("transformer, two layers", Transformer, (28, 28), 50, 10),
    StepCase("VGG 32-64-64, batch norm", VGG, (3, 32, 32), 32, 10),
    StepCase("inverted residuals, ReLU6", Depthwise, (3, 32, 32), 32, 10),
    StepCase("tanh autoencoder", lambda: dense(AUTOENCODER, nn.Tanh), (784,), 50),
    StepCase("GELU, layer norm, ReLU", GatedMLP, (784,), 100, 10),
    StepCase("1-d convolutions", one_dimensional, (1, 784), 100, 10),
    StepCase("LISTA, 5 layers", lista, (1, 28, 28), 50),
    StepCase("PrimalDual, 8 layers", primal_dual, (1, 28, 28), 50),
)
