"""The gradients of back-propagation in the form of a sweep, so that both can take the same steps."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.distributed import Share
from torchlift.losses import Loss
from torchlift.networks import Network
from torchlift.objective.nudge import NudgeState
from torchlift.objective.sweep import LayerStep, Sweep
from torchlift.operators import Context


def back_propagate(
    network: Network, loss: Loss, y: Tensor, x: Tensor, context: Context = None, share: Share | None = None
) -> Sweep:
    """The gradient of the mean loss of N(y) in all parameters, by automatic differentiation.

    Args:
        share: which samples of a batch these are, where many processes share it.
    """
    trainable = {name: p for name, p in network.named_parameters() if p.requires_grad}
    runs = [*network.dense_runs(), *(() if (tail := network.output_run()) is None else (tail,))]
    with torch.enable_grad():
        # With y tracked, frozen layers have residuals too; the gradient in y itself is never formed.
        states = network.states(y.detach().requires_grad_(), context)
    output = states.output.detach()
    loss.check(tuple(output.shape), x, values=False)
    rows = [*states.v, states.output]
    reached = [rows[run.start + i] for run in runs for i in range(run.count)]
    cotangent = loss.grad(output, x)
    found = torch.autograd.grad(states.output, [*trainable.values(), *reached], cotangent, allow_unused=True)
    gradients = {
        name: torch.zeros_like(p) if g is None else g.div_(len(y))
        for (name, p), g in zip(trainable.items(), found[: len(trainable)], strict=True)
    }
    residuals = iter(found[len(trainable) :])
    layers = [
        LayerStep(
            run.weight_name,
            None if run.bias is None else run.bias_name,
            i,
            states.u[run.start + i].detach(),
            torch.zeros_like(rows[run.start + i]) if (r := next(residuals)) is None else r,
        )
        for run in runs
        for i in range(run.count)
    ]
    nothing = NudgeState(y.new_ones(len(states.v)))
    value = loss.value(output, x).sum() / len(y)
    return Sweep(value, output, gradients, tuple(layers), nothing).shared(share)
