// attn_fwd.comp: attention forward. A workgroup per (tile of query rows, head): keys in tiles, softmax on the way.

shared REAL row_parts[TILE][9];

void main() {
    Operand q = args.operands[q_OPERAND], k = args.operands[k_OPERAND], v = args.operands[v_OPERAND];
    read_attributes();
    int head = int(group_number() % uint(heads)), row0 = int(group_number() / uint(heads)) * TILE;
    if (row0 >= q.rows)
        return;
    int kv = head / (heads / kv_heads), lane = int(LANE), y = lane / 8, x = lane % 8, least, last;
    read_rows(q, row0);
    barrier();
    tile_bounds(least, last);
    const REAL none = REAL(-1e30);
    REAL largest[2] = {none, none}, sum[2] = {REAL(0.0), REAL(0.0)}, out_sums[2][PIECES(D_V)], s[2][4];
    [[unroll]] for (int i = 0; i < PIECES(D_V); i++)
        out_sums[0][i] = out_sums[1][i] = REAL(0.0);
    int start = max(least - k.first_row, 0) / TILE * TILE;
    for (int key0 = start; key0 < k.rows && k.first_row + key0 <= last; key0 += TILE) {
        int seen = tile_seen(k.first_row + key0);
        if (seen == NOTHING)
            continue;
        find_seen_keys(k.first_row + key0, seen == ALL);
        SCORES(s, LOAD_q, q, q_BYTES, row0, head, LOAD_k, k, k_BYTES, key0, kv, D_QK)
        bool mask[2][4];
        [[unroll]] for (int m = 0; m < 2; m++) {
            REAL most = none;
            [[unroll]] for (int n = 0; n < 4; n++) {
                REAL slope;
                s[m][n] = score(s[m][n], slope);
                mask[m][n] = seen == ALL || sees(2 * y + m, k.first_row + key0 + 4 * x + n);
                most = mask[m][n] ? larger(s[m][n], most) : most;
            }
            row_parts[2 * y + m][x] = most;
        }
        barrier();
        [[unroll]] for (int m = 0; m < 2; m++) {
            REAL most = largest[m];
            for (int i = 0; i < 8; i++)
                most = larger(row_parts[2 * y + m][i], most);
            REAL factor = EXP(largest[m] - most);
            largest[m] = most;
            sum[m] *= factor;
            [[unroll]] for (int i = 0; i < PIECES(D_V); i++)
                out_sums[m][i] *= factor;
            [[unroll]] for (int n = 0; n < 4; n++)
                weights[2 * y + m][4 * x + n] = mask[m][n] ? EXP(s[m][n] - most) : REAL(0.0);
        }
        barrier();
        [[unroll]] for (int m = 0; m < 2; m++) {
            REAL part = REAL(0.0);
            for (int i = 0; i < TILE; i++)
                part += weights[2 * y + m][i];
            sum[m] += part;
        }
        ACCUMULATE(out_sums, LOAD_v, v, v_BYTES, key0, kv, D_V, key_seen[r])
    }
    [[unroll]] for (int m = 0; m < 2; m++) {
        int row = row0 + 2 * y + m;
        if (row >= q.rows)
            continue;
        uint64_t to = row_address(args.operands[o_OPERAND], row, o_BYTES);
        [[unroll]] for (int i = 0; i < PIECES(D_V); i++)
            if (x + 8 * i < D_V)
                STORE_o(to, head * D_V + x + 8 * i, out_sums[m][i] / sum[m]);
        if (x == 0)
            STORE_lse(row_address(args.operands[lse_OPERAND], row, lse_BYTES), head, largest[m] + LOG(sum[m]));
    }
}
