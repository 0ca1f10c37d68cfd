"""Where the tensors of one process lie in those of a single process: what checkpoints of many write and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from torch import Tensor

from torchlift.io import Piece, whole_piece
from torchlift.io.shards import everywhere
from torchlift.objective.layer_part import LayerPart
from torchlift.parallel import Mesh, Share, shares


def parameter_pieces(tensors: Sequence[Tensor], mesh: Mesh, part: LayerPart | None) -> list[Piece]:
    """Pieces of "parameters.0", …; processes along "data" have copies and take turns in writing them."""
    if part is None:
        found = [whole_piece(f"parameters.{i}", tensor) for i, tensor in enumerate(tensors)]
    else:
        found = list(_stacked_pieces(tensors, part))
    return [
        Piece(piece.name, piece.shape, piece.slices, piece.tensor, i % mesh.data == mesh.data_rank)
        for i, piece in enumerate(found)
    ]


def _stacked_pieces(tensors: Sequence[Tensor], part: LayerPart) -> Iterator[Piece]:
    """By runs of layers that are neighbours both in a stack of the part and in one of the whole network."""
    trainable = {name: p for name, p in part.chain.named_parameters() if p.requires_grad}
    numbers = {name: i for i, name in enumerate(trainable)}
    places = {plain: (name, index) for plain, name, index, _ in part.chain.slots()}
    own = [(name, index, *places[part.match[plain]]) for plain, name, index, _ in part.network.slots()]
    for name, tensor in zip(part.names, tensors, strict=True):
        rows = sorted((index, whole, place) for stack, index, whole, place in own if stack == name)
        for (whole, shift), group in groupby(rows, key=lambda row: (row[1], row[2] - row[0])):
            indices = [index for index, _, _ in group]
            first, stop = indices[0], indices[-1] + 1
            shape = (len(trainable[whole]), *tensor.shape[1:])
            slices = ((first + shift, stop + shift), *everywhere(tensor.shape[1:]))
            yield Piece(f"parameters.{numbers[whole]}", shape, slices, tensor[first:stop])


def state_piece(name: str, tensor: Tensor, share: Share, rows: tuple[int, int, int] | None = None) -> Piece:
    """This process's samples of lifted variables.

    Arguments:
        name: of the tensor of all samples.
        tensor: (samples, …), or (layers, samples, …) of neighbouring layers with `rows`.
        share: which samples of the batch they are; a sample that only stands in is read but not written.
        rows: the first and the last but one of these layers, and the number of layers, of the tensor of all samples.
    """
    begin = sum(share.counts[: share.mesh.data_rank])
    samples = (begin, begin + share.count) if share.count else (0, 1)
    head, sizes = ((), ()) if rows is None else ((rows[:2],), (rows[2],))
    rest = tensor.shape[len(sizes) + 1 :]
    shape, slices = (*sizes, share.total, *rest), (*head, samples, *everywhere(rest))
    return Piece(name, shape, slices, tensor, share.count > 0)


def kept_pieces(tensors: Mapping[str, Tensor], mesh: Mesh) -> list[Piece]:
    """What a `StateStore` keeps for the samples that belong to this process."""
    found = []
    for name, tensor in tensors.items():
        along = 0 if tensor.ndim == 1 else 1  # samples, or layers and samples
        own = shares(tensor.shape[along], mesh.data)[mesh.data_rank]
        slices = list(everywhere(tensor.shape))
        slices[along] = (own.start, own.stop)
        part = tensor.narrow(along, own.start, own.stop - own.start)
        found.append(Piece(name, tuple(tensor.shape), tuple(slices), part))
    return found
