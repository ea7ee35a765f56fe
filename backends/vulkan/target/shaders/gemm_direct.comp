// gemm_direct.comp: one invocation computes TILE x TILE (8 x 8) elements of d in registers, straight from
// memory: what is fast on lavapipe, where shared memory is memory like any other.
#include "gemm.glsl"

shared REAL finished[LOCAL][64];

void main() {
    Operand d = args.operands[d_OPERAND], a = args.operands[a_OPERAND], b = args.operands[b_OPERAND];
    uint across = uint(d.cols + TILE - 1) / TILE;
    uint number = group_number() * LOCAL + LANE;
    // The last tiles lie over those before them, as far as there is room, and leave alone what is not theirs.
    int first_row = int(number / across) * TILE, first_column = int(number % across) * TILE;
    int row = max(min(first_row, d.rows - TILE), 0), column = max(min(first_column, d.cols - TILE), 0);
    if (first_row >= d.rows)
        return;
    int depth = TA != 0 ? a.rows : a.cols;
    bool inside = row + TILE <= d.rows && column + TILE <= d.cols;
    REAL4 sums[8][2];
    [[dont_unroll]] for (int e = 0; e < 64; e++)
        finished[LANE][e] = REAL(0.0);
    for (int k = 0; k < depth;) {
        int end = min(k + BLOCK, depth);
        [[unroll]] for (int i = 0; i < 8; i++)
            sums[i][0] = sums[i][1] = REAL4(0.0);
        for (; inside && k + 4 <= end; k += 4) {
            REAL4 left[8];     // [m][k], or with TA [2k + half]
            REAL4 right[8];    // [2k + half] [n], or with TB [n][k]
#if TA
            [[unroll]] for (int i = 0; i < 8; i++)
                left[i] = LOAD4_A(row_address(a, k + i / 2, a_BYTES), row + 4 * (i % 2));
#else
            [[unroll]] for (int i = 0; i < 8; i++)
                left[i] = LOAD4_A(row_address(a, row + i, a_BYTES), k);
#endif
#if TB
            REAL4 turned[8];
            [[unroll]] for (int i = 0; i < 8; i++)
                turned[i] = LOAD4_B(row_address(b, column + i, b_BYTES), k);
            [[unroll]] for (int i = 0; i < 8; i++) {
                int half_number = 4 * (i % 2), s = i / 2;
                right[i] = REAL4(turned[half_number][s], turned[half_number + 1][s], turned[half_number + 2][s],
                                 turned[half_number + 3][s]);
            }
#else
            [[unroll]] for (int i = 0; i < 8; i++)
                right[i] = LOAD4_B(row_address(b, k + i / 2, b_BYTES), column + 4 * (i % 2));
#endif
            [[unroll]] for (int s = 0; s < 4; s++)
                [[unroll]] for (int i = 0; i < 8; i++) {
#if TA
                    REAL x = left[2 * s + i / 4][i % 4];
#else
                    REAL x = left[i][s];
#endif
                    sums[i][0] = fma(REAL4(x), right[2 * s], sums[i][0]);
                    sums[i][1] = fma(REAL4(x), right[2 * s + 1], sums[i][1]);
                }
        }
        // what is left of the depth, and all of it where d is narrower than a tile: rows and columns that do
        // not exist repeat the last
        for (; k < end; k++) {
            REAL4 right[2];
            [[unroll]] for (int n = 0; n < 8; n++)
                right[n / 4][n % 4] = b_at(b, k, min(column + n, d.cols - 1));
            [[unroll]] for (int i = 0; i < 8; i++) {
                REAL x = a_at(a, min(row + i, d.rows - 1), k);
                sums[i][0] = fma(REAL4(x), right[0], sums[i][0]);
                sums[i][1] = fma(REAL4(x), right[1], sums[i][1]);
            }
        }
        // in memory of its own, so that what finishes an element is there once, not 64 times
        [[unroll]] for (int i = 0; i < 8; i++)
            [[unroll]] for (int n = 0; n < 8; n++)
                finished[LANE][8 * i + n] += sums[i][n / 4][n % 4];
    }
    [[dont_unroll]] for (int e = 0; e < 64; e++) {
        int r = row + e / 8, c = column + e % 8;
        if (r >= first_row && c >= first_column && r < d.rows && c < d.cols)
            finish(r, c, finished[LANE][e]);
    }
}
