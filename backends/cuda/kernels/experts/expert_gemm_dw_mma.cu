// expert_gemm_dw_mma.cu: d[e] = d[e] + a^T b over the slots of expert e by tensor cores. A block per expert
// and tile of its d. Attributes: ints 0, 1: a, b has a row for every slot; 2: adds to what is there.

enum { COPIES = TILE * DEEP / PIECE / THREADS }; // of a side and thread

struct Sums {
    const Operand &a, &b;
    RowOf row_of;
    int depth, rows, cols;
    const char *a_piece, *b_piece; // this thread's of row 0, slot 0; null: there is none
    const int *own;                // pairs of the expert from this thread's first on
    int pair[COPIES];              // those of the terms to come

    __device__ Sums(const Args &args, const Ranges &ranges, int expert, int down, int across)
        : a(args.operands[a_OPERAND]), b(args.operands[b_OPERAND]), row_of(args.operands[pairs_OPERAND].cols) {
        const Operand &pairs = args.operands[pairs_OPERAND];
        int slots = pairs.cols, thread = (int)LANE, piece = thread % (TILE / PIECE) * PIECE;
        rows = args.ints[0] ? a.cols / slots : a.cols;
        cols = args.ints[1] ? b.cols / slots : b.cols;
        depth = ranges.count[expert];
        a_piece = down * TILE + piece < rows ? element_address<TYPE_Q>(a, 0, down * TILE + piece) : nullptr;
        b_piece = across * TILE + piece < cols ? element_address<TYPE_Q>(b, 0, across * TILE + piece) : nullptr;
        own = at_element<const int>(pairs.address, ranges.begin[expert] + thread / (TILE / PIECE));
        look(0);
    }
    DEVICE void look(int term) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int at = term + i * (THREADS * PIECE / TILE);
            pair[i] = at + (int)LANE / (TILE / PIECE) < depth ? own[at] : -1;
        }
    }
    DEVICE void load(unsigned stage, int term) {
        unsigned to = stage + TermTile::at((int)LANE / (TILE / PIECE), (int)LANE % (TILE / PIECE));
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int from = row_of(pair[i]), slot = pair[i] - from * row_of.slots;
            // 16 rows down the same pieces are permuted alike
            unsigned at = to + i * (THREADS * PIECE / TILE) * TermTile::PITCH;
            copy_async(at, a_piece + ((i64)from * a.stride + (a.cols > rows ? slot * rows : 0)) * 2,
                       pair[i] >= 0 && a_piece != nullptr);
            copy_async(at + SIDE_BYTES, b_piece + ((i64)from * b.stride + (b.cols > cols ? slot * cols : 0)) * 2,
                       pair[i] >= 0 && b_piece != nullptr);
        }
        look(term + DEEP);
    }
};

// The pairs of a row that this lane has, 8 columns apart; those of `count` are there.
template <bool WHOLE, bool ADDS> DEVICE void put(float2 *to, const float (&sums)[8][4], int which, int count) {
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (!WHOLE && n >= count)
            continue;
        float2 sum = make_float2(sums[n][which], sums[n][which + 1]);
        if (ADDS) {
            float2 more = to[4 * n];
            sum = make_float2(more.x + sum.x, more.y + sum.y);
        }
        to[4 * n] = sum;
    }
}

KERNEL(256) {
    extern __shared__ __align__(1024) char memory[];
    const Ranges ranges(args);
    const Place place;
    const Operand &a = args.operands[a_OPERAND], &b = args.operands[b_OPERAND];
    int slots = args.operands[pairs_OPERAND].cols;
    u32 down = (u32)((args.ints[0] ? a.cols / slots : a.cols) + TILE - 1) / TILE;
    u32 across = (u32)((args.ints[1] ? b.cols / slots : b.cols) + TILE - 1) / TILE;
    u32 tile = group_number() % (down * across);
    int expert = (int)(group_number() / (down * across));
    if (ranges.count[expert] == 0 && args.ints[2])
        return;
    float sums[2][8][4];
    Sums product(args, ranges, expert, (int)(tile / across), (int)(tile % across));
    int row0 = (int)(tile / across) * TILE + place.row, column0 = (int)(tile % across) * TILE + place.column;
    multiply_block<true, true>(sums, product, shared_address(memory), place, row0 < product.rows);
    char *d = element_address<F32>(args.operands[d_OPERAND], expert, 0);
    bool whole = column0 + 64 <= product.cols, adds = args.ints[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int m = row0 + i * 8 + place.lane / 4, at = column0 + place.lane % 4 * 2;
        float2 *to = (float2 *)(d + ((i64)m * product.cols + at) * 4);
        if (m >= product.rows)
            continue;
        if (whole && adds)
            put<true, true>(to, sums[i / 2], i % 2 * 2, 8);
        else if (whole)
            put<true, false>(to, sums[i / 2], i % 2 * 2, 8);
        else
            adds ? put<false, true>(to, sums[i / 2], i % 2 * 2, (product.cols - at + 7) / 8)
                 : put<false, false>(to, sums[i / 2], i % 2 * 2, (product.cols - at + 7) / 8);
    }
}
