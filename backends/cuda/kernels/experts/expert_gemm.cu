// expert_gemm.cu: d = a op(b[e]) + bias[e] in the slots of expert e, a tile of them per block: rows of a tile
// are pairs. TB: op transposes. Attributes: ints 0: a has a row for every slot.

static __shared__ u64 from_of[TILE], to_of[TILE]; // where a row of the tile begins in a, in d

struct Slots {
    u64 matrix, bias; // of the expert
    int first;        // row of the product that the tile begins with
    int rows, cols, depth;

    __device__ Slots(const Args &args, const Ranges &ranges, int tile) {
        const Operand &left = args.operands[a_OPERAND], &d = args.operands[d_OPERAND];
        int slots = args.operands[pairs_OPERAND].cols, expert = ranges.expert_of(tile), i = (int)LANE;
        cols = d.cols / slots;
        depth = args.ints[0] ? left.cols / slots : left.cols;
        rows = ranges.count[expert];
        first = (tile - ranges.tiles[expert]) * TILE;
        matrix = row_address(args.operands[b_OPERAND], expert, b_BYTES);
#ifdef bias_OPERAND
        bias = row_address(args.operands[bias_OPERAND], expert, bias_BYTES);
#endif
        if (i < TILE && first + i < rows) {
            int pair = pair_at(args.operands[pairs_OPERAND], ranges.begin[expert] + first + i);
            int row = pair / slots, slot = pair % slots;
            from_of[i] = row_address(left, row, a_BYTES) + (u64)(args.ints[0] ? slot * depth : 0) * a_BYTES;
            to_of[i] = row_address(d, row, d_BYTES) + (u64)(slot * cols) * d_BYTES;
        }
        __syncthreads();
    }
    DEVICE REAL a(int m, int k) const {
        return LOAD_a(from_of[m - first], k);
    }
    DEVICE REAL b(int k, int n) const {
        return LOAD_b(matrix, TB ? n * depth + k : k * cols + n);
    }
    DEVICE void finish(int m, int n, REAL sum) const {
#ifdef bias_OPERAND
        sum += LOAD_bias(bias, n);
#endif
        STORE_d(to_of[m - first], n, sum);
    }
};

KERNEL_OF(256, 2) {
    const Ranges ranges(args);
    u32 across = (u32)(args.operands[d_OPERAND].cols / args.operands[pairs_OPERAND].cols + TILE - 1) / TILE;
    int tile = (int)(group_number() / across);
    if (tile >= ranges.tiles[ranges.experts])
        return;
    const Slots slots(args, ranges, tile);
    multiply_tile(slots, slots.first, (int)(group_number() % across) * TILE);
}
