# %% [markdown]
# # Classify without back-propagation
#
# Five layers of soft-thresholds from torch's default initialisation: every
# signal falls below the threshold, every derivative is zero, and
# back-propagation stays at chance. Lifted training gets going by itself.

# %%
import os

import torch

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
width, epochs = (16, 1) if TINY else (256, 6)
digits, held_out, test = (tl.data.load_digits(part) for part in ("train", "validation", "test"))
count = 300 if TINY else 5000
data = (digits.images[:count].flatten(1), digits.labels[:count])
validation = (held_out.images.flatten(1), held_out.labels)


def accuracy(network):
    """Share of the test digits that are recognised, in per cent."""
    with torch.no_grad():
        return 100 * float(
            (network(test.images.flatten(1)).argmax(1) == test.labels).float().mean()
        )


# %% [markdown]
# The same weights for both.


# %%
def network():
    """Five hidden layers, always with the same weights."""
    activation = tl.SoftThreshold(0.3)
    return tl.networks.MLP(
        [784, *[width] * 5, 10], activation=activation, generator=torch.Generator().manual_seed(0)
    )


lifted = tl.train(network(), data, validation=validation, epochs=epochs, progress=False)
print(f"lifted: {accuracy(lifted.network):.0f} % of the test digits")

# %% [markdown]
# `Conventional()` is back-propagation in the same loop, here with Adam.

# %%
conventional = tl.train(
    network(),
    data,
    validation=validation,
    epochs=epochs,
    lifting=tl.liftings.Conventional(),
    solver=torch.optim.Adam,
    progress=False,
)
print(f"back-propagation: {accuracy(conventional.network):.0f} % of the test digits")
assert TINY or accuracy(lifted.network) > 85 > 20 > accuracy(conventional.network)

# %% [markdown]
# From a better start (He's, or a smaller threshold) back-propagation would
# learn too. Lifted training does not depend on it.

# %%
figure = tl.plot.training(
    lifted.history, conventional.history, labels=["lifted", "back-propagation"]
)
