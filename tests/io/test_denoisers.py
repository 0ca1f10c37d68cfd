"""The bundled denoisers do what they say, on photographs that they have not seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchlift as tl
from torchlift.io import models


@pytest.fixture(scope="module")
def images() -> Tensor:
    return tl.data.load_photographs()[:, :, 64:192, 64:192]


@pytest.mark.parametrize("certified", [False, True])
def test_noise_of_several_strengths_is_removed(certified: bool, images: Tensor) -> None:
    denoiser = tl.io.load_denoiser(certified=certified)
    for strength, gain in ((0.4, 2.5), (1.0, 4.5), (2.0, 5.0)):
        noise = strength * models.NOISE * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            clean = denoiser.prox(images + noise, torch.tensor(strength))
        before, after = (float(tl.data.psnr(x, images).mean()) for x in (images + noise, clean))
        assert after > before + gain


def test_the_certified_one_is_firmly_nonexpansive(images: Tensor) -> None:
    denoiser = tl.io.load_denoiser(certified=True)
    assert isinstance(denoiser, tl.networks.FirmDenoiser) and denoiser.certificate().firmly_nonexpansive
    with torch.no_grad():
        change, moved = denoiser(images[1:]) - denoiser(images[:-1]), images[1:] - images[:-1]
    assert bool((change.square().sum((1, 2, 3)) <= (change * moved).sum((1, 2, 3))).all())


def test_files_are_small() -> None:
    for folder in (Path(models.__file__).parent / "files").iterdir():
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 200_000
