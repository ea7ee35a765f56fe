// ssd.cuh: what ssd and ssd_bwd read, and a row of the recurrence (states.cuh).

struct Ssd : Heads {
    __device__ Ssd(const Args &a) : Heads(a) {}
    __device__ REAL b(int t, int head, int i) const {
        return LOAD_b(row_address(args.operands[b_OPERAND], t, b_BYTES), head / group * D_K + i);
    }
#ifdef c_OPERAND
    __device__ REAL c(int t, int head, int i) const {
        return LOAD_c(row_address(args.operands[c_OPERAND], t, c_BYTES), head / group * D_K + i);
    }
#endif
    __device__ REAL x(int t, int head, int i) const {
        return LOAD_x(row_address(args.operands[x_OPERAND], t, x_BYTES), head * D_V + i);
    }
    __device__ REAL dt(int t, int head) const {
        return LOAD_dt(row_address(args.operands[dt_OPERAND], t, dt_BYTES), head);
    }
};

// The column behind row t: decays, and the row is added.
DEVICE void advance(const Ssd &s, const Column &state, int t, int head, int column) {
    bool fresh = s.place(t) == 0;
    REAL factor = fresh ? (REAL)0 : EXP(s.decay(t, head)), added = s.dt(t, head) * s.x(t, head, column);
    for (int i = 0; i < D_K; i++)
        state.set(i, (fresh ? (REAL)0 : state.at(i) * factor) + s.b(t, head, i) * added);
}
