"""What every proximal activation promises, and `check_activation`."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from torchlift.core.checks import check_instance, check_size
from torchlift.prox import ProximalActivation, as_activation
from torchlift.testing.compare import at_most, close, finite, is_prox, refuses, require
from torchlift.testing.report import Check, NotApplicable, Report, report

STEPS = (1e-3, 0.3, 1.0, 3.0, 100.0)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_activation(activation: ProximalActivation, *, channels: int = 3, examples: int = 20, seed: int = 0) -> Report:
    """Whether an activation of one's own is the proximal map of its Ψ and keeps all that torchlift relies on.

    Arguments:
        activation: an instance of a subclass of `ProximalActivation`.
        channels: size of the last axis of the tensors to try, for thresholds per channel.
        examples: how many tensors to try.
        seed: of the tensors.

    Example:
        >>> import torchlift as tl
        >>> tl.check_activation(tl.ReLU()).ok
        True
    """
    hint = "Derive it from torchlift.prox.ProximalActivation, and pass an instance."
    check_instance("check_activation", activation, ProximalActivation, "a proximal activation", hint)
    check_size("check_activation channels", channels)
    check_size("check_activation examples", examples)
    seeds = range(seed, seed + examples)
    # Each check draws anew, so that one that overwrites its argument spoils no other.
    work = [(check, [(activation, values(channels, s), s) for s in seeds]) for check in ON_VALUES]
    return report(str(activation), [*work, *((check, [(activation, channels)]) for check in ON_ITSELF)])


def values(channels: int, seed: int) -> Tensor:
    """Numbers in (−6, 6); every third one is rounded, since kinks lie at round numbers."""
    generator = torch.Generator().manual_seed(seed)
    shape = ((1, channels), (4, channels), (2, 5, channels))[seed % 3]
    v = 12 * torch.rand(shape, dtype=torch.float64, generator=generator) - 6
    return torch.where(torch.rand(shape, generator=generator) < 1 / 3, v.round(decimals=seed % 2), v)


def squared(activation: ProximalActivation, x: Tensor) -> Tensor:
    """‖x‖², per entry or per group."""
    return activation.reduce(x * x)


def rivals(activation: ProximalActivation, p: Tensor, seed: int) -> list[Tensor]:
    """Points to compare p with: in its neighbourhood, further on in the domain, and for entries on a fine grid."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(p.shape, generator=generator, dtype=p.dtype)
    inside = activation(4 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    points = [p + scale * noise for scale in (1e-4, 1e-2, 1.0)]
    points += [p + weight * (inside - p) for weight in (1e-3, 0.1, 0.5, 1.0)]
    if activation.dim is None:
        points.append(torch.linspace(-7, 7, 701, dtype=p.dtype).view(-1, *(1,) * p.ndim) + torch.zeros_like(p))
    return points


def minimises(activation: ProximalActivation, p: Tensor, u: Tensor, step: float, seed: int) -> None:
    """½‖p − u‖² + step·Ψ(p) is least at p."""
    require(p.shape == u.shape, f"the result has shape {tuple(p.shape)}, not {tuple(u.shape)}", step=step)
    is_prox("Ψ", activation.psi, partial(squared, activation), p, u, step, rivals(activation, p, seed))


def sigma_minimises(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """σ(v) is the minimiser of ½‖u − v‖² + Ψ(u)."""
    minimises(activation, activation(v), v, 1.0, seed)


def prox_minimises(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """prox(u, step) is the minimiser of ½‖p − u‖² + step·Ψ(p), for short and long steps."""
    drawn = 10 ** (-3 + 5 * float(torch.rand((), generator=torch.Generator().manual_seed(seed))))
    for step in (STEPS[seed % len(STEPS)], drawn):
        minimises(activation, activation.prox(v, step), v, step, seed)


def fenchel_young(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """Φ(u) + Φ*(v) ≥ ⟨u, v⟩, with equality exactly at u = σ(v)."""

    def gap(u: Tensor) -> Tensor:
        return activation.phi(u) + activation.conjugate(v) - activation.reduce(u * v)

    p = activation(v)
    at_most("|Φ(u) + Φ*(v) − ⟨u, v⟩| at u = σ(v)", gap(p).abs(), 1e-12 * (1 + squared(activation, v)), v=v, u=p)
    for u in rivals(activation, p, seed):
        shortfall = 0.5 * squared(activation, u - p) - gap(u)
        tolerance = 1e-12 * (100 + squared(activation, v))
        at_most("½‖u − σ(v)‖² less Φ(u) + Φ*(v) − ⟨u, v⟩", shortfall, tolerance, v=v, u=u)


def conjugate_has_slope_sigma(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """The gradient of Φ* is σ, by autograd."""
    # Kinks of σ and its conjugate are no obstacle: Φ* is differentiable everywhere.
    v = v.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(activation.conjugate(v).sum(), v)
    close("the gradient of `conjugate`", gradient, activation(v).detach(), 1e-10, 1e-10, v=v.detach())


def conjugate_has_differences_sigma(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """The gradient of Φ* is σ, by finite differences."""
    direction = torch.randn(v.shape, dtype=v.dtype, generator=torch.Generator().manual_seed(seed))
    h = 1e-5
    slope = (activation.conjugate(v + h * direction) - activation.conjugate(v - h * direction)) / (2 * h)
    # The second-order error is at most h‖direction‖², attained where σ has a kink.
    bound = 1e-8 + h * squared(activation, direction)
    error = (slope - activation.reduce(activation(v) * direction)).abs()
    at_most("|difference quotient of `conjugate` − ⟨σ(v), direction⟩|", error, bound, v=v)


def firmly_nonexpansive(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """σ is firmly nonexpansive: ‖σ(v) − σ(w)‖² ≤ ⟨σ(v) − σ(w), v − w⟩."""
    noise = torch.randn(v.shape, dtype=v.dtype, generator=torch.Generator().manual_seed(seed))
    for w in (v + noise, v + 1e-3 * noise, -v):
        change = activation(v) - activation(w)
        excess = squared(activation, change) - activation.reduce(change * (v - w))
        at_most("‖σ(v) − σ(w)‖² − ⟨σ(v) − σ(w), v − w⟩", excess, 1e-13, v=v, w=w)


def conjugate_is_derived(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """Φ*(v) = ⟨v, σ(v)⟩ − Φ(σ(v)), however `conjugate` is written."""
    derived = ProximalActivation.conjugate(activation, v)
    close("`conjugate`", activation.conjugate(v), derived, 1e-12, 1e-12, v=v)


def shapes_are_kept(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """σ and prox keep the shape; Ψ, Φ and Φ* give one value per entry, or per group."""
    for name, result in (("σ(v)", activation(v)), ("prox(v, 0.5)", activation.prox(v, 0.5))):
        require(result.shape == v.shape, f"{name} has shape {tuple(result.shape)}, not {tuple(v.shape)}")
    expected = activation.reduce(v).shape
    for method in (activation.psi, activation.phi, activation.conjugate):
        shape = method(v).shape
        require(shape == expected, f"{method.__name__}(v) has shape {tuple(shape)}, not {tuple(expected)}")


def arguments_are_left_alone(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """σ, Ψ, prox and Φ* do not change their argument."""
    for method in (activation, activation.psi, activation.prox, activation.conjugate):
        given = v.clone()
        method(given)
        name = getattr(method, "__name__", "σ")
        close(f"the argument after {name}(v)", given, v, 0.0, v=v)


def in_place_is_the_same(activation: ProximalActivation, v: Tensor, seed: int) -> None:
    """apply_(v) writes the bits of σ(v) over v and returns v."""
    expected, given = activation(v).clone(), v.clone()
    require(activation.apply_(given) is given, "apply_ returned another tensor")
    close("apply_(v)", given, expected, 0.0, v=v)


def tensor_steps(activation: ProximalActivation, channels: int) -> None:
    """prox with a tensor of steps equals prox with each number."""
    u = torch.randn(5, 4, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    for step in STEPS:
        single = torch.tensor(step)
        expected = activation.prox(u, float(single))
        close("prox with a 0-d tensor", activation.prox(u, single), expected, 1e-7, 1e-7, u=u, step=step)
    others = torch.tensor([0.2, 0.7, 1.0, 5.0], dtype=torch.float64).view(4, 1)
    several = activation.prox(u, others)
    for row, other in enumerate(others.flatten().tolist()):
        expected = activation.prox(u[:, row], other)
        close("prox with one step per row", several[:, row], expected, 1e-7, 1e-7, step=other)


def prox_of_step_one(activation: ProximalActivation, channels: int) -> None:
    """prox(v, 1.0) is σ(v), bit for bit."""
    v = torch.linspace(-9, 9, 20 * channels, dtype=torch.float64).view(20, channels)
    close("prox(v)", activation.prox(v), activation(v), 0.0, v=v)
    one = torch.ones((), dtype=v.dtype)
    close("prox(v, tensor(1.0))", activation.prox(v, one), activation(v), 1e-14, 1e-14, v=v)


def dtypes_are_kept(activation: ProximalActivation, channels: int) -> None:
    """float16, bfloat16, float32 and float64 go through, with errors of a few roundings."""
    for dtype in DTYPES:
        v = torch.linspace(-4, 4, 8 * channels, dtype=torch.float64).view(8, channels).to(dtype)
        tolerance = 8 * torch.finfo(dtype).eps
        for name, method in (("σ", activation), ("prox", lambda x: activation.prox(x, 0.5)),
                             ("conjugate", activation.conjugate)):  # fmt: skip
            result = method(v)
            require(result.dtype == dtype, f"{name} of {dtype} has dtype {result.dtype}")
            expected = method(v.double())
            close(f"{name} in {dtype}", result.double(), expected, tolerance, tolerance, v=v)
        value = activation.psi(activation(v))
        require(value.dtype == dtype, f"psi of {dtype} has dtype {value.dtype}")
        finite(f"Ψ(σ(v)) in {dtype}", value, v=v)


def devices_are_kept(activation: ProximalActivation, channels: int) -> None:
    """Results are on the device of the argument."""
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    v = torch.randn(8, channels, device="cuda")
    for result in (activation(v), activation.psi(v), activation.prox(v, 0.5), activation.conjugate(v)):
        require(result.device == v.device, f"a result is on {result.device}")


def derivatives(activation: ProximalActivation, channels: int) -> None:
    """Autograd differentiates σ and prox, in the step too, as finite differences say."""
    v = 2.5 * torch.randn(4, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    v.requires_grad_()
    torch.autograd.gradcheck(activation, v)
    for step in (0.3, 3.0):
        torch.autograd.gradcheck(lambda u, step=step: activation.prox(u, step), v)
    step = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(activation.prox, (v, step))


def extreme_arguments(activation: ProximalActivation, channels: int) -> None:
    """From 0 to 1e30 in single precision nothing becomes NaN, slopes stay finite, and Φ + Φ* − ⟨·, ·⟩ stays small."""
    signs = torch.stack([torch.linspace(1, -1, channels), -torch.ones(channels), torch.ones(channels)])
    for size in (0.0, 1e-30, 1.0, 30.0, 88.0, 1e4, 1e30):
        v = (size * signs).requires_grad_()
        for name, method in (("σ", activation), ("conjugate", activation.conjugate),
                             ("prox", lambda u: activation.prox(u, 0.1))):  # fmt: skip
            result = method(v)
            (gradient,) = torch.autograd.grad(result.sum(), v)
            require(not result.isnan().any(), f"{name} is NaN", v=v.detach())
            # Beyond 1e4 the chain rule of a group's norm may overflow.
            if size <= 1e4 or activation.dim is None:
                finite(f"the slope of {name}", gradient, v=v.detach())
        p = activation(v).detach()
        require(not activation.psi(p).isnan().any(), "Ψ(σ(v)) is NaN", v=v.detach())
        if size <= 1e4:
            gap = activation.phi(p) + activation.conjugate(v) - activation.reduce(p * v)
            bound = 2e-6 * (1 + activation.reduce((p * v).abs() + p * p))
            at_most("|Φ(σ(v)) + Φ*(v) − ⟨σ(v), v⟩|", gap.detach().abs(), bound.detach(), v=v.detach())


def conjugate_is_nonnegative(activation: ProximalActivation, channels: int) -> None:
    """Φ* ≥ 0 for every size of its argument, where Ψ(0) = 0."""
    if activation.dim is not None or activation.psi(torch.zeros(channels)).abs().max() > 0:
        raise NotApplicable("Ψ(0) is not 0, or entries belong together")
    sizes = torch.logspace(-30, 4, 300).unsqueeze(1).expand(-1, channels)
    v = torch.cat([sizes, -sizes])
    at_most("−Φ*(v)", -activation.conjugate(v), 0.0, v=v)


def module_is_the_same(activation: ProximalActivation, channels: int) -> None:
    """to_module() has the bits of σ, and as_activation turns it back."""
    again = as_activation(activation.to_module())
    require(type(again) is type(activation), f"as_activation(to_module()) is a {type(again).__name__}")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        v = torch.linspace(-30, 30, 100 * channels, dtype=torch.float64).view(100, channels).to(dtype)
        close(f"to_module()(v) in {dtype}", activation.to_module()(v), activation(v), 0.0, v=v)
        close(f"as_activation(to_module())(v) in {dtype}", again(v), activation(v), 0.0, v=v)


def steps_are_checked(activation: ProximalActivation, channels: int) -> None:
    """prox refuses the steps 0, −1, NaN and ∞ with an error."""
    for step in (0.0, -1.0, math.nan, math.inf):
        refused = refuses(activation.prox, torch.ones(2, channels), step, error=ValueError)
        require(refused, f"prox took the step {step}; `check_positive` in torchlift.core.checks refuses it")


#: Called with an activation, a tensor and a seed.
ON_VALUES: tuple[Check, ...] = (
    sigma_minimises, prox_minimises, firmly_nonexpansive, fenchel_young, conjugate_has_slope_sigma,
    conjugate_has_differences_sigma, conjugate_is_derived, shapes_are_kept, arguments_are_left_alone,
    in_place_is_the_same,
)  # fmt: skip
#: Called with an activation and a number of channels.
ON_ITSELF: tuple[Check, ...] = (
    prox_of_step_one, tensor_steps, steps_are_checked, dtypes_are_kept, devices_are_kept, derivatives,
    extreme_arguments, conjugate_is_nonnegative, module_is_the_same,
)  # fmt: skip
