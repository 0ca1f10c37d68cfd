"""From outputs back to inputs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_positive, check_size
from torchlift.functions.base import Prior, Split, check_prior
from torchlift.inversion import door
from torchlift.inversion.layers import Layers
from torchlift.inversion.nested import Nested
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.result import Inversion, WeightTrace, join
from torchlift.inversion.run import Budget, Progress, run
from torchlift.inversion.state import Status
from torchlift.inversion.weights import Trial, WeightRule
from torchlift.networks import Network
from torchlift.operators import Context


@torch.no_grad()
def invert(
    network: Network | nn.Sequential,
    y: Tensor,
    prior: Prior | None = None,
    weight: float | Tensor | str | WeightRule = 0.02,
    *,
    noise_level: float | None = None,
    algorithm: str | door.Algorithm = "sweep",
    start: Tensor | None = None,
    anchor: float = 0.0,
    mu: float | Sequence[float] | None = None,
    max_steps: int | None = None,
    tolerance: float | None = None,
    time_limit: float | None = None,
    context: Context = None,
    on_infeasible: Literal["refuse", "project"] = "refuse",
    progress: Progress | None = None,
    batch_limit: int | None = None,
    memory_limit: float | None = None,
) -> Inversion:
    """Inputs x with N(x) ≈ y that a prior finds likely: for every image, the minimiser over x = u_0 and z of

        Σ_r μ_r B_r(z_r, (W u + b)_r) + weight·R(x) + anchor/2 ‖x − start‖²,   M u = V z,   last z = y.

    Never raises for numerical trouble: every image has a status, and one that
    diverges or stalls comes back as its best iterate.

    Args:
        network: N, in evaluation mode.
        y: outputs (B, *out_shape), perhaps noisy. Values outside the range of a last activation have an
            infinite distance to every output.
        prior: R; None for 0.
        weight: a number ≥ 0, one per image (B,), or how to choose it: "sure", "discrepancy" (both need
            `noise_level`), "lcurve", or a rule with other settings.
        noise_level: standard deviation of the noise in each entry of y.
        algorithm: "sweep" (the default), "paper", "exact" (one layer only), "nested-adam", "nested-pdhg", or
            an instance with other settings.
        start: first guess of x, such as a decoder's output; zeros by default.
        anchor: λ ≥ 0, how strongly x is held at the start.
        mu: μ_r > 0, one number or one per layer (an affine map at the end counts); by default 3 for hidden
            layers and 1 for the last.
        max_steps: steps per image; by default the algorithm's usual number.
        tolerance: relative change (for "exact": relative duality gap) at which an image is done.
        time_limit: seconds for all images together.
        context: per-sample context of the network's operators.
        on_infeasible: "refuse" values of y outside the range of a last activation, or "project" them onto it.
        progress: called with every record; returning True stops the inversion.
        batch_limit: images that are inverted at once; 256 by default.
        memory_limit: bytes to stay below, by inverting fewer images at once; by default half of what is free.

    Example:
        >>> net = tl.lift(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        >>> tl.invert(net, torch.zeros(5, 2), tl.priors.L1()).x.shape
        torch.Size([5, 4])
    """
    solver, usual = door.check_algorithm(algorithm)
    bounded = not isinstance(solver, Nested)
    problem, projected = _problem(network, y, prior, start, anchor, mu, context, on_infeasible, bounded)
    if tolerance is not None:
        solver = replace(solver, tolerance=tolerance)
    steps = usual if max_steps is None else check_size("invert max_steps", max_steps)
    if time_limit is not None:
        check_positive("invert time_limit", time_limit)
    weights = door.check_weight(weight, noise_level, problem.output)
    budget = Budget(steps, None if time_limit is None else time.monotonic() + time_limit, progress)
    job, trace = _Job(problem, solver, _batch_size(problem, batch_limit, memory_limit)), None
    if isinstance(weights, WeightRule):
        weights, trace = job.choose(weights, noise_level, budget)
    return replace(job.run(weights, problem.guess, budget), weight_trace=trace, projected=projected)


def _problem(
    network: object,
    y: object,
    prior: object,
    start: object,
    anchor: object,
    mu: object,
    context: Context,
    on_infeasible: object,
    bounded: bool,
) -> tuple[InversionProblem, int]:
    """The problem of all images, still without weights, and how many entries of y were projected.

    Only where steps are bounded by norms of operators must these exist, at a context.
    """
    net = door.check_network(network, start)
    data = door.check_data(net, y)
    guess, strength = door.check_start(net, data, start, anchor)
    context = door.check_context(context, data.shape[0])
    split = Split() if prior is None else check_prior("invert prior", prior).split(net.in_shape)
    layers = Layers.of(net)
    weights = door.check_mu(mu, layers.count)
    target, projected = door.feasible(layers, data, on_infeasible)
    problem = InversionProblem(
        layers=layers,
        target=target,
        output=data,
        split=split,
        weight=data.new_zeros(data.shape[0]),
        mu=weights,
        anchor=strength,
        guess=guess,
        context=context,
        curvatures=tuple(each.curvature(weights, context) for each in layers.influences) if bounded else (),
        dual_norm=split.square_norm(),
    )
    return problem, projected


def _batch_size(problem: InversionProblem, batch_limit: int | None, memory_limit: float | None) -> int:
    """How many images to invert at once."""
    most = door.BATCH if batch_limit is None else check_size("invert batch_limit", batch_limit)
    free = _free_memory(problem.guess) / 2
    limit = free if memory_limit is None else check_positive("invert memory_limit", memory_limit)
    duals = [term.operator.out_shape for term in problem.split.terms if term.operator is not None]
    shape, itemsize = tuple(problem.guess.shape[1:]), problem.guess.element_size()
    fits = int(limit // door.memory_per_image(problem.layers, shape, duals, itemsize))
    return max(1, min(problem.batch, fits, most))


@dataclass(frozen=True, eq=False)
class _Job:
    """A checked inversion of all images, `size` of them at once."""

    problem: InversionProblem
    algorithm: door.Algorithm
    size: int

    def run(self, weight: Tensor, start: Tensor, budget: Budget) -> Inversion:
        """Invert all images, batch after batch."""
        problem, parts = replace(self.problem, weight=weight), []
        for index in torch.arange(problem.batch, device=start.device).split(self.size):
            part = problem if len(index) == problem.batch else problem.select(index)
            parts.append(run(part, self.algorithm, start[index], budget))
            if bool((parts[-1].status == Status.STOPPED).any()):
                budget = replace(budget, max_steps=0)
        return join(parts)

    def choose(self, rule: WeightRule, noise_level: float | None, budget: Budget) -> tuple[Tensor, WeightTrace]:
        """The weights that a rule chooses."""
        problem = self.problem
        # trials make the same number of steps for all images: differences between them are compared
        steady = self.algorithm if isinstance(self.algorithm, door.Exact) else replace(self.algorithm, tolerance=0.0)

        def attempt(weight: Tensor, start: Tensor, steps: int, y: Tensor | None = None) -> Inversion:
            moved = problem
            if y is not None:
                target, _ = door.feasible(problem.layers, y, "project")
                moved = replace(problem, target=target, output=y)
            job = replace(self, problem=moved, algorithm=steady)
            return job.run(weight, start, replace(budget, max_steps=min(steps, budget.max_steps)))

        def output(x: Tensor) -> Tensor:
            parts = torch.arange(problem.batch, device=x.device).split(self.size)
            return torch.cat([problem.select(index).forward(x[index]) for index in parts])

        def prior(x: Tensor) -> Tensor:
            return problem.split.value(x, problem.split.products(x))

        return rule.choose(Trial(problem.output, problem.guess, noise_level, attempt, output, prior))


def _free_memory(like: Tensor) -> float:
    """Free bytes on the device of a tensor."""
    if like.device.type == "cuda":
        return float(torch.cuda.mem_get_info(like.device)[0])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
