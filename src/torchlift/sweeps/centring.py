"""Affine layers in coordinates in which weights and bias do not meet.

With ū the mean input of the batch and c = b + W ū, the layer is v = W(u − ū) + c.
Its gradients are

    ∇_W − ∇_b ūᵀ   and   ∇_c = ∇_b,

and a step (ΔW, Δc) is ΔW and Δb = Δc − ΔW ū in the old coordinates. A shift of
the inputs then changes nothing but the bias, and the gradient of W no longer
holds the rank-one part that biased inputs add to it. Convolutions have one mean
per channel, the same for every tap of the kernel.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from torchlift.core.signatures import explain
from torchlift.networks.dense_chain import follow
from torchlift.sweeps.activation import plain_functions
from torchlift.sweeps.orthogonal import Factors, many_outputs, widest
from torchlift.sweeps.parameter_groups import CONVOLUTIONS, DENSE

#: Entries up to which layers of a stack share a call, where calls cost more than passes over memory.
SMALL = 1 << 15
#: Entries of inputs in half precision that a CPU copies to single precision at a time, instead of all of them, for
#: which the system would have to find room.
PIECE = 1 << 18


class Last(Protocol):
    """The last layer of a network, whose shape says how many numbers it puts out."""

    @property
    def weight(self) -> Tensor: ...
    @property
    def bias(self) -> Tensor: ...


@dataclass(eq=False)
class Mean:
    """ū of one affine layer, or of all layers of a stack.

    Arguments:
        weight, bias: its parameters; those of a stack have a leading axis of layers.
        inputs: ū, (in,) for a matrix, (layers, in) for a stack, (in · taps,) for a kernel, (out, in/groups) for a
            kernel of groups.
        factors: of the gradients of layers that are much wider than the batch, by layer: see `orthogonal`.
    """

    weight: Tensor
    bias: Tensor
    inputs: Tensor
    factors: dict[int, Factors] = field(default_factory=dict)

    def centre_(self, weight: Tensor, bias: Tensor) -> None:
        """weight −= bias ūᵀ: from ∇_W to the gradient in centred coordinates."""
        if self.inputs.ndim == 1:
            (weight if weight.ndim == 2 else weight.view(len(weight), -1)).addr_(bias, self.inputs, alpha=-1)
        elif self._stacked and weight[0].numel() <= SMALL:
            weight.baddbmm_(bias[:, :, None], self.inputs[:, None, :], alpha=-1)
        elif self._stacked:
            for layer, b, u in zip(weight, bias, self.inputs, strict=True):
                layer.addr_(b, u, alpha=-1)
        else:
            weight.sub_((bias[:, None] * self.inputs).view(*self.inputs.shape, *[1] * (weight.ndim - 2)))

    def pull(self, weight: Tensor, every: int = 1) -> Tensor:
        """W ū, in the shape of the bias; of every so many-th row of W only."""
        if self.inputs.ndim == 1:
            return weight.flatten(1) @ self.inputs
        if self._stacked:
            return (weight @ self.inputs[:, :, None])[:, :, 0]
        return (weight.flatten(2).sum(2) * self.inputs[::every]).sum(1)

    def centred_factors(self) -> dict[int, Factors]:
        """With X − 1ūᵀ in place of X: those of the centred gradient."""
        means = self.inputs if self._stacked else self.inputs[None]
        return {layer: Factors(r, u - means[layer]) for layer, (r, u) in self.factors.items()}

    def add_pull_(self, bias: Tensor, weight: Tensor, rate: float | Tensor, every: int = 1) -> None:
        """bias += rate · W ū; of every so many-th row of W only."""
        if self.inputs.ndim == 1 and not isinstance(rate, Tensor):
            bias.addmv_(weight if weight.ndim == 2 else weight.flatten(1), self.inputs, alpha=rate)
        elif self._stacked and not isinstance(rate, Tensor):
            for layer, b, u in zip(weight, bias, self.inputs, strict=True):
                b.addmv_(layer, u, alpha=rate)
        else:
            pull = self.pull(weight, every)
            bias.add_(pull * (rate if not isinstance(rate, Tensor) else rate.to(pull)))

    @property
    def _stacked(self) -> bool:
        return self.bias.ndim == 2


def keep_factors(means: list[Mean], total: int | None = None, last: Last | None = None) -> None:
    """Forget the factors of gradients that are not to be orthogonalised; means are in the order of their layers.

    Arguments:
        means: of all layers of a network.
        total: samples of all processes; None where the factors hold them all.
        last: the last layer of the network, where it is not that of the last mean.
    """
    for mean in means:
        if not mean.factors:
            continue
        last = last or means[-1]
        mean.factors = {
            layer: factors
            for layer, factors in mean.factors.items()
            if (samples := total or len(factors.inputs)) <= widest(mean.weight)
            and many_outputs(last.weight, last.bias, samples)
        }


@dataclass(eq=False)
class _Sum:
    """What one owner of parameters has seen: by layer, the sum of mean inputs and their number."""

    weight: nn.Parameter
    bias: nn.Parameter
    groups: int
    rows: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    factors: dict[int, list[Factors]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Samples up to which the signal that comes back is asked for too.
        self._followed = widest(self.weight) if self.weight.ndim == self.bias.ndim + 1 else 0
        self._vectors = self.weight.ndim == 2 or self.bias.ndim == 2
        self._taps = self.weight[0, 0].numel() if self.weight.ndim > 2 else 1

    def follows(self, u: Tensor) -> bool:
        """Whether the signal that comes back is asked for too."""
        if self._followed == 0 or u.ndim != 2:
            return False
        return u.dtype is self.weight.dtype and u.shape[0] <= self._followed

    def clear(self) -> None:
        self.rows.clear()
        self.factors.clear()

    def _all_factors(self) -> dict[int, Factors]:
        """Those of all passes together, of layers whose every pass came back."""
        together: dict[int, Factors] = {}
        for layer, passes in self.factors.items():
            r, u = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*passes, strict=True))
            if len(passes) == self.rows[layer][1]:
                together[layer] = Factors(r, u)
        return together

    def add(self, layer: int, u: Tensor) -> None:
        if self._vectors and u.ndim == 2 and u.dtype is self.weight.dtype:
            mean = u.detach().mean(0)
        else:
            mean = self._mean_of(u)
        if layer in self.rows:
            total, count = self.rows[layer]
            self.rows[layer] = total + mean, count + 1
        else:
            self.rows[layer] = mean, 1

    def _mean_of(self, u: Tensor) -> Tensor:
        channels = u.ndim - 1 if self.weight.ndim < 3 or self.bias.ndim == 2 else u.ndim + 1 - self.weight.ndim
        axes, u, dtype = [axis for axis in range(u.ndim) if axis != channels], u.detach(), self.weight.dtype
        if u.dtype == dtype or u.device.type != "cpu":
            return u.mean(axes, dtype=dtype)
        sums = [piece.sum(axes, dtype=dtype) for piece in u.split(max(1, PIECE * len(u) // max(u.numel(), 1)))]
        return torch.stack(sums).sum(0).mul_(u.shape[channels] / max(u.numel(), 1))

    def mean(self) -> Mean:
        if self.weight.ndim == 2:
            total, count = self.rows[0]
            inputs = total if count == 1 else total / count
            return Mean(self.weight, self.bias, inputs, self._all_factors() if self.factors else {})
        means = {layer: total if count == 1 else total / count for layer, (total, count) in self.rows.items()}
        if self.bias.ndim == 2:
            nothing = torch.zeros_like(next(iter(means.values())))  # of a layer that was not used
            rows = torch.stack([means.get(i, nothing) for i in range(len(self.weight))])
            return Mean(self.weight, self.bias, rows, self._all_factors())
        if self.groups == 1 and self.weight.is_contiguous():
            return Mean(self.weight, self.bias, means[0].repeat_interleave(self._taps))
        rows = means[0].view(self.groups, -1).repeat_interleave(len(self.weight) // self.groups, 0)
        return Mean(self.weight, self.bias, rows)


class Centring:
    """Listens to the affine layers of a module and knows the mean input of each since it was last asked.

    By forward pre-hooks, which look at passes that are recorded for a way back
    and go away with this object. Layers without a trained bias stay as they are, and so do weights that several
    modules share: their gradient is the sum of those of all owners, of which the mean input of one says nothing.

    Arguments:
        module: any module; `nn.Linear`, convolutions and the dense stacks of chains are heard.
        of: the module whose copy this is, and whose parameters the means are told of; None for its own.
        last: the last layer of the whole network, where the module is only a part of it.
    """

    def __init__(self, module: nn.Module, of: nn.Module | None = None, last: Last | None = None) -> None:
        self._sums: dict[int, _Sum] = {}
        self.last = last
        parts = (of or module).modules()
        owners = Counter(id(parameter) for part in parts for parameter in part.parameters(recurse=False))
        for owner, original in zip(module.modules(), (of or module).modules(), strict=True):
            bias: Any = getattr(original, "bias", None)
            if getattr(owner, "dense", False) is True:  # a stack of a chain, which tells what it sees
                self._listen_to_stack(owner, bias)
            elif (
                isinstance(owner, (*DENSE, *CONVOLUTIONS))
                and _trained(original.weight, bias)
                and owners[id(original.weight)] == owners[id(bias)] == 1
            ):
                known = _Sum(cast("nn.Parameter", original.weight), bias, getattr(owner, "groups", 1))
                hook = _hook(weakref.ref(self), known)
                handles = [owner.register_forward_pre_hook(hook)]
                if isinstance(owner, DENSE):
                    handles.append(owner.register_forward_hook(_following(known, vars(hook)["observer"].signal)))
                for handle in handles:
                    weakref.finalize(self, handle.remove)

    def _listen_to_stack(self, owner: Any, bias: Any) -> None:
        weight = owner.linear.get_parameter("weight")
        if _trained(weight, bias):
            observer = _observer(weakref.ref(self), _Sum(weight, bias, 1))
            owner.observers.append(observer)
            weakref.finalize(self, owner.observers.remove, observer)

    @torch.no_grad()
    def take(self) -> list[Mean]:
        """The means since the last call, of the layers that were used and have gradients."""
        sums, self._sums = self._sums, {}
        means = [each.mean() for each in sums.values() if each.weight.grad is not None and each.bias.grad is not None]
        for each in sums.values():
            each.clear()
        keep_factors(means, last=self.last)
        return means

    def heard(self, known: _Sum, layer: int, u: Tensor) -> bool:
        """An input of a layer; returns whether its signal is asked for."""
        try:
            known.add(layer, u)
            self._sums[id(known)] = known
            return known.follows(u)
        except Exception as error:
            explain(error)
            raise

    def answered(self, known: _Sum, layer: int, u: Tensor, r: Tensor) -> None:
        """The signal that came back to a layer, from the pass with input u."""
        if id(known) in self._sums and r.dtype is u.dtype and known.follows(u):
            known.factors.setdefault(layer, []).append(Factors(r.detach(), u.detach()))


def _hook(own: weakref.ref[Any], known: _Sum) -> Callable[..., None]:
    observer = _observer(own, known)

    def hook(owner: nn.Module, args: tuple[Any, ...]) -> None:
        if args and torch.is_grad_enabled():
            with plain_functions():
                observer(0, args[0])

    vars(hook).update(observes=True, observer=observer)  # changes nothing
    return hook


def _following(known: _Sum, signal: Callable[[int, Tensor, Tensor], None]) -> Callable[..., None]:
    """A forward hook that waits for the signal where it is asked for."""

    def hook(owner: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and torch.is_grad_enabled():
            with plain_functions():
                if known.follows(args[0]):
                    follow(output, args[0], 0, signal)

    vars(hook)["observes"] = True
    return hook


def _answer(own: weakref.ref[Any], known: _Sum) -> Callable[[int, Tensor, Tensor], None]:
    def answer(layer: int, u: Tensor, r: Tensor) -> None:
        if (centring := own()) is not None:
            centring.answered(known, layer, u, r)

    return answer


def _observer(own: weakref.ref[Any], known: _Sum) -> Callable[[int, Tensor], bool]:
    def observer(layer: int, u: Tensor) -> bool:
        centring = own()
        return centring is not None and centring.heard(known, layer, u)

    vars(observer)["signal"] = _answer(own, known)
    return observer


def _trained(weight: object, bias: object) -> bool:
    return all(isinstance(tensor, nn.Parameter) and tensor.requires_grad for tensor in (weight, bias))
