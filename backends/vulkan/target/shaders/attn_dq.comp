// attn_dq.comp: attention backward, dq. A workgroup per (tile of query rows, head), keys in tiles, as
// forward. p = exp(s - lse), ds = p (do.v - delta) slope scale, dq = sum of ds k.
#include "attention.glsl"
#include "attention_bwd.glsl"

void main() {
    Operand q = args.operands[q_OPERAND], k = args.operands[k_OPERAND], v = args.operands[v_OPERAND];
    Operand do_rows = args.operands[do_OPERAND];
    read_attributes();
    int head = int(group_number() % uint(heads)), row0 = int(group_number() / uint(heads)) * TILE;
    if (row0 >= q.rows)
        return;
    int kv = head / (heads / kv_heads), lane = int(LANE), y = lane / 8, x = lane % 8, least, last;
    read_rows(q, row0);
    read_row_numbers(q, row0, head);
    tile_bounds(least, last);
    REAL sums[2][PIECES(D_QK)], s[2][4], dp[2][4];
    [[unroll]] for (int i = 0; i < PIECES(D_QK); i++)
        sums[0][i] = sums[1][i] = REAL(0.0);
    int start = max(least - k.first_row, 0) / TILE * TILE;
    for (int key0 = start; key0 < k.rows && k.first_row + key0 <= last; key0 += TILE) {
        int seen = tile_seen(k.first_row + key0);
        if (seen == NOTHING)
            continue;
        find_seen_keys(k.first_row + key0, seen == ALL);
        SCORES(s, LOAD_q, q, q_BYTES, row0, head, LOAD_k, k, k_BYTES, key0, kv, D_QK)
        KEEP(s, weights)
        SCORES(dp, LOAD_do, do_rows, do_BYTES, row0, head, LOAD_v, v, v_BYTES, key0, kv, D_V)
        KEEP(dp, others)
        barrier();
        for_elements {
            int r = e / TILE, c = e % TILE;
            REAL slope, value = score(weights[r][c], slope);
            REAL ds = EXP(value - row_lse[r]) * (others[r][c] - row_delta[r]) * slope * scale;
            bool mask = seen == ALL || sees(r, k.first_row + key0 + c);
            weights[r][c] = mask ? ds : REAL(0.0);
        }
        ACCUMULATE(sums, weights, LOAD_k, k, k_BYTES, key0, kv, D_QK, key_seen[r])
    }
    [[unroll]] for (int m = 0; m < 2; m++) {
        int row = row0 + 2 * y + m;
        if (row >= q.rows)
            continue;
        uint64_t to = row_address(args.operands[dq_OPERAND], row, dq_BYTES);
        [[unroll]] for (int i = 0; i < PIECES(D_QK); i++)
            if (x + 8 * i < D_QK)
                STORE_dq(to, head * D_QK + x + 8 * i, sums[m][i]);
    }
}
