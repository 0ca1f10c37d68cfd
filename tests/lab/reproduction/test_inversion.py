"""Experiment inversion: the printed scheme, confidence intervals, training that goes on, and its claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchlift.core.errors import InvalidValueError
from torchlift.lab.benchmarks import autoencoder
from torchlift.lab.benchmarks.autoencoder import Recipe
from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction import inversion as module
from torchlift.lab.reproduction.confidence import Interval, confidence, every, student
from torchlift.lab.reproduction.inversion import CLAMPED, CORRECTED, DECODER, METHODS, PRINTED, WARM, Level
from torchlift.lab.reproduction.printed_inversion import printed_inversion
from torchlift.networks import lift
from torchlift.report.records import Pictures, Table


def test_students_quantiles() -> None:
    for freedom, value in ((4, 2.7764), (9, 2.2622), (29, 2.0452), (99, 1.9842)):
        assert student(freedom) == pytest.approx(value, rel=1e-3)


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    draws = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
    hits = sum((found := confidence(each)).low <= 0 <= found.high for each in draws)
    assert 0.94 < hits / 4000 < 0.96
    assert confidence(torch.ones(2)) == Interval(1.0, -math.inf, math.inf)


def test_intervals_decide() -> None:
    assert Interval(2, 1, 3).above(0.5) is True
    assert Interval(2, 1, 3).above(2.5) is None
    assert Interval(2, 1, 3).above(4) is False
    assert Interval(math.nan, math.nan, math.nan).above(0) is False
    assert every([True, True]) is True
    assert every([True, None]) is None
    assert every([None, False]) is False
    assert Interval(2, 1, 3).text("+.1f") == "+2.0 [+1.0, +3.0]"


@pytest.mark.parametrize("corrected", [False, True])
@torch.no_grad()
def test_the_printed_scheme_step_by_step(corrected: bool) -> None:
    """Two layers, two steps, written out again with dense matrices."""
    torch.manual_seed(0)
    first, last = nn.Linear(36, 20).double(), nn.Linear(20, 9).double()
    network = lift(nn.Sequential(nn.Flatten(), first, nn.ReLU(), last), (1, 6, 6))
    y, rho = torch.randn(3, 9, dtype=torch.float64), 0.3
    x, u = torch.zeros(3, 36, dtype=torch.float64), torch.zeros(3, 20, dtype=torch.float64)
    p = torch.zeros(3, 2, 6, 6, dtype=torch.float64)
    W1, W2 = first.weight, last.weight
    tau_x, tau_u = (1.99 / float(torch.linalg.matrix_norm(W, 2)) ** 2 for W in (W1, W2))

    def gradient(image: Tensor) -> Tensor:
        square = image.view(-1, 6, 6)
        down = nn.functional.pad(square[:, 1:] - square[:, :-1], (0, 0, 0, 1))
        return torch.stack([down, nn.functional.pad(square[:, :, 1:] - square[:, :, :-1], (0, 1))], 1)

    dense = gradient(torch.eye(36, dtype=torch.float64)).flatten(1)
    for _ in range(2):
        v1, v2 = first(x), last(u)
        factor = 1 / (1 + tau_u) if corrected else tau_u / (1 + tau_u)
        new = torch.relu(factor * (u - tau_u * ((v2 - y) @ W2 - v1)))
        before = x
        x = x - tau_x * ((torch.relu(v1) - u) @ W1 + rho * p.flatten(1) @ dense.T)
        p = p + gradient(2 * x - before) / 8
        p = p / p.norm(dim=1, keepdim=True).clamp_min(1)
        u = new
    found = printed_inversion(network, y, rho, steps=2, inner_steps=1, corrected=corrected)
    torch.testing.assert_close(found.flatten(1), x, rtol=1e-3, atol=1e-5)  # norms are bounds of power iterations


def test_the_printed_step_sizes_reach_the_same_images_as_safe_ones() -> None:
    """Once the misprint is corrected; with it the iterates grow without bound."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 9)).double()
    network = lift(layers, (1, 6, 6))
    x = torch.zeros(3, 1, 6, 6, dtype=torch.float64)
    x[:, :, 1:4, 2:5] = 1.0
    y = network(x).detach()
    printed, corrected, safe = (
        printed_inversion(network, y, 0.01, steps=900, inner_steps=5, corrected=not misprint, safe=safe)
        for misprint, safe in ((True, False), (False, False), (False, True))
    )
    assert (corrected - safe).norm() < 1e-3 * safe.norm()
    assert not printed.norm() < 1e10 * safe.norm()


def test_training_goes_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its second epoch, it ends with the very same weights."""
    recipe = Recipe("digits", 1e-3, 250, window=2, max_epochs=3)
    levels = (0.2, 0.13)

    class StopError(Exception):
        pass

    monkeypatch.setattr(Recipe, "images", lambda self: digits)
    digits = autoencoder.load_digits("train").images[:1000]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    autoencoder.train(levels, recipe, whole, every=0.0)
    step, calls = autoencoder.Run.step, []

    def stopping(self: autoencoder.Run, batch: Tensor) -> float:
        calls.append(1)
        if len(calls) == 6:
            raise StopError
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(autoencoder.Run, "step", stopping)
        with pytest.raises(StopError):
            autoencoder.train(levels, recipe, broken, every=0.0)
    assert (broken / "checkpoint").exists()
    with pytest.raises(InvalidValueError, match=r"autoencoder checkpoint: expected .*'seed': 1"):
        autoencoder.train(levels, replace(recipe, seed=1), broken)
    autoencoder.train(levels, recipe, broken)
    assert not (broken / "checkpoint").exists() and not (whole / "checkpoint").exists()
    for level in levels:
        one, two = (autoencoder.load(folder / f"{level:g}", level) for folder in (whole, broken))
        assert one.record["steps"] == two.record["steps"]
        for a, b in zip(one.encoder.parameters(), two.encoder.parameters(), strict=True):
            assert torch.equal(a, b)
    assert torch.equal(autoencoder.losses(whole, 0.13), autoencoder.losses(broken, 0.13))


def level(loss: float, **quality: float) -> Level:
    """Twenty images whose PSNR is near `quality`, and whose errors follow from it; the mean image has 10 dB."""
    ripple = torch.linspace(-0.1, 0.1, 20, dtype=torch.float64)
    named = {DECODER: 20.0, CLAMPED: 21.0, PRINTED: 3.0, CORRECTED: 22.0, module.SWEEP: 23.0, WARM: 24.0}
    named |= {getattr(module, name.upper()): value for name, value in quality.items()}
    psnr = {name: value + ripple * (1 + 0.1 * k) for k, (name, value) in enumerate(named.items())}
    error = {name: 784 * 10 ** (-value / 10) for name, value in psnr.items()}
    ssim = {name: value / 40 for name, value in psnr.items()}
    images = {name: torch.zeros(20, 1, 28, 28) for name in METHODS}
    spread = torch.full((20,), 78.4, dtype=torch.float64)
    return Level(loss, psnr, ssim, error, spread, ssim, {}, images[DECODER], images)


def outcomes(levels: list[Level]) -> list[str]:
    return [claim.outcome for claim in module.judge(levels)]


def test_claims_can_go_either_way() -> None:
    good = [level(8e-3), level(3e-3), level(5e-4, corrected=25.0)]
    assert outcomes(good) == ["did not hold", *["held"] * 7]
    assert outcomes([level(8e-3, printed=21.0), level(3e-3, printed=21.0), level(5e-4, printed=21.0)])[0] == "held"
    bad = [level(8e-3, corrected=19.0, warm=19.0), level(3e-3), level(5e-4, corrected=18.0)]
    assert outcomes(bad) == [*["did not hold"] * 2, "held", *["did not hold"] * 5]
    other = [claim.outcome for claim in module.judge(bad, as_published=False)]
    assert other == ["did not hold", "not decidable", "held", *["not decidable"] * 2, *["did not hold"] * 3]
    same = [level(8e-3), level(3e-3), level(5e-4)]
    same[2] = replace(same[2], psnr={**same[2].psnr, CORRECTED: same[2].psnr[CORRECTED].flip(0) + 1e-3})
    assert outcomes(same)[3] == "not decidable"


def test_tiny(tiny: Callable[[Experiment], Work]) -> None:
    result = module.Inversion().run(tiny(module.Inversion()))
    assert [claim.outcome for claim in result.claims] == ["not decidable"] * 8
    table = result.figures[0]
    assert isinstance(table, Table) and len(table.rows) == 3 * len(METHODS)
    gains: dict[Any, Any] = {(row[0], row[1]): row[7] for row in table.rows}
    assert all(gains[loss, DECODER] == 0 and gains[loss, CLAMPED] >= 0 for loss in (0.16, 0.14, 0.12))
    reached = result.configuration["training"]
    assert [each["level"] for each in reached] == [0.16, 0.14, 0.12]
    assert all(each["loss"] <= each["level"] for each in reached)
    pictures = [figure for figure in result.figures if isinstance(figure, Pictures)]
    assert len(pictures) == 3 and all(images.shape == (5, 28, 28) for images in pictures[0].rows.values())
