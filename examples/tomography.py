# %% [markdown]
# # Tomography from few angles
#
# A scanner measures integrals along parallel rays, here at 30 angles instead of
# hundreds: $y = H x + \text{noise}$ with the Radon transform $H$. Ways back:
#
# - filtered back-projection, the classical formula, which draws streaks where angles
#   are missing;
# - total variation by the primal-dual hybrid gradient method;
# - plug-and-play with the bundled denoiser of photographs;
# - filtered back-projection and then a network that was trained to mend it on random
#   ellipses.

# %%
import importlib.util
import math
import os

import torch

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller images, fewer steps
side, angles, count, steps = (24, 8, 20, 3) if TINY else (64, 30, 100, 150)
shape = (1, side, side)

# %% [markdown]
# Two images are to be found: the Shepp–Logan phantom and, with `pip install nilearn`, a
# slice of the MNI ICBM 152 template of a human brain (copyright 1993–2009 Louis Collins,
# McConnell Brain Imaging Centre, McGill University), which is nothing like the ellipses
# that the network learns from; else the slice is one more random phantom.

# %%
generator = torch.Generator().manual_seed(1)
train = tl.data.random_phantoms(count, side, generator)
truth = torch.cat([tl.data.shepp_logan(side)[None], tl.data.random_phantoms(1, side, generator)])
if importlib.util.find_spec("nilearn") is not None and not TINY:
    from nilearn.datasets import load_mni152_template

    volume = torch.tensor(load_mni152_template(resolution=2).get_fdata(dtype="float32"))
    middle = volume.permute(2, 1, 0).flip(1)[42:43, None] / volume.max()
    truth[1:] = torch.nn.functional.interpolate(middle, (side, side), mode="area")

task = tl.data.Tomography(angles=angles, noise=0.003)
H = task.operator(shape)
y = task.degrade(truth, torch.Generator().manual_seed(0)).y

# %% [markdown]
# Filtered back-projection: the adjoint of $H$ after a filter that multiplies
# frequencies of the measurements by their absolute value.


# %%
def back_projection(y):
    length = 2 * y.shape[-1]
    spectrum = torch.fft.rfft(y, length) * torch.fft.rfftfreq(length)
    filtered = torch.fft.irfft(spectrum, length)[..., : y.shape[-1]]
    return H.adjoint(filtered) * side**2 * math.pi / angles


results = {"back-projection": back_projection(y)}

# %% [markdown]
# Total variation, and the denoiser as a prior. $H$ has a small norm, and weights
# of 1e-4 make the dual variables of total variation just as small: the iteration needs
# small dual steps and long primal ones. The denoiser was made for colours: a grey image
# is shown to it in three equal channels. The weights of both are those of three that
# restore one of the random phantoms best.

# %%
differences = tl.operators.FiniteDifference(shape)
dual_step = 0.02 * float(H.norm_bound()) ** 2 / float(differences.norm_bound()) ** 2
denoiser = tl.io.load_denoiser()
prior = tl.priors.PlugAndPlay(
    lambda x, step: denoiser.prox(x.expand(-1, 3, -1, -1), step).mean(1, keepdim=True)
)


@torch.no_grad()
def total_variation(y, weight):
    method = tl.networks.PrimalDual(
        H, differences, 20 if TINY else 150, threshold=weight, dual_step=dual_step, tied=True
    )
    return method(y)


def plug_and_play(y, weight):
    start, count = back_projection(y), 3 if TINY else 25
    return tl.invert(H, y, prior, weight, start=start, max_steps=count, progress=False).x


def chosen(restore, weights):
    """The weight that restores one of the random phantoms best."""
    other = train[:1]
    measured = task.degrade(other, torch.Generator().manual_seed(2)).y
    errors = {w: float((restore(measured, w) - other).square().sum()) for w in weights}
    return min(errors, key=errors.get)


weight = chosen(total_variation, (1e-5, 3e-5, 1e-4))
results["total variation"] = total_variation(y, weight)
strength = chosen(plug_and_play, (1e-3, 3e-3, 1e-2))
results["plug-and-play"] = plug_and_play(y, strength)
print(f"weight of total variation {weight:g}, strength of the denoiser {strength:g}")

# %% [markdown]
# A network that learns to mend back-projections.

# %%
drafts = back_projection(task.degrade(train, generator).y)
network = tl.networks.DDFB(
    shape, 6, features=24, size=3, threshold=0.05, generator=torch.Generator().manual_seed(0)
)
tl.train(network, (drafts, train), batch_size=4, steps=steps, progress=False)
with torch.no_grad():
    results["learned"] = network(results["back-projection"])

# %%
for name, image in results.items():
    phantom, other = tl.data.psnr(image.clamp(0, 1), truth).tolist()
    print(f"{name}: phantom {phantom:.2f} dB, slice {other:.2f} dB")

# %%
figure = tl.plot.pictures(
    {"truth": truth, **{name: image.clamp(0, 1) for name, image in results.items()}}
)
