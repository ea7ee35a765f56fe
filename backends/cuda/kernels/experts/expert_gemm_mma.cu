// expert_gemm_mma.cu: d = a op(b[e]) + bias[e] in the slots of expert e by tensor cores. Blocks go on in
// strides of the grid over the tiles that there are, which the host does not know. TB: op transposes.
// Attributes: ints 0: a has a row for every slot.

enum { COPIES = TILE * DEEP / PIECE / THREADS }; // of a side and thread

struct Slots {
    int depth, cols, column;
    const char *from[COPIES]; // where this thread's rows of a begin; null: there is none
    const char *matrix;       // this thread's part of the expert's

    __device__ Slots(const Args &args, const Ranges &ranges, int expert, int first, int across) {
        const Operand &a = args.operands[a_OPERAND], &d = args.operands[d_OPERAND], &pairs = args.operands[pairs_OPERAND];
        const RowOf row_of(pairs.cols);
        int slots = pairs.cols, left = ranges.count[expert] - first, thread = (int)LANE;
        const int *own = at_element<const int>(pairs.address, ranges.begin[expert] + first);
        depth = args.ints[0] ? a.cols / slots : a.cols;
        cols = d.cols / slots;
        column = across * TILE;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int row = thread / (DEEP / PIECE) + i * (THREADS * PIECE / DEEP), pair = row < left ? own[row] : -1;
            from[i] = pair < 0 ? nullptr
                               : element_address<TYPE_Q>(a, row_of(pair),
                                                         args.ints[0] ? (pair - row_of(pair) * slots) * depth : 0) +
                                     thread % (DEEP / PIECE) * 16;
        }
        matrix = element_address<TYPE_Q>(args.operands[b_OPERAND], expert, 0);
        if (TB)
            matrix += (i64)(column + thread / (DEEP / PIECE)) * depth * 2 + thread % (DEEP / PIECE) * 16;
        else
            matrix += (i64)(thread / (TILE / PIECE)) * cols * 2 + column * 2 + thread % (TILE / PIECE) * 16;
    }
    DEVICE void load(unsigned stage, int term) const {
        int thread = (int)LANE, row = thread / (DEEP / PIECE), piece = thread % (DEEP / PIECE);
        bool there = term + piece * PIECE < depth;
#pragma unroll
        for (int i = 0; i < COPIES; i++)
            copy_async(stage + RowTile::at(row + i * (THREADS * PIECE / DEEP), piece), from[i] + term * 2,
                       there && from[i] != nullptr);
        stage += SIDE_BYTES;
        if (TB) {
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                int more = i * (THREADS * PIECE / DEEP);
                copy_async(stage + RowTile::at(row + more, piece), matrix + ((i64)more * depth + term) * 2,
                           there && column + row + more < cols);
            }
        } else {
            row = thread / (TILE / PIECE);
            piece = thread % (TILE / PIECE);
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                int more = i * (THREADS * PIECE / TILE);
                copy_async(stage + TermTile::at(row + more, piece), matrix + (i64)(term + more) * cols * 2,
                           term + row + more < depth && column + piece * PIECE < cols);
            }
        }
    }
};

// Two neighbours in each of the rows that this lane has of its warp's.
DEVICE void store(const Args &args, const Ranges &ranges, const float (&sums)[2][8][4], const Place &place, int expert, int first,
                  int column) {
    const Operand &d = args.operands[d_OPERAND], &pairs = args.operands[pairs_OPERAND];
    const RowOf row_of(pairs.cols);
    int cols = d.cols / pairs.cols, left = ranges.count[expert] - first;
    const int *own = at_element<const int>(pairs.address, ranges.begin[expert] + first);
#ifdef bias_OPERAND
    u64 bias = row_address(args.operands[bias_OPERAND], expert, bias_BYTES);
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = place.row + i * 8 + place.lane / 4;
        if (row >= left)
            continue;
        int pair = own[row];
        char *to = element_address<TYPE_D>(d, row_of(pair), (pair - row_of(pair) * pairs.cols) * cols);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            int at = column + place.column + 8 * n + place.lane % 4 * 2;
            if (at >= cols)
                continue;
            float x = sums[i / 2][n][i % 2 * 2], y = sums[i / 2][n][i % 2 * 2 + 1];
#ifdef bias_OPERAND
            x += LOAD_bias(bias, at);
            y += LOAD_bias(bias, at + 1);
#endif
            store_pair<TYPE_D>(to + at * d_BYTES, x, y);
        }
    }
}

KERNEL_OF(256, 2) {
    extern __shared__ __align__(1024) char memory[];
    const Ranges ranges(args);
    const Place place;
    u32 across = (u32)(args.operands[d_OPERAND].cols / args.operands[pairs_OPERAND].cols + TILE - 1) / TILE;
    u32 tiles = (u32)ranges.tiles[ranges.experts] * across;
    for (u32 tile = group_number(); tile < tiles; tile += gridDim.x) {
        int down = (int)(tile / across), expert = ranges.expert_of(down);
        int first = (down - ranges.tiles[expert]) * TILE;
        float sums[2][8][4];
        Slots slots(args, ranges, expert, first, (int)(tile % across));
        multiply_block<false, !TB>(sums, slots, shared_address(memory), place, first + place.row < ranges.count[expert]);
        store(args, ranges, sums, place, expert, first, slots.column);
    }
}
