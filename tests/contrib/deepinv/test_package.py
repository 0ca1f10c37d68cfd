"""deepinv is loaded only by those who ask for it, and its absence is explained."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import torchlift

deepinv = pytest.importorskip("deepinv", reason="needs deepinv: pip install torchlift[deepinv]")
pytest.importorskip("deepinv.physics", reason="needs deepinv: pip install torchlift[deepinv]")


def test_torchlift_does_not_offer_deepinv() -> None:
    assert "deepinv" not in torchlift.__all__, "`from torchlift import *` must not need it"


def test_every_name_can_be_had(repository: Path) -> None:
    module = importlib.import_module("torchlift.contrib.deepinv")
    assert torchlift.contrib.deepinv is module
    assert all(hasattr(module, name) for name in module.__all__)
    page = (repository / "docs" / "api" / "deepinv.md").read_text(encoding="utf-8")
    assert all(f".{name}\n" in page for name in module.__all__)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchlift.contrib.deepinv.package import part

    with pytest.raises(ImportError, match=r"expected the package deepinv, got No module named.*torchlift\[deepinv\]"):
        part("no_such_part")
    # what importing torchvision raises when its compiled part was built for another torch
    (tmp_path / "broken.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "wrong.py").write_text("raise RuntimeError('something else')")
    monkeypatch.setattr(deepinv, "__path__", [*deepinv.__path__, str(tmp_path)])
    with pytest.raises(ImportError, match=r"works with this torch.*Install the build of torchvision"):
        part("broken")
    with pytest.raises(RuntimeError, match="something else"):
        part("wrong")
