# %% [markdown]
# # Denoise a photograph
#
# Trained denoisers come with the package: one that denoises best, and one with
# a certificate. Neither has seen this photograph.

# %%
import os

import torch

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: a smaller picture
side = 32 if TINY else 128
clean = tl.data.load_photographs()[1:2, :, 40 : 40 + side, 32 : 32 + side]

# %% [markdown]
# White noise of standard deviation 25/255, for which they were trained.

# %%
noise = 25 / 255 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
rows = {"clean": clean, "noisy": clean + noise}
for name, certified in {"denoised": False, "certified": True}.items():
    with torch.no_grad():
        rows[name] = tl.io.load_denoiser(certified=certified)(rows["noisy"])
for name, image in rows.items():
    if name != "clean":
        print(f"{name}: {float(tl.data.psnr(image, clean).mean()):.1f} dB")

# %% [markdown]
# What the certificate says: $\Vert N y - N y' \Vert^2 \le \langle N y - N y', y - y' \rangle$
# for all images, so that plug-and-play methods with it converge. It costs
# quality.

# %%
certificate = tl.io.load_denoiser(certified=True).certificate()
print(f"norms up to {max(certificate.norms):.6f}:", certificate.firmly_nonexpansive)

# %%
figure = tl.plot.pictures({name: image.clamp(0, 1) for name, image in rows.items()})
