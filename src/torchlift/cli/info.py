"""`torchlift info`: what this machine and this installation offer."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from rich.table import Table

from torchlift import __version__
from torchlift.cli.command import Command, Record
from torchlift.core.errors import DataError
from torchlift.imaging import digits, mnist

PACKAGES = ("torch", "numpy", "safetensors", "rich", "tyro", "torchmetrics")

EXTRAS = {"plot": "matplotlib", "report": "plotly", "tensorboard": "tensorboard", "deepinv": "deepinv"}
"""Each optional extra and the package that it brings."""


@dataclass(frozen=True, kw_only=True)
class Info(Command):
    """Show versions, devices, speed, data and optional extras."""

    name: ClassVar[str] = "info"

    def collect(self) -> Record:
        return {
            "versions": versions(),
            "machine": machine(),
            "data": {"digits": bundled_digits(), "mnist": full_mnist()},
            "extras": extras(),
        }

    def show(self, record: Record, console: Console) -> None:
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for section, content in record.items():
            table.add_row(section, "")
            for name, value in content.items():
                table.add_row(f"  {name}", _text(value))
        console.print(table)


def versions() -> dict[str, str]:
    """The versions of torchlift, Python and the packages we stand on."""
    own = {"torchlift": __version__, "python": platform.python_version()}
    return own | {name: package_version(name) or "absent" for name in PACKAGES}


def machine() -> Record:
    """Processor, devices, threads and measured speed."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "devices": devices(),
        "threads": torch.get_num_threads(),
        "matmul_gflops": round(matmul_gflops(), 1),
    }


def processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "unknown"


def devices() -> list[str]:
    """What torch can compute on."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def matmul_gflops(size: int = 1024, repeats: int = 7) -> float:
    """Median speed of a float32 matrix product on the CPU, in 10⁹ operations per second."""
    matrix = torch.rand(size, size, generator=torch.Generator().manual_seed(0))
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
        found = mnist.find_files(files, mnist.search_folders())
        folders += [str(file.parent) for file in found if file is not None]
    return f"{', '.join(dict.fromkeys(folders))} (checksums match)"


def extras() -> dict[str, str]:
    """The version of each optional extra, or how to install it."""
    return {
        extra: package_version(package) or f'absent; pip install "torchlift[{extra}]"'
        for extra, package in EXTRAS.items()
    }


def package_version(name: str) -> str | None:
    """The installed version of a package, None if it is absent."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
