// mma_dkv.cu: attention backward of 16 bits by mma.sync, dk and dv. A block has KEYS keys of one kv head and
// takes the queries that see them in tiles of QUERIES, head after head of the group: s^T = k q^T, dp^T = v
// do^T, dv += p^T do, dk += ds^T q. So p and ds feed dv and dk from registers. Both are rounded to HALF. One
// addition to dk and dv in memory at the end.
//
// Defined: WARPS, QUERIES, WANT_DK, WANT_DV (heads of which both sums do not fit the registers take two
// launches). Grid: kv_heads * ceil(keys / KEYS) blocks of 32 WARPS PARTS; early keys, which most queries see,
// first. Dynamic shared memory: (KEYS + 2 QUERIES) (PITCH qk + PITCH v) + 16 QUERIES.

// of one whose sums fit not there is one launch, so that parts are of it alone
using Own = Parts<WANT_DK ? D_QK : D_V>;
constexpr int KEYS = 16 * WARPS, THREADS = LANES * WARPS * Own::COUNT;
constexpr int Q_BYTES = QUERIES * Tile<D_QK>::PITCH, DO_BYTES = QUERIES * Tile<D_V>::PITCH;
constexpr int ROW_BYTES = 2 * QUERIES * 4; // lse and delta of a tile
constexpr int STAGE_BYTES = Q_BYTES + DO_BYTES + ROW_BYTES;

__device__ __forceinline__ void fill_stage(unsigned stage, const Args &args, const Scratch &scratch, int tile, int head) {
    int row0 = tile * QUERIES, thread = threadIdx.x;
    Tile<D_QK>::fill<QUERIES, THREADS>(stage, args.operands[Q], row0, head * D_QK);
    Tile<D_V>::fill<QUERIES, THREADS>(stage + Q_BYTES, args.operands[DO], row0, head * D_V);
    if (thread < QUERIES / 2) {
        const float *from = thread < QUERIES / 4 ? scratch.lse : scratch.delta;
        copy_async(stage + Q_BYTES + DO_BYTES + 16 * thread,
                   from + (long long)head * scratch.padded + row0 + thread % (QUERIES / 4) * 4, true);
    }
}

template <bool CAPPED>
__device__ __forceinline__ void differentiate_columns(float (&s)[1][QUERIES / 8][4], float (&dp)[1][QUERIES / 8][4],
                                                      const float *lse, const float *delta, const Scores &by, int lane) {
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        float2 row_lse = *(const float2 *)(lse + 8 * n + lane % 4 * 2);
        float2 row_delta = *(const float2 *)(delta + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            differentiate<CAPPED>(s[0][n][2 * half], dp[0][n][2 * half], row_lse.x, row_delta.x, by);
            differentiate<CAPPED>(s[0][n][2 * half + 1], dp[0][n][2 * half + 1], row_lse.y, row_delta.y, by);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char memory[];
    const Operand &q = args.operands[Q], &k = args.operands[K], &v = args.operands[V];
    Scratch scratch = scratch_of(args);
    int group = args.ints[0] / args.ints[1], blocks = (k.rows + KEYS - 1) / KEYS, tiles = (q.rows + QUERIES - 1) / QUERIES;
    int kv = blockIdx.x / blocks, key0 = blockIdx.x % blocks * KEYS, key1 = key0 + KEYS;
    int lane = threadIdx.x % LANES, part = Own::part(threadIdx.x / LANES, WARPS);
    int own_row = (threadIdx.x / LANES - part * WARPS) * 16;
    unsigned k_tile = shared_address(memory), v_tile = k_tile + KEYS * Tile<D_QK>::PITCH;
    unsigned stages = v_tile + KEYS * Tile<D_V>::PITCH;
    const char *rows = memory + KEYS * (Tile<D_QK>::PITCH + Tile<D_V>::PITCH) + Q_BYTES + DO_BYTES;

    int first = next_tile(scratch.bounds, 0, tiles, key0, key1, lane), tile = first;
    if (first == tiles)
        return;
    Tile<D_QK>::fill<KEYS, THREADS>(k_tile, k, key0, kv * D_QK);
    Tile<D_V>::fill<KEYS, THREADS>(v_tile, v, key0, kv * D_V);
    Scores by = scores_of(args);
    float dk[1][Parts<D_QK>::COLUMNS / 8][4], dv[1][Parts<D_V>::COLUMNS / 8][4];
#pragma unroll
    for (int n = 0; n < Parts<D_QK>::COLUMNS / 8; n++)
        dk[0][n][0] = dk[0][n][1] = dk[0][n][2] = dk[0][n][3] = 0;
#pragma unroll
    for (int n = 0; n < Parts<D_V>::COLUMNS / 8; n++)
        dv[0][n][0] = dv[0][n][1] = dv[0][n][2] = dv[0][n][3] = 0;
    int head = kv * group, stage = 0;
    fill_stage(stages, args, scratch, tile, head);
    copy_commit();
    while (head < (kv + 1) * group) {
        int row0 = tile * QUERIES;
        unsigned q_tile = stages + stage * STAGE_BYTES, do_tile = q_tile + Q_BYTES;
        const float *lse = (const float *)(rows + stage * STAGE_BYTES), *delta = lse + QUERIES;
        bool all = sees_all(scratch.bounds[tile], key0, key1);
        tile = next_tile(scratch.bounds, tile + 1, tiles, key0, key1, lane);
        if (tile == tiles) {
            tile = first;
            head++;
        }
        copy_wait();
        __syncthreads(); // this tile has come, and all are done with the one before
        stage ^= 1;
        if (head < (kv + 1) * group)
            fill_stage(stages + stage * STAGE_BYTES, args, scratch, tile, head);
        copy_commit();
        float s[1][QUERIES / 8][4], dp[1][QUERIES / 8][4] = {};
        multiply_rows<D_QK>(s, k_tile, own_row, q_tile, lane);
        if (WANT_DK)
            multiply_rows<D_V>(dp, v_tile, own_row, do_tile, lane);
        prepare(s, by);
        if (!all)
            mask_columns(s, scratch.limits + row0, key0 + own_row, lane);
        if (by.capped)
            differentiate_columns<true>(s, dp, lse, delta, by, lane);
        else
            differentiate_columns<false>(s, dp, lse, delta, by, lane);
        unsigned packed[1][QUERIES / 16][4];
        if (WANT_DV) {
            pack_sums(packed, s);
            multiply_packed<D_V>(dv, packed, do_tile, lane, Parts<D_V>::column(part));
        }
        if (WANT_DK) {
            pack_sums(packed, dp);
            multiply_packed<D_QK>(dk, packed, q_tile, lane, Parts<D_QK>::column(part));
        }
    }
    if (WANT_DK)
        add<D_QK>(args.operands[DK], dk, args.floats[0], key0 + own_row, kv * D_QK, part, lane);
    if (WANT_DV)
        add<D_V>(args.operands[DV], dv, 1.0f, key0 + own_row, kv * D_V, part, lane);
}
