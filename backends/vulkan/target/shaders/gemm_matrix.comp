// gemm_matrix.comp: a workgroup computes TILE x TILE elements of d by cooperative matrices of M x K by K x N
// (what the device offers), inputs of 16 bits as they are, sums in fp32. DEPTH at a time of a and b stand in
// shared memory in the order they have in memory; while they are multiplied the next ones come into
// registers. A subgroup computes ROWS x COLUMNS, the more the wider it is.
//
// float16_t stands for bf16 where a and b are bf16 (spirv_matrix.c): nothing here may convert it
// or count with it.
#include "gemm.glsl"

layout(constant_id = 1) const uint M = 16u;
layout(constant_id = 2) const uint N = 16u;
layout(constant_id = 3) const uint K = 16u;
layout(constant_id = 4) const uint ROWS = 32u;
layout(constant_id = 5) const uint COLUMNS = 32u;
#if TILE != 64
#define ONE_CHAIN // no registers to spare for sums of sums, and no matmuls so deep (args.c)
#endif
const uint DEPTH = uint(MATRIX_DEPTH), SIDE = uint(TILE);
const uint DOWN = ROWS / M, ACROSS = COLUMNS / N;
#define MATRIX_A fcoopmatNV<16, gl_ScopeSubgroup, M, K>
#define MATRIX_B fcoopmatNV<16, gl_ScopeSubgroup, K, N>
#define MATRIX_SUM fcoopmatNV<32, gl_ScopeSubgroup, M, N>

// Rows in shared memory begin at multiples of 16 bytes, and 16 bytes further than a power of two.
#if TA
const uint LEFT_WIDTH = SIDE, LEFT_ROWS = DEPTH;
#else
const uint LEFT_WIDTH = DEPTH, LEFT_ROWS = SIDE;
#endif
#if TB
const uint RIGHT_WIDTH = DEPTH, RIGHT_ROWS = SIDE;
#else
const uint RIGHT_WIDTH = SIDE, RIGHT_ROWS = DEPTH;
#endif
const uint LEFT_STRIDE = LEFT_WIDTH + 8u, RIGHT_STRIDE = RIGHT_WIDTH + 8u;
shared float16_t left[LEFT_ROWS * LEFT_STRIDE], right[RIGHT_ROWS * RIGHT_STRIDE];
shared float finished[SIDE / ROWS * (SIDE / COLUMNS) * M * N]; // a matrix per subgroup

layout(buffer_reference, scalar, buffer_reference_align = 2) readonly buffer M_half { float16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer M_half4 { f16vec4 v; };

const uint HELD = DEPTH * SIDE / 4u / LOCAL; // fours that an invocation brings of each operand

// Four neighbours of a row, zero where there are none: rows, columns of the operand that exist.
f16vec4 fetch(Operand o, bool aligned, int row, int column, int rows, int columns) {
    f16vec4 x = f16vec4(float16_t(0.0));
    if (row < rows) {
        uint64_t at = row_address(o, row, 2);
        if (aligned && column + 4 <= columns) {
            x = M_half4(at + uint64_t(column) * 2ul).v;
        } else {
            [[unroll]] for (int i = 0; i < 4; i++)
                if (column + i < columns)
                    x[i] = M_half(at).v[column + i];
        }
    }
    return x;
}

bool is_aligned(Operand o) {
    return ((uint(o.address) | uint(o.stride) * 2u) & 7u) == 0u;
}

void main() {
    Operand d = args.operands[d_OPERAND], a = args.operands[a_OPERAND], b = args.operands[b_OPERAND];
    uint wide = (uint(d.cols) + SIDE - 1u) / SIDE;
    int row = int(group_number() / wide * SIDE), column = int(group_number() % wide * SIDE);
    if (row >= d.rows)
        return;
    int depth = TA != 0 ? a.rows : a.cols;
    bool aligned_a = is_aligned(a), aligned_b = is_aligned(b);
    uint above = gl_SubgroupID / (SIDE / COLUMNS) * ROWS, beside = gl_SubgroupID % (SIDE / COLUMNS) * COLUMNS;
    MATRIX_SUM sums[DOWN][ACROSS];
#ifndef ONE_CHAIN
    MATRIX_SUM totals[DOWN][ACROSS];
#endif
    [[unroll]] for (uint i = 0u; i < DOWN; i++)
        [[unroll]] for (uint n = 0u; n < ACROSS; n++) {
            sums[i][n] = MATRIX_SUM(0.0);
#ifndef ONE_CHAIN
            totals[i][n] = sums[i][n];
#endif
        }
    f16vec4 held_a[HELD], held_b[HELD];
    for (int k0 = -int(DEPTH); k0 < depth; k0 += int(DEPTH)) {
        // the next of a and b; nothing is multiplied the first time
        int next = k0 + int(DEPTH);
        if (next < depth) {
            [[unroll]] for (uint i = 0u; i < HELD; i++) {
                uint four = LANE + i * LOCAL;
                int y = int(four / (LEFT_WIDTH / 4u)), x = int(four % (LEFT_WIDTH / 4u) * 4u);
#if TA
                held_a[i] = fetch(a, aligned_a, next + y, row + x, depth, d.rows);
#else
                held_a[i] = fetch(a, aligned_a, row + y, next + x, d.rows, depth);
#endif
            }
            [[unroll]] for (uint i = 0u; i < HELD; i++) {
                uint four = LANE + i * LOCAL;
                int y = int(four / (RIGHT_WIDTH / 4u)), x = int(four % (RIGHT_WIDTH / 4u) * 4u);
#if TB
                held_b[i] = fetch(b, aligned_b, column + y, next + x, d.cols, depth);
#else
                held_b[i] = fetch(b, aligned_b, next + y, column + x, depth, d.cols);
#endif
            }
        }
        if (k0 >= 0) {
            for (uint k = 0u; k < DEPTH; k += K) {
                MATRIX_B q[ACROSS];
                [[unroll]] for (uint n = 0u; n < ACROSS; n++)
#if TB
                    coopMatLoadNV(q[n], right, (beside + n * N) * RIGHT_STRIDE + k, RIGHT_STRIDE, true);
#else
                    coopMatLoadNV(q[n], right, k * RIGHT_STRIDE + beside + n * N, RIGHT_STRIDE, false);
#endif
                [[unroll]] for (uint i = 0u; i < DOWN; i++) {
                    MATRIX_A p;
#if TA
                    coopMatLoadNV(p, left, k * LEFT_STRIDE + above + i * M, LEFT_STRIDE, true);
#else
                    coopMatLoadNV(p, left, (above + i * M) * LEFT_STRIDE + k, LEFT_STRIDE, false);
#endif
                    [[unroll]] for (uint n = 0u; n < ACROSS; n++)
                        sums[i][n] = coopMatMulAddNV(p, q[n], sums[i][n]);
                }
            }
        }
#ifndef ONE_CHAIN
        if (next % BLOCK == 0 || next >= depth)
            [[unroll]] for (uint i = 0u; i < DOWN; i++)
                [[unroll]] for (uint n = 0u; n < ACROSS; n++) {
                    totals[i][n] += sums[i][n];
                    sums[i][n] = MATRIX_SUM(0.0);
                }
#endif
        barrier(); // all are done with what stands there
        [[unroll]] for (uint i = 0u; i < HELD; i++) {
            uint four = LANE + i * LOCAL;
            uint to = four / (LEFT_WIDTH / 4u) * LEFT_STRIDE + four % (LEFT_WIDTH / 4u) * 4u;
            [[unroll]] for (uint e = 0u; e < 4u; e++)
                left[to + e] = held_a[i][e];
            to = four / (RIGHT_WIDTH / 4u) * RIGHT_STRIDE + four % (RIGHT_WIDTH / 4u) * 4u;
            [[unroll]] for (uint e = 0u; e < 4u; e++)
                right[to + e] = held_b[i][e];
        }
        barrier();
    }
    uint own = gl_SubgroupID * M * N;
    [[unroll]] for (uint i = 0u; i < DOWN; i++)
        [[unroll]] for (uint n = 0u; n < ACROSS; n++) {
#ifdef ONE_CHAIN
            coopMatStoreNV(sums[i][n], finished, own, N, false);
#else
            coopMatStoreNV(totals[i][n], finished, own, N, false);
#endif
            subgroupBarrier();
            [[dont_unroll]] for (uint e = gl_SubgroupInvocationID; e < M * N; e += gl_SubgroupSize) {
                int y = row + int(above + i * M + e / N), x = column + int(beside + n * N + e % N);
                if (y < d.rows && x < d.cols)
                    finish(y, x, finished[own + e]);
            }
            subgroupBarrier();
        }
}
