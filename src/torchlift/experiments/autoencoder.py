"""The paper's autoencoder of digits, trained to three levels of loss, kept in the cache folder."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.checkpoint import load_tensors, save_tensors
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.imaging import load_digits, load_mnist
from torchlift.imaging.mnist import cache_folder
from torchlift.models import load_model, save_model
from torchlift.networks import Network, lift

#: The paper's losses: severely and moderately under-trained, and near convergence.
LEVELS = (8.3e-3, 3.1e-3, 5e-4)

IMAGE, CODE = (1, 28, 28), 392

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
        if self.data not in DATA:
            invalid_value("autoencoder data", f"one of {', '.join(DATA)}", repr(self.data))
        check_positive("autoencoder learning_rate", self.learning_rate)
        check_size("autoencoder batch_size", self.batch_size)
        check_size("autoencoder window", self.window)
        check_size("autoencoder max_epochs", self.max_epochs)

    def images(self) -> Tensor:
        """The training images."""
        return (load_mnist if self.data == "mnist" else load_digits)("train").images

    def folder(self, level: float) -> Path:
        """Where the model of one level is kept."""
        name = f"{self.data}-seed{self.seed}-lr{self.learning_rate:g}-batch{self.batch_size}"
        return cache_folder() / "autoencoder" / name / f"{level:g}"


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


def build(seed: int = 0) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder (two convolutions 4 × 4 of stride 2 with ReLU, one dense layer) and decoder (the mirror image)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(784, CODE)),
        )
        decoder = nn.Sequential(
            *(nn.Linear(CODE, 784), nn.ReLU(), nn.Unflatten(1, (16, 7, 7))),
            *(nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU()),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )
    return encoder, decoder


def trained(
    levels: tuple[float, ...] = LEVELS, recipe: Recipe | None = None, report: Report | None = None
) -> list[Autoencoder]:
    """The autoencoder at each level of loss: from the cache folder, or trained and put there."""
    recipe = recipe or Recipe()
    wanted = sorted((check_positive("autoencoder level", level) for level in levels), reverse=True)
    if any(not (recipe.folder(level) / "training").exists() for level in wanted):
        train(tuple(wanted), recipe, report)
    return [load(recipe.folder(level), level) for level in levels]


def load(folder: Path, level: float) -> Autoencoder:
    """A trained pair from its folder."""
    _, record = load_tensors(folder / "training", kind="training")
    return Autoencoder(load_model(folder / "encoder"), load_model(folder / "decoder"), level, record)


def train(levels: tuple[float, ...], recipe: Recipe, report: Report | None = None) -> None:
    """One run of Adam that passes the levels, largest first, and saves the model at each."""
    encoder, decoder = build(recipe.seed)
    left = deque(levels)
    losses: deque[float] = deque(maxlen=recipe.window)
    trace: list[float] = []
    begin = time.perf_counter()
    for epoch, loss in _steps(encoder, decoder, recipe):
        losses.append(loss)
        trace.append(loss)
        mean = sum(losses) / len(losses)
        if report is not None and len(trace) % 100 == 0:
            report(epoch, mean)
        while left and len(losses) == recipe.window and mean <= left[0]:
            seconds = time.perf_counter() - begin
            record = {"recipe": asdict(recipe), "loss": mean, "epoch": epoch, "steps": len(trace), "seconds": seconds}
            _save(recipe.folder(left.popleft()), encoder, decoder, trace, record)
        if not left:
            return
    mean = sum(losses) / max(len(losses), 1)
    text = message("autoencoder", f"a loss of {left[0]:g}", f"{mean:.3g} after {recipe.max_epochs} epochs")
    raise DataError(text)


def _steps(encoder: nn.Sequential, decoder: nn.Sequential, recipe: Recipe) -> Iterator[tuple[int, float]]:
    """The epoch and the loss of every step."""
    images = recipe.images()
    whole = nn.Sequential(encoder, decoder).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    adam = torch.optim.Adam(whole.parameters(), lr=recipe.learning_rate, fused=True)
    generator = torch.Generator().manual_seed(recipe.seed)
    for epoch in range(1, recipe.max_epochs + 1):
        order = torch.randperm(len(images), generator=generator)
        for index in order[: len(order) - len(order) % recipe.batch_size].split(recipe.batch_size):
            batch = images[index]
            loss = nn.functional.mse_loss(whole(batch), batch)
            adam.zero_grad()
            loss.backward()
            adam.step()
            yield epoch, loss.item()


def _save(
    folder: Path, encoder: nn.Sequential, decoder: nn.Sequential, trace: list[float], record: dict[str, Any]
) -> None:
    """Encoder, decoder and, last, the record: once it is there, everything is."""
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder / "encoder", lift(encoder, IMAGE))
    save_model(folder / "decoder", lift(decoder, (CODE,)))
    save_tensors(folder / "training", {"losses": torch.tensor(trace)}, record, kind="training")
