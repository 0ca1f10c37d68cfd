"""Training the thirteen modules and their lifted networks: sweeps, `RelativeStep`, `tl.train`, `Bregman`."""

from __future__ import annotations

import copy
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchlift as tl
from networks.zoo import DEEP, MODELS, Model, inputs, trained
from torchlift.networks import GraphNetwork
from torchlift.sweeps import Centring, Perturbation, RelativeStep, parameter_groups, sweeping


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request: pytest.FixtureRequest) -> Model:
    return request.param


def _networks(model: Model) -> dict[str, nn.Module]:
    module, y = trained(model), inputs(model)
    return {"module": module, "copied": tl.lift(module, y), "shared": tl.lift(module, y, share=True)}


def _gradients(module: nn.Module, y: Tensor, context: AbstractContextManager[object]) -> list[Tensor]:
    module.zero_grad()
    with context:
        loss = module(y).square().mean()
    loss.backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def _distance(one: list[Tensor], other: list[Tensor]) -> float:
    largest = max(float(a.abs().max()) for a in one)
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / largest


def _data(model: Model, module: nn.Module) -> tuple[Tensor, Tensor]:
    """Six samples in [0, 1], in single precision."""
    generator = torch.Generator().manual_seed(7)
    y = torch.rand(6, *model.shape, generator=generator)
    with torch.no_grad():
        shape = module(y).shape
    return y, torch.rand(shape, generator=generator)


def _changed(before: dict[str, Tensor], module: nn.Module) -> list[str]:
    assert all(bool(p.isfinite().all()) for p in module.parameters())
    return [name for name, p in module.named_parameters() if not torch.equal(p, before[name])]


def _copies(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


# -- sweeps -----------------------------------------------------------------------------------------------------------


def test_a_sweep_tends_to_back_propagation(model: Model) -> None:
    y = inputs(model)
    for name, network in _networks(model).items():
        plain = _gradients(network, y, nullcontext())
        assert _distance(plain, _gradients(network, y, sweeping(Perturbation(fixed=1e-5)))) < 1e-6, name


def test_the_sweep_of_a_lifted_network_is_that_of_its_module(model: Model) -> None:
    """At the usual, finite perturbation too, where it differs from back-propagation unless nothing is perturbed."""
    y, networks = inputs(model), _networks(model)
    expected = _gradients(networks["module"], y, sweeping())
    for name in ("copied", "shared"):
        assert _distance(expected, _gradients(networks[name], y, sweeping())) < 1e-10, name
    if model.name != "ConvMixer":  # GELU keeps its derivative
        assert _distance(expected, _gradients(networks["module"], y, nullcontext())) > 1e-5


def test_relative_steps_know_the_owners_of_parameters(model: Model) -> None:
    networks, y = _networks(model), inputs(model)
    module = networks["module"]

    def told(network: nn.Module) -> list[tuple[object, ...]]:
        groups = parameter_groups(network)
        return [(g["kind"], g.get("layers", 0), *(tuple(p.shape) for p in g["params"])) for g in groups]

    def heard(network: nn.Module) -> int:
        centring = Centring(network)
        network(y).square().mean().backward()
        return len(centring.take())

    hooks = [len(part._forward_pre_hooks) for part in module.modules()]
    count = heard(copy.deepcopy(module))
    affine = [p for p in module.modules() if isinstance(p, nn.Linear | nn.Conv1d | nn.Conv2d) and p.bias is not None]
    assert count == len(affine) > 0 or model.name == "FFDNet"  # which has no biases
    for name in ("copied", "shared"):
        assert told(networks[name]) == told(module), name
        assert heard(networks[name]) == count, name
    assert hooks == [len(part._forward_pre_hooks) for part in module.modules()]
    owned = [p for group in RelativeStep(networks["shared"]).param_groups for p in group["params"]]
    own = {id(p) for p in module.parameters()}
    assert len(owned) == len(own) and all(id(p) in own for p in owned)


def test_relative_steps_of_a_part() -> None:
    """A part runs call by call, without the hooks of modules: it trains all the same, and is swept."""
    model = next(model for model in MODELS if model.name == "LeNet")
    module, y = trained(model), inputs(model)
    part = tl.lift(module, y).up_to("fc1")
    plain = _gradients(part, y, nullcontext())
    assert _distance(plain, _gradients(part, y, sweeping(Perturbation(fixed=1e-5)))) < 1e-6
    assert _distance(plain, _gradients(part, y, sweeping())) > 1e-5
    before, optimiser = _copies(part), RelativeStep(part)
    optimiser.step()
    assert {name.rsplit(".", 2)[-2] for name in _changed(before, part)} == {"conv1", "conv2", "fc1"}


# -- train ------------------------------------------------------------------------------------------------------------


def test_a_step_of_training_by_default(model: Model) -> None:
    """All parameters move, of the module as of the lifted network, and there is nothing to warn of."""
    single = trained(model).float()
    data = _data(model, single)
    for network in (copy.deepcopy(single), tl.lift(single, data[0])):
        before = _copies(network)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = tl.train(network, data, steps=1, progress=False)
        assert len(_changed(before, network)) == len(before)
        assert result.steps == 1 and network(data[0]).isfinite().all()


def test_shared_weights_are_trained_in_place() -> None:
    model = next(model for model in MODELS if model.name == "U-Net")
    module = trained(model).float()
    data, before, buffers = _data(model, module), _copies(module), copy.deepcopy(dict(module.named_buffers()))
    network = tl.lift(module, data[0], share=True)
    tl.train(network, data, steps=2, progress=False)
    assert len(_changed(before, module)) == len(before)
    torch.testing.assert_close(module(data[0]), network(data[0]), rtol=0, atol=0)
    assert not module.training
    for name, tensor in module.named_buffers():  # batch norms keep the mode in which they were lifted
        assert torch.equal(tensor, buffers[name]), name


@pytest.mark.parametrize("batch_size", [6, "full"])
def test_batch_norm_in_training_mode(batch_size: int) -> None:
    """It is trained as it was lifted: with statistics of the batch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).train()
    y, x = torch.rand(12, 1, 6, 6), torch.rand(12, 3)
    for lifting in (None, tl.liftings.Bregman()):
        network = tl.lift(copy.deepcopy(module), y[:4])
        assert isinstance(network, GraphNetwork) and network.get_submodule("module.1").training
        before = _copies(network)
        tl.train(network, (y, x), lifting=lifting, steps=2, batch_size=batch_size, progress=False)
        assert "module.4.weight" in _changed(before, network)
        norm: Any = network.get_submodule("module.1")
        assert norm.training and norm.running_mean.isfinite().all() and (norm.running_var > 0).all()


def test_a_step_of_training_by_bregman(model: Model) -> None:
    """Defined for all of them: opaque rows are penalised by μ/2 ‖z − g(u)‖². The loss falls."""
    single = trained(model).float()
    data = _data(model, single)
    network = tl.lift(single, data[0])
    before = _copies(network)
    with torch.no_grad():
        first = F.mse_loss(network(data[0]), data[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tl.train(network, data, lifting=tl.liftings.Bregman(), steps=1, progress=False)
    changed = _changed(before, network)
    assert len(changed) == len(before) or model.name in DEEP
    assert list(before)[-1] in changed and F.mse_loss(network(data[0]), data[1]) < first


def test_a_plain_module_is_not_trained_by_bregman() -> None:
    model = next(model for model in MODELS if model.name == "LeNet")
    module = trained(model).float()
    with pytest.raises(ValueError, match=r"unified form.*LeNet.*tl\.lift"):
        tl.train(module, _data(model, module), lifting=tl.liftings.Bregman(), steps=1, progress=False)
