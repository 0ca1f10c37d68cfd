"""Sizes of sliding windows: the arithmetic that convolutions and pooling share."""

from __future__ import annotations

from collections.abc import Sequence

from torchlift.core.checks import Shape, check_shape, check_size
from torchlift.core.errors import invalid_value

Pair = tuple[int, int]


def check_pair(where: str, value: object, minimum: int = 1) -> Pair:
    """Two whole numbers; one number stands for both axes."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            invalid_value(where, "one number or a pair", tuple(value))
        return check_size(where, value[0], minimum), check_size(where, value[1], minimum)
    size = check_size(where, value, minimum)
    return size, size


def check_image_shape(where: str, value: object) -> tuple[int, int, int]:
    """A shape (channels, height, width)."""
    shape: Shape = check_shape(where, value)
    if len(shape) != 3:
        invalid_value(where, "a shape (channels, height, width)", shape)
    return shape[0], shape[1], shape[2]


def broadcasts(small: Shape, large: Shape) -> bool:
    """Whether a tensor of one shape broadcasts to the other without enlarging it."""
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(a in (1, b) for a, b in pairs)


def check_padding(where: str, value: object, extent: Pair, stride: Pair) -> tuple[Pair, Pair]:
    """Zeros before and after each axis, ((top, left), (bottom, right)); "same" pads the end more, as torch does."""
    if not isinstance(value, str):
        pair = check_pair(where, value, minimum=0)
        return pair, pair
    if value == "valid":
        return (0, 0), (0, 0)
    if value != "same":
        invalid_value(where, '"same", "valid", a number or a pair', repr(value))
    if stride != (1, 1):
        invalid_value(where, 'a number or a pair, since "same" needs stride 1', f'"same" with stride {stride}')
    before = ((extent[0] - 1) // 2, (extent[1] - 1) // 2)
    return before, (extent[0] - 1 - before[0], extent[1] - 1 - before[1])


def window_extent(kernel: Sequence[int], dilation: Pair) -> Pair:
    """Pixels from the first to the last tap of a kernel, both included."""
    return dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1


def window_count(where: str, size: Pair, extent: Pair, stride: Pair, padding: Pair) -> Pair:
    """How many windows fit along each axis, for `padding` zeros in total."""
    room = size[0] + padding[0] - extent[0], size[1] + padding[1] - extent[1]
    if min(room) < 0:
        padded = (size[0] + padding[0], size[1] + padding[1])
        invalid_value(where, f"a kernel that fits into the padded image {padded}", f"one that spans {extent}")
    return room[0] // stride[0] + 1, room[1] // stride[1] + 1


def check_groups(where: str, groups: object, **channels: int) -> int:
    """A number of groups that divides every named number of channels."""
    count = check_size(where, groups)
    for name, total in channels.items():
        if total % count:
            invalid_value(where, f"a divisor of the {total} {name} channels", count)
    return count
