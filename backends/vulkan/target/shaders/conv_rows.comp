// conv_rows.comp: y[j] = bias + sum of w x[j-s] over taps s that see their row; next = the last rows of state
// and x. What is read of the state is read by the invocation that writes next in its place.
#include "conv.glsl"

void main() {
    Operand x = args.operands[x_OPERAND];
    uint block, own;
    flat_position(uint(x.cols), block, own);
    int column = int(own), begin = int(block) * BLOCK;
    if (begin >= max(1, x.rows))
        return;
#ifdef y_OPERAND
    for (int j = begin; j < min(begin + BLOCK, x.rows); j++) {
        int seen = conv_seen(j);
#ifdef bias_OPERAND
        REAL sum = LOAD_bias(row_address(args.operands[bias_OPERAND], 0, bias_BYTES), column);
#else
        REAL sum = REAL(0.0);
#endif
        for (int before = 0; before < seen; before++)
            sum += conv_weight(column, before) * conv_at(j - before, column);
        STORE_y(row_address(args.operands[y_OPERAND], j, y_BYTES), column, sum);
    }
#endif
#ifdef next_OPERAND
    uint64_t next = row_address(args.operands[next_OPERAND], 0, next_BYTES);
    for (int k = 0; begin == 0 && k < conv_kept(); k++)
        STORE_next(next, k * x.cols + column, conv_at(x.rows - conv_kept() + k, column));
#endif
}
