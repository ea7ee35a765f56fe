// ssd.glsl: what ssd and ssd_bwd read, and a row of the recurrence (states.glsl).

REAL dt_of(int t, int head) {
    return LOAD_dt(row_address(args.operands[dt_OPERAND], t, dt_BYTES), head);
}
uint64_t b_row(int t, int head) {
    return row_address(args.operands[b_OPERAND], t, b_BYTES) + uint64_t(key_of(head) * D_K * b_BYTES);
}
#ifdef c_OPERAND
uint64_t c_row(int t, int head) {
    return row_address(args.operands[c_OPERAND], t, c_BYTES) + uint64_t(key_of(head) * D_K * c_BYTES);
}
#endif
REAL x_of(int t, int head, int column) {
    return LOAD_x(row_address(args.operands[x_OPERAND], t, x_BYTES), head * D_V + column);
}

// The column behind row t: decays, and the row is added.
void advance_column(uint64_t state, int t, int head, int column) {
    uint64_t b = b_row(t, head);
    bool fresh = place(t) == 0;
    REAL factor = fresh ? REAL(0.0) : EXP(decay_of(t, head)), added = dt_of(t, head) * x_of(t, head, column);
    for (int i = 0; i < D_K; i++)
        STORE_WIDE(state, i * D_V, (fresh ? REAL(0.0) : LOAD_WIDE(state, i * D_V) * factor) + LOAD_b(b, i) * added);
}
