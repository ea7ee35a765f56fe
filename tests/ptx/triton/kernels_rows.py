"""Triton kernels that work on rows: one block per row or per piece of a row; locks, counters and atomics between blocks."""

import triton
import triton.language as tl


@triton.jit
def vector_add(x_ptr, y_ptr, z_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(z_ptr + at, tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """y[row] = softmax(x[row]), a row per block."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    x = tl.load(x_ptr + row + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + at, power / tl.sum(power, axis=0), mask=at < columns)


@triton.jit
def layer_norm(x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, columns, epsilon, BLOCK: tl.constexpr):
    """x, y: [rows, columns] bf16; weight, bias: [columns] f32; mean, rstd: [rows] f32. In pieces of BLOCK columns."""
    row = tl.program_id(0)
    x_row = x_ptr + row * columns
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(x_row + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(x_row + at, mask=at < columns, other=0.0).to(tl.float32)
        centered = tl.where(at < columns, x - mean, 0.0)
        squares += centered * centered
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / columns + epsilon)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < columns
        weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
        bias = tl.load(bias_ptr + at, mask=inside, other=0.0)
        x = tl.load(x_row + at, mask=inside, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * weight + bias
        tl.store(y_ptr + row * columns + at, y.to(tl.bfloat16), mask=inside)


@triton.jit
def rms_norm_backward(x_ptr, weight_ptr, dy_ptr, dx_ptr, partial_ptr, lock_ptr, columns, epsilon,
                      GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """x, dy, dx: [rows, columns]; weight: [columns]; partial: [GROUPS, columns], the sums of dweight of the rows of a group,
    in any order. lock: [2 * GROUPS] zeros: whether a group's sum is being worked on, and whether it has been written."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0)
    dy = tl.load(dy_ptr + row * columns + at, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / columns + epsilon)
    normed = x * rstd
    scaled = dy * weight
    dx = (scaled - normed * (tl.sum(scaled * normed, axis=0) / columns)) * rstd
    tl.store(dx_ptr + row * columns + at, dx, mask=inside)
    dweight = dy * normed
    group = row % GROUPS
    mine = partial_ptr + group * columns + at
    while tl.atomic_cas(lock_ptr + group, 0, 1) == 1:
        pass
    if tl.load(lock_ptr + GROUPS + group) == 0:
        tl.atomic_xchg(lock_ptr + GROUPS + group, 1)
    else:
        dweight += tl.load(mine, mask=inside)
    tl.debug_barrier()  # several threads may hold an element, of which one stores it
    tl.store(mine, dweight, mask=inside)
    tl.debug_barrier()  # every thread's part is there before the lock is given back
    tl.atomic_xchg(lock_ptr + group, 0)


@triton.jit
def column_sums(x_ptr, partial_ptr, counter_ptr, sum_ptr, rows, columns, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
                COLUMNS: tl.constexpr):
    """sum[c] = sum of x[r, c]: each block sums ROWS rows into partial[block]; the last to finish adds those up."""
    block = tl.program_id(0)
    at = tl.arange(0, COLUMNS)
    inside = at < columns
    r = block * ROWS + tl.arange(0, ROWS)
    x = tl.load(x_ptr + r[:, None] * columns + at[None, :], mask=(r < rows)[:, None] & inside[None, :], other=0.0)
    tl.store(partial_ptr + block * columns + at, tl.sum(x, axis=0), mask=inside)
    tl.debug_barrier()
    ticket = tl.atomic_add(counter_ptr, 1)
    if ticket == BLOCKS - 1:
        total = tl.zeros([COLUMNS], tl.float32)
        for b in range(BLOCKS):
            total += tl.load(partial_ptr + b * columns + at, mask=inside, other=0.0)
        tl.store(sum_ptr + at, total, mask=inside)


@triton.jit
def dropout(x_ptr, y_ptr, count, chance, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(x_ptr + at, mask=inside)
    keep = tl.rand(seed, at) >= chance
    tl.store(y_ptr + at, tl.where(keep, x / (1 - chance), 0.0), mask=inside)


@triton.jit
def cross_entropy(logits_ptr, label_ptr, loss_ptr, dlogits_ptr, columns, scale, BLOCK: tl.constexpr):
    """logits, dlogits: [rows, columns] bf16; label: [rows] int32, -100: no loss; loss: [rows] f32. dlogits = scale *
    (softmax - onehot). The maximum and the sum are carried along while the row is read once."""
    row = tl.program_id(0)
    label = tl.load(label_ptr + row)
    logits = logits_ptr + row * columns
    most = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, x)
        total = total * tl.exp(most - higher) + tl.exp(x - higher)
        most = higher
    top = tl.max(most, axis=0)
    log_sum = top + tl.log(tl.sum(total * tl.exp(most - top), axis=0))
    counts = label >= 0
    chosen = tl.load(logits + label, mask=counts, other=0.0).to(tl.float32)
    tl.store(loss_ptr + row, tl.where(counts, log_sum - chosen, 0.0))
    factor = tl.where(counts, scale, 0.0)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < columns
        x = tl.load(logits + at, mask=inside, other=-float("inf")).to(tl.float32)
        gradient = tl.exp(x - log_sum) - tl.where(at == label, 1.0, 0.0)
        tl.store(dlogits_ptr + row * columns + at, (gradient * factor).to(tl.bfloat16), mask=inside)


@triton.jit
def running_sum(x_ptr, y_ptr, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """y[r, c] = sum of x[r, 0..c], through shuffles and shared memory; then each row's order reversed by a transposition."""
    r = tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    inside = (c < columns)[None, :]
    x = tl.load(x_ptr + r[:, None] * columns + c[None, :], mask=inside, other=0.0)
    y = tl.trans(tl.cumsum(x, axis=1))  # [COLUMNS, ROWS]
    tl.store(y_ptr + c[:, None] * ROWS + r[None, :], y, mask=(c < columns)[:, None])


@triton.jit
def elementary(x_ptr, y0_ptr, y1_ptr, y2_ptr, y3_ptr, y4_ptr, count, BLOCK: tl.constexpr):
    """Functions of x, of which sine and cosine are exact for large arguments too (integers of many words)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(x_ptr + at, mask=inside, other=1.0)
    small = x / (1.0 + tl.abs(x))
    tl.store(y0_ptr + at, tl.sin(x), mask=inside)
    tl.store(y1_ptr + at, tl.cos(x), mask=inside)
    tl.store(y2_ptr + at, tl.log(tl.abs(x) + 1.0) * tl.erf(small), mask=inside)
    tl.store(y3_ptr + at, tl.sqrt(tl.abs(x)) - tl.floor(x) * 0.125, mask=inside)
    tl.store(y4_ptr + at, tl.sigmoid(small) + tl.math.div_rn(1.0, tl.abs(x) + 2.0), mask=inside)


@triton.jit
def sorted_row(x_ptr, sorted_ptr, gathered_ptr, bins_ptr, N: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(sorted_ptr + at, tl.sort(x))
    tl.store(gathered_ptr + at, tl.gather(x, (at * 7 + 3) % N, 0))
    tl.store(bins_ptr + tl.arange(0, BINS), tl.histogram((tl.abs(x) * 4).to(tl.int32) % BINS, BINS))


@triton.jit
def integers(x_ptr, y_ptr, quotient_ptr, rest_ptr, mixed_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(x_ptr + at, mask=inside, other=1)
    y = tl.load(y_ptr + at, mask=inside, other=1)
    tl.store(quotient_ptr + at, (x // y) & 0xFFFFF, mask=inside)
    tl.store(rest_ptr + at, x % y, mask=inside)
    wide = (x.to(tl.int64) * 2654435761 >> 31) >> 12
    clamped = tl.clamp(x.to(tl.float32), -100.0, 100.0).to(tl.int32)
    high = tl.umulhi(x.to(tl.uint32), y.to(tl.uint32)).to(tl.int32)
    tl.store(mixed_ptr + at, (high ^ clamped ^ (wide & 0x7FFFFFFF).to(tl.int32)) & 0xFFFFF, mask=inside)
