"""Lifted gradients for loops of one's own: one call fills `.grad`, any optimiser of torch takes the step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_size, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.tensors import Point
from torchlift.liftings import Lifting
from torchlift.losses import Loss, SquaredError
from torchlift.networks import Chain, Network, lift
from torchlift.objective import Nudge, NudgeState, Objective, TrainingProblem, backward_sweep
from torchlift.operators import Context
from torchlift.prox.base import ActivationModule
from torchlift.solvers import Backtracking, FromBound, ProximalGradient, StepRule


def lifted_gradients(
    module: nn.Sequential | Network,
    y: Tensor,
    x: Tensor,
    loss: Loss | None = None,
    *,
    lifting: Lifting | None = None,
    inner_steps: int = 1,
    nudge: Nudge | None = None,
    context: Context = None,
) -> Tensor:
    """Add a lifted gradient to `.grad` of all parameters; returns the mean loss of N(y) over the batch.

    It stands where `loss.backward()` stood: call `zero_grad` before it and the
    optimiser's `step` after it. Parameters that need no gradient are left alone.

    - Without a lifting, one `backward_sweep`: an estimate of the gradient of
      the mean loss, at the price of back-propagation, exact as the nudges
      vanish. Layers that stay asleep are nudged further from call to call;
      how far is remembered with the module.
    - With a lifting, the lifted variables z start at the forward pass and take
      `inner_steps` rounds of proximal gradient steps on

          E(θ, z) = mean of L(K u + d) + Σ_j D_j(z_j, (W u + b)_j),

      layer by layer from the last to the first, so that one round reaches all
      of them; then `.grad` gets ∇_θ E(θ, z). It is the gradient of E alone, for
      fixed z: with many steps that of min_z E, which tends to that of the mean
      loss as μ → ∞. (The penalties are stationary at the forward pass: without
      any step only the output layer would move.) The distances z − σ(v) shrink
      like 1/μ while the gradient multiplies them by μ, so there is nothing
      to rescale. A round evaluates the gradient in z once per layer.
    - `Conventional()` gives back-propagation, for comparison.

    An `nn.Sequential` is lifted once. Later calls copy its weights into the
    lifted twin, and make a new twin where the structure has changed.

    Arguments:
        module: any network, or an `nn.Sequential` that `lift` accepts, without batch norms.
        y, x: inputs and targets of the batch.
        loss: squared error by default.
        lifting: Bregman(μ), Fenchel(μ), MACQP(μ), Classical(μ) or Conventional(); None for the sweep.
        inner_steps: rounds of steps with a lifting.
        nudge: settings of the sweep.
        context: per-sample context of the operators.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> optimiser = torch.optim.Adam(model.parameters())
        >>> value = lifted_gradients(model, torch.ones(5, 4), torch.ones(5, 2))
        >>> optimiser.step()
    """
    loss = SquaredError() if loss is None else loss
    _check(y, loss, lifting, inner_steps, nudge)
    memory = _remember(module, y)
    network = module if isinstance(module, Network) else memory.twin
    assert network is not None  # `_remember` made one for every nn.Sequential
    if lifting is None:
        sweep = backward_sweep(network, loss, y, x, nudge, memory.nudge, context)
        memory.nudge = sweep.state
        value, found = sweep.loss, sweep.gradients
    else:
        objective = Objective(network, lifting, loss)
        value, found = _at_lifted_states(objective, y, x, inner_steps, context)
    if memory.twin is not None:
        named = memory.twin.scatter(found)
        found = {memory.names[name]: gradient for name, gradient in named.items()}
    _accumulate(module, found)
    return value


def _at_lifted_states(
    objective: Objective, y: Tensor, x: Tensor, rounds: int, context: Context
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean loss, and ∇_θ E after some rounds of steps in z."""
    with torch.no_grad():
        output = objective.network(y, context)
        objective.loss.check(tuple(output.shape), x, values=False)
        value = objective.loss.value(output, x).mean()
    if objective.lifting.hard:
        return value, objective.gradients(y, x, context=context).parameters
    problem = TrainingProblem(objective, y, x, split="layers", context=context)
    point = problem.start()
    blocks = tuple(reversed(problem.rows))
    solvers = {block: ProximalGradient(_rule(problem, point, block), blocks=(block,)) for block in blocks}
    states = {block: solver.init(problem, point) for block, solver in solvers.items()}
    for _ in range(rounds):
        for block, solver in solvers.items():
            states[block] = solver.step(problem, replace(states[block], point=point))
            point = states[block].point
    found = objective.gradients(y, x, problem.states(point), context, want="parameters")
    return value, found.parameters


def _rule(problem: TrainingProblem, point: Point, block: str) -> StepRule:
    """The step of the block's own bound where there is one, else a step found by trial."""
    bound = problem.bound(point, block)
    if bound is not None and math.isfinite(bound):
        return FromBound()
    # E is a mean over the batch, so that steps of the order of its size are a fair first guess
    return Backtracking(float(len(problem.y)))


def _accumulate(module: nn.Module, gradients: dict[str, Tensor]) -> None:
    """As autograd does: the first gradient becomes `.grad`, later ones are added to it."""
    for name, gradient in gradients.items():
        parameter = module.get_parameter(name)
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.add_(gradient)


# -- what is kept for each module -------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Memory:
    """The lifted twin of an `nn.Sequential` with the names of its parameters there, and the sizes of the nudges."""

    signature: tuple[Any, ...]
    twin: Chain | None = None
    names: dict[str, str] = field(default_factory=dict)
    nudge: NudgeState | None = None


#: Nothing here refers to the modules themselves, so that they can be freed.
_MEMORIES: WeakKeyDictionary[nn.Module, _Memory] = WeakKeyDictionary()


def _remember(module: object, y: Tensor) -> _Memory:
    """The memory of a module; a new one where its structure is not what it was."""
    if isinstance(module, Network):
        like = module.like
        signature = () if like is None else (like.dtype, like.device)
    elif isinstance(module, nn.Sequential):
        signature = _signature(module, y)
    else:
        hint = "Wrap it: nn.Sequential(module)." if isinstance(module, nn.Module) else ""
        invalid_type("lifted_gradients module", "an nn.Sequential or a Network", module, hint)
    memory = _MEMORIES.get(module)
    if memory is None or memory.signature != signature:
        memory = _Memory(signature)
        if isinstance(module, nn.Sequential):
            _refuse_learned_activations(module)
            memory.twin = lift(module, tuple(y.shape[1:]))
            ours = memory.twin.scatter(dict(memory.twin.named_parameters()))
            theirs = (name for name, _ in module.named_parameters())
            memory.twin.load(module)  # refuses what has no place of its own in the twin
            memory.names = dict(zip(ours, theirs, strict=True))
        _MEMORIES[module] = memory
    elif memory.twin is not None and isinstance(module, nn.Sequential):
        memory.twin.load(module)
    return memory


def _signature(module: nn.Sequential, y: Tensor) -> tuple[Any, ...]:
    """All that a twin depends on beside the values of the weights."""
    parameters = tuple((id(p), p.dtype, p.device, p.requires_grad) for p in module.parameters())
    modes = tuple(child.training for child in module.modules())
    return repr(module), tuple(y.shape[1:]), modes, parameters


def _refuse_learned_activations(module: nn.Sequential) -> None:
    for where, child in module.named_modules():
        if not isinstance(child, ActivationModule):
            continue
        for name, value in vars(child.activation).items():
            if isinstance(value, Tensor) and value.requires_grad:
                hint = "It is no parameter of the module; detach it, or use LISTA or PrimalDual."
                invalid_value(f"module {where} ({type(child.activation).__name__})", "fixed numbers", name, hint)


def _check(y: object, loss: object, lifting: object, inner_steps: object, nudge: object) -> None:
    check_tensor("lifted_gradients input", y)
    check_size("lifted_gradients inner_steps", inner_steps)
    for name, value, kind in (("loss", loss, Loss), ("lifting", lifting, Lifting), ("nudge", nudge, Nudge)):
        if value is not None and not isinstance(value, kind):
            invalid_type(f"lifted_gradients {name}", f"a {kind.__name__}", value)
    if lifting is None and inner_steps != 1:
        invalid_value("lifted_gradients inner_steps", "1 without a lifting", inner_steps, "Try lifting=Bregman(10.0).")
    if lifting is not None and nudge is not None:
        invalid_value("lifted_gradients nudge", "none together with a lifting", nudge, "The sweep has no lifting.")
