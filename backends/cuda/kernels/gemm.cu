// gemm.cu: d = alpha op(a) op(b) + beta c + bias, any types: sums in REAL, tile by tile (gemm_tile.cuh). TA,
// TB: op transposes.
#include "gemm_tile.cuh"

struct Whole {
    const Args &args;
    const Operand &left, &right;
    int rows, cols, depth;

    __device__ explicit Whole(const Args &all) : args(all), left(all.operands[a_OPERAND]), right(all.operands[b_OPERAND]) {
        rows = all.operands[d_OPERAND].rows;
        cols = all.operands[d_OPERAND].cols;
        depth = TA ? left.rows : left.cols;
    }
    DEVICE REAL a(int m, int k) const {
        return TA ? LOAD_a(row_address(left, k, a_BYTES), m) : LOAD_a(row_address(left, m, a_BYTES), k);
    }
    DEVICE REAL b(int k, int n) const {
        return TB ? LOAD_b(row_address(right, n, b_BYTES), k) : LOAD_b(row_address(right, k, b_BYTES), n);
    }
    DEVICE void finish(int m, int n, REAL sum) const {
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
};

KERNEL_OF(256, 2) {
    const Whole whole(args);
    u32 across = (u32)(whole.cols + TILE - 1) / TILE;
    multiply_tile(whole, (int)(group_number() / across) * TILE, (int)(group_number() % across) * TILE);
}
