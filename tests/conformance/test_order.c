/* test_order.c: fences. Random programs of `dst = 2 dst + a`, copies and fills on two queues, over whole
 * numbers so that any device gives the exact result. With every conflict fenced, each device must be right;
 * on the shuffle device, leaving out one needed fence must show. */
#include "tests/conformance/conformance.h"

#include "ir/lex.h"

enum { BUFFERS = 6, SIDE = 4, COMMANDS = 24, ELEMS = SIDE * SIDE };

static const char mix_text[] = "kernel @mix f64 heads 1 n 4 { in y : f64 [row elem] length 4 "
                               "in a : f64 [row elem] length 4 out z : f64 [row elem] length 4 "
                               "%0 = load y %1 = load a %2 = add %0, %0 %3 = add %2, %1 store z, %3 }";

typedef struct action {
    sbp_command command;
    int dst, a; /* buffers; -1: absent */
} action;

typedef struct sequence {
    action actions[COMMANDS];
    bool fence[COMMANDS][2][2]; /* before each action: [from][to] */
} sequence;

static bool touches(const action *x, int buffer) {
    return x->dst == buffer || x->a == buffer;
}

static bool conflict(const action *x, const action *y) {
    return touches(y, x->dst) || touches(x, y->dst);
}

static void make_sequence(sbp_rng *rng, sequence *s) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < COMMANDS; i++) {
        action *x = &s->actions[i];
        x->a = -1;
        x->dst = (int)sbp_rng_below(rng, BUFFERS);
        x->command.flushes = -1;
        x->command.queue = (int)sbp_rng_below(rng, 2);
        int64_t kind = sbp_rng_below(rng, 10);
        if (kind == 0) {
            x->command.kind = SBP_CMD_FILL;
            x->command.u.fill = i + 10;
            continue;
        }
        x->command.kind = kind < 4 ? SBP_CMD_COPY : SBP_CMD_ROW;
        do
            x->a = (int)sbp_rng_below(rng, BUFFERS);
        while (x->a == x->dst);
    }
    /* A fence for each conflict that no fence since then covers. */
    for (int i = 0; i < COMMANDS; i++) {
        const action *x = &s->actions[i];
        for (int j = 0; j < i; j++) {
            int from = s->actions[j].command.queue, to = x->command.queue;
            bool covered = false;
            for (int k = j + 1; k <= i; k++)
                covered |= s->fence[k][from][to];
            if (!covered && conflict(&s->actions[j], x))
                s->fence[i][from][to] = true;
        }
    }
}

/* Whether all conflicting actions are still in order when one fence is left out: directly, or by way of
 * others. */
static bool still_ordered(const sequence *s, int skip_at, int skip_from, int skip_to) {
    bool before[COMMANDS][COMMANDS] = {{false}};
    for (int j = 0; j < COMMANDS; j++)
        for (int i = j - 1; i >= 0; i--) {
            int from = s->actions[i].command.queue, to = s->actions[j].command.queue;
            for (int k = i + 1; k <= j; k++)
                before[i][j] |=
                    s->fence[k][from][to] && !(k == skip_at && from == skip_from && to == skip_to);
            for (int k = i + 1; k < j; k++)
                before[i][j] |= before[i][k] && before[k][j];
            if (!before[i][j] && conflict(&s->actions[i], &s->actions[j]))
                return false;
        }
    return true;
}

static void run_host(const sequence *s, double *x) {
    for (int i = 0; i < COMMANDS; i++) {
        const action *c = &s->actions[i];
        double *dst = x + c->dst * ELEMS;
        for (int e = 0; e < ELEMS; e++)
            dst[e] = c->command.kind == SBP_CMD_FILL   ? c->command.u.fill
                     : c->command.kind == SBP_CMD_COPY ? x[c->a * ELEMS + e]
                                                       : 2 * dst[e] + x[c->a * ELEMS + e];
    }
}

static sbp_span span_of(int buffer) {
    return buffer < 0 ? (sbp_span){.space = SBP_SPACE_COUNT}
                      : (sbp_span){.space = SBP_DEVICE,
                                   .dtype = SBP_F64,
                                   .offset = buffer * ELEMS * 8,
                                   .rows = SIDE,
                                   .cols = SIDE,
                                   .stride = SIDE};
}

/* Runs s, leaving out the fence before action `skip_at` from `skip_from` to `skip_to`. */
static void run_device(const sbp_device_class *class, uint64_t seed, const sequence *s, const double *before,
                       double *after, int skip_at, int skip_from, int skip_to) {
    sbp_arena *arena = sbp_arena_create();
    sbp_diag *diag = sbp_diag_create();
    sbp_program *program = sbp_program_create(arena, "order");
    program->arena_bytes[SBP_DEVICE] = BUFFERS * ELEMS * 8;
    sbp_lexer lexer;
    sbp_rowkernel *kernel;
    CHECK_OK(sbp_lexer_init(&lexer, arena, diag, "mix", mix_text, strlen(mix_text)), diag);
    CHECK_OK(sbp_rowkernel_parse(&lexer, arena, &kernel), diag);
    sbp_program_add_kernel(arena, program, kernel);
    sbp_device_options options = {.threads = 2, .shuffle_seed = seed};
    sbp_span spans[COMMANDS][3];
    sbp_dispatch dispatches[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) {
        const action *x = &s->actions[i];
        spans[i][0] = spans[i][2] = span_of(x->dst);
        spans[i][1] = span_of(x->a);
        dispatches[i] = (sbp_dispatch){.command = &x->command, .spans = spans[i], .rows = SIDE};
        dispatches[i].span_count = x->command.kind == SBP_CMD_FILL   ? 1
                                   : x->command.kind == SBP_CMD_COPY ? 2
                                                                     : 3;
        dispatches[i].kernel = x->command.kind == SBP_CMD_ROW ? kernel : NULL;
    }
    sbp_device *device = suite_open(class, &options, arena, program, dispatches, COMMANDS, diag);
    CHECK_OK(class->write(device, SBP_DEVICE, 0, before, BUFFERS * ELEMS * 8, diag), diag);
    for (int i = 0; i < COMMANDS; i++) {
        for (int from = 0; from < 2; from++)
            for (int to = 0; to < 2; to++)
                if (s->fence[i][from][to] && !(i == skip_at && from == skip_from && to == skip_to)) {
                    sbp_command fence = {.kind = SBP_CMD_FENCE, .flushes = -1};
                    fence.u.fence.from = from;
                    fence.u.fence.to = to;
                    sbp_dispatch dispatch = {.command = &fence};
                    CHECK_OK(class->submit(device, &dispatch, diag), diag);
                }
        CHECK_OK(class->submit(device, &dispatches[i], diag), diag);
    }
    CHECK_OK(class->read(device, SBP_DEVICE, 0, after, BUFFERS * ELEMS * 8, diag), diag);
    class->destroy(device);
    sbp_diag_destroy(diag);
    sbp_arena_destroy(arena);
}

static void random_buffers(sbp_rng *rng, double *x) {
    for (int i = 0; i < BUFFERS * ELEMS; i++)
        x[i] = (double)sbp_rng_below(rng, 3) - 1;
}

/* Numbers stay whole and below 2^53, so that sums in any order are exact. */
static bool is_exact(const double *x) {
    for (int i = 0; i < BUFFERS * ELEMS; i++)
        if (!(x[i] < 0x1p50 && x[i] > -0x1p50))
            return false;
    return true;
}

static void test_order_fenced(void **state) {
    (void)state;
    sbp_rng rng = {1};
    for (int i = 0; i < 150; i++) {
        sequence s;
        double before[BUFFERS * ELEMS], expected[BUFFERS * ELEMS], after[BUFFERS * ELEMS];
        make_sequence(&rng, &s);
        random_buffers(&rng, before);
        memcpy(expected, before, sizeof before);
        run_host(&s, expected);
        if (!is_exact(expected))
            continue;
        run_device(suite_device(), sbp_rng_next(&rng), &s, before, after, -1, 0, 0);
        assert_memory_equal(expected, after, sizeof after);
    }
}

/* On the shuffle device each fence that matters is missed: some order without it gives another result. */
static void test_order_mutated(void **state) {
    (void)state;
    const sbp_device_class *shuffle = suite_find_device("cpu-shuffle");
    sbp_rng rng = {2};
    int removed = 0, noticed = 0;
    for (int i = 0; i < 6; i++) {
        sequence s;
        double before[BUFFERS * ELEMS], expected[BUFFERS * ELEMS], after[BUFFERS * ELEMS];
        make_sequence(&rng, &s);
        random_buffers(&rng, before);
        memcpy(expected, before, sizeof before);
        run_host(&s, expected);
        for (int at = 0; at < COMMANDS; at++)
            for (int pair = 0; pair < 4; pair++) {
                if (!s.fence[at][pair / 2][pair % 2] || still_ordered(&s, at, pair / 2, pair % 2))
                    continue;
                removed++;
                bool differs = false;
                for (uint64_t seed = 0; seed < 100 && !differs; seed++) {
                    run_device(shuffle, seed, &s, before, after, at, pair / 2, pair % 2);
                    differs = memcmp(expected, after, sizeof after) != 0;
                }
                noticed += differs;
            }
    }
    /* Results may be overwritten unread. */
    print_message("%d of %d missing fences noticed\n", noticed, removed);
    assert_true(removed > 20 && noticed * 10 > removed * 6);
}

const struct CMUnitTest suite_order_tests[] = {cmocka_unit_test(test_order_fenced),
                                               cmocka_unit_test(test_order_mutated)};
const int suite_order_count = SBP_COUNT(suite_order_tests);
