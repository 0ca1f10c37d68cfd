"""What all tests share: one thread, fixed seeds, repeatable hypothesis, fixtures."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path

# Before torch is imported: several pytest workers share the machine, and one
# thread gives the same numbers however many workers there are.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"

# Runs and records are forced to the disk thousands of times, some milliseconds each, and read once: memory will do.
_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# A shell ignores Ctrl-C in what it starts in the background, and so would this process and all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import hypothesis.core
import numpy as np
import pytest
import torch

torch.set_num_threads(1)


def _complete_torchvision() -> torch.library.Library | None:
    """Declare two operators of torchvision's compiled part where that does not load, so that all the rest imports.

    deepinv needs torchvision, torchmetrics imports it where it is installed, and the build that an installer finds
    is often not the one for this torch.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    for compiled in Path(found.origin).parent.glob("_C*"):
        try:
            torch.ops.load_library(compiled)
        except OSError:
            continue
        return None
    library = torch.library.Library("torchvision", "DEF")  # its operators live as long as it does
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return library


_TORCHVISION = _complete_torchvision()

ROOT = Path(__file__).resolve().parent.parent

# The default run tries the same examples every time. `HYPOTHESIS_PROFILE=explore`
# searches with new ones, `fuzz` for much longer.
_QUIET = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture)
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=50, suppress_health_check=_QUIET
)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=500, suppress_health_check=_QUIET)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=200_000, suppress_health_check=_QUIET)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
# The seed of a test is a digest of its source, which is read, cleaned and parsed twice for every cell of a table.
if hasattr(hypothesis.core, "function_digest"):
    hypothesis.core.function_digest = functools.lru_cache(64)(hypothesis.core.function_digest)


# Two workers of `--dist worksteal` have half of the tests each, and who is done takes the last half of what the other
# has left. So what takes long, or has fixtures that would be made by both, stands first in its half.
_FIRST = ("tests/parallel/",)
_SECOND = ("tests/lab/", "tests/training/", "tests/interchange/", "tests/test_docs.py", "tests/test_wheel.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what is collected, which stays: that took a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = [item for item in items if item.nodeid.startswith(_FIRST)]
    second = [item for item in items if item.nodeid.startswith(_SECOND)]
    others = [item for item in items if not item.nodeid.startswith(_FIRST + _SECOND)]
    half = max(len(items) // 2 - len(first), 0)
    items[:] = [*first, *others[:half], *second, *others[half:]]


# Without another device, `torch.manual_seed` notes what to do if there comes one, with the whole stack each time.
_seed = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Each test starts from the same random state, whatever ran before it."""
    _seed(0)
    np.random.seed(0)  # noqa: NPY002 (other libraries draw from the old global stream)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of random numbers."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def full_mnist_path() -> Path:
    """The folder of the full MNIST set; tests that need it are skipped without it."""
    named = os.environ.get("TORCHLIFT_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "mnist"
    if not (folder / "train-images-idx3-ubyte.gz").is_file():
        pytest.skip(f"full MNIST is not in {folder}; set TORCHLIFT_DATA to its folder")
    return folder
