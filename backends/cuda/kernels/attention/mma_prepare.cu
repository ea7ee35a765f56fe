// mma_prepare.cu: what the backward pass needs of query rows, see mma_bwd.cuh. Grid: PADDED / QUERIES * heads
// blocks of 128.

constexpr int WARPS_HERE = 4;

extern "C" __global__ void __launch_bounds__(LANES * WARPS_HERE, 1) kernel(const __grid_constant__ Args args) {
    const Operand &q = args.operands[Q];
    Scratch to = scratch_of(args);
    int heads = args.ints[0], tile = blockIdx.x / heads, head = blockIdx.x % heads;
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    for (int r = warp; r < QUERIES; r += WARPS_HERE) {
        int row = tile * QUERIES + r;
        float delta = 0, lse = 1e30f;
        if (row < q.rows) {
            for (int d = lane; d < D_V; d += LANES)
                delta = fmaf(load_real<TYPE_O>(element_address<TYPE_O>(args.operands[O], row, head * D_V + d)),
                             load_real<TYPE_DO>(element_address<TYPE_DO>(args.operands[DO], row, head * D_V + d)), delta);
            delta = warp_sum(delta);
            lse = load_real<TYPE_LSE>(element_address<TYPE_LSE>(args.operands[LSE], row, head)) * (float)LOG2_E;
        }
        if (lane == 0) {
            to.delta[(long long)head * to.padded + row] = delta;
            to.lse[(long long)head * to.padded + row] = lse;
        }
    }
    if (head != 0 || warp != 0)
        return;
    Bounds bounds = no_bounds();
    for (int row = tile * QUERIES + lane; row < (tile + 1) * QUERIES; row += LANES) {
        Limits see = row_limits(args, row);
        to.limits[row] = see;
        if (row < q.rows)
            add_to_bounds(bounds, see);
    }
    join_bounds(bounds);
    if (lane == 0)
        to.bounds[tile] = bounds;
}
