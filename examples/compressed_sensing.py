# %% [markdown]
# # LISTA for compressed sensing
#
# Sparse vectors $x$ are measured by a matrix with fewer rows than columns,
# $y = A x$. The iterative soft-thresholding algorithm (ISTA) finds them in
# hundreds of steps. LISTA unrolls ten of them into a network and learns its
# matrices and thresholds, which brings it much further in ten steps.

# %%
import os

import torch

import torchlift as tl
from torchlift.operators import Dense, Identity

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
rows, columns, count, epochs = (20, 40, 300, 1) if TINY else (100, 200, 6000, 10)
random = torch.Generator().manual_seed(0)

# %% [markdown]
# One entry in ten of $x$ is not zero. The columns of $A$ have length one.

# %%
matrix = torch.nn.functional.normalize(torch.randn(rows, columns, generator=random), dim=0)
A = Dense(matrix)


def draw(number):
    """Sparse vectors and their measurements."""
    x = torch.randn(number, columns, generator=random)
    x = x * (torch.rand(number, columns, generator=random) < 0.1)
    return A(x), x


def error(found, x):
    """Mean squared error relative to the size of x, in dB."""
    return 10 * float(((found - x).square().sum() / x.square().sum()).log10())


data, validation, (y, x) = draw(count), draw(500), draw(500)

# %% [markdown]
# In the coupled form layer $j$ computes $u_j = \operatorname{soft}(u_{j-1} +
# B_j (y - A u_{j-1}), \theta_j)$. It starts with $B_j = \gamma A^\top$ and
# $\theta_j = \gamma\lambda$, which is ISTA.

# %%
network = tl.networks.LISTA(A, Identity((columns,)), 10, threshold=0.05, form="coupled")
with torch.no_grad():
    print(f"ISTA, 10 steps: {error(network(y), x):.1f} dB")
long = tl.networks.LISTA(A, Identity((columns,)), 20 if TINY else 500, threshold=0.05, tied=True)
with torch.no_grad():
    print(f"ISTA, {long.iterations} steps: {error(long(y), x):.1f} dB")

# %% [markdown]
# Training is the same call as for any network. $A$ is the physics and stays as
# it is.

# %%
network.dictionary.requires_grad_(False)  # x itself is sparse: there is no dictionary to learn
result = tl.train(network, data, validation=validation, epochs=epochs, progress=False)
with torch.no_grad():
    found = network(y)
    layers = [error(u, x) for u in network.states(y).u[1:]]
print(f"LISTA, 10 layers: {error(found, x):.1f} dB")
assert TINY or error(found, x) < -12

# %% [markdown]
# The states of the forward pass show how every layer improves on the one
# before.

# %%
from matplotlib.figure import Figure

figure = Figure(figsize=(5, 3), layout="constrained")
axis = figure.subplots()
axis.plot(range(1, 11), layers, "o-", label="LISTA, trained")
axis.set(xlabel="layer", ylabel="error (dB)")
axis.legend()
print(" ".join(f"{value:.1f}" for value in layers))
