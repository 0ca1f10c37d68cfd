"""The page in Chromium: it draws, answers to mouse and keyboard, fits a phone, and stays by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from report.browser import Browser, absent
from report.examples import HOSTILE, example
from torchlift import report
from torchlift.report.records import Curves, Series

pytestmark = pytest.mark.skipif(absent() != "", reason=f"the page is not tried in a browser: no {absent()} here")

LINES = "return document.querySelectorAll('.kind-curves .series .line').length"
PATH = "return document.querySelector('.kind-curves [data-series=\"0\"] .line').getAttribute('d')"
TICKS = "return [...document.querySelectorAll('.kind-curves .plot text:not(.name)')].map(e => e.textContent)"
CLIP = "return getComputedStyle(document.querySelector('.over')).clipPath"
SHOWN = "return [...document.querySelectorAll('.outcomes li')].filter(e => e.offsetParent).map(e => e.dataset.outcome)"
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"
READING = "return document.querySelector('.reading').textContent"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run; several; and one whose texts try to run code."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "one": report.html([example()]),
        "several": report.html(
            [example(), example(1), replace(example(2, "other"), title="Other")], ["seed 0", "seed 1", "x"]
        ),
        "hostile": report.html([example(text=HOSTILE), example(1, text=HOSTILE)], [HOSTILE, "b"]),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def number(percent: str) -> float:
    """The share that a clip path cuts off at the right: inset(0px 30% 0px 0px)."""
    return float(percent.split()[1].removesuffix("%"))


@pytest.mark.parametrize("name", ["one", "several", "hostile"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_loads_quietly_and_alone(window: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    window.open(pages[name], width)
    assert window.wait(lambda: window.run(LINES) > 0)
    assert window.logged("browser") == []
    asked = [address for address in window.requests() if not address.startswith("data:")]
    assert asked == [pages[name].resolve().as_uri()]


@pytest.mark.parametrize("name", ["one", "several", "hostile"])
@pytest.mark.parametrize("width", [320, 375, 768])
def test_narrow_windows_do_not_scroll_sideways(window: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    window.open(pages[name], width)
    window.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert window.run("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]


def test_hostile_text_is_inert(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["hostile"])
    assert window.run("return document.querySelectorAll('[onerror], img[src=x]').length") == 0
    assert HOSTILE in window.run("return document.querySelector('h1').textContent")
    assert HOSTILE in window.run("return document.querySelector('.legend').textContent")


def test_injected_code_would_not_run(window: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    """The second line of defence: even text that was not escaped may neither run nor call out."""
    attack = "<img src=x onerror='window.hit = 1'><img src='http://127.0.0.1:9/'><script>window.hit = 2</script>"
    page = tmp_path / "attacked.html"
    page.write_text(pages["one"].read_text(encoding="utf-8").replace("<main", attack + "<main"), encoding="utf-8")
    window.open(page)
    assert window.run("return window.hit === undefined")
    refused = window.logged("browser")
    assert len([text for text in refused if "Content Security Policy" in text]) >= 3


def test_series_can_be_switched_off_and_on(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    assert window.run(LINES) == 4
    window.click(".legend li:nth-child(3) input")
    assert window.run(LINES) == 3
    assert window.run("return document.querySelector('.legend li:nth-child(3) .value').textContent") == ""
    window.press(".legend li:nth-child(3) input", " ")
    assert window.run(LINES) == 4


def test_axes_become_linear_and_logarithmic(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    logarithmic, ticks = window.run(PATH), window.run(TICKS)
    assert "10" in ticks and "20" not in ticks
    window.click(".log-y")
    assert window.run(PATH) != logarithmic
    assert {"0", "20", "40"} <= set(window.run(TICKS))
    assert window.run("return document.querySelector('.log-y').getAttribute('aria-pressed')") == "false"
    window.press(".log-y", " ")
    assert window.run(PATH) == logarithmic
    window.click(".log-x")
    assert "NaN" not in window.run(PATH) and "Infinity" not in window.run(PATH)


def test_values_are_read_by_mouse(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    where = "return document.querySelector('.where').textContent"
    assert window.run(where) == "last value"
    window.hover(".plot", 0.5, 0.5)
    assert window.run(where).startswith("step: ")
    step = float(window.run(where).removeprefix("step: "))
    assert 700 < step < 1100
    expected = example().figures[1].series[0].y[int(step) // 20]  # pyright: ignore[reportAttributeAccessIssue]
    shown = float(window.run("return document.querySelector('.legend .value').textContent"))
    assert shown == pytest.approx(expected, rel=1e-3)
    assert window.run("return document.querySelectorAll('.overlay .read').length") >= 3


def test_values_are_read_by_keyboard(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    window.press(".plot", "left", "left", "left")
    assert window.run("return document.querySelector('.where').textContent") == "step: 1960"
    said = window.run("return document.querySelector('.chart [role=status]').textContent")
    assert said.startswith("step: 1960. lifted 3.") and "back-propagation 28." in said


def test_dragging_zooms_and_escape_shows_all(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    whole = window.run(PATH)
    window.drag(".plot", (0.3, 0.5), (0.4, 0.5), (0.6, 0.5))
    assert window.run(PATH) != whole
    ticks = window.run(TICKS)
    assert "2000" not in ticks and "1000" in ticks
    window.press(".plot", "escape")
    assert window.run(PATH) == whole
    window.press(".plot", "+")
    assert window.run(PATH) != whole
    window.click(".reset")
    assert window.run(PATH) == whole
    assert window.run("return document.querySelector('.reset').disabled")


def test_odd_curves_are_drawn_as_far_as_they_go(window: Browser, tmp_path: Path) -> None:
    def curves(name: str, *series: Series, log: bool = False) -> Curves:
        return Curves(name, name, "x", "y", series, x_log=log, y_log=log)

    figures = [
        curves("descending", Series("a", [3, 2, 1], [30, None, 10]), Series("negative", [1, 2], [-1, -2]), log=True),
        curves("nothing"),
        curves("gaps", Series("a", [1, 2], [None, None]), log=True),
        curves("point", Series("a", [5], [7])),
        curves("constant", Series("a", [0, 0], [0, 0])),
    ]
    page = tmp_path / "odd.html"
    page.write_text(report.html([replace(example(), figures=figures)]), encoding="utf-8")
    window.open(page)
    assert window.logged("browser") == []
    drawn = window.run("return [...document.querySelectorAll('.plot svg')].map(e => e.outerHTML)")
    assert len(drawn) == 5
    assert not any(word in text for text in drawn for word in ("NaN", "Infinity", "undefined"))
    values = window.run("return [...document.querySelectorAll('.legend .value')].map(e => e.textContent)")
    assert values == ["30", "", "", "7", "0"]  # at the right end
    for selector in (".plot", ".log-y", ".log-x"):
        window.run("for (const e of document.querySelectorAll(arguments[0])) e.click()", selector)
    window.press(".plot", "left", "+", "-", "0")
    assert window.logged("browser") == []


def test_curves_follow_the_size_of_the_window(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"], 1280)
    width = "return document.querySelector('.plot svg').viewBox.baseVal.width"
    wide = window.run(width)
    window.command("Emulation.setDeviceMetricsOverride", width=500, height=900, deviceScaleFactor=1, mobile=False)
    assert window.wait(lambda: window.run(width) < wide)


def test_the_slider_moves_the_border_by_keyboard_and_mouse(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    assert number(window.run(CLIP)) == 50
    window.press(".border", "right", "right")
    assert number(window.run(CLIP)) == 48
    words = window.run("return document.querySelector('.border').getAttribute('aria-valuetext')")
    assert words == "52 percent of back-propagation, the rest lifted"
    window.drag(".stage", (0.52, 0.5), (0.8, 0.5))
    assert number(window.run(CLIP)) == pytest.approx(20, abs=1)
    assert float(window.run("return document.querySelector('.border').value")) == pytest.approx(80, abs=1)


def test_other_rows_and_images_can_be_compared(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    described = "return document.querySelector('.over').alt + ' | ' + document.querySelector('.under').alt"
    assert window.run(described) == "back-propagation, image 1 of 5 | lifted, image 1 of 5"
    window.press("select.left", "up")
    window.press("select.which", "down")
    assert window.run(described) == "noisy, image 2 of 5 | lifted, image 2 of 5"
    source = "return document.querySelector(arguments[0]).src"
    shown = ".strip:nth-of-type(2) .images li:nth-child(2) img"
    assert window.run(source, ".over") == window.run(source, shown)


def test_flicker_shows_both_in_turn_until_stopped(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    hidden = "return document.querySelector('.over').hidden"
    window.click(".flicker")
    assert window.wait(lambda: window.run(hidden))
    assert window.wait(lambda: not window.run(hidden))
    window.click(".flicker")
    assert not window.run(hidden)
    assert number(window.run(CLIP)) == 50


def test_heat_maps_are_read_by_mouse_and_keyboard(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    window.hover(".cells", 0.99, 0.99)
    assert window.run(READING).startswith("layer 7, step 1960: ")
    window.press(".cells", "left", "up")
    assert window.run(READING).startswith("layer 6, step 1920: ")
    window.run("document.activeElement.blur()")
    window.press(".cells", "right", "right", "down")
    assert window.run(READING).startswith("layer 2, step 40: ")


def test_claims_are_filtered_by_outcome(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["several"])
    assert len(window.run(SHOWN)) == 9
    window.click("[data-filter='did not hold']")
    assert window.run(SHOWN) == ["did not hold"] * 3
    claims = "return [...document.querySelectorAll('.claim')].filter(e => e.offsetParent).length"
    assert window.run(claims) == 2
    window.click("[data-filter='held']")
    groups = "return [...document.querySelectorAll('.group')].filter(e => e.offsetParent).length"
    assert window.run(groups) == 2
    window.press("[data-filter=all]", " ")
    assert len(window.run(SHOWN)) == 9 and window.run(claims) == 6


def test_dark_mode_follows_the_system_and_the_button(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"], scheme="light")
    light = window.run(BACKGROUND)
    window.click("#theme")
    dark = window.run(BACKGROUND)
    assert light == "rgb(253, 253, 251)" and dark == "rgb(21, 23, 26)"
    window.open(pages["one"], scheme="dark")
    assert window.run(BACKGROUND) == dark
    assert window.run("return document.querySelector('#theme').textContent") == "Light"
    window.press("#theme", " ")
    assert window.run(BACKGROUND) == light


CONTRAST = """
const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const channels = (colour) => {
  context.clearRect(0, 0, 1, 1); context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
};
const light = (rgb) => {
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = rgb.slice(0, 3).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const found = channels(getComputedStyle(e).backgroundColor);
    if (found[3] === 255) return found;
  }
};
const poor = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest("script, :disabled")) continue;
  const style = getComputedStyle(e), drawn = e.namespaceURI.includes("svg");
  const cell = e.closest("g.block");
  const paper = cell ? channels(getComputedStyle(cell.querySelector("rect")).fill) : behind(e);
  const [a, b] = [light(channels(drawn ? style.fill : style.color)), light(paper)];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) poor.push(`${e.tagName}.${e.className} ${e.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
}
return poor;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(window: Browser, pages: dict[str, Path], scheme: str) -> None:
    window.open(pages["several"], scheme=scheme)
    window.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert window.run(CONTRAST) == []


def test_everything_that_reacts_has_a_name_and_a_visible_focus(window: Browser, pages: dict[str, Path]) -> None:
    window.open(pages["one"])
    nameless = window.run(
        "const name = e => e.getAttribute('aria-label') || (e.closest('label') || e).textContent.trim();"
        "return [...document.querySelectorAll('button, select, input, [tabindex=\"0\"]')].filter(e => !name(e))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    focus = "return [document.activeElement.className, getComputedStyle(document.activeElement).outlineStyle]"
    window.press(".plot", "tab")
    assert window.run(focus) == ["log-y", "solid"]


def test_print_leaves_out_controls(window: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    window.open(pages["one"], scheme="dark")
    window.command("Emulation.setEmulatedMedia", media="print")
    shown = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getClientRects().length).length"
    assert window.run(shown, "button, nav, .compare, input") == 0
    assert window.run(shown, ".plot svg, .strip img, .heat img, svg.blocks") > 30
    assert window.run(BACKGROUND) == "rgb(255, 255, 255)"
    window.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    window.command("Emulation.setEmulatedMedia", media="")
