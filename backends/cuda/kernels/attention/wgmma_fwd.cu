// wgmma_fwd.cu: attention forward of 16 bits on sm_90a. A block has 128 queries of one head: a warp that
// brings tiles of 128 keys by TMA, two of them in flight, and two warpgroups with 64 queries each that take
// turns: while one multiplies, the other computes exponentials. Numbers as in mma_fwd.cu.
//
// A turn of a warpgroup: s = q k^T of tile i and out += p v of tile i - 1 are issued together; the softmax of
// s runs beside the second of them. p is packed when that one is done, so that the registers that it reads
// are not written too early.
//
// Grid as mma_fwd.cu with ROWS 128; 384 threads. Dynamic shared memory: 5 tiles of 128 rows, 128 Limits, 9
// barriers. Maps: q, k, v.

constexpr int ROWS = 128, KEYS = 128, TILE_BYTES = Slabs<D_QK, 128>::BYTES, GROUP = 128;

enum { Q_FULL, K_FULL, V_FULL = K_FULL + 2, K_FREE = V_FULL + 2, V_FREE = K_FREE + 2, BARRIERS = V_FREE + 2 };

constexpr int LIMITS_AT = 5 * TILE_BYTES, BARRIERS_AT = LIMITS_AT + ROWS * 16;

struct Shared {
    unsigned q, k, v, barriers;
    __device__ __forceinline__ explicit Shared(unsigned base)
        : q(base), k(base + TILE_BYTES), v(base + 3 * TILE_BYTES), barriers(base + BARRIERS_AT) {}
    __device__ __forceinline__ unsigned barrier(int number) const { return barriers + 8 * number; }
};

// Brings q, then tile after tile; by one thread.
__device__ __forceinline__ void produce(const Shared &at, const KeyTiles<KEYS> &list, const TensorMap &q_map, const TensorMap &k_map,
                                        const TensorMap &v_map, int head, int kv, int row0) {
    if (list.count == 0)
        return;
    barrier_expect(at.barrier(Q_FULL), TILE_BYTES);
    Slabs<D_QK, ROWS>::fetch(at.q, q_map, head, row0, at.barrier(Q_FULL));
    for (int i = 0; i < list.count; i++) {
        int stage = i % 2, free_parity = i / 2 % 2 ^ 1;
        barrier_wait(at.barrier(K_FREE + stage), free_parity);
        barrier_expect(at.barrier(K_FULL + stage), TILE_BYTES);
        Slabs<D_QK, KEYS>::fetch(at.k + stage * TILE_BYTES, k_map, kv, list.key(i), at.barrier(K_FULL + stage));
        barrier_wait(at.barrier(V_FREE + stage), free_parity);
        barrier_expect(at.barrier(V_FULL + stage), TILE_BYTES);
        Slabs<D_V, KEYS>::fetch(at.v + stage * TILE_BYTES, v_map, kv, list.key(i), at.barrier(V_FULL + stage));
    }
}

__device__ __forceinline__ void score_tile(float (&s)[1][KEYS / 8][4], unsigned q, int own_row, unsigned k) {
#pragma unroll
    for (int step = 0; step < D_QK / 16; step++)
        product<KEYS / 8>(s[0], columns_at<ROWS>(q, own_row, step), columns_at<KEYS>(k, 0, step), step > 0);
}

__device__ __forceinline__ void add_tile(float (&out)[D_V / 8][4], const unsigned (&p)[1][KEYS / 16][4], unsigned v) {
#pragma unroll
    for (int step = 0; step < KEYS / 16; step++)
        product_packed<D_V / 8>(out, p[0][step], rows_at<KEYS>(v, step));
}

// s becomes p; factor: what sums so far are multiplied with.
__device__ __forceinline__ void soften(float (&s)[1][KEYS / 8][4], float (&largest)[2], float (&sum)[2], float (&factor)[2],
                                       float rate) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = s[0][0][2 * half];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            most = fmaxf(most, fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
        float now = fmaxf(largest[half], rintf(quad_max(most) * rate)), here = 0;
        factor[half] = whole_power_of_2(largest[half] - now);
        largest[half] = now;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[0][n][i] = power_of_2(fmaf(s[0][n][i], rate, -now));
                here += s[0][n][i];
            }
        sum[half] = fmaf(sum[half], factor[half], here);
    }
}

__device__ __forceinline__ void store(const Args &args, float (&out)[D_V / 8][4], const float (&largest)[2], const float (&sums)[2],
                                      int row0, int head, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + 8 * half + lane / 4;
        float sum = quad_sum(sums[half]), inverse = 1.0f / sum;
        if (row >= args.operands[Q].rows)
            continue;
        if (lane % 4 == 0)
            store_real<TYPE_LSE>(element_address<TYPE_LSE>(args.operands[LSE], row, head),
                                 (largest[half] + log2f(sum)) * (float)LOG_2);
        char *to = element_address<TYPE_O>(args.operands[O], row, head * D_V + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < D_V / 8; n++, to += 8 * element_bytes(TYPE_O))
            store_pair<TYPE_O>(to, out[n][2 * half] * inverse, out[n][2 * half + 1] * inverse);
    }
}

// A warpgroup with the queries from own_row on.
__device__ __forceinline__ void consume(const Args &args, const Shared &at, const KeyTiles<KEYS> &list, const Limits *limits,
                                        int group, int row0, int head) {
    int lane = threadIdx.x % LANES, own_row = 64 * group, warp_row = own_row + threadIdx.x / LANES % 4 * 16;
    float out[D_V / 8][4], s[1][KEYS / 8][4], largest[2] = {NOTHING_SEEN, NOTHING_SEEN}, sum[2] = {0, 0}, factor[2];
    unsigned p[1][KEYS / 16][4];
    Bounds bounds = no_bounds();
    for (int r = own_row + lane; r < own_row + 64; r += LANES)
        if (row0 + r < args.operands[Q].rows)
            add_to_bounds(bounds, limits[r]);
    join_bounds(bounds);
    Scores by = scores_of(args);
#pragma unroll
    for (int n = 0; n < D_V / 8; n++)
        out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
    if (list.count > 0) {
        barrier_wait(at.barrier(Q_FULL), 0);
        barrier_wait(at.barrier(K_FULL), 0);
        turn_wait(1 + group, 2 * GROUP);
        products_begin();
        score_tile(s, at.q, own_row, at.k);
        products_commit();
        if (group == 0 || list.count > 1) // as many turns are passed as are waited for
            turn_pass(2 - group, 2 * GROUP);
        products_wait<0>();
        barrier_arrive_warp(at.barrier(K_FREE), lane);
        prepare(s, by);
        if (!sees_all(bounds, list.key(0), list.key(0) + KEYS))
            mask(s, limits + warp_row, list.key(0), lane);
        soften(s, largest, sum, factor, by.rate);
        pack_sums(p, s);
    }
    for (int i = 1; i < list.count; i++) {
        int stage = i % 2, before = stage ^ 1, key0 = list.key(i);
        barrier_wait(at.barrier(K_FULL + stage), i / 2 % 2);
        barrier_wait(at.barrier(V_FULL + before), (i - 1) / 2 % 2);
        turn_wait(1 + group, 2 * GROUP);
        products_begin();
        score_tile(s, at.q, own_row, at.k + stage * TILE_BYTES);
        products_commit();
        add_tile(out, p, at.v + before * TILE_BYTES);
        products_commit();
        if (group == 0 || i + 1 < list.count)
            turn_pass(2 - group, 2 * GROUP);
        products_wait<1>();
        barrier_arrive_warp(at.barrier(K_FREE + stage), lane);
        prepare(s, by);
        if (!sees_all(bounds, key0, key0 + KEYS))
            mask(s, limits + warp_row, key0, lane);
        soften(s, largest, sum, factor, by.rate);
        products_wait<0>();
        barrier_arrive_warp(at.barrier(V_FREE + before), lane);
        if (__any_sync(ALL_LANES, factor[0] != 1.0f || factor[1] != 1.0f)) // rare after the first tiles
#pragma unroll
            for (int n = 0; n < D_V / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[n][e] *= factor[e / 2];
        pack_sums(p, s);
    }
    if (list.count > 0) {
        int last = list.count - 1;
        barrier_wait(at.barrier(V_FULL + last % 2), last / 2 % 2);
        products_begin();
        add_tile(out, p, at.v + last % 2 * TILE_BYTES);
        products_commit();
        products_wait<0>();
    }
    store(args, out, largest, sum, row0 + warp_row, head, lane);
}

extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    kernel(const __grid_constant__ Args args, const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
           const __grid_constant__ TensorMap v_map) {
    extern __shared__ __align__(1024) char memory[];
    int group = args.ints[0] / args.ints[1], tiles = (args.operands[Q].rows + ROWS - 1) / ROWS;
    int kv = blockIdx.x / (tiles * group), within = blockIdx.x % (tiles * group);
    int head = kv * group + within % group, row0 = (tiles - 1 - within / group) * ROWS;
    int lane = threadIdx.x % LANES, warpgroup = threadIdx.x / GROUP;
    Shared at(shared_address(memory));
    Limits *limits = (Limits *)(memory + LIMITS_AT);
    if (threadIdx.x < ROWS)
        limits[threadIdx.x] = row_limits(args, row0 + threadIdx.x);
    if (threadIdx.x == GROUP) {
        for (int i = 0; i < BARRIERS; i++)
            // a fetch, or a lane of each warp that is done with a tile
            barrier_init(at.barrier(i), i < K_FREE ? 1 : 8);
        barrier_init_done();
    }
    __syncthreads();
    Bounds bounds = no_bounds();
    for (int r = lane; r < ROWS; r += LANES)
        if (row0 + r < args.operands[Q].rows)
            add_to_bounds(bounds, limits[r]);
    join_bounds(bounds);
    KeyTiles<KEYS> list(bounds);
    if (warpgroup == 0) {
        leave_registers<24>();
        if (threadIdx.x == 0)
            produce(at, list, q_map, k_map, v_map, head, kv, row0);
    } else {
        take_registers<240>();
        if (warpgroup == 2)
            turn_pass(1, 2 * GROUP); // the first turn is the other's
        consume(args, at, list, limits, warpgroup - 1, row0, head);
    }
}
