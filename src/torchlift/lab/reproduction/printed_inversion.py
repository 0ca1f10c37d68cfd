"""The paper's inversion as printed, or with its misprint corrected; the library itself offers neither."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.inversion.layers import Layers
from torchlift.networks import Network
from torchlift.operators import FiniteDifference


@torch.no_grad()
def printed_inversion(
    network: Network,
    y: Tensor,
    weight: float,
    *,
    steps: int = 500,
    inner_steps: int = 1000,
    tolerance: float = 1e-5,
    corrected: bool = False,
    safe: bool = False,
) -> Tensor:
    """Coordinate descent from zeros with the printed updates and step sizes:

        x   ← x − τ_x(W₁ᵀ(σ₁(W₁x + b₁) − u₁) + ρ∇ᵀp)           τ_x = 1.99/‖W₁‖²
        p   ← proj(p + τ_p ρ∇(2x⁺ − x))                        τ_p = 1/(8ρ)
        u_j ← prox_{κΨ_j}(κ(u_j − τ(W_{j+1}ᵀ(σ_j(W_{j+1}u_j + b_{j+1}) − u_{j+1}) − (W_ju_{j−1} + b_j))))

    with τ = 1.99/‖W_{j+1}‖² and κ = τ/(1 + τ), where 1/(1 + τ) belongs in
    front of the argument. The last layer of the encoder has no activation,
    which we keep; everything else is as printed. See
    docs/differences-from-the-paper.md.

    Arguments:
        network: a chain of layers.
        y: codes.
        weight: ρ.
        steps: of the coordinate descent.
        inner_steps: largest number of steps of x and p in each of them.
        tolerance: x and p stop earlier when both change by less in norm, for all images.
        corrected: put 1/(1 + τ) in front of the argument, and change nothing else.
        safe: step sizes that meet the conditions of convergence instead of the printed ones: 1/‖W‖² everywhere and
            τ_p = (1/τ_x − ‖W₁‖²/2)/(8ρ²).
    """
    layers = Layers.of(network)
    blocks = [jacobian.reads[0][0][1] for jacobian in layers.jacobians]
    square = [float(block.norm_bound()) ** 2 for block in blocks]
    factor = 1.0 if safe else 1.99
    tau_x, tau_p = factor / square[0], square[0] / 2 / (8 * weight**2) if safe else 1 / (8 * weight)
    gradient = FiniteDifference(network.in_shape)

    def moved_input(x: Tensor, p: Tensor, u: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The printed primal-dual steps of the input with the auxiliary variables fixed."""
        for _ in range(inner_steps):
            v = layers.pre_activation(0, [x])
            pull = blocks[0].adjoint(layers.activations[0](v) - u[0]) + weight * gradient.adjoint(p)
            new = x - tau_x * pull
            dual = p + tau_p * weight * gradient.forward(2 * new - x)
            dual = dual / dual.square().sum(1, keepdim=True).sqrt().clamp_min(1)
            change = max(_largest(new - x), _largest(dual - p))
            x, p = new, dual
            if change < tolerance:
                break
        return x, p

    x = y.new_zeros(len(y), *network.in_shape)
    p = torch.zeros_like(gradient.forward(x))
    u = [torch.zeros_like(state) for state in layers.states(x)[0]]
    for _ in range(steps):
        v = layers.lifted(x, u)[1]
        targets, old = (*u, y), u
        x, p = moved_input(x, p, u)
        u = []
        for j in range(1, layers.count):
            tau = factor / square[j]
            kappa = tau / (1 + tau)
            # the printed σ_j acts on hidden layers; the output is affine
            reached = layers.activations[j - 1](v[j]) if j < layers.count - 1 else v[j]
            moved = old[j - 1] - tau * (blocks[j].adjoint(reached - targets[j]) - v[j - 1])
            u.append(layers.activations[j - 1].prox(moved / (1 + tau) if corrected else kappa * moved, kappa))
    return x


def _largest(change: Tensor) -> float:
    """The largest norm among the images."""
    return float(change.flatten(1).norm(dim=1).max())
