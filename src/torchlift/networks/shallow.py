"""Shallow networks: blocks of neurons side by side, each reading the input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_shape, check_size
from torchlift.core.errors import invalid_value
from torchlift.networks.base import Network
from torchlift.networks.feedforward import Activations, linear_module, one_each
from torchlift.networks.form import UnifiedForm, assemble
from torchlift.networks.stacks import ActivationList, Layer, maps_of, stack_layers
from torchlift.operators import Context, Dense
from torchlift.prox import ProximalActivation, ReLU
from torchlift.prox.base import tensors_of


class Shallow(Network):
    """N(y) = Σ_j C_j σ_j(W_j y + b_j), all J blocks side by side.

    W has blocks in its first column only, and K = (0 C_1 ⋯ C_J). With
    `hidden=[1] * J` every neuron is a block of its own.

    Arguments:
        in_features, out_features: sizes of y and N(y).
        hidden: sizes of the blocks; one number means one block.
        activation: one for all blocks, or one per block.
        output_bias: whether there is a learnable d.
        generator: source of randomness for the weights; torch's default otherwise.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int | Sequence[int],
        out_features: int = 1,
        activation: Activations = ReLU(),
        *,
        bias: bool = True,
        output_bias: bool = False,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        before, after = check_size("Shallow in_features", in_features), check_size("Shallow out_features", out_features)
        sizes = check_shape("Shallow hidden", hidden)
        if not sizes:
            invalid_value("Shallow hidden", "at least one block", hidden)
        super().__init__((before,), (after,))
        self.activation = ActivationList(one_each("Shallow", activation, len(sizes)))
        inner = [linear_module(before, size, bias, generator, dtype, device) for size in sizes]
        joint = linear_module(sum(sizes), after, output_bias, generator, dtype, device)
        self.hidden, _ = stack_layers([Layer(Dense(m.weight.detach()), m) for m in inner])
        outer = joint.weight.detach().split(sizes, dim=1)
        self.output, _ = stack_layers([Layer(Dense(part), _linear(part, None)) for part in outer])
        self.bias = joint.bias

    @property
    def activations(self) -> tuple[ProximalActivation, ...]:
        return self.activation.current()

    def operators(self) -> UnifiedForm:
        layers, outputs = self._maps()
        return assemble(
            self.in_shape,
            W={(j, 0): operator for j, (operator, _) in enumerate(layers)},
            b=[bias for _, bias in layers],
            activations=self.activations,
            K={j + 1: operator for j, (operator, _) in enumerate(outputs)},
            d=self.bias,
            like=self.like,
        )

    def to_sequential(self, context: Context = None) -> nn.Module:
        """Two linear modules around one activation, where all blocks share an elementwise one."""
        first = self.activations[0]
        plain = first.dim is None and not tensors_of(first)
        if len(self.activations) > 1 and not (plain and all(activation is first for activation in self.activations)):
            return super().to_sequential(context)
        layers, outputs = self._maps()
        biases = [bias for _, bias in layers if bias is not None]
        inner = _linear(torch.cat([W.to_dense() for W, _ in layers]), torch.cat(biases) if biases else None)
        outer = _linear(torch.cat([C.to_dense() for C, _ in outputs], dim=1), self.bias)
        return nn.Sequential(inner, first.to_module(), outer)

    def _maps(self) -> tuple[list, list]:
        """(W_j, b_j) and (C_j, None) of each block."""
        return list(chain(*maps_of(self.hidden))), list(chain(*maps_of(self.output)))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """`nn.Linear` with copies of the given tensors."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    module.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        module.bias = nn.Parameter(bias.detach().clone())
    return module
