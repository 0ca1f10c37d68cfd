# %% [markdown]
# # Primal-dual total variation
#
# Inpainting by total variation: find the image with the smallest jumps that
# agrees with the known pixels,
#
# $$\min_{x \in [0, 1]^n} \tfrac12 \Vert H x - y \Vert^2 + \lambda \Vert L x \Vert_1,$$
#
# where $H$ removes pixels and $L$ takes differences of neighbours. A
# primal-dual network runs a few steps of the algorithm for this problem and
# learns $L$, $\lambda$ and the step sizes of each of them.

# %%
import os

import torch

import torchlift as tl
from torchlift.operators import FiniteDifference

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs, iterations = (100, 1, 3) if TINY else (3000, 3, 8)
shape = (1, 28, 28)

# %% [markdown]
# The mask differs from image to image. It is the *context*, which travels with
# the samples to every operator that needs it.

# %%
task = tl.data.Inpainting(share=0.3, noise=0.02)
images, held_out = (
    tl.data.load_digits("train").images[:count],
    tl.data.load_digits("validation").images[:200],
)
train = task.degrade(images, torch.Generator().manual_seed(0))
validation = task.degrade(held_out, torch.Generator().manual_seed(1))
test = tl.data.load_digits("test").images[:200]
measured = task.degrade(test, torch.Generator().manual_seed(2))
H = task.operator(shape)


def quality(images):
    """Mean PSNR over the test images, in dB."""
    return float(tl.data.psnr(images, test).mean())


# %% [markdown]
# Total variation with many steps is the classical answer; with eight steps it
# is not there yet.

# %%
for steps in (iterations, 30 if TINY else 300):
    classical = tl.networks.PrimalDual(
        H, FiniteDifference(shape), steps, threshold=0.05, context=train.context
    )
    with torch.no_grad():
        x = classical(measured.y, measured.context)
    print(f"total variation, {steps} steps: {quality(x):.1f} dB")

# %% [markdown]
# Trained, with a matrix $L$ of its own for every layer. It starts from a
# discrete cosine transform instead of differences.

# %%
L = 0.7 * tl.operators.dct_matrix(28, 28)
network = tl.networks.PrimalDual(H, L, iterations, threshold=0.05, context=train.context)
tl.train(
    network,
    (train.y, images, train.context),
    validation=(validation.y, held_out, validation.context),
    batch_size=50,
    epochs=epochs,
    progress=False,
)
with torch.no_grad():
    learned = network(measured.y, measured.context)
print(f"learned, {iterations} steps: {quality(learned):.1f} dB")
assert TINY or quality(learned) > quality(x) + 1

# %%
rows = {
    "truth": test[:8],
    "measured": measured.y[:8],
    "total variation": x[:8],
    "learned": learned[:8],
}
figure = tl.plot.pictures(rows)
