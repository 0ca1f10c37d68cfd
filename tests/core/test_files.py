"""Files take their place as a whole, JSON holds every float, and misspelt names are answered with the nearest."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from torchlift.core.checks import check_choice
from torchlift.core.errors import InvalidTypeError, InvalidValueError, did_you_mean
from torchlift.core.files import decode, encode, replacing_file, write_file


def _write_half(path: Path) -> None:
    with replacing_file(path) as part:
        part.write_text("ne")
        assert part.suffix == path.suffix
        raise RuntimeError("half of it")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_file(path, "old")
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(RuntimeError, match="half"):
        _write_half(path)
    assert path.read_text() == "old"
    write_file(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("precious")
    link.symlink_to(target)
    write_file(link, "new")
    assert target.read_text() == "precious"
    assert not link.is_symlink()
    assert link.read_text() == "new"


def test_all_floats_come_back() -> None:
    record = {"a": [math.inf, -math.inf, 0.1], "$float": "nan", "b": {"c": -0.0}}
    assert decode(encode(record)) == record
    assert math.isnan(decode(encode({"x": math.nan}))["x"])


def test_the_nearest_name_is_suggested() -> None:
    assert did_you_mean("layerwise", ["keep", "layer-wise"]) == "Did you mean 'layer-wise'?"
    assert did_you_mean("PSNR ", ["psnr", "ssim"]) == "Did you mean 'psnr'?"
    assert did_you_mean("entirely other", ["psnr"], "Try psnr.") == "Try psnr."
    assert check_choice("train weights", "keep", ["keep", "he"]) == "keep"
    with pytest.raises(InvalidValueError, match=r"train weights: expected 'keep' or 'he', got 'kep'"):
        check_choice("train weights", "kep", ["keep", "he"])
    with pytest.raises(InvalidTypeError, match="a string"):
        check_choice("train weights", 3, ["keep", "he"])
