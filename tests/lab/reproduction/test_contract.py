"""What every experiment of the reproduction promises. One tiny run of each, interrupted after its first part."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from contracts.experiments import Example, content
from torchlift.lab.reproduction import EXPERIMENTS, Experiment, Work, reproduce
from torchlift.report.plot import figures
from torchlift.report.records import Record, Table, load_record, save_record
from torchlift.report.records.figures import OUTCOMES
from torchlift.report.records.files import PAPER_ORDER

#: Deblurring on other data, with the same figures: `test_inverse_problems` runs them without drawing those again.
OTHER_DATA = {"denoising", "inpainting"}
CASES = [Example(figures=True), *(each for name, each in EXPERIMENTS.items() if name not in OTHER_DATA)]


#: Formats of figures. The example has figures of every kind, in every format; those of an experiment are drawn once.
FORMATS = ("png", "svg", "pdf")


def test_reports_show_every_experiment_in_its_place() -> None:
    assert tuple(EXPERIMENTS) == PAPER_ORDER


class StopError(Exception):
    """The interruption."""


@dataclass
class Run:
    """A run at scale tiny that was interrupted once."""

    experiment: Experiment
    folder: Path
    record: Record
    told: list[str]
    counts: list[tuple[int, int]]
    kept: dict[Path, int]
    """What was finished when it was interrupted, and when it was written."""
    formats: tuple[str, ...]


@pytest.fixture(scope="module", params=CASES, ids=lambda experiment: experiment.name)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, finished: dict[str, Path]) -> Run:
    experiment, out = request.param, tmp_path_factory.mktemp("out")

    def stop(finished: int, total: int) -> None:
        if finished == 1:
            raise StopError

    with pytest.raises(StopError):
        reproduce(experiment, "tiny", 0, out, done=stop)
    kept = {file: file.stat().st_mtime_ns for file in (out / experiment.name / "parts").rglob("*.*")}
    told: list[str] = []
    counts: list[tuple[int, int]] = []
    formats = FORMATS if isinstance(experiment, Example) else FORMATS[:1]
    with pytest.MonkeyPatch.context() as patch:
        if formats != FORMATS:
            patch.setattr(figures, "_WITHOUT_DATE", {ending: {} for ending in formats})
            patch.setattr(figures, "_DOTS", 50)
        record = reproduce(
            experiment,
            "tiny",
            0,
            out,
            resume=True,
            tell=told.append,
            done=lambda finished, total: counts.append((finished, total)),
        )
    finished[experiment.name] = out / experiment.name / "parts"
    return Run(experiment, out / experiment.name, record, told, counts, kept, formats)


def test_the_record_has_the_name_of_the_experiment(run: Run) -> None:
    assert run.record.name == run.experiment.name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_names(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert name == experiment.name and name not in ("all", "list")
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert experiment.title
    assert experiment.about and "\n" not in experiment.about


def test_experiments_on_other_data_are_the_same_otherwise() -> None:
    assert {type(EXPERIMENTS[name]).run for name in OTHER_DATA} == {type(EXPERIMENTS["deblurring"]).run}


def test_there_is_a_claim_per_claim(run: Run) -> None:
    claims = run.record.claims
    assert claims
    assert len({claim.statement for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.statement and claim.measured
        assert claim.outcome in OUTCOMES
    assert run.record.summary


def test_the_record_reads_back(run: Run) -> None:
    assert content(load_record(run.folder)) == content(run.record)
    assert run.record.figures
    assert run.record.configuration["scale"] == "tiny"


def test_every_figure_has_its_files(run: Run) -> None:
    wanted: set[str] = set()
    for figure in run.record.figures:
        kind, endings = ("tables", ("md", "tex")) if isinstance(figure, Table) else ("figures", run.formats)
        wanted |= {f"{kind}/{figure.name}.{ending}" for ending in endings}
    found = {
        f"{kind}/{file.name}": file.stat().st_size
        for kind in ("tables", "figures")
        for file in run.folder.glob(f"{kind}/*")
    }
    assert found.keys() == wanted
    assert all(found.values())
    assert any(isinstance(figure, Table) for figure in run.record.figures)


def test_what_was_finished_is_not_done_again(run: Run) -> None:
    assert run.kept
    assert {file: file.stat().st_mtime_ns for file in run.kept} == run.kept


def test_progress_comes_to_its_end(run: Run) -> None:
    parts = len(list((run.folder / "parts").iterdir()))
    assert run.counts == [(finished, parts) for finished in range(parts + 1)]
    assert len(set(run.told)) >= parts


def test_the_result_follow_from_the_parts(run: Run, tmp_path: Path) -> None:
    """So a run in several sittings finds the same as one without a break."""
    work = tmp_path / run.experiment.name
    shutil.copytree(run.folder / "parts", work / "parts")
    result = run.experiment.run(Work("tiny", 0, work))
    again = replace(run.record, summary=result.summary, claims=result.claims, figures=result.figures)
    save_record(work, again)
    assert content(load_record(work)) == content(run.record)
