// gemm.cu: d = alpha op(a) op(b) + beta c + bias, any types: sums in REAL. A block of 256 threads computes TILE x TILE
// (64 x 64) elements of d, DEPTH at a time of a and b staged in shared memory as REAL; each thread 4 x 4, at distances
// of 16, so that stores of a row run together. TA, TB: op transposes.
//
// Sums are of blocks of 256 terms, then of blocks: one chain over a vocabulary of 50,000 loses a digit of fp32.

enum { DEPTH = 16, BLOCK = 256 };
static __shared__ REAL left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];

// op(a) at (m, k), op(b) at (k, n)
DEVICE REAL a_at(const Operand &a, int m, int k) {
    return TA ? LOAD_a(row_address(a, k, a_BYTES), m) : LOAD_a(row_address(a, m, a_BYTES), k);
}
DEVICE REAL b_at(const Operand &b, int k, int n) {
    return TB ? LOAD_b(row_address(b, n, b_BYTES), k) : LOAD_b(row_address(b, k, b_BYTES), n);
}

DEVICE void finish(const Args &args, int m, int n, REAL sum) {
    REAL x = ARG_NUMBER(0) * sum;
#ifdef c_OPERAND
    if (ARG_NUMBER(1) != (REAL)0.0)
        x += ARG_NUMBER(1) * LOAD_c(row_address(args.operands[c_OPERAND], m, c_BYTES), n);
#endif
#ifdef bias_OPERAND
    x += LOAD_bias(args.operands[bias_OPERAND].address, n);
#endif
    STORE_d(row_address(args.operands[d_OPERAND], m, d_BYTES), n, x);
}

KERNEL_OF(256, 2) {
    const Operand &d = args.operands[d_OPERAND], &a = args.operands[a_OPERAND], &b = args.operands[b_OPERAND];
    u32 across = (u32)(d.cols + TILE - 1) / TILE;
    int row = (int)(group_number() / across) * TILE, column = (int)(group_number() % across) * TILE;
    int depth = TA ? a.rows : a.cols, lane = (int)LANE, y = lane / 16, x = lane % 16;
    REAL sums[4][4] = {}, totals[4][4] = {};
    for (int k0 = 0; k0 < depth; k0 += DEPTH) {
#pragma unroll
        for (int i = 0; i < 4; i++) { // neighbours read neighbours
            int k = TA ? lane / 64 + 4 * i : lane % 16, m = TA ? lane % 64 : lane / 16 + 16 * i;
            left[k][m] = k0 + k < depth && row + m < d.rows ? a_at(a, row + m, k0 + k) : (REAL)0.0;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int k = TB ? lane % 16 : lane / 64 + 4 * i, n = TB ? lane / 16 + 16 * i : lane % 64;
            right[k][n] = k0 + k < depth && column + n < d.cols ? b_at(b, k0 + k, column + n) : (REAL)0.0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            REAL p[4], q[4];
            for (int i = 0; i < 4; i++) {
                p[i] = left[k][y + 16 * i];
                q[i] = right[k][x + 16 * i];
            }
            for (int i = 0; i < 4; i++)
                for (int n = 0; n < 4; n++)
                    sums[i][n] = fma(p[i], q[n], sums[i][n]);
        }
        if ((k0 + DEPTH) % BLOCK == 0 || k0 + DEPTH >= depth)
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
            if (row + y + 16 * i < d.rows && column + x + 16 * n < d.cols)
                finish(args, row + y + 16 * i, column + x + 16 * n, totals[i][n]);
}
