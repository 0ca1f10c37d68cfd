"""The bundled digits: sizes, range, disjoint splits, checksums, reproducibility."""

from __future__ import annotations

import gzip
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError
from torchlift.data import Digits, load_digits
from torchlift.data.digits import BUNDLED, SPLITS

COUNTS = {"train": 5000, "validation": 500, "test": 1000}


@pytest.mark.parametrize("split", COUNTS)
def test_shapes_and_range(split: str) -> None:
    digits = load_digits(split)
    assert isinstance(digits, Digits)
    assert digits.images.shape == (COUNTS[split], 1, 28, 28)
    assert digits.images.dtype == torch.float32
    assert digits.images.min() == 0
    assert digits.images.max() == 1
    assert digits.labels.shape == (COUNTS[split],)
    assert digits.labels.dtype == torch.int64
    assert set(digits.labels.tolist()) == set(range(10))


def test_splits_share_no_image() -> None:
    seen = [{bytes((image * 255).byte().flatten().tolist()) for image in load_digits(s).images} for s in COUNTS]
    assert sum(map(len, seen)) == len(set().union(*seen)) == 6500


def test_dtype_and_device() -> None:
    digits = load_digits("validation", dtype=torch.float64, device="cpu")
    assert digits.images.dtype == torch.float64
    assert torch.equal((digits.images * 255).round() / 255, digits.images)
    with pytest.raises(InvalidValueError, match="floating-point"):
        load_digits("validation", dtype=torch.uint8)


@pytest.mark.parametrize(("wrong", "right"), [("valid", "validation"), ("Train", "train"), ("tset", "test")])
def test_misspelt_split_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(InvalidValueError, match=f"Did you mean '{right}'"):
        load_digits(wrong)


def test_split_must_be_a_string() -> None:
    with pytest.raises(InvalidTypeError, match="a string, got int"):
        load_digits(3)  # pyright: ignore[reportArgumentType]


def test_other_folder_and_its_damage(tmp_path: Path) -> None:
    files = SPLITS["validation"]
    for name in (files.images, files.labels):
        shutil.copy(BUNDLED / f"{name}.gz", tmp_path)
    assert torch.equal(load_digits("validation", path=tmp_path).labels, load_digits("validation").labels)

    content = bytearray(gzip.decompress((tmp_path / f"{files.labels}.gz").read_bytes()))
    content[-1] ^= 1
    (tmp_path / f"{files.labels}.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="SHA-256"):
        load_digits("validation", path=tmp_path)
    with pytest.raises(DataError, match="readable"):
        load_digits("test", path=tmp_path)


def test_files_are_small_and_licensed() -> None:
    sizes = [file.stat().st_size for file in BUNDLED.glob("digits-*")]
    assert max(sizes) < 2 << 20
    assert sum(sizes) < 1_200_000
    assert "CC BY-SA 3.0" in (BUNDLED / "LICENCE-DATA.md").read_text(encoding="utf-8")


def load_script(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_rebuilds_the_bundled_files(full_mnist_path: Path, repository: Path, tmp_path: Path) -> None:
    script = load_script(repository / "scripts" / "build_digits.py")
    written = script.build(full_mnist_path, tmp_path)
    assert len(written) == 6
    for name in written:
        # Compressed bytes may differ between versions of zlib; the content may not.
        fresh, bundled = ((folder / name).read_bytes() for folder in (tmp_path, BUNDLED))
        assert gzip.decompress(fresh) == gzip.decompress(bundled)
        assert fresh[:10] == bundled[:10] == b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"  # no name, no time
