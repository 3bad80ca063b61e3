"""Low-precision number formats in numpy, from their definitions: OCP Microscaling v1.0, and NVIDIA's FP8 block scaling
and NVFP4 as documented. Every `*` and `/` on float32 arrays is one rounding to nearest even; subnormals are kept.

A block is (rows, columns); a quantizer takes a float32 matrix [M, K] and gives a Copy: one code an element, one scale a
block, and the decoded values. A columnwise copy has the block's two sizes exchanged; nothing is transposed or packed
here.
"""
from dataclasses import dataclass

import numpy as np

F32 = np.float32
LARGEST = np.array(0x7F7FFFFF, np.uint32).view(F32)
INVERSE_448 = np.array(0x3B124925, np.uint32).view(F32)  # RN(1/448)
SIXTH = np.array(0x3E2AAAAB, np.uint32).view(F32)  # RN(1/6)
INVERSE_2688 = F32(1) / F32(2688)
INVERSE_1536 = F32(1) / F32(1536)


@dataclass(frozen=True)
class Copy:
    codes: np.ndarray  # u8 [M, K]
    scales: np.ndarray  # one a block: u8 (E8M0, E4M3), or float32
    values: np.ndarray  # float64 [M, K]: decoded, without the scale of the whole tensor
    amax: np.float32 = None  # of the whole tensor, if the format has a scale of the whole tensor
    tensor_step: np.float32 = INVERSE_2688  # times amax: that scale


def bits(x):
    return np.ascontiguousarray(x, F32).view(np.uint32)


def from_bits(b):
    return np.asarray(b, np.uint32).view(F32)


def bf16(x):
    """float32 (or float64, through float32) rounded to bf16, to nearest even, as float32."""
    x = np.asarray(x, F32)
    b = bits(x)
    rounded = from_bits((b + np.uint32(0x7FFF) + (b >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000))
    return np.where(np.isnan(x), x, rounded.reshape(x.shape))


@dataclass(frozen=True)
class Minifloat:
    """A floating-point format of a sign, an exponent and `mantissa` bits, without infinities."""
    mantissa: int
    bias: int
    width: int  # bits
    largest: float
    nan: int  # code of NaN

    def table(self):
        """The magnitude of each code without its sign."""
        code = np.arange(1 << (self.width - 1))
        exponent, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        normal = (fraction + (1 << self.mantissa)) * np.exp2(exponent - self.bias - self.mantissa)
        return np.where(exponent > 0, normal, fraction * np.exp2(1.0 - self.bias - self.mantissa))

    def encode(self, x):
        """float32 to codes: nearest, ties to even, saturating; zeros keep their signs."""
        size = np.abs(x.astype(np.float64))
        known = np.where(np.isnan(size), 0, np.minimum(size, 2 * self.largest))
        exponent = np.maximum(np.frexp(known)[1] - 1, 1 - self.bias)
        step = np.exp2(exponent - self.mantissa)
        nearest = np.minimum(np.rint(known / step) * step, self.largest)  # both exact in float64
        return self.signed(x, np.searchsorted(self.table(), nearest))

    def signed(self, x, codes):
        codes = codes | np.where(np.signbit(x), 1 << (self.width - 1), 0)
        return np.where(np.isnan(x), self.nan, codes).astype(np.uint8)

    def decode(self, codes):
        """float32; NaN only where the format has one."""
        sign = 1 << (self.width - 1)
        size = self.table()
        if self.largest < size[-1]:
            size[self.nan] = np.nan
        size = size[codes & (sign - 1)]
        return np.where(codes & sign, -size, size).astype(F32)


E4M3 = Minifloat(3, 7, 8, 448.0, 0x7F)
E5M2 = Minifloat(2, 15, 8, 57344.0, 0x7F)
E3M2 = Minifloat(2, 3, 6, 28.0, 0x1F)
E2M3 = Minifloat(3, 1, 6, 7.5, 0x1F)
E2M1 = Minifloat(1, 1, 4, 6.0, 7)
MX = {"mxfp8": E4M3, "mxfp8_e5m2": E5M2, "mxfp6_e3m2": E3M2, "mxfp6_e2m3": E2M3, "mxfp4": E2M1}


def e2m1_at_random(x, draws):
    """Stochastic rounding with a byte an element: the grid's step under |x|, times draw / 256, is added before what is
    left is cut off."""
    size = np.abs(x)
    known = np.where(np.isnan(size), F32(0), np.minimum(size, LARGEST))  # 6 from infinity, too
    step = np.where(known < 2, 0.5, np.where(known < 4, 1.0, 2.0))
    t = (draws.astype(np.float64) / 256 * step + known).astype(F32).astype(np.float64)  # one rounding: fma
    grid = np.where(t < 2, 0.5, np.where(t < 4, 1.0, 2.0))
    return E2M1.signed(x, np.searchsorted(E2M1.table(), np.minimum(np.floor(t / grid) * grid, 6)))


def e8m0_up(p):
    """The byte of p >= 0, rounded up to a power of two."""
    b = bits(p).reshape(np.shape(p))
    exponent, fraction = b >> np.uint32(23), b & np.uint32(0x7FFFFF)
    up = (fraction > 0) & (exponent != 254) & ~((exponent == 0) & (fraction <= 0x400000))
    byte = np.where(up, exponent + 1, exponent)
    byte = np.where(np.isinf(p), 254, np.where(np.isnan(p), 255, byte))
    return byte.astype(np.uint8)


def e8m0_multiplier(byte):
    """2^(127 - byte)."""
    b = byte.astype(np.uint32)
    return from_bits(np.where(b == 255, np.uint32(0x7FC00000),
                              np.where(b == 254, np.uint32(0x00400000), (254 - np.minimum(b, 254)) << 23)))


def e8m0_decode(byte):
    b = byte.astype(np.uint32)
    return from_bits(np.where(b == 255, np.uint32(0x7FC00000), np.where(b == 0, np.uint32(0x00400000), b << 23)))


def largest(x):
    """max |x|, passing over NaN; 0 of nothing."""
    return np.fmax.reduce(np.abs(x), axis=None, initial=F32(0))


def block_amax(x, block):
    """max |x| of each block [ceil(M / rows), ceil(K / columns)]; NaN is ignored."""
    (m, k), (r, c) = x.shape, block
    padded = np.zeros((-(-m // r) * r, -(-k // c) * c), F32)
    padded[:m, :k] = np.where(np.isnan(x), 0, np.abs(x))
    return padded.reshape(padded.shape[0] // r, r, padded.shape[1] // c, c).max(axis=(1, 3))


def spread(of_blocks, block, shape):
    """The value of each block, repeated for all of its elements: [M, K]."""
    return np.repeat(np.repeat(of_blocks, block[0], 0), block[1], 1)[: shape[0], : shape[1]]


def mx(x, block, element):
    """One E8M0 scale a block."""
    bytes_ = e8m0_up(block_amax(x, block) * (F32(1) / F32(element.largest)))
    codes = element.encode(x * spread(e8m0_multiplier(bytes_), block, x.shape))
    values = element.decode(codes).astype(np.float64) * spread(e8m0_decode(bytes_), block, x.shape)
    return Copy(codes, bytes_, values)


def mxfp8(x, block):
    return mx(x, block, E4M3)


def fp8_block_scale(amax, eps=0.0, largest=448):
    """(s, 1/s): s = largest / amax rounded down to a power of two; 1 where amax is 0 or not finite."""
    amax = np.maximum(amax, F32(eps))
    with np.errstate(divide="ignore", over="ignore"):
        s = np.minimum(F32(largest) / amax, LARGEST)
    s = from_bits(bits(s) & np.uint32(0xFF800000)).reshape(np.shape(amax))
    s = np.where((amax == 0) | ~np.isfinite(amax), F32(1), s)
    return s, F32(1) / s


def fp8_block(x, block):
    """E4M3 with one fp32 scale a block, a power of two."""
    scale, inverse = fp8_block_scale(block_amax(x, block))
    codes = E4M3.encode(x * spread(scale, block, x.shape))
    return Copy(codes, inverse, E4M3.decode(codes).astype(np.float64) * spread(inverse, block, x.shape))


def fp8_tensor(x, element=E4M3):
    """FP8 with one scale a matrix, a power of two, which the decoded values have in them."""
    amax = F32(largest(x))
    scale = fp8_block_scale(amax, largest=element.largest)[0]
    codes = element.encode(x * scale)
    return Copy(codes, None, element.decode(codes).astype(np.float64) / np.float64(scale))


def nvfp4_tensor_scale(amax, top=2688):
    """(S, 1/S) with S = top / amax."""
    if amax == 0 or np.isinf(amax):
        return F32(1), F32(1)
    with np.errstate(over="ignore"):
        s = np.minimum(F32(top) / amax, LARGEST)
    return s, F32(1) / s


def nvfp4_scale(amax_of_block, amax):
    """(byte, multiplier) of a block."""
    s, inverse = nvfp4_tensor_scale(amax)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        bytes_ = E4M3.encode(np.minimum(amax_of_block * (s * SIXTH), LARGEST))
        return bytes_, np.minimum(F32(1) / (E4M3.decode(bytes_) * inverse), LARGEST)


def nvfp4(x, block, draws=None, amax=None):
    """E2M1 with one E4M3 scale a block and one fp32 amax a tensor; `draws`, a byte an element: rounded at random."""
    amax = F32(largest(x)) if amax is None else amax
    bytes_, multiplier = nvfp4_scale(block_amax(x, block), amax)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = x * spread(multiplier, block, x.shape)
    codes = E2M1.encode(scaled) if draws is None else e2m1_at_random(scaled, draws)
    values = E2M1.decode(codes).astype(np.float64) * spread(E4M3.decode(bytes_), block, x.shape)
    return Copy(codes, bytes_, values, amax)


def nvfp4_row(x, block, draws=None):
    """nvfp4 with a scale for each line along which blocks run, in place of the tensor's: the largest power of two not
    above 2688 over the line's amax, at most 2^127; 1 where that is 0 or infinite. Values have it in them."""
    amax = np.fmax.reduce(np.abs(x), axis=int(block[0] == 1), keepdims=True, initial=F32(0))
    s, inverse = fp8_block_scale(amax, largest=2688)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        bytes_ = E4M3.encode(np.minimum(block_amax(x, block) * (s * SIXTH), LARGEST))
        multiplier = np.minimum(F32(1) / (E4M3.decode(bytes_) * inverse), LARGEST)
        scaled = x * spread(multiplier, block, x.shape)
    codes = E2M1.encode(scaled) if draws is None else e2m1_at_random(scaled, draws)
    values = E2M1.decode(codes).astype(np.float64) * spread(E4M3.decode(bytes_), block, x.shape) * inverse
    return Copy(codes, bytes_, values)


def block_sums(x, block):
    """Sums of an integer matrix over blocks."""
    (m, k), (r, c) = x.shape, block
    padded = np.zeros((-(-m // r) * r, -(-k // c) * c), np.int64)
    padded[:m, :k] = x
    return padded.reshape(padded.shape[0] // r, r, padded.shape[1] // c, c).sum(axis=(1, 3))


def four_over_six(x, block, amax=None):
    """(bytes, multipliers, sums of errors) of both candidates, amax to 6 and amax to 4, and whether a block takes 4. An
    error is that of an element in units of 2^-20, a whole number of at most 2^26."""
    amax = F32(largest(x)) if amax is None else amax
    s, inverse = nvfp4_tensor_scale(amax, 1536)
    found = []
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        wanted = block_amax(x, block) * (s * SIXTH)
        for factor in (F32(1), F32(1.5)):
            bytes_ = E4M3.encode(np.minimum(factor * wanted, LARGEST))
            multiplier = np.minimum(F32(1) / (E4M3.decode(bytes_) * inverse), LARGEST)
            v = (x * spread(multiplier, block, x.shape)).astype(F32)
            error = np.abs(v - E2M1.decode(E2M1.encode(v))).astype(np.float64)
            units = np.where(np.isnan(v), 0, np.minimum(np.rint(error * 2**20), 2**26)).astype(np.int64)
            found.append((bytes_, multiplier, block_sums(units, block)))
    (six, _, error6), (four, _, error4) = found
    units = [np.rint(E4M3.decode(byte).astype(np.float64) * 512).astype(np.int64) for byte in (six, four)]
    return *found, (units[1] * error4 < units[0] * error6) | ((six == 0) & (four > 0))


def nvfp4_46(x, block, amax=None):
    """E2M1 with one E4M3 scale a block, of two the one that loses less, and one fp32 amax a tensor."""
    amax = F32(largest(x)) if amax is None else amax
    (six, by_six, _), (four, by_four, _), takes_four = four_over_six(x, block, amax)
    bytes_, multiplier = np.where(takes_four, four, six), np.where(takes_four, by_four, by_six)
    with np.errstate(over="ignore", invalid="ignore"):
        codes = E2M1.encode(x * spread(multiplier, block, x.shape))
    values = E2M1.decode(codes).astype(np.float64) * spread(E4M3.decode(bytes_), block, x.shape)
    return Copy(codes, bytes_, values, amax, INVERSE_1536)


def hadamard(x):
    """Blocks of 16 rows of [M, K] times H16 diag(s) / 4, H16[r][c] = (-1)^popcount(r & c), by fp32 butterflies."""
    signs = np.array([-1 if 0xD7E8 >> i & 1 else 1 for i in range(16)], F32)
    y = x.reshape(-1, 16, x.shape[1]) * signs[:, None]
    for stride in (1, 2, 4, 8):
        pairs = y.reshape(len(y), 16 // (2 * stride), 2, stride, x.shape[1])
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        y = np.stack([a + b, a - b], axis=2).reshape(len(y), 16, x.shape[1])
    return (y * F32(0.25)).reshape(x.shape)
