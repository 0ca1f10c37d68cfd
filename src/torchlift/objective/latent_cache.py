"""The lifted variables: where they start, and how those of all samples are cached from epoch to epoch."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_choice, check_instance, check_size
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.networks import Network
from torchlift.objective.engine import Layout, States
from torchlift.operators import Context
from torchlift.prox import ProximalActivation, Simplex, Softmax
from torchlift.prox.base import in_domain

STARTS = ("forward", "input", "random")


@torch.no_grad()
def initialise(
    network: Network,
    layout: Layout,
    y: Tensor,
    how: str = "forward",
    context: Context = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    free_u: bool = False,
) -> States:
    """z for a batch y.

    - "forward": z_j = σ_j(v_j) of the forward pass; every penalty is zero.
    - "input": every layer starts as a copy of y. Where the sizes differ, the
      flattened input is cut off, or padded with zeros.
    - "random": standard normal numbers.

    Values outside the domain of a layer's Ψ, such as negative entries before
    a ReLU, are replaced by their image under σ, so that the objective is
    finite.

    Arguments:
        dtype: dtype in which the variables are stored.
        free_u: whether u_1, …, u_J are variables too; they start at M u = V z.
    """
    check_choice("initialise", how, STARTS)
    form = network.operators()
    if how == "forward":
        layers = list(network.states(y, context).z)
    elif how == "input":
        layers = [_fit(y, shape) for shape in layout.shapes]
    else:
        layers = [torch.randn(len(y), *s, generator=generator, dtype=y.dtype).to(y.device) for s in layout.shapes]
    pairs = zip(form.activations, layers, strict=True)
    layers = [torch.where(in_domain(activation, layer), layer, activation(layer)) for activation, layer in pairs]
    z = layout.hold(layers, y, dtype)
    z.set_input(y)
    if free_u:
        z.u = coupled(network, y, layers, context, dtype)
    return z


@torch.no_grad()
def coupled(
    network: Network, y: Tensor, z: Sequence[Tensor], context: Context = None, dtype: torch.dtype | None = None
) -> States:
    """u_1, …, u_J with M u = V z, stored in `dtype`."""
    form = network.operators()
    u = form.eliminate(y, [layer.to(y.dtype) for layer in z], context)[1:]
    return Layout(form.W.column_shapes[1:]).hold(u, y, dtype)


def _fit(y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The flattened input cut off or padded with zeros to the size of `shape`."""
    flat = y.flatten(1)
    missing = math.prod(shape) - flat.shape[1]
    fitted = torch.nn.functional.pad(flat, (0, missing)) if missing >= 0 else flat[:, :missing]
    return fitted.reshape(len(y), *shape)


class LatentCache:
    """z, and u where it is free, of every sample, for batches that go on where their samples were left an epoch ago.

    Arguments:
        layout: of the objective, `objective.layout`.
        activations: of its layers. Rounding must not leave the domain of their Ψ.
        samples: how many there are.
        like: a parameter of the network, for the device and the dtype.
        dtype: in which the variables are kept, such as torch.bfloat16; that of `like` by default.
        folder: None for memory. Otherwise a file without a name in this folder is mapped into memory: the variables
            of all samples may be larger than it, and the disk is free again when the store is gone.
        u_layout: `objective.u_layout`, None where the coupling is hard.
    """

    def __init__(
        self,
        layout: Layout,
        activations: Sequence[ProximalActivation],
        samples: int,
        like: Tensor,
        *,
        dtype: torch.dtype | None = None,
        folder: Path | str | None = None,
        u_layout: Layout | None = None,
    ) -> None:
        self.layout, self.u_layout = layout, u_layout
        self.activations = tuple(activations)
        self.samples = check_size("LatentCache samples", samples)
        self.dtype = like.dtype if dtype is None else check_state_dtype("LatentCache dtype", dtype)
        if folder is not None and like.device.type != "cpu":
            invalid_value("LatentCache folder", "a network on the CPU", like.device, "Leave the folder out.")
        self.tensors = self._room(layout, like, folder)
        """One tensor (layers, samples, *shape) per run of equal layers."""
        self.u_tensors = () if u_layout is None else self._room(u_layout, like, folder)
        """The same of u."""
        self.seen = torch.zeros(self.samples, dtype=torch.bool, device=like.device)
        """Which samples have been written."""

    def read(self, indices: Tensor, z: States) -> States:
        """z with the cached variables of these samples; samples that were never written keep those of z."""
        seen = self.seen[indices]
        if not bool(seen.any()):
            return z
        chosen, places = (indices, None) if bool(seen.all()) else (indices[seen], seen.nonzero().squeeze(1))
        for buffer, cached in self._pairs(z):
            values = cached.index_select(1, chosen).to(buffer.dtype)
            buffer.copy_(values) if places is None else buffer.index_copy_(1, places, values)
        if torch.finfo(self.dtype).eps > torch.finfo(z.dtype).eps:
            for layer, activation in zip(z, self.activations, strict=True):
                layer.copy_(_returned(activation, layer, torch.finfo(self.dtype).eps))
        return z

    def write(self, indices: Tensor, z: States) -> None:
        """Keep the variables of these samples."""
        for buffer, cached in self._pairs(z):
            cached.index_copy_(1, indices, buffer.to(self.dtype))
        self.seen[indices] = True

    def state_dict(self) -> dict[str, Tensor]:
        """All cached tensors themselves, not copies."""
        kinds = {"z": self.tensors, "u": self.u_tensors}
        named = {f"{kind}.{group}": tensor for kind, tensors in kinds.items() for group, tensor in enumerate(tensors)}
        return {"seen": self.seen, **named}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        for name, tensor in self.state_dict().items():
            saved = tensors.get(name)
            if saved is None or saved.shape != tensor.shape or saved.dtype != tensor.dtype:
                got = "none" if saved is None else f"{saved.dtype} of shape {tuple(saved.shape)}"
                invalid_value(f"saved states {name!r}", f"{tensor.dtype} of shape {tuple(tensor.shape)}", got)
            tensor.copy_(saved)

    def _room(self, layout: Layout, like: Tensor, folder: Path | str | None) -> tuple[Tensor, ...]:
        shapes = [(count, self.samples, *layout.shapes[start]) for start, count in layout.runs]
        if folder is None:
            return tuple(torch.zeros(shape, dtype=self.dtype, device=like.device) for shape in shapes)
        return tuple(_mapped(Path(folder), shape, self.dtype) for shape in shapes)

    def _pairs(self, z: States) -> list[tuple[Tensor, Tensor]]:
        """(variables of a batch, those of all samples)."""
        buffers = (*z.buffers, *(z.u.buffers if z.u is not None else ()))
        return list(zip(buffers, (*self.tensors, *self.u_tensors), strict=True))


def check_state_dtype(where: str, dtype: Any) -> torch.dtype:
    """A real floating-point dtype."""
    check_instance(where, dtype, torch.dtype, "a dtype such as torch.bfloat16")
    if not dtype.is_floating_point:
        invalid_value(where, "a floating-point dtype", dtype, "Try torch.bfloat16.")
    return dtype


def state_bytes(layout: Layout, samples: int, dtype: torch.dtype) -> int:
    """Bytes that the lifted variables of so many samples take."""
    return samples * sum(math.prod(shape) for shape in layout.shapes) * dtype.itemsize


def _mapped(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in a file, whose place on the disk is certain: else a full disk would be a crash in some later step."""
    size = math.prod(shape) * dtype.itemsize
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            _reserve(file.fileno(), size)
            memory = mmap.mmap(file.fileno(), size)
    except OSError as error:
        hint = "Free some space, choose another folder, or keep states as torch.bfloat16."
        raise DataError(message(str(folder), f"room for {size:,} bytes of states", error, hint)) from error
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    zeros = memoryview(bytes(1 << 20))  # elsewhere only what was written is certain
    for first in range(0, size, len(zeros)):
        os.write(file, zeros[: size - first])


def _returned(activation: ProximalActivation, z: Tensor, eps: float) -> Tensor:
    """z, of which rounding has taken some off the domain of Ψ, back on it.

    Sums of one are restored. Elsewhere the domain is convex and σ(0) in it, so
    a step towards that as small as rounding was is enough, unless σ(0) lies on
    the boundary: then σ is a projection.
    """
    if isinstance(activation, Simplex | Softmax):
        return z / z.sum(activation.dim, keepdim=True)
    moved = torch.where(in_domain(activation, z), z, torch.lerp(z, activation(torch.zeros_like(z)), eps))
    return torch.where(in_domain(activation, moved), moved, activation(z))
