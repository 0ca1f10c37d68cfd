"""How W u + b, its adjoint and its parameter gradients are evaluated for all layers."""

from torchlift.core.signatures import check_calls
from torchlift.objective.engine.base import Engine, Evaluation, Gradients, Layout, Part, Setting, States, Want
from torchlift.objective.engine.general import GeneralEngine
from torchlift.objective.engine.stacked import StackedEngine

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

check_calls(__name__)
