"""The gradients of the contrastive scheme in the form of a sweep, so that they can take the same steps."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.core.solution import Result, SolverError, StepFailure
from torchlift.distributed import Share
from torchlift.objective import free_energy
from torchlift.objective.nudge import NudgeState
from torchlift.objective.objective import Objective
from torchlift.objective.sweep import Sweep
from torchlift.operators import Context


@torch.no_grad()
def contrast(objective: Objective, y: Tensor, x: Tensor, context: Context = None, share: Share | None = None) -> Sweep:
    """∇_θ of min_z [L + E(z; θ)] − min_z E(z; θ), as a mean over the batch.

    Both problems are convex in z and solved from the forward pass; as z is
    optimal in either, only θ itself is differentiated. A dense layer has other
    inputs in the two solutions, so `layers` lists none. The loss is that of
    the network's own output.

    Args:
        objective: one with a contrastive lifting and a smooth loss.
        share: which samples of a batch these are, where many processes share it. Samples do not meet in either
            problem, so each process solves those of its own, to the same precision.
    """
    if not objective.loss.smooth:
        hint = "Use Huber or SquaredError."
        invalid_value("Contrastive lifting, loss", "a smooth loss", type(objective.loss).__name__, hint)
    output = objective.network(y, context)
    objective.loss.check(tuple(output.shape), x, values=False)
    loss = objective.loss.value(output, x).sum() / len(y)
    start = objective.initialise(y, context=context)
    failure, found = None, {}
    try:
        clamped = free_energy.minimise(objective.engine, y, start, context, x)
        found = objective.gradients(y, x, clamped, context, want="parameters").parameters
    except SolverError as error:
        failure = StepFailure(error.result, f"the lifted variables: {error}")
    where = "" if share is None else share.mesh.which(failure is not None)  # all stop together
    if failure is not None:
        raise failure
    if where:
        raise StepFailure(Result.NOT_FINITE, f"the lifted variables on {where}")
    return Sweep(loss, output, found, (), NudgeState(y.new_ones(len(start)))).shared(share)
