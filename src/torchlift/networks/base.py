"""The contract of a network in the unified form."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from torchlift.core.checks import Shape, check_batch, check_like
from torchlift.core.errors import invalid_value
from torchlift.core.html import facts
from torchlift.networks.form import ForwardStates, UnifiedForm
from torchlift.operators import Context, DenseRun
from torchlift.operators.context import context_tensors
from torchlift.prox import ProximalActivation


class Network(nn.Module, ABC):
    """A network N(y) = K u + d with M u = V z and z = σ(W u + b).

    A subclass owns parameters and says, in `operators`, how K, d, M, V, W, b
    and the activations are made of them. Everything else follows.

    Arguments:
        in_shape: shape of one input y, without the batch axis.
        out_shape: shape of one output N(y).
    """

    def __init__(self, in_shape: Shape, out_shape: Shape) -> None:
        super().__init__()
        self.in_shape = in_shape
        self.out_shape = out_shape

    @abstractmethod
    def operators(self) -> UnifiedForm:
        """K, d, M, V, W, b and σ at the current parameters; autograd sees through them."""

    def to_sequential(self, context: Context = None) -> nn.Module:
        """A plain module with a copy of the weights and the same outputs.

        Chains give an `nn.Sequential`. Other architectures give the module of
        `torch.export`, which needs nothing of torchlift to run and takes
        batches of any size; where the operators depend on the sample, pass
        the context of some batch of two or more as an example.
        """
        reference = torch.empty(0) if self.like is None else self.like
        size = min((tensor.shape[0] for tensor in context_tensors(context)), default=2)
        if size < 2:  # torch.export specialises on sizes 0 and 1
            invalid_value("to_sequential context", "an example batch of two or more samples", size)
        example, batch = reference.new_zeros(size, *self.in_shape), {0: Dim.DYNAMIC}
        arguments, dynamic = (example,), (batch,)
        if context is not None:
            of_context = dict.fromkeys(context, batch) if isinstance(context, Mapping) else batch
            arguments, dynamic = (example, context), (batch, of_context)
        return torch.export.export(copy.deepcopy(self).eval(), arguments, dynamic_shapes=dynamic).module()

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write safetensors and JSON into a folder, as `torchlift.io.save_model` does."""
        return import_module("torchlift.io").save_model(folder, self)  # by name: it is built on networks

    @staticmethod
    def from_pretrained(folder: str | Path, *, into: Network | None = None) -> Network:
        """The network in a local folder, whatever its architecture, as `torchlift.io.load_model` gives it."""
        return import_module("torchlift.io").load_model(folder, into=into)

    @property
    def like(self) -> Tensor | None:
        """Some parameter, whose dtype and device inputs must have; complex ones tell nothing of the inputs."""
        return next((each for each in self.parameters() if not each.is_complex()), None)

    @cached_property
    def depth(self) -> int:
        """J, the number of activation layers."""
        return self.operators().depth

    @property
    def activations(self) -> tuple[ProximalActivation, ...]:
        """σ_1, …, σ_J with their current thresholds."""
        return self.operators().activations

    def dense_runs(self) -> tuple[DenseRun, ...]:
        """Layers that an engine may evaluate together, because they only read the layer before them."""
        return ()

    def output_run(self) -> DenseRun | None:
        """K and d where they are one dense layer on the last state."""
        return None

    def forward(self, y: Tensor, context: Context = None) -> Tensor:
        """N(y) for y of shape (B, *in_shape)."""
        return self.states(y, context).output

    def states(self, y: Tensor, context: Context = None) -> ForwardStates:
        """All states u, pre-activations v and activations z of the forward pass."""
        self.check_input(y)
        return self.operators().states(y, context)

    def check_input(self, y: Tensor) -> None:
        """Refuse inputs of another shape, dtype or device."""
        name = f"{type(self).__name__} input"
        check_batch(name, y, self.in_shape)
        if self.like is not None:
            check_like(name, y, self.like)

    def picture(self) -> str:
        """The block structure of W, M, V and K as text."""
        form = self.operators()
        return "\n\n".join(f"{name} =\n{getattr(form, name)}" for name in "WMVK")

    def _repr_html_(self) -> str:
        form = self.operators()
        rows = {
            "input": "×".join(map(str, self.in_shape)),
            "output": "×".join(map(str, self.out_shape)),
            "layers": form.depth,
            "parameters": f"{sum(parameter.numel() for parameter in self.parameters()):,}",
            "activations": ", ".join(dict.fromkeys(map(_short, form.activations))),
        }
        blocks = "".join(f"<p><b>{name}</b></p>{getattr(form, name)._repr_html_()}" for name in "WMVK")
        details = f"<details><summary>blocks of W, M, V and K</summary>{blocks}</details>"
        return facts(type(self).__name__, rows) + details


def _short(activation: object) -> str:
    """An activation in a few words; learned thresholds are not written out."""
    text = str(activation)
    return text if len(text) <= 40 else type(activation).__name__
