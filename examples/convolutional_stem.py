# %% [markdown]
# # The stem of a vision model
#
# How much of an image survives the first layers of a convolutional network?
# Lift its stem, invert it, and look.

# %%
import os

import torch
from torch import nn

import torchlift as tl
from torchlift.core.errors import NotRepresentableError

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs, steps = (200, 1, 20) if TINY else (4000, 2, 300)
torch.manual_seed(0)

# %% [markdown]
# A model in the style of VGG, `features` and `classifier`, with batch norms and
# average pooling, trained for a few seconds on digits.


# %%
def block(before, after):
    """Convolution, batch norm, ReLU."""
    return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]


class Small(nn.Module):
    """Two stages of two convolutions, then a linear classifier."""

    def __init__(self):
        super().__init__()
        first = [*block(1, 8), *block(8, 8), nn.AvgPool2d(2)]
        second = [*block(8, 16), *block(16, 16), nn.AvgPool2d(2)]
        self.features = nn.Sequential(*first, *second)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(16 * 49, 10))

    def forward(self, x):
        return self.classifier(self.features(x))


model = Small()
digits, test = tl.data.load_digits("train"), tl.data.load_digits("test")
optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(epochs):
    for batch in torch.randperm(count).split(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(digits.images[batch]), digits.labels[batch]).backward()
        optimiser.step()
model.eval()
with torch.no_grad():
    right = (model(test.images).argmax(1) == test.labels).float().mean()
print(f"{100 * float(right):.0f} % of the test digits are recognised")

# %% [markdown]
# A stem is a slice of `features`. `tl.lift` folds the batch norms into the
# convolutions. Max pooling would be refused by name and position: it is not a
# linear map.

# %%
try:
    tl.lift(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2)), (1, 28, 28))
except NotRepresentableError as refused:
    print(refused)
stems = {
    "first convolution": model.features[:3],
    "first stage": model.features[:7],
    "both stages": model.features,
}
images = test.images[:8]
for name, stem in stems.items():
    lifted = tl.lift(stem, (1, 28, 28))
    with torch.no_grad():
        assert torch.allclose(lifted(images), stem(images), atol=1e-4)
    print(f"{name}: layers {lifted.depth}, features {lifted.out_shape}")

# %% [markdown]
# Features with a little noise, and the images that explain them, found from a
# grey start with total variation and values in [0, 1] as prior. `"sweep"` works
# on the lifted problem; `"auto"`, the default, goes on with quasi-Newton and
# proximal steps on the stem itself.

# %%
prior = tl.priors.TotalVariation() + tl.priors.Box(0, 1)
rows, quality = {"image": images}, {}
for name, stem in stems.items():
    with torch.no_grad():
        features = stem(images)
    noise = (
        0.02
        * features.std()
        * torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    )
    for algorithm in ("sweep", "auto"):
        found = tl.invert(
            tl.lift(stem, (1, 28, 28)),
            features + noise,
            prior,
            1e-3,
            start=torch.full_like(images, 0.5),
            max_steps=steps,
            algorithm=algorithm,
            on_infeasible="project",  # noise may push features below the zero of ReLU
        )
        rows[f"{name}, {algorithm}"] = found.x
        quality[name, algorithm] = float(tl.data.psnr(found.x, images).mean())
        print(f"{name}, {algorithm}: {quality[name, algorithm]:.1f} dB")

# %% [markdown]
# One convolution forgets nothing, and a whole stage with its pooling hardly
# anything. After both stages the digits can still be read, under artefacts that
# neither method removes in 300 steps.

# %%
figure = tl.plot.pictures(rows)
assert TINY or (quality["first convolution", "sweep"] > 40 and quality["first stage", "auto"] > 30)
