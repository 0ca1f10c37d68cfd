"""Phantoms: images made of ellipses, the Shepp–Logan head and random ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from torchlift.core.checks import check_size

#: Intensity, half axes, centre (to the right, upwards) and angle in degrees of each ellipse, with the contrast of
#: Toft, The Radon Transform (1996).
_HEAD = (
    (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0.0),
    (-0.2, 0.11, 0.31, 0.22, 0.0, -18.0),
    (-0.2, 0.16, 0.41, -0.22, 0.0, 18.0),
    (0.1, 0.21, 0.25, 0.0, 0.35, 0.0),
    (0.1, 0.046, 0.046, 0.0, 0.1, 0.0),
    (0.1, 0.046, 0.046, 0.0, -0.1, 0.0),
    (0.1, 0.046, 0.023, -0.08, -0.605, 0.0),
    (0.1, 0.023, 0.023, 0.0, -0.605, 0.0),
    (0.1, 0.023, 0.046, 0.06, -0.605, 0.0),
)
#: Samples per pixel and axis.
_SAMPLES = 4


def shepp_logan(side: int) -> Tensor:
    """The Shepp–Logan phantom of a head (1, side, side), values in [0, 1].

    Reference: Shepp & Logan, IEEE Trans. Nucl. Sci. 21 (1974).
    """
    return _image(torch.tensor(_HEAD), check_size("shepp_logan side", side))


def random_phantoms(count: int, side: int, generator: torch.Generator | None = None) -> Tensor:
    """Bodies with a bright border, and eight ellipses of random size, place and intensity inside.

    Returns:
        (count, 1, side, side), values in [0, 1].
    """
    count, side = check_size("random_phantoms count", count), check_size("random_phantoms side", side)
    images = []
    for _ in range(count):
        r, s = torch.rand(8, 6, generator=generator), torch.rand(4, generator=generator).tolist()
        width, height, edge, grey = 0.6 + 0.3 * s[0], 0.6 + 0.3 * s[1], 0.03 + 0.07 * s[2], 0.2 + 0.3 * s[3]
        body = [[0.9, width, height, 0.0, 0.0, 0.0], [grey - 0.9, width - edge, height - edge, 0.0, 0.0, 0.0]]
        low, scale = (
            torch.tensor(row) for row in ([-0.3, 0.02, 0.02, -0.4, -0.4, 0.0], [0.6, 0.25, 0.25, 0.8, 0.8, 180.0])
        )
        images.append(_image(torch.cat([torch.tensor(body), low + scale * r]), side))
    return torch.stack(images)


def _image(ellipses: Tensor, side: int) -> Tensor:
    axis = (torch.arange(_SAMPLES * side) + 0.5) * (2 / (_SAMPLES * side)) - 1
    image = torch.zeros(1, len(axis), len(axis))
    for value, a, b, p, q, degrees in ellipses.tolist():
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        right, up = axis - p, -axis[:, None] - q
        image += value * (((right * cosine + up * sine) / a) ** 2 + ((up * cosine - right * sine) / b) ** 2 <= 1)
    return avg_pool2d(image, _SAMPLES).clamp(0, 1)
