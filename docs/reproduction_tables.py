"""The tables of docs/reproduction.md, made from the records in docs/records/reproduction.

    python docs/reproduction_tables.py              writes the tables anew
    python docs/reproduction_tables.py DIR ...      takes over records of `torchlift reproduce`
    python docs/reproduction_tables.py --long DIR   takes over checkpoints of trainings

In the page a table stands between `<!-- records: KIND -->` and `<!-- end of records -->`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
RECORDS = DOCS / "records" / "reproduction"
PAGE = DOCS / "reproduction.md"
FIGURE = DOCS / "images" / "reproduction-denoising.png"

INVERSE = ("denoising", "deblurring", "inpainting")
LONG = "long-trainings"
OPEN = "not decidable"
LAST = "With threshold 0.02, conventional training fits the training images but validates worse"
OURS = {"paper": "", "torchlift": " (ours)"}
DIGITS = 4
KEPT = ("name", "title", "command", "summary", "configuration", "environment")
FIRST, EVERY = 2000, 500
"""Rows of long trainings that are kept: the first steps, then after so many steps each."""

_PLACE = re.compile(r"(<!-- records: (\w[\w-]*) -->\n).*?(<!-- end of records -->)", re.DOTALL)


def load() -> dict[str, Any]:
    """All records by the names of their files."""
    return {
        file.stem: json.loads(file.read_text(encoding="utf-8"))
        for file in sorted(RECORDS.glob("*.json"))
    }


def filled(page: str, records: Mapping[str, Any]) -> str:
    """The page with its tables made from the records."""
    return _PLACE.sub(lambda found: f"{found[1]}\n{KINDS[found[2]](records)}\n\n{found[3]}", page)


# -- tables ---------------------------------------------------------------------------------------


def outcomes(records: Mapping[str, Any]) -> str:
    rows = []
    for record in _experiments(records):
        said = [claim["outcome"] for claim in record["claims"]]
        numbers = [said.count(outcome) for outcome in ("held", "did not hold", OPEN)]
        elsewhere = sum(_settled(records, record, claim) is not None for claim in record["claims"])
        rows.append([f"`{record['command']}`", *numbers[:2], elsewhere, numbers[2] - elsewhere])
    columns = ("Run", "held", "did not hold", "open here, decided by another run", "not decidable")
    return _table(columns, rows)


def _settled(
    records: Mapping[str, Any], record: Mapping[str, Any], claim: Mapping[str, Any]
) -> str | None:
    """What another run says of a claim that this one leaves open: that of most steps counts."""
    if claim["outcome"] != OPEN:
        return None
    found = [
        (other["configuration"].get("steps asked for") or 0, same["outcome"])
        for other in _experiments(records)
        if other["name"] == record["name"]
        for same in other["claims"]
        if same["statement"] == claim["statement"] and same["outcome"] != OPEN
    ]
    if record["name"] == "denoising" and claim["statement"].startswith(LAST):
        found.append((50_000, _last_of_long(records)))
    return max(found)[1] if found else None


def _last_of_long(records: Mapping[str, Any]) -> str:
    """Whether conventional training fits better and validates worse at the end."""
    trainings = records[LONG]["trainings"]
    plain, lifted = (trainings[f"{method} 0.02"][-1] for method in ("conventional", "lifted"))
    held = (
        plain["training psnr"] >= lifted["training psnr"]
        and plain["validation psnr"] < lifted["validation psnr"]
    )
    return "held" if held else "did not hold"


def claims(records: Mapping[str, Any]) -> str:
    parts = []
    for record in _experiments(records):
        rows = [
            [
                claim["statement"] + OURS[claim["source"]],
                claim["measured"],
                _verdict(records, record, claim),
            ]
            for claim in record["claims"]
        ]
        parts.append(f"### {_heading(record)}\n\n{_table(('Claim', 'Measured', 'Outcome'), rows)}")
    return "\n\n".join(parts)


def _verdict(
    records: Mapping[str, Any], record: Mapping[str, Any], claim: Mapping[str, Any]
) -> str:
    settled = _settled(records, record, claim)
    return f"open here; another run: **{settled}**" if settled else f"**{claim['outcome']}**"


def course(records: Mapping[str, Any]) -> str:
    """Threshold 0.2 and 0.02, published beside ours, at the best step and at the end."""
    rows = []
    for record in _experiments(records):
        tables = {table["name"]: table for table in record["tables"]}
        if "course" not in tables:
            continue
        for setting, method, threshold, *moments in tables["course"]["rows"]:
            step, seconds, quality, read, last, all_seconds, end, end_read = moments
            at = f"{quality:.1f} dB, {read:.0f} % (step {step:,}, {seconds:.0f} s)"
            over = f"{end:.1f} dB, {end_read:.0f} % (step {last:,}, {all_seconds:.0f} s)"
            who = "published" if setting == "published" else "our settings"
            rows.append([_task(record), f"{threshold:g}", f"{method}, {who}", at, over])
    return _table(("Task", "threshold", "training", "at its best step", "at the end"), rows)


def long(records: Mapping[str, Any]) -> str:
    trainings = records[LONG]["trainings"]
    steps = sorted({row["step"] for rows in trainings.values() for row in rows})
    shown = [
        step
        for step in steps
        if step in (0, 500, 1000, 1500, 2000, 3000, 5000, 7500) or step % 10_000 == 0
    ]
    shown = sorted({*shown, *(rows[-1]["step"] for rows in trainings.values())})
    columns = ["step"]
    for name, rows in trainings.items():
        columns += [f"{name}: training / validation (dB)"] + (
            ["objective"] if "objective" in rows[0] else []
        )
    lines = []
    for step in shown:
        line: list[object] = [f"{step:,}"]
        for rows in trainings.values():
            row = next((row for row in rows if row["step"] == step), None)
            line.append(
                "" if row is None else f"{row['training psnr']:.2f} / {row['validation psnr']:.2f}"
            )
            if "objective" in rows[0]:
                line.append("" if row is None else f"{row['objective']:.3g}")
        lines.append(line)
    return _table(columns, lines)


def long_tasks(records: Mapping[str, Any]) -> str:
    """The other tasks of 50,000 steps, from the curves of their records."""
    columns, shown = ["step"], (1000, 2000, 5000, 10_000, 20_000, 30_000, 40_000, 50_000)
    cells: dict[int, list[object]] = {step: [f"{step:,}"] for step in shown}
    for task in ("deblurring", "inpainting"):
        curves = {curve["name"]: curve for curve in records[f"{task}-50000-steps"]["curves"]}
        lines = {
            line["label"]: dict(zip(line["x"], line["y"], strict=True))
            for line in curves["psnr-published"]["series"]
        }
        for name in ("conventional, 0.02", "lifted, 0.02", "lifted, 0.2"):
            columns.append(f"{task}, {name}: training / validation (dB)")
            for step, row in cells.items():
                values = (lines[f"{name}, {split}"][step] for split in ("training", "validation"))
                row.append(" / ".join(f"{value:.2f}" for value in values))
    return _table(columns, cells.values())


KINDS = {
    "outcomes": outcomes,
    "claims": claims,
    "course": course,
    "long": long,
    "long-tasks": long_tasks,
}


def _experiments(records: Mapping[str, Any]) -> list[Any]:
    return [record for name, record in records.items() if name != LONG]


def _task(record: Mapping[str, Any]) -> str:
    seeds = record["configuration"]["seeds"]
    if seeds[0] > 0:  # beside a record of the seeds before
        return f"{record['name']}, seeds {' and '.join(map(str, seeds))}"
    return f"{record['name']}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"


def _heading(record: Mapping[str, Any]) -> str:
    asked, seed = (record["configuration"].get(name) for name in ("steps asked for", "seed"))
    steps = "" if asked is None else f", {asked:,} steps"
    steps = ", scale paper" if record["configuration"].get("scale") == "paper" else steps
    return record["title"] + steps + (f", from seed {seed} on" if seed else "")


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


# -- taking over ----------------------------------------------------------------------------------


def take_over(folder: Path) -> Path:
    """The numbers of a finished run, without pictures."""
    from torchlift.report.records import Curves, Table, load_record

    record = load_record(folder)
    asked, seed = (record.configuration.get(name) for name in ("steps asked for", "seed"))
    steps, other = f"-{asked}-steps" if asked else "", f"-seed-{seed}" if seed else ""
    scale = "-paper" if record.configuration.get("scale") == "paper" else ""
    file = RECORDS / f"{record.name}{scale}{steps}{other}.json"
    content = {name: getattr(record, name) for name in KEPT}
    content["claims"] = [vars(claim) for claim in record.claims]
    tables = [figure for figure in record.figures if isinstance(figure, Table)]
    content["tables"] = [
        {name: getattr(table, name) for name in ("name", "title", "note", "columns", "rows")}
        for table in tables
    ]
    content["curves"] = [
        {"name": curves.name, "series": [vars(series) for series in curves.series]}
        for curves in record.figures
        if isinstance(curves, Curves)
    ]
    return _write(file, content)


def take_over_long(folder: Path) -> Path:
    """Rows of trainings from their checkpoints, in the order of their folders' names."""
    from torchlift.io import Checkpoints

    trainings = {}
    for place in sorted(folder.iterdir()):
        rows = Checkpoints(place, kind="trajectory").load().record["rows"]
        name = place.name.removesuffix("-published").replace("-0-", " 0.")
        trainings[name] = [
            {key: value for key, value in row.items() if key not in ("gaps", "seconds")}
            for row in rows if row["step"] <= FIRST or row["step"] % EVERY == 0 or row is rows[-1]
        ]  # fmt: skip
    return _write(RECORDS / f"{LONG}.json", {"name": LONG, "trainings": trainings})


def _write(file: Path, content: Mapping[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps(_short(content), ensure_ascii=False, separators=(",", ":")) + "\n",
        encoding="utf-8",
    )
    return file


def _short(value: Any) -> Any:
    """Numbers with a few digits; what is no number becomes null."""
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_short(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def draw(records: Mapping[str, Any]) -> None:
    """Long trainings: images on the left, objective on the right."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
    for number, (name, rows) in enumerate(records[LONG]["trainings"].items()):
        rows = [row for row in rows if row["step"] > 0]
        steps = [row["step"] for row in rows]
        for split, style in (("validation", "-"), ("training", ":")):
            label = name if split == "validation" else None
            left.plot(
                steps,
                [row[f"{split} psnr"] for row in rows],
                style,
                color=f"C{number}",
                label=label,
            )
        if "objective" in rows[0]:
            right.plot(steps, [row["objective"] for row in rows], color=f"C{number}", label=name)
    left.set(
        xscale="log",
        xlabel="steps",
        ylabel="PSNR in dB",
        title="Images: new (solid), training (dotted)",
    )
    right.set(
        xscale="log",
        yscale="log",
        xlabel="steps",
        ylabel="objective",
        title="Lifted Bregman objective",
    )
    left.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=110)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--long"]:
        print(take_over_long(Path(arguments[1])))
        draw(load())
    else:
        for folder in arguments:
            print(take_over(Path(folder)))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
