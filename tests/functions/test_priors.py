"""Single priors against formulas and other libraries, and how they combine."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from skimage.restoration import denoise_tv_chambolle
from torch import Tensor

from torchlift.core.errors import InvalidValueError, TorchliftError
from torchlift.functions.priors import (
    L1,
    Box,
    HuberTV,
    NonNegative,
    PlugAndPlay,
    Prior,
    Tikhonov,
    TotalVariation,
    Wavelet,
)
from torchlift.operators import Dense, FiniteDifference


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def denoise(prior: Prior, y: Tensor, weight: float, steps: int) -> tuple[Tensor, Tensor]:
    """min ½‖x − y‖² + weight·R(x) by projected gradients on the dual (FISTA), with its duality gap per image."""
    split = prior.split(tuple(y.shape[1:]))
    sigma = 1 / split.square_norm()
    duals = extra = tuple(torch.zeros_like(w) for w in split.products(y))
    t = 1.0
    for _ in range(steps):
        x = y - split.back(extra, y)
        new = tuple(
            term.dual_prox(p + sigma * w, sigma, weight)
            for term, p, w in zip(split.terms, extra, split.products(x), strict=True)
        )
        after = (1 + math.sqrt(1 + 4 * t * t)) / 2
        extra = tuple(a + (t - 1) / after * (a - b) for a, b in zip(new, duals, strict=True))
        duals, t = new, after
    back = split.back(duals, y)
    x = y - back
    primal = 0.5 * back.flatten(1).square().sum(1) + weight * split.value(x, split.products(x))
    dual = (back * y).flatten(1).sum(1) - 0.5 * back.flatten(1).square().sum(1)
    for term, p in zip(split.terms, duals, strict=True):
        dual = dual - term.conjugate(p, weight)
    return x, primal - dual


PIECES = torch.nn.functional.interpolate(normal(2, 1, 4, 4), scale_factor=3) + 0.2 * normal(2, 1, 12, 12, seed=1)


def test_total_variation_denoising_agrees_with_scikit_image() -> None:
    """Chambolle's algorithm stops early, so ours must have the lower objective and be near."""
    weight = 0.3
    x, gap = denoise(TotalVariation(), PIECES, weight, 2000)
    assert float(gap.abs().max()) < 1e-6
    for ours, y in zip(x[:, 0].numpy(), PIECES[:, 0].numpy(), strict=True):
        theirs = denoise_tv_chambolle(y, weight=weight, eps=1e-12, max_num_iter=20_000)
        assert np.abs(ours - theirs).max() < 5e-3


@pytest.mark.parametrize("channels", ["separate", "coupled"])
@pytest.mark.parametrize("isotropic", [True, False])
def test_total_variation_of_colours(isotropic: bool, channels: str) -> None:
    x = normal(1, 3, 4, 5)
    gradient = np.zeros((2, 3, 4, 5))
    array = x[0].numpy()
    gradient[0, :, :-1], gradient[1, :, :, :-1] = np.diff(array, axis=1), np.diff(array, axis=2)
    axes = ((0,) if isotropic else ()) + ((1,) if channels == "coupled" else ())
    expected = np.sqrt((gradient**2).sum(axes)).sum()
    value = TotalVariation(isotropic, channels).value(x)
    assert float(value) == pytest.approx(expected)
    _, gap = denoise(TotalVariation(isotropic, channels), x, 0.4, 1000)
    assert float(gap) < 1e-4


def test_huber_is_between_quadratic_and_total_variation() -> None:
    x = normal(2, 1, 6, 6)
    tv, tikhonov = TotalVariation().value(x), Tikhonov(FiniteDifference((1, 6, 6))).value(x)
    torch.testing.assert_close(HuberTV(1e-9).value(x), tv, rtol=1e-6, atol=0)
    torch.testing.assert_close(HuberTV(1e3).value(x), tikhonov / 1e3)
    assert float(denoise(HuberTV(0.1), x, 0.5, 500)[1].abs().max()) < 1e-8


def test_total_variation_ignores_constants_and_steps_cost_their_height() -> None:
    x = torch.full((1, 1, 5, 5), 3.0)
    assert float(TotalVariation().value(x)) == 0
    x[..., 2:] = 5.0
    assert float(TotalVariation().value(x)) == pytest.approx(2.0 * 5)


def test_wavelets_are_those_of_pywavelets() -> None:
    pywt = pytest.importorskip("pywt")
    x = normal(2, 3, 16, 32)
    for name, level in (("haar", 3), ("db2", 2), ("sym4", 1)):
        coefficients = pywt.wavedec2(x.numpy(), name, mode="periodization", level=level)
        expected = sum(np.abs(detail).sum((1, 2, 3)) for scale in coefficients[1:] for detail in scale)
        np.testing.assert_allclose(Wavelet(name, level).value(x).numpy(), expected, rtol=1e-12)
    (part,) = Wavelet("db2").parts((3, 8, 16))
    assert part.operator is not None
    matrix = part.operator.to_dense()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(len(matrix), dtype=torch.float64), rtol=0, atol=1e-11)


def test_wavelet_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pywt", None)
    with pytest.raises(ImportError, match=r"expected the package PyWavelets.*torchlift\[wavelet\]"):
        Wavelet().parts((1, 8, 8))


def test_constraints_become_one_and_the_prox() -> None:
    split = (TotalVariation() + NonNegative() + L1() + Box(-1, 0.5)).split((1, 4, 4))
    assert split.proximal is not None and split.proximal.function == Box(0.0, 0.5).parts((1, 4, 4))[0].function
    assert len(split.terms) == 2  # total variation, and ℓ1 behind an identity
    x = normal(3, 1, 4, 4)
    projected = split.prox(x, 7.0)
    torch.testing.assert_close(projected, x.clamp(0, 0.5))
    expected = TotalVariation().value(projected) + L1().value(projected)
    torch.testing.assert_close(split.value(projected, split.products(projected)), expected)
    assert bool(split.value(x, split.products(x)).isinf().all())


def test_the_first_direct_part_is_the_prox() -> None:
    split = (TotalVariation() + 2 * L1() + Tikhonov()).split((1, 4, 4))
    x = normal(1, 1, 4, 4)
    torch.testing.assert_close(split.prox(x, 0.1), torch.nn.functional.softshrink(x, 0.2))
    assert len(split.terms) == 2


def test_denoiser_gets_its_steps() -> None:
    seen: list[Tensor] = []

    def shrink(x: Tensor, step: Tensor) -> Tensor:
        seen.append(step)
        return x / (1 + step)

    x = normal(2, 1, 3, 3)
    split = PlugAndPlay(shrink).split((1, 3, 3))
    torch.testing.assert_close(split.prox(x, torch.tensor([1.0, 3.0], dtype=torch.float64))[1], x[1] / 4)
    split.prox(x, 0.5)
    assert [tuple(step.shape) for step in seen] == [(2, 1, 1, 1)] * 2
    assert bool((split.value(x, ()) == 0).all())


@pytest.mark.parametrize("prior", [TotalVariation(channels="coupled"), TotalVariation(False), HuberTV(0.1)])
def test_an_image_without_channels_has_the_variation_of_one_channel(prior: Prior) -> None:
    x = normal(2, 5, 4)
    torch.testing.assert_close(prior.value(x), prior.value(x[:, None]))
    (plain, gap), (one, _) = denoise(prior, x, 0.4, 300), denoise(prior, x[:, None], 0.4, 300)
    torch.testing.assert_close(plain, one[:, 0])
    assert float(gap.max()) < 1e-2


def test_a_flat_image_is_told_how_to_become_one() -> None:
    with pytest.raises(InvalidValueError, match=r"invert nn.Sequential\(nn.Flatten\(\), network\)"):
        TotalVariation().parts((784,))


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "vector with total variation": (
        lambda: TotalVariation().parts((7,)),
        r"TotalVariation: expected images of shape \(height, width\) or \(channels, height, width\), got shape \(7,\)",
    ),
    "vector with huber": (lambda: HuberTV().parts((7,)), r"HuberTV: expected images"),
    "channels": (lambda: TotalVariation(channels="mixed"), r"channels: expected 'separate' or 'coupled', got 'mixed'"),
    "delta": (lambda: HuberTV(0.0), r"HuberTV delta: expected a number > 0"),
    "empty box": (lambda: Box(1, 0), r"Box: expected lo < hi, got lo=1, hi=0"),
    "box of text": (lambda: Box("0", 1), r"Box lo: expected a real number"),
    "boxes apart": (
        lambda: (Box(0, 1) + Box(2, 3)).split((4,)),
        r"expected intervals that overlap, got \[0, 1\] and \[2, 3\]",
    ),
    "negative multiple": (lambda: -1.0 * L1(), r"multiple of a prior: expected a number >= 0, got -1.0"),
    "tikhonov of a matrix": (lambda: Tikhonov(torch.eye(2)), r"Tikhonov operator: expected a LinearOperator"),
    "tikhonov of another shape": (
        lambda: Tikhonov(Dense(torch.eye(2))).parts((3,)),
        r"an operator on images of shape \(3,\), got \(2,\)",
    ),
    "not callable": (lambda: PlugAndPlay(3), r"PlugAndPlay denoise: expected a callable, got int"),
    "wavelet level": (lambda: Wavelet(level=0), r"Wavelet level: expected a whole number >= 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    build, text = BAD[case]
    with pytest.raises(TorchliftError, match=text):
        build()


def test_bad_wavelets() -> None:
    pytest.importorskip("pywt")
    with pytest.raises(TorchliftError, match=r"an orthogonal wavelet, got 'bior2.2'"):
        Wavelet("bior2.2").parts((1, 8, 8))
    with pytest.raises(TorchliftError, match=r"a discrete wavelet of PyWavelets, got 'nope'"):
        Wavelet("nope").parts((1, 8, 8))
    with pytest.raises(TorchliftError, match=r"sides that 2\^3 divides, got 28 x 28"):
        Wavelet(level=3).parts((1, 28, 28))
