# %% [markdown]
# # Deblur a photograph
#
# A colour photograph $x$ was out of focus: $y = H x + \text{noise}$, where $H$ blurs.
# Ways back:
#
# - total variation by the primal-dual hybrid gradient method;
# - plug-and-play: accelerated gradient steps in which a bundled denoiser takes the place
#   of the proximal map, once the one that denoises best and once the firmly
#   nonexpansive one;
# - a primal-dual network with learned filters, trained on patches of two other
#   photographs.

# %%
import os

import torch

import torchlift as tl
from torchlift.data import Deblurring, Patches, apply_in_tiles

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: a smaller picture, fewer steps
side, size, steps = (48, 32, 3) if TINY else (128, 32, 200)
astronaut, cat, coffee = tl.data.load_photographs()
truth = cat[None, :, 60 : 60 + side, 70 : 70 + side]
noise = 0.01
task = Deblurring(size=9, sigma=1.6, noise=noise)
H = task.operator((3, side, side))
y = task.degrade(truth, torch.Generator().manual_seed(0)).y
results = {"measured": y}

# %% [markdown]
# Total variation. `PrimalDual` with finite differences, not trained, is the classical
# method. Weights of this and of the next method were chosen on the photograph of the
# coffee.

# %%
differences = tl.operators.FiniteDifference((3, side, side))
method = tl.networks.PrimalDual(H, differences, 20 if TINY else 200, threshold=2e-3, tied=True)
with torch.no_grad():
    results["total variation"] = method(y)

# %% [markdown]
# Plug-and-play. `invert` takes a linear operator for a network, and a denoiser for a
# prior; the weight is the strength of the denoiser, 1 for noise of 25/255.

# %%
for name, certified in (("plug-and-play", False), ("plug-and-play, certified", True)):
    prior = tl.priors.PlugAndPlay(tl.io.load_denoiser(certified=certified))
    found = tl.invert(H, y, prior, 0.005, start=y, max_steps=5 if TINY else 30, progress=False)
    results[name] = found.x

# %% [markdown]
# A network that learns. It sees patches; the whole picture is put together from
# overlapping squares.

# %%
filters = tl.operators.convolutional_dictionary((3, size, size), 3).T
network = tl.networks.PrimalDual(task.operator((3, size, size)), filters, 6, threshold=2e-3)
patches = Patches([astronaut, coffee], task, size, count=200)
tl.train(network, patches, batch_size=4, steps=steps, progress=False)
results["learned"] = apply_in_tiles(network, y, size, overlap=16)

# %%
for name, image in results.items():
    print(f"{name}: {float(tl.data.psnr(image.clamp(0, 1), truth)):.2f} dB")

# %%
figure = tl.plot.pictures(
    {"truth": truth, **{name: image.clamp(0, 1) for name, image in results.items()}}
)
