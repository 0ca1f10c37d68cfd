# %% [markdown]
# # A transformer
#
# Any `nn.Module` trains by sweeps: nothing is attached to it, and it needs no
# special form. Here a transformer layer reads a digit row by row.

# %%
import os
from functools import partial

import torch
from torch import nn

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs, width = (200, 1, 8) if TINY else (3000, 3, 32)
digits, held_out = tl.data.load_digits("train"), tl.data.load_digits("validation")
test = tl.data.load_digits("test")


class Rows(nn.Module):
    """A token for each row, one layer of attention, the mean of what comes out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, width)
        self.position = nn.Parameter(0.1 * torch.randn(28, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.classify = nn.Linear(width, 10)

    def forward(self, images):
        tokens = self.embed(images.squeeze(1)) + self.position
        return self.classify(self.layer(tokens).mean(1))


# %% [markdown]
# The default of `tl.train`, and back-propagation with Adam in the same loop,
# from the same weights. Two rates of Adam.

# %%
settings = {
    "data": (digits.images[:count], digits.labels[:count]),
    "validation": (held_out.images, held_out.labels),
    "epochs": epochs,
    "batch_size": 50,
    "progress": False,
}


def adam(rate):
    """Back-propagation with a cosine schedule, as the default has."""
    optimiser = partial(torch.optim.Adam, lr=rate)
    return {
        "lifting": tl.liftings.Conventional(),
        "solver": tl.training.BackPropagation(optimiser, "cosine"),
    }


methods = {"sweeps, nothing chosen": {}, "Adam, 0.001": adam(1e-3), "Adam, 0.01": adam(1e-2)}
runs = {}
for name, method in methods.items():
    torch.manual_seed(0)
    runs[name] = tl.train(Rows(), **settings, **method)
    with torch.no_grad():
        right = (runs[name].network(test.images).argmax(1) == test.labels).float().mean()
    print(f"{name}: {100 * float(right):.1f} % of the test digits")

# %% [markdown]
# How the parameters are grouped: a weight with its bias. In networks with
# attention each entry is scaled alone, linear layers elsewhere as a whole.

# %%
for group in tl.sweeps.parameter_groups(Rows())[:4]:
    print(group["kind"], [tuple(parameter.shape) for parameter in group["params"]])

# %%
figure = tl.plot.training(*(run.history for run in runs.values()), labels=list(runs))
