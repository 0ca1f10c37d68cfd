# %% [markdown]
# # Denoise
#
# A network of soft-thresholds learns to remove noise from digits. Its hidden
# layers are as wide as the images and start as the identity, and no step size
# is chosen by hand.

# %%
import os

import torch

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs, depth = (200, 1, 2) if TINY else (5000, 2, 5)

# %% [markdown]
# Gaussian noise with standard deviation 0.15 on bundled digits.

# %%
task = tl.data.Denoising(noise=0.15)
clean, held_out = (
    tl.data.load_digits("train").images[:count],
    tl.data.load_digits("validation").images,
)
noisy = task.degrade(clean, torch.Generator().manual_seed(0)).y
noisy_held_out = task.degrade(held_out, torch.Generator().manual_seed(1)).y

# %% [markdown]
# Soft-thresholding is flat around zero, where back-propagation gets no signal.
# The default of `tl.train` puts finite differences of $\sigma$ in place of its
# derivative. `weights="identity"` starts every layer as the identity.

# %%
network = tl.networks.MLP([784] * (depth + 2), activation=tl.SoftThreshold(0.2))
result = tl.train(
    network,
    (noisy.flatten(1), clean.flatten(1)),
    validation=(noisy_held_out.flatten(1), held_out.flatten(1)),
    weights="identity",
    batch_size=50,
    epochs=epochs,
    progress=False,
)
print(network.depth, "hidden layers,", result.steps, "steps")

# %% [markdown]
# Images that training did not see, before and after.

# %%
test = tl.data.load_digits("test").images[:200]
noisy_test = task.degrade(test, torch.Generator().manual_seed(2)).y
with torch.no_grad():
    denoised = result.network(noisy_test.flatten(1)).view_as(test)
before, after = (float(tl.data.psnr(images, test).mean()) for images in (noisy_test, denoised))
print(f"noisy {before:.1f} dB, denoised {after:.1f} dB")
assert TINY or after > before + 6

# %%
figure = tl.plot.pictures({"clean": test[:8], "noisy": noisy_test[:8], "denoised": denoised[:8]})
