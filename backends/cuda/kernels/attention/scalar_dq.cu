// scalar_dq.cu: attention backward, dq, a warp per (query row, head); leaves delta = sum of do o at
// scratch[row heads + head] for scalar_dkv.cu. Grid: ceil(rows heads / WARPS) blocks of 32 WARPS. Scratch:
// rows heads of Real.

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) kernel(const __grid_constant__ Args args) {
    const Operand &q = args.operands[Q];
    int heads = args.ints[0], lane = threadIdx.x % 32;
    long long item = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= (long long)q.rows * heads)
        return;
    int row = (int)(item / heads), head = (int)(item % heads), kv = head / (heads / args.ints[1]);
    const char *q_row = element_address<TYPE_Q>(q, row, head * D_QK);
    const char *o_row = element_address<TYPE_O>(args.operands[O], row, head * D_V);
    const char *do_row = element_address<TYPE_DO>(args.operands[DO], row, head * D_V);
    Real delta = 0;
    for (int d = lane; d < D_V; d += 32)
        delta = fma(load_real<TYPE_O>(o_row + d * element_bytes(TYPE_O)), load_real<TYPE_DO>(do_row + d * element_bytes(TYPE_DO)), delta);
    delta = warp_sum(delta);
    if (lane == 0)
        ((Real *)args.scratch)[item] = delta;
    Real lse = load_real<TYPE_LSE>(element_address<TYPE_LSE>(args.operands[LSE], row, head)) * R(LOG2_E);
    Limits see = row_limits(args, row);
    Scaling by = scaling(args);
    Real sums[PIECES_QK] = {};
    for (int part = 0; part < 2; part++) {
        int end = part ? see.own_end : see.shared_end;
        for (int key0 = part ? see.own : see.shared; key0 < end; key0 += 32) {
            int key = key0 + lane;
            Real ds = 0;
            if (key < end) {
                Real slope, s = score_of(by, dot<TYPE_Q, TYPE_K, D_QK>(q_row, element_address<TYPE_K>(args.operands[K], key, kv * D_QK)), slope);
                Real dp = dot<TYPE_DO, TYPE_V, D_V>(do_row, element_address<TYPE_V>(args.operands[V], key, kv * D_V));
                ds = factor_of(exp2(s - lse) * (dp - delta) * slope);
            }
            for (int j = 0; j < min(32, end - key0); j++)
                add_row<TYPE_K, D_QK>(sums, __shfl_sync(ALL_LANES, ds, j),
                                      element_address<TYPE_K>(args.operands[K], key0 + j, kv * D_QK), lane);
        }
    }
    for (int i = 0; i < PIECES_QK; i++)
        if (32 * i + lane < D_QK)
            store_real<TYPE_DQ>(element_address<TYPE_DQ>(args.operands[DQ], row, head * D_QK + 32 * i + lane), sums[i] * by.scale);
}
