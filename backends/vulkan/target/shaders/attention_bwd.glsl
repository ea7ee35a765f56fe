// attention_bwd.glsl: what both backward shaders need of the query rows of a tile: log-sum-exp, and
// delta = sum over d of do o.

shared REAL others[TILE][TILE + 1]; // a second tile of numbers
shared REAL row_lse[TILE], row_delta[TILE];
shared REAL delta_parts[128];

// Begins with a barrier and ends with one.
void read_row_numbers(Operand q, int row0, int head) {
    int r = int(LANE) / 4, row = row0 + r;
    REAL part = REAL(0.0);
    if (row < q.rows) {
        uint64_t o_row = row_address(args.operands[o_OPERAND], row, o_BYTES);
        uint64_t do_row = row_address(args.operands[do_OPERAND], row, do_BYTES);
        for (int d = int(LANE) % 4; d < D_V; d += 4)
            part = fma(LOAD_o(o_row, head * D_V + d), LOAD_do(do_row, head * D_V + d), part);
    }
    barrier();
    delta_parts[LANE] = part;
    barrier();
    if (LANE < TILE) {
        row = row0 + int(LANE);
        row_delta[LANE] = (delta_parts[4 * LANE] + delta_parts[4 * LANE + 1]) +
                          (delta_parts[4 * LANE + 2] + delta_parts[4 * LANE + 3]);
        row_lse[LANE] = REAL(0.0);
        if (row < q.rows)
            row_lse[LANE] = LOAD_lse(row_address(args.operands[lse_OPERAND], row, lse_BYTES), head);
    }
    barrier();
}
