"""Block operators and block vectors against their dense matrices."""

from __future__ import annotations

import pytest
import torch

from torchlift.core.errors import InvalidValueError
from torchlift.operators import BlockOperator, BlockVector, Conv2d, Dense, Identity, Reshape


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def grid() -> BlockOperator:
    """Rows (3,), (2, 4, 4), (5,) and columns (4,), (1, 4, 4); the last row is zero."""
    convolution = Conv2d(_randn(2, 1, 3, 3), (1, 4, 4), padding=1)
    flat = Dense(_randn(3, 16)) @ Reshape((1, 4, 4), (16,))
    blocks = {(0, 0): Dense(_randn(3, 4)), (1, 1): convolution, (0, 1): flat}
    return BlockOperator(blocks, ((3,), (2, 4, 4), (5,)), ((4,), (1, 4, 4)), "z_{1}", "u_{0}")


def test_forward_and_adjoint_agree_with_the_matrix(grid: BlockOperator) -> None:
    matrix = grid.to_dense()
    assert matrix.shape == (3 + 32 + 5, 4 + 16)
    x = (_randn(2, 4), _randn(2, 1, 4, 4, seed=1))
    y = (_randn(2, 3), _randn(2, 2, 4, 4, seed=1), _randn(2, 5, seed=2))
    flat_x, flat_y = (torch.cat([part.flatten(1) for part in parts], 1) for parts in (x, y))
    out = torch.cat([part.flatten(1) for part in grid(x)], 1)
    back = torch.cat([part.flatten(1) for part in grid.adjoint(y)], 1)
    torch.testing.assert_close(out, flat_x @ matrix.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(back, flat_y @ matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(grid.T.to_dense(), matrix.T, rtol=0, atol=1e-12)


def test_row_sums_only_over_the_columns_known_so_far(grid: BlockOperator) -> None:
    x = (_randn(2, 4),)
    torch.testing.assert_close(grid.row(0, x), x[0] @ grid.blocks[0, 0].weight.T)
    assert grid.row(1, x) is None


def test_text_picture_has_shapes_labels_and_zeros(grid: BlockOperator) -> None:
    lines = str(grid).splitlines()
    assert "u_0 (4)" in lines[0] and "u_1 (1×4×4)" in lines[0]
    assert lines[2].split()[0] == "z_2" and "·" in lines[2]
    assert lines[3].count("·") == 2


def test_large_grids_are_abbreviated() -> None:
    count = 40
    identity = BlockOperator({(j, j): Identity((1,)) for j in range(count)}, ((1,),) * count, ((1,),) * count)
    assert len(str(identity).splitlines()) == 14
    assert "⋯" in str(identity)


def test_block_vector_broadcasts() -> None:
    vector = BlockVector((_randn(2, 1, 1), None, _randn(3)), ((2, 2, 2), (4,), (3,)))
    dense = vector.to_dense()
    assert dense.shape == (8 + 4 + 3,)
    assert torch.equal(dense[:4], _randn(2, 1, 1)[0, 0, 0].expand(4))
    assert torch.equal(dense[8:12], torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: BlockOperator({(0, 1): Identity((2,))}, ((2,),), ((2,),)), ["(0, 1)", "1 x 1 grid"]),
        (lambda: BlockOperator({(0, 0): Identity((3,))}, ((2,),), ((2,),)), ["(2,)", "(3,)", "Identity"]),
        (lambda: BlockVector((None,), ((2,), (3,))), ["2 blocks", "1"]),
        (lambda: BlockVector((_randn(3),), ((2,),)), ["broadcasts to (2,)", "(3,)"]),
        (lambda: BlockVector((_randn(1, 2),), ((2,),)), ["broadcasts to (2,)", "(1, 2)"]),
        (lambda: BlockOperator({}, ((2,),), ((2,),))([]), ["1 blocks", "0"]),
        (lambda: BlockOperator({}, ((2,),), ((2,),))([_randn(4, 3)]), ["block 0", "(batch, 2)", "(4, 3)"]),
    ],
)
def test_bad_blocks_are_refused(build, words: list[str]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        build()
    assert all(word in str(caught.value) for word in words), caught.value
