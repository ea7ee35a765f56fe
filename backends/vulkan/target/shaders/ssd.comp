// ssd.comp: y and next, row by row. An invocation owns a column of a head's state, which stands in next, or,
// where that is absent, in work: columns do not know of each other. So next may be the memory of state.
#include "states.glsl"
#include "ssd.glsl"

void main() {
    uint own, at;
    flat_position(uint(D_V), own, at);
    int head = int(own), column = int(at);
    if (head >= heads())
        return;
#ifdef next_OPERAND
    uint64_t state = column_at(args.operands[next_OPERAND].address, head, column);
#else
    uint64_t state = column_at(args.operands[work_OPERAND].address, head, column);
#endif
    copy_column(state, column_at(args.operands[state_OPERAND].address, head, column));
    for (int t = 0; t < head_rows(); t++) {
        advance_column(state, t, head, column);
#ifdef y_OPERAND
        REAL sum = REAL(0.0);
        for (int i = 0; i < D_K; i++)
            sum += LOAD_WIDE(state, i * D_V) * LOAD_c(c_row(t, head), i);
        STORE_y(row_address(args.operands[y_OPERAND], t, y_BYTES), head * D_V + column, sum);
#endif
    }
}
