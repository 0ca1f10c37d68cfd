"""Warnings about data on a scale that keeps training from working."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.errors import message
from torchlift.data.base import Batch

#: Numbers that are looked at, and the least and most samples that they are from.
NUMBERS, LEAST, MOST = 500_000, 8, 256

#: Numbers that the sizes of features are taken of: rare values count as much as they should.
EVERY = 10_000_000

#: Inputs and targets of more than this size, or of less than its inverse, get a warning.
LARGE = 1e3

#: Features whose sizes differ by this factor get a warning.
FACTOR = 1e3

#: With more features than this, such as the pixels of a picture, the largest one is compared with the median.
FEW = 64

#: Relative size of what is rounding error in single precision.
ROUNDING = 1e-6

_STANDARDISE = "Standardise {}: subtract the mean and divide by the standard deviation of the training data."


def scale_warning(batch: Batch, where: str = "data") -> str | None:
    """A sentence each about inputs and targets whose scale keeps training from working; None if there is none.

    It speaks of pictures with values up to 255, of features whose sizes differ by a factor of a thousand or more, of
    inputs and targets that are larger than 1,000 or smaller than 0.001 on the whole, and of inputs that are the same
    for all samples. Only some samples, evenly spread, are looked at. Integers are not: they are indices or labels.

    Arguments:
        batch: any number of samples, at best all there are.
        where: what the sentences call the data.
    """
    inputs, targets = _some(batch.y), _some(batch.x)
    sentences = []
    if inputs is not None:
        name = f"{where} inputs"
        sentences.append(
            _bytes(name, inputs, targets)
            or _constant(name, inputs)
            or _features(name, batch.y)
            or _inputs(name, inputs)
        )
    if targets is not None:
        name = f"{where} targets"
        sentences.append(_bytes(name, targets, inputs) or _targets(name, targets))
    return " ".join(sentence for sentence in sentences if sentence) or None


def _some(tensor: Tensor) -> Tensor | None:
    """Some samples of a floating-point tensor in double precision; None of another."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return None
    count = max(LEAST, min(MOST, NUMBERS // (tensor.numel() // len(tensor))))
    step = -(-len(tensor) // count)
    return tensor.detach()[::step].double()


def _bytes(name: str, pictures: Tensor, others: Tensor | None) -> str | None:
    """Whole numbers up to 255: large ones, or small ones beside others in [0, 1]."""
    if pictures[0].numel() < 16:
        return None
    low, high = float(pictures.min()), float(pictures.max())
    if low < 0 or not 2 < high <= 255 or not bool((pictures == pictures.round()).all()):
        return None
    beside_units = others is not None and float(others.min()) >= 0 and float(others.max()) <= 1
    if high < 128 and not beside_units:
        return None
    hint = "They look like pictures of bytes: divide them by 255."
    return message(name, "values between 0 and 1", f"whole numbers up to {high:g}", hint)


def _constant(name: str, inputs: Tensor) -> str | None:
    spread = float((inputs.amax(0) - inputs.amin(0)).max())
    if len(inputs) < 2 or spread > ROUNDING * float(inputs.abs().max()):
        return None
    return message(name, "samples that differ", "the same for every sample", "Nothing can be learnt from them.")


def _features(name: str, inputs: Tensor) -> str | None:
    """Columns of a table, or channels of pictures, of very different size; those that are always 0 do not count."""
    if inputs.ndim == 3:  # which of the axes has the features is not known
        return None
    inputs = inputs.detach()[:: -(-inputs.numel() // EVERY)]
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    sizes = inputs.to(torch.promote_types(inputs.dtype, torch.float32)).square().mean(axes).double().sqrt()
    largest, few = sizes.max(), len(sizes) <= FEW
    places = (sizes > (0 if few else ROUNDING * largest)).nonzero().flatten()
    if len(places) == 0:
        return None
    kept = sizes[places].sort()
    small = 0 if few else len(places) // 2
    if kept.values[-1] < FACTOR * kept.values[small]:
        return None
    kind = "feature" if inputs.ndim == 2 else "channel"
    first, last = int(places[kept.indices[small]]), int(places[kept.indices[-1]])
    got = f"{kind} {last} of size {float(sizes[last]):.3g} and {kind} {first} of size {float(sizes[first]):.3g}"
    return message(name, f"{kind}s of similar size", got, _STANDARDISE.format(f"each {kind}"))


def _inputs(name: str, inputs: Tensor) -> str | None:
    root_mean_square, largest = float(inputs.square().mean().sqrt()), float(inputs.abs().max())
    if root_mean_square > LARGE:
        return message(name, "values of about 1", f"{root_mean_square:.3g} on average", _STANDARDISE.format("them"))
    if 0 < largest < 1 / LARGE:
        return message(name, "values of about 1", f"at most {largest:.3g}", _STANDARDISE.format("them"))
    return None


def _targets(name: str, targets: Tensor) -> str | None:
    root_mean_square = float(targets.square().mean().sqrt())
    if root_mean_square > LARGE:
        got = f"{root_mean_square:.3g} on average"
        return message(name, "values of about 1", got, _STANDARDISE.format("them"))
    deviation = float((targets - targets.mean(0)).square().mean().sqrt())
    if ROUNDING * root_mean_square < deviation < 1 / LARGE:
        got = f"a standard deviation of {deviation:.3g}"
        return message(name, "values that differ by about 1", got, _STANDARDISE.format("them"))
    return None
