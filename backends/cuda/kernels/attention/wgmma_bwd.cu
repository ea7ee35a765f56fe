// wgmma_bwd.cu: attention backward of 16 bits on sm_90a, five products. A block has 128 keys of one kv head
// and takes the queries that see them in tiles of 64, head after head of the group: one warp brings tiles by
// TMA, two warpgroups have 64 keys each.
//
//   s^T = k q^T;  dp^T = v do^T;  dv += p^T do;  dk += ds^T q    p and ds from registers
//   dq = ds k                                                    ds through shared memory
//
// dq of a tile is added in fp32 to the scratch memory, where the blocks of a kv head take their turns in the
// order of their keys, last to first: a counter of each (head, tile) says whose turn it is. So the same bits
// come out every run. Blocks get their keys by ticket, in the same order, so a block waits for none that has
// not begun. wgmma_finish.cu makes dq of the sums.
//
// Each warpgroup computes 64 columns of dq (the second what is left of them) over all 128 keys.
//
// Grid: kv_heads * ceil(keys / 128) blocks of 384. Dynamic shared memory: Shared, and the ticket. Maps: q, k,
// v, do. Cleared: counters and ticket, wgmma_sums.cuh.

constexpr int KEYS = 128, GROUP = 128, COLUMNS = D_QK < 64 ? D_QK : 64;
constexpr int K_BYTES = Slabs<D_QK, KEYS>::BYTES, Q_BYTES = Slabs<D_QK, QUERIES>::BYTES, DS_BYTES = KEYS * 128;
constexpr int DQ_BYTES = QUERIES * D_QK * 4, ROW_BYTES = QUERIES * 4;

enum { KV_FULL, Q_FULL, DO_FULL = Q_FULL + 2, FREE = DO_FULL + 2, DQ_FULL = FREE + 2, DQ_FREE, BARRIERS };

struct Shared {
    unsigned k, v, q, d_o, ds, dq, lse, delta, tiles, barriers;
    __device__ __forceinline__ explicit Shared(unsigned base) {
        k = base;
        v = k + K_BYTES;
        q = v + K_BYTES;
        d_o = q + 2 * Q_BYTES;
        ds = d_o + 2 * Q_BYTES;
        dq = ds + 2 * DS_BYTES;
        lse = dq + DQ_BYTES;
        delta = lse + 2 * ROW_BYTES;
        tiles = delta + 2 * ROW_BYTES;
        barriers = tiles + 2 * 8;
    }
    __device__ __forceinline__ unsigned barrier(int number) const { return barriers + 8 * number; }
};

// What comes with a tile: its first row; END behind the last.
struct Message {
    int row0, all; // all: every query sees every key
};
constexpr int END = -1;

// The tiles that a block takes: (head, tile) in an order that both warps that need it find for themselves.
struct Walk {
    const Bounds *bounds;
    int tiles, key0, first, tile, head, end_head, lane;
    __device__ __forceinline__ Walk(const Args &args, const Scratch &scratch, int kv, int key, int own_lane) {
        int group = args.ints[0] / args.ints[1];
        bounds = scratch.bounds;
        tiles = (args.operands[Q].rows + QUERIES - 1) / QUERIES;
        key0 = key;
        lane = own_lane;
        tile = first = next_tile(bounds, 0, tiles, key0, key0 + KEYS, lane);
        head = kv * group;
        end_head = first == tiles ? head : head + group;
    }
    __device__ __forceinline__ bool ended() const { return head == end_head; }
    __device__ __forceinline__ void step() {
        tile = next_tile(bounds, tile + 1, tiles, key0, key0 + KEYS, lane);
        if (tile == tiles) {
            tile = first;
            head++;
        }
    }
};

// ---- the warp that brings tiles --------------------------------------------------------------------------

__device__ __forceinline__ void produce(const Args &args, const Shared &at, Message *messages, const Scratch &scratch, Walk walk, int kv,
                                        const TensorMap &q_map, const TensorMap &k_map, const TensorMap &v_map,
                                        const TensorMap &do_map) {
    int i = 0;
    if (walk.lane == 0 && !walk.ended()) {
        barrier_expect(at.barrier(KV_FULL), 2 * K_BYTES);
        Slabs<D_QK, KEYS>::fetch(at.k, k_map, kv, walk.key0, at.barrier(KV_FULL));
        Slabs<D_QK, KEYS>::fetch(at.v, v_map, kv, walk.key0, at.barrier(KV_FULL));
    }
    for (; !walk.ended(); i++, walk.step())
        if (walk.lane == 0) {
            int stage = i % 2, row0 = walk.tile * QUERIES;
            long long row = (long long)walk.head * scratch.padded + row0;
            barrier_wait(at.barrier(FREE + stage), i / 2 % 2 ^ 1);
            messages[stage] = {row0, sees_all(walk.bounds[walk.tile], walk.key0, walk.key0 + KEYS)};
            barrier_expect(at.barrier(Q_FULL + stage), Q_BYTES + ROW_BYTES);
            Slabs<D_QK, QUERIES>::fetch(at.q + stage * Q_BYTES, q_map, walk.head, row0, at.barrier(Q_FULL + stage));
            fetch_bytes(at.lse + stage * ROW_BYTES, scratch.lse + row, ROW_BYTES, at.barrier(Q_FULL + stage));
            barrier_expect(at.barrier(DO_FULL + stage), Q_BYTES + ROW_BYTES);
            Slabs<D_QK, QUERIES>::fetch(at.d_o + stage * Q_BYTES, do_map, walk.head, row0, at.barrier(DO_FULL + stage));
            fetch_bytes(at.delta + stage * ROW_BYTES, scratch.delta + row, ROW_BYTES, at.barrier(DO_FULL + stage));
        }
    if (walk.lane == 0) {
        barrier_wait(at.barrier(FREE + i % 2), i / 2 % 2 ^ 1);
        messages[i % 2] = {END, 0};
        barrier_arrive(at.barrier(Q_FULL + i % 2));
    }
}

// ---- the warp that adds dq -------------------------------------------------------------------------------

// Tries until a turn that does not come ends the kernel: tens of seconds at what a load from L2 takes. A turn
// takes milliseconds.
#ifdef BOUNDED_WAITS
#define MOST_TURN_TRIES MOST_TRIES
#else
#define MOST_TURN_TRIES 67108864
#endif

__device__ __forceinline__ void wait_for_turn(const unsigned *counter, unsigned turn) {
    unsigned now;
    int tries = 0;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(__cvta_generic_to_global(counter)) : "memory");
        if (++tries == MOST_TURN_TRIES)
            asm volatile("trap;");
    } while (now != turn);
}

__device__ __forceinline__ void pass_turn(unsigned *counter, unsigned next) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(counter)), "r"(next) : "memory");
}

__device__ __forceinline__ void add_dq(const Shared &at, const Sums &sums, Walk walk) {
    for (int i = 0; !walk.ended(); i++, walk.step())
        if (walk.lane == 0) {
            long long number = sums.number(walk.head, walk.tile);
            KeyTiles<KEYS> list(walk.bounds[walk.tile]);
            unsigned long long to = __cvta_generic_to_global(sums.of(walk.head, walk.tile));
            unsigned turn = list.count - 1 - list.index(walk.key0 / KEYS);
            barrier_wait(at.barrier(DQ_FULL), i % 2);
            wait_for_turn(sums.counters + number, turn);
            asm volatile("fence.proxy.async;" ::: "memory"); // the turn was taken by another proxy than adds
            if (turn == 0)
                asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(at.dq), "r"(DQ_BYTES)
                             : "memory");
            else
                asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(at.dq),
                             "r"(DQ_BYTES)
                             : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
            barrier_arrive(at.barrier(DQ_FREE));
            // that it is complete is known to both proxies
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
            pass_turn(sums.counters + number, turn + 1);
        }
}

// ---- the warpgroups that multiply ------------------------------------------------------------------------

// s becomes p times softcap's slope; packed: p.
template <bool CAPPED>
__device__ __forceinline__ void find_p(float (&s)[1][QUERIES / 8][4], unsigned (&packed)[1][QUERIES / 16][4], const float *lse,
                                       const Scores &by, int lane) {
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        float2 row_lse = *(const float2 *)(lse + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float &x = s[0][n][2 * half], &y = s[0][n][2 * half + 1];
            float p = power_of_2(fmaf(x, by.rate, -row_lse.x)), r = power_of_2(fmaf(y, by.rate, -row_lse.y));
            packed[0][n / 2][n % 2 * 2 + half] = pack(p, r);
            x = CAPPED ? p * slope_of(x, by) : p;
            y = CAPPED ? r * slope_of(y, by) : r;
        }
    }
}

// packed: ds = s (dp - delta), also to shared memory as [keys][queries].
__device__ __forceinline__ void find_ds(const float (&s)[1][QUERIES / 8][4], const float (&dp)[1][QUERIES / 8][4],
                                        unsigned (&packed)[1][QUERIES / 16][4], const float *delta, char *tile, int key, int lane) {
#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        float2 row_delta = *(const float2 *)(delta + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = key + 8 * half + lane / 4;
            unsigned both = pack(s[0][n][2 * half] * (dp[0][n][2 * half] - row_delta.x),
                                 s[0][n][2 * half + 1] * (dp[0][n][2 * half + 1] - row_delta.y));
            packed[0][n / 2][n % 2 * 2 + half] = both;
            *(unsigned *)(tile + row * 128 + (n ^ row % 8) * 16 + lane % 4 * 4) = both;
        }
    }
}

// MINE: columns of dq that this warpgroup computes, from column `64 group` on.
template <int MINE>
__device__ __forceinline__ void consume(const Args &args, const Shared &at, char *memory, const Message *messages, int key0, int kv,
                                        int group) {
    int lane = threadIdx.x % LANES, thread = threadIdx.x % GROUP, own_row = 64 * group;
    int warp_row = own_row + thread / LANES * 16;
    float dk[1][D_QK / 8][4], dv[1][D_V / 8][4];
#pragma unroll
    for (int n = 0; n < D_QK / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            dk[0][n][i] = dv[0][n][i] = 0;
    Scores by = scores_of(args);
    int i = 0;
    for (;; i++) {
        int stage = i % 2, parity = i / 2 % 2;
        unsigned q = at.q + stage * Q_BYTES, d_o = at.d_o + stage * Q_BYTES, ds_tile = at.ds + stage * DS_BYTES;
        float s[1][QUERIES / 8][4], dp[1][QUERIES / 8][4];
        unsigned p[1][QUERIES / 16][4], ds[1][QUERIES / 16][4];
        barrier_wait(at.barrier(Q_FULL + stage), parity);
        Message message = messages[stage];
        if (message.row0 == END)
            break;
        if (i == 0)
            barrier_wait(at.barrier(KV_FULL), 0);
        barrier_wait(at.barrier(DO_FULL + stage), parity);
        products_begin();
#pragma unroll
        for (int step = 0; step < D_QK / 16; step++)
            product<QUERIES / 8>(s[0], columns_at<KEYS>(at.k, own_row, step), columns_at<QUERIES>(q, 0, step), step > 0);
        products_commit();
#pragma unroll
        for (int step = 0; step < D_V / 16; step++)
            product<QUERIES / 8>(dp[0], columns_at<KEYS>(at.v, own_row, step), columns_at<QUERIES>(d_o, 0, step), step > 0);
        products_commit();
        products_wait<1>();
        prepare(s, by);
        if (!message.all)
            mask_columns(s, scratch_of(args).limits + message.row0, key0 + warp_row, lane);
        const float *lse = (const float *)(memory + (at.lse - at.k) + stage * ROW_BYTES);
        if (by.capped)
            find_p<true>(s, p, lse, by, lane);
        else
            find_p<false>(s, p, lse, by, lane);
        products_wait<0>();
        find_ds(s, dp, ds, (const float *)(memory + (at.delta - at.k) + stage * ROW_BYTES), memory + (ds_tile - at.k), warp_row, lane);
        // ds was written by another proxy than multiplies
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        products_begin();
#pragma unroll
        for (int step = 0; step < QUERIES / 16; step++)
            product_packed<D_V / 8>(dv[0], p[0][step], rows_at<QUERIES>(d_o, step));
#pragma unroll
        for (int step = 0; step < QUERIES / 16; step++)
            product_packed<D_QK / 8>(dk[0], ds[0][step], rows_at<QUERIES>(q, step));
        products_commit();
        // ds of both warpgroups is there; and neither still reads that of two tiles before
        turn_wait(1, 2 * GROUP);
        float dq[MINE / 8 > 0 ? MINE / 8 : 1][4];
        if constexpr (MINE > 0) {
#pragma unroll
            for (int step = 0; step < KEYS / 16; step++)
                product_rows<MINE / 8>(dq, rows_at<KEYS>(ds_tile, step), rows_at<KEYS>(at.k + group * (KEYS * 128), step), step > 0);
            products_commit();
        }
        products_wait<0>();
        barrier_arrive_warp(at.barrier(FREE + stage), lane);
        if constexpr (MINE > 0) {
            barrier_wait(at.barrier(DQ_FREE), i % 2 ^ 1);
            float *to = (float *)(memory + (at.dq - at.k)) + group * (QUERIES * 64) + thread;
#pragma unroll
            for (int n = 0; n < MINE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    to[(4 * n + e) * GROUP] = dq[n][e];
            // dq was written by another proxy than adds
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            barrier_arrive_warp(at.barrier(DQ_FULL), lane);
        }
    }
    if (i == 0) // no query sees these keys
        return;
    add<D_QK>(args.operands[DK], dk, args.floats[0], key0 + warp_row, kv * D_QK, 0, lane);
    add<D_V>(args.operands[DV], dv, 1.0f, key0 + warp_row, kv * D_V, 0, lane);
}

extern "C" __global__ void __launch_bounds__(3 * GROUP, 1)
    kernel(const __grid_constant__ Args args, const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
           const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map) {
    extern __shared__ __align__(1024) char memory[];
    Scratch scratch = scratch_of(args);
    Sums sums = sums_of(args, scratch);
    Shared at(shared_address(memory));
    int *ticket = (int *)(memory + (at.barrier(BARRIERS) - at.k));
    int blocks = (args.operands[K].rows + KEYS - 1) / KEYS, warpgroup = threadIdx.x / GROUP, warp = threadIdx.x / LANES;
    if (threadIdx.x == 0) {
        *ticket = (int)atomicAdd(sums.ticket, 1u);
        // a fetch; a lane of each warp that is done with a tile, or has written dq
        for (int i = 0; i < BARRIERS; i++)
            barrier_init(at.barrier(i), i < FREE || i == DQ_FREE ? 1 : i == DQ_FULL && D_QK <= 64 ? 4 : 8);
        barrier_init_done();
    }
    __syncthreads();
    int kv = *ticket / blocks, key0 = (blocks - 1 - *ticket % blocks) * KEYS;
    Message *messages = (Message *)(memory + (at.tiles - at.k));
    if (warpgroup == 0) {
        leave_registers<24>();
        Walk walk(args, scratch, kv, key0, threadIdx.x % LANES);
        if (warp == 0)
            produce(args, at, messages, scratch, walk, kv, q_map, k_map, v_map, do_map);
        else if (warp == 1)
            add_dq(at, sums, walk);
    } else {
        take_registers<240>();
        if (D_QK == 128 || warpgroup == 1)
            consume<COLUMNS>(args, at, memory, messages, key0, kv, warpgroup - 1);
        else
            consume<D_QK - COLUMNS>(args, at, memory, messages, key0, kv, 1);
    }
}
