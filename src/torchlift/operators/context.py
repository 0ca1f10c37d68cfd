"""What an operator may need to know about each sample, such as an image's own mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from torchlift.core.errors import invalid_value

#: One tensor, or several by name, whose first axis is the batch; None where no operator asks.
Context = Tensor | Mapping[str, Tensor] | None


def context_tensor(where: str, context: Context, key: str) -> Tensor:
    """The tensor named `key` in a context, or the context itself when it is one tensor."""
    value = context.get(key) if isinstance(context, Mapping) else context
    if not isinstance(value, Tensor):
        came = sorted(context) if isinstance(context, Mapping) else type(context).__name__
        hint = f"Pass context={{{key!r}: tensor}} with the batch."
        invalid_value(where, f"a per-sample context with a tensor {key!r}", came, hint)
    return value


def context_tensors(context: Context) -> list[Tensor]:
    """Every tensor of a context."""
    if context is None:
        return []
    return list(context.values()) if isinstance(context, Mapping) else [context]


def map_context(context: Context, function: Callable[[Tensor], Tensor]) -> Context:
    """The same context with every tensor t replaced by function(t)."""
    if context is None:
        return None
    if isinstance(context, Mapping):
        return {key: function(value) for key, value in context.items()}
    return function(context)


def select_context(context: Context, which: slice | Tensor) -> Context:
    """The context of some of the samples."""
    return map_context(context, lambda tensor: tensor[which])


def context_batch(where: str, context: Context) -> int:
    """The number of samples a context describes; 1 without a context."""
    sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in context_tensors(context)} or {1}
    if len(sizes) > 1 or 0 in sizes:
        invalid_value(where, "context tensors that share one non-empty batch axis", sorted(sizes))
    return sizes.pop()
