/* seq.c: the lattice of sequence dependence. */
#include "ir/graph/seq.h"

const char *sbp_seq_name(sbp_seq_kind kind) {
    static const char *const names[SBP_SEQ_COUNT] = {
        "NONE", "ROW", "WINDOW", "RECUR", "PREFIX", "MIRROR", "AFTER", "SUFFIX", "GROUP", "REDUCE", "ALL"};
    return names[kind];
}

sbp_seq sbp_seq_of(sbp_seq_kind kind) {
    return (sbp_seq){.kind = kind};
}

sbp_seq sbp_seq_windowed(int64_t window) {
    return window > 0 ? (sbp_seq){.kind = SBP_SEQ_WINDOW, .window = window} : sbp_seq_of(SBP_SEQ_PREFIX);
}

static int looks_back(sbp_seq_kind kind) {
    return kind == SBP_SEQ_WINDOW || kind == SBP_SEQ_RECUR || kind == SBP_SEQ_PREFIX;
}

static int looks_ahead(sbp_seq_kind kind) {
    return kind == SBP_SEQ_MIRROR || kind == SBP_SEQ_AFTER || kind == SBP_SEQ_SUFFIX;
}

/* The smaller of two kinds that contains both, for values with rows; windows are left to the caller. */
static sbp_seq_kind upper(sbp_seq_kind a, sbp_seq_kind b) {
    if (a == b)
        return a;
    sbp_seq_kind low = a < b ? a : b, high = a < b ? b : a;
    if (low == SBP_SEQ_NONE || low == SBP_SEQ_ROW)
        return high;
    if (low == SBP_SEQ_WINDOW &&
        high == SBP_SEQ_RECUR) /* one reaches into a shared prompt, one is unbounded */
        return SBP_SEQ_PREFIX;
    if (low == SBP_SEQ_MIRROR && high == SBP_SEQ_AFTER)
        return SBP_SEQ_SUFFIX;
    if ((looks_back(low) && looks_back(high)) || (looks_ahead(low) && looks_ahead(high)))
        return high; /* the unbounded one is the larger number */
    return SBP_SEQ_ALL;
}

sbp_seq sbp_seq_compose(sbp_seq outer, sbp_seq inner, int z_rows) {
    if (inner.kind == SBP_SEQ_NONE)
        return inner;                 /* x has no rows */
    if (inner.kind == SBP_SEQ_REDUCE) /* y has no rows: every row of z, or z itself, reads all rows of x */
        return sbp_seq_of(z_rows ? SBP_SEQ_ALL : SBP_SEQ_REDUCE);
    if (outer.kind == SBP_SEQ_REDUCE)
        return sbp_seq_of(SBP_SEQ_REDUCE);
    sbp_seq result = sbp_seq_of(upper(outer.kind, inner.kind));
    if (result.kind == SBP_SEQ_WINDOW || result.kind == SBP_SEQ_MIRROR) {
        int64_t a = outer.kind == result.kind ? outer.window : 1,
                b = inner.kind == result.kind ? inner.window : 1;
        result.window = a + b - 1;
    }
    return result;
}

sbp_seq sbp_seq_join(sbp_seq a, sbp_seq b) {
    if (a.kind == SBP_SEQ_REDUCE || b.kind == SBP_SEQ_REDUCE) /* the result has no rows */
        return sbp_seq_of(SBP_SEQ_REDUCE);
    sbp_seq result = sbp_seq_of(upper(a.kind, b.kind));
    if (result.kind == SBP_SEQ_WINDOW || result.kind == SBP_SEQ_MIRROR) {
        int64_t wa = a.kind == result.kind ? a.window : 1, wb = b.kind == result.kind ? b.window : 1;
        result.window = wa > wb ? wa : wb;
    }
    return result;
}

sbp_seq sbp_seq_transpose(sbp_seq seq) {
    switch (seq.kind) {
    case SBP_SEQ_WINDOW:
        return (sbp_seq){.kind = SBP_SEQ_MIRROR, .window = seq.window};
    case SBP_SEQ_MIRROR:
        return (sbp_seq){.kind = SBP_SEQ_WINDOW, .window = seq.window};
    case SBP_SEQ_RECUR:
        return sbp_seq_of(SBP_SEQ_AFTER);
    case SBP_SEQ_AFTER:
        return sbp_seq_of(SBP_SEQ_RECUR);
    case SBP_SEQ_PREFIX:
        return sbp_seq_of(SBP_SEQ_SUFFIX);
    case SBP_SEQ_SUFFIX:
        return sbp_seq_of(SBP_SEQ_PREFIX);
    case SBP_SEQ_NONE:
        return sbp_seq_of(SBP_SEQ_REDUCE);
    case SBP_SEQ_REDUCE:
        return sbp_seq_of(SBP_SEQ_NONE);
    default:
        return seq;
    }
}
