"""Every network under every lifting: the form holds, refusals have reasons, and the claims follow the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from torchlift.lab.problem import load_images
from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction.architectures import (
    NAMES,
    ROUNDING,
    SIDE,
    TINY,
    Architectures,
    defined_claim,
    form_claim,
    learn,
    liftings,
    networks,
    residuals,
    training_claim,
)
from torchlift.liftings import LIFTINGS, Fenchel
from torchlift.networks import MLP, NETWORKS
from torchlift.prox import Softmax
from torchlift.report.records import Table


def row(psnr: float, start: float = 10.0, refused: str | None = None, made: int = 9) -> dict[str, Any]:
    return {"refused": refused} if refused else {"refused": None, "psnr": psnr, "start": start, "made": made}


def test_all_registered_networks_and_liftings_take_part() -> None:
    assert {type(network) for network in networks(0).values()} == set(NETWORKS.values())
    assert {type(lifting) for lifting in liftings().values() if lifting is not None} == set(LIFTINGS.values())


def test_a_tiny_run_fills_its_tables(tiny: Callable[[Experiment], Work]) -> None:
    found = Architectures().run(tiny(Architectures()))
    tables = {figure.name: figure for figure in found.figures if isinstance(figure, Table)}
    assert set(tables) == {"psnr", "times", "form"}
    assert tables["psnr"].columns == ["network", "at the start", *NAMES]
    assert [line[0] for line in tables["psnr"].rows] == list(TINY.kinds)
    for name in ("psnr", "times"):
        assert all(isinstance(cell, float) and cell > 0 for line in tables[name].rows for cell in line[1:])
    assert [claim.outcome for claim in found.claims] == ["held", "not decidable", "held"]


@pytest.mark.parametrize("kind", networks(0))
def test_the_form_holds_and_a_broken_one_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = networks(1)[kind]
    images = load_images("denoising", 1, 4, 0, SIDE).validation_y
    found = {name: value for name, value in residuals(network, images).items() if value is not None}
    assert max(found.values()) < ROUNDING
    form = network.operators()
    worse = replace(form, activations=tuple(each if j else Softmax(1) for j, each in enumerate(form.activations)))
    states = network.states(images.reshape(4, *network.in_shape))
    monkeypatch.setattr(network, "operators", lambda: worse)
    monkeypatch.setattr(network, "states", lambda _: states)
    broken = residuals(network, images)["activation"]
    assert broken is not None and broken > 100 * ROUNDING


def test_a_refusal_is_kept_with_its_reason() -> None:
    network = MLP([196, 5, 196], Softmax(), generator=torch.Generator().manual_seed(0))
    images = load_images("denoising", 4, 4, 0, SIDE)
    _, found = learn(network, Fenchel(0.1), images, replace(TINY, steps=1), 0)
    assert "B_σ is written out" in found["refused"]
    claim = defined_claim({("MLP", "Fenchel"): found, ("MLP", "Bregman"): row(1.0)})
    assert (claim.outcome, claim.source) == ("did not hold", "torchlift")
    assert "1 of 2 pairs are accepted; refused: MLP with Fenchel" in claim.measured


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ({("a", "b"): row(13.5), ("a", "c"): row(0, refused="no")}, "held"),
        ({("a", "b"): row(13.5), ("a", "c"): row(12.5)}, "did not hold"),
        ({("a", "b"): row(19.0, start=19.1)}, "did not hold"),
        ({("a", "b"): row(13.5), ("a", "c"): row(12.5, made=8)}, "not decidable"),
        ({("a", "b"): row(12.5), ("a", "c"): row(12.5, made=8)}, "did not hold"),
    ],
)
def test_training_must_beat_the_start_and_the_mean_image(found: Any, outcome: str) -> None:
    claim = training_claim(found, mean=12.0, steps=9)
    assert claim.outcome == outcome
    assert ("not: a with" in claim.measured) == (outcome == "did not hold")
    assert ("not in the time they had: a with c" in claim.measured) == any(
        each.get("made") == 8 for each in found.values()
    )


def test_a_residual_above_rounding_does_not_hold() -> None:
    good = {"coupling": 0.0, "activation": 1e-7, "plain": None}
    assert form_claim({"a": good}).outcome == "held"
    claim = form_claim({"a": good, "b": {**good, "plain": 1e-3}})
    assert claim.outcome == "did not hold"
    assert "1.0e-03 (b, plain) of 5" in claim.measured
