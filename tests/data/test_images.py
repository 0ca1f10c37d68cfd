"""Photographs from files of every usual kind, and files that are none."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image

from torchlift.core.errors import DataError, InvalidValueError
from torchlift.data import images as module
from torchlift.data import load_images

RED = np.zeros((5, 7, 3), np.uint8)
RED[..., 0] = np.arange(35).reshape(5, 7)


def test_files_are_read_in_the_order_of_names(tmp_path):
    Image.fromarray(RED[..., 0]).save(tmp_path / "b.png")
    Image.fromarray(RED).save(tmp_path / "a.TIFF")
    Image.fromarray(RED).save(tmp_path / "c.bmp")
    Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(tmp_path / "d.jpeg")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "folder").mkdir()
    found = load_images(tmp_path)
    assert [tuple(image.shape) for image in found] == [(3, 5, 7), (3, 5, 7), (3, 5, 7), (3, 8, 8)]
    assert all(image.dtype == torch.uint8 for image in found)
    assert torch.equal(found[0], torch.from_numpy(RED).permute(2, 0, 1)) and torch.equal(found[0], found[2])
    assert torch.equal(found[1], torch.from_numpy(RED[..., 0]).expand(3, 5, 7))
    assert int((found[3].int() - 90).abs().max()) <= 2
    grey = load_images(tmp_path, channels=1)
    assert torch.equal(grey[1], torch.from_numpy(RED[None, ..., 0]))
    expected = np.asarray(Image.fromarray(RED).convert("L")).astype(int)
    assert np.abs(grey[0][0].numpy().astype(int) - expected).max() <= 1


def test_other_depths(tmp_path):
    deep = (np.arange(35, dtype=np.uint16).reshape(5, 7) * 1000).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert torch.equal(load_images(tmp_path)[0], torch.from_numpy((deep >> 8).astype(np.uint8))[None])
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(DataError, match="8 or 16 bits"):
        load_images(tmp_path)


def test_what_is_no_folder_of_images_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="a folder of images"):
        load_images(tmp_path / "none")
    with pytest.raises(DataError, match="files that end in"):
        load_images(tmp_path)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(DataError, match=r"broken.png: expected a readable image"):
        load_images(tmp_path)
    Image.fromarray(RED).save(tmp_path / "broken.png")
    monkeypatch.setattr(module, "LARGEST", 30)
    with pytest.raises(DataError, match="at most 30 pixels"):
        load_images(tmp_path)
    with pytest.raises(InvalidValueError, match="1, 3 or None"):
        load_images(tmp_path, channels=2)


@pytest.mark.parametrize("ending", ["png", "jpg", "tiff"])
def test_damaged_files_are_named(tmp_path, ending):
    path = tmp_path / f"cut.{ending}"
    Image.fromarray(np.tile(RED, (6, 6, 1))).save(path)
    whole = path.read_bytes()
    for share in range(0, 90, 9):
        path.write_bytes(whole[: len(whole) * share // 100])
        with pytest.raises(DataError, match=f"cut.{ending}"):
            load_images(tmp_path)
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:place] + bytes([255 - whole[place]]) + whole[place + 1 :])
        with suppress(DataError):  # and nothing else
            assert load_images(tmp_path)[0].dtype == torch.uint8
    with pytest.raises(DataError, match="a folder of images"):
        load_images("a\0b")
