// conv_rows_bwd.cu: dx, dw (a row per BLOCK rows) and dstate of conv_rows. dstate is read and written by the
// thread of the channel's first rows alone, which does the last rows of dx, too: they read it.
#include "own.cuh"
#include "conv.cuh"

// What rows from t on give row t; of the state where t is negative.
DEVICE REAL gathered(const Conv &c, int t, u64 column) {
    REAL sum = 0;
    for (int before = max(0, -t); before <= c.kept && t + before < c.rows; before++)
        if (c.seen(t + before) > before)
            sum += c.weight(column, before) *
                   LOAD_dy(row_address(c.args.operands[dy_OPERAND], t + before, dy_BYTES), column);
    return sum;
}

KERNEL(256) {
    const Conv c(args);
    FOR_OWN(block, column, max(1, (c.rows + BLOCK - 1) / BLOCK), c.channels, 1) {
        int begin = (int)block * BLOCK, end = min(begin + BLOCK, c.rows);
        u64 dstate = args.operands[dstate_OPERAND].address;
#ifdef dw_OPERAND
        for (int before = 0; begin < end && before <= c.kept; before++) {
            REAL sum = 0;
            for (int j = begin; j < end; j++)
                if (c.seen(j) > before)
                    sum += LOAD_dy(row_address(args.operands[dy_OPERAND], j, dy_BYTES), column) *
                           c.at(j - before, column);
            STORE_dw(row_address(args.operands[dw_OPERAND], block, dw_BYTES), column * (c.kept + 1) + c.kept - before,
                     sum);
        }
#endif
#ifdef dx_OPERAND
        for (int t = begin; t < min(end, c.rows - c.kept); t++)
            STORE_dx(row_address(args.operands[dx_OPERAND], t, dx_BYTES), column, gathered(c, t, column));
        for (int t = max(0, c.rows - c.kept); block == 0 && t < c.rows; t++)
            STORE_dx(row_address(args.operands[dx_OPERAND], t, dx_BYTES), column,
                     gathered(c, t, column) +
                         LOAD_dstate(dstate, (u64)(t - c.rows + c.kept) * c.channels + column));
#endif
        for (int k = c.kept - 1; block == 0 && k >= 0; k--) {
            REAL sum = gathered(c, k - c.kept, column);
            if (k >= c.rows) // row k of the state before is row k - rows of the one behind
                sum += LOAD_dstate(dstate, (u64)(k - c.rows) * c.channels + column);
            STORE_dstate(dstate, (u64)k * c.channels + column, sum);
        }
    }
}
