"""Peak memory: known for methods that can be counted by hand, and claims that follow the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction.memory import (
    ALL,
    FREE,
    HALF,
    KEPT,
    MAPPED,
    SWEEP,
    TAPE,
    WHOLE,
    Memory,
    growth,
    methods,
    one_batch,
    overhead,
    peak,
    stores,
    sweep_against_tape,
)
from torchlift.liftings import Bregman
from torchlift.report.records import Table


def test_a_tiny_run_measures_everything(tiny: Callable[[Experiment], Work]) -> None:
    found = Memory().run(tiny(Memory()))
    tables = {figure.name: figure for figure in found.figures if isinstance(figure, Table)}
    assert set(tables) == {"growth", "memory-batch", "memory-layers", "memory-samples"}
    assert list(tables["memory-samples"].columns) == ["samples", *ALL]
    assert {claim.outcome for claim in found.claims} == {"not decidable"}


def test_kept_variables_take_what_can_be_counted(tmp_path: Path) -> None:
    """Two layers of five units for each of the further samples, of four or two bytes, or on disk."""
    chosen = methods(4, tmp_path)

    def grown(name: str) -> int:
        few, many = (peak(chosen[name], 2, samples, seed=0, width=5) for samples in (16, 416))
        return many - few

    bookkeeping = 400 * 20
    assert grown(FREE) < bookkeeping
    assert 400 * 2 * 5 * 4 <= grown(KEPT) - grown(FREE) < 400 * 2 * 5 * 4 + bookkeeping
    assert grown(KEPT) - grown(HALF) == 400 * 2 * 5 * 2
    assert grown(KEPT) - grown(MAPPED) == 400 * 2 * 5 * 4
    assert grown(WHOLE) > grown(KEPT)


def test_adam_has_gradients_and_two_moments() -> None:
    chosen = methods(1, Path())
    network = 4 * (40 * 41 * 3)
    assert peak(chosen[TAPE], 2, 1, seed=0, width=40) >= 3 * network


def test_methods_are_what_their_names_say(tmp_path: Path) -> None:
    chosen = methods(4, tmp_path)
    assert set(chosen) == set(ALL)
    assert chosen[WHOLE].full and chosen[FREE].batch_size == 4
    assert (chosen[HALF].state_dtype, chosen[MAPPED].folder) == (torch.bfloat16, tmp_path)
    assert all(isinstance(chosen[name].lifting, Bregman) for name in (FREE, WHOLE, KEPT, HALF, MAPPED))


def _batches(sweep: int, free: int) -> dict[str, dict[int, dict[str, int]]]:
    cell = {TAPE: 100, SWEEP: sweep, FREE: free}
    larger = {TAPE: 200, SWEEP: 2 * sweep, FREE: 2 * free}
    return {"batch": {10: cell, 20: larger}, "layers": {1: cell}}


@pytest.mark.parametrize(("free", "outcome"), [(150, "held"), (149, "did not hold")])
def test_significantly_more_is_half_as_much_again(free: int, outcome: str) -> None:
    assert overhead(_batches(100, free)).outcome == outcome


@pytest.mark.parametrize(("sweep", "outcome"), [(100, "held"), (101, "did not hold")])
def test_no_more_means_no_more(sweep: int, outcome: str) -> None:
    claim = sweep_against_tape(_batches(sweep, 300))
    assert (claim.outcome, claim.source) == (outcome, "torchlift")
    assert f"growth with the batch: {sweep / 100:.2f} times" in claim.measured


def _samples(free: int, half: int, mapped: int) -> dict[int, dict[str, int]]:
    first = dict.fromkeys(ALL, 100)
    return {1: first, 11: {TAPE: 100, SWEEP: 100, WHOLE: 1100, FREE: free, KEPT: 200, HALF: half, MAPPED: mapped}}


@pytest.mark.parametrize(("free", "outcome"), [(150, "held"), (160, "did not hold")])
def test_batches_must_not_grow_with_the_samples(free: int, outcome: str) -> None:
    cells = _samples(free, 150, 100)
    assert growth(cells, WHOLE) == 100
    assert one_batch(cells).outcome == outcome


@pytest.mark.parametrize(
    ("half", "mapped", "outcome"), [(150, 100, "held"), (190, 100, "did not hold"), (150, 120, "did not hold")]
)
def test_stores_must_save_what_they_promise(half: int, mapped: int, outcome: str) -> None:
    assert stores(_samples(100, half, mapped)).outcome == outcome
