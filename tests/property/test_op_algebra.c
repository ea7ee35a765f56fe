/* test_op_algebra.c: the lattice of sequence dependence (ir/graph/seq.h) against relations between rows,
 * written out: composing, joining and transposing kinds gives a kind that contains the composed, joined,
 * transposed relation, on documents, shared prompts and groups of every kind; and no smaller kind would do.
 */
#include <stdio.h>
#include <string.h>

#include "tests/common/documents.h"
#include "tests/common/testing.h"

enum { ROWS = 12, GROUPS = 3, KINDS = 16, LAYOUTS = 40 };

/* reads[r][s]: row r of the result may depend on row s of the operand. A value without rows has one. */
typedef struct relation {
    int64_t to, from;
    bool reads[ROWS][ROWS];
} relation;

typedef struct layout {
    documents rows;
    int64_t group[ROWS];
} layout;

static layout random_layout(testing *t) {
    layout l = {.rows = documents_random(ROWS, &t->rng)};
    for (int r = 0; r < ROWS; r++)
        l.group[r] = sbp_rng_below(&t->rng, GROUPS);
    return l;
}

/* Every kind, windows of 2, 3 and 5 rows. */
static int all_kinds(sbp_seq *out) {
    static const int64_t windows[] = {2, 3, 5}; /* of 1 it is ROW, which nobody relies on */
    int count = 0;
    for (int kind = 0; kind < SBP_SEQ_COUNT; kind++) {
        bool windowed = kind == SBP_SEQ_WINDOW || kind == SBP_SEQ_MIRROR;
        for (int w = 0; w < (windowed ? SBP_COUNT(windows) : 1); w++)
            out[count++] = (sbp_seq){.kind = (sbp_seq_kind)kind, .window = windowed ? windows[w] : 0};
    }
    return count;
}

/* What the kind allows, for a result with rows (or without). NONE: the operand has no rows. */
static relation relation_of(const layout *l, sbp_seq seq, bool to_rows) {
    relation m = {.to = to_rows ? ROWS : 1, .from = seq.kind == SBP_SEQ_NONE ? 1 : ROWS};
    for (int64_t r = 0; r < m.to; r++)
        for (int64_t s = 0; s < m.from; s++) {
            if (seq.kind == SBP_SEQ_NONE || seq.kind == SBP_SEQ_REDUCE || seq.kind == SBP_SEQ_ALL)
                m.reads[r][s] = true;
            else if (seq.kind == SBP_SEQ_GROUP)
                m.reads[r][s] = l->group[r] == l->group[s];
            else
                m.reads[r][s] = documents_allow(&l->rows, seq, r, s);
        }
    return m;
}

static bool contains(const relation *large, const relation *small) {
    for (int64_t r = 0; r < small->to; r++)
        for (int64_t s = 0; s < small->from; s++)
            if (small->reads[r][s] && !large->reads[r][s])
                return false;
    return true;
}

/* outer after inner */
static relation product(const relation *outer, const relation *inner) {
    relation m = {.to = outer->to, .from = inner->from};
    for (int64_t r = 0; r < m.to; r++)
        for (int64_t k = 0; k < outer->from; k++)
            for (int64_t s = 0; outer->reads[r][k] && s < m.from; s++)
                m.reads[r][s] |= inner->reads[k][s];
    return m;
}

static const char *name_of(testing *t, sbp_seq seq) {
    return sbp_arena_printf(t->arena, "%s %lld", sbp_seq_name(seq.kind), (long long)seq.window);
}

/* Whether the kinds fit: the operand that `outer` reads has rows as `inner`'s result has. */
static bool fits(sbp_seq outer, sbp_seq inner, bool to_rows) {
    if (outer.kind == SBP_SEQ_NONE) /* what it reads has no rows */
        return inner.kind == SBP_SEQ_NONE || inner.kind == SBP_SEQ_REDUCE;
    return inner.kind != SBP_SEQ_REDUCE && to_rows == (outer.kind != SBP_SEQ_REDUCE);
}

static void compositions(void **state) {
    (void)state;
    sbp_seq kinds[KINDS];
    int count = all_kinds(kinds), pairs = 0;
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++)
            for (int to_rows = 0; to_rows < 2; to_rows++) {
                if (!fits(kinds[a], kinds[b], to_rows))
                    continue;
                pairs++;
                testing t = testing_open((uint64_t)(a * KINDS + b));
                sbp_seq result = sbp_seq_compose(kinds[a], kinds[b], to_rows);
                bool fails[KINDS] = {false};    /* does not always contain the product, or is not smaller */
                bool properly[KINDS] = {false}; /* sometimes smaller than the result */
                for (int n = 0; n < LAYOUTS; n++) {
                    layout l = random_layout(&t);
                    bool middle_rows = kinds[b].kind != SBP_SEQ_REDUCE &&
                                       !(kinds[b].kind == SBP_SEQ_NONE && kinds[a].kind == SBP_SEQ_NONE);
                    relation outer = relation_of(&l, kinds[a], to_rows),
                             inner = relation_of(&l, kinds[b], middle_rows), both = product(&outer, &inner),
                             claimed = relation_of(&l, result, to_rows);
                    if (claimed.from != both.from || !contains(&claimed, &both))
                        fail_msg("%s of %s is no %s", name_of(&t, kinds[a]), name_of(&t, kinds[b]),
                                 name_of(&t, result));
                    for (int k = 0; k < count; k++) {
                        relation other = relation_of(&l, kinds[k], to_rows);
                        fails[k] |= other.from != both.from || !contains(&other, &both) ||
                                    !contains(&claimed, &other);
                        properly[k] |= !contains(&other, &claimed);
                    }
                }
                for (int k = 0; k < count; k++) /* no smaller kind would always do */
                    if (!fails[k] && properly[k])
                        fail_msg("%s of %s is %s already, not %s", name_of(&t, kinds[a]),
                                 name_of(&t, kinds[b]), name_of(&t, kinds[k]), name_of(&t, result));
                testing_close(&t);
            }
    printf("  %d compositions\n", pairs);
    assert_true(pairs > 100);
}

static void joins_and_transposes(void **state) {
    (void)state;
    sbp_seq kinds[KINDS];
    int count = all_kinds(kinds);
    testing t = testing_open(1);
    for (int n = 0; n < LAYOUTS; n++) {
        layout l = random_layout(&t);
        for (int a = 0; a < count; a++) {
            bool a_rows = kinds[a].kind != SBP_SEQ_REDUCE;
            relation m = relation_of(&l, kinds[a], a_rows),
                     turned = relation_of(&l, sbp_seq_transpose(kinds[a]), m.from == ROWS);
            sbp_seq twice = sbp_seq_transpose(sbp_seq_transpose(kinds[a]));
            assert_true(twice.kind == kinds[a].kind && twice.window == kinds[a].window);
            for (int64_t r = 0; r < m.to; r++)
                for (int64_t s = 0; s < m.from; s++)
                    if (m.reads[r][s] != turned.reads[s][r])
                        fail_msg("transpose of %s: row %lld, %lld", name_of(&t, kinds[a]), (long long)r,
                                 (long long)s);
            for (int b = 0; b < count; b++) {
                if ((kinds[b].kind != SBP_SEQ_REDUCE) != a_rows ||
                    (kinds[b].kind == SBP_SEQ_NONE) != (kinds[a].kind == SBP_SEQ_NONE))
                    continue; /* both speak of the same operand and result */
                sbp_seq join = sbp_seq_join(kinds[a], kinds[b]), other = sbp_seq_join(kinds[b], kinds[a]);
                assert_true(join.kind == other.kind && join.window == other.window);
                relation whole = relation_of(&l, join, a_rows), x = relation_of(&l, kinds[a], a_rows),
                         y = relation_of(&l, kinds[b], a_rows);
                if (!contains(&whole, &x) || !contains(&whole, &y))
                    fail_msg("%s is less than %s and %s", name_of(&t, join), name_of(&t, kinds[a]),
                             name_of(&t, kinds[b]));
                if (a == b)
                    assert_true(join.kind == kinds[a].kind && join.window == kinds[a].window);
            }
        }
    }
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(compositions),
                                       cmocka_unit_test(joins_and_transposes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
