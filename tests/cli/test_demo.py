"""The demonstration: it runs, tells a newcomer what came out, and leaves a page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchlift.cli import main
from torchlift.cli.demo import ALONE, FIT, TORCH, claims
from torchlift.report.records import Pictures, load_record


def test_a_tiny_demonstration_leaves_a_record_and_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = main(["demo", "--tiny", "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert status == 0
    assert err.count("\n") == 6
    for text in ("noisy images", f"lifting, {TORCH}", ALONE, f"Adam, {FIT}", "inverted encoder", "PSNR"):
        assert text in out
    page = tmp_path / "report.html"
    assert str(page) in out
    assert "<!doctype html>" in page.read_text(encoding="utf-8").lower()
    record = load_record(tmp_path)
    assert {claim.outcome for claim in record.claims} == {"not decidable"}
    assert record.command == "torchlift demo --tiny --seed 0"
    pictures = {figure.name: figure for figure in record.figures if isinstance(figure, Pictures)}
    assert list(pictures["inverted"].rows) == ["clean", "decoder", "inverted encoder"]
    assert len(pictures["denoised"].rows) == 7
    found = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert [row["steps"] for row in found["denoising"]] == [None, 2, 2, None, 2, 2]
    # Once more, for machines: the same numbers, and the earlier files are replaced.
    assert main(["demo", "--tiny", "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    again = json.loads(out)
    assert (again["denoising"], again["inversion"]) == (found["denoising"], found["inversion"])


def test_ctrl_c_ends_it_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchlift", "demo", "--seconds", "600", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("1/5  denoiser")
        time.sleep(0.5)  # it is training now, or about to
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "torchlift: stopped"
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


def test_claims_follow_the_numbers() -> None:
    names = ["noisy images", f"Adam, {TORCH}", f"lifting, {TORCH}", ALONE, f"Adam, {FIT}", f"lifting, {FIT}"]

    def outcomes(*numbers: float, inverted: float = 16.0) -> list[str]:
        denoising = dict(zip(names, numbers, strict=True))
        found = claims(denoising, {"decoder": 15.0, "inverted encoder": inverted}, decidable=True)
        return [claim.outcome for claim in found]

    assert outcomes(16.0, 12.0, 13.0, 24.0, 24.4, 24.5) == ["held"] * 4
    assert outcomes(16.0, 12.0, 17.0, 15.0, 24.0, 24.4, inverted=14.9) == ["did not hold"] * 4
    assert outcomes(16.0, 12.0, 13.0, 15.0, 24.0, 24.0)[:3] == ["held", "did not hold", "held"]
