// colsum.cu: dst[0, :] = beta dst[0, :] + sum over rows of src. A block sums COLUMNS columns in CHAINS chains
// of rows, added up in order. A chain loads AHEAD rows before it adds the first: additions wait for each
// other, loads need not.
#include "sums.kernel"

enum { CHAINS = 256 / COLUMNS, AHEAD = 4 };
static __shared__ REAL chains[CHAINS][COLUMNS];

KERNEL(256) {
    const Operand &dst = args.operands[dst_OPERAND], &src = args.operands[src_OPERAND];
    int x = LANE % COLUMNS, chain = LANE / COLUMNS, column = group_number() * COLUMNS + x;
    Sum s = {0, 0};
    if (column < dst.cols)
        for (int row = chain; row < src.rows; row += AHEAD * CHAINS) {
            REAL loaded[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (row + i * CHAINS < src.rows)
                    loaded[i] = LOAD_src(row_address(src, row + i * CHAINS, src_BYTES), column);
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (row + i * CHAINS < src.rows)
                    add(s, loaded[i]);
        }
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
