"""The three products of a linear layer under every recipe: which factor is quantized how, in numpy, sums in float64.

Y = X W^T takes X and W rowwise, dX = dY W takes dY rowwise and W columnwise, dW = dY^T X takes both columnwise: blocks
of a rowwise copy run along the last axis, those of a columnwise copy along the rows. Under nvfp4 columnwise copies of X
and dY are rotated by a Hadamard matrix first, and both copies of dY are rounded at random.

`Rows` says how the rows of a factor are divided: one part for a dense layer, one part an expert for a mixture of
experts. An expert's part begins at a multiple of the block size; the rows between its end and the next part are zero.
"""
import functools
from dataclasses import dataclass

import numpy as np

import draws
import number_formats as formats
from number_formats import F32


def turned(block):
    return block[1], block[0]


@dataclass(frozen=True)
class Rows:
    """The rows of a product's factors, in parts, and the number of each row in the run: the token's number in the
    global batch, or token * k + slot for experts. Stochastic rounding draws its random bytes by that number."""
    count: int
    parts: tuple  # (first, end) of each
    number: np.ndarray

    @staticmethod
    def dense(first, count):
        return Rows(count, ((0, count),), np.arange(first, first + count))


class Exact:
    """Factors without quantization."""
    rows_begin_at = 1  # parts begin at multiples of this

    def weight_rowwise(self, w):
        return formats.Copy(None, None, w)

    weight_columnwise = weight_rowwise

    def activation_rowwise(self, x):
        return formats.Copy(None, None, x)

    activation_columnwise = activation_rowwise

    def gradient_rowwise(self, name, dy, rows):
        return formats.Copy(None, None, dy)

    gradient_columnwise = gradient_rowwise


class Scaled:
    """One scale a block."""

    def __init__(self, quantize, rows_begin_at, weight, activation):
        self.quantize, self.rows_begin_at = quantize, rows_begin_at
        self.weight, self.activation = weight, activation  # rowwise blocks

    def weight_rowwise(self, w):
        return self.quantize(formats.bf16(w), self.weight)

    def weight_columnwise(self, w):
        return self.quantize(formats.bf16(w), turned(self.weight))

    def activation_rowwise(self, x):
        return self.quantize(x.astype(F32), self.activation)

    def activation_columnwise(self, x):
        return self.quantize(x.astype(F32), turned(self.activation))

    def gradient_rowwise(self, name, dy, rows):
        return self.activation_rowwise(dy)

    def gradient_columnwise(self, name, dy, rows):
        return self.activation_columnwise(dy)


class Fp8Tensor(Exact):
    """E4M3, and E5M2 of gradients, with one scale a matrix."""
    rows_begin_at = 16

    def __init__(self):
        self.weight = self.activation = formats.E4M3
        self.gradient = formats.E5M2

    def weight_rowwise(self, w):
        return formats.fp8_tensor(formats.bf16(w), self.weight)

    weight_columnwise = weight_rowwise

    def activation_rowwise(self, x):
        return formats.fp8_tensor(x.astype(F32), self.activation)

    activation_columnwise = activation_rowwise

    def gradient_rowwise(self, name, dy, rows):
        return formats.fp8_tensor(dy.astype(F32), self.gradient)

    gradient_columnwise = gradient_rowwise


class Nvfp4(Scaled):
    def __init__(self, seed, step, rotates=True):
        super().__init__(formats.nvfp4, 16, weight=(16, 16), activation=(1, 16))
        self.seed, self.step, self.rotates = seed, step, rotates

    def rotated(self, x):
        return formats.hadamard(x.astype(F32)) if self.rotates else x.astype(F32)

    def activation_columnwise(self, x):
        return formats.nvfp4(self.rotated(x), turned(self.activation))

    def drawn(self, name, side, dy, rows):
        index = rows.number[:, None] * dy.shape[1] + np.arange(dy.shape[1])
        return draws.rounding_bytes(self.seed, name, side, self.step, index)

    def gradient_rowwise(self, name, dy, rows):
        return formats.nvfp4(dy.astype(F32), self.activation, self.drawn(name, "row", dy, rows))

    def gradient_columnwise(self, name, dy, rows):
        return formats.nvfp4(self.rotated(dy), turned(self.activation), self.drawn(name, "col", dy, rows))


class Nvfp4FourOverSix(Nvfp4):
    """Rotated as nvfp4 is; gradients are rounded to nearest."""

    def __init__(self, seed, step):
        super().__init__(seed, step)
        self.quantize = formats.nvfp4_46

    def activation_columnwise(self, x):
        return formats.nvfp4_46(self.rotated(x), turned(self.activation))

    def gradient_rowwise(self, name, dy, rows):
        return self.activation_rowwise(dy)

    def gradient_columnwise(self, name, dy, rows):
        return self.activation_columnwise(dy)


class Nvfp4Rows(Nvfp4):
    """Activations and gradients with a scale a row, or in columnwise copies a column."""

    def activation_rowwise(self, x):
        return formats.nvfp4_row(x.astype(F32), self.activation)

    def activation_columnwise(self, x):
        return formats.nvfp4_row(self.rotated(x), turned(self.activation))

    def gradient_rowwise(self, name, dy, rows):
        return formats.nvfp4_row(dy.astype(F32), self.activation, self.drawn(name, "row", dy, rows))

    def gradient_columnwise(self, name, dy, rows):
        return formats.nvfp4_row(self.rotated(dy), turned(self.activation), self.drawn(name, "col", dy, rows))


class Slots:
    """A quantizer for each of the six factors: of weights in forward and dgrad, of activations in forward and wgrad, of
    gradients in dgrad and wgrad. Those left out quantize nothing."""

    def __init__(self, weight=(None, None), activation=(None, None), gradient=(None, None)):
        (wf, wd), (xf, xw), (gd, gw) = ([one or Exact() for one in pair] for pair in (weight, activation, gradient))
        self.rows_begin_at = max(one.rows_begin_at for one in (xf, xw, gd, gw))
        self.weight_rowwise, self.weight_columnwise = wf.weight_rowwise, wd.weight_columnwise
        self.activation_rowwise, self.activation_columnwise = xf.activation_rowwise, xw.activation_columnwise
        self.gradient_rowwise, self.gradient_columnwise = gd.gradient_rowwise, gw.gradient_columnwise


def twice(one):
    return one, one


def mixed(seed, step):
    fp4, mx, block = Nvfp4(seed, step), RECIPES["mxfp8"](seed, step), RECIPES["fp8_block"](seed, step)
    return Slots(weight=twice(RECIPES["mxfp8_2d"](seed, step)), activation=(block, fp4), gradient=(mx, fp4))


def mx(name, rows=1):
    """An MX format in blocks of 32 along the sum; of weights in blocks of `rows` x 32."""
    quantize = functools.partial(formats.mx, element=formats.MX[name])
    return Scaled(quantize, 32, weight=(rows, 32), activation=(1, 32))


RECIPES = {
    "bf16": lambda seed, step: Exact(),
    "fp8_block": lambda seed, step: Scaled(formats.fp8_block, 128, weight=(128, 128), activation=(1, 128)),
    "fp8_tensor": lambda seed, step: Fp8Tensor(),
    "mxfp8": lambda seed, step: mx("mxfp8"),
    "mxfp8_2d": lambda seed, step: mx("mxfp8", rows=32),
    "mxfp6_e2m3": lambda seed, step: mx("mxfp6_e2m3"),
    "mxfp4_2d": lambda seed, step: mx("mxfp4", rows=32),
    "nvfp4": Nvfp4,
    "nvfp4_46": Nvfp4FourOverSix,
    "rows": Nvfp4Rows,
    "weights": lambda seed, step: Slots(weight=twice(Nvfp4(seed, step))),
    "activations": lambda seed, step: Slots(activation=twice(RECIPES["mxfp8"](seed, step))),
    "gradients": lambda seed, step: Slots(gradient=twice(Nvfp4(seed, step, rotates=False))),
    "mixed": mixed,
    "six_bits": lambda seed, step: Slots(weight=twice(mx("mxfp6_e3m2", rows=32)), activation=twice(mx("mxfp6_e3m2")),
                                         gradient=twice(mx("mxfp8_e5m2"))),
}
# How a deck writes those that have no name of their own.
IN_DECKS = {
    "rows": dict(base="nvfp4", activation="nvfp4_row", gradient="nvfp4_row"),
    "weights": dict(weight="nvfp4"),
    "activations": dict(activation="mxfp8"),
    "gradients": dict(gradient="nvfp4"),
    "six_bits": dict(base="mxfp6_e3m2_2d", gradient="mxfp8_e5m2"),
    "mixed": dict(base="nvfp4", weight="mxfp8_2d", activation=dict(forward="fp8_block"), gradient=dict(dgrad="mxfp8")),
}


def tensor_scale(copy):
    return None if copy.amax is None else copy.amax * copy.tensor_step


def factor(copy, part=slice(None)):
    """The rows `part` of a copy: (values, scale of the tensor or None)."""
    return copy.values[part], tensor_scale(copy)


def turned_factor(copy, part=slice(None)):
    return copy.values[part].T, tensor_scale(copy)


class Products:
    """The products of a linear layer under one recipe. `weights` [E, out, in] has one matrix for each part of the rows;
    the caller rounds the results."""

    def __init__(self, quantizer, sums):
        self.q, self.sums = quantizer, sums  # sums(x): rounds the sums of a product

    def sum(self, a, b):
        return a @ b.T

    def multiply(self, a, b):
        """alpha a b^T of two factors; alpha is the product of their tensors' scales (1 without such scales)."""
        sums = self.sums(self.sum(a[0], b[0]))
        scales = [scale for _, scale in (a, b) if scale is not None]
        return np.prod(scales, dtype=F32) * sums.astype(F32) if scales else sums

    def forward(self, x, weights, rows):
        """x [M, in] -> y [M, out], before bias and rounding; rows between the parts are zero."""
        y = np.zeros((rows.count, weights.shape[1]))
        quantized = self.q.activation_rowwise(x)
        for w, (first, end) in zip(weights, rows.parts):
            y[first:end] = self.multiply(factor(quantized, slice(first, end)), factor(self.q.weight_rowwise(w)))
        return y

    def backward(self, name, dy, x, weights, rows):
        """dy [M, out], x [M, in] -> dx [M, in] before rounding, dw [E, out, in]."""
        dx, dw = np.zeros_like(x), np.zeros_like(weights)
        row = self.q.gradient_rowwise(name, dy, rows)
        columns, inputs = self.q.gradient_columnwise(name, dy, rows), self.q.activation_columnwise(x)
        for e, (first, end) in enumerate(rows.parts):
            w = self.q.weight_columnwise(weights[e])
            dx[first:end] = self.multiply(factor(row, slice(first, end)), turned_factor(w))
            # The rotation spreads a token over all rows of its block, also over the zero rows behind the part's end.
            end = first + -(-(end - first) // self.q.rows_begin_at) * self.q.rows_begin_at
            dw[e] = self.multiply(turned_factor(columns, slice(first, end)), turned_factor(inputs, slice(first, end)))
        return dx, dw
