// delta.cuh: what delta_rule and delta_rule_bwd read, and a row of the rule (states.cuh).

struct Delta : Heads {
    __device__ Delta(const Args &a) : Heads(a) {}
    __device__ REAL k(int t, int head, int i) const {
        return LOAD_k(row_address(args.operands[k_OPERAND], t, k_BYTES), head / group * D_K + i);
    }
#ifdef q_OPERAND
    __device__ REAL q(int t, int head, int i) const {
        return LOAD_q(row_address(args.operands[q_OPERAND], t, q_BYTES), head / group * D_K + i);
    }
#endif
    __device__ REAL v(int t, int head, int i) const {
        return LOAD_v(row_address(args.operands[v_OPERAND], t, v_BYTES), head * D_V + i);
    }
    __device__ REAL beta(int t, int head) const {
        return LOAD_beta(row_address(args.operands[beta_OPERAND], t, beta_BYTES), head);
    }
};

// The column behind row t: decays, and the row is added; returns what d has beta times: v, less S^T k if it
// CORRECTS.
DEVICE REAL advance(const Delta &c, const Column &column, int t, int head, REAL value) {
    bool fresh = c.place(t) == 0;
    REAL factor = fresh ? (REAL)0 : EXP(c.decay(t, head));
#if CORRECTS
    REAL sum = 0;
    for (int i = 0; i < D_K; i++) {
        REAL s = fresh ? (REAL)0 : column.at(i) * factor;
        column.set(i, s);
        sum += s * c.k(t, head, i);
    }
    REAL error = value - sum, d = c.beta(t, head) * error;
    for (int i = 0; i < D_K; i++)
        column.set(i, column.at(i) + c.k(t, head, i) * d);
    return error;
#else
    REAL d = c.beta(t, head) * value;
    for (int i = 0; i < D_K; i++)
        column.set(i, (fresh ? (REAL)0 : column.at(i) * factor) + c.k(t, head, i) * d);
    return value;
#endif
}
