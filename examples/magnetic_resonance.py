# %% [markdown]
# # Magnetic resonance imaging
#
# A scanner measures columns of the Fourier transform of a slice, one after the other.
# With a quarter of them the scan takes a quarter of the time: $y = S F x + \text{noise}$,
# where the mask $S$ keeps the columns near frequency 0 and others at random. Ways back:
#
# - zeros in place of what was not measured;
# - total variation by the primal-dual hybrid gradient method;
# - plug-and-play with the bundled denoiser of photographs;
# - a primal-dual network with learned filters, trained on other slices.

# %%
import importlib.util
import os

import torch

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller images, fewer steps
side, steps = (24, 3) if TINY else (96, 200)
shape = (1, side, side)

# %% [markdown]
# With `pip install nilearn` the slices are those of a human brain, the MNI ICBM 152
# template in nilearn's wheel (copyright 1993–2009 Louis Collins, McConnell Brain Imaging
# Centre, McGill University); else random ellipses and the Shepp–Logan phantom. Of the
# brain, the slice in the middle is to be found, and those nearer than 10 mm are set
# aside. All are from one brain, an average over many people: what is learned there need
# not hold for others.


# %%
def brain():
    """Axial slices (n, 1, side, side) from low to high, 2 mm apart, values in [0, 1]."""
    from nilearn.datasets import load_mni152_template

    volume = torch.tensor(load_mni152_template(resolution=2).get_fdata(dtype="float32"))
    slices = volume.permute(2, 1, 0).flip(1)[12:72, None]  # nose upwards
    return torch.nn.functional.interpolate(slices / volume.max(), (side, side), mode="area")


if importlib.util.find_spec("nilearn") is not None and not TINY:
    slices = brain()
    middle = len(slices) // 2
    truth = slices[middle : middle + 1]
    train = torch.cat([slices[: middle - 5], slices[middle + 6 :]])
else:
    truth = tl.data.shepp_logan(side)[None]
    train = tl.data.random_phantoms(8 if TINY else 60, side, torch.Generator().manual_seed(1))

task = tl.data.MagneticResonance(acceleration=4, centre=0.08, noise=0.005)
H = task.operator(shape)
y, mask = task.degrade(truth, torch.Generator().manual_seed(0))
results = {"zero-filled": H.adjoint(y, mask)}

# %% [markdown]
# Total variation, and the denoiser as a prior. The denoiser was made for colours: a grey
# image is shown to it in three equal channels. The weights of both are those of three
# that restore one of the other slices best.

# %%
differences = tl.operators.FiniteDifference(shape)
denoiser = tl.io.load_denoiser()
prior = tl.priors.PlugAndPlay(
    lambda x, step: denoiser.prox(x.expand(-1, 3, -1, -1), step).mean(1, keepdim=True)
)


@torch.no_grad()
def total_variation(y, mask, weight):
    method = tl.networks.PrimalDual(
        H, differences, 20 if TINY else 300, threshold=weight, tied=True, context=mask
    )
    return method(y, mask)


def plug_and_play(y, mask, weight):
    start, count = H.adjoint(y, mask), 3 if TINY else 40
    found = tl.invert(
        H, y, prior, weight, start=start, context=mask, max_steps=count, progress=False
    )
    return found.x


def chosen(restore, weights):
    """The weight that restores one of the other slices best."""
    number = len(train) // 2
    other = train[number : number + 1]
    measured = task.degrade(other, torch.Generator().manual_seed(2))
    errors = {w: float((restore(*measured, w) - other).square().sum()) for w in weights}
    return min(errors, key=errors.get)


weight = chosen(total_variation, (1e-3, 3e-3, 1e-2))
results["total variation"] = total_variation(y, mask, weight)
strength = chosen(plug_and_play, (0.1, 0.3, 1.0))
results["plug-and-play"] = plug_and_play(y, mask, strength)
print(f"weight of total variation {weight:g}, strength of the denoiser {strength:g}")

# %% [markdown]
# A network that learns. Other columns are measured in every slice and every epoch.

# %%


def draw(generator):
    """Measurements, slices and masks of one epoch."""
    measured = task.degrade(train, generator)
    return measured.y, train, measured.context


filters = tl.operators.convolutional_dictionary(shape, 3).T
network = tl.networks.PrimalDual(H, filters, 8, threshold=5e-3, context=mask)
tl.train(network, draw, batch_size=4, steps=steps, progress=False)
with torch.no_grad():
    results["learned"] = network(y, mask)

# %%
for name, image in results.items():
    print(f"{name}: {float(tl.data.psnr(image.clamp(0, 1), truth)):.2f} dB")

# %%
figure = tl.plot.pictures(
    {"truth": truth, **{name: image.clamp(0, 1) for name, image in results.items()}}
)
