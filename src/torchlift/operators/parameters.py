"""Operators of one structure whose tensors live in one stacked parameter each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_instance
from torchlift.core.errors import invalid_value
from torchlift.operators.base import LinearOperator


class OperatorStack(nn.Module):
    """`count` operators of equal structure; each held tensor is one parameter with a leading axis.

    J dense layers of shape (out, in) become a single parameter `weight` of
    shape (J, out, in). Paths of nested operators are joined by underscores:
    "operators.0.weight" is stored as `operators_0_weight`.
    """

    def __init__(self, operators: Sequence[LinearOperator], trainable: bool = True) -> None:
        super().__init__()
        _check_alike(operators)
        self.count = len(operators)
        # Only the structure is kept: tensors without memory stand where the parameters will go.
        self.template = operators[0].map_tensors(lambda _, tensor: tensor.detach().to("meta"))
        self.names = {path: path.replace(".", "_") for path in self.template.tensors()}
        leaves = [operator.tensors() for operator in operators]
        for path, name in self.names.items():
            stacked = torch.stack([leaf[path].detach() for leaf in leaves])
            if trainable:
                self.register_parameter(name, nn.Parameter(stacked))
            else:
                self.register_buffer(name, stacked)

    def operators(self) -> tuple[LinearOperator, ...]:
        """The operators over the current parameters, which gradients flow back to."""
        # one unbind per parameter: its backward is one stack, not `count` scattered additions
        slices = {path: getattr(self, name).unbind(0) for path, name in self.names.items()}
        rebuild = self.template.map_tensors
        return tuple(rebuild(lambda path, _, index=index: slices[path][index]) for index in range(self.count))

    def __len__(self) -> int:
        return self.count

    def extra_repr(self) -> str:
        before, after = ("×".join(map(str, shape)) for shape in (self.template.in_shape, self.template.out_shape))
        return f"{self.count} x {self.template.symbol()}, {before} → {after}"


@dataclass(frozen=True, eq=False)
class DenseRun:
    """Consecutive layers v_j = W_j u_{j-1} + b_j, j = start + 1, …, start + count, whose weights are one parameter.

    Arguments:
        start: index of the first row of W (layer `start` + 1).
        weight: all W_j, shape (count, out, in); square if count > 1.
        bias: all b_j, shape (count, out), or None.
        weight_name, bias_name: their names among the network's parameters.
    """

    start: int
    weight: Tensor
    bias: Tensor | None
    weight_name: str
    bias_name: str

    @property
    def count(self) -> int:
        return self.weight.shape[0]


def _check_alike(operators: Sequence[LinearOperator]) -> None:
    """The same classes, settings, tensor shapes and dtypes."""
    if not operators:
        invalid_value("OperatorStack", "at least one operator", "none")
    for index, operator in enumerate(operators):
        check_instance(f"OperatorStack operator {index}", operator, LinearOperator)
    first = _structure(operators[0])
    for index, operator in enumerate(operators[1:], start=1):
        if (structure := _structure(operator)) != first:
            hint = "Put operators of different structure into stacks of their own."
            invalid_value(f"OperatorStack operator {index}", f"the structure of operator 0, {first}", structure, hint)


def _structure(operator: LinearOperator) -> str:
    """All that distinguishes operators beside the values of their tensors."""
    return repr(operator.map_tensors(lambda _, tensor: _Leaf(tensor)))  # type: ignore[arg-type,return-value]


class _Leaf:
    """Stands for a tensor by shape and dtype."""

    def __init__(self, tensor: Tensor) -> None:
        self.text = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

    def __repr__(self) -> str:
        return self.text
