"""Many processes against one, and against what torch has: `torchlift bench distributed`."""

from torchlift.core.signatures import check_calls
from torchlift.lab.benchmarks.distributed.bench import Effort, run
from torchlift.lab.benchmarks.distributed.methods import Size
from torchlift.lab.benchmarks.distributed.race import race

__all__ = ["Effort", "Size", "race", "run"]

check_calls(__name__)
