"""How many small faults the tests of prox, liftings and solvers notice.

    python scripts/mutants.py [--parts prox] [--sample 150] [--seed 0] [--match box.py] [--seconds 5]

A mutant is the package with one small fault: another operator, comparison or
constant, a condition negated, an argument, a result or a statement left out,
min for max. It is killed when a test of its part fails. Tests that never reach
the fault are not run, the others in the order of the time they take, and only as
many as take `--seconds` together, so that the share of killed mutants is, if
anything, too small. A test that takes much more processor time than without the
fault counts as failed.

No faults are made in what changes no result: strings and error texts, annotations,
decorators, `device=`, the `strict=` of zip, and the examples that tests are given.
Mutants that compute the same as the package are listed in `EQUIVALENT`, each with
its reason.

Every mutant is judged in a fork of one process that has imported torch and collected
the tests: the fault is put into the functions that exist. What runs at import (defaults,
tables) is imported anew with the fault in it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from faults import PACKAGE, ROOT, Mutant, mutants_of

PARTS = {
    "prox": ("tests/prox", "tests/contracts/test_activations.py"),
    "liftings": ("tests/liftings", "tests/contracts/test_liftings.py"),
    "solvers": ("tests/solvers", "tests/contracts/test_solvers.py"),
}

#: Where children of silent children report their failures.
ALOUD = os.dup(2)


def functions_in(code: CodeType) -> Iterator[CodeType]:
    """All code objects inside one."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions_in(constant)


def qualified_name(code: CodeType) -> str:
    return code.co_qualname


def alive() -> dict[tuple[str, str, int], list[FunctionType]]:
    """The package's functions in this process, by file, name and first line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(str(PACKAGE)):
            code = each.__code__
            file = str(Path(code.co_filename).relative_to(PACKAGE))
            found.setdefault((file, qualified_name(code), code.co_firstlineno), []).append(each)
    return found


def infect(mutant: Mutant, existing: dict[tuple[str, str, int], list[FunctionType]]) -> bool:
    """Put the fault into the functions that exist; false where only a new import can."""
    if not mutant.function:
        return False
    (code,) = (
        each
        for each in functions_in(mutant.code())
        if qualified_name(each) == mutant.function and each.co_firstlineno == mutant.start
    )
    functions = existing.get((mutant.file, mutant.function, mutant.start), [])
    if not functions or any(each.__code__.co_freevars != code.co_freevars for each in functions):
        return False
    for function in functions:
        function.__code__ = code
    return True


class Faulty(SourceFileLoader):
    """Imports a module with a fault."""

    def __init__(self, mutant: Mutant) -> None:
        path = PACKAGE / mutant.file
        parts = ("torchlift", *Path(mutant.file).with_suffix("").parts)
        super().__init__(".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path))
        self.mutant = mutant

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname == self.name:
            return importlib.util.spec_from_file_location(fullname, self.path, loader=self)
        return None

    def get_code(self, fullname: str) -> CodeType:
        return self.mutant.code()


@dataclass
class Usual:
    """What a test does without faults: its processor time, and the lines it reaches in each file."""

    test: str
    seconds: float
    lines: dict[str, list[int]]


class Session:
    """A pytest plug-in that hands the collected tests to `work` instead of running them."""

    def __init__(self, work: Any) -> None:
        self.work = work
        self.failure: Exception | None = None

    def pytest_runtestloop(self, session: Any) -> bool:
        try:
            self.work({item.nodeid: item for item in session.items})
        except Exception as failure:  # raised again where pytest does not hide it
            self.failure = failure
        return True


def pytest_session(tests: Iterable[str], work: Any) -> int:
    import pytest

    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly", "--assert=plain", "--timeout=0"]
    session = Session(work)
    status = int(pytest.main([*options, f"--rootdir={ROOT}", *tests], plugins=[session]))
    if session.failure is not None:
        raise session.failure
    return status


def passes(item: Any) -> bool:
    from _pytest.runner import runtestprotocol

    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def forked(work: Any, folder: Path) -> tuple[int, Any]:
    """The exit status of `work` in a child, and what it returns (JSON); the child says nothing but its own failure."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            answer.write_text(json.dumps(work()), encoding="utf-8")
        except BaseException:
            os.write(ALOUD, traceback.format_exc().encode())
            os._exit(70)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return status, json.loads(answer.read_text(encoding="utf-8")) if status == 0 else None


def watched(items: dict[str, Any], part: str, slow: float, log: Path) -> None:
    """Run tests without faults and log what each does; one that is too slow ends the process (SIGPROF)."""
    folder = str(PACKAGE / part)
    for name, item in items.items():
        lines: dict[str, set[int]] = {}

        def line(frame: FrameType, event: str, _: Any, lines: dict[str, set[int]] = lines) -> Any:
            path = frame.f_code.co_filename
            if not path.startswith(folder):
                return None
            lines.setdefault(path, set()).add(frame.f_lineno)
            return line

        before = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, slow)
        sys.settrace(line)
        passed = passes(item)
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not passed:
            os.write(ALOUD, f"left out, since it fails without faults: {name}\n".encode())
            append(log, {"test": name, "seconds": math.inf, "lines": {}})
            continue
        reached = {str(Path(path).relative_to(PACKAGE)): sorted(each) for path, each in lines.items()}
        append(log, {"test": name, "seconds": time.process_time() - before, "lines": reached})


def append(log: Path, entry: dict[str, Any]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def usual_behaviour(items: dict[str, Any], part: str, slow: float, log: Path, folder: Path) -> list[Usual]:
    """What each test does without faults, from the log where it is known; tests that are too slow are left out."""
    log.touch()
    while True:
        entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        unknown = dict(items)
        for entry in entries:
            unknown.pop(entry["test"], None)
        if not unknown:
            found = [Usual(**entry) for entry in entries if entry["test"] in items]
            return [usual for usual in found if usual.seconds < slow]
        status, _ = forked(lambda unknown=unknown: watched(unknown, part, slow, log), folder)
        if os.WIFSIGNALED(status):
            done = {json.loads(line)["test"] for line in log.read_text(encoding="utf-8").splitlines()}
            append(log, {"test": next(name for name in unknown if name not in done), "seconds": math.inf, "lines": {}})
        elif status != 0:
            raise RuntimeError(f"the tests of {part} could not be watched")


def asked(items: dict[str, Any], limit: int) -> dict[str, Any]:
    """A part's own tests, and as many of the contract's as there is room for, always the same."""
    contract = [name for name in items if name.startswith("tests/contracts")]
    room = max(limit - (len(items) - len(contract)), 0)
    left_out = set(random.Random(0).sample(contract, max(len(contract) - room, 0)))
    return {name: item for name, item in items.items() if name not in left_out}


def chosen(usual: Sequence[Usual], mutant: Mutant, kills: Counter[tuple[str, str]], seconds: float) -> list[Usual]:
    """The tests that reach a mutant: those that killed others in its file first, then the quickest, up to a time."""
    reaching = [each for each in usual if any(line in mutant.lines for line in each.lines.get(mutant.file, ()))]
    if not mutant.function:  # what runs at import may matter to tests that reach no line of the file
        reaching = [each for each in usual if mutant.file in each.lines or not each.test.startswith("tests/contracts")]
    reaching.sort(key=lambda each: each.seconds / (1 + kills[mutant.file, each.test]))
    total, few = 0.0, []
    for each in reaching:
        total += each.seconds
        if total > seconds and few:
            break
        few.append(each)
    return few


def first_failure(tests: Sequence[Usual], items: dict[str, Any]) -> str | None:
    for usual in tests:
        signal.setitimer(signal.ITIMER_PROF, 1 + 5 * usual.seconds)  # SIGPROF ends the process
        if not passes(items[usual.test]):
            return usual.test
    return None


def killer(status: int, answer: Any, mutant: Mutant) -> str | None:
    """What killed a mutant; None if it survived."""
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    if status != 0:
        raise RuntimeError(f"{mutant} could not be judged: exit status {os.waitstatus_to_exitcode(status)}")
    return answer["killer"]


def judge_in_place(
    sample: Sequence[Mutant], part: str, options: argparse.Namespace, folder: Path, say: int
) -> dict[str, Any]:
    """In one pytest session: what tests do without faults, and the verdict on each mutant that needs no new import."""
    kept: dict[str, Any] = {"usual": [], "verdicts": {}}

    def work(items: dict[str, Any]) -> None:
        items, existing = asked(items, options.tests), alive()
        tests = usual_behaviour(items, part, options.slow, options.usual or folder / "usual.jsonl", folder)
        os.write(say, f"{len(tests)} tests are quick enough, {len(items) - len(tests)} are not\n".encode())
        kept["usual"], kills = [asdict(usual) for usual in tests], Counter[tuple[str, str]]()
        for number, mutant in enumerate(sample):
            few = chosen(tests, mutant, kills, options.seconds)

            def judged(mutant: Mutant = mutant, few: Sequence[Usual] = few) -> dict[str, Any]:
                return {"killer": first_failure(few, items)} if infect(mutant, existing) else {"again": True}

            status, answer = forked(judged, folder)
            if answer is None or "again" not in answer:
                kept["verdicts"][number] = found = killer(status, answer, mutant)
                kills[mutant.file, found or ""] += 1
                os.write(say, ("." if found else f"\nsurvived ({len(few)} tests): {mutant}\n").encode())

    if pytest_session(PARTS[part], work) != 0:
        raise RuntimeError(f"the tests of {part} could not be collected")
    return kept


def judge_anew(mutant: Mutant, few: Sequence[Usual]) -> dict[str, str | None]:
    """Import the package with the fault, and run the tests."""
    signal.setitimer(signal.ITIMER_PROF, 120)
    sys.meta_path.insert(0, Faulty(mutant))
    found: list[str | None] = []
    files = sorted({usual.test.split("::")[0] for usual in few})

    def work(items: dict[str, Any]) -> None:
        lost = any(usual.test not in items for usual in few)  # its file could not be imported
        found.append("import" if lost else first_failure(few, items))

    pytest_session(files, work)
    return {"killer": found[0] if found else "import"}


def examine(part: str, options: argparse.Namespace, folder: Path) -> tuple[int, int, int]:
    """Judge a sample of a part's mutants; how many were killed, judged, and equivalent."""
    population = [each for each in mutants_of(part) if options.match in str(each)]
    sample = random.Random(options.seed).sample(population, min(options.sample, len(population)))
    equivalent = [each for each in sample if each.equivalent]
    sample = [each for each in sample if not each.equivalent]
    print(f"{part}: {len(sample)} of {len(population)} mutants, {len(equivalent)} equivalent ones left out", flush=True)
    say = os.dup(1)
    status, kept = forked(lambda: judge_in_place(sample, part, options, folder, say), folder)
    if status != 0:
        raise SystemExit(f"{part}: the session of tests ended with status {status}; do its tests pass?")
    usual = [Usual(**each) for each in kept["usual"]]
    verdicts: dict[int, str | None] = {int(number): found for number, found in kept["verdicts"].items()}
    for number in set(range(len(sample))) - set(verdicts):
        few = chosen(usual, sample[number], Counter(), options.seconds)
        status, answer = forked(lambda mutant=sample[number], few=few: judge_anew(mutant, few), folder)
        verdicts[number] = killer(status, answer, sample[number])
        print("." if verdicts[number] else f"\nsurvived ({len(few)} tests): {sample[number]}", flush=True, end="")
    killed = sum(found is not None for found in verdicts.values())
    print(f"\n{part}: {killed} of {len(sample)} killed, {share(killed, len(sample))}", flush=True)
    return killed, len(sample), len(equivalent)


def share(killed: int, judged: int) -> str:
    """The share with its 95 % interval (Wilson)."""
    if judged == 0:
        return "none judged"
    p, z = killed / judged, 1.96
    centre, spread = p + z * z / (2 * judged), z * math.sqrt(p * (1 - p) / judged + (z / (2 * judged)) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / judged) for sign in (-1, 1))
    return f"{p:.1%} (95 % interval {low:.1%} to {high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to make faults in")
    parser.add_argument("--sample", type=int, default=150, help="mutants per part")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--match", default="", help="only mutants whose description contains this")
    parser.add_argument(
        "--usual",
        type=Path,
        help="a file that keeps which lines each test reaches, while tests and source stay the same",
    )
    parser.add_argument("--slow", type=float, default=0.5, help="processor time beyond which a test is not asked")
    parser.add_argument("--tests", type=int, default=1000, help="at most so many, a sample of the contract's")
    parser.add_argument("--seconds", type=float, default=5.0, help="processor time of the tests of one mutant")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    import hypothesis
    import torch  # noqa: F401  (once, before all forks)

    everything = list(hypothesis.HealthCheck)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # a failure need not be made small
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, deadline=None, max_examples=50, suppress_health_check=everything, phases=phases
    )
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        results = [examine(part, options, Path(folder)) for part in options.parts]
    killed, judged, _ = (sum(column) for column in zip(*results, strict=True))
    print(f"all: {killed} of {judged} killed, {share(killed, judged)}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
