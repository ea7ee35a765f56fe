// delta_rule_bwd.comp: the gradients of delta_rule, in four steps (STEP); of a block the sums of
// ir/program/commands/delta_rule_bwd.c.
//   0  an invocation per column of a head's state: forward, keeping S before each block and, if it CORRECTS,
//      v - S^T k of each row, then backward, keeping dS behind each block and dR of each row; dv
//   1  an invocation per row, head and row before it in the block: C, and B if it CORRECTS
//   2  a workgroup per row and head of k: dq, dk over its heads of v in their order, and what dc of a row is
//   3  an invocation per row and head: dbeta; ddecay of a block; dstate
//
// A row of work has what belongs to BLOCK rows: S and dS of the block that begins in them; of each row dR,
// its part of C, c, and what it says of dc, and if it CORRECTS v - S^T k and its part of B. The last row has
// the columns of step 0.
#include "group.glsl"
#include "states.glsl"
#include "delta.glsl"

const int OF_ERRORS = 2 * STATE, OF_DR = OF_ERRORS + CORRECTS * BLOCK * D_V, OF_B = OF_DR + BLOCK * D_V;
const int OF_C = OF_B + CORRECTS * BLOCK * BLOCK;
const int OF_DECAYS = OF_C + BLOCK * BLOCK, OF_DC = OF_DECAYS + BLOCK, OF_BEHIND = OF_DC + BLOCK;

int slots() { // of states, without the last
    return (head_rows() + BLOCK - 1) / BLOCK;
}
uint64_t work_at(int row, int from) { // of all heads
    return row_address(args.operands[work_OPERAND], row, WIDE_BYTES) + uint64_t(heads()) * uint64_t(from * WIDE_BYTES);
}
uint64_t states_at(int slot) {
    return work_at(slot, 0);
}
uint64_t dstates_at(int slot) {
    return work_at(slot, STATE);
}
// A head's columns of row t of one of these.
uint64_t part(int from, int t, int head, int columns) {
    return work_at(t / BLOCK, from) + uint64_t((t % BLOCK * heads() + head) * columns) * uint64_t(WIDE_BYTES);
}

// The first row that is there in the block of row t; and the row behind the block's last.
int begin_of(int t) {
    return max(0, t - place(t) % BLOCK);
}
int end_of(int t) {
    for (t++; t < head_rows() && place(t) % BLOCK != 0;)
        t++;
    return t;
}
uint64_t do_row(int t, int head) {
    return row_address(args.operands[do_OPERAND], t, do_BYTES) + uint64_t(head * D_V * do_BYTES);
}
// What row j adds to the state, before it has beta times.
REAL added(int j, int head, int i) {
#if CORRECTS == 1
    return LOAD_WIDE(part(OF_ERRORS, j, head, D_V), i);
#else
    return v_of(j, head, i);
#endif
}
// e^(c_t - c_j) of rows of a block, by the decays between them: where others are large, little would be left
// of a difference.
REAL between(int t, int j, int head) {
    REAL sum = REAL(0.0);
    for (j++; j <= t; j++)
        sum += decay_of(j, head);
    return EXP(sum);
}

#if STEP == 0

void main() {
    uint own, at;
    flat_position(uint(D_V), own, at);
    int head = int(own), column = int(at), rows = head_rows();
    if (head >= heads())
        return;
    uint64_t state = column_at(states_at(slots()), head, column);
    uint64_t dstate = column_at(dstates_at(slots()), head, column);
    REAL decays = REAL(0.0);
    copy_column(state, column_at(args.operands[state_OPERAND].address, head, column));
    for (int t = 0; t < rows; t++) {
        bool fresh = place(t) == 0, first = is_begin(t);
        if (t > 0 && first && !fresh)
            copy_column(column_at(states_at(t / BLOCK), head, column), state);
        if (column == 0) { // in the row where a document begins decay means nothing
            decays = (first ? REAL(0.0) : decays) + (fresh ? REAL(0.0) : decay_of(t, head));
            STORE_WIDE(part(OF_DECAYS, t, head, 1), 0, decays);
        }
        REAL error = advance_column(state, t, head, column);
        if (CORRECTS == 1)
            STORE_WIDE(part(OF_ERRORS, t, head, D_V), column, error);
    }
    copy_column(dstate, column_at(args.operands[dstate_OPERAND].address, head, column));
    for (int t = rows - 1; t >= 0; t--) {
        bool fresh = place(t) == 0;
        REAL given = LOAD_do(do_row(t, head), column), dr = REAL(0.0), beta = beta_of(t, head);
        REAL factor = fresh ? REAL(0.0) : EXP(decay_of(t, head));
        uint64_t k = k_row(t, head), q = q_row(t, head);
        for (int i = 0; i < D_K; i++) {
            REAL x = LOAD_WIDE(dstate, i * D_V) + LOAD_q(q, i) * given;
            dr += x * LOAD_k(k, i);
            STORE_WIDE(dstate, i * D_V, CORRECTS == 1 ? x : fresh ? REAL(0.0) : x * factor);
        }
        STORE_WIDE(part(OF_DR, t, head, D_V), column, dr);
#ifdef dv_OPERAND
        STORE_dv(row_address(args.operands[dv_OPERAND], t, dv_BYTES), head * D_V + column, beta * dr);
#endif
        for (int i = 0; i < D_K && CORRECTS == 1; i++) {
            REAL x = (LOAD_WIDE(dstate, i * D_V) - LOAD_k(k, i) * beta * dr) * factor;
            STORE_WIDE(dstate, i * D_V, fresh ? REAL(0.0) : x);
        }
        if (t > 0 && is_begin(t) && !fresh)
            copy_column(column_at(dstates_at(t / BLOCK), head, column), dstate);
    }
}

#elif STEP == 1

void main() {
    uint own, at;
    flat_position(uint(heads() * BLOCK), own, at);
    int t = int(own), head = int(at) / BLOCK, before = int(at) % BLOCK;
    if (t >= head_rows())
        return;
    int j = begin_of(t) + before;
    if (j > t)
        return;
    REAL dp = REAL(0.0), beta = beta_of(j, head);
    uint64_t dr = part(OF_DR, t, head, D_V), given = do_row(t, head);
#if CORRECTS == 1
    REAL da = REAL(0.0);
    for (int i = 0; i < D_V; i++) {
        REAL d = beta * added(j, head, i);
        dp += LOAD_do(given, i) * d;
        da -= LOAD_WIDE(dr, i) * d;
    }
    REAL factor = between(t, j, head);
    STORE_WIDE(part(OF_B, t, head, BLOCK), before, j < t ? da * beta_of(t, head) * factor : REAL(0.0));
#else
    for (int i = 0; i < D_V; i++)
        dp += LOAD_do(given, i) * added(j, head, i);
    dp *= beta;
    REAL factor = between(t, j, head);
#endif
    STORE_WIDE(part(OF_C, t, head, BLOCK), before, dp * factor);
}

#elif STEP == 2

// Column i of row t: what it adds to dq, dk, and says of dc: of row t, and of the last row of its block.
void parts_of(int t, int head, int i, out REAL dq, out REAL dk, out REAL dc, out REAL behind) {
    int begin = begin_of(t), end = end_of(t);
    uint64_t state = begin > 0 ? states_at(begin / BLOCK) : args.operands[state_OPERAND].address;
    uint64_t dstate = end < head_rows() ? dstates_at(end / BLOCK) : args.operands[dstate_OPERAND].address;
    bool has_s = place(begin) > 0, has_ds = end == head_rows() || place(end) > 0;
    uint64_t given = do_row(t, head), dr = part(OF_DR, t, head, D_V);
    int from = head * STATE + i * D_V;
    REAL q_part = REAL(0.0), k_part = REAL(0.0), both = REAL(0.0), beta = beta_of(t, head);
    behind = REAL(0.0);
    for (int x = 0; x < D_V && has_s; x++) {
        REAL value = LOAD_WIDE(state, from + x);
        q_part += value * LOAD_do(given, x);
        if (CORRECTS == 1)
            k_part -= value * LOAD_WIDE(dr, x);
        if (has_ds && t == end - 1)
            both += value * LOAD_WIDE(dstate, from + x);
    }
    for (int x = 0; x < D_V && has_ds; x++)
        behind += LOAD_WIDE(dstate, from + x) * (CORRECTS == 1 ? beta * added(t, head, x) : added(t, head, x));
    REAL factor = EXP(LOAD_WIDE(part(OF_DECAYS, t, head, 1), 0)), k = LOAD_k(k_row(t, head), i);
    q_part *= factor;
    if (CORRECTS == 1)
        k_part *= factor * beta;
    behind *= CORRECTS == 1 ? between(end - 1, t, head) : beta * between(end - 1, t, head);
    REAL k_column = behind; // of rows that come after t
    for (int j = begin; j <= t; j++) {
        REAL other = LOAD_k(k_row(j, head), i);
        q_part += LOAD_WIDE(part(OF_C, t, head, BLOCK), j - begin) * other;
        if (CORRECTS == 1)
            k_part += LOAD_WIDE(part(OF_B, t, head, BLOCK), j - begin) * other;
    }
    for (int j = t; j < end; j++) {
        REAL of_rows = LOAD_WIDE(part(OF_C, j, head, BLOCK), t - begin) * LOAD_q(q_row(j, head), i);
        if (CORRECTS == 1)
            of_rows += LOAD_WIDE(part(OF_B, j, head, BLOCK), t - begin) * LOAD_k(k_row(j, head), i);
        k_column += of_rows;
    }
    REAL of_k = CORRECTS == 1 ? k * (k_part - k_column) : -(k * k_column);
    dq = q_part;
    dk = CORRECTS == 1 ? k_part + k_column : k_column;
    dc = LOAD_q(q_row(t, head), i) * q_part + of_k + both * factor;
    behind *= k;
}

void add_part(int from, int t, int head, bool adds, REAL x) {
    uint64_t at = part(from, t, head, 1);
    STORE_WIDE(at, 0, adds ? LOAD_WIDE(at, 0) + x : x);
}

void main() {
    int keys = args.ints[1], t = int(group_number()) / keys, key = int(group_number()) % keys;
    if (t >= head_rows())
        return;
    for (int first = 0; first < D_K; first += int(LOCAL)) {
        int i = first + int(LANE);
        REAL dq = REAL(0.0), dk = REAL(0.0);
        for (int head = key * (heads() / keys); head < (key + 1) * (heads() / keys); head++) {
            REAL to_q = REAL(0.0), to_k = REAL(0.0), dc = REAL(0.0), behind = REAL(0.0);
            if (i < D_K)
                parts_of(t, head, i, to_q, to_k, dc, behind);
            dq += to_q;
            dk += to_k;
            dc = group_sum(dc);
            behind = group_sum(behind);
            if (LANE == 0) {
                add_part(OF_DC, t, head, first > 0, dc);
                add_part(OF_BEHIND, t, head, first > 0, behind);
            }
        }
#ifdef dq_OPERAND
        if (i < D_K)
            STORE_dq(row_address(args.operands[dq_OPERAND], t, dq_BYTES), key * D_K + i, dq);
#endif
#ifdef dk_OPERAND
        if (i < D_K)
            STORE_dk(row_address(args.operands[dk_OPERAND], t, dk_BYTES), key * D_K + i, dk);
#endif
    }
}

#else

void main() {
    uint own, at;
    flat_position(uint(heads()), own, at);
    int t = int(own), head = int(at);
    if (t < head_rows()) {
#ifdef dbeta_OPERAND
        REAL sum = REAL(0.0);
        for (int i = 0; i < D_V; i++)
            sum += LOAD_WIDE(part(OF_DR, t, head, D_V), i) * added(t, head, i);
        STORE_dbeta(row_address(args.operands[dbeta_OPERAND], t, dbeta_BYTES), head, sum);
#endif
#ifdef ddecay_OPERAND
        int end = is_begin(t) ? end_of(t) : t;
        REAL sums = REAL(0.0);
        for (int j = t; j < end; j++)
            sums += LOAD_WIDE(part(OF_BEHIND, j, head, 1), 0);
        for (int j = end - 1; j >= t; j--) {
            sums += LOAD_WIDE(part(OF_DC, j, head, 1), 0);
            STORE_ddecay(row_address(args.operands[ddecay_OPERAND], j, ddecay_BYTES), head,
                         place(j) == 0 ? REAL(0.0) : sums);
        }
#endif
    }
    uint64_t from = dstates_at(slots());
    uint64_t element = uint64_t(group_number()) * LOCAL + LANE;
    if (element < uint64_t(heads()) * STATE)
        STORE_WIDE(args.operands[dstate_OPERAND].address, int(element), LOAD_WIDE(from, int(element)));
}

#endif
