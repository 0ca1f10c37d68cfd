"""From outputs back to inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from torchlift.core.checks import check_positive, check_size
from torchlift.core.progress import Progress as Bar
from torchlift.functions.base import Prior, Split, check_prior
from torchlift.functions.losses import Loss
from torchlift.inversion import validation
from torchlift.inversion.automatic import Automatic, several_starts
from torchlift.inversion.exact import Exact
from torchlift.inversion.joint import choose_jointly
from torchlift.inversion.memory import batch_size
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.result import Inversion, WeightTrace, join
from torchlift.inversion.run import Budget, Progress, run_exact, run_steps
from torchlift.inversion.solver import Nested, Status
from torchlift.inversion.weights import Trial, WeightRule
from torchlift.networks import Network
from torchlift.operators import Context, LinearOperator

#: Weight of the prior where neither a weight nor a noise level is given.
WEIGHT = 0.02


@torch.no_grad()
def invert(
    network: nn.Module | LinearOperator | Sequence[nn.Module],
    y: Tensor | np.ndarray | Sequence[Tensor],
    prior: Prior | None = None,
    weight: float | Tensor | str | WeightRule | None = None,
    *,
    noise_level: float | None = None,
    input_shape: int | Sequence[int] | None = None,
    loss: Loss | None = None,
    algorithm: str | validation.Algorithm = "auto",
    start: Tensor | np.ndarray | Callable[[Tensor], Tensor] | None = None,
    anchor: float | None = None,
    mu: float | Sequence[float] | None = None,
    max_steps: int | None = None,
    tolerance: float | None = None,
    time_limit: float | None = None,
    context: Context = None,
    on_infeasible: Literal["refuse", "project"] = "refuse",
    progress: bool | Progress = True,
    batch_limit: int | None = None,
    memory_limit: float | None = None,
) -> Inversion:
    """Inputs x with N(x) ≈ y that a prior finds likely: for every image, the minimiser of

        L(N(x); y) + weight·R(x) + anchor/2 ‖x − start‖²,   L(p; y) = ½‖p − y‖² unless told otherwise.

    Lifted algorithms ("sweep", "paper", "exact") minimise over x = u_0 and z instead

        Σ_r μ_r B_r(z_r, (W u + b)_r) + weight·R(x) + anchor/2 ‖x − start‖²,   M u = V z,   last z = y.

    Never raises for numerical trouble or Ctrl-C: every image has a status, and one
    that diverges or stalls comes back as its best iterate.

    Arguments:
        network: N, any module in evaluation mode, or a linear operator; one in half precision is inverted, and its
            inputs come back, in single precision; several modules with the same input, such as
            `net.up_to(path)` for features of several layers, are inverted together.
        y: outputs (B, *out_shape), perhaps noisy, a tensor or an array of numpy; one tensor per network.
        prior: R; None for 0.
        weight: a number ≥ 0, one per image (B,), or how to choose it: "sure", "discrepancy" (both need
            `noise_level`), "lcurve", or a rule with other settings. By default chosen by SURE where
            `noise_level` is given, else 0.02.
        noise_level: standard deviation of the noise in each entry of y.
        input_shape: of one input, such as (1, 28, 28); by default that of the start, or the one for which the module
            returns outputs of the shape of y.
        loss: L, such as `tl.losses.Huber(0.1)`.
        algorithm: "auto" (sweeps, then accelerated steps on the network), "accelerated" (those alone), "sweep",
            "paper", "exact" (one layer only), "nested-adam", "nested-pdhg", or an instance with other settings.
        start: first guess of x, or a decoder that makes it from y. By default a few are tried.
        anchor: λ ≥ 0, how strongly x is held at the start; by default 0. With a decoder as the start, a noise
            level and no weight, weight and anchor are chosen together by SURE, for images around the decoder's output
            with its grey levels corrected; without a prior, the anchor alone.
        mu: μ_r > 0, one number or one per layer (an affine map at the end counts); by default 3 for hidden
            layers and 1 for the last.
        max_steps: steps per image; by default the algorithm's usual number.
        tolerance: possible gain relative to the objective (for "exact": relative duality gap) at which an image
            is done, see `InversionSolver`.
        time_limit: seconds for all images together.
        context: per-sample context of the network's operators.
        on_infeasible: what lifted algorithms do with values of y outside the range of a last activation, whose
            distance to every output is infinite: "refuse", or "project" them onto the range.
        progress: show a bar where there is a terminal; or a function that is called with every record and
            stops the inversion by returning True.
        batch_limit: images that are inverted at once; 256 by default.
        memory_limit: bytes to stay below, by inverting fewer images at once; by default half of what is free.

    Example:
        >>> net = tl.lift(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        >>> tl.invert(net, torch.zeros(5, 2), tl.priors.L1()).x.shape
        torch.Size([5, 4])
    """
    solver, usual = validation.check_algorithm(algorithm, tolerance)
    if isinstance(y, np.ndarray) or isinstance(start, np.ndarray):
        y, start = validation.from_numpy(network, y), validation.from_numpy(network, start)
    network, y, start = validation.in_single(network, y, start)
    if context is None and isinstance(solver, Nested | Automatic):  # a context holds statistics fixed
        validation.check_statistics(network)
    net = validation.check_network(network, input_shape, start, y)
    data = validation.check_data(net, y)
    decoder = start if callable(start) and not isinstance(start, Tensor) else None
    guess, strength = validation.check_start(net, data, decoder(data) if decoder else start, anchor)
    problem, projected = _problem(net, data, prior, guess, strength, mu, context, on_infeasible, solver, loss)
    split = problem.split
    steps = usual if max_steps is None else check_size("invert max_steps", max_steps)
    if time_limit is not None:
        check_positive("invert time_limit", time_limit)
    together = weight is None and anchor is None and decoder is not None and noise_level is not None
    if weight is None:
        weight = "sure" if together or (noise_level is not None and prior is not None) else WEIGHT
    weights = validation.check_weight(weight, noise_level, problem.output)
    free = start is None and isinstance(solver, Automatic)
    size, room = batch_size(net, problem, batch_limit, memory_limit, 3 if free else 1)
    deadline = None if time_limit is None else time.monotonic() + time_limit
    with Bar(quiet=progress is not True) as bar:
        budget = Budget(steps, deadline, validation.check_progress(progress, bar, time_limit))
        job, trace = _Job(problem, solver, size, room if free else 0, validation.parameter_count(net)), None
        if isinstance(weights, WeightRule):
            if together and decoder is not None and noise_level is not None:
                exact = isinstance(solver, Exact)
                problem, trace = choose_jointly(job.problem, decoder, noise_level, budget, size, not exact)
                job, weights = replace(job, problem=problem), problem.weight
            else:
                weights, trace = job.choose(weights, noise_level, budget)
        result = job.run(weights, job.problem.guess, budget)
    # error bars are those without entries that are held: nothing says that they are right
    solved = replace(job.problem, weight=weights, split=split)
    return replace(result, weight_trace=trace, projected=projected, problem=solved, noise_level=noise_level)


def _problem(
    net: Network | validation.Joint,
    data: Tensor,
    prior: object,
    guess: Tensor,
    anchor: float,
    mu: object,
    context: Context,
    on_infeasible: object,
    solver: validation.Algorithm,
    loss: Loss | None,
) -> tuple[InversionProblem, int]:
    """The problem of all images, still without weights, and how many entries of y were projected."""
    context = validation.check_context(context, data.shape[0])
    split = Split() if prior is None else check_prior("invert prior", prior).split(net.in_shape)
    lifted = not isinstance(solver, Nested | Automatic)
    term = validation.check_loss(loss, data, solver, lifted)
    layers = validation.layers_of(net, solver, lifted)
    target, projected, curvatures, weights = data, 0, (), ()
    if layers is not None:
        weights = validation.check_mu(mu, layers.count)
        policy = on_infeasible if lifted or on_infeasible not in ("refuse", "project") else "project"
        target, projected = validation.feasible(layers, data, policy)
        if lifted:
            curvatures = tuple(jacobian.curvature(weights, context) for jacobian in layers.jacobians)
    problem = InversionProblem(
        layers=layers,
        target=target,
        output=data,
        split=split,
        weight=data.new_zeros(data.shape[0]),
        mu=weights,
        anchor=anchor,
        guess=guess,
        context=context,
        curvatures=curvatures,
        dual_norm=split.square_norm(),
        loss=term,
        network=net if layers is None else None,
        lifted=lifted,
    )
    return problem, projected if lifted else 0


@dataclass(frozen=True, eq=False)
class _Job:
    """A checked inversion of all images.

    Arguments:
        size: images at once.
        room: inputs that fit into memory, where several starts are to be tried; else 0.
        parameters: of the network.
    """

    problem: InversionProblem
    algorithm: validation.Algorithm
    size: int
    room: int
    parameters: int

    def run(self, weight: Tensor, start: Tensor, budget: Budget) -> Inversion:
        """Invert all images, batch after batch; after Ctrl-C, what is left comes back as it started."""
        problem, parts = replace(self.problem, weight=weight), []
        for index in torch.arange(problem.batch, device=start.device).split(self.size):
            part = problem if len(index) == problem.batch else problem.select(index)
            try:
                parts.append(self._run(part, start[index], budget))
            except KeyboardInterrupt:
                parts.append(self._run(part, start[index], replace(budget, max_steps=0)))
            if bool((parts[-1].status == Status.STOPPED).any()):
                budget = replace(budget, max_steps=0)
        return join(parts)

    def _run(self, problem: InversionProblem, start: Tensor, budget: Budget) -> Inversion:
        if isinstance(self.algorithm, Exact):
            return run_exact(problem, self.algorithm, start, budget)
        if isinstance(self.algorithm, Automatic):
            layers = problem.layers
            several = self.room > 0 and budget.max_steps > 1
            if several and layers is not None and layers.is_convex(start, problem.context):
                several = False  # there is one solution, which every start leads to
            starts = several_starts(problem, self.room, self.parameters) if several else (start,)
            return self.algorithm.run(problem, starts, budget)
        return run_steps(problem, self.algorithm, start, budget)

    def choose(self, rule: WeightRule, noise_level: float | None, budget: Budget) -> tuple[Tensor, WeightTrace]:
        """The weights that a rule chooses."""
        problem = self.problem
        # trials make the same number of steps for all images: differences between them are compared
        steady = self.algorithm
        if isinstance(steady, Automatic):
            steady = replace(steady.finish, tolerance=0.0)
        elif not isinstance(steady, Exact):
            steady = replace(steady, tolerance=0.0)

        def attempt(weight: Tensor, start: Tensor, steps: int, y: Tensor | None = None) -> Inversion:
            moved = problem
            if y is not None:
                target, _ = (y, 0) if problem.layers is None else validation.feasible(problem.layers, y, "project")
                moved = replace(problem, target=target, output=y)
            job = replace(self, problem=moved, algorithm=steady, room=0)
            return job.run(weight, start, replace(budget, max_steps=min(steps, budget.max_steps)))

        def output(x: Tensor) -> Tensor:
            parts = torch.arange(problem.batch, device=x.device).split(self.size)
            return torch.cat([problem.select(index).forward(x[index]) for index in parts])

        def prior(x: Tensor) -> Tensor:
            return problem.split.value(x, problem.split.products(x))

        start = problem.guess
        if self.room:
            # a trial must not begin where gradients vanish
            start = self.run(problem.weight + WEIGHT, start, replace(budget, max_steps=min(60, budget.max_steps))).x
        return rule.choose(Trial(problem.output, start, noise_level, attempt, output, prior))
