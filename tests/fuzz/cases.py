"""Every kind of file that is read: how a valid one is made, and what reads it."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from report.examples import example
from torchlift import report
from torchlift.cli.invert_files import read_batch
from torchlift.cli.report import find_runs
from torchlift.cli.settings.arrays import read_arrays, read_safetensors
from torchlift.cli.settings.files import read_configuration
from torchlift.data import load_images
from torchlift.data.idx import read_idx
from torchlift.io import (
    Checkpoints,
    load_model,
    load_tensors,
    save_model,
    save_tensors,
    write_index,
    write_shard,
)
from torchlift.io.stored import LocalShard, ShardedTensor
from torchlift.lab.reproduction import EXPERIMENTS
from torchlift.lab.reproduction.run import check_folder
from torchlift.networks import DDFB, LISTA, MLP, PrimalDual, ResNet, Shallow, lift
from torchlift.operators import Blur, FiniteDifference, Mask
from torchlift.prox import SoftThreshold
from torchlift.report.records import Table, latex, load_record, record_markdown, save_record
from torchlift.training import History, read_history

TOML = b"""# torchlift
[data]
task = "denoising"
images = 40
noise = 0.15
redraw = true

[network]
kind = "MLP"
widths = [12, 7]
activation = "soft-threshold"
threshold = 2e-2

[training]
steps = 4
metrics = ["psnr"]
mu = [0.1, 1]

[[phase]]
lr = 1
batch_size = "full"
"""


@dataclass(frozen=True)
class Case:
    """A reader.

    Arguments:
        make: writes valid files into a folder, and returns the one to damage.
        read: reads the folder.
        seal: puts a right checksum around a content; None where there is none.
        json: whether the file is JSON.
    """

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    seal: Callable[[Path, bytes], bytes] | None = None
    json: bool = False


def _idx(folder: Path, packed: bool) -> Path:
    content = b"\0\0" + struct.pack(">BB3I", 8, 3, 2, 4, 4) + bytes(range(32))
    file = folder / ("x-idx3.gz" if packed else "x-idx3")
    file.write_bytes(gzip.compress(content) if packed else content)
    return file


def _read_idx(folder: Path, packed: bool) -> None:
    file = folder / ("x-idx3.gz" if packed else "x-idx3")
    read_idx(file, shape=(None, None, None))
    read_batch(file, (1, 4, 4), None)


def _toml(folder: Path) -> Path:
    file = folder / "config.toml"
    file.write_bytes(TOML)
    return file


def _pair(folder: Path) -> Path:
    tensors = {"weight": torch.arange(6.0).view(2, 3), "count": torch.tensor(3)}
    return save_tensors(folder / "pair", tensors, {"a": [1, 2.5, None], "b": {"c": "d"}}) / "record.json"


def _shards(folder: Path) -> Path:
    path = folder / "pair"
    path.mkdir()
    halves = [torch.arange(6.0).view(2, 3), torch.ones(1, 3)]
    slices = [((0, 2), (0, 3)), ((2, 3), (0, 3))]
    tensors = [{"weight": ShardedTensor((3, 3), (LocalShard(s, t),))} for s, t in zip(slices, halves, strict=True)]
    tensors[0]["count"] = ShardedTensor.whole(torch.tensor(3))
    written = [write_shard(path, number, 2, local) for number, local in enumerate(tensors)]
    write_index(path, written, "data=2", {"a": 1}, "model")
    return path / "record.json"


def _checkpoints(folder: Path) -> Path:
    saved = Checkpoints(folder / "run")
    saved.save(1, {"w": torch.ones(3)}, {"loss": 1.0})
    return saved.save(2, {"w": torch.ones(3)}, {"loss": 0.5}) / "record.json"


def _read_checkpoints(folder: Path) -> None:
    found = Checkpoints(folder / "run")
    found.steps()
    checkpoint = found.load()
    assert checkpoint.step in (1, 2)
    dict(checkpoint.tensors)


NETWORKS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: MLP([3, 4, 2], SoftThreshold(torch.tensor([0.1, 0.2, 0.3, 0.4]))),
    "resnet": lambda: ResNet(3, 4, 2),
    "shallow": lambda: Shallow(3, [2, 4], 2),
    "lista": lambda: LISTA(Blur(torch.ones(3, 3) / 9, (1, 4, 4)), torch.eye(16), 2),
    "coupled": lambda: LISTA(Mask(shape=(1, 2, 2)), torch.eye(4), 2, form="coupled", context=torch.ones(1, 1, 2, 2)),
    "primal-dual": lambda: PrimalDual(0.5 * Mask(torch.ones(1, 3, 3)), FiniteDifference((1, 3, 3)), 2),
    "denoiser": lambda: DDFB((2, 4, 3), 2, features=3, size=3),
    "convolutions": lambda: lift(
        torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 3)),
        (1, 4, 4),
    ),
}


def _model(folder: Path, name: str) -> Path:
    return save_model(folder / "model", NETWORKS[name]()) / "record.json"


def _read_model(folder: Path) -> None:
    network = load_model(folder / "model")
    repr(network)


def _record(folder: Path) -> Path:
    return save_record(folder, example()) / "record.json"


def _read_record(folder: Path) -> None:
    record = load_record(folder)
    report.html([record, record], ["a", "b"])
    record_markdown(record, [figure.name for figure in record.figures])
    for figure in record.figures:
        if isinstance(figure, Table):
            latex(figure)


def _history(folder: Path) -> Path:
    history = History(folder / "history.jsonl")
    for step in (1, 2):
        history.append({"kind": "train", "phase": "p", "step": step, "loss": 1 / step, "seconds": 0.1 * step})
        metrics = {"psnr": float(step), "loss": 2.0}
        history.append({"kind": "validation", "phase": "p", "step": step, "loss": 2.0, "metrics": metrics})
    return folder / "history.jsonl"


def _read_history(folder: Path) -> None:
    history = read_history(folder / "history.jsonl")
    history._repr_html_()
    for row in history:
        for name in row["metrics"]:
            history.column(name, "validation")


def _training(folder: Path) -> Path:
    """A finished run of `torchlift train`, without its network."""
    _toml(folder)
    _history(folder)
    content = {
        "format": 1,
        "configuration": {"data": {"task": "denoising"}, "phase": [{"lr": 1}]},
        "versions": {"torchlift": "0.1.0"},
        "units": {"psnr": "dB", "loss": ""},
        "message": "Trained.",
        "validation": {"start": {"step": None, "metrics": {"psnr": 1.0}}, "best": {"step": 3, "metrics": {}}},
        "seconds": 1.5,
        "threads": 1,
    }
    file = folder / "train.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def _inversion(folder: Path) -> Path:
    np.save(folder / "x.npy", np.zeros((2, 1, 4, 4), dtype=np.float32))
    image = {"status": "converged", "steps": 3, "weight": 0.1, "residual": 0.2, "psnr": 12.5}
    content = {
        "format": 1, "model": "m", "data": "d", "in_shape": [1, 4, 4], "out_shape": [3], "prior": "l1",
        "algorithm": "sweep", "message": "Done.", "gaps": [0.1, None], "weight": 0.1, "psnr": 12.0,
        "trace": {"rule": "discrepancy", "rows": [{"weight": 0.1, "residual": 1.0}, {"weight": 1.0, "residual": 2.0}]},
        "images": [image, {**image, "psnr": 13.0}], "command": "torchlift invert", "environment": {"threads": 1},
        "seconds": 2.5,
    }  # fmt: skip
    file = folder / "invert.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def _read_run(folder: Path) -> None:
    found, _ = find_runs([folder])
    report.html([run.record for run in found])


EXPERIMENT = next(iter(EXPERIMENTS.values()))


def _settings(folder: Path) -> Path:
    own = folder / EXPERIMENT.name
    own.mkdir()
    from torchlift import __version__

    content = {
        "settings": {"experiment": EXPERIMENT.name, "scale": "tiny", "seed": 0, "torchlift": __version__},
        "environment": {"threads": 1},
        "seconds": 1.5,
    }
    file = own / "settings.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def _npz(folder: Path, packed: bool) -> Path:
    arrays = {"targets": np.zeros((3, 4, 4), dtype=np.float32), "inputs": np.ones((3, 2), dtype=">u2")}
    (np.savez_compressed if packed else np.savez)(folder / "data.npz", **arrays)
    return folder / "data.npz"


def _npy(folder: Path) -> Path:
    np.save(folder / "targets.npy", np.asfortranarray(np.arange(48.0).reshape(3, 4, 4)))
    return folder / "targets.npy"


def _read_npy(folder: Path) -> None:
    read_arrays(folder)
    read_batch(folder / "targets.npy", (1, 4, 4), None)


def _safetensors(folder: Path) -> Path:
    tensors = {"targets": torch.ones(3, 4), "inputs": torch.ones(3, 2, dtype=torch.float16)}
    save_file(tensors, folder / "data.safetensors")
    return folder / "data.safetensors"


def _read_safetensors(folder: Path) -> None:
    read_arrays(folder / "data.safetensors")
    read_safetensors("weights", folder / "data.safetensors")


def _png(folder: Path) -> Path:
    from PIL import Image

    Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).save(folder / "0.png")
    return folder / "0.png"


def resealed(file: Path, content: bytes) -> bytes:
    """`record.json` whose checksum is right whatever the content."""
    digest = hashlib.sha256(content).hexdigest().encode()
    return b'{"sha256": "' + digest + b'", "content": ' + content + b"}\n"


CASES: dict[str, Case] = {
    "idx": Case(partial(_idx, packed=False), partial(_read_idx, packed=False)),
    "idx, gzip": Case(partial(_idx, packed=True), partial(_read_idx, packed=True)),
    "toml": Case(_toml, lambda folder: read_configuration(folder / "config.toml")),
    "pair": Case(_pair, lambda folder: load_tensors(folder / "pair"), resealed, json=True),
    "shards": Case(_shards, lambda folder: load_tensors(folder / "pair"), resealed, json=True),
    "checkpoints": Case(_checkpoints, _read_checkpoints, resealed, json=True),
    **{f"model, {name}": Case(partial(_model, name=name), _read_model, resealed, json=True) for name in NETWORKS},
    "record": Case(_record, _read_record, resealed, json=True),
    "history": Case(_history, _read_history, json=True),
    "training": Case(_training, _read_run, json=True),
    "inversion": Case(_inversion, _read_run, json=True),
    "settings": Case(_settings, lambda folder: check_folder(EXPERIMENT, "tiny", 0, folder, resume=True), json=True),
    "npz": Case(partial(_npz, packed=False), lambda folder: read_arrays(folder / "data.npz")),
    "npz, packed": Case(partial(_npz, packed=True), lambda folder: read_arrays(folder / "data.npz")),
    "npy": Case(_npy, _read_npy),
    "safetensors": Case(_safetensors, _read_safetensors),
    "png": Case(_png, lambda folder: read_batch(folder, (1, 4, 4), None)),
    "photograph": Case(_png, load_images),
}
