"""The gradient of the contrastive scheme."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.core.solution import Result, SolverError, StepFailure
from torchlift.objective import free_energy
from torchlift.objective.layer_part import LayerPart
from torchlift.objective.objective import Objective
from torchlift.operators import Context
from torchlift.parallel import Share


@torch.no_grad()
def contrast(
    objective: Objective,
    y: Tensor,
    x: Tensor,
    context: Context = None,
    share: Share | None = None,
    part: LayerPart | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """∇_θ of min_z [L + E(z; θ)] − min_z E(z; θ), as a mean over the batch.

    Both problems are convex in z and solved from the forward pass; as z is
    optimal in either, only θ itself is differentiated. Returns the loss of the
    network's own output, this output (empty where it is with another process)
    and the gradients by name.

    Arguments:
        objective: one with a contrastive lifting and a smooth loss.
        share: which samples of a batch these are, where many processes share it; all of them solve both problems
            together, see `free_energy.minimise`.
        part: this process's layers, where those are shared too; the gradients are those of its parameters.
    """
    if not objective.loss.smooth:
        hint = "Use Huber or SquaredError."
        invalid_value("Contrastive lifting, loss", "a smooth loss", type(objective.loss).__name__, hint)
    output = objective.network(y, context) if part is None else part.forward(y, context)
    loss = y.new_zeros(())  # where the output is elsewhere
    if output is not None:
        objective.loss.check(tuple(output.shape), x, values=False)
        loss = objective.loss.value(output, x).sum() / len(y)
    if part is not None:
        part.mesh.sum_(loss, "layers")
    _refuse_infinite(loss, share)
    start = objective.initialise(y, context=context) if part is None else part.initialise(y, "forward", context)
    local, inputs = (objective, y) if part is None else (part.objective, part.room(y))
    assert local.free is not None  # since the lifting is contrastive
    try:
        clamped = free_energy.minimise(local.engine, inputs, start, context, x, share)
        free = free_energy.minimise(local.free, inputs, start, context, share=share)
    except SolverError as error:  # on all processes alike
        raise StepFailure(error.result, f"the lifted variables: {error}") from error
    found = local.gradients(inputs, x, clamped, context, want="parameters", free=free).parameters
    if share is not None:
        share.mean_(loss, *found.values())
    return loss, y.new_empty(0) if output is None else output, found


def _refuse_infinite(loss: Tensor, share: Share | None) -> None:
    """No minimisation starts there; all processes find out together."""
    total = loss if share is None else share.mean(loss)
    if not bool(total.isfinite()):
        found = "" if share is None else share.mesh.which(share.count > 0 and not bool(loss.isfinite()))
        raise StepFailure(Result.NOT_FINITE, f"the loss is {float(total)}{found and f', on {found}'}")
