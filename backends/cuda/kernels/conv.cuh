// conv.cuh: what conv_rows and conv_rows_bwd share. A thread does BLOCK rows of one channel; the
// thread of the first rows of a channel does besides what lies outside the rows: next, or dstate with
// the rows that read it.

enum { BLOCK = 16 };

struct Conv {
    const Args &args;
    int rows, channels, kept; // kept: rows of the state, one less than taps

    __device__ Conv(const Args &a) : args(a) {
        const Operand &x = a.operands[x_OPERAND];
        rows = x.rows;
        channels = x.cols;
        kept = a.operands[state_OPERAND].cols / x.cols;
    }
    // Row t of x, or of the state before it.
    __device__ REAL at(int t, u64 column) const {
        return t >= 0 ? LOAD_x(row_address(args.operands[x_OPERAND], t, x_BYTES), column)
                      : LOAD_state(args.operands[state_OPERAND].address, (u64)(t + kept) * channels + column);
    }
#ifdef first_OPERAND
    // How many taps of row j see a row that is there.
    __device__ int seen(int j) const {
        int first = INDEX_first(row_address(args.operands[first_OPERAND], j, first_BYTES));
        return min(kept + 1, args.operands[x_OPERAND].first_row + j - first + 1);
    }
    // What row j gives the row `before` before it.
    __device__ REAL weight(u64 column, int before) const {
        return LOAD_w(row_address(args.operands[w_OPERAND], column, w_BYTES), kept - before);
    }
#endif
};
