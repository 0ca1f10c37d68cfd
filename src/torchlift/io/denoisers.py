"""The bundled denoisers of colour photographs, trained by `scripts/train_denoiser.py`."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torchlift.io.models import load_model
from torchlift.networks import DDFB, FirmDenoiser

NOISE = 25 / 255
"""Standard deviation of the noise that they were trained for."""

_FOLDER = Path(__file__).parent / "files"


def load_denoiser(*, certified: bool = False) -> DDFB | FirmDenoiser:
    """A trained denoiser of colour photographs (B, 3, H, W) of any size, values in [0, 1].

    It is trained for white noise of standard deviation 25/255; `denoiser.prox(y, s)` removes noise of s times that.
    `tl.priors.PlugAndPlay(denoiser)` is a prior for `tl.invert`. The photographs of `tl.data.load_photographs` were
    not used in training.

    Arguments:
        certified: a firmly nonexpansive one (`FirmDenoiser`), with which plug-and-play methods without momentum
            converge, instead of the one that denoises best (`DDFB`).
    """
    return cast("DDFB | FirmDenoiser", load_model(_FOLDER / ("firm-denoiser" if certified else "denoiser")))
