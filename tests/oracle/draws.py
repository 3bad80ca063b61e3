"""Counter-based random numbers in numpy: Philox4x32-10 (Salmon et al. 2011), and the hashes that give its streams their
numbers."""
import numpy as np

U32, U64 = np.uint32, np.uint64
PHI = 0x9E3779B97F4A7C15


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for c in text.encode():
        h = ((h ^ c) * 0x100000001B3) % 2**64
    return h


def mix64(z):
    """splitmix64's finalizer, of a number or an array of u64."""
    z = np.asarray(z, U64)
    with np.errstate(over="ignore"):
        z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


def uniform(key, n, first=0):
    """Numbers first .. first + n - 1 of the stream of the text `key`: in [-1, 1), multiples of 2^-23."""
    with np.errstate(over="ignore"):
        z = U64(fnv1a64(key)) + (np.arange(first, first + n, dtype=U64) + U64(1)) * U64(PHI)
    return (mix64(z) >> U64(40)).astype(np.float64) * 2.0**-23 - 1.0


def philox(counter, key):
    """counter [..., 4] u32, key u64 -> random words [..., 4] u32."""
    a, b, c, d = (counter[..., i].astype(U64) for i in range(4))
    low, high, word = U64(key & 0xFFFFFFFF), U64(key >> 32), U64(0xFFFFFFFF)
    for _ in range(10):
        p, q = U64(0xD2511F53) * a, U64(0xCD9E8D57) * c
        a, b, c, d = (q >> U64(32)) ^ b ^ low, q & word, (p >> U64(32)) ^ d ^ high, p & word
        low, high = (low + U64(0x9E3779B9)) & word, (high + U64(0xBB67AE85)) & word
    return np.stack([a, b, c, d], axis=-1).astype(U32)


def rounding_bytes(seed, weight, side, step, index):
    """The random byte of each element of a gradient, by its canonical `index`; `side` is "row" or "col", `step` counts
    from 1."""
    with np.errstate(over="ignore"):
        stream = int(mix64(U64(fnv1a64(f"sr:{weight}:{side}")) + U64(step)))
    index = np.asarray(index, U64)
    blocks, place = np.unique(index // U64(16), return_inverse=True)
    counter = np.empty((len(blocks), 4), U32)
    counter[:, 0], counter[:, 1] = blocks & U64(0xFFFFFFFF), blocks >> U64(32)
    counter[:, 2], counter[:, 3] = stream & 0xFFFFFFFF, stream >> 32
    random = philox(counter, seed).astype("<u4").view(np.uint8).reshape(len(blocks), 16)
    return random[place.reshape(index.shape), (index % U64(16)).astype(np.int64)]
