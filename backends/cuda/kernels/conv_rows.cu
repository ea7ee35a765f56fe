// conv_rows.cu: y[j] = bias + sum of w x[j-s] over taps s that see their row; next = the last rows of state
// and x. What is read of the state is read by the thread that writes next in its place.
#include "own.cuh"
#include "conv.cuh"

KERNEL(256) {
    const Conv c(args);
    FOR_OWN(block, column, max(1, (c.rows + BLOCK - 1) / BLOCK), c.channels, 1) {
#ifdef y_OPERAND
        int end = min((int)(block + 1) * BLOCK, c.rows);
        for (int j = (int)block * BLOCK; j < end; j++) {
            int seen = c.seen(j);
#ifdef bias_OPERAND
            REAL sum = LOAD_bias(args.operands[bias_OPERAND].address, column);
#else
            REAL sum = 0;
#endif
            for (int before = 0; before < seen; before++)
                sum += c.weight(column, before) * c.at(j - before, column);
            STORE_y(row_address(args.operands[y_OPERAND], j, y_BYTES), column, sum);
        }
#endif
#ifdef next_OPERAND
        for (int k = 0; block == 0 && k < c.kept; k++)
            STORE_next(args.operands[next_OPERAND].address, (u64)k * c.channels + column,
                       c.at(c.rows - c.kept + k, column));
#endif
    }
}
