// attn_dkv.comp: attention backward, dk and dv. A workgroup per (tile of keys, kv head), over the heads of
// its group and their tiles of query rows, always in the same order. Tiles of scores lie with keys as rows
// here: dv += p do, dk += ds q.
#include "attention.glsl"
#include "attention_bwd.glsl"

void main() {
    Operand q = args.operands[q_OPERAND], k = args.operands[k_OPERAND], v = args.operands[v_OPERAND];
    Operand do_rows = args.operands[do_OPERAND];
    read_attributes();
    int kv = int(group_number() % uint(kv_heads)), key0 = int(group_number() / uint(kv_heads)) * TILE;
    if (key0 >= k.rows)
        return;
    int group = heads / kv_heads, lane = int(LANE), y = lane / 8, x = lane % 8;
    REAL dk_sums[2][PIECES(D_QK)], dv_sums[2][PIECES(D_V)], s[2][4], dp[2][4];
    [[unroll]] for (int i = 0; i < PIECES(D_QK); i++)
        dk_sums[0][i] = dk_sums[1][i] = REAL(0.0);
    [[unroll]] for (int i = 0; i < PIECES(D_V); i++)
        dv_sums[0][i] = dv_sums[1][i] = REAL(0.0);
    bool any = false;
    int start = max(k.first_row + key0 - q.first_row, 0) / TILE * TILE; // no row sees a key after it
    for (int row0 = start; row0 < q.rows; row0 += TILE) {
        barrier();
        read_rows(q, row0);
        barrier();
        int seen = tile_seen(k.first_row + key0);
        if (seen == NOTHING)
            continue;
        any = true;
        for (int head = kv * group; head < (kv + 1) * group; head++) {
            read_row_numbers(q, row0, head);
            SCORES(s, LOAD_k, k, k_BYTES, key0, kv, LOAD_q, q, q_BYTES, row0, head, D_QK)
            KEEP(s, weights)
            SCORES(dp, LOAD_v, v, v_BYTES, key0, kv, LOAD_do, do_rows, do_BYTES, row0, head, D_V)
            KEEP(dp, others)
            barrier();
            for_elements {
                int r = e % TILE, c = e / TILE; // query row, key
                REAL slope, value = score(weights[c][r], slope);
                bool mask = row_position[r] >= 0 && (seen == ALL || sees(r, k.first_row + key0 + c));
                REAL p = EXP(value - row_lse[r]);
                others[c][r] = mask ? p * (others[c][r] - row_delta[r]) * slope * scale : REAL(0.0);
                weights[c][r] = mask ? p : REAL(0.0);
            }
            ACCUMULATE(dv_sums, weights, LOAD_do, do_rows, do_BYTES, row0, head, D_V, true)
            ACCUMULATE(dk_sums, others, LOAD_q, q, q_BYTES, row0, head, D_QK, true)
        }
    }
    if (!any)
        return;
    [[unroll]] for (int m = 0; m < 2; m++) {
        int row = key0 + 2 * y + m;
        if (row >= k.rows)
            continue;
        uint64_t dk_row = row_address(args.operands[dk_OPERAND], row, dk_BYTES);
        uint64_t dv_row = row_address(args.operands[dv_OPERAND], row, dv_BYTES);
        [[unroll]] for (int i = 0; i < PIECES(D_QK); i++) {
            int column = kv * D_QK + x + 8 * i;
            if (x + 8 * i < D_QK)
                STORE_dk(dk_row, column, LOAD_dk(dk_row, column) + dk_sums[m][i]);
        }
        [[unroll]] for (int i = 0; i < PIECES(D_V); i++) {
            int column = kv * D_V + x + 8 * i;
            if (x + 8 * i < D_V)
                STORE_dv(dv_row, column, LOAD_dv(dv_row, column) + dv_sums[m][i]);
        }
    }
}
