"""Batch normalization in integers: what a user gets, evaluates and prints."""

import dataclasses
from collections.abc import Callable

from tf_lamb.core.batch_norm import fixed_point as integer

_COLUMNS = ("batch norm", "activation", "channels", "n", "d", "A", "B", "bits", "that needs most")


@dataclasses.dataclass(frozen=True)
class FixedPointLayer:
    """One batch normalization with its activation: y = clip((a x + b) >> shift, 0, 2^bits - 1).

    Tuples have an element a channel. x is the sum of whole activations times whole weights,
    without the bias, which is in b: inputs over their scale, and the kernel over `kernel_step`.
    """

    name: str
    activation: str
    bits: int
    axis: int  # of the channels
    kernel_step: float | None  # None where the user gave the range
    low: tuple[int, ...]
    high: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]
    shift: tuple[int, ...]
    _tensorflow: Callable = dataclasses.field(repr=False, compare=False)

    def widths(self) -> tuple[int, ...]:
        """Of each channel the bits that `a x + b` needs, sign included; 32 at most."""
        channels = map(integer.Integers, self.a, self.b, self.shift)
        return tuple(map(integer.width, channels, self.low, self.high))

    def in_numpy(self, x):
        """y, int32, of an array of whole numbers; an error for one out of its channel's range."""
        import numpy as np

        x = np.asarray(x)
        if x.dtype.kind not in "iu":
            raise TypeError(f"{self.name} takes whole numbers, int32 or smaller, not {x.dtype}.")
        if x.size:
            others = tuple(i for i in range(x.ndim) if i != self.axis % x.ndim)
            ends = (end(axis=others).tolist() for end in (x.min, x.max))
            integer.check_inside(self.name, self.low, self.high, *ends)
        shape = self.along(x.ndim)
        a, b, shift = (
            np.array(each, np.int32).reshape(shape) for each in (self.a, self.b, self.shift)
        )
        return integer.evaluate(np, x.astype(np.int32), a, b, shift, self.bits)

    def in_tensorflow(self, x):
        """The same of a tensor, also in a `tf.function`; XLA drops the check of the range."""
        return self._tensorflow(self, x)

    def along(self, rank: int) -> list[int]:
        """The shape in which the channels stand beside an array of so many axes."""
        return [-1 if i == self.axis % rank else 1 for i in range(rank)]


@dataclasses.dataclass(frozen=True)
class FixedPoint:
    """Of a model, the batch normalizations in integers, and why others are left as they are."""

    layers: dict[str, FixedPointLayer]
    left: dict[str, str]

    def __str__(self):
        rows: list[tuple] = [_COLUMNS]
        for layer in self.layers.values():
            widths = layer.widths()
            most = max(range(len(widths)), key=widths.__getitem__)
            a, b = ((max(map(abs, each)).bit_length() + 1) for each in (layer.a, layer.b))
            rows.append((
                layer.name, layer.activation, len(widths), layer.bits, max(layer.shift), a, b,
                max(widths),
                f"{most}: ({layer.a[most]} x {layer.b[most]:+}) >> {layer.shift[most]}",
            ))  # fmt: skip
        wide = [max(len(str(row[i])) for row in rows) for i in range(len(_COLUMNS))]
        left = (0, 1, len(_COLUMNS) - 1)
        lines = [
            "  ".join(
                f"{cell!s:<{wide[i]}}" if i in left else f"{cell!s:>{wide[i]}}"
                for i, cell in enumerate(row)
            ).rstrip()
            for row in rows
        ]
        lines += [f"left as it is: {name}, {why}" for name, why in self.left.items()]
        return "\n".join(lines)
