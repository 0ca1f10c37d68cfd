"""Tables and records as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchlift.report.records.figures import OUTCOMES, Cell, Record, Table
from torchlift.report.records.files import check_name

NOT_DRAWN = 'Not drawn: matplotlib is absent (`pip install "torchlift[plot]"`).'

_MARKDOWN = re.compile(r"[\\|*`\[\]]|~(?=~)|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is harmless
_ENTITY = re.compile(r"&(?=#?\w+;)")
_BEGINNING = re.compile(r"^(\d{0,9})(>|[#+=.)~-](?=[ #=~-]|$))")  # of a heading, a quotation, a list or a rule
_EXPONENT = re.compile(r"(-?[\d.]+)e([+-]\d+)")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SCRIPTS = re.compile(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+)|([₀₁₂₃₄₅₆₇₈₉]+)")

_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho",
    "σ": "sigma", "τ": "tau", "υ": "upsilon", "φ": "varphi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma",
    "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi",
    "Ω": "Omega",
}  # fmt: skip
_SIGNS = {
    "×": r"\times", "·": r"\cdot", "±": r"\pm", "−": "-", "≤": r"\leq", "≥": r"\geq", "≈": r"\approx", "≠": r"\neq",
    "∞": r"\infty", "√": r"\surd", "‖": r"\|", "ℓ": r"\ell", "∇": r"\nabla", "→": r"\to", "∈": r"\in", "∝": r"\propto",
    "½": r"\tfrac{1}{2}", "¼": r"\tfrac{1}{4}", "<": "<", ">": ">", "|": "|",
}  # fmt: skip
_LATEX = {
    **{letter: rf"\ensuremath{{\{name}}}" for letter, name in _GREEK.items()},
    **{letter: rf"\ensuremath{{{command}}}" for letter, command in _SIGNS.items()},
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "[": "{[}",  # or it would be the argument of the line break before it
    "]": "{]}",
    "*": "{*}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
}


def cell_text(cell: Cell, form: str = "") -> str:
    """A cell for people.

    Arguments:
        cell: of a `Table`.
        form: the format specification of its column, for numbers.
    """
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return cell if isinstance(cell, str) else format(cell, form)


def table_texts(table: Table) -> list[list[str]]:
    """The rows, each cell by the format of its column."""
    formats = table.formats or [""] * len(table.columns)
    return [[cell_text(cell, form) for cell, form in zip(row, formats, strict=True)] for row in table.rows]


def numeric_columns(table: Table) -> list[bool]:
    """Which columns hold numbers, apart from dashes: these are aligned to the right."""
    columns = [[row[index] for row in table.rows] for index in range(len(table.columns))]
    return [
        any(isinstance(cell, int | float) for cell in column) and not any(isinstance(cell, str) for cell in column)
        for column in columns
    ]


def markdown(table: Table) -> str:
    """The table in Markdown, its title above and its note below."""
    rules = ["---:" if right else "---" for right in numeric_columns(table)]
    rows = [list(map(markdown_text, row)) for row in (table.columns, *table_texts(table))]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rules, *rows[1:])]
    note = ["", markdown_text(table.note)] if table.note else []
    return "\n".join([f"**{markdown_text(table.title)}**", "", *lines, *note, ""])


def latex(table: Table) -> str:
    """The table in LaTeX, for the package booktabs."""
    check_name(table.name)
    columns = "".join("r" if right else "l" for right in numeric_columns(table))
    rows = [" & ".join(map(latex_text, row)) + r" \\" for row in table_texts(table)]
    note = [rf"  \par\smallskip {latex_text(table.note)}"] if table.note else []
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(table.title)}}}",
        rf"  \label{{tab:{table.name}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {' & '.join(map(latex_text, table.columns))} \\\\",
        r"    \midrule",
        *(f"    {row}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *note,
        r"\end{table}",
    ]
    return "\n".join([*lines, ""])


def record_markdown(record: Record, pictures: Sequence[str] = ()) -> str:
    """A record for people who read text: claims, then what there is to see.

    Arguments:
        record: of a finished piece of work.
        pictures: names of the figures of which there is a file `figures/<name>.png`.
    """
    parts = [f"# {markdown_text(record.title)}", markdown_text(record.summary)]
    if record.claims:
        parts += ["## Claims", counts(record), _claims(record)]
    parts += ["## Tables and figures"] if record.figures else []
    for figure in record.figures:
        if isinstance(figure, Table):
            parts.append(markdown(figure).strip())
            continue
        title = markdown_text(figure.title)
        link = f"![{title}](figures/{figure.name}.png)" if figure.name in pictures else NOT_DRAWN
        parts += [f"**{title}**", link, markdown_text(figure.note)]
    minutes, seconds = divmod(round(record.seconds), 60)
    parts += ["## To repeat", f"    {' '.join(record.command.split())}", f"It took {minutes} min {seconds} s."]
    return "\n\n".join(part for part in parts if part) + "\n"


def counts(record: Record) -> str:
    """How many claims held, and how many did not."""
    outcomes = [claim.outcome for claim in record.claims]
    return ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES if outcome in outcomes)


def _claims(record: Record) -> str:
    lines = ["| claim | measured | outcome | by |", "| --- | --- | --- | --- |"]
    for claim in record.claims:
        cells = (claim.statement, claim.measured, claim.outcome, claim.source)
        lines.append(f"| {' | '.join(map(markdown_text, cells))} |")
    return "\n".join(lines)


def markdown_text(text: str) -> str:
    """One line in which nothing is taken for Markdown or HTML."""
    # A backslash before < is not an escape everywhere; an entity is.
    plain = _ENTITY.sub("&amp;", " ".join(text.split())).replace("<", "&lt;")
    line = _MARKDOWN.sub(lambda match: "\\" + match[0], plain)
    return _BEGINNING.sub(r"\1\\\2", line)


def latex_text(text: str) -> str:
    """Text in which nothing is taken for a command; letters and signs that LaTeX does not know become mathematics."""
    if number := _EXPONENT.fullmatch(text):
        return rf"\ensuremath{{{number[1]} \times 10^{{{int(number[2])}}}}}"
    words = "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()) if letter.isprintable())
    words = _SCRIPTS.sub(_script, words)
    return f"\\ensuremath{{{words}}}" if re.fullmatch(r"-[\d.]+", words) else words


def _script(match: re.Match[str]) -> str:
    mark, digits = ("^", match[1].translate(_RAISED)) if match[1] else ("_", match[2].translate(_LOWERED))
    return rf"\ensuremath{{{mark}{{{digits}}}}}"
