# %% [markdown]
# # An inversion with a certificate
#
# For a single layer the lifted inversion problem is convex. `algorithm="exact"`
# solves it and proves how far from the optimum it can be: a duality gap.

# %%
import os

import torch
from torch import nn

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, outputs = (1, 300) if TINY else (4, 1000)
images = tl.data.load_digits("test").images[:count].double()

# %% [markdown]
# A perceptron with random weights and soft-thresholds, which set small values
# to zero: from such an output, with noise, the digit is sought.

# %%
torch.manual_seed(0)
module = nn.Sequential(nn.Flatten(), nn.Linear(784, outputs), nn.Softshrink(0.2)).double()
network = tl.lift(module, (1, 28, 28))
with torch.no_grad():
    clean = network(images)
noise = 0.05 * clean.std()
y = clean + noise * torch.randn_like(clean)
print(f"{float((clean == 0).double().mean()):.0%} of the outputs are zero")

# %% [markdown]
# Total variation and pixels in [0, 1]. The bound is proved, image by image.

# %%
prior = tl.priors.TotalVariation() + tl.priors.Box(0, 1)
found = tl.invert(network, y, prior, 1e-2, algorithm="exact", on_infeasible="project")
print(f"{float(tl.data.psnr(found.x, images).mean()):.1f} dB, {found.counts}")
for value, bound in zip(found.objective, found.bound):
    print(f"objective {value:.4f}, at most {bound:.1e} of it above the least possible")

# %%
figure = tl.plot.pictures({"image": images, "inverted": found.x})
