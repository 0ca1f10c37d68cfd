# %% [markdown]
# # Invert an encoder
#
# An encoder maps an image to a code; noise falls on the code; which image was
# it? A decoder answers at once. Inverting the encoder itself, with a prior that
# knows what images look like, improves on the decoder's answer.

# %%
import os

import torch
from torch import nn

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs = (200, 1) if TINY else (5000, 4)
torch.manual_seed(0)

# %% [markdown]
# A small convolutional autoencoder, trained by Adam in the usual way.

# %%
encoder = nn.Sequential(
    *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU()),
    *(nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(784, 392)),
)
decoder = nn.Sequential(
    *(nn.Linear(392, 784), nn.ReLU(), nn.Unflatten(1, (16, 7, 7))),
    *(nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU()),
    nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
)
images = tl.data.load_digits("train").images[:count]
optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for _ in range(epochs):
    for batch in images[torch.randperm(count)].split(64):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(decoder(encoder(batch)), batch)
        loss.backward()
        optimiser.step()

# %% [markdown]
# Codes of images that training did not see, with noise of standard deviation
# 0.1.

# %%
x = tl.data.load_digits("test").images[: 10 if TINY else 100]
with torch.no_grad():
    clean_code = encoder(x)
    code = clean_code + 0.1 * torch.randn(
        clean_code.shape, generator=torch.Generator().manual_seed(1)
    )
    decoded = decoder(code)


def quality(found):
    """Mean PSNR in dB."""
    return float(tl.data.psnr(found, x).mean())


print(
    f"decoder: {quality(decoded):.1f} dB, clamped to [0, 1]: {quality(decoded.clamp(0, 1)):.1f} dB"
)

# %% [markdown]
# `tl.invert` looks for the image whose code is near the given one and whose
# total variation is small. Given the decoder and the noise level, it chooses how
# much the prior and the decoder's answer count.

# %%
prior = tl.priors.TotalVariation() + tl.priors.Box(0, 1)
found = tl.invert(tl.lift(encoder, (1, 28, 28)), code, prior, noise_level=0.1, start=decoder)
print(f"inverted: {quality(found.x):.1f} dB")
assert TINY or quality(found.x) > quality(decoded.clamp(0, 1)) + 0.5

# %% [markdown]
# Every image has a residual, gaps between the layers and a status.

# %%
print(f"‖N(x) − y‖: {float(found.residual.mean()):.2f} on average, noise {0.1 * 392**0.5:.2f}")
figure = tl.plot.pictures(
    {"image": x[:8], "decoder": decoded[:8].clamp(0, 1), "inverted": found.x[:8]}
)
