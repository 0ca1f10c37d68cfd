"""Choose the subcommand, read its options, and turn errors into one line."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from torchlift import __version__
from torchlift.cli import interruptible
from torchlift.cli.text import printable
from torchlift.core.errors import InvalidValueError, TorchliftError, did_you_mean, message, system_words

if TYPE_CHECKING:
    from torchlift.cli.command import Command

COMMANDS: dict[str, str] = {
    "demo": "torchlift.cli.demo:Demo",
    "info": "torchlift.cli.info:Info",
    "train": "torchlift.cli.train:Train",
    "invert": "torchlift.cli.invert:Invert",
    "report": "torchlift.cli.report:Report",
    **import_module("torchlift.lab.commands").COMMANDS,  # by name: nothing imports the laboratory
}
"""Where each command is, as module:class, so that only the one that is called is loaded.

A name of two words, such as "bench layers", is written as two arguments.
"""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = "│╭╮╰╯─ "
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*")
_SAYINGS = [
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.+)", r"\1: expected a whole number, got \2"),
    (r"Error parsing (\S+): could not convert string to float: (.+)", r"\1: expected a number, got \2"),
    (r"Error parsing (\S+): (?:Could not|no type).*\[(.+)\]", r"\1: expected values of another kind, got \2"),
    (r"invalid choice ('.*') for argument '(\S+)'\. Expected one of \((.+)\)", r"\2: expected one of \3, got \1"),
    (r"Missing value for argument '(\S+)'\. Expected \d+ values", r"\1: expected a value, got nothing"),
    (r"Unrecognized options: (.+)", r"expected options that it has, got \1"),
]
"""How tyro complains, and how we do."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Errors made on purpose, and those of files, become one line."""
    # Where the shell has closed them (>&-), Python has none.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without σ shows ?, not a traceback
    try:
        _dispatch(list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output (`| head`) has had enough; nothing is left to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (TorchliftError, OSError) as error:
        if "--debug" in arguments:
            raise
        text = _by_option(str(error), arguments) if isinstance(error, TorchliftError) else _sentence(error)
        print(f"torchlift: {printable(' '.join(text.split()))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if "--debug" in arguments or not _lacks_extra(error, arguments):
            raise
        text = f"expected the package {error.name}, which the laboratory needs, got none."
        print(f"torchlift: {arguments[0]}: {text} Try: pip install 'torchlift[lab]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("torchlift: stopped", file=sys.stderr)
        return 130
    return 0


def _sentence(error: OSError) -> str:
    """What the system says about a file, as our own errors say it."""
    return message(str(error.filename or "files"), "to be able to read and write there", system_words(error))


def _by_option(text: str, arguments: Sequence[str]) -> str:
    """An error of the library about max_steps names --max-steps, if that is what was typed."""
    match = re.match(r"(?:[\w ]*? )?(\w+)(?==|:)", text)
    option = match and f"--{match[1].replace('_', '-')}"
    return f"{option}{text[match.end() :]}" if match and option in arguments else text


def _lacks_extra(error: ModuleNotFoundError, arguments: Sequence[str]) -> bool:
    """Whether a command of the laboratory lacks a package of the extra `lab`."""
    place = COMMANDS.get(" ".join(arguments[:2])) or COMMANDS.get(arguments[0], "")
    return place.startswith("torchlift.lab") and not (error.name or "torchlift").startswith("torchlift")


def _dispatch(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        if arguments[1:]:  # `torchlift help train`
            return _dispatch([*arguments[1:], "--help"])
        print(_overview("COMMAND", list(COMMANDS)))
    elif name in ("-V", "--version", "version"):
        print(f"torchlift {__version__}")
    elif arguments[1:] in ([], ["-h"], ["--help"]) and (family := _family(name)):
        print(_overview(f"{name} COMMAND", family))
    else:
        kind, rest = _choose(arguments)
        interruptible()
        command = _parse(kind, rest)
        if command is not None:
            command.run()


def _overview(usage: str, names: Sequence[str]) -> str:
    indent = max(map(len, names)) + 4
    wrapped = textwrap.TextWrapper(max(shutil.get_terminal_size().columns, indent + 20), subsequent_indent=" " * indent)
    return "\n".join(
        [
            f"usage: torchlift {usage} [options]",
            "",
            "Lifted training and stable inversion of neural networks.",
            "",
            *(wrapped.fill(f"  {name}".ljust(indent) + _summary(COMMANDS[name])) for name in names),
            "",
            "'torchlift COMMAND --help' lists the options; 'torchlift --version' prints the version.",
        ]
    )


def _family(word: str) -> list[str]:
    """The commands of two words that begin with this one."""
    return [name for name in COMMANDS if name.startswith(f"{word} ")]


def _summary(place: str) -> str:
    """The first line of a command's docstring, read without loading the command, which would load torch."""
    module, _, name = place.partition(":")
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    return (ast.get_docstring(classes[name]) or "").partition("\n")[0]


def _choose(arguments: list[str]) -> tuple[type[Command], list[str]]:
    """The command that the first one or two words name, and the words after them."""
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in COMMANDS:
            return resolve_name(COMMANDS[name]), arguments[words:]
    family = _family(arguments[0])
    name, names = " ".join(arguments[: 2 if family else 1]), family or list(COMMANDS)
    hint = did_you_mean(name, [*names, "--help", "--version"], "Try 'torchlift --help'.", cutoff=0.6)
    raise InvalidValueError(message("command", "one of " + ", ".join(names), repr(name), hint))


def _parse(kind: type[Command], arguments: list[str]) -> Command | None:
    """The subcommand with its options, or None when only its help was printed.

    Options are read twice where they name a file of defaults: they count for more than the file.
    """
    command = _read(kind, arguments)
    defaults = None if command is None else command.defaults()
    return command if defaults is None else _read(kind, arguments, defaults)


def _read(kind: type[Command], arguments: list[str], default: Command | None = None) -> Command | None:
    """tyro explains bad options in a framed box and exits; the explanation is kept, in one line."""
    import tyro

    from torchlift.cli.command import OPTIONAL

    _refuse_empty(kind.name, arguments)
    program, complaint = f"torchlift {kind.name}", io.StringIO()
    start: Any = tyro.MISSING_NONPROP if default is None else default

    def read(words: list[str]) -> Command:
        settings = (tyro.conf.FlagCreatePairsOff,)
        return tyro.cli(kind, prog=program, args=words, default=start, config=settings, registry=OPTIONAL)

    try:
        with contextlib.redirect_stderr(complaint):
            return read(arguments)
    except SystemExit as stop:
        if not stop.code:
            return None
    with contextlib.redirect_stdout(io.StringIO()) as usage, contextlib.suppress(SystemExit):
        read(["--help"])
    known = dict.fromkeys(_OPTION.findall(_COLOURS.sub("", usage.getvalue())))
    text = _said(complaint.getvalue())
    unknown = [word for word in _OPTION.findall(text) if word not in known]
    hint = (unknown and _nearest(unknown[0], known)) or f"Try '{program} --help'."
    raise InvalidValueError(f"{kind.name}: {text}. {hint}") from None


def _refuse_empty(command: str, arguments: Sequence[str]) -> None:
    """--out "$FOLDER" where nobody set it: as a path it would be the current folder."""
    option = ""
    for word in arguments:
        option = word if word.startswith("--") else option
        if not word or (word.startswith("--") and word.endswith("=")):
            where = f"{command} {option.rstrip('=')}".rstrip()
            raise InvalidValueError(message(where, "a value with something in it", "an empty one"))


def _said(box: str) -> str:
    """What tyro complains about, in our words."""
    missing = re.findall(r"^[│ ] +([A-Z]{2,})\b", _COLOURS.sub("", box), flags=re.MULTILINE)
    if missing and "Missing from" in box:
        return f"expected {' and '.join(missing)}, got nothing for {'them' if len(missing) > 1 else 'it'}"
    text = _first_section(box) or "bad options"
    for theirs, ours in _SAYINGS:
        text = re.sub(theirs, ours, text)
    return text.rstrip(".")


def _nearest(option: str, known: Iterable[str]) -> str:
    """A hint at the option that ends like this one, as --training.steps for --steps, or is spelt almost like it."""
    last = option.lstrip("-").rpartition(".")[2].replace("_", "-")
    same = [name for name in known if name.lstrip("-").rpartition(".")[2] == last]
    return f"Did you mean {same[0]}?" if same else did_you_mean(option, known, cutoff=0.7).replace("'", "")


def _first_section(box: str) -> str:
    """The text below the heading of a box, up to its next ruled line; a terminal without Unicode gets rules of -."""
    sections: list[list[str]] = [[]]
    for line in _COLOURS.sub("", box).splitlines():
        content = line.strip(_FRAME)
        if line.startswith("╭") or not content.strip("-"):
            sections.append([])
        else:
            sections[-1] += content.split()
    return " ".join(sections[1]) if len(sections) > 1 else ""
