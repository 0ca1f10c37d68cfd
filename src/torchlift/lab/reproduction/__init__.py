"""The numerical section of the paper: every table, figure and claim as an experiment that can be run again."""

from torchlift.core.signatures import check_calls
from torchlift.lab.reproduction.architectures import Architectures
from torchlift.lab.reproduction.auxiliary_start import AuxiliaryStart
from torchlift.lab.reproduction.conventional_sweep import ConventionalSweep
from torchlift.lab.reproduction.error_estimate import ErrorEstimate
from torchlift.lab.reproduction.experiment import SCALES, Experiment, ExperimentResult, Options, Scale, Work
from torchlift.lab.reproduction.implicit_stability import ImplicitStability
from torchlift.lab.reproduction.inverse_problems import Deblurring, Denoising, Inpainting
from torchlift.lab.reproduction.inversion import Inversion
from torchlift.lab.reproduction.layer_tables import TableBackward, TableForward
from torchlift.lab.reproduction.memory import Memory
from torchlift.lab.reproduction.optimisers import Optimisers
from torchlift.lab.reproduction.run import reproduce
from torchlift.lab.reproduction.scaling import Scaling

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        TableForward(),
        TableBackward(),
        Optimisers(),
        AuxiliaryStart(),
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
"""All experiments by name, in the order of the paper; ours last."""

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "ExperimentResult", "Options", "Scale", "Work", "reproduce"]

check_calls(__name__)
