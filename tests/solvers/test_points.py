"""Points and their arithmetic against plain tensor expressions."""

from __future__ import annotations

import math

import pytest
import torch

from torchlift.core import tensors
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.core.tensors import Point, as_point
from torchlift.solvers.examples import normal


def pair() -> tuple[Point, Point]:
    return tuple(
        Point({"a": [normal((2, 3), s), normal((4,), s + 1)], "b": normal((5,), s + 2), "c": []}) for s in (0, 10)
    )  # type: ignore[return-value]


def flat(point: Point) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in point.tensors])


def test_a_point_is_a_mapping_of_tuples() -> None:
    p, _ = pair()
    assert list(p) == ["a", "b", "c"] and len(p) == 3
    assert [t.shape for t in p["a"]] == [(2, 3), (4,)] and len(p["b"]) == 1 and p["c"] == ()
    assert as_point(p) is p and as_point(p["b"][0]).blocks == ("x",)
    assert repr(Point({"x": torch.zeros(2)})) == "Point(x: [(2,)])"
    assert p == p and p != pair()[0] and len({p, p}) == 1
    with pytest.raises(KeyError):
        p["z"]


def test_arithmetic() -> None:
    p, q = pair()
    x, y = flat(p), flat(q)
    close = torch.testing.assert_close
    close(flat(tensors.add(p, q, 0.3)), x + 0.3 * y)
    close(flat(tensors.subtract(p, q)), x - y)
    close(flat(tensors.scale(p, -2.0)), -2 * x)
    close(flat(tensors.lerp(p, q, 0.25)), x + 0.25 * (y - x))
    assert not flat(tensors.zeros_like(p)).any()
    assert tensors.dot(p, q) == pytest.approx(float(x @ y), rel=1e-14)
    assert tensors.norm(p) == pytest.approx(float(x.norm()), rel=1e-14)
    norms = tensors.block_norms(p)
    assert norms["b"] == pytest.approx(float(p["b"][0].norm())) and norms["c"] == 0
    assert math.hypot(*norms.values()) == pytest.approx(float(x.norm()))


def test_factors_per_block_and_per_entry() -> None:
    p, q = pair()
    got = tensors.add_scaled(p, q, {"a": 2.0, "b": -1.0, "c": 0.0})
    torch.testing.assert_close(got["a"][1], p["a"][1] + 2 * q["a"][1])
    torch.testing.assert_close(got["b"][0], p["b"][0] - q["b"][0])
    weights = normal((5,), 9)
    got = tensors.add_scaled(p, q, {"a": 2.0, "b": (weights,), "c": ()})
    torch.testing.assert_close(got["a"][0], p["a"][0] + 2 * q["a"][0])
    torch.testing.assert_close(got["b"][0], p["b"][0] + weights * q["b"][0])


def test_select_and_merge() -> None:
    p, q = pair()
    assert p.select(("a", "b", "c")) is p
    part = q.select(("b",))
    merged = p.merge(part)
    assert merged["b"][0] is q["b"][0] and merged["a"][0] is p["a"][0] and merged.blocks == p.blocks


def test_nothing_is_shared_with_a_clone_nor_changed() -> None:
    p, q = pair()
    before, twin = flat(p).clone(), tensors.clone(p)
    for result in (tensors.add(p, q), tensors.lerp(p, q, 0.5), tensors.scale(p, 3.0)):
        result.tensors[0].zero_()
    twin.tensors[1].zero_()
    assert torch.equal(flat(p), before)


def test_gradients_are_cut_and_precision_is_the_least() -> None:
    p = Point({"x": torch.ones(2, requires_grad=True), "y": torch.ones(2, dtype=torch.float64)})
    assert not p["x"][0].requires_grad and p.dtype == torch.float32
    half = Point({"x": torch.full((4,), 6e4, dtype=torch.float16)})
    assert tensors.norm(half) == pytest.approx(1.2e5, rel=1e-3)  # more than half precision can hold
    assert tensors.norm(p) == pytest.approx(2.0)


def test_refusals() -> None:
    p, q = pair()
    with pytest.raises(InvalidValueError, match=r"points: expected the blocks .*select"):
        tensors.add(p, q.select(("a",)))
    with pytest.raises(InvalidTypeError, match=r"Point: expected a mapping"):
        Point([torch.zeros(2)])  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"block 'x': expected a floating-point tensor"):
        Point({"x": torch.zeros(2, dtype=torch.int64)})
