// wgmma_finish.cu: dq of the sums that wgmma_bwd.cu left. Grid: heads * ceil(rows / 64) blocks of 128, one
// per (head, tile).

extern "C" __global__ void __launch_bounds__(128, 1) kernel(const __grid_constant__ Args args) {
    Sums sums = sums_of(args, scratch_of(args));
    int head = blockIdx.x / sums.tiles, tile = blockIdx.x % sums.tiles, lane = threadIdx.x % LANES;
    int row0 = tile * QUERIES + threadIdx.x / LANES * 16 + lane / 4;
    const float *from = sums.of(head, tile) + threadIdx.x;
    for (int n = 0; n < D_QK / 8; n++)
        for (int half = 0; half < 2; half++) {
            int row = row0 + 8 * half, at = n / 8 * (QUERIES * 64) + (n % 8 * 4 + 2 * half) * 128;
            if (row >= args.operands[Q].rows)
                continue;
            char *to = element_address<TYPE_DQ>(args.operands[DQ], row, head * D_QK + 8 * n + lane % 4 * 2);
            store_pair<TYPE_DQ>(to, from[at] * args.floats[0], from[at + 128] * args.floats[0]);
        }
}
