"""Lifted variables that persist: what is kept, in which precision, where, and across a restart."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from torchlift import networks, prox
from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError
from torchlift.core.tensors import Point
from torchlift.data import as_batches
from torchlift.objective import Objective, TrainingBatches
from torchlift.objective.engine import Layout
from torchlift.objective.latent_cache import LatentCache, state_bytes
from torchlift.objective.problem import Split
from torchlift.solvers import ImplicitStochasticGradient, LinearisedBCD, Stopping, solve
from torchlift.solvers.implicit_sgd import Anchored

SAMPLES, SIZE = 12, 4
EXAMPLES = [example for cls in prox.ACTIVATIONS.values() for example in cls.examples() if example.dim in (None, -1)]


def network() -> networks.MLP:
    torch.manual_seed(3)
    return networks.MLP([3, 5, 5, 2]).double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(SAMPLES, 3, generator=generator, dtype=torch.float64)
    return y, torch.randn(SAMPLES, 2, generator=generator, dtype=torch.float64)


def problem(split: Split = "whole", **settings: Any) -> TrainingBatches:
    objective = Objective(network())
    activations = objective.network.operators().activations
    cache = LatentCache(objective.layout, activations, SAMPLES, data()[0], **settings)
    return TrainingBatches(objective, as_batches(data(), batch_size=SIZE, seed=2), split=split, cache=cache)


SOLVER = ImplicitStochasticGradient(0.5, LinearisedBCD(), inner_steps=2)


def run(batches: TrainingBatches, steps: int) -> list[Point]:
    state = SOLVER.init(batches, batches.start())
    points = [state.point]
    for _ in range(steps):
        state = SOLVER.step(batches, state)
        points.append(state.point)
    return points


def flat(point: Point) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in point.tensors])


@pytest.mark.parametrize("split", ["whole", "odd-even", "layers"])
def test_a_batch_goes_on_where_its_samples_were_left(split: Split) -> None:
    batches = problem(split)
    per_epoch = SAMPLES // SIZE
    points = run(batches, per_epoch)
    assert batches.cache is not None
    assert bool(batches.cache.seen.all())
    kept = [tensor.clone() for tensor in batches.cache.tensors]
    chosen = batches.batches.indices(per_epoch)
    assert chosen is not None
    training, start = batches.batch(per_epoch, points[-1])
    z = training.states(start)
    for buffer, whole in zip(z.buffers, kept, strict=True):
        assert torch.equal(buffer, whole[:, chosen])
    forward = batches.objective.initialise(batches.batches.batch(per_epoch).y)
    assert not torch.allclose(z[0], forward[0])


def test_the_same_as_by_hand() -> None:
    """The inner solver from z of a dictionary, sample by sample."""
    batches = problem()
    found = run(batches, 7)
    plain = TrainingBatches(Objective(network()), batches.batches)
    kept: dict[int, list[Tensor]] = {}
    for count, (before, after) in enumerate(pairwise(found)):
        chosen = batches.batches.indices(count)
        assert chosen is not None
        training, start = plain.batch(count, before)
        z = training.states(start)
        for position, sample in enumerate(chosen.tolist()):
            for layer, old in zip(z, kept.get(sample, []), strict=False):
                layer[position] = old
        anchored = Anchored(training, before, 1 / 0.5)
        begin = training.point(before["parameters"], z)
        solved = solve(anchored, LinearisedBCD(), begin, stopping=Stopping(2, change=None), record_every=0).point
        assert torch.equal(flat(solved.select(("parameters",))), flat(after))
        z = training.states(solved)
        for position, sample in enumerate(chosen.tolist()):
            kept[sample] = [layer[position].clone() for layer in z]
    assert len(kept) == SAMPLES


def test_new_samples_start_by_a_forward_pass_beside_old_ones() -> None:
    batches = problem()
    cache = batches.cache
    assert cache is not None
    z = batches.objective.initialise(data()[0][:2], "random")
    cache.write(torch.tensor([5, 7]), z)
    fresh = batches.objective.initialise(data()[0][[7, 0]])
    read = cache.read(torch.tensor([7, 0]), fresh.clone())
    for layer, written, new in zip(read, z, fresh, strict=True):
        assert torch.equal(layer[0], written[1])
        assert torch.equal(layer[1], new[1])


def test_reading_a_batch_writes_nothing() -> None:
    batches = problem()
    SOLVER.check(batches, batches.start())
    assert batches.cache is not None
    assert not bool(batches.cache.seen.any())


def test_mapped_files_equal_memory_bit_for_bit(tmp_path: Path) -> None:
    mapped = problem(folder=tmp_path / "states")
    assert torch.equal(flat(run(mapped, 7)[-1]), flat(run(problem(), 7)[-1]))
    assert list((tmp_path / "states").iterdir()) == []  # nothing to clean up


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists what is mapped")
def test_mapped_files_are_in_the_folder(tmp_path: Path) -> None:
    cache = problem(folder=tmp_path).cache
    assert cache is not None
    assert str(tmp_path) in Path("/proc/self/maps").read_text()


def test_half_precision_is_close_and_small() -> None:
    rough = problem(dtype=torch.bfloat16)
    assert rough.cache is not None
    exact, near = flat(run(problem(), 9)[-1]), flat(run(rough, 9)[-1])
    assert not torch.equal(exact, near)
    assert torch.linalg.vector_norm(exact - near) < 2e-3 * torch.linalg.vector_norm(exact)
    kept = sum(tensor.numel() * tensor.element_size() for tensor in rough.cache.tensors)
    assert kept == state_bytes(rough.objective.layout, SAMPLES, torch.bfloat16) == SAMPLES * 10 * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [*EXAMPLES, prox.Box(0.3, 0.7)], ids=repr)
def test_rounding_does_not_leave_the_domain(activation: prox.ProximalActivation, dtype: torch.dtype) -> None:
    layout, size = Layout(((3,),)), 300
    z = layout.allocate(size, torch.zeros(1, dtype=torch.float64))
    z[0].copy_(activation(3 * torch.randn(size, 3, dtype=torch.float64)))
    assert torch.isfinite(activation.psi(z[0])).all()
    cache = LatentCache(layout, [activation], size, z[0], dtype=dtype)
    cache.write(torch.arange(size), z)
    read = cache.read(torch.arange(size), z.clone())[0]
    assert torch.isfinite(activation.psi(read)).all()
    assert torch.allclose(read, z[0], rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("settings", [{}, {"dtype": torch.bfloat16}], ids=["double", "bfloat16"])
def test_a_loaded_state_dict_goes_on_bit_for_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    whole = run(problem(**settings), 8)[-1]
    first = problem(**settings)
    point = run(first, 5)[-1]
    saved = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = problem(**settings, folder=tmp_path)
    second.load_state_dict(saved)
    state = SOLVER.init(second, point)
    state = type(state)(5, point, state.residual, state.tau)
    for _ in range(3):
        state = SOLVER.step(second, state)
    assert torch.equal(flat(state.point), flat(whole))


def test_without_a_cache_nothing_is_kept() -> None:
    batches = TrainingBatches(Objective(network()), as_batches(data(), batch_size=SIZE))
    assert batches.state_dict() == {}
    run(batches, 2)


def test_refusals(tmp_path: Path) -> None:
    objective = Objective(network())
    activations = objective.network.operators().activations
    cache = LatentCache(objective.layout, activations, SAMPLES, data()[0])
    loader = as_batches(DataLoader(TensorDataset(*data()), batch_size=4, shuffle=True))
    drawn = as_batches(lambda generator: data(), batch_size=4)
    for batches in (loader, drawn):
        with pytest.raises(InvalidValueError, match="the same in every epoch, got a loader or a drawing function"):
            TrainingBatches(objective, batches, cache=cache)
    with pytest.raises(InvalidTypeError, match="expected a LatentCache, got dict"):
        TrainingBatches(objective, as_batches(data()), cache={})  # type: ignore[arg-type]
    few = LatentCache(objective.layout, activations, 3, data()[0])
    with pytest.raises(InvalidValueError, match="expected 12 samples, got 3"):
        TrainingBatches(objective, as_batches(data()), cache=few)
    other = LatentCache(Layout(((7,),)), [prox.ReLU()], SAMPLES, data()[0])
    with pytest.raises(InvalidValueError, match=r"layers of shapes \[\(5,\), \(5,\)\], got \[\(7,\)\]"):
        TrainingBatches(objective, as_batches(data()), cache=other)
    with pytest.raises(InvalidValueError, match=r"floating-point dtype, got torch.int8. Try torch.bfloat16"):
        LatentCache(objective.layout, activations, 3, data()[0], dtype=torch.int8)
    with pytest.raises(InvalidTypeError, match=r"a dtype such as torch\.bfloat16, got str"):
        LatentCache(objective.layout, activations, 3, data()[0], dtype="bfloat16")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"saved states 'z.0': expected torch.float64 .* got none"):
        cache.load_state_dict({"seen": cache.seen})
    with pytest.raises(InvalidValueError, match=r"saved states 'seen': expected .*\(12,\), got .*\(3,\)"):
        cache.load_state_dict(few.state_dict())
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"room for 960 bytes of states.* choose another folder"):
        LatentCache(objective.layout, activations, SAMPLES, data()[0], folder=tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space is reserved in another way")
def test_a_disk_without_room_is_an_error_at_once(tmp_path: Path) -> None:
    huge = Layout(((1 << 40,),))
    with pytest.raises(DataError, match=r"room for .* Free some space"):
        LatentCache(huge, [prox.ReLU()], 1 << 20, torch.zeros(1), folder=tmp_path)


@pytest.mark.parametrize("size", [5, 12, None])
def test_indices_say_which_samples_a_batch_holds(size: int | None) -> None:
    batches = as_batches(data(), batch_size=size, seed=4)
    for count in (0, 2, 3, 7, 1):
        chosen = batches.indices(count)
        assert chosen is not None
        assert torch.equal(data()[0][chosen], batches.batch(count).y)
