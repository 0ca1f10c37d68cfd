"""The runner: what it leaves behind, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.experiments import PARTS, Example, Failing, content
from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError
from torchlift.lab.reproduction import Options, Work, reproduce, run
from torchlift.lab.reproduction.confidence import over_seeds
from torchlift.lab.reproduction.experiment import file_name
from torchlift.report.records import Claim, Table, load_record


class StopError(Exception):
    """Something goes wrong."""


def test_only_runs_at_scale_tiny_leave_everything_open(tmp_path: Path) -> None:
    claims = [Claim.of("a", "1", True), Claim.of("b", "2", False, "torchlift"), Claim.of("c", "3", None)]
    assert Work("small", 0, tmp_path).decided(claims) == Work("paper", 0, tmp_path).decided(claims) == claims
    undecided = Work("tiny", 0, tmp_path).decided(claims)
    assert undecided == [Claim.of(claim.statement, claim.measured, None, claim.source) for claim in claims]


def stop_after(parts: int) -> Any:
    def done(finished: int, total: int) -> None:
        assert total == PARTS
        if finished == parts:
            raise StopError

    return done


def start(out: Path, parts: int = 1, **settings: Any) -> Path:
    """An unfinished run."""
    with pytest.raises(StopError):
        reproduce(Example(), "tiny", 0, out, done=stop_after(parts), **settings)
    return out / "example"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drawn")
    reproduce(Example(figures=True), "tiny", 0, out)
    return out / "example"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    reproduce(Example(), "tiny", 0, out)
    return out / "example"


def test_everything_is_written(drawn: Path) -> None:
    record = load_record(drawn)
    figures = {figure.name for figure in record.figures if not isinstance(figure, Table)}
    endings = ("png", "svg", "pdf")
    assert {file.name for file in (drawn / "figures").iterdir()} == {f"{a}.{b}" for a in figures for b in endings}
    assert {file.name for file in (drawn / "tables").iterdir()} == {"numbers.md", "numbers.tex"}
    summary = (drawn / "summary.md").read_text(encoding="utf-8")
    assert "| The images are not black. |" in summary
    assert "1 held, 1 did not hold, 1 not decidable" in summary
    assert "![Curves](figures/curves.png)" in summary
    assert record.command in summary


def test_the_record_says_how_it_was_made(whole: Path) -> None:
    record = load_record(whole)
    assert (record.name, record.title) == ("example", "An example")
    assert record.command == f"torchlift reproduce example --scale tiny --seed 0 --threads {torch.get_num_threads()}"
    assert record.configuration == {"scale": "tiny", "seed": 0, "images": 3}
    assert record.environment["versions"]["torch"] == torch.__version__
    assert record.seconds > 0


def test_the_seed_decides(whole: Path, tmp_path: Path) -> None:
    torch.rand(1)  # whatever was drawn before
    state = torch.get_rng_state()
    again = reproduce(Example(), "tiny", 0, tmp_path / "same")
    assert torch.equal(torch.get_rng_state(), state)
    other = reproduce(Example(), "tiny", 1, tmp_path / "other")
    changing = ("seconds", "environment")
    assert content(again, without=changing) == content(load_record(whole), without=changing)
    assert content(other, without=changing) != content(again, without=changing)


@pytest.mark.parametrize("parts", [0, 1, PARTS])
def test_an_interrupted_run_goes_on(whole: Path, tmp_path: Path, parts: int) -> None:
    folder = start(tmp_path, parts)
    kept = {file: file.stat().st_mtime_ns for file in (folder / "parts").rglob("*.json")}
    assert len(kept) == parts
    before = json.loads((folder / run.SETTINGS).read_text(encoding="utf-8"))["seconds"]
    told: list[str] = []
    record = reproduce(Example(), "tiny", 0, tmp_path, resume=True, tell=told.append)
    assert content(record, without=("seconds",)) == content(load_record(whole), without=("seconds",))
    assert all(file.stat().st_mtime_ns == time for file, time in kept.items())
    assert record.seconds > before > 0
    assert told == ["Images 0", "Images 1", "Images 2"]


def test_time_adds_up_over_sittings(tmp_path: Path) -> None:
    folder = start(tmp_path)
    file = folder / run.SETTINGS
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(settings | {"seconds": 1000.0}), encoding="utf-8")
    assert 1000 < reproduce(Example(), "tiny", 0, tmp_path, resume=True).seconds < 1100


def test_a_change_of_machine_is_told(tmp_path: Path) -> None:
    folder = start(tmp_path)
    file = folder / run.SETTINGS
    settings = json.loads(file.read_text(encoding="utf-8"))
    here = dict(settings["environment"])
    settings["environment"]["processor"] = "abacus"
    file.write_text(json.dumps(settings), encoding="utf-8")
    found = reproduce(Example(), "tiny", 0, tmp_path, resume=True).environment
    assert found["processor"] == "abacus"
    assert found["resumed with"] == {"processor": here["processor"]}


def test_a_finished_run_goes_on_to_other_numbers(tmp_path: Path) -> None:
    reproduce(Example(), "tiny", 0, tmp_path)
    told: list[str] = []
    longer = reproduce(Example(), "tiny", 0, tmp_path, resume=True, tell=told.append, options=Options(steps=9, seeds=2))
    assert told and (longer.configuration["steps asked for"], longer.configuration["seeds asked for"]) == (9, 2)
    assert longer.command.endswith(" --steps 9 --seeds 2")
    assert "steps asked for" not in reproduce(Example(), "tiny", 0, tmp_path, resume=True).configuration


@pytest.mark.parametrize("bad", [{"steps": 0}, {"seeds": -1}, {"device": "nowhere"}, {"device": "meta"}])
def test_options_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(bad))):
        Options(**bad)


def test_seeds_that_disagree_leave_a_claim_open() -> None:
    def claims(*outcomes: bool) -> list[Claim]:
        return [Claim.of(f"claim {k}", f"number {k}", held) for k, held in enumerate(outcomes)]

    first, second = over_seeds({4: claims(True, True), 5: claims(True, False)})
    assert (first.outcome, second.outcome) == ("held", "not decidable")
    assert first.measured == "number 0 (seed 4; seeds 5: the same outcome)"
    assert second.measured == "number 1 (seed 4; seeds 5: did not hold)"
    assert over_seeds({4: claims(True)}) == claims(True)


def test_a_finished_run_is_read_and_not_repeated(whole: Path) -> None:
    files = {file: file.stat().st_mtime_ns for file in whole.rglob("*") if file.is_file()}
    told: list[str] = []
    record = reproduce(Example(), "tiny", 0, whole.parent, resume=True, tell=told.append)
    assert content(record) == content(load_record(whole))
    assert told == []
    assert files == {file: file.stat().st_mtime_ns for file in whole.rglob("*") if file.is_file()}


def test_resuming_nothing_begins(tmp_path: Path) -> None:
    assert reproduce(Example(), "tiny", 0, tmp_path, resume=True).name == "example"


def test_a_finished_run_is_not_overwritten(whole: Path) -> None:
    with pytest.raises(DataError, match=r"expected no earlier run, got a finished run\. Read it by --resume"):
        reproduce(Example(), "tiny", 0, whole.parent)


def test_an_unfinished_run_is_not_overwritten(tmp_path: Path) -> None:
    start(tmp_path)
    with pytest.raises(DataError, match=r"got an unfinished run\. Go on with it by --resume, choose another folder"):
        reproduce(Example(), "tiny", 0, tmp_path)


@pytest.mark.parametrize(
    ("scale", "seed", "reason"),
    [("small", 0, "a run with scale small, got tiny"), ("tiny", 3, "a run with seed 3, got 0")],
)
def test_parts_of_another_run_are_not_taken(tmp_path: Path, scale: Any, seed: int, reason: str) -> None:
    start(tmp_path)
    with pytest.raises(DataError, match=reason):
        reproduce(Example(), scale, seed, tmp_path, resume=True)


def test_parts_of_another_version_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path)
    monkeypatch.setattr(run, "__version__", "99.0")
    with pytest.raises(DataError, match=r"a run with version 99\.0, got "):
        reproduce(Example(), "tiny", 0, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "JSON, got Expecting value"),
        ("[]", "a JSON object, got list"),
        ("{}", "the settings of a run, got something else"),
        ('{"settings": {}, "environment": {}, "seconds": "long"}', "the settings of a run, got something else"),
    ],
)
def test_damaged_settings_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    (start(tmp_path) / run.SETTINGS).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"settings\.json: expected {reason}"):
        reproduce(Example(), "tiny", 0, tmp_path, resume=True)


@pytest.mark.parametrize("file", ["tensors.safetensors", "record.json"])
def test_a_part_that_was_changed_is_refused(tmp_path: Path, file: str) -> None:
    part = start(tmp_path) / "parts" / "images-0"
    data = bytearray((part / file).read_bytes())
    data[-5] ^= 1
    (part / file).write_bytes(data)
    with pytest.raises(DataError, match=r"Without the folder .*images-0 the part is made again"):
        reproduce(Example(), "tiny", 0, tmp_path, resume=True)


def test_folders_of_other_people_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "thesis.tex").touch()
    for resume in (False, True):
        with pytest.raises(DataError, match="expected nothing, or the folder of an earlier run, got something else"):
            reproduce(Example(), "tiny", 0, tmp_path, resume=resume)
    assert [file.name for file in (tmp_path / "example").iterdir()] == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "example").touch()
    with pytest.raises(DataError, match="got something else"):
        reproduce(Example(), "tiny", 0, tmp_path)


def test_an_empty_folder_will_do(tmp_path: Path) -> None:
    (tmp_path / "example").mkdir()
    assert reproduce(Example(), "tiny", 0, tmp_path).name == "example"


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="scale: expected one of 'tiny', 'small', 'paper', got 'huge'"):
        reproduce(Example(), "huge", 0, tmp_path)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidValueError, match="seed: expected a whole number >= 0, got -1"):
        reproduce(Example(), "tiny", -1, tmp_path)
    with pytest.raises(InvalidTypeError, match="seed: expected a whole number, got float"):
        reproduce(Example(), "tiny", 0.5, tmp_path)  # pyright: ignore[reportArgumentType]
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_what_is_finished(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        reproduce(Failing(), "tiny", 0, tmp_path)
    assert [part.name for part in (tmp_path / "failing" / "parts").iterdir()] == ["images-0"]
    assert not run.finished(tmp_path / "failing")


@dataclass(frozen=True)
class Swallowing(Example):
    """Ctrl-C in its second part; like `train` and the solvers it returns early as if nothing had happened."""

    def draw(self, work: Work, k: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        if k == 1:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                return {"x": torch.zeros(1, 4, 5)}, {}
        return super().draw(work, k)


def test_a_part_that_was_interrupted_is_not_kept(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce(Swallowing(), "tiny", 0, tmp_path)
    assert [part.name for part in (tmp_path / "example" / "parts").iterdir()] == ["images-0"]
    record = reproduce(Example(), "tiny", 0, tmp_path, resume=True)
    assert content(record, without=("seconds",)) == content(load_record(whole), without=("seconds",))


def test_without_matplotlib_there_are_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    reproduce(Example(figures=True), "tiny", 0, tmp_path)
    folder = tmp_path / "example"
    assert not (folder / "figures").exists()
    assert "torchlift[plot]" in (folder / "summary.md").read_text(encoding="utf-8")


def nothing() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return {}, {}


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    work = Work("tiny", 0, tmp_path)
    work.part("λ = 0.2", nothing)
    with pytest.raises(InvalidValueError, match="expected a name that no other part of the experiment has, got '0_2'"):
        work.part("0_2", nothing)


def test_names_of_files() -> None:
    assert file_name("Lifted Bregman, λ = 0.2") == "lifted-bregman-0-2"
    with pytest.raises(InvalidValueError, match="a name with letters or digits, got '…'"):
        file_name("…")


def test_scales_choose() -> None:
    assert [Work(scale, 0, Path()).choose(1, 2, 3) for scale in ("tiny", "small", "paper")] == [1, 2, 3]
