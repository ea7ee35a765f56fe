// delta.glsl: what delta_rule and delta_rule_bwd read, and a row of the rule (states.glsl).

REAL beta_of(int t, int head) {
    return LOAD_beta(row_address(args.operands[beta_OPERAND], t, beta_BYTES), head);
}
uint64_t k_row(int t, int head) {
    return row_address(args.operands[k_OPERAND], t, k_BYTES) + uint64_t(key_of(head) * D_K * k_BYTES);
}
#ifdef q_OPERAND
uint64_t q_row(int t, int head) {
    return row_address(args.operands[q_OPERAND], t, q_BYTES) + uint64_t(key_of(head) * D_K * q_BYTES);
}
#endif
REAL v_of(int t, int head, int column) {
    return LOAD_v(row_address(args.operands[v_OPERAND], t, v_BYTES), head * D_V + column);
}

// The column behind row t: decays, and the row is added; returns what d has beta times: v, less S^T k if it
// CORRECTS.
REAL advance_column(uint64_t state, int t, int head, int column) {
    uint64_t k = k_row(t, head);
    bool fresh = place(t) == 0;
    REAL factor = fresh ? REAL(0.0) : EXP(decay_of(t, head)), u = v_of(t, head, column);
#if CORRECTS == 1
    REAL sum = REAL(0.0);
    for (int i = 0; i < D_K; i++) {
        REAL s = fresh ? REAL(0.0) : LOAD_WIDE(state, i * D_V) * factor;
        STORE_WIDE(state, i * D_V, s);
        sum += s * LOAD_k(k, i);
    }
    u -= sum;
    REAL d = beta_of(t, head) * u;
    for (int i = 0; i < D_K; i++)
        STORE_WIDE(state, i * D_V, LOAD_WIDE(state, i * D_V) + LOAD_k(k, i) * d);
#else
    REAL d = beta_of(t, head) * u;
    for (int i = 0; i < D_K; i++)
        STORE_WIDE(state, i * D_V, (fresh ? REAL(0.0) : LOAD_WIDE(state, i * D_V) * factor) + LOAD_k(k, i) * d);
#endif
    return u;
}
