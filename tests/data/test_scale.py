"""The word about data on a scale that cannot work: said where it helps, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchlift.data import Batch, Deblurring, Denoising, Inpainting, load_digits, scale_warning

DIGITS = load_digits("train", dtype=torch.float32)
IMAGES, LABELS = DIGITS.images[:500], DIGITS.labels[:500]
BYTES = (255 * IMAGES).round()


def _randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _scaled(*sizes: float) -> Tensor:
    return _randn(300, len(sizes)) * torch.tensor(sizes)


def _pixels(count: int, fraction: float) -> Tensor:
    """Tables whose columns are mostly of size 1, one in `1 / fraction` of size 1e5."""
    return torch.where(torch.arange(count) % round(1 / fraction) == 0, 1e5, 1.0) * _randn(300, count)


TARGETS = _randn(300, 1)
WRONG = {
    "pictures of bytes, targets in [0, 1]": ((BYTES, IMAGES), "data inputs: .* 0 and 1, got whole numbers up to 255"),
    "the same as vectors": ((BYTES.flatten(1), IMAGES.flatten(1)), "data inputs: .*divide them by 255"),
    "pictures of bytes, labels": ((BYTES, LABELS), "data inputs: .*divide them by 255"),
    "pictures of few grey values": (((16 * IMAGES).round(), IMAGES), "data inputs: .*whole numbers up to 16"),
    "noise of 0.15 on bytes": ((BYTES + 0.15 * _randn(*BYTES.shape), BYTES), "data targets: .*divide them by 255"),
    "targets of bytes": ((IMAGES, BYTES), "^data targets: .*whole numbers up to 255"),
    "pictures in 16 bits": (
        (65535 * IMAGES, LABELS),
        r"data inputs: expected values of about 1, got [12]\.\d+e\+04 on average",
    ),
    "one feature much larger": (
        (_scaled(1, 2e5, 1, 1), TARGETS),
        r"features of similar size, got feature 1 of size \S+e\+05 and feature [023] of size [01]\.\d+\. Standardise",
    ),
    "one feature much smaller": ((_scaled(1, 1, 1e-4), TARGETS), "feature [01] of size .* and feature 2 of size 0.000"),
    "a year": ((torch.cat([_scaled(0.3, 0.2), 2000 + _scaled(9)], 1), TARGETS), "got feature 2 of size 2e.03"),
    "one of many features": ((_pixels(200, 0.01), TARGETS), "got feature (0|100) of size .*e.05 and feature"),
    "one channel": (
        (_randn(50, 3, 4, 4) * torch.tensor([1.0, 1.0, 1e4]).view(3, 1, 1), LABELS[:50]),
        "channels of similar size, got channel 2 of size",
    ),
    "large targets": ((_scaled(1, 1), 2e5 + 1e5 * TARGETS), r"data targets: .*about 1, got 2\.\d+e\+05 on average"),
    "small targets": ((_scaled(1, 1), 1e-5 * TARGETS), "data targets: .*a standard deviation of [0-9.]+e-0[56]"),
    "small targets far from 0": ((_scaled(1, 1), 1 + 1e-4 * TARGETS), "data targets: .*standard deviation of"),
    "large inputs": ((1e5 * _randn(300, 4), TARGETS), "data inputs: expected values of about 1, got .*e.0[45] on av"),
    "small inputs": ((1e-6 * _randn(300, 4), TARGETS), "data inputs: expected values of about 1, got at most"),
    "constant inputs": ((torch.ones(300, 4), TARGETS), "data inputs: expected samples that differ, got the same"),
    "nothing but zeros": ((torch.zeros(300, 4), TARGETS), "data inputs: .*the same for every sample"),
    "double precision": ((_scaled(1, 2e5).double(), TARGETS.double()), "feature 1 of size"),
    "half precision": ((_scaled(1e-3, 20).half(), TARGETS.half()), "feature 1 of size"),
}


def _degraded(task: Denoising | Deblurring | Inpainting) -> tuple[Tensor, Tensor]:
    return task.degrade(IMAGES, torch.Generator().manual_seed(0)).y, IMAGES


def _blurred_everywhere() -> Tensor:
    """Pictures after a filter in the Fourier domain, dark pixels of which are rounding errors."""
    return torch.fft.ifft2(torch.fft.fft2(IMAGES)).real


ONE_HOT = torch.nn.functional.one_hot(torch.arange(300) % 50, 50).float()
RIGHT = {
    "digits and labels": (IMAGES, LABELS),
    "digits as vectors": (IMAGES.flatten(1), LABELS),
    "autoencoder": (IMAGES.flatten(1), IMAGES.flatten(1)),
    "denoising": _degraded(Denoising()),
    "denoising without much noise": _degraded(Denoising(noise=1e-8)),
    "deblurring": _degraded(Deblurring()),
    "inpainting": _degraded(Inpainting()),
    "rounding errors for dark pixels": (_blurred_everywhere().flatten(1), LABELS),
    "few digits": (IMAGES[:3].flatten(1), LABELS[:3]),
    "one sample": (IMAGES[:1], IMAGES[:1]),
    "one sample with one number": (torch.ones(1, 1), torch.ones(1, 1)),
    "standardised table": (_randn(300, 12), _randn(300, 1)),
    "table in ordinary units": (_scaled(1, 0.3, 20, 100), TARGETS),
    "table with a constant column": (torch.cat([torch.ones(300, 1), _scaled(1, 2)], 1), TARGETS),
    "table with an empty column": (torch.cat([torch.zeros(300, 1), _scaled(1, 2)], 1), TARGETS),
    "heavy tails": (torch.exp(_randn(300, 5)), torch.exp(TARGETS)),
    "counts": ((5 * _randn(300, 8).abs()).round(), TARGETS),
    "counts with many columns": ((9 * _randn(300, 40).abs()).round(), 5 * TARGETS),
    "one-hot": (ONE_HOT, ONE_HOT),
    "one-hot of rare classes": (torch.nn.functional.one_hot(torch.arange(300), 1000).float(), LABELS[:300]),
    "one-hot beside numbers": (torch.cat([ONE_HOT, _randn(300, 3)], 1), TARGETS),
    "masks": ((_randn(300, 1, 8, 8) > 0).float(), (_randn(300, 1, 8, 8) > 1).float()),
    "-1 and 1": (_randn(300, 20).sign(), TARGETS.sign()),
    "sequences": (_randn(30, 100, 4), TARGETS[:30]),
    "constant targets": (_randn(300, 3), torch.ones(300, 1)),
    "targets of 0": (_randn(300, 3), torch.zeros(300, 1)),
    "indices": (torch.arange(600).view(300, 2), 5 * torch.arange(300)),
    "labels up to 5,000": (_randn(300, 3), 20 * torch.arange(300)),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_gets_a_word(case: str) -> None:
    (y, x), words = WRONG[case]
    said = scale_warning(Batch(y, x))
    assert said is not None
    with pytest.raises(ValueError, match=words):
        raise ValueError(said)


@pytest.mark.parametrize("case", RIGHT)
def test_what_works_gets_none(case: str) -> None:
    assert scale_warning(Batch(*RIGHT[case])) is None


def test_inputs_and_targets_get_a_sentence_each() -> None:
    said = scale_warning(Batch(BYTES, BYTES), "validation")
    assert said is not None
    assert said.count("validation inputs: ") == said.count("validation targets: ") == 1


def test_sorted_samples_are_looked_at_evenly() -> None:
    y = _randn(5000, 3)
    y[-100:, 1] *= 1e6
    assert "feature 1" in (scale_warning(Batch(y, _randn(5000, 1))) or "")


def test_rare_values_of_standardised_features_are_no_matter_of_scale() -> None:
    y = _randn(5000, 8)
    y[:, 3] = 0.0
    y[17, 3] = 1.0
    y = (y - y.mean(0)) / y.std(0)
    assert scale_warning(Batch(y, _randn(5000, 1))) is None
