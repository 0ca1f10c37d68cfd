"""Network + lifting + loss: values, gradients and proximal steps of the training objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from torchlift.core.checks import check_batch, check_choice, check_instance, check_like, check_positive
from torchlift.core.errors import invalid_value
from torchlift.core.tensors import copy_into
from torchlift.functions.losses import Loss, SquaredError
from torchlift.functions.regularisers import Regulariser
from torchlift.liftings import Bregman, Classical, Lifting
from torchlift.networks import Network
from torchlift.objective import combined, free_energy
from torchlift.objective.engine import (
    ENGINES,
    Engine,
    Gradients,
    Layout,
    Setting,
    StackedEngine,
    States,
    Want,
)
from torchlift.objective.engine.general import vjp
from torchlift.objective.latent_cache import initialise
from torchlift.objective.report import Report
from torchlift.objective.zero_loss import ZeroLoss, clamped
from torchlift.operators import Context
from torchlift.prox import ProximalActivation

CoordinateKind: TypeAlias = Literal["states", "errors"]


class Objective:
    """The mean over samples of L(K u + d) + C(M u, V z) + Σ_j D_j(z_j, (W u + b)_j), plus regularisers.

    Arguments:
        network: any network in the unified form.
        lifting: how z = σ(W u + b) is relaxed; Bregman by default.
        loss: L; squared error by default. `Target` with `Contrastive` clamps the outputs, see `clamped`.
        coupling: None for the hard constraint M u = V z, which eliminates u;
            a number ρ for C = ρ/2 ‖M u − V z‖², with u free.
        states: a regulariser on all hidden variables, or {layer: regulariser} counted from 1.
        parameters: {pattern: regulariser} for parameter names, such as {"*weight": Ridge(1e-4)}.
        engine: "auto", "stacked" or "general".
        state_dtype: dtype in which lifted variables are stored; computations
            keep the dtype of the network.
        coordinates: what solvers move: "states" z, or "errors" e = z − σ(W u + b), by which the loss reaches all
            layers in one evaluation; see `ErrorProblem`. Values and gradients of this class are in z in any case.
    """

    def __init__(
        self,
        network: Network,
        lifting: Lifting | None = None,
        loss: Loss | None = None,
        *,
        coupling: float | None = None,
        states: Regulariser | Mapping[int, Regulariser] | None = None,
        parameters: Mapping[str, Regulariser] | None = None,
        engine: str = "auto",
        state_dtype: torch.dtype | None = None,
        coordinates: CoordinateKind = "states",
    ) -> None:
        self.network = check_instance("Objective network", network, Network)
        self.lifting: Lifting = check_instance("Objective lifting", Bregman() if lifting is None else lifting, Lifting)
        loss = check_instance("Objective loss", SquaredError() if loss is None else loss, Loss)
        self.loss: Loss = clamped(network, self.lifting, loss)
        self.coupling = None if coupling is None else check_positive("Objective coupling", coupling)
        self.state_dtype = state_dtype
        self._like = network.like
        form = network.operators()
        for activation in form.activations:
            self.lifting.check(activation)
        setting = Setting(self.lifting, self.loss, self.lifting.weights(form.depth), self.coupling)
        self.engine = _engine(engine, network, setting)
        self.layout = self.engine.layout
        self.u_layout = None if self.coupling is None else Layout(form.W.column_shapes[1:])
        """Where u_1, …, u_J lie; None where the coupling is hard."""
        self.dense_engine = _dense_engine(self.engine)
        """The engine of a chain of dense layers, whose weights have exact steps; None for other networks."""
        free = replace(setting, loss=ZeroLoss())
        self.free = type(self.engine)(network, free) if self.lifting.contrastive else None
        """The engine of the free energy; None unless the lifting is contrastive."""
        self.state_regularisers = self._on_states(states)
        self.parameter_regularisers = self._on_parameters(parameters or {})
        self.coordinates: CoordinateKind = coordinates
        check_choice("Objective coordinates", coordinates, get_args(CoordinateKind))
        if coordinates == "errors":
            self._check_errors()

    # -- lifted variables ---------------------------------------------------------------------------------------------

    def initialise(
        self, y: Tensor, how: str = "forward", *, context: Context = None, generator: torch.Generator | None = None
    ) -> States:
        """Lifted variables for a batch: "forward" (the network's own), "input" (y in every layer) or "random".

        See `torchlift.objective.latent_cache.initialise` for what happens where widths differ.
        """
        self._check_input(y)
        free_u = self.coupling is not None
        return initialise(self.network, self.layout, y, how, context, generator, self.state_dtype, free_u)

    # -- values -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def value(self, y: Tensor, x: Tensor, z: States | None = None, context: Context = None) -> Tensor:
        """The objective as a 0-d tensor; +∞ off the domain of a penalty."""
        batch = len(self._check_input(y))
        if z is None:
            self._need_states()
            output = self.network(y, context)
            return self._loss_value(output, x).sum() / batch + self._parameter_value(output)
        self._check_states(z, batch)
        total = self._sum(y, x, z, context, self.lifting.value)
        value = (total + self._state_value(z, total)) / batch + self._parameter_value(total)
        return value if self.free is None else value - self._free_value(y, context)

    @torch.no_grad()
    def smooth_value(self, y: Tensor, x: Tensor, z: States, context: Context = None) -> float:
        """The part of the objective that `gradients` belongs to; finite for all z."""
        total = self._sum(y, x, z, context, self.lifting.smooth_value)
        total = total + self._state_value(z, total, smooth=True)
        return float(total / len(y) + self._parameter_value(total, smooth=True))

    @torch.no_grad()
    def nonsmooth_value(self, z: States) -> float:
        """The part that `prox_states` and `prox_parameters` belong to."""
        activations, weights = self.network.operators().activations, self.engine.setting.weights
        total = z.storage[0].new_zeros((), dtype=self._dtype(z.storage[0])) if z.storage else torch.zeros(())
        for layer, activation, weight in zip(z, activations, weights, strict=True):
            total = total + self.lifting.nonsmooth_value(activation, layer.to(total.dtype), weight).sum()
        total = total + self._state_value(z, total, smooth=False)
        return float(total / max(z.batch, 1) + self._parameter_value(total, smooth=False))

    @torch.no_grad()
    def report(self, y: Tensor, x: Tensor, z: States, context: Context = None) -> Report:
        """The objective split into loss, coupling, one penalty per layer and the feasibility gaps."""
        batch = len(self._check_input(y))
        self._check_states(z, batch)
        seen = self.engine.evaluate(y, z, context)
        penalties: list[float] = []
        gaps: list[float] = []
        for part in seen.parts:
            terms = self.lifting.value(part.activation, part.z, part.v, part.weight)
            penalties += (part.per_layer(terms) / batch).tolist()
            gaps += (part.per_layer((part.z - part.activation(part.v)).square()) / batch).sqrt().tolist()
        squares = sum(float(residual.square().sum()) for residual in seen.coupling)
        extra = float(self._state_value(z, seen.output)) / batch + float(self._parameter_value(seen.output))
        return Report(
            loss=float(self._loss_value(seen.output, x).sum()) / batch,
            coupling=0.5 * (self.coupling or 0.0) * squares / batch,
            penalties=tuple(penalties),
            regularisation=extra,
            free_energy=float(self._free_value(y, context)) if self.free is not None else 0.0,
            gaps=tuple(gaps),
        )

    def activations(self, y: Tensor, z: States, context: Context = None, out: States | None = None) -> States:
        """σ(W u + b) for all layers at the given lifted variables: what z would be if every layer were consistent."""
        self._check_states(z, len(self._check_input(y)))
        return self.engine.activations(y, z, context, out)

    # -- gradients and proximal steps ---------------------------------------------------------------------------------

    def gradients(
        self,
        y: Tensor,
        x: Tensor,
        z: States | None = None,
        context: Context = None,
        out: Gradients | None = None,
        want: Want = "both",
        free: States | None = None,
    ) -> Gradients:
        """Gradients of everything that is smooth, in the lifted variables and in the parameters.

        Arguments:
            out: gradients of an earlier call on a batch of the same size, to be overwritten.
            want: "states" or "parameters" to leave the other half out.
            free: minimiser of the free energy, for contrastive objectives; found here by default.
        """
        batch = len(self._check_input(y))
        with torch.no_grad():
            if z is None:
                self._need_states()
                result = self._back_propagate(y, x, context)
            else:
                self._check_states(z, batch)
                result = self.engine.gradients(y, x, z, context, out, want)
                for layer, regulariser in self.state_regularisers.items():
                    if regulariser.smooth:
                        slot = result.z[layer - 1]
                        slot.add_(regulariser.grad(z[layer - 1].to(slot.dtype)) / batch)
                if self.free is not None and want != "states":
                    self._subtract_free_gradients(y, context, result, free)
            self.add_parameter_gradients(result.parameters)
        return result

    def add_parameter_gradients(self, gradients: dict[str, Tensor]) -> None:
        """Add those of the smooth regularisers on parameters, by name."""
        for name, regulariser in self.parameter_regularisers.items():
            if regulariser.smooth and name in gradients:
                gradients[name] = gradients[name] + regulariser.grad(self.network.get_parameter(name).detach())

    @torch.no_grad()
    def prox_states(self, z: States, step: float | Tensor) -> States:
        """argmin_p ½‖p − z‖² + step · (the part of the objective that is not smooth in z)."""
        result = z.clone()
        layers = [layer.to(self._dtype(layer)) for layer in z]
        moved = self.prox_layers(range(len(z)), layers, [step] * len(z))
        copy_into(moved, result)
        return result

    def prox_layers(
        self,
        rows: Sequence[int],
        layers: Sequence[Tensor],
        steps: Sequence[float | Tensor],
        others: Mapping[int, ProximalActivation] | None = None,
    ) -> list[Tensor]:
        """`prox_states` for some layers, counted from 0, each with its own step.

        Arguments:
            others: activations in place of the network's own, by layer.
        """
        activations, weights = self.network.operators().activations, self.engine.setting.weights
        moved = []
        for row, layer, step in zip(rows, layers, steps, strict=True):
            regulariser, share = self.state_regularisers.get(row + 1), step / layer.shape[0]
            activation = (others or {}).get(row, activations[row])
            moved.append(combined.prox(self.lifting, activation, regulariser, layer, share, weights[row]))
        return moved

    @torch.no_grad()
    def prox_parameters(
        self, parameters: Mapping[str, Tensor], step: float | Tensor | Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The proximal map of step · (regularisers that are not smooth), by parameter name.

        Arguments:
            step: one for all, or {name: tensor} that broadcasts against the parameter.
        """
        result = dict(parameters)
        for name, regulariser in self.parameter_regularisers.items():
            if name in result and not regulariser.smooth:
                size = step[name] if isinstance(step, Mapping) else step
                result[name] = regulariser.prox(result[name], size)
        return result

    # -- details ------------------------------------------------------------------------------------------------------

    def _on_states(self, given: Regulariser | Mapping[int, Regulariser] | None) -> dict[int, Regulariser]:
        depth = len(self.layout.shapes)
        table = {j + 1: given for j in range(depth)} if isinstance(given, Regulariser) else dict(given or {})
        activations = self.network.operators().activations
        for layer, regulariser in table.items():
            if layer not in range(1, depth + 1):
                invalid_value("Objective states", f"layers from 1 to {depth}", layer)
            check_instance(f"regulariser of layer {layer}", regulariser, Regulariser)
            combined.check(self.lifting, activations[layer - 1], regulariser, layer)
        return table

    def _check_errors(self) -> None:
        """Refuse what error coordinates cannot hold."""
        where, lifting = "coordinates='errors'", self.lifting
        if lifting.hard or lifting.contrastive:
            invalid_value(where, "a lifting with free states", type(lifting).__name__, "Use Bregman or MACQP.")
        if isinstance(lifting, Classical) and set(self.engine.setting.weights) != {1.0}:
            hint = "Use mu=1, or Bregman, which σ(v) minimises for every weight."
            invalid_value(where, "a lifting that σ(v) minimises", f"Classical with mu={lifting.mu}", hint)
        if self.coupling is not None:
            hint = "Leave coupling out: z then moves u, and with it all later layers."
            invalid_value(where, "the hard coupling M u = V z", f"coupling={self.coupling:g}", hint)
        for layer, regulariser in self.state_regularisers.items():
            if not regulariser.smooth:
                got = f"{type(regulariser).__name__} on layer {layer}"
                invalid_value(where, "smooth regularisers on lifted variables", got, "Try Ridge.")

    def _on_parameters(self, patterns: Mapping[str, Regulariser]) -> dict[str, Regulariser]:
        names = [name for name, _ in self.network.named_parameters()]
        table: dict[str, Regulariser] = {}
        for pattern, regulariser in patterns.items():
            check_instance(f"regulariser of {pattern!r}", regulariser, Regulariser)
            matched = [name for name in names if fnmatchcase(name, pattern)]
            if not matched:
                invalid_value("Objective parameters", f"a pattern that matches one of {names}", repr(pattern))
            table |= dict.fromkeys(matched, regulariser)
        return table

    def _loss_value(self, output: Tensor, x: Tensor) -> Tensor:
        self.loss.check(tuple(output.shape), x, values=False)
        return self.loss.value(output, x)

    def _sum(self, y: Tensor, x: Tensor, z: States, context: Context, penalty: Callable[..., Tensor]) -> Tensor:
        """Loss, penalties and coupling, summed over the samples."""
        seen = self.engine.evaluate(y, z, context)
        total = self._loss_value(seen.output, x).sum()
        for part in seen.parts:
            total = total + penalty(part.activation, part.z, part.v, part.weight).sum()
        for residual in seen.coupling:
            total = total + 0.5 * (self.coupling or 0.0) * residual.square().sum()
        return total

    def _state_value(self, z: States, like: Tensor, smooth: bool | None = None) -> Tensor:
        """The regularisers on states: all, or only those that are (not) smooth."""
        chosen = [(layer, r) for layer, r in self.state_regularisers.items() if smooth in (None, r.smooth)]
        values = [regulariser.value(z[layer - 1].to(like.dtype)).sum() for layer, regulariser in chosen]
        return torch.stack(values).sum() if values else like.new_zeros(())

    def _parameter_value(self, like: Tensor, smooth: bool | None = None) -> Tensor:
        """The regularisers on parameters: all, or only those that are (not) smooth."""
        chosen = [(name, r) for name, r in self.parameter_regularisers.items() if smooth in (None, r.smooth)]
        values = [r.value(self.network.get_parameter(name).detach()).sum() for name, r in chosen]
        return torch.stack(values).sum() if values else like.new_zeros(())

    def _subtract_free_gradients(self, y: Tensor, context: Context, result: Gradients, free: States | None) -> None:
        """The contrastive scheme: minus the gradient at the free solution."""
        assert self.free is not None  # contrastive objectives only
        if free is None:
            free = free_energy.minimise(self.free, y, self._forward_states(y, context), context)
        for name, grad in self.free.gradients(y, y, free, context, want="parameters").parameters.items():
            result.parameters[name] = result.parameters[name] - grad

    def _back_propagate(self, y: Tensor, x: Tensor, context: Context) -> Gradients:
        parameters = dict(self.engine.trainable())
        with torch.enable_grad():
            output = self.network(y, context)
        cotangent = self.loss.grad(output.detach(), x) / len(y)
        gradients = vjp([(output, cotangent)], list(parameters.values()))
        states = States(replace(self.layout, shapes=(), holds_input=False), ())
        return Gradients(states, dict(zip(parameters, gradients, strict=True)))

    def _forward_states(self, y: Tensor, context: Context) -> States:
        return initialise(self.network, self.layout, y, "forward", context)

    def _free_value(self, y: Tensor, context: Context) -> Tensor:
        """The minimal free energy, as a mean over samples."""
        assert self.free is not None  # contrastive objectives only
        z = free_energy.minimise(self.free, y, self._forward_states(y, context), context)
        parts = self.free.evaluate(y, z, context).parts
        values = [self.lifting.value(part.activation, part.z, part.v, part.weight).sum() for part in parts]
        return torch.stack(values).sum() / len(y)

    def _dtype(self, layer: Tensor) -> torch.dtype:
        return layer.dtype if self._like is None else self._like.dtype

    def _check_input(self, y: Tensor) -> Tensor:
        check_batch("Objective input", y, self.network.in_shape)
        return y if self._like is None else check_like("Objective input", y, self._like)

    def _check_states(self, z: States, batch: int) -> None:
        check_instance("Objective states", z, States).check(self.layout, batch)
        if (self.coupling is not None) != (z.u is not None):
            expected = "states with u" if self.coupling is not None else "states without u"
            invalid_value("Objective states", expected, "the other kind", "Use this objective's `initialise`.")
        if self.lifting.hard:
            hint = "Call it without states; the network computes them."
            invalid_value("Conventional lifting", "no lifted variables", "states", hint)

    def _need_states(self) -> None:
        if not self.lifting.hard:
            name = type(self.lifting).__name__
            invalid_value(f"{name} lifting", "lifted variables", "none", "Get them from `initialise(y)`.")


def _engine(name: str, network: Network, setting: Setting) -> Engine:
    check_choice("Objective engine", name, ("auto", *ENGINES))
    stackable = StackedEngine.serves(network, setting.coupling)
    if name == "stacked" and not stackable:
        expected = "a chain (u = z) with fixed activations and hard coupling"
        invalid_value("stacked engine", expected, type(network).__name__, "Use engine='auto'.")
    if name == "auto":
        name = "stacked" if stackable else "general"
    return ENGINES[name](network, setting)


def _dense_engine(engine: Engine) -> StackedEngine | None:
    if not isinstance(engine, StackedEngine):
        setting = replace(engine.setting, coupling=None)
        if engine.setting.coupling is None or not StackedEngine.serves(engine.network, None):
            return None
        engine = StackedEngine(engine.network, setting)
    return None if engine.needs_form else engine
