"""One or more instances of every architecture, each with an independent forward pass in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchlift import networks, operators, prox
from torchlift.networks import Network


@dataclass(frozen=True)
class Case:
    """A network, its plain twin (input, context) → output, and its expected block pattern."""

    name: str
    build: Callable[[], Network]
    plain: Callable[[Network, Tensor, Tensor | None], Tensor]
    W: set[tuple[int, int]]
    K: set[tuple[int, int]]
    M: set[tuple[int, int]] | None = None
    V: set[tuple[int, int]] | None = None
    masked: bool = False

    def input(self, network: Network, batch: int = 3) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return torch.randn(batch, *network.in_shape, generator=generator, dtype=torch.float64)

    def context(self, batch: int = 3) -> Tensor | None:
        generator = torch.Generator().manual_seed(8)
        return (torch.rand(batch, 1, 4, 4, generator=generator) > 0.3).double() if self.masked else None


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(), dtype=torch.float64)


def _weights(stacks: nn.ModuleList) -> list[tuple[Tensor, Tensor | None]]:
    """(weight, bias) of each layer, straight from the parameters."""
    pairs = []
    for stack in stacks:
        for j in range(len(stack.linear)):
            pairs.append((stack.linear.weight[j], None if stack.bias is None else stack.bias[j].flatten()))
    return pairs


def _mlp_plain(sigma: Callable[[Tensor], Tensor]) -> Callable:
    def plain(net: Network, y: Tensor, _: Tensor | None) -> Tensor:
        for weight, bias in _weights(net.hidden):
            y = sigma(y @ weight.T + (0 if bias is None else bias))
        for weight, bias in _weights(net.output):
            y = y @ weight.T + (0 if bias is None else bias)
        return y

    return plain


def _shallow_plain(net: Network, y: Tensor, _: Tensor | None) -> Tensor:
    total = torch.zeros(len(y), 2, dtype=y.dtype)
    for (weight, bias), (c, _none) in zip(_weights(net.hidden), _weights(net.output), strict=True):
        total = total + torch.relu(y @ weight.T + bias) @ c.T
    return total


def _resnet_plain(a: list[list[float]], b: list[float], h: float) -> Callable:
    def plain(net: Network, u: Tensor, _: Tensor | None) -> Tensor:
        for (W, bias), (V, _none) in zip(_weights(net.hidden), _weights(net.coupling), strict=True):
            slopes: list[Tensor] = []
            for row in a:
                stage = u + h * sum((w * k for w, k in zip(row, slopes, strict=True)), torch.zeros_like(u))
                slopes.append(torch.tanh(stage @ W.T + bias) @ V.T)
            u = u + h * sum((w * k for w, k in zip(b, slopes, strict=True)), torch.zeros_like(u))
        ((K, d),) = _weights(net.output)
        return u @ K.T + d

    return plain


def _lista_plain(
    H: Callable[[Tensor, Tensor | None], Tensor], Ht: Callable[[Tensor, Tensor | None], Tensor]
) -> Callable:
    def plain(net: Network, y: Tensor, mask: Tensor | None) -> Tensor:
        L = next(iter(net.dictionary.parameters()))
        count = net.iterations + 2
        Ls = [L[j if len(L) > 1 else 0] for j in range(count)]
        gammas, lambdas = net.step.log.exp(), net.threshold.log.exp()
        shape = y.shape

        def image(code: Tensor, j: int) -> Tensor:
            return (code @ Ls[j].T).reshape(len(code), *net.out_shape)

        def back(residual: Tensor, j: int) -> Tensor:
            return Ht(residual.reshape(shape), mask).flatten(1) @ Ls[j]

        u = back(y, 0)
        for t in range(net.iterations):
            gamma, lam = gammas[t % len(gammas)], lambdas[t % len(lambdas)]
            v = u - gamma * back(H(image(u, t + 1), mask) - y, t + 1)
            u = v.sign() * (v.abs() - gamma * lam).clamp(min=0)
        return image(u, count - 1)

    return plain


def _conv_lista_plain(net: Network, y: Tensor, _: Tensor | None) -> Tensor:
    def image(code: Tensor, j: int) -> Tensor:
        return F.conv_transpose2d(code, L[j], padding=1)

    def back(residual: Tensor, j: int) -> Tensor:
        return F.conv2d(_blur(residual, None), L[j], padding=1)

    (L,) = net.dictionary.parameters()
    u = back(y, 0)
    for t in range(net.iterations):
        gamma, lam = net.step.log[t].exp(), net.threshold.log[t].exp()
        v = u - gamma * back(_blur(image(u, t + 1), None) - y, t + 1)
        u = v.sign() * (v.abs() - gamma * lam).clamp(min=0)
    return image(u, net.iterations + 1)


def _coupled_plain(net: Network, y: Tensor, _: Tensor | None) -> Tensor:
    A = next(iter(net.physics.buffers()))[0] @ next(iter(net.dictionary.parameters()))[0]
    u = torch.zeros(len(y), A.shape[1], dtype=y.dtype)
    for B, log_theta in zip(next(iter(net.coupling.parameters())), net.threshold.log, strict=True):
        v = u + (y - u @ A.T) @ B.T
        u = v.sign() * (v.abs() - log_theta.exp()).clamp(min=0)
    return u @ next(iter(net.dictionary.parameters()))[0].T


def _primal_dual_plain(net: Network, y: Tensor, mask: Tensor | None) -> Tensor:
    L = next(iter(net.analysis.parameters()))
    x, p = y * mask, torch.zeros(len(y), L.shape[1], dtype=y.dtype)
    for t in range(net.iterations):
        lam, gamma, tau = (part.log.exp()[t] for part in (net.threshold, net.dual_step, net.step))
        q = (p + gamma * x.flatten(1) @ L[t].T).clamp(-lam, lam)
        data = mask * (mask * x - y)
        x = (x - tau * data - tau * ((2 * q - p) @ L[t]).reshape(x.shape)).clamp(0, 1)
        p = q
    return x


def _bank(net: Network, t: int) -> Tensor:
    weight = net.filters.stack.weight
    return weight[t if len(weight) > 1 else 0]


def _ddfb_plain(net: Network, y: Tensor, _: Tensor | None) -> Tensor:
    x, q = y, torch.zeros(1, dtype=y.dtype)
    for t in range(net.iterations):
        lam, gamma = net.threshold.log[t, :, :, :, 0].exp(), net.dual_step.log[t].exp()
        back = _bank(net, t) if net.adjoint else net.synthesis.stack.weight[t]
        q = (q + gamma * F.conv2d(x, _bank(net, t), padding=1) / lam).clamp(-1, 1)
        x = y - F.conv_transpose2d(lam * q, back, padding=1)
    return x


def _sccp_plain(net: Network, y: Tensor, _: Tensor | None) -> Tensor:
    x, before, q = y, y, torch.zeros(1, dtype=y.dtype)
    lam, gamma, mu = net.threshold.log[0, :, :, :, 0].exp(), net.dual_step.log[0].exp(), net.step.log[0].exp()
    alpha = 1 / (1 + 2 * mu).sqrt()
    for _ in range(net.iterations):
        ahead = (1 + alpha) * x - alpha * before
        q = (q + gamma * F.conv2d(ahead, _bank(net, 0), padding=1) / lam).clamp(-1, 1)
        step = y - F.conv_transpose2d(lam * q, _bank(net, 0), padding=1)
        x, before = ((x + mu * step) / (1 + mu)).clamp(0, 1), x
    return x


def _firm_plain(net: Network, y: Tensor, _: Tensor | None) -> Tensor:
    x, T = y, net.iterations
    for t in range(T):
        D, lam = _bank(net, t), net.threshold.log[t, :, :, :, 0].exp()
        D = D * (1 - 1e-5) / operators.filter_norm(D, 64).clamp(min=1)
        x = x - F.conv_transpose2d(F.conv2d(x, D, padding=1).clamp(-lam, lam), D, padding=1)
    return y + (T + 1) / (2 * T) * (x - y)


def autoencoder() -> nn.Sequential:
    """The paper's autoencoder: two strided convolutions and a code, then the way back."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(784, 392),
        nn.Linear(392, 784),
        nn.ReLU(),
        nn.Unflatten(1, (16, 7, 7)),
        nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
    )


def small_autoencoder() -> nn.Sequential:
    """The same structure on 8 × 8 images, small enough for dense matrices."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 2, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2, 3, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.Linear(5, 12),
        nn.ReLU(),
        nn.Unflatten(1, (3, 2, 2)),
        nn.ConvTranspose2d(3, 2, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(2, 1, 4, stride=2, padding=1),
    ).double()


def _module_plain(build: Callable[[], nn.Module]) -> Callable:
    def plain(_net: Network, y: Tensor, _: Tensor | None) -> Tensor:
        return build().eval()(y)

    return plain


class Branching(nn.Module):
    """A forward pass of its own: functions, concatenation, two readers of one state."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Conv2d(2, 2, 3, padding=1)
        self.norm, self.fc = nn.BatchNorm2d(2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.norm(self.conv1(x)))
        b = torch.tanh(self.conv2(a))
        return self.fc(F.avg_pool2d(torch.cat([a, b - a], dim=1), 2).flatten(1))


def branching() -> nn.Module:
    torch.manual_seed(1)
    return Branching().double().eval()


def mixed() -> nn.Sequential:
    """Residual blocks of every kind, pooling, batch norm in every place, nesting, dropout."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.Softshrink(0.1),
        nn.BatchNorm2d(3),
        networks.Residual(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1, bias=False), step=0.5),
        networks.Residual(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1, bias=True), step=0.3),
        nn.AvgPool2d(2),
        nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.LeakyReLU(0.2)),
        networks.Residual(nn.Linear(6, 6), nn.Sigmoid(), nn.Linear(6, 6), nn.ReLU()),
        networks.Residual(nn.Linear(6, 6)),
        nn.BatchNorm1d(6),
        nn.Softplus(),
        nn.Linear(6, 6),
        nn.Linear(6, 2),
    )
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (module.running_mean, module.weight.data, module.bias.data):
                tensor.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    return model.double().eval()


def _soft(v: Tensor) -> Tensor:
    return v.sign() * (v.abs() - 0.2).clamp(min=0)


_MASK = operators.Mask(shape=(1, 4, 4))
_BLUR = torch.tensor([[0.0, 0.1, 0.0], [0.1, 0.6, 0.1], [0.0, 0.1, 0.0]], dtype=torch.float64)


def _blur(x: Tensor, _: Tensor | None) -> Tensor:
    return F.conv2d(x, _BLUR[None, None], padding=1)


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x * mask


def _chain(depth: int) -> set[tuple[int, int]]:
    return {(j, j) for j in range(depth)}


def _double(**options: object) -> dict:
    return {"generator": _generator(), "dtype": torch.float64, **options}


RK4_A, RK4_B = [[], [0.5], [0.0, 0.5], [0.0, 0.0, 1.0]], [1 / 6, 1 / 3, 1 / 3, 1 / 6]

CASES = [
    Case(
        "perceptron",
        lambda: networks.Perceptron(4, 3, prox.Tanh(), **_double()),
        _mlp_plain(torch.tanh),
        W={(0, 0)},
        K={(0, 1)},
    ),
    Case(
        "mlp-soft-threshold",
        lambda: networks.MLP([4, 5, 5, 5, 2], prox.SoftThreshold(0.2), **_double()),
        _mlp_plain(_soft),
        W=_chain(3),
        K={(0, 3)},
    ),
    Case(
        "mlp-no-bias",
        lambda: networks.MLP([3, 3, 3], prox.Sigmoid(), bias=False, **_double()),
        _mlp_plain(torch.sigmoid),
        W=_chain(1),
        K={(0, 1)},
    ),
    Case(
        "affine",
        lambda: networks.MLP([4, 2], **_double()),
        _mlp_plain(torch.relu),
        W=set(),
        K={(0, 0)},
    ),
    Case(
        "shallow-neurons",
        lambda: networks.Shallow(3, [1] * 4, 2, **_double()),
        _shallow_plain,
        W={(j, 0) for j in range(4)},
        K={(0, j + 1) for j in range(4)},
    ),
    Case(
        "shallow-block",
        lambda: networks.Shallow(3, 6, 2, **_double()),
        _shallow_plain,
        W={(0, 0)},
        K={(0, 1)},
    ),
    Case(
        "resnet-euler",
        lambda: networks.ResNet(4, [3, 3, 5], 2, prox.Tanh(), steps=0.4, **_double()),
        _resnet_plain([[]], [1.0], 0.4),
        W=_chain(3),
        K={(0, 3)},
        M={(j, k) for j in range(3) for k in (j, j + 1)},
        V=_chain(3),
    ),
    Case(
        "resnet-rk4",
        lambda: networks.ResNet(4, [3, 5], 2, prox.Tanh(), steps=0.7, tableau="rk4", **_double()),
        _resnet_plain(RK4_A, RK4_B, 0.7),
        W=_chain(8),
        K={(0, 8)},
        M={(j, k) for j in range(8) for k in (j - j % 4, j + 1)},
        # Stage i + 1 reads only stage i; the step reads all four.
        V={(j, j) for j in range(8)} | {(4 * s + 3, 4 * s + i) for s in range(2) for i in range(4)},
    ),
    Case(
        "lista-blur",
        lambda: networks.LISTA(operators.Blur(_BLUR, (1, 4, 4)), _randn(16, 20), 3),
        _lista_plain(_blur, _blur),
        W={(0, 0)} | {(j, k) for j in (1, 2, 3) for k in (0, j)},
        K={(0, 4)},
    ),
    Case(
        "lista-tied-mask",
        lambda: networks.LISTA(_MASK, _randn(16, 20), 2, tied=True, context=torch.ones(1, 1, 4, 4).double()),
        _lista_plain(_masked, _masked),
        W={(0, 0)} | {(j, k) for j in (1, 2) for k in (0, j)},
        K={(0, 3)},
        masked=True,
    ),
    Case(
        "lista-coupled",
        lambda: networks.LISTA(operators.Dense(_randn(6, 9)), _randn(9, 12), 3, form="coupled"),
        _coupled_plain,
        W={(0, 0), (1, 0), (1, 1), (2, 0), (2, 2)},
        K={(0, 3)},
    ),
    Case(
        "primal-dual-mask",
        lambda: networks.PrimalDual(_MASK, _randn(10, 16), 3, context=torch.ones(1, 1, 4, 4).double()),
        _primal_dual_plain,
        W={(0, 0), (1, 1), (2, 0), (2, 1), (2, 2)}
        | {(2 * j - 1, k) for j in (2, 3) for k in (2 * j - 2, 2 * j - 1)}
        | {(2 * j, k) for j in (2, 3) for k in (0, 2 * j - 2, 2 * j - 1, 2 * j)},
        K={(0, 7)},
        masked=True,
    ),
    Case(
        "ddfb",
        lambda: networks.DDFB(
            (2, 4, 5), 3, features=20, size=3, adjoint=False, constraint=prox.Identity(), **_double()
        ),
        _ddfb_plain,
        W={(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 0), (3, 3), (4, 3), (4, 4), (5, 0), (5, 5)},
        K={(0, 6)},
    ),
    Case(
        "sccp-tied",
        lambda: networks.ScCP((1, 4, 5), 3, features=10, size=3, tied=True, **_double()),
        _sccp_plain,
        W={(0, 0), (1, 0), (1, 1)}
        | {(2 * j, k) for j in (1, 2) for k in (2 * j - 2, 2 * j - 1, 2 * j)}
        | {(2 * j + 1, k) for j in (1, 2) for k in (0, 2 * j, 2 * j + 1)},
        K={(0, 6)},
    ),
    Case(
        "firm-denoiser",
        lambda: networks.FirmDenoiser((1, 4, 5), 3, features=10, size=3, threshold=0.3, **_double()),
        _firm_plain,
        W=_chain(3),
        K={(0, 0), (0, 3)},
        M={(j, k) for j in range(3) for k in (j, j + 1)},
    ),
    Case(
        "lista-convolutional",
        lambda: networks.LISTA(
            operators.Blur(_BLUR, (1, 4, 4)), operators.convolutional_dictionary((1, 4, 4), 3, dtype=torch.float64), 2
        ),
        _conv_lista_plain,
        W={(0, 0)} | {(j, k) for j in (1, 2) for k in (0, j)},
        K={(0, 3)},
    ),
    Case(
        "autoencoder",
        lambda: networks.lift(small_autoencoder(), (1, 8, 8)),
        _module_plain(small_autoencoder),
        W=_chain(4),
        K={(0, 4)},
    ),
    Case(
        "mixed",
        lambda: networks.lift(mixed(), (1, 4, 4)),
        _module_plain(mixed),
        # conv-soft | batch norm made a state | tanh branch | relu branch, its sum | pooled dense |
        # sigmoid, relu branch | linear branch | softplus
        W={(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8), (9, 9)},
        K={(0, 10)},
        M={(j, j + 1) for j in range(10)} | {(2, 2), (7, 6)},
        V={(j, j) for j in range(10)},
    ),
    Case(
        "branching",
        lambda: networks.lift(branching(), (1, 4, 4)),
        _module_plain(branching),
        W={(0, 0), (1, 1)},
        K={(0, 1), (0, 2)},
    ),
]
