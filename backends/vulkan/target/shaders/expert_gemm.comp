// expert_gemm.comp: d = a op(b[e]) + bias[e] in the slots of expert e. Rows of a patch are pairs. TB: op
// transposes. Attributes: ints 0: a has a row for every slot.
#include "experts.glsl"

void main() {
    Operand a = args.operands[a_OPERAND], d = args.operands[d_OPERAND];
    bool by_slot = args.ints[0] != 0;
    int slots = args.operands[pairs_OPERAND].cols, cols = d.cols / slots, depth = by_slot ? a.cols / slots : a.cols;
    uint patch_row, patch_column;
    flat_position(uint(cols + PATCH - 1) / PATCH, patch_row, patch_column);
    int patch_number = int(patch_row), column = int(patch_column) * PATCH, expert = 0;
    for (; expert < experts(); expert++) { // that has this patch
        int patches = (count_of(expert) + PATCH - 1) / PATCH;
        if (patch_number < patches)
            break;
        patch_number -= patches;
    }
    if (expert == experts())
        return;
    int first = patch_number * PATCH, rows = count_of(expert), pairs[PATCH];
    uint64_t from[PATCH], matrix = row_address(args.operands[b_OPERAND], expert, b_BYTES);
    [[unroll]] for (int i = 0; i < PATCH; i++) {
        pairs[i] = pair_at(begin_of(expert) + min(first + i, rows - 1));
        from[i] = slot_address(a, pairs[i], by_slot, a_BYTES);
    }
    clear_sums();
    for (int k = 0; k < depth; k++) {
        REAL4 left, right;
        [[unroll]] for (int i = 0; i < PATCH; i++) {
            int n = min(column + i, cols - 1);
            left[i] = LOAD_a(from[i], k);
            right[i] = LOAD_b(matrix, TB != 0 ? n * depth + k : k * cols + n);
        }
        add_products(left, right);
        if (k % CHAIN == CHAIN - 1)
            end_chain();
    }
    end_chain();
    [[dont_unroll]] for (int e = 0; e < PATCH * PATCH; e++) {
        int i = e / PATCH, n = column + e % PATCH;
        if (first + i >= rows || n >= cols)
            continue;
        int pair = i == 0 ? pairs[0] : i == 1 ? pairs[1] : i == 2 ? pairs[2] : pairs[3];
        REAL sum = total_of(i, e % PATCH);
#ifdef bias_OPERAND
        sum += LOAD_bias(row_address(args.operands[bias_OPERAND], expert, bias_BYTES), n);
#endif
        STORE_d(slot_address(d, pair, true, d_BYTES), n, sum);
    }
}
