"""Checks before an inversion starts, each with what to try instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

from torch import Tensor, nn

from torchlift.core.checks import Shape, check_batch, check_finite, check_like, check_number, check_positive
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.inversion.exact import Exact, into_domain
from torchlift.inversion.layers import Layers
from torchlift.inversion.nested import NestedAdam, NestedPDHG
from torchlift.inversion.simultaneous import Simultaneous
from torchlift.inversion.solver import InversionSolver
from torchlift.inversion.sweep import Sweep
from torchlift.inversion.weights import RULES, WeightRule
from torchlift.networks import Network, lift
from torchlift.operators import Context
from torchlift.operators.context import context_batch
from torchlift.prox import ProximalActivation

Algorithm = InversionSolver | Exact

#: Every algorithm by name, with its usual number of steps.
ALGORITHMS: dict[str, tuple[type[Algorithm], int]] = {
    "sweep": (Sweep, 300),
    "paper": (Simultaneous, 500),
    "exact": (Exact, 20_000),
    "nested-adam": (NestedAdam, 500),
    "nested-pdhg": (NestedPDHG, 500),
}

#: μ of hidden layers. On codes of digits, 3 reaches in 100 sweeps about what 10 reaches in 200; 1 ends 0.6 dB lower.
HIDDEN_WEIGHT = 3.0


def check_network(network: object, start: object) -> Network:
    """A torchlift network, or an `nn.Sequential` that can be lifted."""
    if isinstance(network, Network):
        return network
    if isinstance(network, nn.Sequential):
        return lift(network, tuple(start.shape[1:]) if isinstance(start, Tensor) else None)
    invalid_type("invert network", "a torchlift network or an nn.Sequential", network, "Try torchlift.lift(module).")


def check_data(network: Network, y: object) -> Tensor:
    tensor = check_batch("invert y", y, network.out_shape)
    if network.like is not None:
        check_like("invert y", tensor, network.like)
    return check_finite("invert y", tensor).detach()


def check_start(network: Network, y: Tensor, start: object, anchor: object) -> tuple[Tensor, float]:
    """The start, zeros by default, and the strength of the anchor."""
    strength = check_number("invert anchor", anchor)
    if strength < 0:
        invalid_value("invert anchor", "a number >= 0", anchor)
    if start is None:
        if strength:
            invalid_value("invert anchor", "a start to be anchored at", "start=None", "Pass start=decoder(y).")
        return y.new_zeros(y.shape[0], *network.in_shape), strength
    tensor = check_like("invert start", check_batch("invert start", start, network.in_shape), y)
    if tensor.shape[0] != y.shape[0]:
        invalid_value("invert start", f"{y.shape[0]} inputs, one per output", tensor.shape[0])
    return check_finite("invert start", tensor).detach(), strength


def check_context(context: Context, batch: int) -> Context:
    if context is not None and context_batch("invert context", context) != batch:
        found = context_batch("invert context", context)
        invalid_value("invert context", f"{batch} samples, one per output", found)
    return context


def check_weight(weight: object, noise_level: object, y: Tensor) -> Tensor | WeightRule:
    """Weights (B,) ≥ 0, or the rule that chooses them."""
    if noise_level is not None:
        check_positive("invert noise_level", noise_level)
    if isinstance(weight, str):
        if weight not in RULES:
            invalid_value("invert weight", f"a number or one of {sorted(RULES)}", repr(weight))
        weight = RULES[weight]()
    if isinstance(weight, WeightRule):
        if weight.needs_noise and noise_level is None:
            hint = "Pass noise_level=standard deviation of the noise in y, or try weight='lcurve'."
            invalid_value(f"invert weight={weight.name!r}", "a noise_level", "none", hint)
        return weight
    if isinstance(weight, Tensor):
        if tuple(weight.shape) != (y.shape[0],):
            invalid_value("invert weight", f"a number or a tensor ({y.shape[0]},)", tuple(weight.shape))
        if not bool((weight >= 0).all()):
            invalid_value("invert weight", "weights >= 0", f"a least weight of {float(weight.min())}")
        return check_finite("invert weight", weight).to(y)
    if isinstance(weight, bool) or not isinstance(weight, Real):
        invalid_type("invert weight", f"a number >= 0, a tensor, a rule or one of {sorted(RULES)}", weight)
    if not 0 <= float(weight) < math.inf:
        invalid_value("invert weight", "a finite number >= 0", weight)
    return y.new_full((y.shape[0],), float(weight))


def check_mu(mu: object, count: int) -> tuple[float, ...]:
    """μ_1 … μ_n: given ones, one number for all, or by default HIDDEN_WEIGHT and 1 for the last."""
    if mu is None:
        return (HIDDEN_WEIGHT,) * (count - 1) + (1.0,)
    if isinstance(mu, Sequence) and not isinstance(mu, str):
        if len(mu) != count:
            hint = "An affine map at the end counts as a layer."
            invalid_value("invert mu", f"one weight, or {count}: one per layer", len(mu), hint)
        return tuple(check_positive(f"invert mu[{r}]", weight) for r, weight in enumerate(mu))
    return (check_positive("invert mu", mu),) * count


def check_algorithm(algorithm: object) -> tuple[Algorithm, int]:
    """An algorithm and its usual number of steps."""
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            invalid_value("invert algorithm", f"one of {list(ALGORITHMS)}, or an instance", repr(algorithm))
        kind, steps = ALGORITHMS[algorithm]
        return kind(), steps
    if not isinstance(algorithm, InversionSolver | Exact):
        invalid_type("invert algorithm", f"one of {list(ALGORITHMS)}, or an instance", algorithm)
    usual = [steps for kind, steps in ALGORITHMS.values() if isinstance(algorithm, kind)]
    return algorithm, usual[0] if usual else 500


def feasible(layers: Layers, y: Tensor, on_infeasible: object) -> tuple[Tensor, int]:
    """The data as the last layer's z, inside the range of its activation, and how many entries had to move.

    Outside the range Ψ(y) = +∞, and so is the distance to every output.
    """
    if on_infeasible not in ("refuse", "project"):
        invalid_value("invert on_infeasible", "'refuse' or 'project'", repr(on_infeasible))
    activation, target = layers.activations[-1], layers.target(y)
    outside = _outside(activation, target)
    if not bool(outside.any()):
        return target, 0
    position = tuple(outside.nonzero()[0].tolist())
    if on_infeasible == "refuse":
        expected = f"values in the range of {type(activation).__name__}"
        hint = "Pass on_infeasible='project' to move them there."
        invalid_value("invert y", expected, f"{float(target[position]):.6g} at index {position}", hint)
    moved = into_domain(activation, target)
    if bool(_outside(activation, moved).any()):
        invalid_value("invert y", f"values near the range of {type(activation).__name__}", "values far from it")
    return moved, int(outside.sum())


def _outside(activation: ProximalActivation, target: Tensor) -> Tensor:
    """Which entries (all of a group) have an infinite Ψ."""
    infinite = activation.psi(target).isinf()
    return infinite if activation.dim is None else infinite.unsqueeze(activation.dim).expand_as(target)


def memory_per_image(layers: Layers, in_shape: Shape, dual_shapes: Sequence[Shape], itemsize: int) -> int:
    """An estimate in bytes: `COPIES` of every variable, see there."""
    form = layers.form
    shapes = [in_shape, *dual_shapes, *form.W.row_shapes, *form.W.row_shapes, *form.K.row_shapes]
    return COPIES * itemsize * sum(math.prod(shape) for shape in shapes)


#: An algorithm holds, at the worst moment of a step, at most about this many numbers for every entry of x, z, v and p:
#: the old and the new state, the last changes, and what a merged state and a layer's products need.
COPIES = 15

#: Images inverted at once by default: larger batches leave the caches and took 30 % longer per image.
BATCH = 256
