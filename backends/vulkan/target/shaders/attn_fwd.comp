// attn_fwd.comp: attention forward. A workgroup per (tile of query rows, head): keys in tiles,
// softmax on the way.
#include "attention.glsl"

shared REAL row_largest[TILE], row_sum[TILE], row_factor[TILE], row_parts[128];

const REAL NONE = REAL(-1e30); // no score: not seen

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
    if (lane < TILE) {
        row_largest[lane] = NONE;
        row_sum[lane] = REAL(0.0);
    }
    REAL out_sums[2][PIECES(D_V)], s[2][4];
    [[unroll]] for (int i = 0; i < PIECES(D_V); i++)
        out_sums[0][i] = out_sums[1][i] = REAL(0.0);
    int start = max(least - k.first_row, 0) / TILE * TILE;
    for (int key0 = start; key0 < k.rows && k.first_row + key0 <= last; key0 += TILE) {
        int seen = tile_seen(k.first_row + key0);
        if (seen == NOTHING)
            continue;
        find_seen_keys(k.first_row + key0, seen == ALL);
        SCORES(s, LOAD_q, q, q_BYTES, row0, head, LOAD_k, k, k_BYTES, key0, kv, D_QK)
        KEEP(s, weights)
        barrier();
        for_elements {
            REAL slope, value = score(weights[e / TILE][e % TILE], slope);
            bool mask = seen == ALL || sees(e / TILE, k.first_row + key0 + e % TILE);
            weights[e / TILE][e % TILE] = mask ? value : NONE;
        }
        barrier();
        REAL part = NONE; // of a quarter of a row
        [[dont_unroll]] for (int i = 0; i < TILE / 4; i++)
            part = larger(weights[lane / 4][lane % 4 * (TILE / 4) + i], part);
        row_parts[lane] = part;
        barrier();
        if (lane < TILE) {
            REAL most = row_largest[lane];
            [[dont_unroll]] for (int i = 0; i < 4; i++)
                most = larger(row_parts[4 * lane + i], most);
            row_factor[lane] = EXP(row_largest[lane] - most);
            row_largest[lane] = most;
        }
        barrier();
        for_elements {
            REAL value = weights[e / TILE][e % TILE];
            weights[e / TILE][e % TILE] = value == NONE ? REAL(0.0) : EXP(value - row_largest[e / TILE]);
        }
        barrier();
        part = REAL(0.0);
        [[dont_unroll]] for (int i = 0; i < TILE / 4; i++)
            part += weights[lane / 4][lane % 4 * (TILE / 4) + i];
        row_parts[lane] = part;
        [[unroll]] for (int m = 0; m < 2; m++)
            [[unroll]] for (int i = 0; i < PIECES(D_V); i++)
                out_sums[m][i] *= row_factor[2 * y + m];
        barrier();
        if (lane < TILE)
            row_sum[lane] = row_sum[lane] * row_factor[lane] + (row_parts[4 * lane] + row_parts[4 * lane + 1]) +
                            (row_parts[4 * lane + 2] + row_parts[4 * lane + 3]);
        ACCUMULATE(out_sums, weights, LOAD_v, v, v_BYTES, key0, kv, D_V, key_seen[r])
    }
    barrier();
    [[unroll]] for (int m = 0; m < 2; m++) {
        int row = row0 + 2 * y + m;
        if (row >= q.rows)
            continue;
        uint64_t to = row_address(args.operands[o_OPERAND], row, o_BYTES);
        REAL sum = row_sum[2 * y + m];
        [[unroll]] for (int i = 0; i < PIECES(D_V); i++)
            if (x + 8 * i < D_V)
                STORE_o(to, head * D_V + x + 8 * i, out_sums[m][i] / sum);
    }
    if (lane < TILE && row0 + lane < q.rows)
        STORE_lse(row_address(args.operands[lse_OPERAND], row0 + lane, lse_BYTES), head,
                  row_largest[lane] + LOG(row_sum[lane]));
}
