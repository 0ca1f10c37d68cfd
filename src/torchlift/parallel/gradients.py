"""The way back through a network, whose gradients go to the other processes while it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from torchlift.core.shard import Shard


def backward(loss: Tensor, parameters: Iterable[Tensor], shard: Shard) -> None:
    """`loss.backward()`, after which the loss and all gradients are sums over the samples of all processes.

    The sum of a gradient begins once it is complete and those of all later parameters have begun, so that the order
    is the same on all processes, whatever their samples lead through. A parameter without gradient holds up those
    before it until the end.

    Arguments:
        loss: this process's terms.
        parameters: in the order in which the network uses them, each once; those that need no gradient are left out.
        shard: the samples of this process.
    """
    waiting = deque(reversed([parameter for parameter in parameters if parameter.requires_grad]))
    complete: set[int] = set()
    summed: list[tuple[Tensor, Tensor]] = []
    with shard.summing() as add:

        def begin() -> None:
            """The next parameter's. What comes back to it later, as from reentrant checkpoints, is a gradient anew."""
            parameter = waiting.popleft()
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                add(gradient)
                summed.append((parameter, gradient))

        def ready(parameter: Tensor) -> None:
            complete.add(id(parameter))
            while waiting and id(waiting[0]) in complete:
                begin()

        handles = [parameter.register_post_accumulate_grad_hook(ready) for parameter in waiting]
        try:
            loss.backward()
        finally:
            for handle in handles:
                handle.remove()
        while waiting:
            begin()
        late = [(parameter, parameter.grad) for parameter, _ in summed if parameter.grad is not None]
        add(loss.detach(), *(gradient for _, gradient in late))
    with torch.no_grad():
        for parameter, gradient in summed:
            parameter.grad = gradient
        for parameter, gradient in late:
            assert parameter.grad is not None  # it is among those that were summed
            parameter.grad.add_(gradient)
