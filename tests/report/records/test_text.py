"""Tables and records as text: right numbers, and nothing in them is taken for markup."""

from __future__ import annotations

import pytest

from torchlift.report.records import Claim, Curves, Record, Series, Table, cell_text, latex, markdown, record_markdown
from torchlift.report.records.text import NOT_DRAWN, latex_text, markdown_text

TABLE = Table(
    "speeds",
    "Speeds & gains",
    ["method", "PSNR (dB)", "rate"],
    [["a|b", 12.345, 5e-4], ["c_d", None, -2e-5], ["all", float("inf"), 1]],
    ["", ".2f", ".0e"],
    note="50 % of <all> images.",
)


@pytest.mark.parametrize(
    ("cell", "form", "text"),
    [
        (None, ".2f", "–"),
        (True, ".2f", "yes"),
        (False, "", "no"),
        ("words", ".2f", "words"),
        (3, "", "3"),
        (3, ".1f", "3.0"),
        (0.1, "", "0.1"),
        (0.12345, ".3f", "0.123"),
        (1234567, ",", "1,234,567"),
        (float("nan"), ".2f", "nan"),
    ],
)
def test_cells(cell: str | float | None, form: str, text: str) -> None:
    assert cell_text(cell, form) == text


def test_markdown() -> None:
    assert markdown(TABLE).splitlines() == [
        "**Speeds & gains**",
        "",
        "| method | PSNR (dB) | rate |",
        "| --- | ---: | ---: |",
        r"| a\|b | 12.35 | 5e-04 |",
        "| c_d | – | -2e-05 |",
        "| all | inf | 1e+00 |",
        "",
        r"50 % of &lt;all> images.",
    ]


def test_latex() -> None:
    assert latex(TABLE).splitlines() == [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{Speeds \& gains}",
        r"  \label{tab:speeds}",
        r"  \begin{tabular}{lrr}",
        r"    \toprule",
        r"    method & PSNR (dB) & rate \\",
        r"    \midrule",
        r"    a\ensuremath{|}b & 12.35 & \ensuremath{5 \times 10^{-4}} \\",
        r"    c\_d & -- & \ensuremath{-2 \times 10^{-5}} \\",
        r"    all & inf & \ensuremath{1 \times 10^{0}} \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \par\smallskip 50 \% of \ensuremath{<}all\ensuremath{>} images.",
        r"\end{table}",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-0.5", r"\ensuremath{-0.5}"),
        ("a-b", "a-b"),
        (r"\input{x}", r"\textbackslash{}input\{x\}"),
        ("x^2 ~ $5 #1", r"x\textasciicircum{}2 \textasciitilde{} \$5 \#1"),
        ("‖x‖² ≤ μ·10⁻³", r"\ensuremath{\|}x\ensuremath{\|}\ensuremath{^{2}} \ensuremath{\leq} "
         r"\ensuremath{\mu}\ensuremath{\cdot}10\ensuremath{^{-3}}"),
        ("z₁₂ → ∞", r"z\ensuremath{_{12}} \ensuremath{\to} \ensuremath{\infty}"),
        ("two\n  lines", "two lines"),
    ],
)  # fmt: skip
def test_nothing_is_a_command_of_latex(text: str, expected: str) -> None:
    assert latex_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<img src=x>", r"&lt;img src=x>"),
        ("*a* _b_ c_d", r"\*a\* \_b\_ c_d"),
        ("[x](y) `z`", r"\[x\](y) \`z\`"),
        ("a | b\nc", r"a \| b c"),
    ],
)
def test_nothing_is_markup_of_markdown(text: str, expected: str) -> None:
    assert markdown_text(text) == expected


def test_a_record() -> None:
    curves = Curves("curves", "Curves", "x", "y", [Series("a", [1], [1])], note="They fall.")
    claims = [Claim("It falls.", "by 3", "held"), Claim("It rises.", "by −3", "did not hold", "torchlift")]
    record = Record("name", "Title", "Summary.", "torchlift x", {}, {}, 125.0, claims, [TABLE, curves])
    text = record_markdown(record, ["curves"])
    assert text.startswith("# Title\n\nSummary.\n\n## Claims\n\n1 held, 1 did not hold\n\n| claim |")
    assert "| It rises. | by −3 | did not hold | torchlift |" in text
    assert markdown(TABLE).strip() in text
    assert "**Curves**\n\n![Curves](figures/curves.png)\n\nThey fall.\n\n" in text
    assert text.endswith("## To repeat\n\n    torchlift x\n\nIt took 2 min 5 s.\n")
    assert f"**Curves**\n\n{NOT_DRAWN}\n" in record_markdown(record)


def test_a_record_of_nothing() -> None:
    assert (
        "##" not in record_markdown(Record("name", "Title", "Summary.", "torchlift x", {}, {}, 1)).partition("## To")[0]
    )
