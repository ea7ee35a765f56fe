// ssd.cu: y and next, row by row. A thread owns a column of a head's state, which stands in next, or,
// where that is absent, in the scratch memory: columns do not know of each other. So next may be the
// memory of state.

KERNEL(256) {
    const Ssd s(args);
    FOR_OWN(head, column, s.heads, D_V, 1) {
#ifdef next_OPERAND
        Column state(args.operands[next_OPERAND].address, head, column);
#else
        Column state(args.scratch, head, column);
#endif
        state.copy(Column(args.operands[state_OPERAND].address, head, column));
        for (int t = 0; t < s.rows; t++) {
            advance(s, state, t, head, column);
#ifdef y_OPERAND
            REAL sum = 0;
            for (int i = 0; i < D_K; i++)
                sum += state.at(i) * s.c(t, head, i);
            STORE_y(row_address(args.operands[y_OPERAND], t, y_BYTES), head * D_V + column, sum);
#endif
        }
    }
}
