// expert_gemm_dw.cu: d[e] = d[e] + a^T b over the slots of expert e, in their order. A block per expert and
// tile of its d. Attributes: ints 0, 1: a, b has a row for every slot; 2: adds to what is there.


struct Sums {
    const Args &args;
    const Operand &left, &right, &pairs;
    int begin, slots, expert, rows, cols, depth; // depth: pairs of the expert

    __device__ Sums(const Args &all, int number)
        : args(all), left(all.operands[a_OPERAND]), right(all.operands[b_OPERAND]), pairs(all.operands[pairs_OPERAND]) {
        const Ranges ranges(all);
        slots = pairs.cols;
        rows = all.ints[0] ? left.cols / slots : left.cols;
        cols = all.ints[1] ? right.cols / slots : right.cols;
        expert = number;
        begin = ranges.begin[expert];
        depth = ranges.count[expert];
    }
    DEVICE REAL a(int m, int k) const {
        int pair = pair_at(pairs, begin + k);
        return LOAD_a(row_address(left, pair / slots, a_BYTES), (args.ints[0] ? pair % slots * rows : 0) + m);
    }
    DEVICE REAL b(int k, int n) const {
        int pair = pair_at(pairs, begin + k);
        return LOAD_b(row_address(right, pair / slots, b_BYTES), (args.ints[1] ? pair % slots * cols : 0) + n);
    }
    DEVICE void finish(int m, int n, REAL sum) const {
        u64 at = row_address(args.operands[d_OPERAND], expert, d_BYTES);
        if (args.ints[2])
            sum += LOAD_d(at, m * cols + n);
        STORE_d(at, m * cols + n, sum);
    }
};

KERNEL_OF(256, 2) {
    const Operand &a = args.operands[a_OPERAND], &b = args.operands[b_OPERAND];
    int slots = args.operands[pairs_OPERAND].cols;
    u32 down = (u32)((args.ints[0] ? a.cols / slots : a.cols) + TILE - 1) / TILE;
    u32 across = (u32)((args.ints[1] ? b.cols / slots : b.cols) + TILE - 1) / TILE;
    u32 tile = group_number() % (down * across);
    const Sums sums(args, (int)(group_number() / (down * across)));
    if (sums.depth == 0 && args.ints[2])
        return;
    multiply_tile(sums, (int)(tile / across) * TILE, (int)(tile % across) * TILE);
}
