// mma_dq.cu: attention backward of 16 bits by mma.sync, dq. A block has ROWS queries of one head and takes
// the keys they see in tiles of KEYS, as mma_fwd.cu does: s = q k^T, dp = do v^T, dq += ds k. ds is
// rounded to HALF.
//
// Defined: WARPS, KEYS. Grid: kv_heads * ceil(rows / ROWS) * group blocks of 32 WARPS PARTS, as mma_fwd.cu.
// Dynamic shared memory: (ROWS + 2 KEYS) (PITCH qk + PITCH v).

constexpr int ROWS = 16 * WARPS, PARTS = Parts<D_QK>::COUNT, THREADS = LANES * WARPS * PARTS;
constexpr int K_BYTES = KEYS * Tile<D_QK>::PITCH, V_BYTES = KEYS * Tile<D_V>::PITCH;

template <bool CAPPED>
__device__ __forceinline__ void differentiate_rows(float (&s)[1][KEYS / 8][4], float (&dp)[1][KEYS / 8][4], const float (&lse)[2],
                                                   const float (&delta)[2], const Scores &by) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            differentiate<CAPPED>(s[0][n][i], dp[0][n][i], lse[i / 2], delta[i / 2], by);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char memory[];
    const Operand &q = args.operands[Q], &k = args.operands[K], &v = args.operands[V];
    Scratch scratch = scratch_of(args);
    int group = args.ints[0] / args.ints[1], tiles = (q.rows + ROWS - 1) / ROWS;
    int kv = blockIdx.x / (tiles * group), within = blockIdx.x % (tiles * group);
    int head = kv * group + within % group, row0 = (tiles - 1 - within / group) * ROWS;
    int lane = threadIdx.x % LANES, part = Parts<D_QK>::part(threadIdx.x / LANES, WARPS);
    int own_row = (threadIdx.x / LANES - part * WARPS) * 16;
    unsigned q_tile = shared_address(memory), do_tile = q_tile + ROWS * Tile<D_QK>::PITCH;
    unsigned k_tiles = do_tile + ROWS * Tile<D_V>::PITCH, v_tiles = k_tiles + 2 * K_BYTES;

    Tile<D_QK>::fill<ROWS, THREADS>(q_tile, q, row0, head * D_QK);
    Tile<D_V>::fill<ROWS, THREADS>(do_tile, args.operands[DO], row0, head * D_V);
    Bounds bounds = no_bounds();
    if (lane < ROWS / QUERIES)
        bounds = scratch.bounds[row0 / QUERIES + lane];
    join_bounds(bounds);
    KeyTiles<KEYS> list(bounds);
    Scores by = scores_of(args);
    float lse[2], delta[2], sums[1][Parts<D_QK>::COLUMNS / 8][4];
    const Limits *limits = scratch.limits + row0 + own_row;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        long long at = (long long)head * scratch.padded + row0 + own_row + 8 * half + lane / 4;
        lse[half] = scratch.lse[at];
        delta[half] = scratch.delta[at];
    }
#pragma unroll
    for (int n = 0; n < Parts<D_QK>::COLUMNS / 8; n++)
        sums[0][n][0] = sums[0][n][1] = sums[0][n][2] = sums[0][n][3] = 0;
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
        float s[1][KEYS / 8][4], dp[1][KEYS / 8][4];
        multiply_rows<D_QK>(s, q_tile, own_row, k_tiles + stage * K_BYTES, lane);
        multiply_rows<D_V>(dp, do_tile, own_row, v_tiles + stage * V_BYTES, lane);
        prepare(s, by);
        if (!sees_all(bounds, key0, key0 + KEYS))
            mask(s, limits, key0, lane);
        if (by.capped)
            differentiate_rows<true>(s, dp, lse, delta, by);
        else
            differentiate_rows<false>(s, dp, lse, delta, by);
        unsigned packed[1][KEYS / 16][4];
        pack_sums(packed, dp);
        multiply_packed<D_QK>(sums, packed, k_tiles + stage * K_BYTES, lane, Parts<D_QK>::column(part));
    }
    float scale = args.floats[0];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + own_row + 8 * half + lane / 4;
        if (row >= q.rows)
            continue;
        char *to = element_address<TYPE_DQ>(args.operands[DQ], row, head * D_QK + Parts<D_QK>::column(part) + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < Parts<D_QK>::COLUMNS / 8; n++, to += 8 * element_bytes(TYPE_DQ))
            if (Parts<D_QK>::writes(part, n))
                store_pair<TYPE_DQ>(to, sums[0][n][2 * half] * scale, sums[0][n][2 * half + 1] * scale);
    }
}
