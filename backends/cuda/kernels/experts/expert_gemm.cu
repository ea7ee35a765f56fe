// expert_gemm.cu: d = a op(b[e]) + bias[e] in the slots of expert e, a tile of them per block: rows of a tile are pairs. TB: op
// transposes. Attributes: ints 0: a has a row for every slot.

static __shared__ int pair_of[TILE];

struct Slots {
    const Args &args;
    const Operand &left, &d;
    u64 matrix;    // of the expert
    int slots, expert;
    int first;     // row of the product that is pair_of[0]
    int rows, cols, depth;

    __device__ Slots(const Args &all, const Ranges &ranges, int tile)
        : args(all), left(all.operands[a_OPERAND]), d(all.operands[d_OPERAND]) {
        slots = all.operands[pairs_OPERAND].cols;
        cols = d.cols / slots;
        depth = all.ints[0] ? left.cols / slots : left.cols;
        expert = ranges.expert_of(tile);
        rows = ranges.count[expert];
        first = (tile - ranges.tiles[expert]) * TILE;
        matrix = row_address(all.operands[b_OPERAND], expert, b_BYTES);
    }
    DEVICE REAL a(int m, int k) const {
        int pair = pair_of[m - first];
        return LOAD_a(row_address(left, pair / slots, a_BYTES), (args.ints[0] ? pair % slots * depth : 0) + k);
    }
    DEVICE REAL b(int k, int n) const {
        return LOAD_b(matrix, TB ? n * depth + k : k * cols + n);
    }
    DEVICE void finish(int m, int n, REAL sum) const {
        int pair = pair_of[m - first];
#ifdef bias_OPERAND
        sum += LOAD_bias(row_address(args.operands[bias_OPERAND], expert, bias_BYTES), n);
#endif
        STORE_d(row_address(d, pair / slots, d_BYTES), pair % slots * cols + n, sum);
    }
};

KERNEL_OF(256, 2) {
    const Ranges ranges(args);
    u32 across = (u32)(args.operands[d_OPERAND].cols / args.operands[pairs_OPERAND].cols + TILE - 1) / TILE;
    int tile = (int)(group_number() / across);
    if (tile >= ranges.tiles[ranges.experts])
        return;
    const Slots slots(args, ranges, tile);
    int i = (int)LANE;
    if (i < TILE && slots.first + i < slots.rows)
        pair_of[i] = pair_at(args.operands[pairs_OPERAND], ranges.begin[slots.expert] + slots.first + i);
    __syncthreads();
    multiply_tile(slots, slots.first, (int)(group_number() % across) * TILE);
}
