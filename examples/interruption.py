# %% [markdown]
# # Interrupted and resumed
#
# A run with a folder saves itself. Killed and started again by the same call,
# it ends with the same parameters as one that was left alone, bit for bit.

# %%
import os
import signal
import tempfile

import torch

import torchlift as tl
from torchlift.training import TrainingInterrupted

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs = (200, 2) if TINY else (2000, 6)
digits = tl.data.load_digits("train")
data = (digits.images[:count].flatten(1), digits.labels[:count])


def network():
    """Always the same weights."""
    generator = torch.Generator().manual_seed(0)
    return tl.networks.MLP([784, 64, 64, 10], generator=generator)


# %% [markdown]
# Left alone.

# %%
settings = {"epochs": epochs, "batch_size": 50, "progress": False}
whole = tl.train(network(), data, **settings)
print(whole.steps, "steps")

# %% [markdown]
# Stopped by Ctrl-C in the middle, which the callback presses.

# %%
folder = tempfile.mkdtemp()


def press_ctrl_c(row):
    """After half of the steps."""
    if row["step"] >= whole.steps // 2:
        os.kill(os.getpid(), signal.SIGINT)


history = []
try:
    tl.train(network(), data, folder=folder, callback=press_ctrl_c, **settings)
except TrainingInterrupted as interrupted:
    history = interrupted.result.history
    print("stopped after step", interrupted.result.steps)

# %% [markdown]
# The same call again.

# %%
resumed = tl.train(network(), data, folder=folder, resume=True, **settings)
pairs = zip(whole.network.parameters(), resumed.network.parameters())
print(resumed.steps, "steps; the same parameters:", all(torch.equal(a, b) for a, b in pairs))

# %%
figure = tl.plot.training(whole.history, history, labels=["left alone", "stopped"])
