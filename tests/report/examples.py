"""Records that hold every kind of figure."""

from __future__ import annotations

import math

import torch

from torchlift.data import load_digits
from torchlift.report.records import Blocks, Claim, Curves, Grid, HeatMap, Pictures, Record, Series, Table

HOSTILE = "</script><img src=x onerror=alert(1)>"


def example(seed: int = 0, name: str = "denoising", text: str = "") -> Record:
    """A record of one run with everything in it.

    Arguments:
        seed: of its numbers.
        name: of the work.
        text: put into every text that a file may bring.
    """
    generator = torch.Generator().manual_seed(seed)
    return Record(
        name=name,
        title=f"Denoising of digits{text}",
        summary=f"A soft-threshold network of seven layers, trained in two ways on 2,000 noisy digits.{text}",
        command=f"torchlift reproduce {name} --scale small --seed {seed}{text}",
        configuration={
            "seed": seed,
            f"data{text}": {"task": f"denoising{text}", "widths": [784, 784]},
            "phase": [{"lr": 1e-3}],
        },
        environment={"versions": {"torchlift": "0.1.0"}, "processor": f"some processor{text}", "threads": 2},
        seconds=125.0,
        claims=_claims(text),
        figures=[
            _table(text),
            _curves(generator, text),
            _pictures(generator, text),
            _heat_map(generator, text),
            _blocks(text),
        ],
    )


def _claims(text: str) -> list[Claim]:
    return [
        Claim.of(f"At threshold 0.2 lifted training recovers digits where back-propagation does not.{text}",
                   f"24.1 dB against 12.0 dB on validation data; the noisy input has 16.5 dB.{text}", True),
        Claim.of("Back-propagation at threshold 0.02 is worse on validation data.", "25.3 dB against 24.1 dB", False),
        Claim.of("Adam is the most favourable of the four.", "all four are still falling", None, "torchlift"),
    ]  # fmt: skip


def _table(text: str) -> Table:
    rows = [["lifted", 24.1, 0.9, True], [f"back-propagation{text}", 12.0, None, False]]
    columns = [f"method{text}", "PSNR (dB)", "SSIM", "recognisable"]
    return Table("psnr", f"Quality{text}", columns, rows, ["", ".2f", ".3f", ""], note=f"500 images.{text}")


def _curves(generator: torch.Generator, text: str) -> Curves:
    steps = list(range(0, 2001, 20))
    noise = (torch.rand(len(steps), generator=generator) * 0.05).tolist()
    falling = [40 * math.exp(-step / 400) + 3 + each for step, each in zip(steps, noise, strict=True)]
    stuck: list[float | None] = [42 * math.exp(-step / 5000) for step in steps]
    stuck[30] = None
    return Curves(
        "loss",
        f"Reconstruction error{text}",
        f"step{text}",
        f"error{text}",
        [
            Series(f"lifted{text}", steps, falling, [0.8 * y for y in falling], [1.2 * y for y in falling], group="l"),
            Series("lifted, validation", steps[::10], [1.1 * y for y in falling[::10]], dashed=True, group="l"),
            Series("back-propagation", steps, stuck),
            Series("with zeros", steps, [max(0.0, 10 - step / 100) for step in steps]),
        ],
        y_log=True,
        note="Bands are the middle 80 percent of the images.",
    )


def _pictures(generator: torch.Generator, text: str) -> Pictures:
    truth = load_digits("validation").images[:5].float().reshape(5, 28, 28)
    noise = torch.randn(truth.shape, generator=generator)
    rows = {
        "truth": truth,
        f"noisy{text}": truth + 0.2 * noise,
        "back-propagation": truth * 0.4 + 0.2,
        "lifted": truth + 0.05 * noise,
    }
    captions = {"lifted": ["24.1 dB", "23.9 dB", f"24.4 dB{text}", "25.0 dB", "23.1 dB"]}
    return Pictures("samples", f"Five samples{text}", rows, captions, truth="truth")


def _heat_map(generator: torch.Generator, text: str) -> HeatMap:
    layers, steps = 7, 50
    values = torch.rand(layers, steps, generator=generator) * torch.logspace(0, -4, steps) + 1e-5
    values[3, 4] = math.nan
    names = [f"layer {layer}{text}" for layer in range(1, layers + 1)]
    x = [40.0 * step for step in range(steps)]
    return HeatMap("gaps", f"Gap of each layer{text}", "step", "layer", f"gap{text}", x, names, values, log=True)


def _blocks(text: str) -> Blocks:
    u, z = [(f"u_{k}", 784) for k in range(4)], [(f"z_{k}", 784) for k in range(1, 4)]
    W = Grid("W", z, u, [(k, k, f"W_{k + 1}{text if k == 1 else ''}") for k in range(3)])
    M = Grid("M", u, u, [(k, k, "I") for k in range(4)])
    V = Grid("V", u, [("y", 784), *z], [(k, k, "I") for k in range(4)])
    K = Grid("K", [("x", 10)], u, [(0, 3, "K")])
    return Blocks("network", f"Structure of the network{text}", [W, M, V, K])
