"""`torchlift bench training`: the smallest comparison of every family, for real."""

from __future__ import annotations

import json

import pytest

from torchlift.cli import main
from torchlift.lab.benchmarks import training_cases

SMALLEST = {
    "mnist": "784-100",
    "dead": "5 × 256",
    "imaging": "inpainting, threshold 0.02",
    "default-start": "",
    "unrolled": "LISTA, inpainting",
    "redrawn": "deblurring",
    "sensing": "",
    "resnet": "",
    "starts": "lifted variables",
}


@pytest.mark.parametrize("family", training_cases.FAMILIES)
def test_every_family_runs_and_reports(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--only", SMALLEST[family]] if SMALLEST[family] else []
    assert main(["bench", "training", family, *only, "--tiny", "--seeds", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (case,) = record["cases"]
    ours, *_, rival = case["outcomes"]
    assert case["family"] == family and ours["lifted"]
    assert rival["lifted"] == (case["step time ratio"] is None) == (family == "starts")
    assert ours["steps"] == rival["steps"], "the same budget on both sides"


def test_table_names_goal_and_verdict(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["bench", "training", "sensing", "--tiny", "--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "coupled LISTA" in shown and "-19" in shown and "Adam" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["imagin"], ["families", "Did you mean 'imaging'"]),
        (["--only", "nothing like this"], ["only", "part of the name"]),
        (["--seeds", "0"], ["seeds"]),
        (["--seconds", "-1"], ["seconds", "> 0"]),
    ],
)
def test_bad_options(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "training", *arguments]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
