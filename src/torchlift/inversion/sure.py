"""Stein's unbiased estimate of the error in the output, from one random probe of the data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.inversion.problem import as_rows, square_sum

#: Of the signs of probes, which must not be that of the noise: the two must be independent.
SEED = 271_828


@dataclass(frozen=True, eq=False)
class Probe:
    """Data y, and y + εb with b = ±1: by the inversions of both the risk of an inversion is estimated.

        risk = ‖N(x̂) − y‖² − mς² + 2ς² div_y N(x̂(y)),   div ≈ ⟨b, N(x̂(y + εb)) − N(x̂(y))⟩/ε

    estimates ‖N(x̂) − N(x)‖² without knowing x, for Gaussian noise of standard deviation ς in each of the m entries.

    Arguments:
        y: the data (B, …).
        signs: b, like y.
        noise: ς.
        epsilon: ε.

    Reference: Ramani, Blu & Unser, IEEE Transactions on Image Processing 17 (2008).
    """

    y: Tensor
    signs: Tensor
    noise: float
    epsilon: float

    @classmethod
    def of(cls, y: Tensor, noise: float, share: float = 0.1, seed: int = SEED) -> Probe:
        """A probe with ε = share·ς."""
        coins = torch.randint(0, 2, y.shape, generator=torch.Generator().manual_seed(seed))
        return cls(y, (2 * coins - 1).to(y), noise, share * noise)

    @property
    def moved(self) -> Tensor:
        """y + εb."""
        return self.y + self.epsilon * self.signs

    def risk(self, output: Tensor, moved: Tensor) -> Tensor:
        """The estimate for every image, (B,), from the outputs of the inversions of y and of y + εb."""
        fit = square_sum(output - self.y)
        return fit + self.noise**2 * (2 * self.divergence(output, moved) - self.y[0].numel())

    def divergence(self, output: Tensor, moved: Tensor) -> Tensor:
        """Of outputs as functions of the data, estimated from what they are for y and for y + εb: (B,)."""
        return as_rows(self.signs * (moved - output)).sum(1) / self.epsilon


def visibly_less(new: Tensor, old: Tensor, errors: float = 1.0) -> bool:
    """Whether the mean over images is less by more than so many standard errors of it: of (B,) each."""
    gain = old - new
    scatter = float(gain.std()) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return float(gain.mean()) > errors * scatter
