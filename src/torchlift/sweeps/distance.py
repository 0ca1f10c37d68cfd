# pyright: reportPrivateImportUsage=false
"""The distance to a solution, estimated on the way: Prodigy's lower bound in another norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchlift.sweeps.layers import Centred, Entry


class Distance:
    """What the estimate needs of the parameters of a part: some of their rows, one after the other in memory.

    With ĝ the scaled gradients, x₀ the first parameters and ω the weight of a step,
    `terms` updates s ← β₃s + ω c ĝ and returns ⟨ĝ, x₀ − x⟩ and Σ_l √n_l ‖s_l‖₂, or ‖s‖₁
    of entries. Calls into torch are few, whatever the number of layers.

    Arguments:
        entries: the parameters.
        states: of each; "origin" and "total" become views of one buffer.
        dense: whether s is measured layer by layer.
    """

    def __init__(self, entries: Sequence[Entry], states: Sequence[dict[str, Any]], dense: bool) -> None:
        self.entries, self.dense = entries, dense
        self._whole = all(entry.every == 1 for entry in entries)
        rows = [entry.some(entry.tensor.detach()) for entry in entries]
        self._shapes, self._sizes = [row.shape for row in rows], [row.numel() for row in rows]
        self._origin, self._total = (torch.cat([s[name].reshape(-1) for s in states]) for name in ("origin", "total"))
        for name, flat in (("origin", self._origin), ("total", self._total)):
            for state, view in zip(states, self._views(flat), strict=True):
                state[name] = view
        self._totals = self._by_layer(self._views(self._total))
        counts = [row.numel() for row in self._totals]
        exact: Any = {"dtype": torch.promote_types(rows[0].dtype, torch.float32), "device": rows[0].device}
        self._root_counts = torch.tensor([count**0.5 for count in counts], **exact)
        self._inverse_counts = torch.tensor([1 / max(count, 1) for count in counts], **exact)
        self._moved, self._g = torch.empty_like(self._origin), torch.empty_like(self._total)
        self._moved_parts, self._g_parts = self._views(self._moved), self._views(self._g)
        self._g_rows = self._by_layer(self._g_parts)

    def take(self, gradients: list[Tensor]) -> None:
        """Look at the gradients of a step."""
        torch._foreach_copy_(self._g_parts, self._rows(gradients))

    def mean_squares(self) -> Tensor:
        """Of the gradients of every layer."""
        norms = torch.stack(torch._foreach_norm(self._g_rows))
        return norms.to(self._inverse_counts).square_().mul_(self._inverse_counts)

    def terms(
        self,
        tensors: list[Tensor],
        centred: Sequence[Centred],
        inverse_roots: list[Any],
        weights: list[Any],
        patience: float,
    ) -> tuple[Tensor, Tensor]:
        """⟨ĝ, x₀ − x⟩ and the size of s after its update, for the gradients that were looked at last.

        Arguments:
            tensors: x.
            centred: layers in whose centred coordinates x₀ − x is measured.
            inverse_roots: ĝ/g of every layer.
            weights: ω c of every layer.
            patience: β₃.
        """
        moved = self._moved_parts
        torch._foreach_copy_(moved, self._rows(tensors))
        torch.sub(self._origin, self._moved, out=self._moved)
        for weight, bias, mean in centred:
            moved[bias].add_(mean.pull(moved[weight], self.entries[weight].every))
        torch._foreach_mul_(self._g_rows, inverse_roots)
        inner = torch.dot(self._moved, self._g)
        torch._foreach_mul_(self._g_rows, weights)
        self._total.mul_(patience).add_(self._g)
        if not self.dense:
            return inner, self._total.abs().sum()  # several times as fast as a norm of order 1
        norms = torch.stack(torch._foreach_norm(self._totals)).to(self._root_counts)
        return inner, torch.dot(norms, self._root_counts)

    def _rows(self, tensors: list[Tensor]) -> list[Tensor]:
        if self._whole:
            return tensors
        return [entry.some(tensor) for entry, tensor in zip(self.entries, tensors, strict=True)]

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]

    def _by_layer(self, views: Sequence[Tensor]) -> list[Tensor]:
        return [row for entry, view in zip(self.entries, views, strict=True) for row in entry.by_layer(view)]
