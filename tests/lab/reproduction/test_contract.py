"""What every item of the reproduction promises. One tiny run of each, interrupted after its first part."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.items import Example, content
from torchlift.lab.reproduction import ITEMS, Item, Work, reproduce
from torchlift.report.records import Record, Table, load_record, save_record
from torchlift.report.records.exhibits import OUTCOMES

CASES = [Example(figures=True), *ITEMS.values()]


class StopError(Exception):
    """The interruption."""


@dataclass
class Run:
    """A run at scale tiny that was interrupted once."""

    item: Item
    folder: Path
    record: Record
    told: list[str]
    counts: list[tuple[int, int]]
    kept: dict[Path, int]
    """What was finished when it was interrupted, and when it was written."""


@pytest.fixture(scope="module", params=CASES, ids=lambda item: item.name)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    item, out = request.param, tmp_path_factory.mktemp("out")

    def stop(finished: int, total: int) -> None:
        if finished == 1:
            raise StopError

    with pytest.raises(StopError):
        reproduce(item, "tiny", 0, out, done=stop)
    kept = {file: file.stat().st_mtime_ns for file in (out / item.name / "parts").rglob("*.*")}
    told: list[str] = []
    counts: list[tuple[int, int]] = []
    record = reproduce(
        item,
        "tiny",
        0,
        out,
        resume=True,
        tell=told.append,
        done=lambda finished, total: counts.append((finished, total)),
    )
    return Run(item, out / item.name, record, told, counts, kept)


def test_names(run: Run) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", run.item.name)
    assert run.item.title
    assert run.item.about and "\n" not in run.item.about
    assert run.record.name == run.item.name


def test_items_are_listed_by_their_names() -> None:
    assert all(name == item.name for name, item in ITEMS.items())
    assert not {"all", "list"} & ITEMS.keys()


def test_there_is_a_verdict_per_claim(run: Run) -> None:
    verdicts = run.record.verdicts
    assert verdicts
    assert len({verdict.claim for verdict in verdicts}) == len(verdicts)
    for verdict in verdicts:
        assert verdict.claim and verdict.measured
        assert verdict.outcome in OUTCOMES
    assert run.record.summary


def test_the_record_reads_back(run: Run) -> None:
    assert content(load_record(run.folder)) == content(run.record)
    assert run.record.exhibits
    assert run.record.configuration["scale"] == "tiny"


def test_every_exhibit_has_its_files(run: Run) -> None:
    wanted: set[str] = set()
    for exhibit in run.record.exhibits:
        kind, endings = ("tables", ("md", "tex")) if isinstance(exhibit, Table) else ("figures", ("png", "svg", "pdf"))
        wanted |= {f"{kind}/{exhibit.name}.{ending}" for ending in endings}
    found = {
        f"{kind}/{file.name}": file.stat().st_size
        for kind in ("tables", "figures")
        for file in run.folder.glob(f"{kind}/*")
    }
    assert found.keys() == wanted
    assert all(found.values())
    assert any(isinstance(exhibit, Table) for exhibit in run.record.exhibits)


def test_what_was_finished_is_not_done_again(run: Run) -> None:
    assert run.kept
    assert {file: file.stat().st_mtime_ns for file in run.kept} == run.kept


def test_progress_comes_to_its_end(run: Run) -> None:
    parts = len(list((run.folder / "parts").iterdir()))
    assert run.counts == [(finished, parts) for finished in range(parts + 1)]
    assert len(set(run.told)) >= parts


def test_the_findings_follow_from_the_parts(run: Run, tmp_path: Path) -> None:
    """So a run in several sittings finds the same as one without a break."""
    work = tmp_path / run.item.name
    shutil.copytree(run.folder / "parts", work / "parts")
    findings = run.item.run(Work("tiny", 0, work))
    again = replace(run.record, summary=findings.summary, verdicts=findings.verdicts, exhibits=findings.exhibits)
    save_record(work, again)
    assert content(load_record(work)) == content(run.record)
