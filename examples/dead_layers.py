# %% [markdown]
# # Dead layers come alive
#
# Three layers of soft-thresholds at torch's default weights: every signal falls
# below the threshold before it reaches the output, and every derivative is
# zero. Both loops below start from these same weights. Two lines differ.

# %%
import os

import torch
from torch import nn
from torch.nn import functional as F

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
width, depth, steps, every = (16, 3, 6, 2) if TINY else (128, 3, 300, 10)
digits, test = tl.data.load_digits("train"), tl.data.load_digits("test")


def build():
    """Always the same weights, torch's own."""
    torch.manual_seed(1)
    sizes = [784] + [width] * depth
    layers = [(nn.Linear(a, b), nn.Softshrink(0.3)) for a, b in zip(sizes, sizes[1:])]
    return nn.Sequential(nn.Flatten(), *[m for pair in layers for m in pair], nn.Linear(width, 10))


# %% [markdown]
# A unit is alive where it is not zero. This is the share of them in each layer,
# over 200 test digits.


# %%
@torch.no_grad()
def alive(model):
    """Share of non-zero activations in each layer."""
    shares, signal = [], test.images[:200]
    for module in model:
        signal = module(signal)
        if isinstance(module, nn.Softshrink):
            shares.append(float((signal != 0).float().mean()))
    return shares


@torch.no_grad()
def accuracy(model):
    """In per cent of all test digits."""
    return 100 * float((model(test.images).argmax(1) == test.labels).float().mean())


print("alive at the start:", " ".join(f"{share:.0%}" for share in alive(build())))

# %% [markdown]
# The same loop twice, with Adam and its usual rate for back-propagation and
# `RelativeStep` for sweeps.

# %%
generator = torch.Generator().manual_seed(1)
batches = [torch.randint(5000, (100,), generator=generator) for _ in range(steps)]


def run(model, optimiser, gradient):
    """The shares and the accuracy on the way."""
    history = [(alive(model), accuracy(model))]
    for step, batch in enumerate(batches, start=1):
        with gradient():
            loss = F.cross_entropy(model(digits.images[batch]), digits.labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % every == 0:
            history.append((alive(model), accuracy(model)))
    return history


plain, swept = build(), build()
runs = {
    "back-propagation, Adam": run(plain, torch.optim.Adam(plain.parameters()), torch.enable_grad),
    "sweeps, RelativeStep": run(swept, tl.RelativeStep(swept), tl.sweeping),
}
for name, history in runs.items():
    shares, right = history[-1]
    print(f"{name}: {right:.0f} %; alive:", " ".join(f"{share:.0%}" for share in shares))
assert TINY or accuracy(swept) > 80 > 20 > accuracy(plain)

# %% [markdown]
# Dark is dead. Of the seeds 0 to 15 of the weights, sweeps brought all to life (81 to
# 89 %). Of five such layers, where the signal is lost altogether, fourteen came above
# 50 %. `tl.train` looks for dead layers and changes the start. A start in which every
# layer answers helps back-propagation too ([A start for Adam](starts.md)).

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for axis, (name, history) in zip(axes, runs.items()):
    shares = torch.tensor([row[0] for row in history]).T
    extent = (0, steps, depth + 0.5, 0.5)
    axis.imshow(shares.numpy(), vmin=0, vmax=1, aspect="auto", extent=extent, cmap="magma")
    axis.set(title=f"{name}: {history[-1][1]:.0f} %", xlabel="step", ylabel="layer")
figure.colorbar(axes[0].images[0], ax=axes, label="share of units alive")
