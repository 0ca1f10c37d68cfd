"""Makes a private, plain copy of an `nn.Sequential`: nested ones flattened, batch norms folded, dropout gone."""

from __future__ import annotations

import copy
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from torchlift.core.errors import NotRepresentableError
from torchlift.networks.modules import Residual
from torchlift.networks.nonlinear import scale_and_shift
from torchlift.networks.trace import has_hooks
from torchlift.prox import ActivationModule

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def prepare(module: nn.Sequential) -> nn.Sequential:
    """An equivalent `nn.Sequential` that shares nothing with `module`."""
    _refuse_other_forward(module)
    _refuse_shared_parameters(module)
    return nn.Sequential(*_fold(_flatten(copy.deepcopy(module), "")))


def refuse(where: str, module: nn.Module, reason: str, hint: str = "") -> NoReturn:
    """Raise the error for a module that the unified form cannot hold."""
    text = f"module {where} ({type(module).__name__}) cannot be lifted: {reason}."
    raise NotRepresentableError(f"{text} {hint}" if hint else text)


def _flatten(sequential: nn.Sequential, prefix: str) -> list[tuple[str, nn.Module]]:
    """Leaf modules with their positions; inactive ones are dropped, residual branches prepared."""
    leaves: list[tuple[str, nn.Module]] = []
    for position, module in enumerate(sequential):  # named_children would skip a module used twice
        where = f"{prefix}{position}"
        if isinstance(module, nn.Sequential):
            leaves.extend(_flatten(module, f"{where}."))
        elif isinstance(module, _DROPOUTS):
            if module.training and module.p > 0:
                refuse(where, module, "dropout is random in training mode", "Call `.eval()` first or remove it.")
        elif isinstance(module, Residual):
            branch = _fold(_flatten(module.branch, f"{where}.branch."))
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
