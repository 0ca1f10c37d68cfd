"""Thirteen modules as people write them, small enough for tests: widths and sizes are arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, width: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        for stage in range(4):
            before, after = sizes[stage], sizes[stage + 1]
            blocks = [BasicBlock(before, after, 1 if stage == 0 else 2), BasicBlock(after, after, 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(4):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG11(nn.Module):
    def __init__(self, width: int = 4, size: int = 32, classes: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for after in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
            if isinstance(after, str):
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(before, after * width, 3, padding=1), nn.ReLU(inplace=True)]
                before = after * width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((size // 32, size // 32))
        hidden = 16 * width
        self.classifier = nn.Sequential(
            *(nn.Linear(before * (size // 32) ** 2, hidden), nn.ReLU(True), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(True), nn.Dropout(), nn.Linear(hidden, classes)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class ConvNormActivation(nn.Sequential):
    """A subclass of nn.Sequential with a constructor of its own, as in torchvision."""

    def __init__(self, before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> None:
        padding = (kernel - 1) // 2
        conv = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(after), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    def __init__(self, before: int, after: int, stride: int, expand: int, kernel: int = 3) -> None:
        super().__init__()
        hidden = before * expand
        layers: list[nn.Module] = [] if expand == 1 else [ConvNormActivation(before, hidden, 1)]
        layers += [ConvNormActivation(hidden, hidden, kernel, stride, groups=hidden)]
        layers += [nn.Conv2d(hidden, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.conv = nn.Sequential(*layers)
        self.use_res_connect = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Module):
    #: expansion, channels, repetitions, stride, kernel
    SETTINGS: tuple[tuple[int, ...], ...] = (
        *((1, 2, 1, 1, 3), (6, 3, 2, 2, 3), (6, 4, 3, 2, 3), (6, 8, 4, 2, 3)),
        *((6, 12, 3, 1, 3), (6, 20, 3, 2, 3), (6, 40, 1, 1, 3)),
    )

    def __init__(self, width: int = 1, classes: int = 5) -> None:
        super().__init__()
        before = 4 * width
        features: list[nn.Module] = [ConvNormActivation(3, before, stride=2)]
        for expand, channels, count, stride, kernel in self.SETTINGS:
            for i in range(count):
                features.append(InvertedResidual(before, channels * width, stride if i == 0 else 1, expand, kernel))
                before = channels * width
        features.append(ConvNormActivation(before, 160 * width, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(160 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class EfficientNetLite0(MobileNetV2):
    """Without squeeze and excitation, with ReLU6: inverted residuals with kernels of 3 and 5."""

    SETTINGS = (
        *((1, 2, 1, 1, 3), (6, 3, 2, 2, 3), (6, 5, 2, 2, 5), (6, 10, 3, 2, 3)),
        *((6, 14, 3, 1, 5), (6, 24, 4, 2, 5), (6, 40, 1, 1, 3)),
    )


class FFDNet(nn.Module):
    """The noise in an image, from its four sub-images and a map of the noise level."""

    def __init__(self, width: int = 8, depth: int = 5, sigma: float = 0.1) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(5, width, 3, padding=1, bias=False), nn.ReLU(inplace=True)]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.net = nn.Sequential(*layers, nn.Conv2d(width, 4, 3, padding=1, bias=False))
        self.sigma = sigma

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        x = F.pad(x, (0, width % 2, 0, height % 2), mode="reflect")
        parts = F.pixel_unshuffle(x, 2)
        level = torch.full((batch, 1, *parts.shape[2:]), self.sigma, dtype=x.dtype, device=x.device)
        clean = x - F.pixel_shuffle(self.net(torch.cat((level, parts), 1)), 2)
        return clean[..., :height, :width]


class DnCNN(nn.Module):
    def __init__(self, width: int = 8, depth: int = 5) -> None:
        super().__init__()
        self.in_conv = nn.Conv2d(1, width, 3, padding=1)
        self.conv_list = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(depth - 2)])
        self.out_conv = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = torch.relu(self.in_conv(x))
        for conv in self.conv_list:
            x1 = conv(x1).relu_()
        return self.out_conv(x1) + x


class DoubleConv(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        first = (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))
        super().__init__(*first, nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down1, self.down2 = DoubleConv(1, width), DoubleConv(width, 2 * width)
        self.bottom = DoubleConv(2 * width, 2 * width)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.transposed = nn.ConvTranspose2d(width, width, 2, 2)
        self.up2, self.up1 = DoubleConv(4 * width, width), DoubleConv(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        deep = self.up(self.bottom(F.max_pool2d(second, 2)))
        rows, columns = second.size(2) - deep.size(2), second.size(3) - deep.size(3)
        deep = F.pad(deep, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        middle = self.transposed(self.up2(torch.cat([second, deep], dim=1)))
        return self.head(self.up1(torch.cat([first, middle], dim=1)))


class Encoder(nn.Module):
    """Of a variational autoencoder: mean and logarithmic variance side by side."""

    def __init__(self, width: int = 4, code: int = 6) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, width, 4, 2, 1), nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.mean, self.variance = nn.Linear(32 * width, code), nn.Linear(32 * width, code)

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.conv2(F.leaky_relu(self.conv1(x), 0.2)), 0.2)
        h = h.view(x.size(0), -1)
        return torch.cat([self.mean(h), self.variance(h)], dim=1)


class Decoder(nn.Module):
    def __init__(self, width: int = 4, code: int = 6) -> None:
        super().__init__()
        self.width = width
        self.dense = nn.Linear(code, 32 * width)
        self.conv1 = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.conv2 = nn.ConvTranspose2d(width, 1, 4, 2, 1)

    def forward(self, code: Tensor) -> Tensor:
        h = F.relu(self.dense(code)).reshape(-1, 2 * self.width, 4, 4)
        return self.conv2(F.relu(self.conv1(h))).sigmoid()


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 5, padding=2), nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(6 * 4, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Skip(nn.Module):
    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.fn = function

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


def _mixed(conv: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(conv, nn.GELU(), nn.BatchNorm2d(conv.out_channels))


def conv_mixer(width: int = 6, depth: int = 2, kernel: int = 3, patch: int = 4, classes: int = 5) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, patch, patch),
        *(nn.GELU(), nn.BatchNorm2d(width)),
        *(
            nn.Sequential(
                Skip(_mixed(nn.Conv2d(width, width, kernel, groups=width, padding="same"))),
                *_mixed(nn.Conv2d(width, width, 1)),
            )
            for _ in range(depth)
        ),
        *(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(width, classes)),
    )  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2, size: int = 16, patch: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.pos = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.1)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def cnn_1d() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(2, 4, 5, stride=2, padding=2, padding_mode="circular"), nn.BatchNorm1d(4), nn.Tanh()),
        *(nn.Conv1d(4, 6, 3, dilation=2), nn.PReLU(6), nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(18, 3)),
    )


@dataclass(frozen=True)
class Model:
    """An architecture, the shape of its inputs, and the modules whose features are inverted.

    Arguments:
        early, late: names of modules.
        large: the architecture at a usual size, for timing, with the shape of its inputs.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    early: str
    late: str
    large: Callable[[], nn.Module] | None = None
    large_shape: tuple[int, ...] = ()


MODELS = [
    Model("ResNet-18", ResNet18, (3, 32, 32), "relu", "layer2.0", lambda: ResNet18(64, 1000), (3, 224, 224)),
    Model("VGG-11", VGG11, (3, 32, 32), "features.1", "features.9", lambda: VGG11(64, 32, 10), (3, 32, 32)),
    Model(
        "MobileNet-V2",
        MobileNetV2,
        (3, 32, 32),
        "features.0",
        "features.5",
        lambda: MobileNetV2(8, 1000),
        (3, 224, 224),
    ),
    Model(
        "EfficientNet-Lite0",
        EfficientNetLite0,
        (3, 32, 32),
        "features.0",
        "features.5",
        lambda: EfficientNetLite0(8, 1000),
        (3, 224, 224),
    ),
    Model("FFDNet", FFDNet, (1, 9, 12), "net.1", "net.7", lambda: FFDNet(64, 15), (1, 96, 96)),
    Model("DnCNN", DnCNN, (1, 10, 10), "in_conv", "conv_list.1", lambda: DnCNN(64, 20), (1, 64, 64)),
    Model("U-Net", UNet, (1, 14, 14), "down1", "up2", lambda: UNet(16), (1, 96, 96)),
    Model("VAE encoder", Encoder, (1, 16, 16), "conv1", "mean"),
    Model("VAE decoder", Decoder, (6,), "dense", "conv1"),
    Model("LeNet", LeNet, (1, 16, 16), "conv1", "fc1"),
    Model("ConvMixer", conv_mixer, (3, 16, 16), "0", "4.0.fn.0", lambda: conv_mixer(128, 6, 7, 4), (3, 64, 64)),
    Model("ViT", ViT, (3, 16, 16), "patch", "blocks.0.attn.qkv", lambda: ViT(128, 4, 64, 8), (3, 64, 64)),
    Model("1-d CNN", cnn_1d, (2, 20), "0", "4"),
]

#: So deep that in one step by `Bregman` in single precision the signal ends before the first layers, which stay.
DEEP = ("ResNet-18", "MobileNet-V2", "EfficientNet-Lite0", "U-Net")


def inputs(model: Model, batch: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(batch, *model.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained(model: Model, seed: int = 0) -> nn.Module:
    """Random weights, batch norms with the statistics of some inputs, in eval mode and double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = model.build().double()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                part.momentum = 1.0
                nn.init.uniform_(part.weight, 0.5, 1.5)
                nn.init.normal_(part.bias, std=0.3)
        with torch.no_grad():
            module.train()(inputs(model, 8, seed=2))
    return module.eval()
