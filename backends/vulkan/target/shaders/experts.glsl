// experts.glsl: what the products of experts share: which slots an expert has. Step 0 (expert_ranges.comp)
// leaves that in scratch memory: where the pairs of each begin, then how many each has. An invocation of step
// 1 computes PATCH x PATCH (4 x 4) elements, straight from memory; what lies beyond the last row or column
// repeats it.

int experts() {
    return args.operands[bounds_OPERAND].cols - 1;
}
int begin_of(int expert) {
    return M_i32(args.scratch).v[expert];
}
int count_of(int expert) {
    return M_i32(args.scratch).v[experts() + expert];
}
int pair_at(int i) {
    Operand pairs = args.operands[pairs_OPERAND];
    if (pairs.stride == pairs.cols)
        return M_i32(pairs.address).v[i];
    return M_i32(row_address(pairs, i / pairs.cols, pairs_BYTES)).v[i % pairs.cols];
}
// Where a slot's part of a row of an operand begins.
uint64_t slot_address(Operand o, int pair, bool by_slot, int bytes) {
    int slots = args.operands[pairs_OPERAND].cols, slot = by_slot ? pair % slots : 0;
    return row_address(o, pair / slots, bytes) + uint64_t(slot * (o.cols / slots)) * uint64_t(bytes);
}

#if STEP > 0
#ifdef SBP_REAL_F64
#define REAL4 dvec4
#else
#define REAL4 vec4
#endif

// Sums as in gemm: over chains of CHAIN terms, then over the chains.
const int CHAIN = 256;
REAL4 sums[PATCH], totals[PATCH];

void clear_sums() {
    [[unroll]] for (int i = 0; i < PATCH; i++)
        sums[i] = totals[i] = REAL4(0.0);
}
void add_products(REAL4 a, REAL4 b) {
    [[unroll]] for (int i = 0; i < PATCH; i++)
        sums[i] = fma(REAL4(a[i]), b, sums[i]);
}
void end_chain() {
    [[unroll]] for (int i = 0; i < PATCH; i++) {
        totals[i] += sums[i];
        sums[i] = REAL4(0.0);
    }
}
REAL total_of(int row, int column) {
    REAL4 line = row == 0 ? totals[0] : row == 1 ? totals[1] : row == 2 ? totals[2] : totals[3];
    return column == 0 ? line.x : column == 1 ? line.y : column == 2 ? line.z : line.w;
}
#endif
