"""`torchlift info`: what this machine and this installation offer."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from rich.console import Console
from rich.table import Table

from torchlift.cli.command import Command, Record
from torchlift.core.errors import DataError
from torchlift.imaging import digits, mnist
from torchlift.records.environment import environment, package_version

EXTRAS = {
    "plot": "matplotlib",
    "tensorboard": "tensorboard",
    "wavelet": "PyWavelets",
    "sklearn": "scikit-learn",
    "deepinv": "deepinv",
}
"""Each optional extra and the package that it brings."""


@dataclass(frozen=True, kw_only=True)
class Info(Command):
    """Show versions, devices, speed, data and optional extras."""

    name: ClassVar[str] = "info"

    def collect(self) -> Record:
        machine = environment()
        return {
            "versions": machine.pop("versions"),
            "machine": {**machine, "matmul_gflops": round(matmul_gflops(), 1)},
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


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
