"""A run on a mesh leaves nothing behind that keeps process groups alive: those abort a process that ends with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import gc, sys, weakref
import torch
import torch.distributed as dist
import torchlift as tl
from torchlift.parallel import as_mesh
from torchlift.liftings import Bregman, Contrastive, Conventional

dist.init_process_group("gloo", f"file://{sys.argv[1]}", world_size=1, rank=0)
gc.collect()
gc.disable()  # until `train` asks for it
adam = {"lifting": Conventional(), "solver": torch.optim.Adam}
for settings in ({}, adam, {"lifting": Bregman()}, {"lifting": Contrastive()}):
    mesh = as_mesh("data=1", timeout=30)
    known = weakref.ref(mesh)
    data = torch.randn(20, 3), torch.randn(20, 2)
    options = tl.TrainOptions(mesh=mesh)
    tl.train(tl.networks.MLP([3, 4, 2]), data, batch_size=10, steps=3, options=options, progress=False, **settings)
    del mesh, options
    print("gone" if known() is None else f"kept by {settings}")
dist.destroy_process_group()
"""


def test_meshes_go_with_their_last_user(tmp_path: Path) -> None:
    """In a process of its own: what torch imports in the first step of an optimiser leaves cycles of its own."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "rendezvous")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["gone"] * 4 + [""]
