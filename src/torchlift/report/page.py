"""The page: summary, contents, one section per piece of work."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from torchlift.core.checks import check_instance, check_size
from torchlift.core.errors import invalid_value
from torchlift.report.figures import show
from torchlift.report.markup import Html, join, tag
from torchlift.report.records import Claim, Record
from torchlift.report.records.figures import OUTCOMES
from torchlift.report.together import Labelled, Section, common_range, sections

SCRIPTS = ("axes.js", "chart.js", "curves.js", "heat.js", "compare.js", "page.js")
TITLE = "Report"
SIGNS = {"held": "✓", "did not hold": "✗", "not decidable": "?"}


def html(records: Sequence[Record], labels: Sequence[str] = (), *, reload: int | None = None) -> str:
    """One HTML page that shows the records and needs nothing else.

    Records of one name stand side by side in one section: their curves over
    each other, their tables next to each other.

    Arguments:
        records: at least one.
        labels: what to call each run beside others of its name; "run 1", … by default.
        reload: seconds after which a browser reads the page again, while the work goes on.
    """
    records = list(records)
    for record in records:
        hint = "Read them with torchlift.report.records.load_record."
        check_instance("report.html records", record, Record, "Record objects", hint)
    if not records:
        invalid_value("report.html", "at least one record", "none")
    if labels and len(labels) != len(records):
        invalid_value("report.html labels", f"{len(records)}, one per record", len(labels))
    if reload is not None:
        check_size("report.html reload", reload)
    parts = sections(records, labels or [f"run {number}" for number in range(1, len(records) + 1)])
    style, script = _file("style.css"), "\n".join(_file(name) for name in SCRIPTS)
    return Template(_file("page.html")).substitute(
        policy=_policy(style, script),
        reload="" if reload is None else tag("meta", http_equiv="refresh", content=reload),
        title=tag("title", f"{parts[0].title if len(parts) == 1 else TITLE} – torchlift"),
        style=style,
        script=script,
        contents=_contents(parts),
        content=join([_alone(parts[0])] if len(parts) == 1 else _several(parts)),
    )


def _file(name: str) -> str:
    return resources.files("torchlift.report").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing from the network, and no script or style but ours, even if some text were not escaped."""
    allowed = {"style-src": style, "script-src": script}
    hashes = {name: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in allowed.items()}
    rules = " ".join(f"{name} 'sha256-{value}';" for name, value in hashes.items())
    return f"default-src 'none'; {rules} img-src data:; base-uri 'none'; form-action 'none'"


def _contents(parts: Sequence[Section]) -> Html:
    """Links to the sections, or to the figures of the only one."""
    if len(parts) == 1:
        titles = [runs[0][1].title for runs in parts[0].figures()]
        items = [tag("li", tag("a", title, href=f"#part-1-{index}")) for index, title in enumerate(titles, 1)]
    else:
        items = [tag("li", tag("a", "Summary", href="#summary"))]
        items += [
            tag("li", tag("a", part.title, href=f"#part-{number}"), _marks(part))
            for number, part in enumerate(parts, 1)
        ]
    return tag("nav", tag("h2", "Contents"), tag("ol", *items), aria_label="Contents")


def _marks(part: Section) -> Html:
    """How many claims held, and how many did not, as small numbers."""
    outcomes = [claim.outcome for claim in _claims(part)]
    counted = [(outcome, outcomes.count(outcome)) for outcome in OUTCOMES if outcome in outcomes]
    marks = [
        tag("span", f"{SIGNS[outcome]}\u202f{count}", title=f"{count} {outcome}", class_=f"mark {_class(outcome)}")
        for outcome, count in counted
    ]
    return tag("span", *marks, class_="marks") if marks else Html()


def _alone(part: Section) -> Html:
    """One piece of work is the whole page."""
    head = (tag("h1", part.title), *_about(part), *_filters([part]), *_claims_section(part))
    return tag("section", *head, *_evidence(1, part, 2), id="part-1")


def _several(parts: Sequence[Section]) -> list[Html]:
    """A summary of all claims in short, then one section per piece of work."""
    groups = [_in_short(number, part) for number, part in enumerate(parts, 1) if _claims(part)]
    summary = tag("section", tag("h1", TITLE), *_filters(parts), *groups, id="summary")
    return [summary, *(_section(number, part) for number, part in enumerate(parts, 1))]


def _in_short(number: int, part: Section) -> Html:
    """The claims of a section, without what was measured."""
    statements = [
        tag(
            "li", _badge(claim), tag("span", claim.statement, f" ({label})" if part.several else None),
            data_outcome=claim.outcome,
        )
        for label, record in part.runs.items()
        for claim in record.claims
    ]  # fmt: skip
    return tag(
        "div",
        tag("p", tag("a", part.title, href=f"#part-{number}"), class_="where"),
        tag("ul", *statements, class_="outcomes"),
        class_="group",
    )


def _section(number: int, part: Section) -> Html:
    name = f"part-{number}"
    head = tag("h2", part.title, id=f"{name}-title")
    content = (head, *_about(part), *_claims_section(part), *_evidence(number, part, 3))
    return tag("section", *content, id=name, aria_labelledby=f"{name}-title", class_="part")


def _claims(part: Section) -> list[Claim]:
    return [claim for record in part.runs.values() for claim in record.claims]


def _filters(parts: Sequence[Section]) -> Iterator[Html]:
    """How many claims held, in words and as buttons that show those only."""
    outcomes = [claim.outcome for part in parts for claim in _claims(part)]
    runs = _count(sum(len(part.runs) for part in parts), "run")
    if not outcomes:
        if len(parts) > 1:
            yield tag("p", f"{runs}, without claims.", class_="lead")
        return
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES if outcome in outcomes)
    yield tag("p", f"{_count(len(outcomes), 'claim')} in {runs}: {counts}.", class_="lead")
    buttons = [_filter("all", "All", len(outcomes), True)]
    buttons += [_filter(outcome, outcome.capitalize(), outcomes.count(outcome), False) for outcome in OUTCOMES]
    yield tag("div", *buttons, class_="filter", role="group", aria_label="Show claims that")
    yield tag("p", "", class_="unseen", role="status", id="shown")


def _filter(outcome: str, words: str, count: int, chosen: bool) -> Html:
    content = (tag("b", str(count)), " ", words)
    kind = "" if outcome == "all" else _class(outcome)
    pressed = "true" if chosen else "false"
    return tag("button", *content, type="button", data_filter=outcome, aria_pressed=pressed, class_=kind)


def _badge(claim: Claim) -> Html:
    sign = tag("span", SIGNS[claim.outcome], aria_hidden="true")
    return tag("span", sign, " ", claim.outcome, class_=f"badge {_class(claim.outcome)}")


def _class(outcome: str) -> str:
    return outcome.replace(" ", "-")


def _about(part: Section) -> Iterator[Html]:
    """The summary of each run; once if all are the same."""
    summaries = {label: record.summary for label, record in part.runs.items()}
    if len(set(summaries.values())) == 1:
        summaries = {"": part.first.summary}
    for label, summary in summaries.items():
        yield tag("p", tag("b", f"{label}: ") if label else None, summary, class_="about")


def _claims_section(part: Section) -> Iterator[Html]:
    """Each claim with what was measured; the same claim of several runs once."""
    statements = list(dict.fromkeys((claim.statement, claim.source) for claim in _claims(part)))
    rows: list[Html] = []
    for statement, source in statements:
        measurements = [
            (label, claim)
            for label, record in part.runs.items()
            for claim in record.claims
            if (claim.statement, claim.source) == (statement, source)
        ]
        measured = [
            tag(
                "div", _badge(claim),
                tag("p", tag("b", label, ": ") if part.several else None, claim.measured, class_="measured"),
                data_outcome=claim.outcome,
            )
            for label, claim in measurements
        ]  # fmt: skip
        by = tag("span", f" Claim of {'the paper' if source == 'paper' else source}.", class_="source")
        rows.append(tag("li", tag("p", statement, by, class_="statement"), *measured, class_="claim"))
    if rows:
        yield tag("ul", *rows, class_="claims")


def _evidence(number: int, part: Section, level: int) -> Iterator[Html]:
    """Figures, and how to repeat it, under headings of a level."""
    for index, runs in enumerate(part.figures(), 1):
        yield _figure(f"part-{number}-{index}", runs, level)
    yield _repeat(part, level)


def _figure(name: str, runs: Sequence[Labelled], level: int) -> Html:
    first = runs[0][1]
    values = common_range([figure for _, figure in runs])
    shown = [join([_run_heading(level, label), show(figure, values)]) for label, figure in runs]
    body = tag("div", *(tag("div", figure) for figure in shown), class_="beside") if len(shown) > 1 else shown[0]
    notes = dict.fromkeys(figure.note for _, figure in runs if figure.note)
    return tag(
        "section",
        tag(f"h{level}", first.title, id=name),
        body,
        *(tag("p", note, class_="note") for note in notes),
        aria_labelledby=name,
        class_=f"figure kind-{first.kind.replace(' ', '-')}",
    )


def _run_heading(level: int, label: str) -> Html | None:
    return tag(f"h{level + 1}", label, class_="run") if label else None


def _repeat(part: Section, level: int) -> Html:
    """Command, configuration, versions and hardware of each run."""
    commands = [
        join([_run_heading(level, label if part.several else ""), tag("pre", tag("code", record.command), tabindex=0)])
        for label, record in part.runs.items()
        if record.command
    ]
    seconds = ", ".join(
        (f"{label}: " if part.several else "") + duration(record.seconds) for label, record in part.runs.items()
    )
    return tag(
        "section",
        tag(f"h{level}", "To repeat" if commands else "Settings"),
        *commands,
        tag("p", f"It took {seconds}.", class_="note"),
        _settings("Configuration", {label: record.configuration for label, record in part.runs.items()}),
        _settings("Versions and hardware", {label: record.environment for label, record in part.runs.items()}),
        class_="repeat",
    )


def _settings(title: str, runs: Mapping[str, Mapping[str, Any]]) -> Html | None:
    """Settings as rows, runs as columns; rows in which runs differ are marked."""
    columns = [dict(flat(settings)) for settings in runs.values()]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if not names:
        return None
    rows: list[Html] = []
    for name in names:
        texts = [column.get(name, "–") for column in columns]
        differs = len(set(texts)) > 1
        cells = [tag("td", text) for text in texts]
        rows.append(tag("tr", tag("th", name, scope="row"), *cells, class_="differs" if differs else None))
    head = tag("tr", tag("td"), *(tag("th", label, scope="col") for label in runs)) if len(runs) > 1 else None
    body = tag("table", tag("caption", title, class_="unseen"), head, *rows, class_="settings")
    region = tag("div", body, class_="scroll", tabindex=0, role="region", aria_label=title)
    return tag("details", tag("summary", title), region)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, text)."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value, 1):
            yield from flat(item, f"{name} {number}")
    elif isinstance(value, list | tuple):
        yield name, ", ".join(map(str, value)) or "none"
    else:
        yield name, "none" if value is None else str(value)


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
