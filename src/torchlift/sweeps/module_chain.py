"""A plain `nn.Sequential` of torch's own layers, whose activations are perturbed without a function mode.

The mode of `sweeping` looks at every call into torch, which costs as much as the arithmetic of small layers.
Here it is known beforehand which parts are activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from torchlift.networks.dense_chain import has_hooks
from torchlift.sweeps.activation import as_called, perturb
from torchlift.sweeps.sweeping import sweeping

_RELU = as_called(nn.functional.relu, (), {})
#: Layers of torch without an activation inside.
_PLAIN = frozenset((
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d, nn.Flatten,
    nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.Upsample, nn.PixelShuffle,
))  # fmt: skip


@dataclass(frozen=True, eq=False)
class ModuleChain:
    """Parts that are called one after the other.

    Arguments:
        module: the `nn.Sequential`; its parts are looked up in every pass.
    """

    module: nn.Sequential

    @staticmethod
    def of(module: nn.Module) -> ModuleChain | None:
        """None for modules with another forward pass."""
        return ModuleChain(module) if type(module) is nn.Sequential else None

    @property
    def plain(self) -> bool:
        """Whether nobody listens to the module."""
        return not has_hooks(self.module)

    def __call__(self, y: Tensor, mode: sweeping) -> Tensor:
        """The output, with perturbed activations on the way back."""
        for part in self.module:
            known = not has_hooks(part)  # what others do there is theirs
            if known and type(part) in _PLAIN:
                y = part(y)
            elif known and type(part) is nn.ReLU and y.requires_grad and not part.inplace:
                y = perturb(y, _RELU, mode.perturbation, mode.mean)
            else:
                with mode:
                    y = part(y)
        return y
