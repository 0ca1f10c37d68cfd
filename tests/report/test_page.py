"""The page: everything is shown, nothing is taken for HTML, and nothing comes from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from report.examples import HOSTILE, example
from torchlift import report
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.core.png import png
from torchlift.report.figures import MOST_POINTS, show
from torchlift.report.images import ERROR, HEAT
from torchlift.report.markup import Html, data, tag
from torchlift.report.page import duration, flat
from torchlift.report.records import (
    Blocks,
    Curves,
    Figure,
    HeatMap,
    Pictures,
    Record,
    Series,
    Table,
    load_record,
    save_record,
)
from torchlift.report.records.figures import KINDS

VOID = {"meta", "img", "input", "br"}


class Page(HTMLParser):
    """Elements with their attributes and text, and a check that every element is closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    def of_class(self, name: str) -> list[tuple[str, dict[str, str | None]]]:
        return [each for each in self.elements if name in (each[1].get("class") or "").split()]

    def under(self, name: str) -> list[str]:
        return [text for tag, text in self.texts if tag == name]

    @property
    def text(self) -> str:
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(report.html([example()]))


def test_everything_of_a_record_is_shown(page: Page) -> None:
    record = example()
    shown = " ".join(page.text.split())
    texts = [record.title, record.summary, record.command, "2 min 5 s", "some processor", "versions.torchlift"]
    texts += [text for claim in record.claims for text in (claim.statement, claim.measured, claim.outcome)]
    texts += [text for figure in record.figures for text in (figure.title, figure.note)]
    assert [text for text in texts if text not in shown] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_figure_has_its_section(page: Page, kind: str) -> None:
    assert len(page.of_class(f"kind-{kind.replace(' ', '-')}")) == 1


def test_headings_descend_one_by_one() -> None:
    for records in ([example()], [example(), example(1)], [example(), example(name="other")]):
        levels = [int(tag[1]) for tag, _ in Page(report.html(records)).elements if re.fullmatch("h[1-6]", tag)]
        assert levels.count(1) == 1
        first = levels.index(1)
        assert all(b <= a + 1 for a, b in zip(levels[first:], levels[first + 1 :], strict=False))


def test_names_are_unique_and_links_lead_somewhere() -> None:
    page = Page(report.html([example(), example(1), example(name="other")]))
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    links = [attributes["href"] or "" for attributes in page.named("a")]
    assert len(links) > 3
    assert all(link.removeprefix("#") in names for link in links)
    labelled = [attributes["aria-labelledby"] for _, attributes in page.elements if "aria-labelledby" in attributes]
    assert set(labelled) <= set(names)


def test_every_image_has_a_description_and_is_inside_the_page(page: Page) -> None:
    images = page.named("img")
    assert len(images) > 30
    assert all("alt" in image for image in images)
    assert all(
        (image.get("src") or "data:").startswith("data:image/png;base64,") or "src" not in image for image in images
    )
    assert "lifted, image 3 of 5" in [image["alt"] for image in images]
    assert "absolute error of lifted, image 3 of 5" in [image["alt"] for image in images]


def test_the_page_needs_nothing_else(page: Page) -> None:
    names = {tag for tag, _ in page.elements}
    assert not names & {"link", "iframe", "object", "embed", "base", "form"}
    assert all("src" not in script for script in page.named("script"))
    style = "".join(page.under("style"))
    assert "url(" not in style and "@import" not in style


def test_only_our_script_and_style_may_run(page: Page) -> None:
    policy = next(each["content"] for each in page.named("meta") if each.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    programs = [text for text in page.under("script") if not text.startswith("{")]
    assert len(programs) == 1
    for name, text in (("script-src", programs[0]), ("style-src", "".join(page.under("style")))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    inline = [
        name for _, attributes in page.elements for name in attributes if name == "style" or name.startswith("on")
    ]
    assert inline == []


def test_hostile_text_stays_text() -> None:
    plain, hostile = Counter(), Counter()
    plain.update(tag for tag, _ in Page(report.html([example()])).elements)
    attacked = Page(report.html([example(text=HOSTILE)], [HOSTILE]))
    hostile.update(tag for tag, _ in attacked.elements)
    assert hostile == plain
    assert not any("onerror" in attributes for _, attributes in attacked.elements)
    assert attacked.text.count(HOSTILE) > 15


def test_hostile_labels_stay_text() -> None:
    page = Page(report.html([example(), example(1)], [HOSTILE, "<b>"]))
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert HOSTILE in page.text


def test_hostile_text_survives_the_disk(tmp_path: Path) -> None:
    save_record(tmp_path, example(text=HOSTILE))
    assert report.html([load_record(tmp_path)]) == report.html([example(text=HOSTILE)])


def test_data_for_the_script_cannot_end_its_block() -> None:
    block = data({"text": HOSTILE, "numbers": [1.5, math.nan, math.inf], "line": "\u2028"})
    content = block.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert not set("<>&\u2028") & set(content)
    assert json.loads(content) == {"text": HOSTILE, "numbers": [1.5, None, None], "line": "\u2028"}


def test_tags_escape_text_and_attributes() -> None:
    assert tag("p", "a < b", Html("<br>"), None, class_='"x"') == '<p class="&quot;x&quot;">a &lt; b<br></p>'
    assert tag("input", data_x=1, hidden=True, disabled=False, title=None) == '<input data-x="1" hidden>'


def test_cells_are_formatted_and_numbers_stand_to_the_right() -> None:
    table = Table("t", "T", ["name", "value"], [["a", 1.23456], ["b", None]], ["", ".2f"])
    page = Page(show(table))
    assert page.under("td") == ["a", "1.23", "b", "–"]
    assert [attributes.get("class") for attributes in page.named("td")] == [None, "number", None, "number"]


def series_of(figure: Curves) -> list[dict]:
    return json.loads(Page(show(figure)).under("script")[0])["series"]


def test_curves_bring_their_numbers_twice() -> None:
    curves = Curves(
        "c", "C", "x", "y", [Series("a", [1, 2, 3], [1.0, None, math.inf]), Series("b", [1, 2, 3], [4, 5, 6])]
    )
    drawn = series_of(curves)
    assert [each["y"] for each in drawn] == [[1.0, None, None], [4.0, 5.0, 6.0]]
    assert [each["colour"] for each in drawn] == [0, 1]
    assert Page(show(curves)).under("td") == ["1", "1", "4", "2", "–", "5", "3", "inf", "6"]


def test_series_of_one_group_share_a_colour() -> None:
    series = [Series(name, [0], [1], group=group) for name, group in (("a", "g"), ("b", ""), ("c", "g"))]
    assert [each["colour"] for each in series_of(Curves("c", "C", "x", "y", series))] == [0, 1, 0]


def test_series_over_other_places_have_tables_of_their_own() -> None:
    curves = Curves("c", "C", "x", "y", [Series("a", [1, 2], [1, 2]), Series("b", [1, 3], [4, 5])])
    assert len(Page(show(curves)).named("table")) == 2


def test_long_curves_keep_their_spikes() -> None:
    y: list[float | None] = [0.0] * 100_000
    y[54_321], y[777] = 5.0, -3.0
    y[10_000:10_400] = [None] * 400
    curves = Curves("c", "C", "x", "y", [Series("a", list(range(100_000)), y)])
    drawn = series_of(curves)[0]
    assert len(drawn["x"]) <= MOST_POINTS + 2
    assert (max(filter(None, drawn["y"])), min(filter(None, drawn["y"]))) == (5.0, -3.0)
    assert drawn["x"][0] == 0 and drawn["x"][-1] == 99_999
    assert None in drawn["y"]
    assert len(Page(show(curves)).named("tr")) < 50


def pixels(uri: str) -> torch.Tensor:
    """The colours of an image, read by another program."""
    image = pytest.importorskip("PIL.Image")
    with image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as file:
        return torch.tensor(list(file.convert("RGB").tobytes())).reshape(file.height, file.width, 3)


def sources(figure: Pictures, words: str) -> list[str]:
    page = Page(show(figure))
    return [image["src"] or "" for image in page.named("img") if (image["alt"] or "").startswith(words)]


def test_all_rows_share_one_grey_scale() -> None:
    rows = {"a": torch.tensor([[[0.0, 0.5], [1.0, 2.0]]]), "b": torch.tensor([[[0.1, -1.0], [0.2, math.nan]]])}
    pictures = Pictures("p", "P", rows)
    grey = [pixels(sources(pictures, name)[0])[..., 0].flatten().tolist() for name in rows]
    assert grey == [[0, 128, 255, 255], [26, 0, 51, 0]]


def test_all_error_maps_share_one_scale() -> None:
    truth = torch.zeros(1, 1, 2)
    rows = {"truth": truth, "near": truth + 0.25, "far": torch.tensor([[[1.0, math.nan]]])}
    pictures = Pictures("p", "P", rows, truth="truth")
    near, far = (pixels(sources(pictures, f"absolute error of {name}")[0]) for name in ("near", "far"))
    assert far.tolist() == [[list(ERROR[-1])] * 2]  # NaN is as wrong as can be
    assert near.tolist() == [[list(ERROR[16])] * 2]
    assert sources(pictures, "absolute error of truth") == []
    assert "absolute error against truth" in Page(show(pictures)).text


def test_exact_rows_have_white_error_maps() -> None:
    rows = {"truth": torch.ones(1, 2, 2), "same": torch.ones(1, 2, 2)}
    uri = sources(Pictures("p", "P", rows, truth="truth"), "absolute error of same")[0]
    assert pixels(uri).unique().tolist() == [255]


def test_png_is_what_others_read() -> None:
    levels = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    uri = "," + base64.b64encode(png(levels)).decode()
    assert pixels(uri)[..., 2].tolist() == levels.tolist()


def test_one_row_has_nothing_to_be_compared_with() -> None:
    assert Page(show(Pictures("p", "P", {"a": torch.zeros(1, 2, 2)}))).of_class("compare") == []


def test_rows_to_compare_are_methods_first() -> None:
    rows = {name: torch.zeros(2, 2, 2) for name in ("truth", "noisy", "conventional", "lifted")}
    page = Page(show(Pictures("p", "P", rows, truth="truth")))
    chosen = [attributes["value"] for attributes in page.named("option") if "selected" in attributes]
    assert chosen == ["2", "3", "0"]


def heat_colours(figure: HeatMap, low: float, high: float) -> list[list[list[int]]]:
    page = Page(show(figure, (low, high)))
    return pixels(page.named("img")[0]["src"] or "").tolist()


def test_heat_maps_colour_by_value_or_logarithm() -> None:
    values = torch.tensor([[1.0, 10.0, 100.0, math.nan]])
    first, last, absent = list(HEAT[1]), list(HEAT[-1]), [136, 136, 136]
    for log, middle in ((True, HEAT[128]), (False, HEAT[24])):
        heat = HeatMap("h", "H", "x", "y", "v", [0, 1, 2, 3], ["a"], values, log=log)
        (row,) = heat_colours(heat, 1.0, 100.0)
        assert (row[0], row[2], row[3]) == (first, last, absent)
        assert row[1] == list(middle)


def test_heat_maps_without_values_are_grey() -> None:
    heat = HeatMap("h", "H", "x", "y", "v", [0], ["a"], torch.tensor([[math.nan]]), log=True)
    page = report.html([replace(example(), figures=[heat])])
    assert "–" in Page(page).text


def test_runs_of_one_name_stand_side_by_side() -> None:
    other = replace(
        example(1),
        figures=[
            replace(each, rows=[["lifted", 1.0, 2.0, True]]) if isinstance(each, Table) else each
            for each in example(1).figures
        ],
    )
    page = Page(report.html([example(), other], ["seed 0", "seed 1"]))
    assert len(page.of_class("kind-curves")) == 1
    content = json.loads(next(text for text in page.under("script") if '"yLog"' in text))
    assert [each["label"] for each in content["series"]][::4] == ["seed 0: lifted", "seed 1: lifted"]
    assert [each["colour"] for each in content["series"]] == [0, 0, 1, 2, 3, 3, 4, 5]
    assert page.text.count("seed 1") > 5
    rows = [text for tag, text in page.texts if tag == "p"]
    assert "seed 0: lifted" in rows and "seed 1: lifted" in rows
    assert rows.count("truth") == 1  # the same in both
    assert rows.count("back-propagation") == 1
    assert len(page.of_class("heat")) == 2
    assert len(page.of_class("grids")) == 1  # the same network
    assert page.of_class("beside")
    assert sum("differs" in (each.get("class") or "") for each in page.named("tr")) == 1  # the seed


def test_heat_maps_side_by_side_share_their_colours() -> None:
    def heat(scale: float) -> Record:
        values = scale * torch.tensor([[1.0, 2.0]])
        return replace(example(), figures=[HeatMap("h", "H", "x", "y", "v", [0, 1], ["a"], values)])

    page = Page(report.html([heat(1), heat(5)]))
    scales = [image["alt"] for image in page.named("img") if (image["alt"] or "").startswith("from dark")]
    assert scales == ["from dark to light: 1 to 10"] * 2


@pytest.mark.parametrize(("count", "rows", "beside"), [(1, 3, True), (2, 3, False), (1, 1, False)])
def test_rows_of_one_image_stand_beside_each_other(count: int, rows: int, beside: bool) -> None:
    figure = Pictures("p", "P", {f"row {index}": torch.rand(count, 4, 4) for index in range(rows)})
    assert bool(Page(show(figure)).of_class("single")) == beside


def test_pictures_that_do_not_fit_stand_beside_each_other() -> None:
    def pictures(size: int) -> Record:
        return replace(example(), figures=[Pictures("p", "P", {"a": torch.zeros(1, size, size)})])

    page = Page(report.html([pictures(2), pictures(3)], ["small", "large"]))
    assert len(page.of_class("pictures")) == 2
    assert {"small", "large"} <= set(page.under("h3"))


def test_other_names_have_sections_of_their_own() -> None:
    page = Page(report.html([example(), replace(example(name="other"), title="Another")]))
    assert page.under("h1") == ["Report"]
    assert page.under("h2") == ["Contents", "Denoising of digits", "Another"]
    assert "6 claims in 2 runs: 2 held, 2 did not hold, 2 not decidable." in page.text


def test_one_claim_of_several_runs_is_written_once() -> None:
    page = Page(report.html([example(), example(1)], ["a", "b"]))
    statement = example().claims[1].statement
    assert [text for text in page.under("p") if text == statement] == [statement]
    assert len(page.of_class("claim")) == 3
    assert len([each for _, each in page.elements if each.get("data-outcome") == "held"]) == 2


def test_a_run_without_claims_has_no_filter() -> None:
    page = Page(report.html([replace(example(), claims=[])]))
    assert page.of_class("filter") == [] and page.of_class("claims") == []


def test_equal_labels_are_told_apart() -> None:
    page = Page(report.html([example(), example(1), example(2)], ["a", "a", "a"]))
    assert {"a", "a (2)", "a (3)"} <= set(page.under("th"))


def test_figures_without_content_are_shown_as_such() -> None:
    figures = [
        Table("t", "T", ["a"], []),
        Curves("c", "C", "x", "y", []),
        Pictures("p", "P", {"a": torch.zeros(0, 2, 2), "b": torch.zeros(0, 2, 2)}, truth="a"),
        HeatMap("h", "H", "x", "y", "v", [], ["a"], torch.zeros(1, 0)),
        Blocks("b", "B", []),
    ]
    page = Page(report.html([replace(example(), figures=figures)]))
    assert "No images." in page.text and "No values." in page.text
    assert len(page.of_class("figure")) == len(figures) == len(KINDS)


def test_an_empty_record_is_a_page_too() -> None:
    page = Page(report.html([Record("n", "Title", "", "", {}, {}, 0.0)]))
    assert page.under("h1") == ["Title"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": {"b": 1}, "c": [1, 2]}, [("a.b", "1"), ("c", "1, 2")]),
        ({"p": [{"lr": None}, {"lr": 2}]}, [("p 1.lr", "none"), ("p 2.lr", "2")]),
        ({"empty": [], "no": False}, [("empty", "none"), ("no", "False")]),
    ],
)
def test_settings_are_flattened(value: dict, expected: list[tuple[str, str]]) -> None:
    assert list(flat(value)) == expected


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1234, "0.123 s"), (59.96, "60 s"), (125, "2 min 5 s"), (7300, "2 h 1 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Unknown(Figure):
    """A kind that nobody draws."""

    kind = "unknown"


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"expected Record objects, got str. Read them with"):
        report.html(["folder"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidTypeError, match="expected a Table, Curves, Pictures, Blocks or HeatMap, got Unknown"):
        report.html([replace(example(), figures=[Unknown("e", "E")])])
    with pytest.raises(InvalidValueError, match="expected at least one record, got none"):
        report.html([])
    with pytest.raises(InvalidValueError, match="labels: expected 1, one per record, got 2"):
        report.html([example()], ["a", "b"])


def test_colours_are_shown_as_they_are() -> None:
    image = torch.tensor([[[1.0, 0.0]], [[0.0, 0.5]], [[0.2, 1.0]]])  # (3, 1, 2)
    rows = {"truth": image[None], "other": image[None] + torch.tensor([0.3, 0.0, 0.0]).view(1, 3, 1, 1)}
    figure = Pictures("p", "P", rows, truth="truth")
    assert torch.allclose(figure.errors()["other"], torch.full((1, 1, 2), 0.1, dtype=torch.float64))
    assert pixels(sources(figure, "truth")[0]).tolist() == [[[255, 0, 51], [0, 128, 255]]]
    with pytest.raises(InvalidValueError, match="3, H, W"):
        Pictures("p", "P", {"a": torch.zeros(1, 2, 4, 4)})


def test_a_page_reloads_itself_while_work_goes_on() -> None:
    assert '<meta http-equiv="refresh" content="2">' in report.html([example()], reload=2)
    assert "refresh" not in report.html([example()])
