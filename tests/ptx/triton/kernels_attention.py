"""Triton kernels of causal attention: forward, and its gradients in two kernels. Heads [heads, rows, D] bf16, lse and delta
[heads, rows] f32: lse is the logarithm (base 2) of the sum of exponentials of the scaled logits, delta = sum(dout * out).
scale: log2(e) / sqrt(D)."""

import triton
import triton.language as tl


@triton.jit
def attention_forward(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, rows, scale, D: tl.constexpr, BM: tl.constexpr,
                      BN: tl.constexpr):
    first_m = tl.program_id(0) * BM
    head = tl.program_id(1) * rows
    rm = first_m + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + (head + rm)[:, None] * D + rd[None, :], mask=(rm < rows)[:, None], other=0.0)
    most = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for first in range(0, tl.minimum(first_m + BM, rows), BN):
        n = first + rn
        k = tl.load(k_ptr + (head + n)[None, :] * D + rd[:, None], mask=(n < rows)[None, :], other=0.0)
        logits = tl.dot(q, k) * scale
        logits = tl.where((n[None, :] <= rm[:, None]) & (n < rows)[None, :], logits, -1e30)
        higher = tl.maximum(most, tl.max(logits, axis=1))
        power = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(most - higher)
        total = total * shrink + tl.sum(power, axis=1)
        v = tl.load(v_ptr + (head + n)[:, None] * D + rd[None, :], mask=(n < rows)[:, None], other=0.0)
        out = tl.dot(power.to(v.dtype), v, out * shrink[:, None])
        most = higher
    out = out / total[:, None]
    tl.store(lse_ptr + head + rm, most + tl.log2(total), mask=rm < rows)
    tl.store(out_ptr + (head + rm)[:, None] * D + rd[None, :], out.to(tl.bfloat16), mask=(rm < rows)[:, None])


@triton.jit
def attention_forward_tma(q_map, k_map, v_map, out_map, rows, scale, D: tl.constexpr, BM: tl.constexpr,
                          BN: tl.constexpr):
    """One head by tensor descriptors [rows, D]; rows beyond the end read zeros and are not written."""
    first_m = tl.program_id(0) * BM
    rm = first_m + tl.arange(0, BM)
    q = q_map.load([first_m, 0])
    most = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for first in range(0, tl.minimum(first_m + BM, rows), BN):
        n = first + tl.arange(0, BN)
        logits = tl.dot(q, k_map.load([first, 0]).T) * scale
        logits = tl.where(n[None, :] <= rm[:, None], logits, -1e30)
        higher = tl.maximum(most, tl.max(logits, axis=1))
        power = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(most - higher)
        total = total * shrink + tl.sum(power, axis=1)
        v = v_map.load([first, 0])
        out = tl.dot(power.to(v.dtype), v, out * shrink[:, None])
        most = higher
    out_map.store([first_m, 0], (out / total[:, None]).to(tl.bfloat16))


@triton.jit
def attention_dq(q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, rows, scale, D: tl.constexpr,
                 BM: tl.constexpr, BN: tl.constexpr):
    """dq of BM rows, keys in turn."""
    first_m = tl.program_id(0) * BM
    head = tl.program_id(1) * rows
    rm = first_m + tl.arange(0, BM)
    rd = tl.arange(0, D)
    here = (head + rm)[:, None] * D + rd[None, :]
    q = tl.load(q_ptr + here, mask=(rm < rows)[:, None], other=0.0)
    dout = tl.load(dout_ptr + here, mask=(rm < rows)[:, None], other=0.0)
    lse = tl.load(lse_ptr + head + rm, mask=rm < rows, other=0.0)
    delta = tl.load(delta_ptr + head + rm, mask=rm < rows, other=0.0)
    dq = tl.zeros([BM, D], tl.float32)
    for first in range(0, tl.minimum(first_m + BM, rows), BN):
        n = first + tl.arange(0, BN)
        there = (head + n)[:, None] * D + rd[None, :]
        k = tl.load(k_ptr + there, mask=(n < rows)[:, None], other=0.0)
        v = tl.load(v_ptr + there, mask=(n < rows)[:, None], other=0.0)
        power = tl.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        power = tl.where((n[None, :] <= rm[:, None]) & (n < rows)[None, :], power, 0.0)
        dlogits = power * (tl.dot(dout, tl.trans(v)) - delta[:, None])
        dq = tl.dot(dlogits.to(k.dtype), k, dq)
    dq = dq * (scale * 0.6931471805599453)
    tl.store(dq_ptr + here, dq.to(tl.bfloat16), mask=(rm < rows)[:, None])


@triton.jit
def attention_dkdv(q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, rows, scale, D: tl.constexpr,
                   BM: tl.constexpr, BN: tl.constexpr):
    """dk, dv of BN rows, queries in turn; logits transposed, so that what they become is an operand as it is."""
    first_n = tl.program_id(0) * BN
    head = tl.program_id(1) * rows
    rn = first_n + tl.arange(0, BN)
    rd = tl.arange(0, D)
    here = (head + rn)[:, None] * D + rd[None, :]
    k = tl.load(k_ptr + here, mask=(rn < rows)[:, None], other=0.0)
    v = tl.load(v_ptr + here, mask=(rn < rows)[:, None], other=0.0)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for first in range(first_n // BM * BM, rows, BM):
        m = first + tl.arange(0, BM)
        there = (head + m)[:, None] * D + rd[None, :]
        q = tl.load(q_ptr + there, mask=(m < rows)[:, None], other=0.0)
        dout = tl.load(dout_ptr + there, mask=(m < rows)[:, None], other=0.0)
        lse = tl.load(lse_ptr + head + m, mask=m < rows, other=0.0)
        delta = tl.load(delta_ptr + head + m, mask=m < rows, other=0.0)
        power = tl.exp2(tl.dot(k, tl.trans(q)) * scale - lse[None, :])  # [BN, BM]
        power = tl.where((rn[:, None] <= m[None, :]) & (m < rows)[None, :], power, 0.0)
        dv = tl.dot(power.to(dout.dtype), dout, dv)
        dlogits = power * (tl.dot(v, tl.trans(dout)) - delta[None, :])
        dk = tl.dot(dlogits.to(q.dtype), q, dk)
    dk = dk * (scale * 0.6931471805599453)
    tl.store(dk_ptr + here, dk.to(tl.bfloat16), mask=(rn < rows)[:, None])
    tl.store(dv_ptr + here, dv.to(tl.bfloat16), mask=(rn < rows)[:, None])
