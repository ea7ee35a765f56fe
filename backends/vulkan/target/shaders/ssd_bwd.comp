// ssd_bwd.comp: the gradients of ssd, in four steps (STEP); of a block the sums of
// ir/program/commands/ssd_bwd.c.
//   0  an invocation per column of a head's state: forward, keeping S before each block, then backward,
//      keeping dS behind each block and dD of each row; dx
//   1  an invocation per row, head and row before it in the block: E
//   2  a workgroup per row and group: dc, db over its heads in their order, and what they add to the
//      gradients of the sums of decay
//   3  an invocation per row and head: ddt; ddecay of a block; dstate
//
// A row of work has what belongs to BLOCK rows: S and dS of the block that begins in them; of each row dD,
// its part of E, the sum of decay, and what it says of that. The last row has the columns of step 0.
#include "group.glsl"
#include "states.glsl"
#include "ssd.glsl"

const int OF_DD = 2 * STATE, OF_E = OF_DD + BLOCK * D_V, OF_DECAYS = OF_E + BLOCK * BLOCK, OF_SUMS = OF_DECAYS + BLOCK;
const int OF_BEHIND = OF_SUMS + BLOCK;

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
uint64_t dy_row(int t, int head) {
    return row_address(args.operands[dy_OPERAND], t, dy_BYTES) + uint64_t(head * D_V * dy_BYTES);
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
        advance_column(state, t, head, column);
    }
    copy_column(dstate, column_at(args.operands[dstate_OPERAND].address, head, column));
    for (int t = rows - 1; t >= 0; t--) {
        bool fresh = place(t) == 0;
        REAL given = LOAD_dy(dy_row(t, head), column), dd = REAL(0.0);
        REAL factor = fresh ? REAL(0.0) : EXP(decay_of(t, head));
        uint64_t b = b_row(t, head), c = c_row(t, head);
        for (int i = 0; i < D_K; i++) {
            REAL x = LOAD_WIDE(dstate, i * D_V) + LOAD_c(c, i) * given;
            dd += x * LOAD_b(b, i);
            STORE_WIDE(dstate, i * D_V, fresh ? REAL(0.0) : x * factor);
        }
        STORE_WIDE(part(OF_DD, t, head, D_V), column, dd);
#ifdef dx_OPERAND
        STORE_dx(row_address(args.operands[dx_OPERAND], t, dx_BYTES), head * D_V + column, dt_of(t, head) * dd);
#endif
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
    REAL dp = REAL(0.0);
    uint64_t given = dy_row(t, head);
    for (int i = 0; i < D_V; i++)
        dp += LOAD_dy(given, i) * x_of(j, head, i);
    STORE_WIDE(part(OF_E, t, head, BLOCK), before, dp * dt_of(j, head) * between(t, j, head));
}

#elif STEP == 2

// Column i of row t: what it adds to dc, db, and says of the sums of decay: of row t, and of the last
// row of its block.
void parts_of(int t, int head, int i, out REAL dc, out REAL db, out REAL sums, out REAL behind) {
    int begin = begin_of(t), end = end_of(t);
    uint64_t state = begin > 0 ? states_at(begin / BLOCK) : args.operands[state_OPERAND].address;
    uint64_t dstate = end < head_rows() ? dstates_at(end / BLOCK) : args.operands[dstate_OPERAND].address;
    bool has_s = place(begin) > 0, has_ds = end == head_rows() || place(end) > 0;
    uint64_t given = dy_row(t, head);
    int from = head * STATE + i * D_V;
    REAL c_part = REAL(0.0), both = REAL(0.0);
    behind = REAL(0.0);
    for (int x = 0; x < D_V && has_s; x++) {
        REAL value = LOAD_WIDE(state, from + x);
        c_part += value * LOAD_dy(given, x);
        if (has_ds && t == end - 1)
            both += value * LOAD_WIDE(dstate, from + x);
    }
    for (int x = 0; x < D_V && has_ds; x++)
        behind += LOAD_WIDE(dstate, from + x) * x_of(t, head, x);
    REAL factor = EXP(LOAD_WIDE(part(OF_DECAYS, t, head, 1), 0)), b = LOAD_b(b_row(t, head), i);
    c_part *= factor;
    behind *= dt_of(t, head) * between(end - 1, t, head);
    REAL b_part = behind; // of rows that come after t
    for (int j = begin; j <= t; j++)
        c_part += LOAD_WIDE(part(OF_E, t, head, BLOCK), j - begin) * LOAD_b(b_row(j, head), i);
    for (int j = t; j < end; j++)
        b_part += LOAD_WIDE(part(OF_E, j, head, BLOCK), t - begin) * LOAD_c(c_row(j, head), i);
    dc = c_part;
    db = b_part;
    sums = LOAD_c(c_row(t, head), i) * c_part - b * b_part + both * factor;
    behind *= b;
}

void add_part(int from, int t, int head, bool adds, REAL x) {
    uint64_t at = part(from, t, head, 1);
    STORE_WIDE(at, 0, adds ? LOAD_WIDE(at, 0) + x : x);
}

void main() {
    int groups = args.ints[1], t = int(group_number()) / groups, group = int(group_number()) % groups;
    if (t >= head_rows())
        return;
    for (int first = 0; first < D_K; first += int(LOCAL)) {
        int i = first + int(LANE);
        REAL dc = REAL(0.0), db = REAL(0.0);
        for (int head = group * (heads() / groups); head < (group + 1) * (heads() / groups); head++) {
            REAL to_c = REAL(0.0), to_b = REAL(0.0), sums = REAL(0.0), behind = REAL(0.0);
            if (i < D_K)
                parts_of(t, head, i, to_c, to_b, sums, behind);
            dc += to_c;
            db += to_b;
            sums = group_sum(sums);
            behind = group_sum(behind);
            if (LANE == 0) {
                add_part(OF_SUMS, t, head, first > 0, sums);
                add_part(OF_BEHIND, t, head, first > 0, behind);
            }
        }
#ifdef dc_OPERAND
        if (i < D_K)
            STORE_dc(row_address(args.operands[dc_OPERAND], t, dc_BYTES), group * D_K + i, dc);
#endif
#ifdef db_OPERAND
        if (i < D_K)
            STORE_db(row_address(args.operands[db_OPERAND], t, db_BYTES), group * D_K + i, db);
#endif
    }
}

#else

void main() {
    uint own, at;
    flat_position(uint(heads()), own, at);
    int t = int(own), head = int(at);
    if (t < head_rows()) {
#ifdef ddt_OPERAND
        REAL sum = REAL(0.0);
        for (int i = 0; i < D_V; i++)
            sum += LOAD_WIDE(part(OF_DD, t, head, D_V), i) * x_of(t, head, i);
        STORE_ddt(row_address(args.operands[ddt_OPERAND], t, ddt_BYTES), head, sum);
#endif
#ifdef ddecay_OPERAND
        int end = is_begin(t) ? end_of(t) : t;
        REAL sums = REAL(0.0);
        for (int j = t; j < end; j++)
            sums += LOAD_WIDE(part(OF_BEHIND, j, head, 1), 0);
        for (int j = end - 1; j >= t; j--) {
            sums += LOAD_WIDE(part(OF_SUMS, j, head, 1), 0);
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
