"""Draws docs/images/dead-layers.gif, the moving picture of the README, from a run of examples/dead_layers.py.

    python scripts/draw_dead_layers.py

Both halves start from the same weights, torch's own, and see the same batches. A cell is a hidden unit; its colour is
the share of test digits for which it is not zero. Needs the extras `plot` and `images`.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn import functional as F

import torchlift as tl

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "images" / "dead-layers.gif"
CELL, GAP, COLUMNS, FRAMES, STEPS = 11, 14, 32, 50, 250


@torch.no_grad()
def units(model: nn.Sequential, images: Tensor) -> list[Tensor]:
    """For each layer, the share of images for which each unit is not zero."""
    shares, signal = [], images
    for module in model:
        signal = module(signal)
        if isinstance(module, nn.Softshrink):
            shares.append((signal != 0).float().mean(0))
    return shares


def run(example: dict[str, Any], lifted: bool) -> list[tuple[int, list[Tensor], float]]:
    """(step, shares, accuracy) on the way; more often at the beginning."""
    model, digits, test = example["build"](), example["digits"], example["test"]
    optimiser = tl.RelativeStep(model) if lifted else torch.optim.Adam(model.parameters())
    kept = {round(STEPS * (k / FRAMES) ** 1.5) for k in range(FRAMES + 1)}
    history = [(0, units(model, test.images[:200]), example["accuracy"](model))]
    for step, batch in enumerate(example["batches"][:STEPS], start=1):
        with tl.sweeping() if lifted else torch.enable_grad():
            loss = F.cross_entropy(model(digits.images[batch]), digits.labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step in kept:
            history.append((step, units(model, test.images[:200]), example["accuracy"](model)))
    return history


def draw(step: int, halves: dict[str, tuple[list[Tensor], float]]) -> Image.Image:
    """One frame."""
    font, small = (ImageFont.load_default(size) for size in (17, 13))
    wide, rows = COLUMNS * CELL, 128 // COLUMNS
    layer = rows * CELL + GAP
    picture = Image.new("RGB", (2 * wide + 3 * 24 + 54, 3 * layer + 96), "white")
    pen, colours = ImageDraw.Draw(picture), colormaps["magma"]
    for half, (name, (shares, accuracy)) in enumerate(halves.items()):
        left = 24 + half * (wide + 24) + 54
        pen.text((left, 10), name, "black", font)
        for number, layer_shares in enumerate(shares):
            top = 40 + number * layer
            if half == 0:
                pen.text((14, top + rows * CELL / 2 - 8), f"layer {number + 1}", "#555555", small)
            for unit, share in enumerate(layer_shares.tolist()):
                x, y = left + unit % COLUMNS * CELL, top + unit // COLUMNS * CELL
                red, green, blue, _ = colours(0.04 + 0.9 * share)
                colour = (int(255 * red), int(255 * green), int(255 * blue))
                pen.rectangle((x, y, x + CELL - 2, y + CELL - 2), fill=colour)
        pen.text((left, 3 * layer + 42), f"{accuracy:.0f} % of test digits", "black", font)
    pen.text(
        (24 + 54, 3 * layer + 70), f"step {step} of {STEPS}; dark units are zero for every digit", "#555555", small
    )
    return picture


def main() -> None:
    torch.set_num_threads(1)
    example = runpy.run_path(str(ROOT / "examples" / "dead_layers.py"))
    names = ("back-propagation, Adam", "tl.sweeping(), tl.RelativeStep")
    runs = [run(example, lifted) for lifted in (False, True)]
    frames = [
        draw(left[0], dict(zip(names, (left[1:], right[1:]), strict=True))) for left, right in zip(*runs, strict=True)
    ]
    palette = frames[-1].quantize(64)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [120] * (len(frames) - 1) + [3000]
    frames[0].save(OUT, save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)
    print(f"{OUT.relative_to(ROOT)}: {OUT.stat().st_size / 1e3:.0f} kB, {len(frames)} frames")


if __name__ == "__main__":
    main()
