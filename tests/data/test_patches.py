"""Patches of large images: numbered, turned, degraded; tiles that cover, and functions applied tile by tile."""

from __future__ import annotations

import pytest
import torch

import torchlift as tl
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.data import Denoising, DrawnBatches, Inpainting, Patches, apply_in_tiles, as_batches, tiles


def pictures(*sizes: tuple[int, int], channels: int = 1) -> list[torch.Tensor]:
    """Bytes that tell where they are: 16 i + j."""
    rows = [(16 * torch.arange(h)[:, None] + torch.arange(w)).remainder(256) for h, w in sizes]
    return [image.to(torch.uint8).expand(channels, *image.shape) for image in rows]


def test_batches_are_numbered_and_new_in_every_epoch():
    patches = Patches(pictures((12, 15), (9, 20)), Denoising(0.1), 6, 10)
    batches, again = (as_batches(patches, batch_size=4, seed=3) for _ in range(2))
    assert isinstance(batches, DrawnBatches) and batches.samples == 10 and batches.per_epoch == 3
    first, later = batches.batch(1), batches.batch(7)
    assert torch.equal(again.batch(7).y, later.y) and torch.equal(again.batch(1).x, first.x)
    assert not torch.equal(first.x, later.x)
    assert first.y.shape == first.x.shape == (4, 1, 6, 6) and first.y.dtype == torch.float32
    assert 0.05 < float((first.y - first.x).std()) < 0.15


def test_patches_are_parts_of_the_images_in_all_eight_positions():
    images = pictures((8, 9), channels=3)
    _, x, context = Patches(images, Denoising(0.1), 4, 300)(torch.Generator().manual_seed(0))
    assert context is None
    windows = images[0].unfold(1, 4, 1).unfold(2, 4, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    turned = [torch.rot90(flipped, k, (2, 3)) for flipped in (windows, windows.flip(3)) for k in range(4)]
    numbers = (x * 255).round().to(torch.uint8)
    matches = torch.stack([(numbers[:, None] == some[None]).all((2, 3, 4)).any(1) for some in turned])
    assert bool(matches.any(0).all()) and bool(matches.any(1).all())
    plain = Patches(images, Denoising(0.1), 4, 50, turned=False)(torch.Generator().manual_seed(0))[1]
    plain = (plain * 255).round().to(torch.uint8)
    assert bool((plain[:, None] == windows[None]).all((2, 3, 4)).any(1).all())


def test_masks_are_drawn_with_the_patches():
    y, x, mask = Patches(pictures((9, 9)), Inpainting(0.3), 5, 20)(torch.Generator().manual_seed(0))
    assert mask.shape == x.shape and torch.equal(y, mask * x) and 0.6 < float(mask.mean()) < 0.8


def test_training_on_patches_can_be_continued(tmp_path):
    patches = Patches(pictures((16, 20), (17, 18)), Denoising(0.1), 8, 12)
    held_out = tiles(pictures((16, 16)), 8)

    def run(folder, steps, resume=False):
        net = tl.networks.DDFB((1, 8, 8), 2, features=4, size=3, generator=torch.Generator().manual_seed(0))
        given = {"batch_size": 4, "progress": False, "folder": tmp_path / folder, "resume": resume}
        return tl.train(net, patches, validation=(held_out, held_out), steps=steps, solver=torch.optim.Adam,
                        lifting=tl.liftings.Conventional(), **given).network  # fmt: skip

    whole = run("a", 8)
    run("b", 5)
    parts = run("b", 8, resume=True)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other)


def test_tiles_cover_every_pixel():
    images = pictures((7, 10), (4, 4))
    found = tiles(images, 4, torch.float64)
    assert found.shape == (2 * 3 + 1, 1, 4, 4)
    torch.testing.assert_close(found[0], images[0][:, :4, :4] / 255.0, check_dtype=False)
    torch.testing.assert_close(found[5], images[0][:, 3:, 6:] / 255.0, check_dtype=False)


@pytest.mark.parametrize("shape", [(2, 3, 20, 23), (1, 3, 8, 30), (5, 3, 9, 9), (1, 3, 5, 4)])
def test_tiles_give_what_the_whole_image_gives(shape):
    """A blur that reaches two pixels, which the borders of squares do not disturb."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def blur(images):
        assert images.shape[2:] == (8, 8) or images.shape == shape
        return torch.nn.functional.conv2d(images, weight, padding=2, groups=3)

    found = apply_in_tiles(blur, x, 8, overlap=4, batch_size=3)
    assert found.shape == x.shape
    inner = (..., slice(2, -2), slice(2, -2)) if min(shape[2:]) < 8 else ...
    torch.testing.assert_close(found[inner], torch.nn.functional.conv2d(x, weight, padding=2, groups=3)[inner])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Patches([], Denoising(), 4), InvalidTypeError, "a sequence of images"),
        (lambda: Patches(pictures((5, 3)), Denoising(), 4), InvalidValueError, "at least 4 x 4 pixels"),
        (lambda: Patches([torch.zeros(4, 4)], Denoising(), 4), InvalidValueError, "channels, height, width"),
        (lambda: Patches([torch.zeros(1, 9, 9), torch.zeros(3, 9, 9)], Denoising(), 4), ValueError, "1 channels"),
        (lambda: Patches(pictures((5, 5)), "denoising", 4), InvalidTypeError, "Patches task"),  # type: ignore[arg-type]
        (lambda: apply_in_tiles(lambda x: x, torch.zeros(1, 1, 9, 9), 4, 4), InvalidValueError, "less than the size"),
    ],
)
def test_what_does_not_fit_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        (tl.data.SuperResolution(3), (3, 4, 4)),
        (tl.data.MagneticResonance(), (2, 12, 12)),
        (tl.data.Tomography(5), (1, 5, 17)),
    ],
)
def test_more_inverse_problems(task: tl.data.Task, shape: tuple[int, ...]):
    channels = 3 if shape[0] == 3 else 1
    x = torch.rand(2, channels, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y, context = task.degrade(x, torch.Generator().manual_seed(1))
    operator = task.operator((channels, 12, 12), x)
    assert y.shape == (2, *shape) and y.dtype == torch.float64
    assert float((y - operator(x, context)).abs().max()) <= 6 * task.noise
    assert tl.check_operator(operator, context).ok
    net = tl.networks.PrimalDual(operator, tl.operators.Separable.cosine((channels, 12, 12), torch.float64), 2,
                                 context=context)  # fmt: skip
    assert net(y, context).shape == x.shape


def test_masks_of_magnetic_resonance():
    x = torch.zeros(6, 1, 8, 50)
    mask = tl.data.MagneticResonance(4, 0.1).context(x, torch.Generator().manual_seed(0))
    columns = mask[:, 0, 0]
    assert torch.equal(mask, columns[:, None, None].expand(6, 2, 8, 50))
    assert columns.sum(1).tolist() == [12] * 6 and bool((columns[:, 24:27] == 1).all())
    assert not torch.equal(columns[0], columns[1])
    with pytest.raises(InvalidValueError, match="at most the measured share"):
        tl.data.MagneticResonance(20)
