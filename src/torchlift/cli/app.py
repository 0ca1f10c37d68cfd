"""Choose the subcommand, read its options, and turn errors into one line."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchlift import __version__
from torchlift.cli.text import printable
from torchlift.core.errors import InvalidValueError, TorchliftError, did_you_mean, message

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
_NUMBERS = {
    "invalid literal for int() with base 10:": "expected a whole number, got",
    "could not convert string to float:": "expected a number, got",
}
_NEAR = re.compile(r"Perhaps you meant:\W+(--[\w.-]+)")


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Errors made on purpose, and those of files, become one line."""
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
        text = str(error) if isinstance(error, TorchliftError) else _sentence(error)
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
    return message(str(error.filename or "files"), "to be able to read and write there", error.strerror or error)


def _lacks_extra(error: ModuleNotFoundError, arguments: Sequence[str]) -> bool:
    """Whether a command of the laboratory lacks a package of the extra `lab`."""
    place = COMMANDS.get(" ".join(arguments[:2])) or COMMANDS.get(arguments[0], "")
    return place.startswith("torchlift.lab") and not (error.name or "torchlift").startswith("torchlift")


def _dispatch(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(_overview("COMMAND", list(COMMANDS)))
    elif name == "--version":
        print(f"torchlift {__version__}")
    elif arguments[1:] in ([], ["-h"], ["--help"]) and (family := _family(name)):
        print(_overview(f"{name} COMMAND", family))
    else:
        kind, rest = _choose(arguments)
        command = _parse(kind, rest)
        if command is not None:
            command.run()


def _overview(usage: str, names: Sequence[str]) -> str:
    width = max(map(len, names))
    return "\n".join(
        [
            f"usage: torchlift {usage} [options]",
            "",
            "Lifted training and stable inversion of neural networks.",
            "",
            *(f"  {name:{width}}  {_summary(COMMANDS[name])}" for name in names),
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
            return _load(COMMANDS[name]), arguments[words:]
    name = " ".join(arguments[: 2 if _family(arguments[0]) else 1])
    hint = did_you_mean(name, COMMANDS, "Try 'torchlift --help'.")
    raise InvalidValueError(message("command", "one of " + ", ".join(COMMANDS), repr(name), hint))


def _load(place: str) -> type[Command]:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


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

    program, complaint = f"torchlift {kind.name}", io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            settings = (tyro.conf.FlagCreatePairsOff,)
            start: Any = tyro.MISSING_NONPROP if default is None else default
            return tyro.cli(kind, prog=program, args=arguments, default=start, config=settings)
    except SystemExit as stop:
        if not stop.code:
            return None
        box = complaint.getvalue()
        text, near = _first_section(box) or "bad options", _NEAR.search(_COLOURS.sub("", box))
        for raw, ours in _NUMBERS.items():
            text = text.replace(raw, ours)
        hint = f"Did you mean {near[1]}?" if near else f"Try '{program} --help'."
        raise InvalidValueError(f"{kind.name}: {text.rstrip('.')}. {hint}") from None


def _first_section(box: str) -> str:
    """The text of a framed box up to its first ruled line."""
    words: list[str] = []
    for line in _COLOURS.sub("", box).splitlines():
        content = line.strip(_FRAME)
        if line.startswith("╭"):
            continue
        if not content:
            break
        words += content.split()
    return " ".join(words)
