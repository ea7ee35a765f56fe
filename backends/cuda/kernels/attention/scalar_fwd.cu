// scalar_fwd.cu: attention forward, a warp per (query row, head). Grid: ceil(rows heads / WARPS)
// blocks of 32 WARPS.

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) kernel(const __grid_constant__ Args args) {
    const Operand &q = args.operands[Q];
    int heads = args.ints[0], lane = threadIdx.x % 32;
    long long item = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= (long long)q.rows * heads)
        return;
    int row = (int)(item / heads), head = (int)(item % heads), kv = head / (heads / args.ints[1]);
    const char *q_row = element_address<TYPE_Q>(q, row, head * D_QK);
    Limits see = row_limits(args, row);
    Scaling by = scaling(args);
    Real largest = NOTHING_SEEN, sum = 0, out[PIECES_V] = {};
    for (int part = 0; part < 2; part++) {
        int end = part ? see.own_end : see.shared_end;
        for (int key0 = part ? see.own : see.shared; key0 < end; key0 += 32) {
            int key = key0 + lane;
            Real s = NOTHING_SEEN, slope;
            if (key < end)
                s = score_of(by, dot<TYPE_Q, TYPE_K, D_QK>(q_row, element_address<TYPE_K>(args.operands[K], key, kv * D_QK)), slope);
            Real now = rint(warp_max(s));
            now = now > largest ? now : largest;
            Real factor = exp2(largest - now), p = key < end ? exp2(s - now) : R(0);
            largest = now;
            sum = sum * factor + warp_sum(p);
            for (int i = 0; i < PIECES_V; i++)
                out[i] *= factor;
            p = factor_of(p);
            for (int j = 0; j < min(32, end - key0); j++)
                add_row<TYPE_V, D_V>(out, __shfl_sync(ALL_LANES, p, j),
                                     element_address<TYPE_V>(args.operands[V], key0 + j, kv * D_V), lane);
        }
    }
    for (int i = 0; i < PIECES_V; i++)
        if (32 * i + lane < D_V)
            store_real<TYPE_O>(element_address<TYPE_O>(args.operands[O], row, head * D_V + 32 * i + lane), out[i] / sum);
    if (lane == 0)
        store_real<TYPE_LSE>(element_address<TYPE_LSE>(args.operands[LSE], row, head), (largest + log2(sum)) * R(LOG_2));
}
