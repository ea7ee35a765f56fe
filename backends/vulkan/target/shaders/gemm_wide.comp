// gemm_wide.comp: a workgroup of 256 computes TILE x TILE (128 x 128) elements of d, each invocation four
// blocks of 4 x 4, 64 apart. DEPTH of a and b stand in shared memory as fp32, twice: while one is multiplied
// the next is brought.
#include "gemm.glsl"

const int DEPTH = 8, STRIDE = TILE + 4;
shared float left[2][DEPTH * STRIDE], right[2][DEPTH * STRIDE];

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer M_aligned4 { vec4 v; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer M_aligned2 { uvec2 v; };

// Four neighbours from an address that is a multiple of their size.
vec4 four_f32(uint64_t at) {
    return M_aligned4(at).v;
}
vec4 four_bf16(uint64_t at) {
    uvec2 u = M_aligned2(at).v;
    return uintBitsToFloat(uvec4(u.x << 16, u.x & 0xffff0000u, u.y << 16, u.y & 0xffff0000u));
}
vec4 four_f16(uint64_t at) {
    uvec2 u = M_aligned2(at).v;
    return vec4(f32_from_f16(u.x & 0xffffu), f32_from_f16(u.x >> 16), f32_from_f16(u.y & 0xffffu),
                f32_from_f16(u.y >> 16));
}

bool is_aligned(Operand o, int bytes) {
    return ((uint(o.address) | uint(o.stride * bytes)) & uint(4 * bytes - 1)) == 0u;
}

// Four neighbours of a row of a (b), zero where there are none; rows, columns: those that exist.
#define FETCH(name, LOAD, FOUR, SIZE)                                                                        \
    vec4 name(Operand o, bool aligned, int row, int column, int rows, int columns) {                         \
        vec4 x = vec4(0.0);                                                                                  \
        uint64_t at = row_address(o, row, SIZE);                                                             \
        if (aligned && row < rows && column + 4 <= columns)                                                  \
            return FOUR(at + uint64_t(column) * uint64_t(SIZE));                                             \
        for (int i = 0; i < 4; i++)                                                                          \
            if (row < rows && column + i < columns)                                                          \
                x[i] = LOAD(at, column + i);                                                                 \
        return x;                                                                                            \
    }
FETCH(fetch_a, LOAD_a, FOUR_a, a_BYTES)
FETCH(fetch_b, LOAD_b, FOUR_b, b_BYTES)

void main() {
    Operand d = args.operands[d_OPERAND], a = args.operands[a_OPERAND], b = args.operands[b_OPERAND];
    uint across = uint(d.cols + TILE - 1) / TILE;
    int row = int(group_number() / across) * TILE, column = int(group_number() % across) * TILE;
    if (row >= d.rows)
        return;
    int depth = TA != 0 ? a.rows : a.cols, lane = int(LANE), y = lane / 16 * 4, x = lane % 16 * 4;
    bool aligned_a = is_aligned(a, a_BYTES), aligned_b = is_aligned(b, b_BYTES);
    // the four that this invocation brings: row k and columns from m on (n), or row m and columns from k on
    int ka = TA != 0 ? lane / 32 : lane % 2 * 4, m = TA != 0 ? lane % 32 * 4 : lane / 2;
    int kb = TB == 0 ? lane / 32 : lane % 2 * 4, n = TB == 0 ? lane % 32 * 4 : lane / 2;
    float sums[8][8];
    [[unroll]] for (int i = 0; i < 8; i++)
        [[unroll]] for (int j = 0; j < 8; j++)
            sums[i][j] = 0.0;
    int now = 0;
    for (int k0 = -DEPTH; k0 < depth; k0 += DEPTH) {
        int next = k0 + DEPTH;
        vec4 held_a = vec4(0.0), held_b = vec4(0.0);
        if (next < depth) {
#if TA
            held_a = fetch_a(a, aligned_a, next + ka, row + m, depth, d.rows);
#else
            held_a = fetch_a(a, aligned_a, row + m, next + ka, d.rows, depth);
#endif
#if TB
            held_b = fetch_b(b, aligned_b, column + n, next + kb, d.cols, depth);
#else
            held_b = fetch_b(b, aligned_b, next + kb, column + n, depth, d.cols);
#endif
        }
        if (k0 >= 0) { // nothing is multiplied the first time
            for (int k = 0; k < DEPTH; k++) { // 64 matmuls a turn: drivers need not unroll it
                float p[8], q[8];
                [[unroll]] for (int i = 0; i < 8; i++) {
                    p[i] = left[now][k * STRIDE + y + i % 4 + i / 4 * 64];
                    q[i] = right[now][k * STRIDE + x + i % 4 + i / 4 * 64];
                }
                [[unroll]] for (int i = 0; i < 8; i++)
                    [[unroll]] for (int j = 0; j < 8; j++)
                        sums[i][j] = fma(p[i], q[j], sums[i][j]);
            }
        }
        now = 1 - now;
        [[unroll]] for (int i = 0; i < 4; i++) {
            left[now][TA != 0 ? ka * STRIDE + m + i : (ka + i) * STRIDE + m] = held_a[i];
            right[now][TB == 0 ? kb * STRIDE + n + i : (kb + i) * STRIDE + n] = held_b[i];
        }
        barrier();
    }
    // through memory of its own, a row at a time, so that what finishes an element is there 8 times, not 64
    [[unroll]] for (int i = 0; i < 8; i++) {
        [[unroll]] for (int j = 0; j < 8; j++)
            left[j / 4][lane * 4 + j % 4] = sums[i][j];
        [[dont_unroll]] for (int j = 0; j < 8; j++) {
            int r = row + y + i % 4 + i / 4 * 64, c = column + x + j % 4 + j / 4 * 64;
            if (r < d.rows && c < d.cols)
                finish(r, c, left[j / 4][lane * 4 + j % 4]);
        }
    }
}
