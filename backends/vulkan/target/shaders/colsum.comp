// colsum.comp: dst[0, :] = beta dst[0, :] + sum over rows of src. A workgroup sums COLUMNS columns in LOCAL /
// COLUMNS chains of rows, added up in order.
#include "sums.kernel"

shared REAL chains[LOCAL];

void main() {
    Operand dst = args.operands[dst_OPERAND], src = args.operands[src_OPERAND];
    int column = int(group_number() * COLUMNS + LANE % COLUMNS), chain = int(LANE / COLUMNS);
    int step = int(LOCAL / COLUMNS);
    Sum s = Sum(REAL(0.0), REAL(0.0));
    if (column < dst.cols)
        for (int row = chain; row < src.rows; row += step)
            add(s, LOAD_src(row_address(src, row, src_BYTES), column));
    chains[LANE] = s.sum;
    barrier();
    if (chain != 0 || column >= dst.cols)
        return;
    s = Sum(REAL(0.0), REAL(0.0));
    for (int k = 0; k < step; k++)
        add(s, chains[LANE + uint(k) * COLUMNS]);
    if (ARG_NUMBER(0) != REAL(0.0))
        add(s, ARG_NUMBER(0) * LOAD_dst(dst.address, column));
    STORE_dst(dst.address, column, s.sum);
}
