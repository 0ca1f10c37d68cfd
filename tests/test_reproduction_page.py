"""The page about the reproduction and the records that its tables are made from."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from contracts.experiments import Example
from torchlift.lab.reproduction import EXPERIMENTS, reproduce

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reproduction_tables", DOCS / "reproduction_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_the_records_say(tables: ModuleType) -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.filled(page, tables.load()) == page, "run python docs/reproduction_tables.py"
    assert page.count("<!-- records: ") == len(tables.KINDS)
    assert all(f"`{name}`" in page for name in EXPERIMENTS)


def test_records_are_of_todays_experiments_and_small(tables: ModuleType) -> None:
    for file in tables.RECORDS.glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        assert record["name"] == tables.LONG or record["name"] in EXPERIMENTS
        assert file.stat().st_size < 200_000


def test_a_finished_run_is_taken_over(tables: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = reproduce(Example(), "tiny", 0, tmp_path / "runs")
    monkeypatch.setattr(tables, "RECORDS", tmp_path / "records")
    tables.take_over(tmp_path / "runs" / "example")
    page = "".join(f"<!-- records: {kind} -->\nstale\n<!-- end of records -->\n" for kind in ("outcomes", "claims"))
    filled = tables.filled(page, tables.load())
    assert "stale" not in filled and f"| `{record.command}` | 1 | 1 | 0 | 1 |" in filled
    assert all(claim.measured in filled and claim.statement in filled for claim in record.claims)
    assert tables.filled(filled, tables.load()) == filled
    longer = json.loads((tmp_path / "records" / "example.json").read_text(encoding="utf-8"))
    longer["configuration"]["steps asked for"] = 9
    for claim in longer["claims"]:
        claim["outcome"] = "held"
    (tmp_path / "records" / "example-9-steps.json").write_text(json.dumps(longer), encoding="utf-8")
    filled = tables.filled(page, tables.load())
    assert f"| `{record.command}` | 1 | 1 | 1 | 0 |" in filled and "open here; another run: **held**" in filled
