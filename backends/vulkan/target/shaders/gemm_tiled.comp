// gemm_tiled.comp: a workgroup of 256 computes TILE x TILE (64 x 64) elements of d, DEPTH at a time of a
// and b staged in shared memory as REAL; each invocation 4 x 4, at distances of 16, so that stores of a
// row run together.
#include "gemm.glsl"

const int DEPTH = 16;
shared REAL left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];

void main() {
    Operand d = args.operands[d_OPERAND], a = args.operands[a_OPERAND], b = args.operands[b_OPERAND];
    uint across = uint(d.cols + TILE - 1) / TILE;
    int row = int(group_number() / across) * TILE, column = int(group_number() % across) * TILE;
    if (row >= d.rows)
        return;
    int depth = TA != 0 ? a.rows : a.cols, lane = int(LANE);
    int y = lane / 16, x = lane % 16;
    REAL sums[4][4], totals[4][4];
    [[unroll]] for (int i = 0; i < 4; i++)
        [[unroll]] for (int n = 0; n < 4; n++)
            sums[i][n] = totals[i][n] = REAL(0.0);
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
        [[unroll]] for (int i = 0; i < 4; i++) { // neighbours read neighbours
            int k = TA != 0 ? lane / 64 + 4 * i : lane % 16, m = TA != 0 ? lane % 64 : lane / 16 + 16 * i;
            REAL value = REAL(0.0);
            if (k0 + k < depth && row + m < d.rows)
                value = a_at(a, row + m, k0 + k);
            left[k][m] = value;
        }
        [[unroll]] for (int i = 0; i < 4; i++) {
            int k = TB == 0 ? lane / 64 + 4 * i : lane % 16, n = TB == 0 ? lane % 64 : lane / 16 + 16 * i;
            REAL value = REAL(0.0);
            if (k0 + k < depth && column + n < d.cols)
                value = b_at(b, k0 + k, column + n);
            right[k][n] = value;
        }
        barrier();
        [[unroll]] for (int k = 0; k < DEPTH; k++) {
            REAL p[4], q[4];
            [[unroll]] for (int i = 0; i < 4; i++) {
                p[i] = left[k][y + 16 * i];
                q[i] = right[k][x + 16 * i];
            }
            [[unroll]] for (int i = 0; i < 4; i++)
                [[unroll]] for (int n = 0; n < 4; n++)
                    sums[i][n] = fma(p[i], q[n], sums[i][n]);
        }
        if ((k0 + DEPTH) % BLOCK == 0 || k0 + DEPTH >= depth)
            [[unroll]] for (int i = 0; i < 4; i++)
                [[unroll]] for (int n = 0; n < 4; n++) {
                    totals[i][n] += sums[i][n];
                    sums[i][n] = REAL(0.0);
                }
        barrier();
    }
    [[unroll]] for (int i = 0; i < 4; i++)
        [[unroll]] for (int n = 0; n < 4; n++)
            if (row + y + 16 * i < d.rows && column + x + 16 * n < d.cols)
                finish(row + y + 16 * i, column + x + 16 * n, totals[i][n]);
}
