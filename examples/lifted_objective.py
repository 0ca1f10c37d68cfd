# %% [markdown]
# # Descent without a step size
#
# The lifted objective has activations and weights as unknowns. With all others
# fixed, the weights of each layer and the activations of every second layer are
# convex problems; block-coordinate descent solves one after the other. Nothing
# is differentiated through the network, and the objective never increases.

# %%
import os

import torch

import torchlift as tl

TINY = "TORCHLIFT_TINY" in os.environ  # for tests: smaller data, fewer steps
count, steps = (50, 2) if TINY else (200, 3)

# %% [markdown]
# Denoising of 14 × 14 digits by three hidden layers of soft-thresholds.

# %%
clean = torch.nn.functional.avg_pool2d(tl.data.load_digits("train").images[:count], 2).flatten(1)
noisy = clean + 0.15 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))


def problem(lifting):
    """The training problem, with activations in an odd and an even block."""
    generator = torch.Generator().manual_seed(0)
    network = tl.networks.MLP([196] * 5, activation=tl.SoftThreshold(0.2), generator=generator)
    objective = tl.Objective(network, lifting=lifting, loss=tl.losses.SquaredError())
    return tl.objective.TrainingProblem(objective, noisy, clean, split="odd-even")


# %% [markdown]
# Exact steps on the Bregman lifting, and linearised ones.

# %%
solvers = {
    "exact": tl.solvers.BlockCoordinateDescent(tolerance=1e-2, inner_steps=20),
    "linearised": tl.solvers.LinearisedBCD(),
}
curves = {}
for name, solver in solvers.items():
    training = problem(tl.liftings.Bregman(5e-3))
    start = training.start("input")
    budget = steps if name == "exact" else 20 * steps
    stopping = tl.solvers.Stopping(max_steps=budget)
    solution = tl.solvers.solve(training, solver, start, stopping=stopping)
    values = [training.value(start), *(record.value for record in solution.history)]
    curves[name] = [float(value) for value in values]
    print(f"{name}: from {curves[name][0]:.3g} to {curves[name][-1]:.3g} in {budget} steps")
    assert all(b <= a * (1 + 1e-5) for a, b in zip(curves[name], curves[name][1:]))

# %% [markdown]
# An exact step costs many linearised ones; per step it goes further.

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
for name, values in curves.items():
    axis.semilogy([k / (len(values) - 1) for k in range(len(values))], values, label=name)
axis.set(xlabel="share of the steps", ylabel="lifted objective")
axis.legend()
