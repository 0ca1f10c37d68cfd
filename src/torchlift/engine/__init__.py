"""How W u + b, its adjoint and its parameter gradients are evaluated for all layers."""

from torchlift.engine.base import Engine, Evaluation, Gradients, Part, Setting, Want
from torchlift.engine.general import GeneralEngine
from torchlift.engine.stacked import StackedEngine
from torchlift.engine.states import Layout, States

#: Engines by name, the fastest first.
ENGINES: dict[str, type[Engine]] = {"stacked": StackedEngine, "general": GeneralEngine}

__all__ = [
    "ENGINES",
    "Engine",
    "Evaluation",
    "GeneralEngine",
    "Gradients",
    "Layout",
    "Part",
    "Setting",
    "StackedEngine",
    "States",
    "Want",
]
