// scalar_dkv.cu: attention backward, dk and dv, a warp per (key, kv head); after scalar_dq.cu, which
// leaves delta. Grid: ceil(keys kv_heads / WARPS) blocks of 32 WARPS. Lanes have query rows for scores,
// columns for sums.

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) kernel(const __grid_constant__ Args args) {
    const Operand &q = args.operands[Q], &k = args.operands[K];
    int heads = args.ints[0], kv_heads = args.ints[1], group = heads / kv_heads, lane = threadIdx.x % 32;
    long long item = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= (long long)k.rows * kv_heads)
        return;
    int key = (int)(item / kv_heads), kv = (int)(item % kv_heads);
    const char *k_row = element_address<TYPE_K>(k, key, kv * D_QK);
    const char *v_row = element_address<TYPE_V>(args.operands[V], key, kv * D_V);
    Scaling by = scaling(args);
    Real dk[PIECES_QK] = {}, dv[PIECES_V] = {};
    bool any = false;
    for (int row0 = max(k.first_row + key - q.first_row, 0) / 32 * 32; row0 < q.rows; row0 += 32) {
        int row = row0 + lane;
        bool mine = sees(row_limits(args, row), key);
        unsigned rows = __ballot_sync(ALL_LANES, mine);
        any = any || rows != 0;
        for (int head = kv * group; head < (kv + 1) * group && rows != 0; head++) {
            Real p = 0, ds = 0;
            if (mine) {
                const char *q_row = element_address<TYPE_Q>(q, row, head * D_QK);
                Real slope, s = score_of(by, dot<TYPE_Q, TYPE_K, D_QK>(q_row, k_row), slope);
                Real dp = dot<TYPE_DO, TYPE_V, D_V>(element_address<TYPE_DO>(args.operands[DO], row, head * D_V), v_row);
                Real lse = load_real<TYPE_LSE>(element_address<TYPE_LSE>(args.operands[LSE], row, head)) * R(LOG2_E);
                p = exp2(s - lse);
                ds = factor_of(p * (dp - ((const Real *)args.scratch)[(long long)row * heads + head]) * slope);
                p = factor_of(p);
            }
            for (unsigned left = rows; left != 0; left &= left - 1) {
                int j = __ffs((int)left) - 1;
                add_row<TYPE_DO, D_V>(dv, __shfl_sync(ALL_LANES, p, j),
                                      element_address<TYPE_DO>(args.operands[DO], row0 + j, head * D_V), lane);
                add_row<TYPE_Q, D_QK>(dk, __shfl_sync(ALL_LANES, ds, j),
                                      element_address<TYPE_Q>(q, row0 + j, head * D_QK), lane);
            }
        }
    }
    if (!any)
        return;
    for (int i = 0; i < PIECES_QK; i++)
        if (32 * i + lane < D_QK) {
            char *at = element_address<TYPE_DK>(args.operands[DK], key, kv * D_QK + 32 * i + lane);
            store_real<TYPE_DK>(at, load_real<TYPE_DK>(at) + dk[i] * by.scale);
        }
    for (int i = 0; i < PIECES_V; i++)
        if (32 * i + lane < D_V) {
            char *at = element_address<TYPE_DV>(args.operands[DV], key, kv * D_V + 32 * i + lane);
            store_real<TYPE_DV>(at, load_real<TYPE_DV>(at) + dv[i]);
        }
}
