"""Forward models of deepinv as operators, and operators as forward models of deepinv."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import torchlift as tl
from torchlift.core.errors import InvalidTypeError, InvalidValueError

physics = pytest.importorskip("deepinv.physics", reason="needs deepinv: pip install torchlift[deepinv]")

KERNEL = physics.functional.gaussian_blur(sigma=(1.0, 0.7))


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


EXACT = {
    "blur, circular": lambda: (physics.Blur(KERNEL, padding="circular"), (1, 12, 11)),
    "blur, valid": lambda: (physics.Blur(KERNEL, padding="valid"), (2, 12, 13)),
    "inpainting": lambda: (physics.Inpainting((1, 6, 5), mask=0.5), None),
    "decolorize": lambda: (physics.Decolorize(), (3, 4, 5)),
    "denoising with noise": lambda: (physics.Denoising(physics.GaussianNoise(0.1)), (1, 5, 4)),
    "composed": lambda: (
        physics.Inpainting((1, 12, 12), mask=0.5).double() * physics.Blur(KERNEL, padding="circular").double(),
        (1, 12, 12),
    ),
}
"""Physics that follow the dtype and the device of their argument: all promises of an operator are kept."""


@pytest.mark.filterwarnings("ignore:At least one input physics is a DecomposablePhysics:UserWarning")
@pytest.mark.parametrize("name", EXACT)
def test_a_physics_keeps_the_contract_of_operators(name: str) -> None:
    forward_model, shape = EXACT[name]()
    operator = tl.contrib.deepinv.from_physics(forward_model, shape)
    tl.check_operator(operator).raise_if_failed()
    model = copy.deepcopy(forward_model).double()
    x = rand(3, *operator.in_shape)
    double = operator.map_tensors(lambda _, tensor: tensor.double())
    assert torch.equal(double(x), model.A(x))
    assert torch.equal(double.T(double(x)), model.A_adjoint(model.A(x)))


@pytest.mark.parametrize("double", [False, True])
def test_a_physics_with_a_dtype_of_its_own_computes_in_it(double: bool) -> None:
    sensing = physics.CompressedSensing(m=20, img_size=(1, 6, 6))
    operator = tl.contrib.deepinv.from_physics(sensing)
    assert operator.in_shape == (1, 6, 6) and operator.out_shape == (20,)
    x = rand(2, 1, 6, 6).to(torch.float64 if double else torch.float32)
    assert operator(x).dtype == x.dtype
    torch.testing.assert_close(operator(x).float(), sensing.A(x.float()))
    norm = torch.linalg.matrix_norm(sensing._A.double(), 2)
    assert norm <= operator.norm_bound() <= 1.01 * norm


def test_parameters_of_each_image_are_the_context() -> None:
    inpainting = physics.Inpainting((1, 4, 5), mask=None)
    masks = (rand(2, 1, 4, 5) > 0.5).double()
    operator = tl.contrib.deepinv.from_physics(inpainting, context={"mask": masks})
    tl.check_operator(operator, {"mask": masks}).raise_if_failed()
    x = rand(2, 1, 4, 5, seed=1)
    assert torch.equal(operator(x, {"mask": masks, "of another operator": masks}), masks * x)
    assert inpainting.mask is None, "the physics must stay as it is"
    with pytest.raises(InvalidValueError, match="Inpainting context: expected tensors by name"):
        operator(x, masks)


def test_an_operator_of_a_physics_can_be_copied_and_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    blur = physics.Blur(KERNEL.double(), padding="circular", noise_model=physics.GaussianNoise(0.1, rng=generator))
    operator = tl.contrib.deepinv.from_physics(blur, (1, 9, 9))
    before = operator(x := rand(1, 1, 9, 9))
    twin = copy.deepcopy(operator)
    blur.update(filter=2 * blur.filter)
    assert torch.equal(operator(x), before) and torch.equal(twin(x), before)
    assert not torch.equal(blur.A(x), before)


def test_gradients_reach_the_tensors_of_a_physics() -> None:
    operator: Any = tl.contrib.deepinv.from_physics(physics.Blur(KERNEL.double(), padding="circular"), (1, 9, 9))
    kernel = KERNEL.double().requires_grad_()
    moved = operator.map_tensors(lambda path, tensor: kernel if tensor.ndim == 4 else tensor)
    moved(x := rand(1, 1, 9, 9)).sum().backward()
    assert kernel.grad is not None
    torch.testing.assert_close(kernel.grad, torch.full_like(kernel, float(x.sum())))  # each entry sees every pixel


@pytest.mark.parametrize("name", tl.operators.OPERATORS)
def test_every_operator_is_a_physics(name: str) -> None:
    operator, context = tl.operators.OPERATORS[name](torch.Generator().manual_seed(0))
    context = {"mask": context} if isinstance(context, Tensor) else context and dict(context)
    if context:
        context.pop("noise", None)  # of no use to the operator, and a name that a physics has
    model = tl.contrib.deepinv.as_physics(operator, context=context)
    assert isinstance(model, physics.LinearPhysics)
    x = rand(2, *operator.in_shape)
    y = rand(2, *operator.out_shape, seed=1)
    assert torch.equal(model.A(x), operator(x, context))
    assert torch.equal(model.A_adjoint(y), operator.T(y, context))
    if not isinstance(operator, tl.operators.Zero):  # a relative error of 0/0
        assert model.adjointness_test(num_samples=2, dtype=torch.float64) < 1e-12


def test_a_physics_of_an_operator_in_algorithms_of_deepinv() -> None:
    matrix = rand(8, 5)
    model = tl.contrib.deepinv.as_physics(tl.operators.Dense(matrix), max_iter=100, tol=1e-12)
    y = rand(3, 8, seed=1)
    expected = torch.linalg.lstsq(matrix, y.T).solution.T
    for solver in ("CG", "lsqr"):
        torch.testing.assert_close(model.A_dagger(y, solver=solver), expected, rtol=0, atol=1e-3)
    z = rand(3, 5, seed=2)
    near = torch.linalg.solve(torch.eye(5) + 2 * matrix.T @ matrix, (z + 2 * y @ matrix).T).T
    found = model.prox_l2(z, y, gamma=2.0)
    torch.testing.assert_close(found, near, rtol=0, atol=1e-4)  # deepinv stops early
    theirs = physics.LinearPhysics(A=lambda x: x @ matrix.T, A_adjoint=lambda y: y @ matrix, max_iter=100, tol=1e-12)
    torch.testing.assert_close(found, theirs.prox_l2(z, y, gamma=2.0))
    square = model.compute_sqnorm(x0=z[:1], max_iter=1000, tol=1e-10, verbose=False)
    assert float(square) == pytest.approx(tl.operators.Dense(matrix).norm_bound() ** 2, rel=1e-6)


def test_noise_and_parameters_of_a_physics_of_an_operator() -> None:
    shape = (1, 4, 5)
    masks = (rand(2, *shape) > 0.5).double()
    model = tl.contrib.deepinv.as_physics(
        tl.operators.Mask(shape=shape), noise_model=physics.GaussianNoise(0.5), context={"mask": masks[:1]}
    )
    x = rand(2, *shape, seed=1)
    assert torch.equal(model.A(x), masks[:1] * x), "one mask serves all images"
    model.update(mask=masks)
    assert torch.equal(model.A(x), masks * x)
    assert torch.equal(model.A(x, mask=1 - masks), (1 - masks) * x)
    many = model(torch.zeros(2000, *shape, dtype=torch.float64), mask=masks[:1])
    assert float(many.std()) == pytest.approx(0.5, rel=0.02)
    assert model.clone().float().A(x.float()).dtype == torch.float32


def test_there_and_back() -> None:
    operator = tl.operators.Blur(tl.operators.gaussian_kernel(3, 0.8, torch.float64), (1, 6, 7), "symmetric")
    again = tl.contrib.deepinv.from_physics(tl.contrib.deepinv.as_physics(operator))
    torch.testing.assert_close(again.to_dense(), operator.to_dense())
    tl.check_operator(again).raise_if_failed()


def test_a_physics_as_an_inverse_problem() -> None:
    blur = physics.Blur(KERNEL, padding="circular", noise_model=physics.GaussianNoise(0.2))
    task = tl.contrib.deepinv.PhysicsTask(blur)
    x = rand(500, 1, 12, 12)
    y, context = task.degrade(x, torch.Generator().manual_seed(0))
    noise = y - copy.deepcopy(blur).double().A(x)
    assert context is None and task.noise == pytest.approx(0.2)
    assert float(noise.std()) == pytest.approx(0.2, rel=0.02)
    assert tl.contrib.deepinv.PhysicsTask(physics.Denoising(physics.ZeroNoise())).noise == 0
    with pytest.raises(InvalidValueError, match=r"PhysicsTask noise: expected no noise, or Gaussian.*got PoissonNoise"):
        tl.contrib.deepinv.PhysicsTask(physics.Denoising(physics.PoissonNoise()))
    with pytest.raises(InvalidTypeError, match=r"PhysicsTask: expected a deepinv\.physics\.LinearPhysics, got Haze"):
        tl.contrib.deepinv.PhysicsTask(physics.Haze())


def wrong_adjoint() -> Any:
    return physics.LinearPhysics(A=lambda x: x.cumsum(-1), A_adjoint=lambda y: y.cumsum(-1))


BAD: list[tuple[Any, Any, str]] = [
    (physics.Haze(), (3, 4, 4), "expected a deepinv.physics.LinearPhysics, got Haze. A physics that is not linear"),
    (torch.eye(3), (3,), "expected a deepinv.physics.LinearPhysics, got Tensor"),
    (physics.Blur(KERNEL), None, r"in_shape: expected a shape such as \(1, 28, 28\), got NoneType"),
    (physics.Blur(KERNEL), (9, 9), r"a physics for images of shape \(9, 9\), got ValueError .* without the batch axis"),
    (
        physics.Inpainting((1, 4, 4), mask=0.5),
        (1, 5, 4),
        r"a physics for images of shape \(1, 5, 4\), got RuntimeError",
    ),
    (physics.Inpainting((1, 4, 4), mask=None), None, "got TypeError .* an example context"),
    (physics.Denoising().stack(physics.Denoising()), (1, 4, 4), "one real tensor of measurements, got TensorList"),
    (physics.LinearPhysics(A=lambda x: x.abs(), A_adjoint=lambda y: y), (4,), "expected a linear physics, got A"),
    (wrong_adjoint(), (4,), "a physics whose A_adjoint is the adjoint of its A, got one that differs by"),
    (physics.Inpainting((1, 4, 4), mask=torch.ones(3, 1, 4, 4)), None, "got RuntimeError"),
]


@pytest.mark.parametrize(("model", "shape", "words"), BAD)
def test_what_is_no_linear_map_is_refused_with_words(model: Any, shape: Any, words: str) -> None:
    with pytest.raises((InvalidTypeError, InvalidValueError), match=f"from_physics.*{words}"):
        tl.contrib.deepinv.from_physics(model, shape)


def test_what_is_no_operator_is_refused_with_words() -> None:
    mask = tl.operators.Mask(shape=(3,))
    with pytest.raises(InvalidTypeError, match="as_physics: expected a LinearOperator, got Tensor"):
        tl.contrib.deepinv.as_physics(torch.eye(3))
    with pytest.raises(InvalidTypeError, match="as_physics context: expected tensors by name, got Tensor"):
        tl.contrib.deepinv.as_physics(mask, context=torch.ones(1, 3))
    with pytest.raises(InvalidValueError, match="names that a physics does not use itself, got 'stack'"):
        tl.contrib.deepinv.as_physics(mask, context={"stack": torch.ones(1, 3)})
    with pytest.raises(InvalidValueError, match=r"Mask input: expected shape \(batch, 3\), got \(2, 4\)"):
        tl.contrib.deepinv.as_physics(mask, context={"mask": torch.ones(1, 3)}).A(torch.ones(2, 4))
