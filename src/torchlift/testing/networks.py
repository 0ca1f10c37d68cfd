"""What every network promises, and `check_network`."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_instance
from torchlift.core.errors import invalid_value
from torchlift.networks import MLP, Network, Perceptron
from torchlift.operators import Context
from torchlift.operators.context import context_batch, map_context, select_context
from torchlift.testing.compare import at_most, close, require
from torchlift.testing.report import Check, NotApplicable, Report, report

BATCH = 3
#: Entries of W up to which promises about dense matrices are tried.
DENSE_ENTRIES = 1 << 22


def check_network(network: Network, context: Context = None, *, seed: int = 0) -> Report:
    """Whether a network of one's own is what its operators K, d, M, V, W, b say, and is a good `nn.Module`.

    Everything is tried in double precision on a copy.

    Arguments:
        network: an instance of a subclass of `Network`.
        context: of three or more samples, where the operators need one.
        seed: of the inputs.

    Example:
        >>> import torchlift as tl
        >>> tl.check_network(tl.networks.MLP([4, 3, 2])).ok
        True
    """
    check_instance("check_network", network, Network, "a network", "Lift an nn.Sequential first: tl.lift(module).")
    if context is not None and (count := context_batch("check_network context", context)) < BATCH:
        invalid_value("check_network context", f"at least {BATCH} samples", count)
    network = copy.deepcopy(network).cpu().double()
    context = map_context(context, lambda tensor: tensor[:BATCH].cpu().double())
    return report(type(network).__name__, [(check, [(network, inputs(network, seed), context)]) for check in CHECKS])


def inputs(network: Network, seed: int = 7, batch: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *network.in_shape, generator=generator, dtype=torch.float64)


def unified_form(network: Network, y: Tensor, context: Context) -> None:
    """The dense matrices satisfy N(y) = K u + d, M u = V z, v = W u + b and z = σ(v) at the forward pass."""
    form, states = network.operators(), network.states(y, context)
    sizes = [sum(math.prod(shape) for shape in shapes) for shapes in (form.W.row_shapes, form.W.column_shapes)]
    if math.prod(sizes) > DENSE_ENTRIES:
        raise NotApplicable(f"W would have more than {DENSE_ENTRIES:,} entries; try a smaller instance")
    for i in range(len(y)):
        sample_context = select_context(context, slice(i, i + 1))
        K, M, V, W = (getattr(form, name).to_dense(sample_context) for name in "KMVW")
        u = _flat(states.u)[i]
        _close("N(y) and K u + d", states.output[i].flatten(), K @ u + form.d.to_dense())
        if form.depth:
            z, v = _flat(states.z)[i], _flat(states.v)[i]
            _close("M u and V z", M @ u, V @ z)
            _close("v and W u + b", v, W @ u + form.b.to_dense())
    for j, (activation, v, z) in enumerate(zip(form.activations, states.v, states.z, strict=True)):
        close(f"z of layer {j + 1}", z, activation(v), 0.0)
    _close("forward and the output of states", network(y, context), states.output)


def identity_diagonal(network: Network, y: Tensor, context: Context) -> None:
    """The diagonal blocks of M are identities, and W, M and V read nothing later than their own layer."""
    form = network.operators()
    for j, shape in enumerate(form.M.row_shapes):
        require((j, j + 1) in form.M.blocks, f"M has no diagonal block in row {j}")
        if math.prod(shape) ** 2 <= DENSE_ENTRIES:
            block = form.M.blocks[j, j + 1].to_dense()
            close(f"diagonal block {j} of M", block, torch.eye(math.prod(shape), dtype=block.dtype), 0.0)
    for name, ahead in (("W", 0), ("M", 1), ("V", 0)):
        later = [place for place in getattr(form, name).blocks if place[1] > place[0] + ahead]
        require(not later, f"{name} has blocks at {later}, above the diagonal")


def block_adjoints(network: Network, y: Tensor, context: Context) -> None:
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩ for K, M, V and W."""
    form, generator = network.operators(), torch.Generator().manual_seed(3)
    for name in "KMVW":
        operator = getattr(form, name)
        if not operator.blocks:
            continue
        x = [torch.randn(len(y), *s, generator=generator, dtype=y.dtype) for s in operator.column_shapes]
        w = [torch.randn(len(y), *s, generator=generator, dtype=y.dtype) for s in operator.row_shapes]
        left = torch.stack([(a * b).sum() for a, b in zip(operator(x, context), w, strict=True)]).sum()
        right = torch.stack([(a * b).sum() for a, b in zip(x, operator.adjoint(w, context), strict=True)]).sum()
        _close(f"⟨{name} x, y⟩ and ⟨x, {name}ᵀ y⟩", left, right)


def parameters_are_seen_once(network: Network, y: Tensor, context: Context) -> None:
    """Every parameter is listed once and gets a gradient."""
    parameters = dict(network.named_parameters(remove_duplicate=False))
    repeated = set(parameters) - set(dict(network.named_parameters()))
    require(not repeated, f"{sorted(repeated)} are other names of the same parameters")
    twin = copy.deepcopy(network)
    for parameter in twin.parameters():
        parameter.grad = None
    twin(y, context).square().sum().backward()
    missing = [name for name, p in twin.named_parameters() if p.requires_grad and p.grad is None]
    require(not missing, f"no gradient reaches {missing}")
    slopes = [float(parameter.grad.abs().max()) for parameter in twin.parameters() if parameter.grad is not None]
    require(not slopes or max(slopes) > 0, "all gradients are zero")


def state_is_complete(network: Network, y: Tensor, context: Context) -> None:
    """The state dict holds all that the output depends on, and copies are independent."""
    before = network(y, context).detach()
    twin = copy.deepcopy(network)
    _close("the copy's output", twin(y, context), before, exact=True)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    _close("the output after the copy was changed", network(y, context), before, exact=True)
    require(not list(twin.parameters()) or not torch.equal(twin(y, context), before), "parameters change nothing")
    twin.load_state_dict(network.state_dict())
    _close("the output after load_state_dict", twin(y, context), before, exact=True)


def dtype_is_followed(network: Network, y: Tensor, context: Context) -> None:
    """`.float()` turns everything into single precision."""
    expected = network(y, context)
    single = copy.deepcopy(network).float()(y.float(), map_context(context, lambda tensor: tensor.float()))
    require(single.dtype == torch.float32, f"the output of the network in float32 has dtype {single.dtype}")
    close("the output in float32", single.double(), expected, 1e-4, 1e-5 * float(1 + expected.detach().abs().max()))


def device_is_followed(network: Network, y: Tensor, context: Context) -> None:
    """`.to(device)` moves everything."""
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    expected = network(y, context)
    moved = copy.deepcopy(network).cuda()(y.cuda(), map_context(context, lambda tensor: tensor.cuda()))
    close("the output on the GPU", moved.cpu(), expected, 1e-9, 1e-9)


def plain_module(network: Network, y: Tensor, context: Context) -> None:
    """to_sequential() is a module without torchlift's networks, of the same outputs and its own weights."""
    twin = copy.deepcopy(network)
    plain = twin.to_sequential(context)
    require(isinstance(plain, nn.Module) and not isinstance(plain, Network), f"to_sequential gave {type(plain)}")
    arguments = (y,) if context is None else (y, context)
    # Bit for bit where each module is one block; sums of blocks and folded biases round differently.
    _close("its output", plain(*arguments), network(y, context), exact=isinstance(network, Perceptron | MLP))
    before = plain(*arguments).detach().clone()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    _close("its output after the network's weights changed", plain(*arguments), before, exact=True)
    if type(network).to_sequential is Network.to_sequential:
        _any_batch(plain, network, len(y), context)


def export(network: Network, y: Tensor, context: Context) -> None:
    """torch.export gives a module that takes batches of any size."""
    if type(network).to_sequential is Network.to_sequential:
        raise NotApplicable("to_sequential is torch.export, and was tried")
    _any_batch(Network.to_sequential(network, context), network, len(y), context)


def _any_batch(plain: nn.Module, network: Network, size: int, context: Context) -> None:
    for batch in (size, size + 2):
        more = inputs(network, batch=batch)
        repeated = map_context(context, lambda tensor, batch=batch: tensor[torch.arange(batch) % len(tensor)])
        arguments = (more,) if repeated is None else (more, repeated)
        _close(f"its output for a batch of {batch}", plain(*arguments), network(more, repeated))


def compiles(network: Network, y: Tensor, context: Context) -> None:
    """torch.compile takes the forward pass in one graph."""
    torch.compiler.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    _close("the compiled output", compiled(y, context), network(y, context))


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    """(B, total) from the blocks of a batch."""
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def _close(what: str, actual: Tensor, expected: Tensor, *, exact: bool = False) -> None:
    actual, expected = actual.detach(), expected.detach()
    require(actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)} and {tuple(expected.shape)}")
    size = float(1 + expected.abs().max()) if expected.numel() else 1.0
    at_most(f"{what}: the difference", (actual - expected).abs(), 0.0 if exact else 1e-12 * size)


#: Called with a network in double precision, an input and a context.
CHECKS: tuple[Check, ...] = (
    unified_form, identity_diagonal, block_adjoints, parameters_are_seen_once, state_is_complete, dtype_is_followed,
    device_is_followed, plain_module, export, compiles,
)  # fmt: skip
