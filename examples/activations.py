# %% [markdown]
# # What passes where an activation is flat
#
# A proximal activation and what a sweep puts in the place of its derivative:
# a finite difference, as wide as the signal is large.

# %%
import torch

import torchlift as tl

names = ("relu", "soft-threshold", "box", "tanh")
sigmas = [tl.ReLU(), tl.SoftThreshold(0.5), tl.Box(-1, 1), tl.Tanh()]
v = torch.linspace(-2, 2, 401)

# %% [markdown]
# All of them are firmly nonexpansive: they never enlarge a distance.

# %%
w = torch.randn(1000, generator=torch.Generator().manual_seed(0))
u = torch.randn(1000, generator=torch.Generator().manual_seed(1))
for name, sigma in zip(names, sigmas):
    change = sigma(w) - sigma(u)
    print(name, bool((change.square() <= change * (w - u) + 1e-6).all()))

# %% [markdown]
# The derivative is zero on flat parts; the difference over a width $s$ is not
# zero within $s$ of their ends. That is what brings dead layers to life.

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 4, figsize=(11, 2.6), sharey=True, layout="constrained")
for axis, name, sigma in zip(axes, names, sigmas):
    axis.plot(v, sigma(v), color="0.7", label="activation")
    for s, style in ((0.01, "k:"), (0.5, "C3-")):
        response = (sigma(v + s) - sigma(v - s)) / (2 * s)
        axis.plot(v, response, style, label=f"response, s = {s:g}")
    axis.set(title=name, xlabel="v")
axes[0].legend(fontsize=7)
