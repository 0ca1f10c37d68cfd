"""Many processes against one, and against what torch has: `torchlift bench distributed`."""

from torchlift.experiments.distributed.bench import Effort, run
from torchlift.experiments.distributed.size import Size

__all__ = ["Effort", "Size", "run"]
