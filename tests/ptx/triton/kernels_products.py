"""Triton kernels of matrix products: mma.sync on sm_80, wgmma on sm_90a; by pointers and by tensor descriptors (TMA)."""

import triton
import triton.language as tl


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, m, n, k, lda, ldb, ldc, A_T: tl.constexpr, B_T: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr):
    """c[m, n] = a b; a: [m, k] in rows of lda, or with A_T [k, m]; b: [k, n] in rows of ldb, or with B_T [n, k]."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    if A_T:
        a_at = a_ptr + rk[None, :] * lda + rm[:, None]
    else:
        a_at = a_ptr + rm[:, None] * lda + rk[None, :]
    if B_T:
        b_at = b_ptr + rn[None, :] * ldb + rk[:, None]
    else:
        b_at = b_ptr + rk[:, None] * ldb + rn[None, :]
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(0, k, BK):
        a = tl.load(a_at, mask=(rm < m)[:, None] & (first + rk < k)[None, :], other=0.0)
        b = tl.load(b_at, mask=(first + rk < k)[:, None] & (rn < n)[None, :], other=0.0)
        total = tl.dot(a, b, total)
        a_at += BK * lda if A_T else BK
        b_at += BK if B_T else BK * ldb
    c = total.to(c_ptr.dtype.element_ty)
    tl.store(c_ptr + rm[:, None] * ldc + rn[None, :], c, mask=(rm < m)[:, None] & (rn < n)[None, :])


@triton.jit
def matmul_split(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                 SPLIT: tl.constexpr):
    """c[m, n] += a[m, k] b[k, n], the sum over k cut into SPLIT blocks that add with atomics; k: a multiple of BK * SPLIT."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.program_id(2) * BK + tl.arange(0, BK)
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(0, k, BK * SPLIT):
        a = tl.load(a_ptr + rm[:, None] * k + (first + rk)[None, :], mask=(rm < m)[:, None], other=0.0)
        b = tl.load(b_ptr + (first + rk)[:, None] * n + rn[None, :], mask=(rn < n)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    tl.atomic_add(c_ptr + rm[:, None] * n + rn[None, :], total, mask=(rm < m)[:, None] & (rn < n)[None, :])


@triton.jit
def matmul_tma(a_map, b_map, c_map, k, B_T: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
               SPECIALIZE: tl.constexpr):
    """The same with tensor descriptors: a [m, k], b [k, n] or with B_T [n, k], c [m, n]; boxes BM x BK, ... With SPECIALIZE
    other warps copy than compute (and Triton 3.9 lets two groups of warps compute and store the same)."""
    first_m = tl.program_id(0) * BM
    first_n = tl.program_id(1) * BN
    total = tl.zeros([BM, BN], tl.float32)
    for first in tl.range(0, k, BK, warp_specialize=SPECIALIZE):
        a = a_map.load([first_m, first])
        if B_T:
            total = tl.dot(a, b_map.load([first_n, first]).T, total)
        else:
            total = tl.dot(a, b_map.load([first, first_n]), total)
    c_map.store([first_m, first_n], total.to(c_map.dtype))


@triton.jit
def matmul_split_tma(a_map, b_map, c_map, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c += a b; program_id(2) takes every other piece of k; whole tiles are added by the copies that write them."""
    first_m = tl.program_id(0) * BM
    first_n = tl.program_id(1) * BN
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(tl.program_id(2) * BK, k, tl.num_programs(2) * BK):
        total = tl.dot(a_map.load([first_m, first]), b_map.load([first, first_n]), total)
    c_map.atomic_add([first_m, first_n], total)


@triton.jit
def matmul_persistent(a_map, b_map, c_map, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                      BLOCKS: tl.constexpr):
    """BLOCKS blocks take tiles of c in turn."""
    tiles_m = tl.cdiv(m, BM)
    tiles = tiles_m * tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles, BLOCKS):
        first_m = tile % tiles_m * BM
        first_n = tile // tiles_m * BN
        total = tl.zeros([BM, BN], tl.float32)
        for first in range(0, k, BK):
            a = a_map.load([first_m, first])
            b = b_map.load([first_n, first])
            total = tl.dot(a, b.T, total)
        c_map.store([first_m, first_n], total.to(c_map.dtype))


@triton.jit
def matmul_i8(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """c = a @ b^T of int8, summed in int32."""
    rm, rn = tl.arange(0, BM), tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.int32)
    for first in range(0, k, BK):
        rk = first + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * k + rk[None, :], mask=(rm < m)[:, None], other=0)
        b = tl.load(b_ptr + rn[None, :] * k + rk[:, None], mask=(rn < n)[None, :], other=0)
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rm[:, None] * n + rn[None, :], total, mask=(rm < m)[:, None] & (rn < n)[None, :])


@triton.jit
def matmul_grouped(a_ptr, b_ptr, c_ptr, sizes_ptr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr, N: tl.constexpr,
                   K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Rows of a in groups of sizes[g], each times its own b[g]; every block takes each BLOCKS-th tile of all."""
    tile = tl.program_id(0)
    done = 0
    row = 0
    for g in range(GROUPS):
        m = tl.load(sizes_ptr + g)
        tiles = tl.cdiv(m, BM) * tl.cdiv(N, BN)
        while tile >= done and tile < done + tiles:
            rm = (tile - done) // tl.cdiv(N, BN) * BM + tl.arange(0, BM)
            rn = (tile - done) % tl.cdiv(N, BN) * BN + tl.arange(0, BN)
            total = tl.zeros([BM, BN], tl.float32)
            for first in tl.range(0, K, BK):
                rk = first + tl.arange(0, BK)
                a = tl.load(a_ptr + (row + rm)[:, None] * K + rk[None, :], mask=(rm < m)[:, None], other=0.0)
                b = tl.load(b_ptr + g * K * N + rk[:, None] * N + rn[None, :], mask=(rn < N)[None, :], other=0.0)
                total = tl.dot(a, b, total)
            inside = (rm < m)[:, None] & (rn < N)[None, :]
            tl.store(c_ptr + (row + rm)[:, None] * N + rn[None, :], total.to(tl.bfloat16), mask=inside)
            tile += BLOCKS
        done += tiles
        row += m
