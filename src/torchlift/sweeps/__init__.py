"""The default training method: a sweep in place of back-propagation, for any module, and its step."""

from torchlift.core.signatures import check_calls
from torchlift.sweeps.centring import Centring
from torchlift.sweeps.parameter_groups import parameter_groups
from torchlift.sweeps.perturbation import Perturbation
from torchlift.sweeps.relative_step import RelativeStep
from torchlift.sweeps.sweeping import checkpoint_contexts, sweeping

__all__ = ["Centring", "Perturbation", "RelativeStep", "checkpoint_contexts", "parameter_groups", "sweeping"]

check_calls(__name__)
