"""Trained networks in ONNX, torch.export and torch.compile."""

from __future__ import annotations

import io
import shutil
import sysconfig
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.export import Dim

import torchlift as tl
from torchlift.networks import LISTA, MLP, Network, ResNet

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `test` with ONNX")
pytest.importorskip("onnxscript", reason="needs the extra `test` with ONNX")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def trained() -> Network:
    y = torch.randn(40, 4, generator=seeded())
    network = MLP([4, 6, 6, 2], tl.SoftThreshold(0.1), generator=seeded())
    return tl.train(network, (y, y[:, :2]), steps=5, progress=False).network.eval()


def convolutional() -> Network:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    return tl.lift(stem, (1, 4, 4)).eval()


class Several(nn.Module):
    """Several networks side by side: one export is slow, so all go at once."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return [part(y) for part, y in zip(self.parts, inputs, strict=True)]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning")
def test_onnx_takes_batches_of_any_size() -> None:
    H, L = torch.randn(3, 5, generator=seeded()), torch.randn(5, 6, generator=seeded())
    networks = [
        trained(),
        trained().to_sequential(),
        convolutional(),
        ResNet(3, [2, 2], 2, tl.Tanh(), generator=seeded()).eval(),
        MLP([3, 4, 4, 2], [tl.Softmax(), tl.L2Ball(0.5)], generator=seeded()).eval(),
        LISTA(tl.operators.Dense(H), L, 2).eval(),
    ]
    shapes = [(4,), (4,), (1, 4, 4), (3,), (3,), (3,)]
    module = Several(*networks).eval()
    example = tuple(torch.zeros(2, *shape) for shape in shapes)
    dynamic = {"inputs": tuple({0: Dim.DYNAMIC} for _ in shapes)}
    program = torch.onnx.export(module, example, dynamo=True, dynamic_shapes=dynamic, verbose=False)
    assert program is not None
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    for batch in (1, 5):
        inputs = [torch.randn(batch, *shape, generator=seeded()) for shape in shapes]
        names = [each.name for each in session.get_inputs()]
        found = session.run(None, {name: y.numpy() for name, y in zip(names, inputs, strict=True)})
        for output, wanted in zip(found, module(*inputs), strict=True):
            torch.testing.assert_close(torch.from_numpy(output), wanted.detach(), rtol=1e-4, atol=1e-4)


def test_export_of_a_trained_network() -> None:
    network = trained()
    y = torch.randn(7, 4, generator=seeded())
    program = torch.export.export(network, (y,), dynamic_shapes=({0: Dim.DYNAMIC},))
    torch.testing.assert_close(program.module()(y[:3]), network(y[:3]))
    assert not any("torchlift" in str(node.target) for node in program.graph.nodes)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_objective_and_its_gradients_compile() -> None:
    """The value in one graph; gradients, which write into buffers of their own, in several."""
    network = trained()
    objective = tl.Objective(network, lifting=tl.liftings.Bregman())
    y, x = torch.randn(7, 4, generator=seeded()), torch.randn(7, 2, generator=seeded())
    z = objective.initialise(y, "forward")

    def gradients(y: Tensor, x: Tensor) -> list[Tensor]:
        return list(objective.gradients(y, x, z).parameters.values())

    torch.compiler.reset()
    value = torch.compile(lambda y, x: objective.value(y, x, z), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(value(y, x), objective.value(y, x, z))
    slopes = torch.compile(gradients, backend="aot_eager")
    torch.testing.assert_close(slopes(y, x), gradients(y, x))


def no_compiler() -> str | None:
    """Why torch.compile cannot make machine code here; None where it can."""
    if shutil.which("c++") is None and shutil.which("g++") is None:
        return "there is no C++ compiler"
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if headers.is_file() else f"the headers of Python are not installed: {headers}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, when its compiler is loaded
@pytest.mark.timeout(300)
@pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))
def test_forward_compiles_to_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    network = trained()
    y = torch.randn(7, 4, generator=seeded())
    torch.compiler.reset()
    # One small program: no processes that compile many, no headers compiled for many, no search for vector instructions
    # by programs that are compiled and run.
    small = {"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True}
    with torch._inductor.config.patch(small):
        torch.testing.assert_close(torch.compile(network, fullgraph=True)(y), network(y))
