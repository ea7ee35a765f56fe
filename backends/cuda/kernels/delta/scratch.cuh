// scratch.cuh: the scratch memory of delta_rule_bwd.
//
// Scratch memory, wide: ROWS (a multiple of BLOCK) rows of each; of states a row per block and one more, the columns of step 0.

struct Scratch {
    u64 states, dstates, errors, dr, b, c, decays, dc, behind;
    int slots; // of states, without the last
    __device__ Scratch(const Delta &d) {
        u64 heads = d.heads, at = d.args.scratch;
        slots = (d.rows + BLOCK - 1) / BLOCK;
        u64 rows = (u64)slots * BLOCK;
        states = take(at, (slots + 1) * heads * STATE);
        dstates = take(at, (slots + 1) * heads * STATE);
        errors = take(at, rows * heads * D_V);
        dr = take(at, rows * heads * D_V);
        b = take(at, rows * heads * BLOCK);
        c = take(at, rows * heads * BLOCK);
        decays = take(at, rows * heads);
        dc = take(at, rows * heads);
        behind = take(at, rows * heads);
    }
    static __device__ u64 take(u64 &at, u64 elements) {
        u64 from = at;
        at += elements * WIDE_BYTES;
        return from;
    }
    static __device__ u64 row(u64 of, u64 number, u64 columns) {
        return of + number * columns * WIDE_BYTES;
    }
};

DEVICE u64 slot_of(const Delta &c, u64 of, int slot) {
    return Scratch::row(of, slot, (u64)c.heads * STATE);
}
DEVICE REAL of_row(const Delta &c, u64 of, int t, int head, int columns, int i) {
    return LOAD_WIDE(Scratch::row(of, t, (u64)c.heads * columns), head * columns + i);
}
DEVICE void set_of_row(const Delta &c, u64 of, int t, int head, int columns, int i, REAL x) {
    STORE_WIDE(Scratch::row(of, t, (u64)c.heads * columns), head * columns + i, x);
}
