"""The cases: which kernel on which data, and its results in float64."""

import dataclasses
import math

import numpy as np

import kernels_attention as attention
import kernels_products as products
import kernels_rows as rows

TRITON = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", "i32": "i32", "i8": "i8", "e4m3": "fp8e4nv"}
NUMPY = {"f16": np.float16, "f32": np.float32, "i32": np.int32, "i8": np.int8}


@dataclasses.dataclass
class Buffer:
    """Device memory: values to begin with (None: not initialised), and what it must hold at the end (None: not looked at).
    error: of the whole tensor, norm of the difference over the norm of what is wanted."""

    dtype: str
    shape: tuple
    values: np.ndarray = None
    want: np.ndarray = None
    error: float = 0.0

    def triton_type(self):
        return "*" + TRITON[self.dtype]

    def divisible(self):
        return True


@dataclasses.dataclass
class Map:
    """A tensor descriptor over a buffer, in boxes of `block`."""

    buffer: Buffer
    block: tuple

    def triton_type(self):
        return f"tensordesc<{TRITON[self.buffer.dtype]}[{', '.join(map(str, self.block))}]>"

    def divisible(self):
        return False


@dataclasses.dataclass
class Scalar:
    value: int | float

    def triton_type(self):
        return "fp32" if isinstance(self.value, float) else "i32"

    def divisible(self):
        return isinstance(self.value, int) and self.value % 16 == 0


@dataclasses.dataclass
class Constant:
    value: int | bool

    def triton_type(self):
        return "constexpr"


@dataclasses.dataclass
class Case:
    name: str
    kernel: object
    grid: tuple
    args: dict
    warps: int = 4
    stages: int = 3
    archs: tuple = ("sm80", "sm90a")


E4M3 = np.array([(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1])


def e4m3_codes(values):
    """Nearest codes; of two that are equally near the even one."""
    size = np.abs(values)[..., None]
    distance = np.abs(size - E4M3) + (np.arange(127) % 2) * 1e-12
    return (distance.argmin(-1) | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def rounded(values, dtype):
    """What a buffer of this type holds of these values, as float64."""
    if dtype == "e4m3":
        codes = e4m3_codes(values)
        return np.where(codes & 0x80, -1.0, 1.0) * E4M3[codes & 0x7F]
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
        bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32)
        return bits.view(np.float32).astype(np.float64)
    return np.asarray(values).astype(NUMPY[dtype]).astype(np.float64)


def given(dtype, values):
    values = rounded(values, dtype)
    return Buffer(dtype, values.shape, values)


def drawn(rng, dtype, *shape):
    return given(dtype, rng.standard_normal(shape))


def wanted(dtype, values, error, begin=None):
    """begin: a value that the whole buffer has before."""
    values = np.asarray(values, np.float64)
    return Buffer(dtype, values.shape, None if begin is None else np.full(values.shape, begin), values, error)


# Largest error of the whole tensor: roundings of each type, and of sums that are formed in no certain order.
SINGLE, BF16, F16 = 2e-6, 4e-3, 5e-4
TF32 = 1e-3  # operands of 11 bits
FP8 = 1e-3  # sums on Hopper keep fewer bits than float32
ATTENTION = 8e-3  # probabilities and their gradients rounded to bf16 between two products


# ---- rows ------------------------------------------------------------------------------------------------------------


def vector_add():
    rng = np.random.default_rng(1)
    x, y = drawn(rng, "f32", 507), drawn(rng, "f32", 507)
    z = wanted("f32", x.values + y.values, 1e-7)
    return Case("vector_add", rows.vector_add, (2, 1, 1),
                {"x_ptr": x, "y_ptr": y, "z_ptr": z, "count": Scalar(507), "BLOCK": Constant(256)})


def width(columns):
    """The power of two that holds this many."""
    return Constant(1 << (columns - 1).bit_length())


def softmax(count=5, columns=75):
    x = drawn(np.random.default_rng(2), "f32", count, columns)
    power = np.exp(x.values - x.values.max(1, keepdims=True))
    y = wanted("f32", power / power.sum(1, keepdims=True), SINGLE)
    return Case("softmax", rows.softmax, (count, 1, 1),
                {"x_ptr": x, "y_ptr": y, "columns": Scalar(columns), "BLOCK": width(columns)})


def layer_norm(count=6, columns=300):
    rng = np.random.default_rng(3)
    x, weight, bias = drawn(rng, "bf16", count, columns), drawn(rng, "f32", columns), drawn(rng, "f32", columns)
    mean = x.values.mean(1)
    rstd = 1 / np.sqrt(x.values.var(1) + 1e-5)
    y = (x.values - mean[:, None]) * rstd[:, None] * weight.values + bias.values
    return Case("layer_norm", rows.layer_norm, (count, 1, 1),
                {"x_ptr": x, "weight_ptr": weight, "bias_ptr": bias, "y_ptr": wanted("bf16", y, BF16),
                 "mean_ptr": wanted("f32", mean, SINGLE), "rstd_ptr": wanted("f32", rstd, SINGLE),
                 "columns": Scalar(columns), "epsilon": Scalar(1e-5), "BLOCK": Constant(128)}, warps=2)


def rms_norm_backward(count=11, columns=50):
    rng = np.random.default_rng(4)
    groups = min(3, count)
    x, weight, dy = drawn(rng, "f32", count, columns), drawn(rng, "f32", columns), drawn(rng, "f32", count, columns)
    rstd = 1 / np.sqrt((x.values**2).mean(1, keepdims=True) + 1e-6)
    normed, scaled = x.values * rstd, dy.values * weight.values
    dx = (scaled - normed * (scaled * normed).mean(1, keepdims=True)) * rstd
    partial = np.stack([(dy.values * normed)[g::groups].sum(0) for g in range(groups)])
    lock = np.concatenate([np.zeros(groups), np.ones(groups)])
    return Case("rms_norm_backward", rows.rms_norm_backward, (count, 1, 1),
                {"x_ptr": x, "weight_ptr": weight, "dy_ptr": dy, "dx_ptr": wanted("f32", dx, SINGLE),
                 "partial_ptr": wanted("f32", partial, SINGLE), "lock_ptr": wanted("i32", lock, 0.0, begin=0),
                 "columns": Scalar(columns), "epsilon": Scalar(1e-6), "GROUPS": Constant(groups),
                 "BLOCK": width(columns)})


def column_sums():
    x = drawn(np.random.default_rng(5), "f32", 37, 45)
    partial = Buffer("f32", (3, 45))
    return Case("column_sums", rows.column_sums, (3, 1, 1),
                {"x_ptr": x, "partial_ptr": partial, "counter_ptr": wanted("i32", [3], 0.0, begin=0),
                 "sum_ptr": wanted("f32", x.values.sum(0), SINGLE), "rows": Scalar(37), "columns": Scalar(45),
                 "ROWS": Constant(16), "BLOCKS": Constant(3), "COLUMNS": Constant(64)})


def philox_uniform(seed, count):
    """Random numbers in [0, 1) as Philox 4x32-10 (Salmon and others 2011) gives them for counters (i, 0, 0, 0), from the
    first word: its distance from zero as a signed number, over 2^31."""
    m0, m1, mask = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57), np.uint64(0xFFFFFFFF)
    c0 = np.arange(count, dtype=np.uint64)
    c1, c2, c3 = (np.zeros(count, np.uint64) for _ in range(3))
    key0, key1 = np.uint64(seed), np.uint64(0)
    for _ in range(10):
        p0, p1 = c0 * m0, c2 * m1
        c0, c1, c2, c3 = (p1 >> np.uint64(32)) ^ c1 ^ key0, p1 & mask, (p0 >> np.uint64(32)) ^ c3 ^ key1, p0 & mask
        key0 = (key0 + np.uint64(0x9E3779B9)) & mask
        key1 = (key1 + np.uint64(0xBB67AE85)) & mask
    signed = c0.astype(np.uint32).view(np.int32).astype(np.int64)
    return np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10


def dropout():
    x = drawn(np.random.default_rng(6), "f32", 801)
    keep = philox_uniform(4711, 801) >= 0.3
    y = wanted("f32", np.where(keep, x.values / 0.7, 0), SINGLE)
    return Case("dropout", rows.dropout, (2, 1, 1),
                {"x_ptr": x, "y_ptr": y, "count": Scalar(801), "chance": Scalar(0.3), "seed": Scalar(4711),
                 "BLOCK": Constant(512)})


def cross_entropy(count=5, columns=500):
    rng = np.random.default_rng(7)
    scale = 0.25
    logits = given("bf16", 3 * rng.standard_normal((count, columns)))
    label = np.resize([3 % columns, columns - 1, -100, 0, columns // 2], count)
    log_sum = np.log(np.exp(logits.values).sum(1))
    counts = label >= 0
    loss = np.where(counts, log_sum - logits.values[np.arange(count), np.maximum(label, 0)], 0)
    one = (np.arange(columns) == label[:, None]).astype(float)
    dlogits = (np.exp(logits.values - log_sum[:, None]) - one) * np.where(counts, scale, 0)[:, None]
    return Case("cross_entropy", rows.cross_entropy, (count, 1, 1),
                {"logits_ptr": logits, "label_ptr": given("i32", label), "loss_ptr": wanted("f32", loss, SINGLE),
                 "dlogits_ptr": wanted("bf16", dlogits, BF16), "columns": Scalar(columns), "scale": Scalar(scale),
                 "BLOCK": Constant(256)})


def running_sum():
    x = drawn(np.random.default_rng(8), "f32", 8, 99)
    y = wanted("f32", x.values.cumsum(1).T, SINGLE)
    return Case("running_sum", rows.running_sum, (1, 1, 1),
                {"x_ptr": x, "y_ptr": y, "columns": Scalar(99), "ROWS": Constant(8), "COLUMNS": Constant(128)})


def elementary():
    rng = np.random.default_rng(15)
    x = given("f32", rng.standard_normal(301) * 10.0 ** rng.integers(-2, 7, 301))
    v = x.values
    small = v / (1 + np.abs(v))
    erf = np.vectorize(math.erf)
    y = np.stack([np.sin(v), np.cos(v), np.log(np.abs(v) + 1) * erf(small), np.sqrt(np.abs(v)) - np.floor(v) * 0.125,
                  1 / (1 + np.exp(-small)) + 1 / (np.abs(v) + 2)])
    outs = {f"y{i}_ptr": wanted("f32", y[i], SINGLE) for i in range(5)}
    return Case("elementary", rows.elementary, (2, 1, 1),
                {"x_ptr": x} | outs | {"count": Scalar(301), "BLOCK": Constant(256)}, archs=("sm80",))


def sorted_row():
    x = drawn(np.random.default_rng(16), "f32", 256)
    bins = np.bincount((np.abs(x.values) * 4).astype(int) % 16, minlength=16)
    return Case("sorted_row", rows.sorted_row, (1, 1, 1),
                {"x_ptr": x, "sorted_ptr": wanted("f32", np.sort(x.values), 0.0),
                 "gathered_ptr": wanted("f32", x.values[(np.arange(256) * 7 + 3) % 256], 0.0),
                 "bins_ptr": wanted("i32", bins, 0.0), "N": Constant(256), "BINS": Constant(16)}, archs=("sm80",))


def integers():
    """Quotients, high halves of products and a clamp, which is made of min.xorsign.abs on Hopper."""
    rng, n = np.random.default_rng(18), 333
    x, y = rng.integers(-(2**30), 2**30, n), rng.integers(1, 5000, n) * rng.choice([-1, 1], n)
    quotient = np.trunc(x / y).astype(np.int64)
    high = ((x & 0xFFFFFFFF).astype(np.uint64) * (y & 0xFFFFFFFF).astype(np.uint64) >> np.uint64(32)).astype(np.uint32)
    wide = (x.astype(np.int64) * 2654435761 >> 31) // 4096
    clamped = high.view(np.int32) ^ np.clip(x, -100, 100).astype(np.int32) ^ (wide & 0x7FFFFFFF).astype(np.int32)
    return Case("integers", rows.integers, (2, 1, 1),
                {"x_ptr": given("i32", x), "y_ptr": given("i32", y), "quotient_ptr": wanted("i32", quotient & 0xFFFFF, 0.0),
                 "rest_ptr": wanted("i32", x - quotient * y, 0.0), "mixed_ptr": wanted("i32", clamped & 0xFFFFF, 0.0),
                 "count": Scalar(n), "BLOCK": Constant(256)}, archs=("sm90a",))


# ---- products --------------------------------------------------------------------------------------------------------


def matmul(name, shape, tile, dtype, out, error, a_t=False, b_t=False, pad=(0, 0, 0), **options):
    """pad: elements that rows of a, b, c are longer than the matrices. There is NaN in a and b, which must not be read, and
    -7 in c, which must stay."""
    m, n, k = shape
    rng = np.random.default_rng(list(map(ord, name)))

    def operand(rows_, columns, extra):
        values = np.full((rows_, columns + extra), np.nan)
        values[:, :columns] = rng.standard_normal((rows_, columns))
        return given(dtype, values)

    a = operand(*((k, m) if a_t else (m, k)), pad[0])
    b = operand(*((n, k) if b_t else (k, n)), pad[1])
    a_used = a.values[:, : m if a_t else k]
    b_used = b.values[:, : k if b_t else n]
    product = (a_used.T if a_t else a_used) @ (b_used.T if b_t else b_used)
    c = np.full((m, n + pad[2]), -7.0)
    c[:, :n] = product
    bm, bn, bk = tile
    return Case(name, products.matmul, (-(-m // bm), -(-n // bn), 1),
                {"a_ptr": a, "b_ptr": b, "c_ptr": wanted(out, c, error, begin=-7.0 if pad[2] else None), "m": Scalar(m), "n": Scalar(n),
                 "k": Scalar(k), "lda": Scalar(a.shape[1]), "ldb": Scalar(b.shape[1]), "ldc": Scalar(n + pad[2]),
                 "A_T": Constant(a_t), "B_T": Constant(b_t), "BM": Constant(bm), "BN": Constant(bn),
                 "BK": Constant(bk)}, **options)


def products_by_pointers():
    yield matmul("matmul_bf16", (60, 48, 112), (64, 32, 32), "bf16", "f32", SINGLE, stages=4)
    yield matmul("matmul_f16_a_t", (80, 40, 64), (64, 64, 32), "f16", "f16", F16, a_t=True, pad=(0, 8, 8), stages=2)
    yield matmul("matmul_bf16_b_t", (33, 67, 96), (64, 64, 32), "bf16", "bf16", BF16, b_t=True, pad=(0, 0, 1), stages=3)
    yield matmul("matmul_odd", (37, 29, 51), (32, 32, 32), "bf16", "f32", SINGLE, stages=2, warps=2, archs=("sm80",))
    yield matmul("matmul_tf32", (50, 36, 48), (64, 32, 32), "f32", "f32", TF32, stages=2)
    yield matmul("matmul_f16_groups", (101, 40, 64), (128, 64, 32), "f16", "f16", F16, warps=8, archs=("sm90a",))
    yield matmul("matmul_e4m3", (70, 24, 96), (64, 32, 32), "e4m3", "f32", FP8, b_t=True, stages=2, archs=("sm90a",))


def matmul_i8():
    rng = np.random.default_rng(19)
    a, b = given("i8", rng.integers(-100, 100, (50, 96))), given("i8", rng.integers(-100, 100, (24, 96)))
    m, k, n = 50, 96, 24
    return Case("matmul_i8", products.matmul_i8, (1, 1, 1),
                {"a_ptr": a, "b_ptr": b, "c_ptr": wanted("i32", a.values @ b.values.T, 0.0), "m": Scalar(m), "n": Scalar(n),
                 "k": Scalar(k), "BM": Constant(64), "BN": Constant(32), "BK": Constant(32)}, stages=2)


def matmul_grouped():
    rng, sizes, n, k = np.random.default_rng(20), [33, 5, 70], 40, 64
    a, b = drawn(rng, "bf16", sum(sizes), k), drawn(rng, "bf16", 3, k, n)
    ends = np.cumsum(sizes)
    c = np.concatenate([a.values[end - size : end] @ b.values[g] for g, (size, end) in enumerate(zip(sizes, ends))])
    return Case("matmul_grouped", products.matmul_grouped, (2, 1, 1),
                {"a_ptr": a, "b_ptr": b, "c_ptr": wanted("bf16", c, BF16), "sizes_ptr": given("i32", sizes),
                 "GROUPS": Constant(3), "BLOCKS": Constant(2), "N": Constant(n), "K": Constant(k), "BM": Constant(64),
                 "BN": Constant(32), "BK": Constant(32)})


def matmul_split():
    rng = np.random.default_rng(9)
    m, n, k = 40, 48, 128
    a, b = drawn(rng, "f16", m, k), drawn(rng, "f16", k, n)
    c = wanted("f32", a.values @ b.values, SINGLE, begin=0.0)
    return Case("matmul_split", products.matmul_split, (1, 1, 2),
                {"a_ptr": a, "b_ptr": b, "c_ptr": c, "m": Scalar(m), "n": Scalar(n), "k": Scalar(k),
                 "BM": Constant(64), "BN": Constant(64), "BK": Constant(32), "SPLIT": Constant(2)}, stages=2)


def matmul_tma(name, shape, tile, dtype, out, error, b_t, specialize=False, **options):
    m, n, k = shape
    rng = np.random.default_rng(list(map(ord, name)))
    a, b = drawn(rng, dtype, m, k), drawn(rng, dtype, *((n, k) if b_t else (k, n)))
    c = wanted(out, a.values @ (b.values.T if b_t else b.values), error)
    bm, bn, bk = tile
    return Case(name, products.matmul_tma, (-(-m // bm), -(-n // bn), 1),
                {"a_map": Map(a, (bm, bk)), "b_map": Map(b, (bn, bk) if b_t else (bk, bn)), "c_map": Map(c, (bm, bn)),
                 "k": Scalar(k), "B_T": Constant(b_t), "BM": Constant(bm), "BN": Constant(bn), "BK": Constant(bk),
                 "SPECIALIZE": Constant(specialize)}, archs=("sm90a",), **options)


def products_by_tma():
    yield matmul_tma("matmul_tma_bf16", (35, 72, 264), (64, 64, 64), "bf16", "bf16", BF16, False, stages=3)
    yield matmul_tma("matmul_tma_f16_span64", (41, 40, 200), (64, 32, 32), "f16", "f16", F16, True, stages=4)
    yield matmul_tma("matmul_specialized", (70, 40, 200), (64, 64, 32), "bf16", "bf16", BF16, True, specialize=True)
    yield matmul_tma("matmul_tma_span32", (65, 24, 72), (64, 16, 16), "bf16", "f32", SINGLE, True, stages=2)


def matmul_split_tma():
    rng = np.random.default_rng(13)
    m, n, k = 40, 36, 240
    a, b = drawn(rng, "bf16", m, k), drawn(rng, "bf16", k, n + 4)
    c = wanted("f32", a.values @ b.values[:, :n], SINGLE, begin=0.0)
    b = Map(b, (32, 32))
    return Case("matmul_split_tma", products.matmul_split_tma, (1, 2, 2),
                {"a_map": Map(a, (64, 32)), "b_map": b, "c_map": Map(c, (64, 32)), "k": Scalar(k), "BM": Constant(64),
                 "BN": Constant(32), "BK": Constant(32)}, archs=("sm90a",), stages=2)


def matmul_persistent():
    rng = np.random.default_rng(10)
    m, n, k = 70, 72, 136
    a, b = drawn(rng, "bf16", m, k), drawn(rng, "bf16", n, k)
    c = wanted("bf16", a.values @ b.values.T, BF16)
    return Case("matmul_persistent", products.matmul_persistent, (2, 1, 1),
                {"a_map": Map(a, (64, 32)), "b_map": Map(b, (64, 32)), "c_map": Map(c, (64, 64)), "m": Scalar(m),
                 "n": Scalar(n), "k": Scalar(k), "BM": Constant(64), "BN": Constant(64), "BK": Constant(32),
                 "BLOCKS": Constant(2)}, archs=("sm90a",), stages=3)


# ---- attention -------------------------------------------------------------------------------------------------------


def attention_reference(heads, count, d, seed):
    """Operands, results and gradients of causal attention, [heads, rows, d] or [heads, rows] in float64."""
    rng = np.random.default_rng(seed)
    q, k, v, dout = (rounded(rng.standard_normal((heads, count, d)), "bf16") for _ in range(4))
    logits = q @ k.transpose(0, 2, 1) / math.sqrt(d)
    logits = np.where(np.tril(np.ones((count, count), bool)), logits, -np.inf)
    power = np.exp(logits)
    total = power.sum(2, keepdims=True)
    share = power / total
    out = share @ v
    delta = (dout * out).sum(2)
    dlogits = share * (dout @ v.transpose(0, 2, 1) - delta[:, :, None]) / math.sqrt(d)
    return {"q": q, "k": k, "v": v, "dout": dout, "out": out, "lse": np.log2(total[:, :, 0]), "delta": delta,
            "dq": dlogits @ k, "dk": dlogits.transpose(0, 2, 1) @ q, "dv": share.transpose(0, 2, 1) @ dout}


def attention_sizes(count, d, bm, bn):
    return {"rows": Scalar(count), "scale": Scalar(math.log2(math.e) / math.sqrt(d)), "D": Constant(d),
            "BM": Constant(bm), "BN": Constant(bn)}


def attention_forward(heads, count, d, tile, step):
    t = attention_reference(heads, count, d, 11)
    inputs = {f"{x}_ptr": given("bf16", t[x]) for x in ("q", "k", "v")}
    outs = {"out_ptr": wanted("bf16", t["out"], ATTENTION), "lse_ptr": wanted("f32", t["lse"], 1e-5)}
    return Case("attention_forward", attention.attention_forward, (-(-count // tile), heads, 1),
                inputs | outs | attention_sizes(count, d, tile, step), stages=3)


def attention_gradients(heads, count, d, tile, step):
    t = attention_reference(heads, count, d, 14)
    inputs = {f"{x}_ptr": given("bf16", t[x]) for x in ("q", "k", "v", "dout")}
    inputs |= {"lse_ptr": given("f32", t["lse"]), "delta_ptr": given("f32", t["delta"])}
    grid = (-(-count // tile), heads, 1)
    yield Case("attention_dq", attention.attention_dq, grid,
               inputs | {"dq_ptr": wanted("bf16", t["dq"], ATTENTION)} | attention_sizes(count, d, tile, step), stages=2)
    outs = {"dk_ptr": wanted("bf16", t["dk"], ATTENTION), "dv_ptr": wanted("bf16", t["dv"], ATTENTION)}
    yield Case("attention_dkdv", attention.attention_dkdv, grid,
               inputs | outs | attention_sizes(count, d, step, tile), stages=2)


def attention_forward_tma(count, d, tile, step):
    t = attention_reference(1, count, d, 12)
    maps = {f"{x}_map": Map(given("bf16", t[x][0]), (tile if x == "q" else step, d)) for x in ("q", "k", "v")}
    outs = {"out_map": Map(wanted("bf16", t["out"][0], ATTENTION), (tile, d))}
    return Case("attention_forward_tma", attention.attention_forward_tma, (-(-count // tile), 1, 1),
                maps | outs | attention_sizes(count, d, tile, step), archs=("sm90a",), stages=3)


def attention_cases(heads, count, d, tile, step):
    yield attention_forward(heads, count, d, tile, step)
    yield from attention_gradients(heads, count, d, tile, step)
    yield attention_forward_tma(count, d, tile, step)


def all_cases():
    yield from (vector_add(), softmax(), layer_norm(), rms_norm_backward(), column_sums(), dropout(), cross_entropy(),
                running_sum(), elementary(), sorted_row(), integers())
    yield from products_by_pointers()
    yield matmul_split()
    yield matmul_i8()
    yield matmul_grouped()
    yield matmul_split_tma()
    yield from products_by_tma()
    yield matmul_persistent()
    yield attention_forward(1, 77, 32, 64, 32)
    yield from attention_gradients(2, 67, 16, 64, 32)
    yield attention_forward_tma(77, 64, 64, 16)
