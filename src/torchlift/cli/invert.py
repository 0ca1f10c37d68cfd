"""`torchlift invert`: inputs that a trained network maps to given outputs."""

from __future__ import annotations

import math
import shlex
import time
from dataclasses import dataclass, fields
from functools import reduce
from importlib.util import find_spec
from itertools import count
from operator import add
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import tyro
from rich.console import Console
from torch import Tensor

from torchlift.cli.command import Command, Record
from torchlift.cli.invert_files import read_batch, read_model, write_pictures
from torchlift.cli.tables import facts
from torchlift.core.checks import check_choice, check_device, check_interval, check_positive, check_size
from torchlift.core.errors import did_you_mean, invalid_value
from torchlift.core.files import unlinked
from torchlift.core.progress import Progress
from torchlift.core.solution import Record as Step
from torchlift.data import psnr
from torchlift.functions.priors import PRIORS, Prior
from torchlift.inversion import ALGORITHMS, RULES, Inversion, Status, WeightRule, invert
from torchlift.networks import Network
from torchlift.report.markup import finite
from torchlift.report.records import environment
from torchlift.training.metrics import looks_like_images

PRIOR_NAMES = sorted(name for name in PRIORS if name != "plug-and-play")
OF_IMAGES = ("huber-tv", "total-variation", "wavelet")
SHOWN = 8
"""Images in the figure."""


@dataclass(frozen=True, kw_only=True)
class Invert(Command):
    """Find inputs of a trained network for given outputs, by a prior and a weight."""

    name: ClassVar[str] = "invert"

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A folder that `torchlift train` or save_model wrote, or module:function that makes the network."""
    data: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DATA")]
    """The outputs: a .npy, .png or IDX file, or a folder of .png."""
    weights: Path | None = None
    """A .safetensors file for what module:function makes."""
    input_shape: tuple[int, ...] = ()
    """Of a convolutional nn.Sequential that module:function makes, such as 1 28 28."""
    encode: bool = False
    """The data are inputs: make the outputs from them, with noise of --noise-level, and compare in the end."""
    prior: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help=f"Any of {', '.join(PRIOR_NAMES)}, with factors as in 0.1*l1, added up; none for no prior. By default "
            "total-variation for images and tikhonov for vectors."
        ),
    ] = ()
    weight: Annotated[
        str,
        tyro.conf.arg(
            help="Of the prior: a number, or how to choose it: sure, discrepancy (both need --noise-level) or lcurve. "
            "By default sure with a noise level, together with the anchor if there is a decoder, else 0.02."
        ),
    ] = ""
    per_image: bool = False
    """Choose the weight for every image or sample alone."""
    noise_level: float | None = None
    """Standard deviation of the noise in the outputs."""
    algorithm: str = "auto"
    """auto, quasi-newton, accelerated, sweep, paper, exact (one layer), nested-adam or nested-pdhg."""
    start: Path | None = None
    """First guesses of the inputs, in a file like the data."""
    decoder: str | None = None
    """A model, named like the model itself, whose outputs for the data are the first guesses."""
    anchor: float | None = None
    """How strongly inputs are held at the first guesses; by default 0, or chosen together with the weight."""
    max_steps: int | None = None
    """Steps for each image or sample; the algorithm's usual number by default."""
    tolerance: float | None = None
    """Possible gain, relative to the objective, at which an image or sample is done."""
    time_limit: float | None = None
    """Seconds for all of them together."""
    interval: float | None = None
    """Write intervals that are to hold this share of the true entries, such as 0.9; needs --out."""
    project: bool = False
    """Move outputs that the last activation cannot produce into its range instead of refusing them."""
    images: int | None = None
    """Use only the first ones."""
    seed: int = 0
    """Of the noise of --encode."""
    threads: int | None = None
    """Threads of torch; its own choice by default."""
    device: str = "cpu"
    """Where it is inverted: cpu, cuda, mps, xpu."""

    def collect(self) -> Record:
        network = read_model(self.model, self.weights, self.input_shape or None).to(self.device)
        truth, y = self._outputs(network)
        start, decoder = self._start(network, y)
        begin = time.perf_counter()
        inversion = self._invert(network, y, start if decoder is None else decoder)
        record = self._record(network, y, inversion, truth) | {"seconds": time.perf_counter() - begin}
        record |= {"command": self._command(), "environment": environment()}
        return record | {"files": self._write(inversion, start, truth)}

    def _command(self) -> str:
        """What repeats the run: every option that is not at its default."""
        words = ["torchlift", self.name, self.model, str(self.data)]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("model", "data", "json", "out", "debug") or value == field.default:
                continue
            words.append(f"--{field.name.replace('_', '-')}")
            if value is not True:
                words += map(str, value if isinstance(value, tuple) else [value])
        return shlex.join(words)

    def check(self) -> None:
        if self.threads is not None:
            torch.set_num_threads(check_size("threads", self.threads))
        check_device("device", self.device)
        if self.images is not None:
            check_size("images", self.images)
        if self.noise_level is not None:
            check_positive("noise-level", self.noise_level)
        check_choice("--algorithm", self.algorithm, ALGORITHMS)
        check_size("--seed", self.seed, minimum=0)
        if self.start is not None and self.decoder is not None:
            invalid_value("invert", "--start or --decoder", "both")
        if self.interval is not None:
            check_interval("interval", self.interval, "(0, 1)")
            if self.out is None:
                invalid_value("interval", "--out for the files", "none")
        self._weight()  # before anything is read
        if self.weight in ("sure", "discrepancy") and self.noise_level is None:
            hint = "lcurve needs none."
            invalid_value(f"--weight {self.weight}", "--noise-level beside it", "none", hint)
        for name in self.prior:
            if name != "none" or len(self.prior) > 1:
                _prior_part(name)

    def _weight(self) -> float | WeightRule | None:
        if not self.weight:
            return RULES["sure"](per_image=True) if self.per_image else None
        if self.weight in RULES:
            return RULES[self.weight](per_image=self.per_image)
        try:
            return float(self.weight)
        except ValueError:
            hint = did_you_mean(self.weight, RULES)
            invalid_value("--weight", f"a number or one of {', '.join(RULES)}", repr(self.weight), hint)

    def _prior_names(self, network: Network) -> tuple[str, ...]:
        return self.prior or (("total-variation",) if len(network.in_shape) == 3 else ("tikhonov",))

    def _prior(self, network: Network) -> Prior | None:
        names = self._prior_names(network)
        if names == ("none",):
            return None
        for name in names:
            if name.rpartition("*")[2] in OF_IMAGES and len(network.in_shape) != 3:
                hint = "For vectors try l1 or tikhonov."
                invalid_value("--prior", f"images for {name}", f"inputs of shape {network.in_shape}", hint)
        return reduce(add, map(_prior_part, names))

    @torch.no_grad()
    def _outputs(self, network: Network) -> tuple[Tensor | None, Tensor]:
        """The true inputs, where they are known, and the outputs."""
        shape = network.in_shape if self.encode else network.out_shape
        data = read_batch(self.data, shape, network.like)[: self.images]
        if not self.encode:
            return None, data
        y = network(data)
        noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(self.seed), dtype=y.dtype)
        return data, y + (self.noise_level or 0.0) * noise.to(y.device)

    @torch.no_grad()
    def _start(self, network: Network, y: Tensor) -> tuple[Tensor | None, Network | None]:
        """First guesses of the inputs, and the decoder that makes them."""
        if self.start is not None:
            return read_batch(self.start, network.in_shape, network.like)[: self.images], None
        decoder = None if self.decoder is None else read_model(self.decoder).to(self.device)
        if decoder is not None and (decoder.in_shape, decoder.out_shape) != (network.out_shape, network.in_shape):
            expected = f"a network from {network.out_shape} to {network.in_shape}, the model's way back"
            got = f"one from {decoder.in_shape} to {decoder.out_shape}"
            invalid_value(f"--decoder {self.decoder}", expected, got)
        return (None if decoder is None else decoder(y)), decoder

    def _invert(self, network: Network, y: Tensor, start: Tensor | Network | None) -> Inversion:
        with Progress(quiet=self.json) as progress:
            progress.start("inverting", time_limit=self.time_limit)
            steps = count(1)

            def note(step: Step) -> None:
                progress.update(next(steps), objective=step.value, running=step.extra.get("running"))

            return invert(
                network,
                y,
                self._prior(network),
                self._weight(),
                noise_level=self.noise_level,
                algorithm=self.algorithm,
                start=start,
                anchor=self.anchor,
                max_steps=self.max_steps,
                tolerance=self.tolerance,
                time_limit=self.time_limit,
                on_infeasible="project" if self.project else "refuse",
                progress=note,
            )

    def _record(self, network: Network, y: Tensor, inversion: Inversion, truth: Tensor | None) -> Record:
        trace = inversion.weight_trace
        error = None if truth is None else float((inversion.x - truth).norm() / truth.norm().clamp_min(1e-30))
        quality = None if truth is None or not looks_like_images(truth) else psnr(inversion.x, truth)
        unknown = [None] * len(inversion.x)
        columns: dict[str, list[Any]] = {
            "status": [Status(code).name.lower() for code in inversion.status.tolist()],
            "steps": inversion.steps.tolist(),
            "weight": inversion.weight.tolist(),
            "residual": inversion.residual.tolist(),
            "objective": inversion.objective.tolist(),
            "duality gap": unknown if inversion.duality_gap is None else inversion.duality_gap.tolist(),
            "psnr": unknown if quality is None else quality.tolist(),
        }
        expected = None if self.noise_level is None else self.noise_level * math.sqrt(y[0].numel())
        record = {
            "model": self.model,
            "data": str(self.data),
            "in_shape": list(network.in_shape),
            "out_shape": list(network.out_shape),
            "prior": " + ".join(self._prior_names(network)),
            "algorithm": self.algorithm,
            "message": inversion.message,
            "converged": inversion.converged,
            "counts": dict(inversion.counts),
            "residual": float(inversion.residual.double().mean()),
            "residual of the noise": expected,
            "gaps": inversion.gaps.double().mean(0).tolist(),
            "weight": float(inversion.weight.double().mean()),
            "psnr": None if quality is None else float(quality.double().mean()),
            "relative error": error,
            "trace": None if trace is None else {"rule": trace.rule, "rows": trace.rows()},
            "images": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        }
        return finite(record)

    def _write(self, inversion: Inversion, start: Tensor | None, truth: Tensor | None) -> list[str]:
        """The inputs as an array and, for pictures, as PNG files and a figure; names of what was written."""
        if self.out is None:
            return []
        bars = None if self.interval is None else inversion.interval(self.interval)
        arrays = {"x.npy": inversion.x, "truth.npy": truth, "start.npy": start}
        arrays |= {} if bars is None else {"lower.npy": bars.lower, "upper.npy": bars.upper}
        files = ["invert.json"]
        for name, images in arrays.items():
            if images is not None:
                np.save(unlinked(self.out / name), images.cpu().numpy(), allow_pickle=False)
                files.append(name)
        drawn = inversion.x.ndim == 4 and inversion.x.shape[1] in (1, 3)
        if drawn:
            write_pictures(unlinked(self.out / "images"), inversion.x.cpu())
            files.append("images")
        if find_spec("matplotlib") is None:
            return files
        if drawn:
            batches = {"input": truth, "start": start, "inversion": inversion.x}
            if bars is not None:
                share = f"{100 * bars.level:g} %"
                batches |= {f"{share}, lower": bars.lower, f"{share}, upper": bars.upper}
            shown = {name: images[:SHOWN].cpu() for name, images in batches.items() if images is not None}
            files += self.save_figure("inversion", lambda plot: plot.pictures(shown))
        if inversion.weight_trace is not None:
            rows, chosen = inversion.weight_trace.rows(), float(inversion.weight.double().mean())
            files += self.save_figure("weights", lambda plot: plot.weights(rows, chosen))
        return files

    def show(self, record: Record, console: Console) -> None:
        console.print(record["message"])
        console.print()
        table = facts()
        expected = record["residual of the noise"]
        noise = "" if expected is None else f" (the noise alone: {expected:.4g})"
        table.add_row(
            "residual", f"{record['residual']:.4g}{noise}" if record["residual"] is not None else "not finite"
        )
        table.add_row("prior", f"{record['prior']}, weight {record['weight']:.4g}")
        if record["psnr"] is not None:
            table.add_row("PSNR", f"{record['psnr']:.2f} dB")
        elif record["relative error"] is not None:
            table.add_row("error", f"{record['relative error']:.3g} of the norm of the true inputs")
        speed = 1e3 * record["seconds"] / len(record["images"])
        table.add_row("time", f"{record['seconds']:.2f} s, {speed:.3g} ms for each")
        if self.out is not None:
            table.add_row("files", f"{self.out}: {', '.join(record['files'])}")
        console.print(table)


def _prior_part(text: str) -> Prior:
    """A prior by name, perhaps with a factor: 0.1*l1."""
    factor, _, name = text.rpartition("*")
    if name not in PRIOR_NAMES:
        hint = "Did you mean 'total-variation'?" if name == "tv" else did_you_mean(name, PRIOR_NAMES)
        invalid_value("--prior", f"names among {', '.join(PRIOR_NAMES)}, or none alone", repr(name), hint)
    prior = PRIORS[name].example()
    if not factor:
        return prior
    try:
        return float(factor) * prior
    except ValueError:
        invalid_value("--prior", "a factor > 0 and a name, such as 0.1*l1", repr(text))
