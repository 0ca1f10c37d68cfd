"""The paper's autoencoder of digits, trained to three levels of loss, kept in a folder."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_choice, check_positive, check_size
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.data import load_digits, load_mnist
from torchlift.data.mnist import cache_folder
from torchlift.io import load_model, load_tensors, save_model, save_tensors
from torchlift.io.folders import remove
from torchlift.networks import Network, lift
from torchlift.testing.autoencoder import CODE, IMAGE, build

#: The paper's losses: severely and moderately under-trained, and near convergence.
LEVELS = (8.3e-3, 3.1e-3, 5e-4)

DATA = ("mnist", "digits")

Report = Callable[[int, float], None]
"""Called now and then with the epoch, from 1, and the loss."""


@dataclass(frozen=True)
class Recipe:
    """How the autoencoder is trained: Adam on the mean squared error, as in the paper, which leaves the batch open.

    Arguments:
        data: "mnist" (60,000 images, found as in `load_mnist`) or "digits" (the 5,000 bundled ones).
        learning_rate: of Adam.
        batch_size: images per step.
        seed: of the weights and of the order of the images.
        window: the loss is the mean over so many batches.
        max_epochs: give up after so many.
    """

    data: str = "mnist"
    learning_rate: float = 1e-4
    batch_size: int = 64
    seed: int = 0
    window: int = 100
    max_epochs: int = 400

    def __post_init__(self) -> None:
        check_choice("autoencoder data", self.data, DATA)
        check_positive("autoencoder learning_rate", self.learning_rate)
        check_size("autoencoder batch_size", self.batch_size)
        check_size("autoencoder window", self.window)
        check_size("autoencoder max_epochs", self.max_epochs)

    def images(self) -> Tensor:
        """The training images."""
        return (load_mnist if self.data == "mnist" else load_digits)("train").images

    def orders(self, count: int) -> Iterator[Tensor]:
        """The order of the images in every epoch, in whole batches."""
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.max_epochs):
            yield torch.randperm(count, generator=generator)[: count - count % self.batch_size]

    @property
    def folder(self) -> Path:
        """Where the models are kept unless told otherwise: in the cache folder."""
        name = f"{self.data}-seed{self.seed}-lr{self.learning_rate:g}-batch{self.batch_size}"
        return cache_folder() / "autoencoder" / name


@dataclass(frozen=True, eq=False)
class Autoencoder:
    """A trained pair.

    Arguments:
        encoder: images (B, 1, 28, 28) to codes (B, 392), ready to be inverted.
        decoder: codes to images.
        level: the loss it was to reach.
        record: loss, steps, epochs, seconds and recipe of the training.
    """

    encoder: Network
    decoder: Network
    level: float
    record: dict[str, Any]


def trained(
    levels: tuple[float, ...] = LEVELS,
    recipe: Recipe | None = None,
    report: Report | None = None,
    folder: Path | None = None,
) -> list[Autoencoder]:
    """The autoencoder at each level of loss: from the folder, or trained and put there.

    An interrupted training goes on from its last checkpoint, with the same result.

    Arguments:
        folder: by default the recipe's own in the cache folder.
    """
    recipe = recipe or Recipe()
    folder = folder or recipe.folder
    descending = sorted((check_positive("autoencoder level", level) for level in levels), reverse=True)
    if any(not (folder / f"{level:g}" / "training").exists() for level in descending):
        train(tuple(descending), recipe, folder, report)
    return [load(folder / f"{level:g}", level) for level in levels]


def load(folder: Path, level: float) -> Autoencoder:
    """A trained pair from its folder."""
    _, record = load_tensors(folder / "training", kind="training")
    return Autoencoder(load_model(folder / "encoder"), load_model(folder / "decoder"), level, record)


def losses(folder: Path, level: float) -> Tensor:
    """The loss of every step until the level was reached."""
    return load_tensors(folder / f"{level:g}" / "training", kind="training")[0]["losses"]


def train(
    levels: tuple[float, ...], recipe: Recipe, folder: Path, report: Report | None = None, every: float = 20.0
) -> None:
    """One run of Adam that passes the levels, largest first, and saves the model at each.

    Arguments:
        every: seconds between checkpoints, which are made at the end of an epoch.
    """
    left = deque(levels)
    images = recipe.images()
    run = Run(recipe)
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        run.restore(*load_tensors(checkpoint, kind="checkpoint"))
        while left and (folder / f"{left[0]:g}" / "training").exists():
            left.popleft()
    begin = saved = time.perf_counter() - run.seconds
    for epoch, order in enumerate(recipe.orders(len(images)), start=1):
        if epoch <= run.epoch:
            continue
        for index in order.split(recipe.batch_size):
            mean = run.step(images[index])
            if report is not None and len(run.trace) % 100 == 0:
                report(epoch, mean)
            while left and len(run.trace) >= recipe.window and mean <= left[0]:
                record = {"loss": mean, "epoch": epoch, "seconds": time.perf_counter() - begin}
                run.save(folder / f"{left.popleft():g}", record)
            if not left:
                remove(checkpoint)
                return
        run.epoch, run.seconds = epoch, time.perf_counter() - begin
        if time.perf_counter() - saved > every:
            save_tensors(checkpoint, *run.parts(), kind="checkpoint")
            saved = time.perf_counter()
    text = message("autoencoder", f"a loss of {left[0]:g}", f"{run.mean:.3g} after {recipe.max_epochs} epochs")
    raise DataError(text)


class Run:
    """A training in progress.

    Arguments:
        recipe: how.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.encoder, self.decoder = build(recipe.seed)
        whole = nn.Sequential(self.encoder, self.decoder)
        self.whole = whole.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.adam = torch.optim.Adam(self.whole.parameters(), lr=recipe.learning_rate, fused=True)
        self.trace: list[float] = []
        self.epoch, self.seconds = 0, 0.0

    @property
    def mean(self) -> float:
        """The loss, over the last batches."""
        recent = self.trace[-self.recipe.window :]
        return sum(recent) / max(len(recent), 1)

    def step(self, batch: Tensor) -> float:
        """One step of Adam; the loss."""
        loss = nn.functional.mse_loss(self.whole(batch), batch)
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        self.trace.append(loss.item())
        return self.mean

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that the next epoch depends on."""
        tensors = {"losses": torch.tensor(self.trace, dtype=torch.float64)}
        for number, parameter in enumerate(self.whole.parameters()):
            tensors[f"{number}"] = parameter.detach()
            tensors |= {f"{number}.{name}": value for name, value in self.adam.state[parameter].items()}
        return tensors, {"recipe": asdict(self.recipe), "epoch": self.epoch, "seconds": self.seconds}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Go on from there."""
        if record["recipe"] != asdict(self.recipe):
            hint = "Remove the folder to begin again."
            invalid_value("autoencoder checkpoint", f"{asdict(self.recipe)}", f"{record['recipe']}", hint)
        self.trace, self.epoch, self.seconds = tensors["losses"].tolist(), record["epoch"], record["seconds"]
        for number, parameter in enumerate(self.whole.parameters()):
            parameter.copy_(tensors[f"{number}"])
            # moments need the memory layout of their parameter
            moments = {name: torch.empty_like(parameter).copy_(tensors[f"{number}.{name}"]) for name in _MOMENTS}
            self.adam.state[parameter] = {"step": tensors[f"{number}.step"], **moments}

    def save(self, folder: Path, record: dict[str, Any]) -> None:
        """Encoder, decoder and, last, the record: once it is there, everything is."""
        folder.mkdir(parents=True, exist_ok=True)
        save_model(folder / "encoder", lift(self.encoder, IMAGE))
        save_model(folder / "decoder", lift(self.decoder, (CODE,)))
        record = {"recipe": asdict(self.recipe), "steps": len(self.trace), **record}
        save_tensors(folder / "training", {"losses": torch.tensor(self.trace)}, record, kind="training")


_MOMENTS = ("exp_avg", "exp_avg_sq")
