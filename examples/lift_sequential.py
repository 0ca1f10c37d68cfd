# %% [markdown]
# # Lift a pre-trained network
#
# Any `nn.Sequential` of linear maps and proximal activations can be read into
# the unified form, looked at, trained further there, and handed back.

# %%
import os

import torch
from torch import nn

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, epochs = (300, 1) if TINY else (5000, 3)
torch.manual_seed(0)

# %% [markdown]
# Something that was trained elsewhere: here by a few epochs of Adam.

# %%
digits, held_out = tl.data.load_digits("train"), tl.data.load_digits("validation")
y, labels = digits.images[:count].flatten(1), digits.labels[:count]
model = nn.Sequential(
    nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
)
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(epochs):
    for batch in torch.randperm(count).split(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(y[batch]), labels[batch]).backward()
        optimiser.step()


def accuracy(module):
    """Share of the validation digits that are recognised, in per cent."""
    with torch.no_grad():
        return 100 * float(
            (module(held_out.images.flatten(1)).argmax(1) == held_out.labels).float().mean()
        )


print(f"as it came: {accuracy(model):.1f} %")

# %% [markdown]
# Lifted, it computes the same and shows its blocks: W reads the state before,
# M and V are identities, K makes the output.

# %%
network = tl.lift(model)
with torch.no_grad():
    assert torch.allclose(network(y), model(y), atol=1e-5)
print(network.picture())

# %% [markdown]
# Trained further by backward sweeps, starting from the weights it has.

# %%
result = tl.train(
    network,
    (y, labels),
    validation=(held_out.images.flatten(1), held_out.labels),
    epochs=2 * epochs,
    progress=False,
)
print(f"trained further: {accuracy(result.network):.1f} %")

# %% [markdown]
# And back: the same keys as before, so that the rest of a program does not
# notice.

# %%
plain = result.network.to_sequential()
assert plain.state_dict().keys() == model.state_dict().keys()
model.load_state_dict(plain.state_dict())
assert TINY or accuracy(model) > 90
print(f"handed back: {accuracy(model):.1f} %")

# %%
figure = tl.plot.blocks(network)
