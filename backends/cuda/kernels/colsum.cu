// colsum.cu: dst[0, :] = beta dst[0, :] + sum over rows of src. A block sums COLUMNS columns in CHAINS chains of rows,
// added up in order.

enum { CHAINS = 256 / COLUMNS };
static __shared__ REAL chains[CHAINS][COLUMNS];

KERNEL(256) {
    const Operand &dst = args.operands[dst_OPERAND], &src = args.operands[src_OPERAND];
    int x = LANE % COLUMNS, chain = LANE / COLUMNS, column = group_number() * COLUMNS + x;
    Sum s = {0, 0};
    if (column < dst.cols)
        for (int row = chain; row < src.rows; row += CHAINS)
            add(s, LOAD_src(row_address(src, row, src_BYTES), column));
    chains[chain][x] = s.sum;
    __syncthreads();
    if (chain != 0 || column >= dst.cols)
        return;
    s = {0, 0};
    for (int k = 0; k < CHAINS; k++)
        add(s, chains[k][x]);
    if (ARG_NUMBER(0) != (REAL)0.0)
        add(s, ARG_NUMBER(0) * LOAD_dst(dst.address, column));
    STORE_dst(dst.address, column, s.sum);
}
