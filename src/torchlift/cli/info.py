"""`torchlift info`: what this machine and this installation offer."""

from __future__ import annotations

import os
import re
import statistics
import time
import webbrowser
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import torch
from rich.console import Console

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import facts
from torchlift.core.errors import DataError
from torchlift.core.memory import available_memory, format_bytes
from torchlift.data import digits, mnist
from torchlift.report.records.environment import environment, package_version

EXTRAS = {
    "plot": {"matplotlib": "matplotlib"},
    "tensorboard": {"tensorboard": "tensorboard"},
    "wavelet": {"PyWavelets": "pywt"},
    "images": {"pillow": "PIL"},
    "sklearn": {"scikit-learn": "sklearn"},
    "deepinv": {"deepinv": "torchlift.contrib.deepinv"},  # which says more about what does not fit
    "lab": {"matplotlib": "matplotlib", "pytorch-optimizer": "pytorch_optimizer"},
}
"""Each optional extra, and {package: module} of what it brings."""

FRIENDS = {"onnx": "onnx", "onnxscript": "onnxscript"}
"""Packages that torch asks for when a network is exported."""

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, kw_only=True)
class Info(Command):
    """Show versions, devices, speed, data, optional extras, and what to do about what is missing."""

    name: ClassVar[str] = "info"

    def collect(self) -> Record:
        machine = environment()
        versions, threads = machine.pop("versions"), machine.pop("threads")
        record = {
            "versions": versions,
            "machine": {
                **machine,
                "memory": f"{format_bytes(available_memory())} available",
                "cores": usable_cores(),
                "threads": threads,
                "blas": blas(),
                "matmul_gflops": float(f"{matmul_gflops(torch.float32):.3g}"),
                "double_gflops": float(f"{matmul_gflops(torch.float64):.3g}"),
            },
            "data": {
                "digits": bundled_digits(),
                "mnist": full_mnist(),
                "searched": [str(folder) for folder in mnist.search_folders()],
            },
            "extras": extras(),
            "others": {
                **{name: _version(name, module, f"pip install {name}") for name, module in FRIENDS.items()},
                "browser": browser(),
            },
        }
        return {**record, "to_do": to_do(record, os.environ.get(THREADS))}

    def show(self, record: Record, console: Console) -> None:
        table = facts()
        for section in ("versions", "machine", "data", "extras", "others"):
            table.add_row(section, "")
            for name, value in record[section].items():
                table.add_row(f"  {name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        console.print(table)
        console.print("\nTo do: nothing." if not record["to_do"] else "\nTo do:")
        for sentence in record["to_do"]:
            console.print(f"- {sentence}", soft_wrap=True)


def to_do(record: Record, wanted_threads: str | None) -> list[str]:
    """What is missing or set oddly, and what helps; optional things say so.

    Arguments:
        record: what `collect` returns.
        wanted_threads: the value of OMP_NUM_THREADS; None where it is not set.
    """
    cores, threads = record["machine"]["cores"], record["machine"]["threads"]
    sentences: list[str] = []
    if threads > cores:
        sentences.append(f"torch uses {threads} threads on {cores} usable cores, which is slow: set {THREADS}={cores}.")
    if threads < cores and wanted_threads is not None:
        sentences.append(f"{THREADS}={wanted_threads} leaves cores idle: unset it, or set {THREADS}={cores}.")
    if record["data"]["digits"].startswith("damaged"):
        sentences.append("the bundled digits are damaged: reinstall torchlift.")
    if record["data"]["mnist"].startswith("not usable"):
        sentences.append("optional, the full MNIST set: put its four files into a folder and set TORCHLIFT_DATA to it.")
    for name, value in {**record["extras"], **record["others"]}.items():
        state, _, command = value.partition("; ")
        if state == "absent":
            sentences.append(f"optional, {name}: {command}")
        elif "cannot be imported" in state:
            sentences.append(f"{name} is installed but cannot be imported: reinstall it, {command}")
    return sentences


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blas() -> str:
    """The library that multiplies matrices, and the instructions that torch's own loops use."""
    built = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return f"{built[1] if built else 'unknown'}, {torch.backends.cpu.get_cpu_capability()}"


def matmul_gflops(dtype: torch.dtype, size: int = 1024, repeats: int = 5) -> float:
    """Median speed of a matrix product on the CPU, in 10⁹ operations per second."""
    matrix = torch.rand(size, size, generator=torch.Generator().manual_seed(0), dtype=dtype)
    torch.mm(matrix, matrix)
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        seconds.append(time.perf_counter() - start)
    return 2e-9 * size**3 / statistics.median(seconds)


def bundled_digits() -> str:
    """Whether the bundled digits are complete and intact."""
    try:
        counts = [f"{len(digits.load_digits(split).labels)} {split}" for split in digits.SPLITS]
    except DataError as error:
        return f"damaged: {error}"
    return f"{', '.join(counts)} (checksums match)"


def full_mnist() -> str:
    """Where the full set was found, or what to do."""
    folders: list[str] = []
    for split, files in mnist.SPLITS.items():
        try:
            mnist.load_mnist(split)
        except DataError as error:
            return f"not usable: {error}"
        places = mnist.find_files(files, mnist.search_folders())
        folders += [str(file.parent) for file in places if file is not None]
    return f"{', '.join(dict.fromkeys(folders))} (checksums match)"


def extras() -> dict[str, str]:
    """The version of each optional extra, or how to install it."""
    return {
        extra: ", ".join(
            _version(package, module, f'pip install "torchlift[{extra}]"') for package, module in brings.items()
        )
        for extra, brings in EXTRAS.items()
    }


def browser() -> str:
    """What `torchlift report --open` opens pages in."""
    try:
        return getattr(webbrowser.get(), "name", "the system's own")
    except webbrowser.Error:
        return "absent; open pages of 'torchlift report --html' on another machine: each is one file"


def _version(package: str, module: str, command: str) -> str:
    """The installed version; why it cannot be imported, or how to install it."""
    version = package_version(package)
    if version is None:
        return f"absent; {command}"
    try:
        import_module(module)
    except Exception as error:  # whatever a broken installation raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        return f"{version}, but it cannot be imported ({reason}); {command}"
    return version
