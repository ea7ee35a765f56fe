// conv.glsl: what conv_rows and conv_rows_bwd share. An invocation does BLOCK rows of one channel;
// that of the first rows of a channel does besides what lies outside the rows: next, or dstate with
// the rows that read it.

const int BLOCK = 16;

// Rows of the state, one less than taps.
int conv_kept() {
    return args.operands[state_OPERAND].cols / args.operands[x_OPERAND].cols;
}

// Row t of x, or of the state before it.
REAL conv_at(int t, int column) {
    Operand x = args.operands[x_OPERAND];
    if (t >= 0)
        return LOAD_x(row_address(x, t, x_BYTES), column);
    return LOAD_state(row_address(args.operands[state_OPERAND], 0, state_BYTES),
                      (t + conv_kept()) * x.cols + column);
}

#ifdef first_OPERAND
// How many taps of row j see a row that is there.
int conv_seen(int j) {
    int first = INDEX_first(row_address(args.operands[first_OPERAND], j, first_BYTES));
    return min(conv_kept() + 1, args.operands[x_OPERAND].first_row + j - first + 1);
}

// What a row gives the one `before` before it.
REAL conv_weight(int column, int before) {
    return LOAD_w(row_address(args.operands[w_OPERAND], column, w_BYTES), conv_kept() - before);
}
#endif
