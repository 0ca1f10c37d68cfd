"""The gradient of the contrastive scheme."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.core.shard import WHOLE, Shard
from torchlift.core.solution import Result, SolverError, StepFailure
from torchlift.objective import free_energy
from torchlift.objective.stage import Stage
from torchlift.operators import Context


@torch.no_grad()
def contrast(
    stage: Stage,
    y: Tensor,
    x: Tensor,
    context: Context = None,
    shard: Shard = WHOLE,
    expired: Callable[[], bool] = lambda: False,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """∇_θ of min_z [L + E(z; θ)] − min_z E(z; θ), as a mean over the batch.

    Both problems are convex in z and solved from the forward pass; as z is
    optimal in either, only θ itself is differentiated. Returns the loss of the
    network's own output, this output (empty where it is with another process)
    and the gradients by name.

    Arguments:
        stage: the layers here, of an objective with a contrastive lifting and a smooth loss; the gradients are those
            of their parameters.
        shard: which samples of the batch these are; all processes solve both problems together, see
            `free_energy.minimise`.
        expired: whether the time is up, asked in every step of both minimisations.
    """
    objective = stage.whole
    if not objective.loss.smooth:
        hint = "Use Huber or SquaredError."
        invalid_value("Contrastive lifting, loss", "a smooth loss", type(objective.loss).__name__, hint)
    output = stage.forward(y, context)
    loss = y.new_zeros(())  # where the output is elsewhere
    if output is not None:
        objective.loss.check(tuple(output.shape), x, values=False)
        loss = objective.loss.value(output, x).sum() / len(y)
    stage.sum_(loss)
    mean = shard.mean(loss)
    if not bool(mean.isfinite()):  # no minimisation starts there; all processes fail together
        ranks = shard.which(shard.counted and not bool(loss.isfinite()))
        raise StepFailure(Result.NOT_FINITE, f"the loss is {float(mean)}{ranks and f', on {ranks}'}")
    start = stage.initialise(y, "forward", context)
    local, inputs = stage.objective, stage.room(y)
    assert local.free is not None  # since the lifting is contrastive
    try:
        clamped = free_energy.minimise(local.engine, inputs, start, context, x, shard, expired)
        free = free_energy.minimise(local.free, inputs, start, context, shard=shard, expired=expired)
    except SolverError as error:  # on all processes alike
        raise StepFailure(error.result, f"the lifted variables: {error}") from error
    gradients = local.gradients(inputs, x, clamped, context, want="parameters", free=free).parameters
    shard.mean_(loss, *gradients.values())
    return loss, y.new_empty(0) if output is None else output, gradients
