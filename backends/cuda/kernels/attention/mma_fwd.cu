// mma_fwd.cu: attention forward of 16 bits by mma.sync. A block has ROWS queries of one head and takes the
// keys they see in tiles of KEYS, two tiles in flight. Row sums are of unrounded p; p is rounded to HALF for
// the product with v; the largest score is rounded to an integer (times log2(e)), so that p is exp(score)
// times a power of two.
//
// Defined: WARPS, STRIPS, KEYS. Grid: kv_heads * ceil(rows / ROWS) * group blocks of 32 WARPS PARTS; heavy
// tiles (late rows) first, the heads of a group side by side, for they read the same keys.
// Dynamic shared memory: ROWS (Limits + PITCH q) + 2 KEYS (PITCH k + PITCH v).

constexpr int ROWS = 16 * STRIPS * WARPS, PARTS = Parts<D_V>::COUNT, THREADS = LANES * WARPS * PARTS;
constexpr int K_BYTES = KEYS * Tile<D_QK>::PITCH, V_BYTES = KEYS * Tile<D_V>::PITCH;

struct Sums {
    float out[STRIPS][Parts<D_V>::COLUMNS / 8][4];
    // of rows lane / 4 and lane / 4 + 8 of a strip; sum: of this lane's columns
    float largest[STRIPS][2], sum[STRIPS][2];
};

// s becomes p; sums so far are brought to the new largest scores.
__device__ __forceinline__ void soften(float (&s)[STRIPS][KEYS / 8][4], Sums &sums, float rate) {
#pragma unroll
    for (int m = 0; m < STRIPS; m++) {
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = s[m][0][2 * half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            float before = sums.largest[m][half], now = fmaxf(before, rintf(quad_max(most) * rate));
            factor[half] = whole_power_of_2(before - now);
            sums.largest[m][half] = now;
            float sum = 0;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[m][n][i] = power_of_2(fmaf(s[m][n][i], rate, -now));
                    sum += s[m][n][i];
                }
            sums.sum[m][half] = fmaf(sums.sum[m][half], factor[half], sum);
        }
        if (__any_sync(ALL_LANES, factor[0] != 1.0f || factor[1] != 1.0f)) // rare after the first tiles
#pragma unroll
            for (int n = 0; n < Parts<D_V>::COLUMNS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums.out[m][n][i] *= factor[i / 2];
    }
}

__device__ __forceinline__ void store(const Args &args, Sums &sums, int row0, int head, int part, int lane) {
    const Operand &q = args.operands[Q];
#pragma unroll
    for (int m = 0; m < STRIPS; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row0 + 16 * m + 8 * half + lane / 4;
            float sum = quad_sum(sums.sum[m][half]), inverse = 1.0f / sum;
            if (row >= q.rows)
                continue;
            if (part == 0 && lane % 4 == 0)
                store_real<TYPE_LSE>(element_address<TYPE_LSE>(args.operands[LSE], row, head),
                                     (sums.largest[m][half] + log2f(sum)) * (float)LOG_2);
            char *to = element_address<TYPE_O>(args.operands[O], row, head * D_V + Parts<D_V>::column(part) + lane % 4 * 2);
#pragma unroll
            for (int n = 0; n < Parts<D_V>::COLUMNS / 8; n++, to += 8 * element_bytes(TYPE_O))
                if (Parts<D_V>::writes(part, n))
                    store_pair<TYPE_O>(to, sums.out[m][n][2 * half] * inverse, sums.out[m][n][2 * half + 1] * inverse);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char memory[];
    const Operand &q = args.operands[Q], &k = args.operands[K], &v = args.operands[V];
    int group = args.ints[0] / args.ints[1], tiles = (q.rows + ROWS - 1) / ROWS;
    int kv = blockIdx.x / (tiles * group), within = blockIdx.x % (tiles * group);
    int head = kv * group + within % group, row0 = (tiles - 1 - within / group) * ROWS;
    int lane = threadIdx.x % LANES, part = Parts<D_V>::part(threadIdx.x / LANES, WARPS);
    int own_row = (threadIdx.x / LANES - part * WARPS) * (16 * STRIPS);
    unsigned q_tile = shared_address(memory), k_tiles = q_tile + ROWS * Tile<D_QK>::PITCH, v_tiles = k_tiles + 2 * K_BYTES;
    Limits *limits = (Limits *)(memory + ROWS * Tile<D_QK>::PITCH + 2 * (K_BYTES + V_BYTES));

    Tile<D_QK>::fill<ROWS, THREADS>(q_tile, q, row0, head * D_QK);
    for (int r = threadIdx.x; r < ROWS; r += THREADS)
        limits[r] = row_limits(args, row0 + r);
    __syncthreads();
    Bounds bounds = no_bounds();
    for (int r = lane; r < ROWS; r += LANES)
        if (row0 + r < q.rows)
            add_to_bounds(bounds, limits[r]);
    join_bounds(bounds);
    KeyTiles<KEYS> list(bounds);
    Scores by = scores_of(args);

    Sums sums;
#pragma unroll
    for (int m = 0; m < STRIPS; m++) {
        sums.largest[m][0] = sums.largest[m][1] = NOTHING_SEEN;
        sums.sum[m][0] = sums.sum[m][1] = 0;
#pragma unroll
        for (int n = 0; n < Parts<D_V>::COLUMNS / 8; n++)
            sums.out[m][n][0] = sums.out[m][n][1] = sums.out[m][n][2] = sums.out[m][n][3] = 0;
    }
    if (list.count > 0) {
        Tile<D_QK>::fill<KEYS, THREADS>(k_tiles, k, list.key(0), kv * D_QK);
        Tile<D_V>::fill<KEYS, THREADS>(v_tiles, v, list.key(0), kv * D_V);
    }
    copy_commit();
    for (int i = 0; i < list.count; i++) {
        int key0 = list.key(i), stage = i % 2;
        copy_wait();
        __syncthreads(); // tile i has come, and all are done with tile i - 1
        if (i + 1 < list.count) {
            Tile<D_QK>::fill<KEYS, THREADS>(k_tiles + (stage ^ 1) * K_BYTES, k, list.key(i + 1), kv * D_QK);
            Tile<D_V>::fill<KEYS, THREADS>(v_tiles + (stage ^ 1) * V_BYTES, v, list.key(i + 1), kv * D_V);
        }
        copy_commit();
        float s[STRIPS][KEYS / 8][4];
        multiply_rows<D_QK, STRIPS, KEYS / 8>(s, q_tile, own_row, k_tiles + stage * K_BYTES, lane);
        prepare(s, by);
        if (!sees_all(bounds, key0, key0 + KEYS))
            mask(s, limits + own_row, key0, lane);
        soften(s, sums, by.rate);
        unsigned packed[STRIPS][KEYS / 16][4];
        pack_sums(packed, s);
        multiply_packed<D_V, STRIPS, KEYS / 16>(sums.out, packed, v_tiles + stage * V_BYTES, lane,
                                                      Parts<D_V>::column(part));
    }
    store(args, sums, row0 + own_row, head, part, lane);
}
