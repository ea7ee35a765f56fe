// expert_gemm_dw.comp: d[e] = d[e] + a^T b over the slots of expert e, in their order. Attributes: ints 0, 1:
// a, b has a row for every slot; 2: adds to what is there.
#include "experts.glsl"

void main() {
    Operand a = args.operands[a_OPERAND], b = args.operands[b_OPERAND];
    bool a_by_slot = args.ints[0] != 0, b_by_slot = args.ints[1] != 0, adds = args.ints[2] != 0;
    int slots = args.operands[pairs_OPERAND].cols;
    int rows = a_by_slot ? a.cols / slots : a.cols, cols = b_by_slot ? b.cols / slots : b.cols;
    int down = (rows + PATCH - 1) / PATCH;
    uint patch_row, patch_column;
    flat_position(uint(cols + PATCH - 1) / PATCH, patch_row, patch_column);
    int expert = int(patch_row) / down, row = int(patch_row) % down * PATCH, column = int(patch_column) * PATCH;
    if (expert >= experts())
        return;
    int begin = begin_of(expert), depth = count_of(expert);
    if (depth == 0 && adds)
        return;
    clear_sums();
    for (int k = 0; k < depth; k++) {
        int pair = pair_at(begin + k);
        uint64_t a_row = slot_address(a, pair, a_by_slot, a_BYTES), b_row = slot_address(b, pair, b_by_slot, b_BYTES);
        REAL4 left, right;
        [[unroll]] for (int i = 0; i < PATCH; i++) {
            left[i] = LOAD_a(a_row, min(row + i, rows - 1));
            right[i] = LOAD_b(b_row, min(column + i, cols - 1));
        }
        add_products(left, right);
        if (k % CHAIN == CHAIN - 1)
            end_chain();
    }
    end_chain();
    uint64_t to = row_address(args.operands[d_OPERAND], expert, d_BYTES);
    [[dont_unroll]] for (int e = 0; e < PATCH * PATCH; e++) {
        int m = row + e / PATCH, n = column + e % PATCH;
        if (m >= rows || n >= cols)
            continue;
        REAL sum = total_of(e / PATCH, e % PATCH);
        if (adds)
            sum += LOAD_d(to, m * cols + n);
        STORE_d(to, m * cols + n, sum);
    }
}
