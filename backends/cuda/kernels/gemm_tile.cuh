// gemm_tile.cuh: a tile of a product by a block of 256 threads: TILE x TILE (64 x 64) elements, DEPTH at a
// time of both sides staged in shared memory as REAL; each thread 4 x 4, at distances of 16, so that stores
// of a row run together. TA, TB: which of their two numbers is that of a neighbour in memory.
//
// Sums are of blocks of 256 terms, then of blocks: one chain over a vocabulary of 50,000 loses a digit of
// fp32.

enum { DEPTH = 16, BLOCK = 256 };
static __shared__ REAL left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];

// A Product has rows, cols and depth; a(m, k) and b(k, n) within them; finish(m, n, sum).
template <class Product> DEVICE void multiply_tile(const Product &p, int row, int column) {
    int lane = (int)LANE, y = lane / 16, x = lane % 16;
    REAL sums[4][4] = {}, totals[4][4] = {};
    for (int k0 = 0; k0 < p.depth; k0 += DEPTH) {
#pragma unroll
        for (int i = 0; i < 4; i++) { // neighbours read neighbours
            int k = TA ? lane / 64 + 4 * i : lane % 16, m = TA ? lane % 64 : lane / 16 + 16 * i;
            left[k][m] = k0 + k < p.depth && row + m < p.rows ? p.a(row + m, k0 + k) : (REAL)0.0;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = TB ? lane % 16 : lane / 64 + 4 * i, n = TB ? lane / 16 + 16 * i : lane % 64;
            right[k][n] = k0 + k < p.depth && column + n < p.cols ? p.b(k0 + k, column + n) : (REAL)0.0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            REAL u[4], v[4];
            for (int i = 0; i < 4; i++) {
                u[i] = left[k][y + 16 * i];
                v[i] = right[k][x + 16 * i];
            }
            for (int i = 0; i < 4; i++)
                for (int n = 0; n < 4; n++)
                    sums[i][n] = fma(u[i], v[n], sums[i][n]);
        }
        if ((k0 + DEPTH) % BLOCK == 0 || k0 + DEPTH >= p.depth)
#pragma unroll
            for (int i = 0; i < 4; i++)
                for (int n = 0; n < 4; n++) {
                    totals[i][n] += sums[i][n];
                    sums[i][n] = (REAL)0.0;
                }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < 4; n++)
            if (row + y + 16 * i < p.rows && column + x + 16 * n < p.cols)
                p.finish(row + y + 16 * i, column + x + 16 * n, totals[i][n]);
}
