# pyright: reportPrivateImportUsage=false
"""What a layer does when it is perturbed along the signal that comes back to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import hardtanh_

from torchlift.core.checks import check_interval, check_number, check_positive
from torchlift.core.errors import invalid_type
from torchlift.core.signatures import explain

#: Features of each sample that statistics look at, and from how many on they leave some out.
FEATURES, MANY = 64, 1024
#: What means over the same samples may differ by when processes share them.
ROUNDING = 1e-9
#: Factors between the sizes that are tried together where a device must not wait for the host.
RUNG = 4.0

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: The dtype of differences: single precision at least.
_COMPUTE = {dtype: torch.promote_types(dtype, torch.float32) for dtype in _FLOATS}
#: Least size of a signal, so that s stays finite.
_LEAST = {dtype: 100 * torch.finfo(dtype).tiny for dtype in _FLOATS}

Mean: TypeAlias = Callable[[Tensor], Tensor]
"""From means over the samples of this process to means over those of all processes."""


class Activation(NamedTuple):
    """σ as it was called.

    Arguments:
        call: v ↦ σ(v).
        call_: the same, which may overwrite v.
        elementwise: whether any entries of v can be evaluated without the others.
        difference: (v, g, s) ↦ [σ(v + s g) − σ(v − s g)] / (2s) in closed form, if there is one, in any dtype; s is a
            number, or has one for each sample in the shape of v.
    """

    call: Callable[[Tensor], Tensor]
    call_: Callable[[Tensor], Tensor]
    elementwise: bool
    difference: Callable[[Tensor, Tensor, float | Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Perturbation:
    """How far each layer is moved to either side of its pre-activations v.

        R = [σ(v + s g) − σ(v − s g)] / (2s),   s = m γ max(rms v, floor) / rms g

    with g the signal that arrives at the layer. m = 1 where the layer responds: at
    least `share` of the signal's energy passes, ‖R‖² ≥ share ‖g‖², or of the
    entries that receive a signal. Otherwise m is the first of 2, 4, 8, …, `limit`
    for which so many entries respond, so that σ is probed further where it is
    flat. s depends on v and g alone: nothing is remembered between steps.

    Once a network fits most samples, a few hold nearly all of the signal, and one
    size for all would move those far beyond γ: in ten layers so far that what came
    through was no gradient any more, and training stood still. No sample is moved
    by more than `outlier` times m γ max(rms v, floor): s_i = s min(1, outlier rms g / rms g_i).

    Arguments:
        gamma: γ > 0.
        floor: least size of v, for layers that hardly vary yet.
        share: least share that responds, in [0, 1].
        limit: largest m, for layers that cannot be revived.
        fixed: s itself, for all layers.
        outlier: how many times the size of others a single sample is moved at most, >= 1.
    """

    gamma: float = 0.1
    floor: float = 0.03
    share: float = 0.1
    limit: float = 1e6
    fixed: float | None = None
    outlier: float = 3.0

    def __post_init__(self) -> None:
        check_positive("Perturbation gamma", self.gamma)
        check_positive("Perturbation floor", self.floor)
        check_interval("Perturbation share", self.share, "[0, 1]")
        check_number("Perturbation limit", self.limit, minimum=1)
        check_number("Perturbation outlier", self.outlier, minimum=1)
        if self.fixed is not None:
            check_positive("Perturbation fixed", self.fixed)

    def response(
        self,
        sigma: Activation,
        v: Tensor,
        g: Tensor,
        mean: Mean | None = None,
        *,
        host: bool = True,
        square: float | None = None,
    ) -> tuple[Tensor, float | Tensor]:
        """R, and s, one for each sample where they differ; v and g are left alone.

        Arguments:
            sigma: the activation.
            v, g: pre-activations and signal of this process's samples.
            mean: makes statistics those of all processes; None for one process.
            host: whether numbers may be read, which transforms of torch.func do not allow.
            square: the mean square of v as `mean_squares` gives it, where it is known.
        """
        try:
            if type(host) is not bool:
                invalid_type("Perturbation.response host", "True or False", host)
            if square is not None and type(square) is not float:
                invalid_type("Perturbation.response square", "a float or None", square)
            host = host and v.device.type == "cpu" and not torch.compiler.is_compiling()
            if self.fixed is not None:
                size = self.fixed if host else torch.full((), self.fixed, dtype=_compute_dtype(v), device=v.device)
                return _difference(sigma, v, g, size, host), self.fixed
            if not host:
                size = self._size_on_device(sigma, v, g, mean)
                return _difference(sigma, v, g, size, host), size
            signal = _some(g)
            norms = _norms(signal, sigma.elementwise)
            square_v = _square(_some(v)) if square is None else square
            square_g = torch.linalg.vector_norm(norms).item() ** 2 / max(signal.numel(), 1)
            if mean is not None:
                square_v, square_g = mean(torch.tensor((square_v, square_g), dtype=torch.float64)).tolist()
            least = max(square_g**0.5, _LEAST[v.dtype])
            size: float | Tensor = self.gamma * max(square_v**0.5, self.floor) / least
            size = max(size, _LEAST[v.dtype])  # 0 where the signal has become infinite: the loss will say so
            most = self._longest(least, signal, norms)
            if len(norms) > 1 and most < norms.amax().item() < math.inf:
                size = _shortened(size, most, norms, g.ndim)
            residual = _difference(sigma, v, g, size)
            if not self._passes(residual, square_g, mean) and not self._responds(residual, g, sigma.elementwise, mean):
                size = size * self._multiplier(sigma, v, g, size, mean)
                residual = _difference(sigma, v, g, size)
            return residual, size
        except Exception as error:
            explain(error)
            raise

    def _longest(self, least: Any, signal: Tensor, norms: Tensor) -> Any:
        """The norm from which on a sample is moved less far, given the root mean square of all of them."""
        return self.outlier * least * (signal.numel() / max(len(norms), 1)) ** 0.5

    # -- where the host may look at numbers ---------------------------------------------------------------------------

    def _passes(self, residual: Tensor, square_g: float, mean: Mean | None) -> bool:
        """Whether enough of the signal's energy passes."""
        if self.share == 0:
            return True
        square = _square(_some(residual))
        if mean is not None:
            square = float(mean(torch.full((), square, dtype=torch.float64)))
        return square >= self.share * square_g

    def _responds(self, residual: Tensor, g: Tensor, elementwise: bool, mean: Mean | None) -> bool:
        """Whether enough of the entries that receive a signal pass some of it on."""
        rows = [_few(residual), _few(g)] if elementwise else [residual, g]
        counts = torch.stack([(part != 0).to(torch.float64).mean() for part in rows])
        passed, received = (counts if mean is None else mean(counts)).tolist()
        return passed >= self.share * received * (1 - ROUNDING)  # shares of small layers are often equal

    def _multiplier(self, sigma: Activation, v: Tensor, g: Tensor, size: float | Tensor, mean: Mean | None) -> float:
        """m; 1 where no multiple makes the layer respond."""
        v, g = (_few(v), _few(g)) if sigma.elementwise else (v, g)
        size = size.view(-1, 1) if isinstance(size, Tensor) else size
        multiplier = 2.0
        while multiplier <= self.limit:
            if self._responds(_difference(sigma, v, g, multiplier * size), g, False, mean):
                return multiplier
            multiplier *= 2
        return 1.0

    # -- where it may not: other devices, compiled and vectorised code ------------------------------------------------

    def _size_on_device(self, sigma: Activation, v: Tensor, g: Tensor, mean: Mean | None) -> Tensor:
        norms = _norms(g, sigma.elementwise)
        both = torch.stack([torch.linalg.vector_norm(part, dtype=_compute_dtype(v)) for part in (v, norms)])
        squares = both.square() / max(v.numel(), 1)
        squares = squares if mean is None else mean(squares)
        tiny = torch.finfo(v.dtype).tiny ** 0.5
        least = squares[1].sqrt().clamp(min=tiny)
        size = self.gamma * squares[0].sqrt().clamp(min=self.floor) / least
        if len(norms) > 1:
            size = _shortened(size, self._longest(least, g, norms), norms, g.ndim)
        if self.share == 0 or v.ndim == 0:
            return size
        # All sizes at once on a few samples, along the batch axis, where every kind of activation treats them alike.
        every = max(1, len(v) // 4)
        v, g = (t[::every].to(_compute_dtype(t)) for t in (v, g))
        rungs = RUNG ** torch.arange(11, dtype=v.dtype, device=v.device).clamp(max=math.log(self.limit, RUNG))
        sizes = size.expand(len(v)) if size.ndim == 0 else size[::every].reshape(-1)
        steps = (rungs[:, None] * sizes).view(-1, *[1] * (v.ndim - 1)) * _repeated(g, len(rungs))
        change = sigma.call(_repeated(v, len(rungs)) + steps) != sigma.call(_repeated(v, len(rungs)) - steps)
        passed = change.to(v.dtype).view(len(rungs), -1).mean(1)
        enough = passed >= self.share * (g != 0).to(v.dtype).mean()
        first = enough.to(torch.int64).argmax()  # 0 where none is enough
        return (size * rungs.index_select(0, first.reshape(1)).squeeze(0)).to(v.dtype)


def _difference(sigma: Activation, v: Tensor, g: Tensor, size: float | Tensor, host: bool = True) -> Tensor:
    """R, in the dtype of g; at least in single precision inside where differences cancel."""
    if sigma.difference is not None and host:
        return sigma.difference(v, g, size)
    dtype = g.dtype
    v, g = _exact(v, g)
    above, below = _moved(v, g, size)
    if not host:  # perhaps in a transform, where nothing may be overwritten
        return ((sigma.call(above) - sigma.call(below)) * (0.5 / size)).to(dtype)
    return sigma.call_(above).sub_(sigma.call_(below)).mul_(0.5 / size).to(dtype)


def relu_difference(v: Tensor, g: Tensor, size: float | Tensor) -> Tensor:
    """½[max(g, −v/s) + min(g, v/s)], which rounds less than a difference of two rectified sums.

    Either term is g or an end, so that half precision does: ten times as fast on large images as a detour by
    single precision, whose tensors the system has to find room for.
    """
    end = v.mul((-1 / size).to(v.dtype) if isinstance(size, Tensor) else -1 / size).to(g.dtype)
    response = torch.maximum(g, end)
    torch.minimum(g, end.neg_(), out=end)
    return response.lerp_(end, 0.5)


def soft_threshold_difference(threshold: float, v: Tensor, g: Tensor, size: float | Tensor) -> Tensor:
    """g − [P(v + s g) − P(v − s g)] / (2s), with P the projection onto [−λ, λ]."""
    dtype = g.dtype
    v, g = _exact(v, g)
    above, below = _moved(v, g, size)
    clipped = hardtanh_(above, -threshold, threshold).sub_(hardtanh_(below, -threshold, threshold))
    if isinstance(size, Tensor):
        return torch.addcmul(g, clipped, 0.5 / size, value=-1, out=clipped).to(dtype)
    return torch.sub(g, clipped, alpha=0.5 / size, out=clipped).to(dtype)


def _moved(v: Tensor, g: Tensor, size: float | Tensor) -> tuple[Tensor, Tensor]:
    """v + s g and v − s g."""
    if isinstance(size, Tensor):
        return torch.addcmul(v, g, size), torch.addcmul(v, g, size, value=-1)
    return torch.add(v, g, alpha=size), torch.sub(v, g, alpha=size)


def _exact(v: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the dtype of differences, where it is another one."""
    compute = _COMPUTE[v.dtype]
    return (v, g) if v.dtype is compute and g.dtype is compute else (v.to(compute), g.to(compute))


def mean_squares(tensors: Sequence[Tensor]) -> list[float] | list[None]:
    """Of pre-activations, in one call into torch; unknown where the host would wait for a device."""
    if not tensors or any(tensor.device.type != "cpu" for tensor in tensors) or torch.compiler.is_compiling():
        return [None] * len(tensors)
    some = [_some(tensor) for tensor in tensors]
    norms = torch.stack(torch._foreach_norm(some)).tolist()
    return [norm**2 / max(tensor.numel(), 1) for norm, tensor in zip(norms, some, strict=True)]


def _norms(g: Tensor, elementwise: bool) -> Tensor:
    """Of the samples, which lie along the first axis; one for all where functions treat entries together."""
    if not elementwise or g.ndim < 2:
        return torch.linalg.vector_norm(g).reshape(1)
    return torch.linalg.vector_norm(g, dim=tuple(range(1, g.ndim)), dtype=_compute_dtype(g))


def _shortened(size: float | Tensor, most: Any, norms: Tensor, axes: int) -> Tensor:
    """s of every sample, in the shape of a signal with so many axes; those whose norm is at most `most` keep theirs."""
    return (most / norms).clamp_(max=1).mul(size).view(-1, *[1] * (axes - 1))


def _square(tensor: Tensor) -> float:
    return torch.linalg.vector_norm(tensor).item() ** 2 / max(tensor.numel(), 1)


def _some(tensor: Tensor) -> Tensor:
    """All of a tensor, or of samples with many features some: the same ones whichever process has the sample."""
    shape = tensor.shape
    if (len(shape) == 2 and shape[1] < MANY) or len(shape) < 2 or tensor.numel() < MANY * shape[0]:
        return tensor
    if not tensor.is_contiguous():
        if len(shape) != 4 or not tensor.is_contiguous(memory_format=torch.channels_last):
            return tensor
        tensor = tensor.permute(0, 2, 3, 1)
    return _few(tensor)


def _few(tensor: Tensor) -> Tensor:
    """About 64 features of every sample, evenly spaced: an odd number apart, so not all in one column or channel."""
    rows = tensor.reshape(len(tensor), -1) if tensor.ndim > 1 else tensor.reshape(1, -1)
    return rows[:, :: rows.shape[1] // FEATURES | 1]


def _repeated(tensor: Tensor, count: int) -> Tensor:
    return tensor.repeat(count, *[1] * (tensor.ndim - 1))


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return _COMPUTE[tensor.dtype]


def transformed() -> bool:
    """Whether a transform of `torch.func` is under way; no public function tells."""
    active = getattr(torch._C, "_are_functorch_transforms_active", None)
    return active is not None and active()
