"""The numerical section of the paper: every table, figure and claim as an item that can be run again."""

from torchlift.reproduce.architectures import Architectures
from torchlift.reproduce.conventional_sweep import ConventionalSweep
from torchlift.reproduce.error_estimate import ErrorEstimate
from torchlift.reproduce.implicit_stability import ImplicitStability
from torchlift.reproduce.inverse_problems import Deblurring, Denoising, Inpainting
from torchlift.reproduce.inversion import Inversion
from torchlift.reproduce.item import SCALES, Findings, Item, Scale, Work
from torchlift.reproduce.layer_tables import TableBackward, TableForward
from torchlift.reproduce.memory import Memory
from torchlift.reproduce.optimisers import Optimisers
from torchlift.reproduce.run import reproduce
from torchlift.reproduce.scaling import Scaling

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        TableForward(),
        TableBackward(),
        Optimisers(),
        Deblurring(),
        Denoising(),
        Inpainting(),
        ConventionalSweep(),
        Inversion(),
        ErrorEstimate(),
        ImplicitStability(),
        Architectures(),
        Memory(),
        Scaling(),
    )
}
"""By name, in the order of the paper; ours last."""

__all__ = ["ITEMS", "SCALES", "Findings", "Item", "Scale", "Work", "reproduce"]
