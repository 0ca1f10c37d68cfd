# %% [markdown]
# # A start for Adam
#
# `tl.initialise_weights` looks at the model and at some data and makes dead
# layers answer. What follows is ordinary PyTorch with Adam.

# %%
import copy
import os

import torch
from torch import nn
from torch.nn import functional as F

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, steps = (200, 3) if TINY else (3000, 60)

# %% [markdown]
# Denoising with three layers of soft-thresholds, as wide as the images.

# %%
task = tl.data.Denoising(noise=0.15)
clean, test = tl.data.load_digits("train").images[:count], tl.data.load_digits("test").images
noisy = task.degrade(clean, torch.Generator().manual_seed(0)).y.flatten(1)
noisy_test = task.degrade(test, torch.Generator().manual_seed(1)).y.flatten(1)
torch.manual_seed(0)
layers = [(nn.Linear(784, 784), nn.Softshrink(0.2)) for _ in range(3)]
model = nn.Sequential(*[module for layer in layers for module in layer], nn.Linear(784, 784))


@torch.no_grad()
def quality(model):
    """Mean PSNR of the test digits, in dB."""
    return float(tl.data.psnr(model(noisy_test).view_as(test), test).mean())


# %% [markdown]
# The starts: torch's own weights, each layer scaled until it answers (LSUV),
# the identity, and a ridge regression for every layer.

# %%
starts = {"torch": model}
for name in ("lsuv", "identity", "layer-wise"):
    starts[name] = copy.deepcopy(model)
    tl.initialise_weights(starts[name], (noisy[:500], clean.flatten(1)[:500]), name)
untrained = {name: quality(model) for name, model in starts.items()}

# %% [markdown]
# The same steps of Adam from each of them.

# %%
trained = {}
for name, model in starts.items():
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-4)
    order = torch.Generator().manual_seed(2)
    for _ in range(steps):
        batch = torch.randint(count, (50,), generator=order)
        loss = F.mse_loss(model(noisy[batch]), clean[batch].flatten(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    trained[name] = quality(model)
print(f"noisy: {float(tl.data.psnr(noisy_test.view_as(test), test).mean()):.1f} dB")
for name in starts:
    print(f"{name}: {untrained[name]:.1f} dB untrained, {trained[name]:.1f} dB after {steps} steps")
assert TINY or trained["layer-wise"] > trained["torch"] + 5

# %% [markdown]
# `tl.train` compares such starts by itself, on held-out samples.

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
places = torch.arange(len(starts))
axis.bar(places - 0.2, list(untrained.values()), 0.4, label="untrained")
axis.bar(places + 0.2, list(trained.values()), 0.4, label=f"after {steps} steps of Adam")
axis.set_xticks(places, list(starts))
axis.set(ylabel="PSNR of test digits (dB)")
axis.legend(loc="upper left")
