# %% [markdown]
# # Two lines in your own loop
#
# The loop stays yours: model, data, loss and logging. `tl.sweeping()` replaces
# back-propagation and `tl.RelativeStep` the optimiser and its learning rate.
# Either can be used without the other.

# %%
import os

import torch
from torch import nn
from torch.nn import functional as F

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs = (300, 2) if TINY else (4000, 3)
digits, test = tl.data.load_digits("train"), tl.data.load_digits("test")
images, labels = digits.images[:count], digits.labels[:count]

# %% [markdown]
# A network of strided convolutions with torch's own start.


# %%
def build():
    """Always the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.Tanh()),
        *(nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10)),
    )


@torch.no_grad()
def accuracy(model):
    """In per cent of the test digits."""
    return 100 * float((model(test.images).argmax(1) == test.labels).float().mean())


# %% [markdown]
# One loop for all. `gradient` and `optimiser` are the two lines.


# %%
def run(model, optimiser, gradient):
    """Accuracy after every epoch."""
    history, order = [accuracy(model)], torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for batch in torch.randperm(count, generator=order).split(100):
            with gradient():
                loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        history.append(accuracy(model))
    return history


runs = {}
for rate in (1e-3, 1e-2):
    model = build()
    adam = torch.optim.Adam(model.parameters(), lr=rate)
    runs[f"back-propagation, Adam {rate:g}"] = run(model, adam, torch.enable_grad)
model = build()
adam = torch.optim.Adam(model.parameters(), lr=1e-3)
runs["sweeps, Adam 0.001"] = run(model, adam, tl.sweeping)
model = build()
runs["sweeps, RelativeStep"] = run(model, tl.RelativeStep(model), tl.sweeping)
for name, history in runs.items():
    print(f"{name}: {history[-1]:.1f} %")
assert TINY or min(history[-1] for history in runs.values()) > 80

# %% [markdown]
# These layers are healthy, and all four learn: the point is what it takes to
# try. Where layers are dead see [Dead layers come alive](dead_layers.md).

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, history in runs.items():
    axis.plot(history, "--" if "back" in name else "-", marker="o", label=name)
axis.set(xlabel="epoch", ylabel="test digits recognised (%)")
axis.legend()
