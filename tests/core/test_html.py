"""What notebooks show: small, escaped, and true to the numbers."""

from __future__ import annotations

import base64
import io
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import torchlift as tl
from torchlift.core.html import IMAGES, POINTS, curve, facts, strip
from torchlift.core.solution import Record, Result, Solution
from torchlift.core.tensors import Point
from torchlift.training import History

HOSTILE = "<img src=x onerror='alert(1)'>\"&"


def points(text: str) -> list[tuple[float, float]]:
    found = ET.fromstring(text).find(".//{*}polyline")
    assert found is not None
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.get("points", "").split())]


def test_a_curve_has_its_values_in_order() -> None:
    (left, top), (middle, between), (right, bottom) = points(curve("loss", [3.0, 2.0, 1.0]))
    assert left < middle < right
    assert top < between < bottom  # SVG counts from above
    assert between == pytest.approx((top + bottom) / 2)
    assert "loss: 3 → 1<" in curve("loss", [3.0, 2.0, 1.0])


def test_a_steep_curve_is_logarithmic() -> None:
    text = curve("loss", [1.0, 0.1, 0.01])
    (_, top), (_, between), (_, bottom) = points(text)
    assert between == pytest.approx((top + bottom) / 2, abs=0.1)
    assert "logarithmic" in text


def test_gaps_lengths_and_constants() -> None:
    assert len(points(curve("x", [1.0, math.nan, 2.0, math.inf]))) == 2
    assert curve("x", []) == curve("x", [1.0]) == curve("x", [math.nan] * 3) == ""
    assert len({y for _, y in points(curve("x", [2.0] * 4))}) == 1
    many = points(curve("x", [float(k) for k in range(10_000)]))
    assert len(many) == POINTS
    assert many[0][0] < many[-1][0]


def test_everything_is_escaped() -> None:
    for text in (facts(HOSTILE, {HOSTILE: HOSTILE}), curve(HOSTILE, [1, 2]), strip(HOSTILE, torch.rand(1, 2, 2))):
        assert HOSTILE not in text
        assert "onerror='" not in text


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 1, 4, 5)])
def test_a_strip_shows_the_images_side_by_side(shape: tuple[int, ...]) -> None:
    images = torch.rand(shape)
    images.view(-1)[0], images.view(-1)[1] = -1.0, 2.0
    address = re.search(r"base64,([^\"]+)", strip("x", images))
    assert address is not None
    shown = imread(io.BytesIO(base64.b64decode(address[1])), format="png")
    assert shown.shape == (4, 3 * 5 + 2)
    wanted = images.reshape(3, 4, 5).clamp(0, 1)
    np.testing.assert_allclose(shown[:, 6:11], wanted[1], atol=0.5 / 255 + 1e-6)
    assert shown[0, 0] == 0 and shown[0, 1] == 1


def test_strips_stay_small() -> None:
    assert f"x: {IMAGES} of 30" in strip("x", torch.rand(30, 2, 2))
    assert strip("x", torch.rand(3, 7)) == strip("x", torch.rand(0, 2, 2)) == ""
    assert strip("x", torch.rand(2, 3, 4, 4)) == strip("x", torch.rand(1, 1000, 1000)) == ""


def test_solutions() -> None:
    history = tuple(Record(step, 0.1 * step, 10.0 / step, 1.0 / step, 0.5) for step in (1, 2, 3))
    text = Solution(Point({}), None, Result.MAX_STEPS, HOSTILE, history)._repr_html_()
    assert HOSTILE not in text
    assert "<td>max steps</td>" in text and "<td>3</td>" in text and "<svg" in text
    assert "<svg" not in Solution(Point({}), None, Result.CONVERGED, "Done.")._repr_html_()


def test_histories_and_trainings() -> None:
    y = torch.rand(20, 3, generator=torch.Generator().manual_seed(0))
    result = tl.train(
        tl.networks.MLP([3, 4, 3]), (y, y), validation=(y, y), metrics=("psnr",), epochs=4, progress=False
    )
    text = result._repr_html_()
    assert text.count("<svg") == 3  # loss, validation loss, validation psnr
    assert "validation psnr" in text
    assert result.history._repr_html_() in text
    assert "<svg" not in History()._repr_html_()


def test_networks_and_inversions() -> None:
    network = tl.networks.MLP([4, 5, 3], tl.SoftThreshold(0.2))
    text = network._repr_html_()
    assert "<caption>MLP</caption>" in text and "<td>43</td>" in text and "SoftThreshold" in text
    encoder = tl.lift(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 6)), (1, 4, 4))
    found = tl.invert(encoder, torch.zeros(2, 6), tl.priors.TotalVariation(), 0.1, max_steps=3)
    text = found._repr_html_()
    assert 'alt="inputs"' in text and "data:image/png;base64," in text and "<svg" in text
    assert len(text) < 5000
