"""The cost model: its formulas on numbers that can be checked by hand, and what must hold on any machine."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from torchlift.core.errors import DataError, InvalidValueError
from torchlift.lab.planning import (
    Machine,
    Passes,
    Work,
    curves,
    data_parallel,
    guessed,
    late_sweeps,
    lifting,
    pipelined,
    plan,
    recommended,
    steps_needed,
)

#: One product of a sample takes 2 s, one weight 4 s to touch, a message 1 s and a second per byte.
PLAIN = {"lifting": Passes(0, 0, 0), "back-propagation": Passes(0, 0, 0)}
UNIT = Machine(flops=1, memory_bandwidth=1e9, bandwidth=1, latency=1, passes=PLAIN)

numbers = st.floats(1e-3, 1e3)
machines = st.builds(
    Machine, flops=numbers, memory_bandwidth=numbers, bandwidth=numbers, latency=numbers, overlap=st.floats(0, 1)
)
works = st.builds(Work, st.integers(1, 20), st.integers(1, 9), st.integers(1, 40))


def test_lifting_by_hand() -> None:
    work = Work(layers=4, width=1, batch=6, number=1)
    alone = lifting(work, UNIT)
    assert (alone.work, alone.exchange, alone.idle) == (11 * 2 * 6, 0, 0), "no adjoint of the first layer"
    divided = lifting(work, UNIT, data=1, layers=2)
    assert divided.work == 6 * 2 * 6
    assert divided.exchange == pytest.approx(2 * 1 + 16), "neighbours hide behind the inner layer, a norm does not"
    single = lifting(work, UNIT.but(bandwidth=0.1), data=1, layers=4)
    assert single.exchange == pytest.approx(2 * (1 + 60) + (2 * 2 + 2 * 3 / 4 * 160)), "nothing to hide behind"
    samples = lifting(work, UNIT, data=2, layers=1)
    assert samples.work == 11 * 2 * 3
    assert samples.exchange == pytest.approx((2 + 4) + (2 + 16)), "gradients of four layers, and a norm"


def test_back_propagation_by_hand() -> None:
    work = Work(layers=4, width=1, batch=6, number=1)
    assert data_parallel(work, UNIT).seconds == lifting(work, UNIT).seconds, "as many products"
    divided = data_parallel(work, UNIT, 2)
    assert (divided.work, divided.exchange) == (66, 6)
    assert data_parallel(work, UNIT.but(overlap=1.0), 2).exchange == 0, "hidden behind the way back"
    slow = data_parallel(work, UNIT.but(overlap=1.0, bandwidth=0.01), 2)
    assert slow.exchange == pytest.approx(2 + 400 - 66 * 2 / 3), "which is only so long"


def test_a_pipeline_by_hand() -> None:
    work = Work(layers=4, width=1, batch=6, number=1)
    found = pipelined(work, UNIT, 1, 2, 3)
    slot, hop = 6 * 2 * 2, 2 * (1 + 2)
    assert (found.work, found.idle, found.exchange) == (3 * slot, slot + hop, 3 * (hop - 1))
    assert pipelined(work, UNIT, 1, 1, 1).seconds == data_parallel(work, UNIT).seconds


def test_late_sweeps_by_hand() -> None:
    work = Work(layers=4, width=1, batch=6, number=1)
    assert late_sweeps(work, UNIT).seconds == data_parallel(work, UNIT).seconds, "one stage is late nowhere"
    two = late_sweeps(work, UNIT, 1, 2)
    predicted = 2 * 3 * 1 / 1e9
    assert (two.work, two.idle) == (pytest.approx(6 * 2 * 6 + predicted), 0), "no pipeline to fill"
    assert two.exchange == 0, "2(1 + 6) s behind 72 s of work"
    assert late_sweeps(work, UNIT.but(bandwidth=0.1), 1, 2).exchange == pytest.approx(2 * 61 - 72)
    assert late_sweeps(work, UNIT, 1, 4).memory > two.memory / 2, "weights of every batch in flight"


def test_trainings_are_compared() -> None:
    """A late step is worth less than one in time, and one of lifted variables a layer's share."""
    work = Work(layers=8, width=4, batch=8)
    needed = {stages: steps_needed(late_sweeps(work, UNIT, 1, stages), work) for stages in (1, 2, 4)}
    assert needed == pytest.approx({1: 1.0, 2: 1.04, 4: 1.2})
    assert steps_needed(lifting(work, UNIT), work) == 8 and steps_needed(pipelined(work, UNIT, 1, 2, 4), work) == 1
    forecasts = plan(work, UNIT, 4)
    best = recommended(forecasts)
    assert best is not None and all(best.training <= each.training for each in forecasts)
    assert recommended([]) is None
    assert not guessed(late_sweeps(work, UNIT, 1, 6)) and guessed(late_sweeps(work, UNIT, 1, 8))


def test_passes_and_weights_that_must_be_read() -> None:
    passes = {name: Passes(states=2, parameters=3, overhead=5) for name in PLAIN}
    machine = Machine(flops=1e9, memory_bandwidth=2, bandwidth=1, latency=1, passes=passes)
    work = Work(layers=1, width=10, batch=4, number=2)
    reading = 10 * 10 * 2 / 2
    own = 2 * 4 * 10 * 2 / 2 + 3 * 10 * 10 * 2 / 2 + 5
    assert lifting(work, machine).work == pytest.approx(2 * reading + own)
    assert pipelined(work, machine, 1, 1, 2).work == pytest.approx(
        2 * (2 * reading + 2 * 2 * 10 * 2 / 2 + 5) + 3 * 10 * 10 * 2 / 2
    )


@given(works, machines, st.integers(1, 64))
def test_what_holds_on_any_machine(work: Work, machine: Machine, devices: int) -> None:
    for each in plan(work, machine, devices):
        assert each.data * each.layers == each.devices == devices
        assert each.layers <= work.layers and each.data <= work.batch
        assert each.seconds > 0 and each.memory > 0 and min(each.exchange, each.idle) >= 0
        # nobody gains more than devices; rounding up of a first layer without adjoint is worth one product
        assert each.efficiency <= 1 + 1e-9 or devices == 1
        if devices == 1:
            assert each.efficiency == pytest.approx(1)


def test_depth_is_where_lifting_wins_and_samples_where_it_does_not() -> None:
    """A thousand layers on as many devices: no pipeline to fill. Many samples, few layers: sums are cheaper."""
    cluster = Machine(flops=1e14, memory_bandwidth=1.5e12, bandwidth=2.5e10, latency=5e-6, overlap=1.0)
    deep = {each.method: each for each in plan(Work(1000, 8192, 4096), cluster, 500, memory=80e9)}
    assert deep["lifting"].efficiency > 0.8 and deep["lifting"].idle == 0
    assert deep["pipelined"].idle > 0
    assert "data-parallel" not in deep, "268 GB of weights on every device"
    shallow = {each.method: each for each in plan(Work(4, 512, 65536), cluster, 8)}
    assert shallow["data-parallel"].seconds <= shallow["lifting"].seconds
    assert shallow["data-parallel"].seconds <= shallow["pipelined"].seconds


def test_curves_leave_out_what_no_mesh_allows() -> None:
    found = curves(Work(3, 4, 2), UNIT, [1, 2, 4, 8])
    assert [each is None for each in found["data-parallel"]] == [False, False, True, True]
    assert [each is None for each in found["lifting"]] == [False, False, False, True]
    with pytest.raises(InvalidValueError, match="at least one number"):
        curves(Work(3, 4, 2), UNIT, [])


def test_constants_come_back_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bench-distributed.json"
    path.write_text(json.dumps({"machine": UNIT.record()}))
    assert Machine.read(path) == UNIT
    for text, reason in (
        ("{}", "the record of a bench, got KeyError"),
        ("[", "expected JSON, got "),
        ('{"machine": {"passes": {}}}', "the record of a bench, got .*Error"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=reason):
            Machine.read(path)
    with pytest.raises(
        DataError, match=r"expected a JSON file, got no such file or folder\. Make it by 'torchlift bench"
    ):
        Machine.read(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"flops": 0.0}, "Machine flops: expected a number > 0, got 0.0"),
        ({"latency": -1.0}, "Machine latency"),
        ({"overlap": 1.5}, r"Machine overlap: expected a number in \[0, 1\], got 1.5"),
    ],
)
def test_bad_machines(given: dict[str, float], reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        Machine(**given)
    with pytest.raises(InvalidValueError, match="none of back-propagation"):
        Machine(passes={"lifting": Passes(1, 1, 1)})
    with pytest.raises(InvalidValueError, match="Work layers"):
        Work(0, 1, 1)
    with pytest.raises(InvalidValueError, match="plan devices"):
        plan(Work(1, 1, 1), UNIT, 0)
