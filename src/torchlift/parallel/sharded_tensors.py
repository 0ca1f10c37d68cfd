"""Where the tensors of one process lie in those of a single process: what checkpoints of many write and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.io import LocalShard, ShardedTensor, Stored
from torchlift.io.shards import everywhere
from torchlift.objective.stage import Stage
from torchlift.parallel.mesh import Mesh
from torchlift.parallel.shard import MeshShard, split_evenly
from torchlift.parallel.stage import LayerStage


def sharded_parameters(tensors: Sequence[Tensor], mesh: Mesh, stage: Stage) -> dict[str, ShardedTensor]:
    """ "parameters.0", …; processes along "data" have copies and take turns in writing them."""
    if isinstance(stage, LayerStage):
        rows = list(_stacked(tensors, stage))
    else:
        rows = [(i, tuple(t.shape), everywhere(t.shape), t) for i, t in enumerate(tensors)]
    shapes: dict[int, tuple[int, ...]] = {}
    local: dict[int, list[LocalShard]] = {}
    for turn, (number, shape, slices, tensor) in enumerate(rows):
        shapes[number] = shape
        local.setdefault(number, []).append(LocalShard(slices, tensor, turn % mesh.data == mesh.data_rank))
    return {f"parameters.{number}": ShardedTensor(shapes[number], tuple(shards)) for number, shards in local.items()}


def _stacked(tensors: Sequence[Tensor], stage: LayerStage) -> Iterator[tuple[int, tuple[int, ...], tuple, Tensor]]:
    """(number, whole shape, slices, slice) by runs of layers that are neighbours in a stack of both networks."""
    trainable = {name: p for name, p in stage.chain.named_parameters() if p.requires_grad}
    numbers = {name: i for i, name in enumerate(trainable)}
    places = {plain: (name, index) for plain, name, index, _ in stage.chain.slots()}
    slots = [(name, index, *places[stage.match[plain]]) for plain, name, index, _ in stage.network.slots()]
    for name, tensor in zip(stage.names, tensors, strict=True):
        rows = sorted((index, whole, place) for stack, index, whole, place in slots if stack == name)
        if not rows:  # a learned threshold, which is no part of a stack
            (plain,) = stage.network.scatter({name: tensor})
            (whole,) = (n for n, p in trainable.items() if stage.match[plain] in stage.chain.scatter({n: p.detach()}))
            yield numbers[whole], tuple(tensor.shape), everywhere(tensor.shape), tensor
        for (whole, shift), group in groupby(rows, key=lambda row: (row[1], row[2] - row[0])):
            indices = [index for index, _, _ in group]
            first, stop = indices[0], indices[-1] + 1
            shape = (len(trainable[whole]), *tensor.shape[1:])
            slices = ((first + shift, stop + shift), *everywhere(tensor.shape[1:]))
            yield numbers[whole], shape, slices, tensor[first:stop]


def sharded_latents(tensor: Tensor, shard: MeshShard, rows: tuple[int, int, int] | None = None) -> ShardedTensor:
    """This process's samples of lifted variables.

    Arguments:
        tensor: (samples, …), or (layers, samples, …) of neighbouring layers with `rows`.
        shard: which samples of the batch they are; a sample that only stands in is read but not written.
        rows: the first of these layers, the one after the last, and the number of layers, in the whole tensor.
    """
    samples = (shard.rows.start, shard.rows.stop)
    head, sizes = ((), ()) if rows is None else ((rows[:2],), (rows[2],))
    rest = tensor.shape[len(sizes) + 1 :]
    shape, slices = (*sizes, shard.total, *rest), (*head, samples, *everywhere(rest))
    return ShardedTensor(shape, (LocalShard(slices, tensor, shard.counted),))


def sharded_cache(tensors: Mapping[str, Tensor], mesh: Mesh) -> dict[str, ShardedTensor]:
    """What a `LatentCache` holds for the samples that belong to this process."""
    sharded = {}
    for name, tensor in tensors.items():
        along = 0 if tensor.ndim == 1 else 1  # samples, or layers and samples
        rows = split_evenly(tensor.shape[along], mesh.data)[mesh.data_rank]
        slices = list(everywhere(tensor.shape))
        slices[along] = (rows.start, rows.stop)
        local = LocalShard(tuple(slices), tensor.narrow(along, rows.start, rows.stop - rows.start))
        sharded[name] = ShardedTensor(tuple(tensor.shape), (local,))
    return sharded


def load_sharded(tensors: Mapping[str, Tensor | ShardedTensor], saved: Stored) -> None:
    """Overwrite the slices that this process holds by what was saved; no more than that is read."""
    for name, tensor in tensors.items():
        sharded = ShardedTensor.whole(tensor) if isinstance(tensor, Tensor) else tensor
        shape = saved.shape(name) if name in saved else None
        for shard in sharded.local:
            values = saved.part(name, shard.slices) if shape == sharded.shape else None
            if values is None or values.dtype != shard.tensor.dtype:
                hint = "Use the solver and the problem that the state was saved with."
                got = "none" if shape is None else f"shape {shape}" if values is None else values.dtype
                invalid_value(f"saved tensor {name!r}", f"{shard.tensor.dtype} of shape {sharded.shape}", got, hint)
            shard.tensor.copy_(values)
