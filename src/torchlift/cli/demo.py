"""`torchlift demo`: every architecture, and a check that it has the unified form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from torchlift.cli.command import Command, Record
from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_value
from torchlift.imaging import load_digits
from torchlift.networks import LISTA, MLP, Network, Perceptron, PrimalDual, ResNet, Shallow, lift
from torchlift.operators import Blur, Dense, FiniteDifference, Reshape, gaussian_kernel
from torchlift.prox import ReLU, SoftThreshold

IMAGE, PIXELS = (1, 28, 28), 784


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Build every architecture and check its unified form on the bundled digits."""

    name: ClassVar[str] = "demo"

    images: int = 50
    """How many of the bundled test images to use."""
    seed: int = 0
    """Seed of the random weights."""

    def collect(self) -> Record:
        digits = load_digits("test", dtype=torch.float64).images
        if check_size("demo: --images", self.images) > len(digits):
            invalid_value("demo: --images", f"at most {len(digits)}", self.images)
        if not 0 <= self.seed < 2**63:
            invalid_value("demo: --seed", "a whole number from 0 to 2**63 - 1", self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            networks = architectures()
        rows = [check(name, network, digits[: self.images]) for name, network in networks.items()]
        return {"images": self.images, "seed": self.seed, "networks": rows, "picture": networks["ResNet"].picture()}

    def show(self, record: Record, console: Console) -> None:
        console.print(f"N(y) = K u + d,  M u = V z,  z = σ(W u + b)  on {record['images']} bundled digits, float64\n")
        table = Table("network", "parameters", "J", "output", box=SIMPLE)
        for heading in ("‖Mu−Vz‖", "‖z−σ(Wu+b)‖", "‖N−plain‖"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in record["networks"]:
            size = "×".join(map(str, row["output"]))
            found = (row["coupling"], row["activation"], row["plain"])
            errors = ("" if error is None else f"{error:.0e}" for error in found)
            table.add_row(row["name"], f"{row['parameters']:,}", str(row["depth"]), size, *errors)
        console.print(table)
        console.print("plain: the same chain as an nn.Sequential.\n\nBlocks of the ResNet:\n")
        console.print(record["picture"], soft_wrap=True)


def architectures() -> dict[str, Network]:
    """One network of each kind, in double precision."""
    # An orthonormal dictionary for LISTA; the blur is the forward model of both unrolled networks.
    orthonormal = torch.linalg.qr(torch.randn(PIXELS, PIXELS, dtype=torch.float64)).Q
    dictionary = Reshape((PIXELS,), IMAGE) @ Dense(orthonormal)
    blur = Blur(gaussian_kernel(5, 1.0).double(), IMAGE)
    networks: dict[str, Network] = {
        "Perceptron": Perceptron(PIXELS, 10),
        "Shallow": Shallow(PIXELS, [32, 32], 10),
        "MLP": MLP([PIXELS, 256, 256, 10], activation=ReLU()),
        "MLP, soft": MLP([PIXELS] * 4, activation=SoftThreshold(0.2)),
        "ResNet": ResNet(PIXELS, [128, 128, 128], 10),
        "LISTA": LISTA(blur, dictionary, 5),
        "PrimalDual": PrimalDual(blur, FiniteDifference(IMAGE), 5),
        "autoencoder": lift(autoencoder(), input_shape=IMAGE),
    }
    return {name: network.double() for name, network in networks.items()}


def autoencoder() -> nn.Sequential:
    """A convolutional autoencoder of 28 × 28 images with a code of 392 numbers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(PIXELS, 392)),
        *(nn.Linear(392, PIXELS), nn.ReLU(), nn.Unflatten(1, (16, 7, 7))),
        *(nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU()),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
    )


@torch.no_grad()
def check(name: str, network: Network, images: Tensor) -> Record:
    """How far the forward states are from M u = V z and z = σ(W u + b), and the output from plain torch's."""
    form, inputs = network.operators(), images.reshape(len(images), *network.in_shape)
    states, unrolled = network.states(inputs), isinstance(network, (LISTA, PrimalDual))
    before = (v if b is None else v + b for v, b in zip(form.W.forward(states.u), form.b, strict=True))
    active = [sigma(v) for sigma, v in zip(form.activations, before, strict=True)]
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "depth": form.depth,
        "coupling": distance(form.M.forward(states.u), form.V.forward(states.z)),
        "activation": distance(states.z, active),
        # Unrolled networks are no chain of torch's own modules.
        "plain": None if unrolled else distance([states.output], [network.to_sequential()(inputs)]),
        "output": list(states.output.shape[1:]),
    }


def distance(left: Iterable[Tensor], right: Iterable[Tensor]) -> float:
    """The Euclidean norm of the difference of two sequences of tensors."""
    return sum(float((a - b).square().sum()) for a, b in zip(left, right, strict=True)) ** 0.5
