// delta_rule_bwd.cu: the gradients of delta_rule, in four steps (STEP); of a block the sums of
// ir/program/commands/delta_rule_bwd.c.
//   0  a thread per column of a head's state: forward, keeping S before each block and, if it CORRECTS, v -
//      S^T k of each row, then backward, keeping dS behind each block and dR of each row; dv
//   1  a thread per row, head and row before it in the block: C, and B if it CORRECTS
//   2  a block per row and head of k: dq, dk over its heads of v in their order, and what dc of a row is
//   3  a thread per row and head: dbeta; ddecay of a block; dstate
DEVICE REAL load_do_of(const Delta &c, int t, int head, int i) {
    return LOAD_do(row_address(c.args.operands[do_OPERAND], t, do_BYTES), head * D_V + i);
}
// What row j adds to the state, before it has beta times.
DEVICE REAL added(const Delta &c, const Scratch &s, int j, int head, int i) {
    return CORRECTS ? of_row(c, s.errors, j, head, D_V, i) : c.v(j, head, i);
}
// e^(c_t - c_j) of rows of a block, by the decays between them: where others are large, little would be left
// of a difference.
DEVICE REAL between(const Delta &c, int t, int j, int head) {
    REAL sum = 0;
    for (j++; j <= t; j++)
        sum += c.decay(j, head);
    return EXP(sum);
}

#if STEP == 0

DEVICE void forward_column(const Delta &c, const Scratch &s, int head, int column) {
    Column state(slot_of(c, s.states, s.slots), head, column);
    REAL decays = 0;
    state.copy(Column(c.args.operands[state_OPERAND].address, head, column));
    for (int t = 0; t < c.rows; t++) {
        int place = c.place(t);
        if (t > 0 && place > 0 && place % BLOCK == 0)
            Column(slot_of(c, s.states, t / BLOCK), head, column).copy(state);
        if (column == 0) { // in the row where a document begins decay means nothing
            decays = (t == 0 || place % BLOCK == 0 ? (REAL)0 : decays) + (place == 0 ? (REAL)0 : c.decay(t, head));
            set_of_row(c, s.decays, t, head, 1, 0, decays);
        }
        REAL error = advance(c, state, t, head, c.v(t, head, column));
        if (CORRECTS)
            set_of_row(c, s.errors, t, head, D_V, column, error);
    }
}

DEVICE void backward_column(const Delta &c, const Scratch &s, int head, int column) {
    Column dstate(slot_of(c, s.dstates, s.slots), head, column);
    dstate.copy(Column(c.args.operands[dstate_OPERAND].address, head, column));
    for (int t = c.rows - 1; t >= 0; t--) {
        int place = c.place(t);
        REAL given = load_do_of(c, t, head, column), dr = 0, beta = c.beta(t, head);
        REAL factor = place == 0 ? (REAL)0 : EXP(c.decay(t, head));
        for (int i = 0; i < D_K; i++) {
            REAL x = dstate.at(i) + c.q(t, head, i) * given;
            dstate.set(i, CORRECTS ? x : place == 0 ? (REAL)0 : x * factor);
            dr += x * c.k(t, head, i);
        }
        set_of_row(c, s.dr, t, head, D_V, column, dr);
#ifdef dv_OPERAND
        STORE_dv(row_address(c.args.operands[dv_OPERAND], t, dv_BYTES), head * D_V + column, beta * dr);
#endif
        for (int i = 0; i < D_K && CORRECTS; i++)
            dstate.set(i, place == 0 ? (REAL)0 : (dstate.at(i) - c.k(t, head, i) * beta * dr) * factor);
        if (t > 0 && place > 0 && place % BLOCK == 0)
            Column(slot_of(c, s.dstates, t / BLOCK), head, column).copy(dstate);
    }
}

KERNEL(256) {
    const Delta c(args);
    const Scratch s(c);
    FOR_OWN(head, column, c.heads, D_V, 1) {
        forward_column(c, s, head, column);
        backward_column(c, s, head, column);
    }
}

#elif STEP == 1

KERNEL(256) {
    const Delta c(args);
    const Scratch s(c);
    FOR_OWN(t, pair, c.rows, c.heads * BLOCK, 1) {
        int head = pair / BLOCK, at = pair % BLOCK, j = c.begin(t) + at;
        if (j > (int)t)
            continue;
        REAL dp = 0;
#if CORRECTS
        REAL da = 0;
        for (int i = 0; i < D_V; i++) {
            REAL d = c.beta(j, head) * added(c, s, j, head, i);
            dp += load_do_of(c, t, head, i) * d;
            da -= of_row(c, s.dr, t, head, D_V, i) * d;
        }
        REAL factor = between(c, t, j, head);
        set_of_row(c, s.b, t, head, BLOCK, at, j < (int)t ? da * c.beta(t, head) * factor : (REAL)0);
#else
        for (int i = 0; i < D_V; i++)
            dp += load_do_of(c, t, head, i) * added(c, s, j, head, i);
        dp *= c.beta(j, head);
        REAL factor = between(c, t, j, head);
#endif
        set_of_row(c, s.c, t, head, BLOCK, at, dp * factor);
    }
}

#elif STEP == 2

// Column i of row t of dq, dk, and what both say of dc: of row t, and of the last row of its block.
struct Parts {
    REAL dq, dk, dc, behind;
};

DEVICE Parts parts_of(const Delta &c, const Scratch &s, int t, int head, int i) {
    int begin = c.begin(t), end = c.end(t);
    u64 state = c.args.operands[state_OPERAND].address, dstate = c.args.operands[dstate_OPERAND].address;
    if (begin > 0)
        state = slot_of(c, s.states, begin / BLOCK);
    if (end < c.rows)
        dstate = slot_of(c, s.dstates, end / BLOCK);
    bool after = c.place(begin) > 0, before = end == c.rows || c.place(end) > 0; // there is S, there is dS
    u64 from = (u64)head * STATE + (u64)i * D_V;
    REAL q_part = 0, k_part = 0, behind = 0, both = 0;
    for (int x = 0; x < D_V && after; x++) {
        REAL value = LOAD_WIDE(state, from + x);
        q_part += value * load_do_of(c, t, head, x);
        if (CORRECTS)
            k_part -= value * of_row(c, s.dr, t, head, D_V, x);
        if (before && t == end - 1)
            both += value * LOAD_WIDE(dstate, from + x);
    }
    for (int x = 0; x < D_V && before; x++)
        behind += LOAD_WIDE(dstate, from + x) *
                  (CORRECTS ? c.beta(t, head) * added(c, s, t, head, x) : added(c, s, t, head, x));
    REAL factor = EXP(of_row(c, s.decays, t, head, 1, 0)), k = c.k(t, head, i);
    q_part *= factor;
    if (CORRECTS)
        k_part *= factor * c.beta(t, head);
    behind *= CORRECTS ? between(c, end - 1, t, head) : c.beta(t, head) * between(c, end - 1, t, head);
    REAL k_column = behind; // of rows that come after t
    for (int j = begin; j <= t; j++) {
        q_part += of_row(c, s.c, t, head, BLOCK, j - begin) * c.k(j, head, i);
        if (CORRECTS)
            k_part += of_row(c, s.b, t, head, BLOCK, j - begin) * c.k(j, head, i);
    }
    for (int j = t; j < end; j++) {
        REAL of_q = of_row(c, s.c, j, head, BLOCK, t - begin) * c.q(j, head, i);
        k_column += CORRECTS ? of_q + of_row(c, s.b, j, head, BLOCK, t - begin) * c.k(j, head, i) : of_q;
    }
    REAL of_k = CORRECTS ? k * (k_part - k_column) : -(k * k_column);
    return {q_part, CORRECTS ? k_part + k_column : k_column, c.q(t, head, i) * q_part + of_k + both * factor,
            k * behind};
}

KERNEL(128) {
    const Delta c(args);
    const Scratch s(c);
    int keys = args.ints[1], t = group_number() / keys, key = group_number() % keys;
    for (int first = 0; first < D_K; first += LOCAL) {
        int i = first + LANE;
        REAL dq = 0, dk = 0;
        for (int head = key * c.group; head < (key + 1) * c.group; head++) {
            Parts parts = {0, 0, 0, 0};
            if (i < D_K)
                parts = parts_of(c, s, t, head, i);
            dq += parts.dq;
            dk += parts.dk;
            REAL dc = group_sum(parts.dc), behind = group_sum(parts.behind);
            if (LANE == 0) {
                set_of_row(c, s.dc, t, head, 1, 0, first > 0 ? of_row(c, s.dc, t, head, 1, 0) + dc : dc);
                set_of_row(c, s.behind, t, head, 1, 0,
                           first > 0 ? of_row(c, s.behind, t, head, 1, 0) + behind : behind);
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

KERNEL(256) {
    const Delta c(args);
    const Scratch s(c);
    FOR_OWN(t, head, c.rows, c.heads, 1) {
#ifdef dbeta_OPERAND
        REAL sum = 0;
        for (int i = 0; i < D_V; i++)
            sum += of_row(c, s.dr, t, head, D_V, i) * added(c, s, t, head, i);
        STORE_dbeta(row_address(args.operands[dbeta_OPERAND], t, dbeta_BYTES), head, sum);
#endif
#ifdef ddecay_OPERAND
        if (c.begin(t) < (int)t)
            continue;
        int end = c.end(t);
        REAL after = 0;
        for (int j = t; j < end; j++)
            after += of_row(c, s.behind, j, head, 1, 0);
        for (int j = end - 1; j >= (int)t; j--) {
            after += of_row(c, s.dc, j, head, 1, 0);
            STORE_ddecay(row_address(args.operands[ddecay_OPERAND], j, ddecay_BYTES), head,
                         c.place(j) == 0 ? (REAL)0 : after);
        }
#endif
    }
    FOR_OWN(one, i, 1, c.heads * STATE, 1) {
        STORE_WIDE(args.operands[dstate_OPERAND].address, i, LOAD_WIDE(slot_of(c, s.dstates, s.slots), i));
    }
}

#endif
