"""Configurations: what is wrong is named, phases inherit, files come back as they were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import torchlift.solvers
import torchlift.training
from torchlift.cli.settings.data import load_samples
from torchlift.cli.settings.files import read_configuration, settings_from, types_of, write_configuration
from torchlift.cli.settings.settings import (
    Configuration,
    DataSettings,
    NetworkSettings,
    PhaseSettings,
    TrainingSettings,
)
from torchlift.cli.settings.setup import build_phases, prepare, settle
from torchlift.cli.settings.solvers import SOLVERS, options_of
from torchlift.core.errors import DataError, TorchliftError
from torchlift.liftings import Bregman, Classical, Conventional
from torchlift.training import BackPropagation


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the full MNIST, in a folder of its own."""
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[network]\nactivaton = 'relu'", "run.toml: [network]: expected the keys"),
        ("[network]\nactivaton = 'relu'", "got 'activaton'. Did you mean 'activation'?"),
        (
            "[netwrok]\nkind = 'MLP'",
            "section: expected one of 'data', 'network', 'training', 'phase', got 'netwrok'. Did you",
        ),
        ("[network]\nlr = 0.1", "got 'lr'. It belongs to [training]."),
        ("[[phase]]\nepoch = 1", "[[phase]] 1: expected the keys"),
        ("[[phase]]\nseed = 1", "It belongs to [training]."),
        ("[network]\nkind = 'mlp'", "[network] kind: expected one of 'MLP'"),
        ("[network]\nkind = 3", "[network] kind: expected a string, got the number 3"),
        ("[network]\nwidths = 256", "[network] widths: expected a list (a whole number each), got the number 256"),
        ("[network]\nwidths = [256, 'x']", "[network] widths: expected a list"),
        ("[network]\nthreshold = '0.2'", "[network] threshold: expected a number, got the string '0.2'"),
        ("[network]\nthreshold = true", "expected a number, got true"),
        ("[network]\nthreshold = 0.2", "expected nothing for relu, got 0.2"),
        ("[network]\nactivation = 'soft-threshold'", "a number > 0 for soft-threshold, got nothing"),
        ("[network]\nactivation = 'gelu'", "gelu is not a proximal map"),
        ("[network]\niterations = 3", "expected nothing for MLP, got 3. It belongs to LISTA, PrimalDual"),
        ("[network]\nwidths = [100000000, 100000000]", "something that fits into"),
        ("[network]\nwidths = [0]", "a whole number >= 1, got 0"),
        ("[network]\ndepth = 99999999999", "[network] depth: expected at most 10,000"),
        ("[network]\nwidths = [3, 4]\ndepth = 3", "[network] depth: expected 2, the number of widths, got 3"),
        ("[network]\nkind = 'LISTA'\ndictionary = 'dtc'", "Did you mean 'dct'?"),
        ("[network]\nkind = 'LISTA'\n[data]\ntask = 'classification'", "a task, whose forward model it unrolls"),
        ("[network]\nkind = 'LISTA'\nscale = 1e-200", "numbers of ordinary size"),
        ("[network]\nkind = 'PrimalDual'\nscale = 1e-200", "numbers of ordinary size"),
        ("[data]\ntask = 'denoise'", "Did you mean 'denoising'?"),
        ("[data]\nset = 'mnist'", "Full MNIST: expected"),
        ("[data]\nset = 'files'", "[data] path: expected a file or folder"),
        ("[data]\nset = 'files'\npath = 'absent.npz'", "absent.npz"),
        ("[data]\nset = 'files'\npath = 'run.toml'", "a name ending in .npz or .safetensors"),
        ("[data]\nimages = 5001", "[data] images: expected at most 5000 samples, got 5001"),
        ("[data]\nimages = 99999999999999999999999999", "at most 5000 samples"),
        ("[data]\nshare = 0.5", "[data] share: expected nothing for denoising"),
        ("[data]\nnoise = -1.0", "a number > 0, got -1.0"),
        ("[data]\ntask = 'deblurring'\nblur_size = 100001", "[data] blur_size: expected at most 255 pixels"),
        ("[data]\nnoise = nan", "a finite number"),
        ("[data]\nredraw = 1", "[data] redraw: expected true or false, got the number 1"),
        ("[data]\ntask = 'classification'\nredraw = true", "[data] redraw: expected a task that makes the inputs"),
        ("[training]\nsolver = 'adma'", "Did you mean 'adam'?"),
        ("[training]\nlifting = 'bergman'", "Did you mean 'bregman'?"),
        ("[training]\nlr = 0.1", "[training] lr: expected a solver to go with it"),
        ("[training]\nmu = 0.1", "[training] mu: expected a lifting, got none"),
        ("[training]\nsolver = 'sweep-descent'\ntau = 1",
         "tau: expected nothing for sweep-descent, got 1.0. It is an option of implicit-stochastic-gradient."),
        ("[training]\nsolver = 'isgm'", "got 'isgm'. It is 'implicit-stochastic-gradient' now."),
        ("[training]\nsolver = 'adam'\nlifting = 'bregman'", "expected lifting=Conventional(), got Bregman"),
        ("[training]\nsolver = 'adam'\nlr = -1", "[training] lr: expected a number > 0"),
        ("[training]\nepochs = 1\nsteps = 1", "epochs or steps, got both"),
        ("[training]\nepochs = 0", "epochs: expected a whole number >= 1, got 0"),
        ("[training]\nepochs = 1.5", "[training] epochs: expected a whole number, got the number 1.5"),
        ("[training]\nbatch_size = 'ful'", "batch_size: expected a whole number or 'full', got the string 'ful'"),
        ("[training]\nseed = 99999999999999999999999", "[training] seed"),
        ("[training]\nseed = -1", "[training] seed"),
        ("[training]\nthreads = 100000000", "[training] threads: expected at most 1024"),
        ("[training]\nloss = 'huger'", "Did you mean 'huber'?"),
        ("[training]\nmetrics = ['pnsr']", "psnr"),
        ("[training]\nweights = 'pass-thru'", "weights"),
        ("[training]\ntime_limit = inf", "time_limit: expected a finite number"),
        ("training = 3", "training: expected a section [training], got int"),
        ("phase = 3", "phase: expected tables [[phase]], in double brackets, got int"),
        ("[phase]\nsteps = 3", "tables [[phase]], in double brackets, got [phase]"),
        ("[[phase]]\nstep = 3", "got 'step'. Did you mean 'steps'?"),
        ("task = 'denoising'", "got 'task' before the first. It belongs to [data]: write that line above it."),
        ("[network]\nkind = 'mine.py:net'", "Write mine:net."),
        ("[training\n", "expected a TOML file, got"),
        ("x = " + "[" * 5000, "expected a TOML file, got"),
        ("[training]\nseed = " + "9" * 5000, "run.toml"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    with pytest.raises(TorchliftError, match=re.escape(reason)):
        prepare(settle(read_configuration("run.toml")))


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"inputs": np.zeros((5, 2))}, "an array targets, and perhaps inputs and context, got ['inputs']"),
        ({"targets": np.zeros((5, 2)), "z": np.zeros(3)}, "arrays named inputs, targets and context only, got z"),
        ({"targets": np.zeros((5, 2)), "x": np.zeros(5)}, "arrays named inputs, targets and context only, got x"),
        ({"targets": np.zeros((5, 2)), "inputs": np.zeros((4, 2))}, "as many samples as targets"),
        ({"targets": np.array(["a", "b"]), "inputs": np.zeros((2, 2))}, "targets: expected an array of numbers"),
        ({"targets": np.array([None, 3]), "inputs": np.zeros((2, 2))}, "pickle"),
        ({"targets": np.zeros((20, 2))}, "images"),
        ({"targets": np.zeros((0, 2)), "inputs": np.zeros((0, 2))}, "targets: expected at least one sample, got none"),
        ({"targets": np.zeros((20, 4, 4)), "context": np.zeros((20, 4, 4))}, "expected inputs beside a context"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, arrays: dict, reason: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(TorchliftError, match=re.escape(reason)):
        load_samples(DataSettings(set="files", path=tmp_path / "bad.npz"))


NAMED = {
    "x and y": (("x", "y"), "what the network is given to inputs and what it should give to targets"),
    "in capitals": (("X", "y"), "expected arrays named inputs and targets, got X and y"),
    "x alone": (("x",), "Rename it to targets if it is what the network should give, such as images for a task"),
    "y alone": (("y",), "expected arrays named inputs and targets, got y. Rename it"),
    "x, y and context": (("x", "y", "context"), "torchlift once read x as the targets and y as the inputs"),
}


@pytest.mark.parametrize("case", NAMED)
@pytest.mark.parametrize("kind", ["npz", "safetensors", "folder"])
def test_x_and_y_are_never_guessed(tmp_path: Path, case: str, kind: str) -> None:
    names, reason = NAMED[case]
    arrays = {name: np.zeros((20, 2)) for name in names}
    path = tmp_path / ("folder" if kind == "folder" else f"own.{kind}")
    if kind == "npz":
        np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    elif kind == "safetensors":
        save_file(arrays, path)
    else:
        if case == "in capitals":
            pytest.skip("whether X.npy is x.npy depends on the file system")
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    with pytest.raises(DataError, match=re.escape(reason)):
        load_samples(DataSettings(task="regression", set="files", path=path))


@pytest.mark.parametrize("kind", ["npz", "safetensors", "folder"])
def test_inputs_and_targets_are_what_they_are_called(tmp_path: Path, kind: str) -> None:
    arrays = {"inputs": np.arange(40.0).reshape(20, 2), "targets": -np.arange(20.0)[:, None]}
    path = tmp_path / ("folder" if kind == "folder" else f"own.{kind}")
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "safetensors":
        save_file(arrays, path)
    else:
        path.mkdir()
        for name, array in {**arrays, "x": np.zeros(3)}.items():  # another file there does not matter
            np.save(path / f"{name}.npy", array)
    samples = load_samples(DataSettings(task="regression", set="files", path=path, validation=0))
    np.testing.assert_array_equal(samples.train.inputs, arrays["inputs"])
    np.testing.assert_array_equal(samples.train.targets, arrays["targets"])


def test_targets_alone_need_a_task(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", targets=np.zeros((20, 2)))
    words = "expected arrays inputs and targets for regression, got targets alone"
    with pytest.raises(DataError, match=words):
        load_samples(DataSettings(task="regression", set="files", path=tmp_path / "own.npz"))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", inputs=np.zeros((9, 2)), targets=np.zeros((9, 2)))
    (tmp_path / "own.npz").write_bytes((tmp_path / "own.npz").read_bytes()[:100])
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "targets.npy").write_bytes(b"nonsense")
    for name in ("own.npz", "bad.safetensors", "folder"):
        with pytest.raises(DataError, match=name):
            load_samples(DataSettings(set="files", path=tmp_path / name))


def test_configurations_survive_writing_and_reading(tmp_path: Path) -> None:
    configuration = Configuration(
        data=DataSettings(path=Path('odd "name" \\ ü\x7f\n'), noise=1e-05, redraw=True),
        network=NetworkSettings(widths=(3, 4), threshold=1e16, parameters=(0.1, 2.0)),
        training=TrainingSettings(mu=(0.1, 1.0), batch_size="full", metrics=("psnr",), state_dtype="bfloat16"),
        phase=(PhaseSettings(mu=2.0, steps=3), PhaseSettings(batch_size=5)),
    )
    write_configuration(tmp_path / "c.toml", configuration, "a heading")
    assert read_configuration(tmp_path / "c.toml") == configuration
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(data=st.data(), kind=st.sampled_from([DataSettings, NetworkSettings, TrainingSettings, PhaseSettings]))
def test_any_value_is_taken_or_refused(data: st.DataObject, kind: type) -> None:
    names = st.sampled_from(sorted(types_of(kind))) | st.text(max_size=5)
    values = data.draw(st.dictionaries(names, VALUES, max_size=3))
    try:
        settings = settings_from(kind, values, "[section]", {})
    except TorchliftError:
        return
    plain = (str, int, float, bool, tuple, Path)
    assert all(isinstance(getattr(settings, name), plain) or values[name] is None for name in values)


def test_phases_inherit_what_goes_together() -> None:
    training = TrainingSettings(
        lifting="bregman", mu=0.5, solver="proximal-adam", lr=0.1, epochs=3, batch_size=7, name="shared"
    )
    first, second, third = build_phases(
        Configuration(
            training=training,
            phase=(
                PhaseSettings(name="same"),
                PhaseSettings(lifting="classical", steps=4),
                PhaseSettings(lifting="conventional", solver="adam", weight_decay=0.1),
            ),
        )
    )
    assert (first.lifting, first.epochs, first.batch_size, first.name) == (Bregman(0.5), 3, 7, "same")
    assert (second.lifting, second.solver, second.epochs, second.steps) == (Classical(), None, None, 4)
    assert (third.lifting, third.epochs, third.name) == (Conventional(), 3, None)
    assert isinstance(third.solver, BackPropagation)
    assert third.solver.optimiser.keywords == {"weight_decay": 0.1}  # type: ignore[attr-defined]


def test_an_optimiser_of_torch_means_back_propagation() -> None:
    (phase,) = build_phases(Configuration(training=TrainingSettings(solver="sgd", lr=0.1)))
    assert phase.lifting == Conventional()


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_is_made_with_its_options(name: str) -> None:
    given = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1, "anneal": "cosine", "tau": 2.0, "inner_steps": 3}
    given |= {"matched": True, "prox_scale": 10.0}
    options: dict[str, Any] = {option: given[option] for option in options_of(name)}
    assert build_phases(Configuration(training=TrainingSettings(solver=name, **options)))[0].solver is not None


def test_solvers_have_the_names_of_python() -> None:
    """Those of classes and functions of `torchlift.solvers`, `torchlift.training` or `torch.optim`."""
    names = {*dir(torchlift.solvers), *dir(torchlift.training), *dir(torch.optim)}
    spelt = {name.lower() for name in names}
    assert {name.replace("-", "") for name in SOLVERS} <= spelt
    assert {*SOLVERS} & {*torchlift.solvers.SOLVERS} == {
        "block-coordinate-descent", "linearised-bcd", "implicit-stochastic-gradient", "proximal-gradient",
    }  # fmt: skip
    assert options_of("sgd") == ["lr", "momentum", "weight_decay", "anneal"]
    assert options_of("implicit-stochastic-gradient") == ["tau", "inner_steps"]


def test_data_follow_seed_and_counts() -> None:
    settings = DataSettings(images=20, validation=5)
    first, again, other = (load_samples(settings, torch.float64, seed) for seed in (1, 1, 2))
    assert torch.equal(first.train.y, again.train.y)
    assert not torch.equal(first.train.y, other.train.y)
    assert torch.equal(first.train.x, other.train.x)
    assert first.validation is not None
    assert (len(first.train.y), len(first.validation.y), first.train.y.dtype) == (20, 5, torch.float64)
    noise = first.train.y - first.train.x
    assert float(noise.std()) == pytest.approx(0.15, rel=0.02)
    assert load_samples(DataSettings(images=20, validation=0)).validation is None


def test_redrawn_data_differ_from_epoch_to_epoch() -> None:
    setup = prepare(Configuration(data=DataSettings(images=20, validation=5, redraw=True)))
    assert callable(setup.data)
    draws = [setup.data(torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    assert not torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])


def test_the_full_set_is_split(full_mnist_path: Path) -> None:
    settings = DataSettings(task="classification", set="mnist", path=full_mnist_path, images=100)
    samples = load_samples(settings)
    assert samples.validation is not None
    assert (len(samples.train.y), len(samples.validation.y), samples.out_shape) == (100, 5000, (10,))


def test_the_documented_file_is_valid(repository: Path, tmp_path: Path) -> None:
    text = (repository / "docs" / "training.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "run.toml").write_text(block, encoding="utf-8")
    configuration = read_configuration(tmp_path / "run.toml")
    assert [phase.title for phase in build_phases(configuration)] == ["lifted", "back-propagation"]
    for name in SOLVERS:
        assert f"`{name}`" in text
