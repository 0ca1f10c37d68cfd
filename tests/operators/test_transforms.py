"""The cosine transform against scipy's, and its bad input."""

from __future__ import annotations

import pytest
import torch
from scipy.fft import dctn

from torchlift.operators import dct_matrix


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5), (3, 4), (8, 8)])
def test_it_is_scipys_orthonormal_transform(height: int, width: int) -> None:
    image = torch.randn(height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = dct_matrix(height, width, dtype=torch.float64) @ image.flatten()
    expected = torch.from_numpy(dctn(image.numpy(), norm="ortho")).flatten()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_it_is_orthonormal_and_rounded_once() -> None:
    matrix = dct_matrix(6, 5, dtype=torch.float64)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(30, dtype=torch.float64), rtol=0, atol=1e-14)
    assert torch.equal(dct_matrix(6, 5), matrix.float())


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="height: expected"):
        dct_matrix(0, 3)
    with pytest.raises(TypeError, match="width: expected"):
        dct_matrix(3, 2.5)  # type: ignore[arg-type]
