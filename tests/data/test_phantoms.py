"""Phantoms: the Shepp–Logan head against scikit-image's, and random ones."""

from __future__ import annotations

import pytest
import torch

from torchlift.core.errors import InvalidValueError
from torchlift.data import random_phantoms, shepp_logan


def test_the_head_is_that_of_scikit_image() -> None:
    data = pytest.importorskip("skimage.data")
    reference = torch.from_numpy(data.shepp_logan_phantom()).float()
    ours = shepp_logan(400)[0]
    difference = (ours - reference).abs()
    assert float(difference.mean()) < 0.01 and float((difference > 0.05).float().mean()) < 0.03


def test_random_ones_come_from_the_generator() -> None:
    first, again = (random_phantoms(3, 20, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first, again) and first.shape == (3, 1, 20, 20)
    assert float(first.min()) >= 0 and float(first.max()) <= 1
    assert float((first[0] - first[1]).abs().mean()) > 0.01
    with pytest.raises(InvalidValueError, match="random_phantoms side"):
        random_phantoms(3, 0)
