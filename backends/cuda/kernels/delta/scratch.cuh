// scratch.cuh: the scratch memory of delta_rule_bwd; errors and b only if it CORRECTS.
//
// Scratch memory, wide: ROWS (a multiple of BLOCK) rows of each; of states a row per block and one more, the
// columns of step 0.

struct Scratch : WideMemory {
    u64 states, dstates, errors, dr, b, c, decays, dc, behind;
    int slots; // of states, without the last
    __device__ Scratch(const Delta &d) {
        u64 heads = d.heads, at = d.args.scratch;
        slots = (d.rows + BLOCK - 1) / BLOCK;
        u64 rows = (u64)slots * BLOCK;
        states = take(at, (slots + 1) * heads * STATE);
        dstates = take(at, (slots + 1) * heads * STATE);
        errors = take(at, CORRECTS * rows * heads * D_V);
        dr = take(at, rows * heads * D_V);
        b = take(at, CORRECTS * rows * heads * BLOCK);
        c = take(at, rows * heads * BLOCK);
        decays = take(at, rows * heads);
        dc = take(at, rows * heads);
        behind = take(at, rows * heads);
    }
};
