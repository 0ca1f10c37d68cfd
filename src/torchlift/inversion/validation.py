"""Checks before an inversion starts, each with what to try instead."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchlift.core.checks import (
    Shape,
    check_batch,
    check_choice,
    check_finite,
    check_instance,
    check_like,
    check_number,
    check_positive,
    check_shape,
)
from torchlift.core.errors import NotRepresentableError, invalid_type, invalid_value
from torchlift.core.progress import Progress as Bar
from torchlift.core.solution import Record
from torchlift.data.arrays import as_tensor
from torchlift.functions.losses import Loss, SquaredError
from torchlift.inversion.accelerated import Accelerated
from torchlift.inversion.automatic import Automatic
from torchlift.inversion.exact import Exact, into_domain
from torchlift.inversion.layers import Layers
from torchlift.inversion.lifted import Simultaneous, Sweep
from torchlift.inversion.nested import NestedAdam, NestedPDHG
from torchlift.inversion.problem import as_rows
from torchlift.inversion.quasi_newton import QuasiNewton
from torchlift.inversion.run import Progress
from torchlift.inversion.solver import InversionSolver
from torchlift.inversion.weights import RULES, WeightRule
from torchlift.networks import Linear, Network, lift
from torchlift.networks.input_shape import first_layer, fitting_shapes, known_shape, shape_example
from torchlift.operators import Context, LinearOperator
from torchlift.operators.context import context_batch
from torchlift.prox.base import in_domain

Algorithm = InversionSolver | Exact | Automatic

#: Every algorithm by name, with its usual number of steps.
ALGORITHMS: dict[str, tuple[type[Algorithm], int]] = {
    "auto": (Automatic, 300),
    "quasi-newton": (QuasiNewton, 300),
    "accelerated": (Accelerated, 300),
    "sweep": (Sweep, 500),
    "paper": (Simultaneous, 500),
    "exact": (Exact, 20_000),
    "nested-adam": (NestedAdam, 500),
    "nested-pdhg": (NestedPDHG, 500),
}

#: In which inversions are not computed.
HALF = (torch.float16, torch.bfloat16)

#: μ of hidden layers. On codes of digits, 3 reaches in 100 sweeps about what 10 reaches in 200; 1 ends 0.6 dB lower.
HIDDEN_WEIGHT = 3.0


@dataclass(frozen=True, eq=False)
class Joint:
    """Several networks with the same input as one: its output is all of theirs, flattened, in one row."""

    networks: tuple[Network, ...]

    @property
    def in_shape(self) -> Shape:
        return self.networks[0].in_shape

    @property
    def like(self) -> Tensor | None:
        return self.networks[0].like

    def __call__(self, x: Tensor, context: Context = None) -> Tensor:
        return torch.cat([network(x, context).flatten(1) for network in self.networks], 1)


def from_numpy(network: object, value: Any) -> Any:
    """An array of numpy as a tensor of the network's kind; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    first = network[0] if isinstance(network, Sequence) and len(network) else network
    module = first if isinstance(first, nn.Module) else nn.Module()
    like = next((each for each in (*module.parameters(), *module.buffers()) if each.is_floating_point()), None)
    tensor = as_tensor("invert", value, like)
    return tensor if like is None else tensor.to(like.device)


def in_single(network: Any, *values: Any) -> tuple[Any, ...]:
    """A module in half precision, outputs and a start, in single precision; anything else as it is.

    Sums over the entries of an image overflow in half precision, and steps vanish in its rounding.
    """
    modules = network if isinstance(network, Sequence) else [network]
    tensors = [each for module in modules if isinstance(module, nn.Module) for each in module.parameters()]
    if not any(each.dtype in HALF for each in tensors):
        return (network, *values)

    def widened(value: Any) -> Any:
        if isinstance(value, Sequence):
            return [widened(each) for each in value]
        if isinstance(value, nn.Module):
            return copy.deepcopy(value).float()
        return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value

    return widened(network), *map(widened, values)


def check_statistics(network: Any) -> None:
    """Refuse batch norms that would make the output of an image depend on the others, and on how many there are."""
    networks = network if isinstance(network, Sequence) else [network]
    modules = (pair for each in networks if isinstance(each, nn.Module) for pair in each.named_modules())
    for name, module in modules:
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            hint = "Call `.eval()` first." if module.training else "Let it keep running statistics."
            got = f"{type(module).__name__} {name!r} with those of the batch"
            invalid_value("invert network", "batch norms with fixed statistics", got, hint)


def check_network(network: object, input_shape: object, start: object, y: object) -> Network | Joint:
    """A torchlift network, a linear operator, a module, or several modules with the same input."""
    if isinstance(network, LinearOperator):
        network = Linear(network)
    if isinstance(network, nn.Module):
        return _lifted(network, input_shape, start, y)
    if not isinstance(network, Sequence) or isinstance(network, str):
        hint = "Call a function in the forward pass of a module." if callable(network) else ""
        invalid_type("invert network", "an nn.Module or several", network, hint)
    parts = tuple(network)
    if not parts or not all(isinstance(part, nn.Module) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts) or "none"
        invalid_type("invert network", "an nn.Module or several", kinds)
    outputs = y if isinstance(y, Sequence) and len(y) == len(parts) else [None] * len(parts)
    networks = tuple(_lifted(part, input_shape, start, each) for part, each in zip(parts, outputs, strict=True))
    shapes = {part.in_shape for part in networks}
    if len(shapes) > 1:
        invalid_value("invert network", "networks with the same input", f"input shapes {sorted(shapes)}")
    return Joint(networks)


def parameter_count(network: Network | Joint) -> int:
    networks = network.networks if isinstance(network, Joint) else (network,)
    return sum(tensor.numel() for each in networks for tensor in each.parameters())


def _lifted(module: nn.Module, input_shape: object, start: object, y: object) -> Network:
    """A module as a network, for inputs of the shape that is given, that a start has, or that outputs y come from."""
    shape = None if input_shape is None else check_shape("invert input_shape", input_shape)
    module = getattr(module, "_orig_mod", module)  # of a compiled module
    if isinstance(module, Network):
        if shape not in (None, module.in_shape):
            invalid_value("invert input_shape", f"{module.in_shape}, that of the network", shape)
        return module
    guess = start(y) if shape is None and callable(start) and isinstance(y, Tensor) else start
    if shape is None:
        if isinstance(guess, Tensor) and guess.ndim < 2:
            hint = "Add a batch axis with `start[None]`."
            invalid_value("invert start", "one input for each output, (batch, …)", tuple(guess.shape), hint)
        shape = tuple(guess.shape[1:]) if isinstance(guess, Tensor) else _found_shape(module, y)
    if shape is None:
        if isinstance(y, Tensor) and y.ndim > 1 and fitting_shapes(module, tuple(y.shape)):
            expected = f"shape (batch, {', '.join(map(str, y.shape))})"
            invalid_value("invert y", expected, tuple(y.shape), "Add a batch axis with `y[None]`.")
        first = first_layer(module)
        expected = f"the shape of one input, which {type(first).__name__} does not tell"
        example = f"input_shape={shape_example(module)}" if hasattr(first, "in_channels") else "input_shape"
        hint = f"Pass {example}, or a first guess of the inputs as start."
        invalid_value("invert input_shape", expected, "none", hint)
    try:
        return lift(module, shape)
    except NotRepresentableError as error:
        if input_shape is not None:
            if len(shape) > 2 and shape[0] == 1:
                text = f"{error} input_shape={shape} is taken for one input: leave the axis of the batch out."
                raise NotRepresentableError(text) from None
            raise
        # layers may be called in another order than that of their names
        text = f"{error} Inputs were taken to have the shape {shape}: pass input_shape if they have another."
        if isinstance(guess, Tensor):
            text = f"{error} Inputs were taken to have the shape {shape}, that of a row of the start."
        raise NotRepresentableError(text) from None


def _found_shape(module: nn.Module, y: object) -> Shape | None:
    """That of inputs which are mapped to outputs like y, or what the first layer tells."""
    shapes = fitting_shapes(module, tuple(y.shape[1:])) if isinstance(y, Tensor) and y.ndim > 1 else []
    if not shapes:
        return known_shape(module)
    if len(shapes) > 1:
        others = " or ".join(map(str, shapes[1:4]))
        text = f"invert: inputs were taken to have the shape {shapes[0]}; {others} would lead to such outputs too."
        warnings.warn(f"{text} Pass input_shape to say which.", stacklevel=5)
    return shapes[0]


def check_data(network: Network | Joint, y: object) -> Tensor:
    """The outputs as one tensor."""
    if isinstance(network, Joint):
        if not isinstance(y, Sequence) or len(y) != len(network.networks):
            got = len(y) if isinstance(y, Sequence) else type(y).__name__
            invalid_value("invert y", f"{len(network.networks)} tensors, one per network", got)
        parts = [_check_output(f"invert y[{k}]", net, y[k]) for k, net in enumerate(network.networks)]
        if len({len(part) for part in parts}) > 1:
            invalid_value("invert y", "the same number of images for every network", [len(part) for part in parts])
        return torch.cat([as_rows(part) for part in parts], 1)
    return _check_output("invert y", network, y)


def _check_output(name: str, network: Network, y: object) -> Tensor:
    tensor = check_batch(name, y, network.out_shape)
    if network.like is not None:
        check_like(name, tensor, network.like)
    return check_finite(name, tensor).detach()


def check_start(network: Network | Joint, y: Tensor, start: object, anchor: object) -> tuple[Tensor, float]:
    """The start, zeros by default, and the strength of the anchor."""
    strength = 0.0 if anchor is None else check_number("invert anchor", anchor, minimum=0)
    if start is None:
        if strength:
            invalid_value("invert anchor", "a start to be anchored at", "start=None", "Pass start=decoder(y).")
        return y.new_zeros(y.shape[0], *network.in_shape), strength
    tensor = check_like("invert start", check_batch("invert start", start, network.in_shape), y)
    if tensor.shape[0] != y.shape[0]:
        invalid_value("invert start", f"{y.shape[0]} inputs, one per output", tensor.shape[0])
    return check_finite("invert start", tensor).detach(), strength


def check_loss(loss: object, y: Tensor, algorithm: Algorithm, lifted: bool) -> Loss:
    """L, the squared error by default, and the only one that lifted algorithms know."""
    if loss is None:
        return SquaredError()
    loss = check_instance("invert loss", loss, Loss, "a loss", "Try torchlift.losses.Huber(0.1).")
    if lifted and not isinstance(loss, SquaredError):
        hint = "Use algorithm='auto', 'accelerated', 'nested-adam' or 'nested-pdhg'."
        invalid_value(f"invert loss with {type(algorithm).__name__}", "the squared error", type(loss).__name__, hint)
    loss.check(tuple(y.shape), y)
    return loss


def layers_of(network: Network | Joint, algorithm: Algorithm, lifted: bool) -> Layers | None:
    """The unified form; None for several networks together."""
    if isinstance(network, Network):
        return Layers.of(network)
    if lifted:
        hint = "Use algorithm='auto', 'accelerated', 'nested-adam' or 'nested-pdhg'."
        invalid_value(f"invert network with {type(algorithm).__name__}", "one network", "several", hint)
    return None


def check_progress(progress: object, bar: Bar, time_limit: float | None) -> Progress | None:
    """What is called with every record: the user's own function, a bar, or nothing."""
    if isinstance(progress, bool):
        if not progress:
            return None
        bar.start("inverting", time_limit=time_limit)
        count = 0

        def note(record: Record) -> None:
            nonlocal count
            count += 1
            bar.update(count, objective=record.value, running=record.extra.get("running"))

        return note
    if not callable(progress):
        invalid_type("invert progress", "True, False or a function of a record", progress)
    return progress  # pyright: ignore[reportReturnType]


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


def check_algorithm(algorithm: object, tolerance: float | None) -> tuple[Algorithm, int]:
    """An algorithm, with the tolerance if one is given, and its usual number of steps."""
    if isinstance(algorithm, str):
        if algorithm not in ALGORITHMS:
            invalid_value("invert algorithm", f"one of {list(ALGORITHMS)}, or an instance", repr(algorithm))
        kind, steps = ALGORITHMS[algorithm]
        solver = kind()
    elif isinstance(algorithm, InversionSolver | Exact | Automatic):
        solver = algorithm
        steps = next((steps for kind, steps in ALGORITHMS.values() if isinstance(solver, kind)), 500)
    else:
        invalid_type("invert algorithm", f"one of {list(ALGORITHMS)}, or an instance", algorithm)
    if tolerance is not None:
        solver = _with_tolerance(solver, tolerance)
    return solver, steps


def _with_tolerance(solver: Algorithm, tolerance: float) -> Algorithm:
    """An algorithm with another tolerance; what counts as progress shrinks with it."""
    if isinstance(solver, Automatic):
        finish = replace(solver.finish, tolerance=tolerance)
        visible = min(solver.finish.visible, tolerance / 10 or 1.0)
        descent = replace(solver.descent, visible=min(solver.descent.visible, tolerance / 2 or 1.0))
        return replace(solver, finish=replace(finish, visible=visible), descent=descent)
    if isinstance(solver, Exact):
        return replace(solver, tolerance=tolerance)
    solver = replace(solver, tolerance=tolerance)
    return replace(solver, visible=min(solver.visible, tolerance / 10 or 1.0))


def feasible(layers: Layers, y: Tensor, on_infeasible: object) -> tuple[Tensor, int]:
    """The data as the last layer's z, inside the range of its activation, and how many entries had to move.

    Outside the range Ψ(y) = +∞, and so is the distance to every output.
    """
    check_choice("invert on_infeasible", on_infeasible, ("refuse", "project"))
    activation, target = layers.activations[-1], layers.target(y)
    outside = ~in_domain(activation, target).expand_as(target)
    if not bool(outside.any()):
        return target, 0
    position = tuple(outside.nonzero()[0].tolist())
    if on_infeasible == "refuse":
        expected = f"values in the range of {type(activation).__name__}"
        hint = "Pass on_infeasible='project' to move them there."
        invalid_value("invert y", expected, f"{float(target[position]):.6g} at index {position}", hint)
    moved = into_domain(activation, target)
    if not bool(in_domain(activation, moved).all()):
        invalid_value("invert y", f"values near the range of {type(activation).__name__}", "values far from it")
    return moved, int(outside.sum())
