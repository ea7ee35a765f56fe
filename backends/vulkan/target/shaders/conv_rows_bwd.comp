// conv_rows_bwd.comp: dx, dw (a row per BLOCK rows) and dstate of conv_rows. dstate is read and written by
// the invocation of the channel's first rows alone, which does the last rows of dx, too: they read it.
#include "conv.glsl"

// What rows from t on give row t; of the state where t is negative.
REAL gathered(int t, int rows, int column) {
    REAL sum = REAL(0.0);
    for (int before = max(0, -t); before <= conv_kept() && t + before < rows; before++)
        if (conv_seen(t + before) > before)
            sum += conv_weight(column, before) *
                   LOAD_dy(row_address(args.operands[dy_OPERAND], t + before, dy_BYTES), column);
    return sum;
}

void main() {
    Operand x = args.operands[x_OPERAND];
    int rows = x.rows, kept = conv_kept();
    uint block, own;
    flat_position(uint(x.cols), block, own);
    int column = int(own), begin = int(block) * BLOCK, end = min(begin + BLOCK, rows);
    if (begin >= max(1, rows))
        return;
    uint64_t dstate = row_address(args.operands[dstate_OPERAND], 0, dstate_BYTES);
#ifdef dw_OPERAND
    for (int before = 0; begin < end && before <= kept; before++) {
        REAL sum = REAL(0.0);
        for (int j = begin; j < end; j++)
            if (conv_seen(j) > before)
                sum += LOAD_dy(row_address(args.operands[dy_OPERAND], j, dy_BYTES), column) *
                       conv_at(j - before, column);
        STORE_dw(row_address(args.operands[dw_OPERAND], int(block), dw_BYTES),
                 column * (kept + 1) + kept - before, sum);
    }
#endif
#ifdef dx_OPERAND
    for (int t = begin; t < min(end, rows - kept); t++)
        STORE_dx(row_address(args.operands[dx_OPERAND], t, dx_BYTES), column, gathered(t, rows, column));
    for (int t = max(0, rows - kept); begin == 0 && t < rows; t++)
        STORE_dx(row_address(args.operands[dx_OPERAND], t, dx_BYTES), column,
                 gathered(t, rows, column) + LOAD_dstate(dstate, (t - rows + kept) * x.cols + column));
#endif
    for (int k = kept - 1; begin == 0 && k >= 0; k--) {
        REAL sum = gathered(k - kept, rows, column);
        if (k >= rows) // row k of the state before is row k - rows of the one behind
            sum += LOAD_dstate(dstate, (k - rows) * x.cols + column);
        STORE_dstate(dstate, k * x.cols + column, sum);
    }
}
