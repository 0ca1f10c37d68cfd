"""The demonstration: it runs, tells a newcomer what came out, and leaves a page."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchlift.cli import demo, main
from torchlift.cli.demo_record import ALONE, FIT, TORCH, claims
from torchlift.report.records import Pictures, load_record
from torchlift.training import Training, train

PARTS = ("photograph", "denoising", "inversion")


def test_a_tiny_demonstration_leaves_a_record_and_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = main(["demo", "--tiny", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert status == 0
    assert err.count("\n") == 8
    for text in (
        "certified denoiser",
        "noisy images",
        f"lifting, {TORCH}",
        ALONE,
        f"Adam, {FIT}",
        "inverted encoder",
        "PSNR",
    ):
        assert text in out
    page = tmp_path / "report.html"
    assert str(page) in out
    html = page.read_text(encoding="utf-8")
    assert "<!doctype html>" in html.lower() and 'http-equiv="refresh"' not in html
    record = load_record(tmp_path)
    assert {claim.outcome for claim in record.claims} == {"not decidable"}
    assert record.command == "torchlift demo --tiny --seed 0"
    pictures = {figure.name: figure for figure in record.figures if isinstance(figure, Pictures)}
    assert list(pictures["inverted"].rows) == ["clean", "decoder", "inverted encoder"]
    assert len(pictures["denoised"].rows) == 7
    assert pictures["photograph"].rows["clean"].shape == (1, 3, 24, 24)
    found = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert [row["steps"] for row in found["denoising"]] == [None, 2, 2, None, 2, 2]
    # Once more, for machines: the same numbers, and the earlier files are replaced.
    assert main(["demo", "--tiny", "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    again = json.loads(out)
    assert [again[part] for part in PARTS] == [found[part] for part in PARTS]


def test_the_run_of_another_command_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").touch()
    assert main(["demo", "--tiny", "--out", str(tmp_path)]) == 2
    assert "expected no run of another command, got history.jsonl. Choose another folder." in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the middle of the first training: the photograph stays, and its page no longer reloads itself."""
    page = tmp_path / "report.html"

    def interrupted(*arguments: Any, **options: Any) -> Training:
        assert 'http-equiv="refresh"' in page.read_text(encoding="utf-8")
        return train(*arguments, callback=lambda row: signal.raise_signal(signal.SIGINT), **options)

    monkeypatch.setattr(demo, "FULL", replace(demo.TINY, steps=None))
    monkeypatch.setattr(demo, "train", interrupted)
    assert main(["demo", "--seconds", "600", "--out", str(tmp_path)]) == 130
    printed, err = capsys.readouterr()
    lines = err.splitlines()
    assert printed == "" and lines[0].startswith("1/6  photograph") and lines[-1] == "torchlift: stopped"
    assert f"What was done so far: {page}" in err and "Traceback" not in err
    assert "2/6  denoiser" in err and "3/6" not in err
    assert [figure.name for figure in load_record(tmp_path).figures] == ["photograph", "restored"]
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")


def test_claims_follow_the_numbers() -> None:
    names = ["noisy images", f"Adam, {TORCH}", f"lifting, {TORCH}", ALONE, f"Adam, {FIT}", f"lifting, {FIT}"]

    def rows(numbers: dict[str, float]) -> list[dict[str, object]]:
        return [{"name": name, "psnr": value} for name, value in numbers.items()]

    def outcomes(*numbers: float, inverted: float = 16.0, firm: float = 25.0) -> list[str]:
        found = {
            "photograph": rows({"noisy": 20.0, "denoiser": 28.0, "certified denoiser": firm}),
            "denoising": rows(dict(zip(names, numbers, strict=True))),
            "inversion": rows({"decoder": 15.0, "inverted encoder": inverted}),
        }
        return [claim.outcome for claim in claims(found, decidable=True)]

    assert outcomes(16.0, 12.0, 13.0, 24.0, 24.4, 24.5) == ["held"] * 5
    assert outcomes(16.0, 12.0, 17.0, 15.0, 24.0, 24.4, inverted=14.9, firm=19.0) == ["did not hold"] * 5
    assert outcomes(16.0, 12.0, 13.0, 15.0, 24.0, 24.0)[1:4] == ["held", "did not hold", "held"]
    assert claims({"photograph": rows({"noisy": 20.0})}, decidable=True) == []
    hardly = {"inversion": [{"name": "decoder", "psnr": 9.0, "steps": 2}, {"name": "inverted encoder", "psnr": 9.1}]}
    assert [claim.outcome for claim in claims(hardly, decidable=True)] == ["not decidable"]
