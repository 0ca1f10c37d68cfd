# %% [markdown]
# # Get the input back, with error bars
#
# Which image had this code, and how sure are we of each pixel? An encoder is
# inverted at noisy codes; intervals come from the curvature at the answer and
# are calibrated on images that are known.

# %%
import os

import torch
from torch import nn
from torch.nn import functional as F

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs, shown = (200, 1, 4) if TINY else (4000, 3, 32)
torch.manual_seed(0)

# %% [markdown]
# An encoder to 196 numbers and a decoder, trained together by Adam.

# %%
encoder = nn.Sequential(
    *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(8 * 196, 196)),
)
decoder = nn.Sequential(nn.Linear(196, 784), nn.Unflatten(1, (1, 28, 28)))
images = tl.data.load_digits("train").images[:count]
optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
for _ in range(epochs):
    for batch in images[torch.randperm(count)].split(64):
        optimiser.zero_grad()
        F.mse_loss(decoder(encoder(batch)), batch).backward()
        optimiser.step()

# %% [markdown]
# Codes of other images, with noise.

# %%
known, test = (tl.data.load_digits(part).images[:shown] for part in ("validation", "test"))
noise = 0.1
with torch.no_grad():
    codes = [encoder(x) + noise * torch.randn(len(x), 196) for x in (known, test)]

# %% [markdown]
# The inversion: total variation and pixels in [0, 1], from the decoder's output.

# %%
lifted = tl.lift(encoder, (1, 28, 28))
prior = tl.priors.TotalVariation() + tl.priors.Box(0, 1)
settings = {"prior": prior, "weight": 0.02, "anchor": 0.1, "noise_level": noise}
found_known, found = (tl.invert(lifted, y, start=decoder(y).detach(), **settings) for y in codes)
with torch.no_grad():
    decoded = decoder(codes[1]).clamp(0, 1)
for name, x in {"decoder": decoded, "inverted": found.x}.items():
    print(f"{name}: {float(tl.data.psnr(x, test).mean()):.1f} dB")

# %% [markdown]
# Intervals that should hold nine of ten pixels, before and after calibration.

# %%
factor = tl.inversion.calibrate(found_known.interval(0.9).deviation, found_known.x, known)
intervals = {
    "as they come": found.interval(0.9),
    "calibrated": found.interval(0.9, calibration=factor),
}
for name, bars in intervals.items():
    inside = (bars.lower <= test) & (test <= bars.upper)
    print(f"{name}: {float(inside.float().mean()):.1%} of the pixels are inside")
    assert TINY or name != "calibrated" or abs(float(inside.float().mean()) - 0.9) < 0.05

# %%
deviation = intervals["calibrated"].deviation
rows = {"image": test, "decoder": decoded, "inverted": found.x, "deviation": 4 * deviation}
figure = tl.plot.pictures({name: x[: min(8, shown)].clamp(0, 1) for name, x in rows.items()})
