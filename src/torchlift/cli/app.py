"""Choose the subcommand, read its options, and turn errors into one line."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import tyro

from torchlift import __version__
from torchlift.cli.command import Command, printable
from torchlift.cli.demo import Demo
from torchlift.cli.info import Info
from torchlift.cli.invert import Invert
from torchlift.cli.report import Report
from torchlift.cli.train import Train
from torchlift.core.errors import InvalidValueError, TorchliftError, message


def _commands() -> dict[str, type[Command]]:
    """The commands of the library, then those of the laboratory, which is loaded by name: nothing imports it."""
    commands: dict[str, type[Command]] = {command.name: command for command in (Demo, Info, Train, Invert, Report)}
    return commands | import_module("torchlift.lab.commands").COMMANDS


COMMANDS = _commands()
"""By name; a name of two words, such as "bench layers", is written as two arguments."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = "│╭╮╰╯─ "
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
        print(f"torchlift: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("torchlift: stopped", file=sys.stderr)
        return 130
    return 0


def _dispatch(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help", "help"):
        print(_overview())
    elif name == "--version":
        print(f"torchlift {__version__}")
    else:
        kind, rest = _choose(arguments)
        command = _parse(kind, rest)
        if command is not None:
            command.run()


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {_summary(command)}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: torchlift COMMAND [options]",
            "",
            "Lifted training and stable inversion of neural networks.",
            "",
            *lines,
            "",
            "'torchlift COMMAND --help' lists the options; 'torchlift --version' prints the version.",
        ]
    )


def _summary(command: type[Command]) -> str:
    return (command.__doc__ or "").splitlines()[0]


def _choose(arguments: list[str]) -> tuple[type[Command], list[str]]:
    """The command that the first one or two words name, and the words after them."""
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in COMMANDS:
            return COMMANDS[name], arguments[words:]
    family = any(known.startswith(f"{arguments[0]} ") for known in COMMANDS)
    name = " ".join(arguments[: 2 if family else 1])
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else "Try 'torchlift --help'."
    raise InvalidValueError(message("command", "one of " + ", ".join(COMMANDS), repr(name), hint))


def _parse(kind: type[Command], arguments: list[str]) -> Command | None:
    """The subcommand with its options, or None when only its help was printed.

    Options are read twice where they name a file of defaults: they count for more than the file.
    """
    command = _read(kind, arguments)
    defaults = None if command is None else command.defaults()
    return command if defaults is None else _read(kind, arguments, defaults)


def _read(kind: type[Command], arguments: list[str], default: Any = tyro.MISSING_NONPROP) -> Command | None:
    """tyro explains bad options in a framed box and exits; the explanation is kept, in one line."""
    program, complaint = f"torchlift {kind.name}", io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            settings = (tyro.conf.FlagCreatePairsOff,)
            return tyro.cli(kind, prog=program, args=arguments, default=default, config=settings)
    except SystemExit as stop:
        if not stop.code:
            return None
        box = complaint.getvalue()
        text, near = _first_section(box) or "bad options", _NEAR.search(_COLOURS.sub("", box))
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
