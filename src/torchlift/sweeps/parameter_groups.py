"""What each parameter of a module is, told by the module that owns it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from torchlift.core.errors import invalid_type

Group = dict[str, Any]

#: Modules whose weight is a matrix that acts on vectors.
DENSE = (nn.Linear,)
#: Modules whose weight is a kernel (out, in, …).
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
#: Modules by which networks of tokens are known. Gradients of their layers differ much in size from row to row, and
#: one number per layer leaves most rows behind: small transformers read 5 of 100 digits more with one per entry.
TOKENS = (nn.MultiheadAttention, nn.LayerNorm, nn.RMSNorm)
#: Modules whose weights and biases scale and shift whole channels.
NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
#: How far gains and shifts of channels move where weights move by 1: one of them changes as much of the output as all
#: weights of its channel. At 1, three convolutions on CIFAR-10 lose 1.5 points in 500 steps, normalised transformers 1
#: to 5.
CHANNELS = 0.1
#: Recurrences without gates, and how many layers each counts for: what a step changes multiplies from one time to the
#: next. Counted as none, they lost 2 to 5 points of 100 digits read row by row; gates damp it, and GRU and LSTM lose.
RECURRENCES = (nn.RNN, nn.RNNCell)
TIMES = 8
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Bilinear)


def parameter_groups(module: nn.Module) -> list[Group]:
    """Groups for an optimiser: one per layer, its weight first and then its bias.

    | key | meaning |
    |---|---|
    | `params` | the weight, and what is measured by the size of the weight, such as a bias |
    | `kind` | "dense": the gradient is scaled as a whole; "entries": each entry alone, as Adam does; |
    | | "logarithm": so too, in steps of a fixed size |
    | `stacked` | whether the first axis counts layers |
    | `layers` | how many layers of the network these are |
    | `scale` | how far they move where others move by 1 |
    | `matrix` | whether the weight is a matrix (out, in) or filters (out, in, taps, …), so that its steps may be |
    | | orthogonalised |

    A module of one's own says what its parameters are by a method
    `parameter_groups()` that returns such groups; what they leave out is "entries",
    not stacked, 0 layers, 1 and no matrix. Linear layers are "dense", but "entries" in networks with
    attention or with normalisation over features. Parameters that need no gradient are left out,
    and one that several modules share belongs to the first.
    """
    if not isinstance(module, nn.Module):
        invalid_type("parameter_groups module", "an nn.Module", module)
    seen: set[int] = set()
    linear = "entries" if any(isinstance(each, TOKENS) for each in module.modules()) else "dense"
    return [kept for group in _groups(module, linear) if (kept := _trained(group, seen))["params"]]


def _trained(group: Group, seen: set[int]) -> Group:
    params = [p for p in group["params"] if p.requires_grad and id(p) not in seen]
    seen.update(map(id, params))
    return {**group, "params": params}


def _groups(module: nn.Module, linear: str) -> Iterator[Group]:
    declared: Callable[[], list[Group]] | None = getattr(module, "parameter_groups", None)
    if callable(declared):
        yield from declared()  # which speaks for what is below it too
        return
    own = list(module.parameters(recurse=False))
    if isinstance(module, DENSE):
        yield {"params": own, "kind": linear, "layers": 1, "matrix": True}
    elif isinstance(module, (*CONVOLUTIONS, *_TRANSPOSED)):
        yield {"params": own, "kind": "entries", "layers": 1, "matrix": getattr(module, "groups", 0) == 1}
    elif isinstance(module, nn.MultiheadAttention):
        yield from _attention(module, linear)
    elif isinstance(module, RECURRENCES):
        first, *others = own
        yield {"params": [first], "kind": "entries", "layers": TIMES * getattr(module, "num_layers", 1)}
        yield from ({"params": [parameter], "kind": "entries"} for parameter in others)
    elif isinstance(module, NORMALISATIONS) or (len(own) == 2 and own[0].shape == own[1].shape):
        yield {"params": own, "kind": "entries", "scale": CHANNELS}
    else:
        yield from ({"params": [parameter], "kind": "entries"} for parameter in own)
    for child in module.children():
        yield from _groups(child, linear)


def _attention(module: nn.MultiheadAttention, linear: str) -> Iterator[Group]:
    """The projections of queries, keys and values are one linear layer, or three."""
    bias = [] if module.in_proj_bias is None else [module.in_proj_bias]
    joint = getattr(module, "in_proj_weight", None)
    if joint is not None:
        yield {"params": [joint, *bias], "kind": linear, "layers": 1, "matrix": True}
    else:
        for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
            yield {"params": [getattr(module, name), *bias], "kind": linear, "layers": 1, "matrix": True}
    for extra in (module.bias_k, module.bias_v):
        if extra is not None:
            yield {"params": [extra], "kind": "entries"}
