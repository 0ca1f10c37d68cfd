"""Reads a plain `nn.Sequential`, from a private copy, into layers (what holds weights) and sites (the wiring)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from torchlift.core.checks import Shape
from torchlift.core.errors import InvalidTypeError, InvalidValueError, NotRepresentableError
from torchlift.networks.modules import Residual, RungeKutta
from torchlift.networks.nonlinear import scale_and_shift
from torchlift.networks.stacks import Layer
from torchlift.networks.trace import has_hooks
from torchlift.operators import AveragePool2d, Conv2d, ConvTranspose2d, Dense, Identity, LinearOperator, Reshape
from torchlift.prox import ActivationModule, ProximalActivation, as_activation
from torchlift.prox import Identity as IdentityActivation

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def prepare(module: nn.Sequential) -> nn.Sequential:
    """An equivalent `nn.Sequential` that shares nothing with `module`."""
    _refuse_other_forward(module)
    _refuse_shared_parameters(module)
    return nn.Sequential(*_fold(_leaves_of(copy.deepcopy(module), "")))


def refuse(where: str, module: nn.Module, reason: str, hint: str = "") -> NoReturn:
    """Raise the error for a module that the unified form cannot hold."""
    text = f"module {where} ({type(module).__name__}) cannot be lifted: {reason}."
    raise NotRepresentableError(f"{text} {hint}" if hint else text)


def _leaves_of(sequential: nn.Sequential, prefix: str) -> list[tuple[str, nn.Module]]:
    """Leaf modules with their positions; inactive ones are dropped, residual branches prepared."""
    leaves: list[tuple[str, nn.Module]] = []
    for position, module in enumerate(sequential):  # named_children would skip a module used twice
        where = f"{prefix}{position}"
        if isinstance(module, nn.Sequential):
            leaves.extend(_leaves_of(module, f"{where}."))
        elif isinstance(module, _DROPOUTS):
            if module.training and module.p > 0:
                refuse(where, module, "dropout is random in training mode", "Call `.eval()` first or remove it.")
        elif isinstance(module, Residual):
            branch = _fold(_leaves_of(module.branch, f"{where}.branch."))
            leaves.append((where, Residual(*branch, step=module.step)))
        else:
            leaves.append((where, module))
    return leaves


def _fold(leaves: list[tuple[str, nn.Module]]) -> list[nn.Module]:
    """Fold each batch norm into the affine module before it, else into one that stands for it."""
    modules: list[nn.Module] = []
    for where, module in leaves:
        if not isinstance(module, _BATCH_NORMS):
            modules.append(module)
        elif module.training or module.running_mean is None:
            hint = "Call `.eval()` first." if module.training else "It keeps no running statistics."
            refuse(where, module, "batch norm mixes the samples of a batch unless it is in eval mode", hint)
        elif modules and _foldable(modules[-1], module):
            modules[-1] = _fused(modules[-1], module)
        else:
            modules.extend(_as_affine(module))
    return modules


def _foldable(module: nn.Module, norm: nn.Module) -> bool:
    affine = nn.Linear if isinstance(norm, nn.BatchNorm1d) else (nn.Conv2d, nn.ConvTranspose2d)
    return isinstance(module, affine)


def _fused(module: Any, norm: Any) -> nn.Module:
    training = module.training
    module.eval()  # torch's fusion insists on it; a linear or convolution module does not care
    if isinstance(module, nn.Linear):
        fused: Any = fuse_linear_bn_eval(module, norm)
    else:
        fused = fuse_conv_bn_eval(module, norm, transpose=isinstance(module, nn.ConvTranspose2d))
    fused.bias.requires_grad_(fused.weight.requires_grad)  # torch freezes a bias that fusion had to add
    return fused.train(training)


def _as_affine(norm: Any) -> list[nn.Module]:
    """A batch norm with no affine module before it, as a 1 × 1 convolution of each channel alone."""
    count = norm.num_features
    with torch.no_grad():
        scale, shift = scale_and_shift(norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps)
        module = nn.Conv2d(count, count, 1, groups=count, dtype=scale.dtype, device=scale.device)
        module.weight.copy_(scale.reshape(count, 1, 1, 1))
        module.get_parameter("bias").copy_(shift)
    if isinstance(norm, nn.BatchNorm2d):
        return [module]
    return [nn.Unflatten(1, (count, 1, 1)), module, nn.Flatten()]


def _refuse_other_forward(module: nn.Module) -> None:
    """Refuse hooks and overridden forward methods: a chain only runs modules one after the other."""
    for where, child in module.named_modules():
        if isinstance(child, nn.Sequential) and type(child).forward is not nn.Sequential.forward:
            refuse(where or "itself", child, "it has a forward method of its own")
        if has_hooks(child):
            refuse(where or "itself", child, "it has hooks, which may change what it computes")


def _refuse_shared_parameters(module: nn.Module) -> None:
    """Refuse a tensor that two modules hold; a module that is used twice is fine."""
    owner: dict[int, str] = {}
    for where, child in module.named_modules():
        if isinstance(child, ActivationModule):
            continue  # layers may share a threshold
        for name, parameter in child.named_parameters(recurse=False):
            path = f"{where}.{name}"
            if owner.setdefault(id(parameter), path) != path:
                reason = f"{path} is the same tensor as {owner[id(parameter)]}"
                refuse(where, child, reason, "Share the module instead.")


#: Why well-known modules have no place in the unified form, and what to use instead.
REASONS: dict[type[nn.Module], tuple[str, str]] = {
    nn.MaxPool2d: ("max pooling is neither linear nor a proximal map", "Use nn.AvgPool2d or a strided convolution."),
    nn.LayerNorm: ("it divides by a statistic of the sample itself", "Use nn.BatchNorm in eval mode."),
    nn.GroupNorm: ("it divides by a statistic of the sample itself", "Use nn.BatchNorm in eval mode."),
    nn.Embedding: ("its input is an index, not a vector", "Feed one-hot vectors to nn.Linear(bias=False)."),
    nn.LSTM: ("recurrent gates multiply states", ""),
    nn.GRU: ("recurrent gates multiply states", ""),
    nn.MultiheadAttention: ("attention multiplies states", ""),
}


@dataclass(frozen=True)
class Term:
    """factor · A_n ⋯ A_1, the layers listed in the order in which they are applied."""

    layers: tuple[int, ...]
    factor: float = 1.0


@dataclass
class Site:
    """One row of W, V and M: z = σ(Σ reads u + b), u_next = Σ outputs z + u_skip."""

    reads: list[tuple[int, Term]]
    activation: ProximalActivation
    outputs: dict[int, Term] = field(default_factory=dict)
    skip: int | None = None


class Reader:
    """Walks through the modules, keeping the current state u_source and the affine maps pending on it."""

    def __init__(self, in_shape: Shape) -> None:
        self.layers: list[Layer] = []
        self.sites: list[Site] = []
        self.shapes: list[Shape] = [in_shape]
        self.pending: list[int] = []
        self.source = 0
        self._of_module: dict[int, int] = {}

    @property
    def shape(self) -> Shape:
        """Shape of one sample after the pending maps."""
        return self.layers[self.pending[-1]].operator.out_shape if self.pending else self.shapes[self.source]

    def read(self, modules: Sequence[nn.Module], prefix: str = "") -> None:
        for position, module in enumerate(modules):
            self._read_one(module, f"{prefix}{position}")

    def term(self, factor: float = 1.0) -> Term:
        """The pending maps, or the identity."""
        return Term(tuple(self.pending) or (self._identity(self.shape),), factor)

    def _read_one(self, module: Any, where: str) -> None:
        if isinstance(module, Residual):
            self._residual(module, where)
        elif isinstance(module, RungeKutta):
            self._runge_kutta(module, where)
        elif type(module) in _LINEAR:
            self.pending.append(self._layer(module, where))
        elif type(module) is nn.Identity:
            pass
        else:
            self._activate(_activation(module, where))

    def _activate(self, activation: ProximalActivation) -> None:
        self._site(Site([(self.source, self.term())], activation), self.shape)

    def _site(self, site: Site, shape: Shape) -> None:
        self.sites.append(site)
        self.shapes.append(shape)
        self.source, self.pending = len(self.sites), []

    def _anchor(self) -> int:
        """Make the current value a state u_k of its own, so that a skip connection can read it."""
        if self.pending:
            self._activate(IdentityActivation())
        return self.source

    def _residual(self, module: Residual, where: str) -> None:
        """u + h·branch(u): through M and V where the branch ends without bias, else through W."""
        start = self._anchor()
        self.read(list(module.branch), f"{where}.branch.")
        if self.shape != self.shapes[start]:
            refuse(where, module, f"its branch maps {self.shapes[start]} to {self.shape}", "A skip keeps the shape.")
        if self.source != start and not self._has_bias(self.pending):
            site = self.sites[-1]
            last = len(self.sites) - 1
            site.outputs = {last: self.term(module.step)}
            site.skip = start
            self.shapes[-1], self.pending = self.shape, []
            return
        reads = [(start, Term((self._identity(self.shape),))), (self.source, self.term(module.step))]
        self._site(Site(reads, IdentityActivation()), self.shape)

    def _runge_kutta(self, module: RungeKutta, where: str) -> None:
        """Stage i is a state U_i = u + h Σ_k a_ik V z_k; all stages share the layers of W and V."""
        start = self._anchor()
        activation = _activation(module.activation, f"{where}.activation")
        inner = self._only_linear(module.inner, f"{where}.inner", self.shape)
        middle = self.layers[inner].operator.out_shape
        outer = self._only_linear(module.outer, f"{where}.outer", middle)
        if self._has_bias([outer]):
            refuse(f"{where}.outer", module.outer, "M u = V z has no constant term", "Use bias=False.")
        if self.layers[outer].operator.out_shape != self.shapes[start]:
            refuse(where, module, f"outer ∘ inner maps {self.shapes[start]} to another shape")
        first = len(self.sites)
        for i, weights in enumerate((*module.tableau.a[1:], module.tableau.b)):
            chosen = {k: weight for k, weight in enumerate(weights) if weight} or {i: 0.0}
            outputs = {first + k: Term((outer,), module.step * weight) for k, weight in chosen.items()}
            site = Site([(self.source, Term((inner,)))], activation, outputs, skip=start)
            self._site(site, self.shapes[start])

    def _only_linear(self, module: Any, where: str, shape: Shape) -> int:
        if type(module) not in _LINEAR:
            refuse(where, module, "a linear module is needed here")
        return self._layer(module, where, shape)

    def _layer(self, module: Any, where: str, shape: Shape | None = None) -> int:
        """Index of the layer of a linear module; a module met again is the same layer."""
        shape = self.shape if shape is None else shape
        index = self._of_module.get(id(module))
        if index is None:
            operator = _linear(module, shape, where)
            if next(module.parameters(), None) is None:
                return self._add(Layer(operator))
            self._of_module[id(module)] = index = self._add(Layer(operator, module))
        elif self.layers[index].operator.in_shape != shape:
            refuse(where, module, f"it is used twice, for inputs {self.layers[index].operator.in_shape} and {shape}")
        return index

    def _identity(self, shape: Shape) -> int:
        return self._add(Layer(Identity(shape)))

    def _add(self, layer: Layer) -> int:
        self.layers.append(layer)
        return len(self.layers) - 1

    def _has_bias(self, layers: Sequence[int]) -> bool:
        return any(getattr(self.layers[k].module, "bias", None) is not None for k in layers)


def bias_of(layers: Sequence[LinearOperator], biases: Sequence[Tensor | None], term: Term) -> Tensor | None:
    """What factor · (affine maps of the term) adds to the linear part: A_n(… A_2 b_1 + b_2 …) + b_n."""
    total: Tensor | None = None
    for k in term.layers:
        if total is not None:
            full = total.broadcast_to(layers[k].in_shape)
            total = layers[k].forward(full[None])[0]
        bias = biases[k]
        if bias is not None:
            total = bias if total is None else total + bias
    return total if total is None or term.factor == 1.0 else term.factor * total


def _activation(module: nn.Module, where: str) -> ProximalActivation:
    if type(module) in REASONS:
        refuse(where, module, *REASONS[type(module)])
    try:
        activation = as_activation(module)
        if activation.dim == 0:
            refuse(where, module, "it mixes the samples of a batch", "Use dim=1 or dim=-1.")
        return activation
    except InvalidTypeError:
        accepted = ", ".join(kind.__name__ for kind in _LINEAR)
        hint = f"Linear modules that can be lifted: {accepted}; others: proximal activations, Residual, RungeKutta."
        refuse(where, module, "it is neither a linear module nor a proximal activation", hint)
    except NotRepresentableError:
        raise
    except InvalidValueError as error:
        raise type(error)(f"module {where} ({type(module).__name__}): {error}") from None


def _linear(module: Any, shape: Shape, where: str) -> LinearOperator:
    """The operator of a linear module for samples of the given shape."""
    try:
        return _LINEAR[type(module)](module, shape, where)
    except NotRepresentableError:
        raise  # it names the module already
    except (InvalidValueError, InvalidTypeError) as error:
        raise type(error)(f"module {where} ({type(module).__name__}): {error}") from None


def _dense(module: nn.Linear, shape: Shape, where: str) -> LinearOperator:
    if len(shape) != 1:
        refuse(where, module, f"its input has shape {shape}", "Put nn.Flatten() before it.")
    if shape[0] != module.in_features:
        refuse(where, module, f"it takes {module.in_features} features but its input has {shape[0]}")
    return Dense(module.weight.detach())


def _convolution(module: Any, shape: Any, where: str) -> LinearOperator:
    if module.padding_mode != "zeros":
        refuse(where, module, f"padding_mode {module.padding_mode!r} is not zero padding", "Use padding_mode='zeros'.")
    if len(shape) != 3 or shape[0] != module.in_channels:
        hint = "Say the size of the images with input_shape=(channels, height, width)."
        refuse(where, module, f"it takes {module.in_channels} channels but its input has shape {shape}", hint)
    shared = (module.weight.detach(), shape, module.stride, module.padding)
    more = (module.dilation, module.groups)
    if type(module) is nn.ConvTranspose2d:
        return ConvTranspose2d(*shared, cast("Any", module).output_padding, *more)
    return Conv2d(*shared, *more)


def _average_pool(module: nn.AvgPool2d, shape: Any, where: str) -> LinearOperator:
    if module.ceil_mode or module.divisor_override:
        refuse(where, module, "ceil_mode and divisor_override are not supported")
    return AveragePool2d(shape, module.kernel_size, module.stride, module.padding, module.count_include_pad)


def _flatten(module: nn.Flatten, shape: Shape, where: str) -> LinearOperator:
    if (module.start_dim, module.end_dim) not in ((1, -1), (1, len(shape))):
        refuse(where, module, "only nn.Flatten(1, -1) keeps the batch axis and flattens the rest")
    return _reshape(shape, (math.prod(shape),))


def _unflatten(module: nn.Unflatten, shape: Shape, where: str) -> LinearOperator:
    size = tuple(int(n) for n in module.unflattened_size)
    if len(shape) != 1 or module.dim not in (1, -1):
        reason = f"it unflattens axis {module.dim} of samples of shape {shape}"
        refuse(where, module, reason, "Only dim=1 after Flatten.")
    if size.count(-1) == 1:
        rest = -math.prod(size)
        size = tuple(shape[0] // rest if n == -1 else n for n in size)
    return _reshape(shape, size)


def _reshape(before: Shape, after: Shape) -> LinearOperator:
    return Identity(before) if before == after else Reshape(before, after)


_LINEAR: dict[type[nn.Module], Any] = {
    nn.Linear: _dense,
    nn.Conv2d: _convolution,
    nn.ConvTranspose2d: _convolution,
    nn.AvgPool2d: _average_pool,
    nn.Flatten: _flatten,
    nn.Unflatten: _unflatten,
}
