"""An experiment with every kind of figure, and how records are compared."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass
from typing import Any

import torch

from torchlift.lab.reproduction import Experiment, ExperimentResult, Work
from torchlift.networks import MLP
from torchlift.report.records import Claim, Curves, HeatMap, Pictures, Record, Series, Table, network_blocks

PARTS = 3


@dataclass(frozen=True)
class Example(Experiment):
    """Draws random images part by part, from torch's own stream.

    Arguments:
        figures: figures of every kind, or a quick table only.
    """

    figures: bool = False

    name = "example"
    title = "An example"
    about = "random images; not in the paper"

    def run(self, work: Work) -> ExperimentResult:
        work.expect(PARTS)
        images = torch.cat([work.part(f"Images {k}", lambda k=k: self.draw(work, k))[0]["x"] for k in range(PARTS)])
        mean = float(images.mean())
        return ExperimentResult(
            summary="Random images were drawn.",
            claims=[
                Claim.of("The images are not black.", f"mean {mean:.3f}", mean > 0),
                Claim.of("The images are white.", f"mean {mean:.3f}", mean == 1, "torchlift"),
                Claim.of("All images look like that.", f"{len(images)} images", None),
            ],
            figures=figures(images) if self.figures else figures(images)[:1],
            configuration={"images": len(images)},
        )

    def draw(self, work: Work, k: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        count = work.choose(tiny=1, small=2, paper=3)
        return {"x": torch.rand(count, 4, 5) + 0.01 * k}, {"k": k}


@dataclass(frozen=True)
class Failing(Example):
    """Fails in its second part."""

    name = "failing"
    title = "A failure"

    def draw(self, work: Work, k: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        if k == 1:
            raise ZeroDivisionError("by nothing")
        return super().draw(work, k)


def figures(images: torch.Tensor) -> list[Any]:
    """One of each kind."""
    steps = [1.0, 10.0, 100.0]
    return [
        Table("numbers", "Numbers", ["name", "value"], [["mean", float(images.mean())], ["none", None]], ["", ".2f"]),
        Curves("curves", "Curves", "step", "error", [Series("a", steps, [1.0, None, 0.1])], x_log=True, y_log=True),
        Pictures("pictures", "Pictures", {"truth": images, "half": images / 2}, {"half": ["x"] * len(images)}, "truth"),
        HeatMap("heat-map", "Heat map", "step", "layer", "gap", steps, ["1", "2"], torch.ones(2, 3).cumsum(1)),
        network_blocks(MLP([4, 3, 2])),
    ]


def content(record: Record, *, without: tuple[str, ...] = ()) -> str:
    """All of a record as text, so that two can be compared, NaN and tensors too."""
    values = {name: value for name, value in asdict(record).items() if name not in without}
    return json.dumps(values, default=lambda tensor: tensor.tolist())


@dataclass(frozen=True)
class Interrupted(Example):
    """Ctrl-C after its first part, once."""

    name = "interrupted"

    def draw(self, work: Work, k: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        mark = work.folder / "mark"
        if k == 1 and not mark.exists():
            mark.touch()
            signal.raise_signal(signal.SIGINT)
        return super().draw(work, k)


@dataclass(frozen=True)
class Second(Example):
    """The same under another name."""

    name = "second"
    title = "Another example"
