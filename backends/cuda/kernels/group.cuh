// group.cuh: reductions over a block of whole warps: within warps by shuffles, then over the warps in order.
// Every thread gets the result, and the same bits.

static __shared__ REAL group_values[32];

DEVICE REAL plus(REAL a, REAL b) {
    return a + b;
}

template <REAL combine(REAL, REAL)> DEVICE REAL over_group(REAL x) {
    for (int distance = 16; distance > 0; distance /= 2)
        x = combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
    if (LOCAL == 32)
        return x;
    __syncthreads(); // values of the reduction before this one are read
    if (LANE % 32 == 0)
        group_values[LANE / 32] = x;
    __syncthreads();
    x = group_values[0];
    for (u32 warp = 1; warp < LOCAL / 32; warp++)
        x = combine(x, group_values[warp]);
    return x;
}

DEVICE REAL group_sum(REAL x) {
    return over_group<plus>(x);
}
DEVICE REAL group_max(REAL x) {
    return over_group<larger>(x);
}
DEVICE REAL group_min(REAL x) {
    return over_group<smaller>(x);
}
