// ssd_bwd.cu: the gradients of ssd, in four steps (STEP); of a block the sums of
// ir/program/commands/ssd_bwd.c.
//   0  a thread per column of a head's state: forward, keeping S before each block, then backward, keeping dS
//      behind each block and dD of each row; dx
//   1  a thread per row, head and row before it in the block: E
//   2  a block per row and group: dc, db over its heads in their order, and what they add to the gradients of
//      the sums of decay
//   3  a thread per row and head: ddt; ddecay of a block; dstate
//
// Scratch memory, wide: rows in multiples of BLOCK; of states a row per block and one more, the
// columns of step 0.

struct Scratch : WideMemory {
    u64 states, dstates, dd, e, decays, sums, behind;
    int slots; // of states, without the last
    __device__ Scratch(const Ssd &s) {
        u64 heads = s.heads, at = s.args.scratch;
        slots = (s.rows + BLOCK - 1) / BLOCK;
        u64 rows = (u64)slots * BLOCK;
        states = take(at, (slots + 1) * heads * STATE);
        dstates = take(at, (slots + 1) * heads * STATE);
        dd = take(at, rows * heads * D_V);
        e = take(at, rows * heads * BLOCK);
        decays = take(at, rows * heads);
        sums = take(at, rows * heads);
        behind = take(at, rows * heads);
    }
};

DEVICE REAL load_dy_of(const Ssd &s, int t, int head, int i) {
    return LOAD_dy(row_address(s.args.operands[dy_OPERAND], t, dy_BYTES), head * D_V + i);
}
// e^(c_t - c_j) of rows of a block, by the decays between them: where others are large, little would be left
// of a difference.
DEVICE REAL between(const Ssd &s, int t, int j, int head) {
    REAL sum = 0;
    for (j++; j <= t; j++)
        sum += s.decay(j, head);
    return EXP(sum);
}

#if STEP == 0

DEVICE void forward_column(const Ssd &s, const Scratch &m, int head, int column) {
    Column state(slot_of(s, m.states, m.slots), head, column);
    REAL decays = 0;
    state.copy(Column(s.args.operands[state_OPERAND].address, head, column));
    for (int t = 0; t < s.rows; t++) {
        int place = s.place(t);
        if (t > 0 && place > 0 && place % BLOCK == 0)
            Column(slot_of(s, m.states, t / BLOCK), head, column).copy(state);
        if (column == 0) { // in the row where a document begins decay means nothing
            decays = (t == 0 || place % BLOCK == 0 ? (REAL)0 : decays) + (place == 0 ? (REAL)0 : s.decay(t, head));
            set_of_row(s, m.decays, t, head, 1, 0, decays);
        }
        advance(s, state, t, head, column);
    }
}

DEVICE void backward_column(const Ssd &s, const Scratch &m, int head, int column) {
    Column dstate(slot_of(s, m.dstates, m.slots), head, column);
    dstate.copy(Column(s.args.operands[dstate_OPERAND].address, head, column));
    for (int t = s.rows - 1; t >= 0; t--) {
        int place = s.place(t);
        REAL given = load_dy_of(s, t, head, column), dd = 0, factor = place == 0 ? (REAL)0 : EXP(s.decay(t, head));
        for (int i = 0; i < D_K; i++) {
            REAL x = dstate.at(i) + s.c(t, head, i) * given;
            dd += x * s.b(t, head, i);
            dstate.set(i, place == 0 ? (REAL)0 : x * factor);
        }
        set_of_row(s, m.dd, t, head, D_V, column, dd);
#ifdef dx_OPERAND
        STORE_dx(row_address(s.args.operands[dx_OPERAND], t, dx_BYTES), head * D_V + column, s.dt(t, head) * dd);
#endif
        if (t > 0 && place > 0 && place % BLOCK == 0)
            Column(slot_of(s, m.dstates, t / BLOCK), head, column).copy(dstate);
    }
}

KERNEL(256) {
    const Ssd s(args);
    const Scratch m(s);
    FOR_OWN(head, column, s.heads, D_V, 1) {
        forward_column(s, m, head, column);
        backward_column(s, m, head, column);
    }
}

#elif STEP == 1

KERNEL(256) {
    const Ssd s(args);
    const Scratch m(s);
    FOR_OWN(t, pair, s.rows, s.heads * BLOCK, 1) {
        int head = pair / BLOCK, at = pair % BLOCK, j = s.begin(t) + at;
        if (j > (int)t)
            continue;
        REAL dp = 0;
        for (int i = 0; i < D_V; i++)
            dp += load_dy_of(s, t, head, i) * s.x(j, head, i);
        set_of_row(s, m.e, t, head, BLOCK, at, dp * s.dt(j, head) * between(s, t, j, head));
    }
}

#elif STEP == 2

// Column i of row t of dc, db, and what both say of the sums of decay: of row t, and of the last
// row of its block.
struct Parts {
    REAL dc, db, sums, behind;
};

DEVICE Parts parts_of(const Ssd &s, const Scratch &m, int t, int head, int i) {
    int begin = s.begin(t), end = s.end(t);
    u64 state = s.args.operands[state_OPERAND].address, dstate = s.args.operands[dstate_OPERAND].address;
    if (begin > 0)
        state = slot_of(s, m.states, begin / BLOCK);
    if (end < s.rows)
        dstate = slot_of(s, m.dstates, end / BLOCK);
    bool after = s.place(begin) > 0, before = end == s.rows || s.place(end) > 0; // there is S, there is dS
    u64 from = (u64)head * STATE + (u64)i * D_V;
    REAL dc = 0, behind = 0, both = 0;
    for (int x = 0; x < D_V && after; x++) {
        REAL value = LOAD_WIDE(state, from + x);
        dc += value * load_dy_of(s, t, head, x);
        if (before && t == end - 1)
            both += value * LOAD_WIDE(dstate, from + x);
    }
    for (int x = 0; x < D_V && before; x++)
        behind += LOAD_WIDE(dstate, from + x) * s.x(t, head, x);
    REAL factor = EXP(of_row(s, m.decays, t, head, 1, 0));
    dc *= factor;
    behind *= s.dt(t, head) * between(s, end - 1, t, head);
    REAL db = behind; // of rows that come after t
    for (int j = begin; j <= t; j++)
        dc += of_row(s, m.e, t, head, BLOCK, j - begin) * s.b(j, head, i);
    for (int j = t; j < end; j++)
        db += of_row(s, m.e, j, head, BLOCK, t - begin) * s.c(j, head, i);
    REAL b = s.b(t, head, i);
    return {dc, db, s.c(t, head, i) * dc - b * db + both * factor, b * behind};
}

KERNEL(128) {
    const Ssd s(args);
    const Scratch m(s);
    int groups = args.ints[1], t = group_number() / groups, group = group_number() % groups;
    for (int first = 0; first < D_K; first += LOCAL) {
        int i = first + LANE;
        REAL dc = 0, db = 0;
        for (int head = group * s.group; head < (group + 1) * s.group; head++) {
            Parts parts = {0, 0, 0, 0};
            if (i < D_K)
                parts = parts_of(s, m, t, head, i);
            dc += parts.dc;
            db += parts.db;
            REAL sums = group_sum(parts.sums), behind = group_sum(parts.behind);
            if (LANE == 0) {
                set_of_row(s, m.sums, t, head, 1, 0, first > 0 ? of_row(s, m.sums, t, head, 1, 0) + sums : sums);
                set_of_row(s, m.behind, t, head, 1, 0,
                           first > 0 ? of_row(s, m.behind, t, head, 1, 0) + behind : behind);
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

KERNEL(256) {
    const Ssd s(args);
    const Scratch m(s);
    FOR_OWN(t, head, s.rows, s.heads, 1) {
#ifdef ddt_OPERAND
        REAL sum = 0;
        for (int i = 0; i < D_V; i++)
            sum += of_row(s, m.dd, t, head, D_V, i) * s.x(t, head, i);
        STORE_ddt(row_address(args.operands[ddt_OPERAND], t, ddt_BYTES), head, sum);
#endif
#ifdef ddecay_OPERAND
        if (s.begin(t) < (int)t)
            continue;
        int end = s.end(t);
        REAL after = 0;
        for (int j = t; j < end; j++)
            after += of_row(s, m.behind, j, head, 1, 0);
        for (int j = end - 1; j >= (int)t; j--) {
            after += of_row(s, m.sums, j, head, 1, 0);
            STORE_ddecay(row_address(args.operands[ddecay_OPERAND], j, ddecay_BYTES), head,
                         s.place(j) == 0 ? (REAL)0 : after);
        }
#endif
    }
    FOR_OWN(one, i, 1, s.heads * STATE, 1) {
        STORE_WIDE(args.operands[dstate_OPERAND].address, i, LOAD_WIDE(slot_of(s, m.dstates, m.slots), i));
    }
}

#endif
