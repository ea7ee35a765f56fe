/* test_order.c: fences. Random programs of `dst = 2 dst + a`, copies and fills on all queues, between buffers
 * of all spaces, over whole numbers so that any device gives the exact result. With every conflict fenced,
 * each device must be right; on the shuffle device, leaving out one needed fence must show. */
#include "tests/conformance/conformance.h"

#include "ir/base/lex.h"

enum {
    BUFFERS = 8,
    SIDE = 4,
    COMMANDS = 24,
    ELEMS = SIDE * SIDE,
    QUEUES = SBP_QUEUE_COUNT,
    PAIRS = QUEUES * QUEUES
};

static const sbp_space space_of[BUFFERS] = {SBP_DEVICE, SBP_DEVICE, SBP_DEVICE, SBP_HOST,
                                            SBP_HOST,   SBP_HOST,   SBP_DISK,   SBP_DISK};

static const char mix_text[] = "kernel @mix f64 heads 1 n 4 { in y : f64 [row elem] length 4 "
                               "in a : f64 [row elem] length 4 out z : f64 [row elem] length 4 "
                               "%0 = load y %1 = load a %2 = add %0, %0 %3 = add %2, %1 store z, %3 }";

typedef struct action {
    sbp_command command;
    int dst, a; /* buffers; -1: absent */
} action;

typedef struct sequence {
    action actions[COMMANDS];
    bool fence[COMMANDS][PAIRS]; /* before each action: from QUEUES + to */
} sequence;

static bool touches(const action *x, int buffer) {
    return x->dst == buffer || x->a == buffer;
}

static bool conflict(const action *x, const action *y) {
    return touches(y, x->dst) || touches(x, y->dst);
}

/* Whether a queue leads from one space to the other, and runs the command. */
static bool may_be(const action *x) {
    return x->command.queue == SBP_QUEUE_COMPUTE || x->command.queue == SBP_QUEUE_HOST ||
           (x->command.queue < SBP_QUEUE_COUNT && x->command.kind == SBP_CMD_COPY);
}

static void make_sequence(sbp_rng *rng, sequence *s) {
    memset(s, 0, sizeof *s);
    for (int i = 0; i < COMMANDS; i++) {
        action *x = &s->actions[i];
        x->a = -1;
        x->command.flushes = -1;
        int64_t kind = sbp_rng_below(rng, 10);
        x->command.kind = kind == 0 ? SBP_CMD_FILL : kind < 6 ? SBP_CMD_COPY : SBP_CMD_ROW;
        do {
            x->dst = (int)sbp_rng_below(rng, BUFFERS);
            x->a = (int)sbp_rng_below(rng, BUFFERS);
            x->command.queue = (int32_t)sbp_queue_of_copy(space_of[x->dst], space_of[x->a]);
        } while (x->a == x->dst || !may_be(x));
        if (x->command.kind == SBP_CMD_FILL) {
            x->command.u.fill = i + 10;
            x->a = -1;
        }
    }
    /* A fence for each conflict that no fence since then covers. */
    for (int i = 0; i < COMMANDS; i++) {
        const action *x = &s->actions[i];
        for (int j = 0; j < i; j++) {
            int from = s->actions[j].command.queue, to = x->command.queue;
            bool covered = false;
            for (int k = j + 1; k <= i; k++)
                covered |= s->fence[k][from * QUEUES + to];
            if (!covered && conflict(&s->actions[j], x))
                s->fence[i][from * QUEUES + to] = true;
        }
    }
}

/* Whether all conflicting actions are still in order when one fence is left out: directly, or by way of
 * others. */
static bool still_ordered(const sequence *s, int skip_at, int skip_pair) {
    bool before[COMMANDS][COMMANDS] = {{false}};
    for (int j = 0; j < COMMANDS; j++)
        for (int i = j - 1; i >= 0; i--) {
            int pair = s->actions[i].command.queue * QUEUES + s->actions[j].command.queue;
            for (int k = i + 1; k <= j; k++)
                before[i][j] |= s->fence[k][pair] && !(k == skip_at && pair == skip_pair);
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

/* Buffers of a space lie behind each other, on disk at its blocks. */
static int64_t offset_of(int buffer) {
    int64_t unit = space_of[buffer] == SBP_DISK ? SBP_DISK_ALIGNMENT : ELEMS * 8, offset = 0;
    for (int b = 0; b < buffer; b++)
        offset += space_of[b] == space_of[buffer] ? unit : 0;
    return offset;
}

static sbp_span span_of(int buffer) {
    return buffer < 0 ? (sbp_span){.space = SBP_SPACE_COUNT}
                      : (sbp_span){.space = space_of[buffer],
                                   .dtype = SBP_F64,
                                   .offset = offset_of(buffer),
                                   .rows = SIDE,
                                   .cols = SIDE,
                                   .stride = SIDE};
}

/* Runs s, leaving out the fence `skip_pair` before action `skip_at`. */
static void run_device(const sbp_device_class *class, uint64_t seed, const sequence *s, const double *before,
                       double *after, int skip_at, int skip_pair) {
    sbp_arena *arena = sbp_arena_create();
    sbp_diag *diag = sbp_diag_create();
    sbp_program *program = sbp_program_create(arena, "order");
    for (int b = 0; b < BUFFERS; b++)
        program->arena_bytes[space_of[b]] = offset_of(b) + ELEMS * 8;
    sbp_lexer lexer;
    sbp_rowkernel *kernel;
    CHECK_OK(sbp_lexer_init(&lexer, arena, diag, "mix", mix_text, strlen(mix_text)), diag);
    CHECK_OK(sbp_rowkernel_parse(&lexer, arena, &kernel), diag);
    sbp_program_add_kernel(arena, program, kernel);
    sbp_device_options options = {.threads = 2, .shuffle_seed = seed, .offload_dir = "."};
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
    for (int b = 0; b < BUFFERS; b++)
        CHECK_OK(class->write(device, space_of[b], offset_of(b), before + b * ELEMS, ELEMS * 8, diag), diag);
    for (int i = 0; i < COMMANDS; i++) {
        for (int pair = 0; pair < PAIRS; pair++)
            if (s->fence[i][pair] && !(i == skip_at && pair == skip_pair)) {
                sbp_command fence = {.kind = SBP_CMD_FENCE, .flushes = -1};
                fence.u.fence.from = pair / QUEUES;
                fence.u.fence.to = pair % QUEUES;
                sbp_dispatch dispatch = {.command = &fence};
                CHECK_OK(class->submit(device, &dispatch, diag), diag);
            }
        CHECK_OK(class->submit(device, &dispatches[i], diag), diag);
    }
    for (int b = 0; b < BUFFERS; b++)
        CHECK_OK(class->read(device, space_of[b], offset_of(b), after + b * ELEMS, ELEMS * 8, diag), diag);
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
    if (suite_lacks(SBP_CMD_FILL) || suite_lacks(SBP_CMD_COPY) || suite_lacks(SBP_CMD_ROW))
        skip();
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
        run_device(suite_device(), sbp_rng_next(&rng), &s, before, after, -1, 0);
        assert_memory_equal(expected, after, sizeof after);
    }
}

/* On the shuffle device each fence that matters is missed: some order without it gives another result. */
static void test_order_mutated(void **state) {
    (void)state;
    const sbp_device_class *shuffle = suite_find_device("cpu-shuffle");
    if (suite_device() != shuffle) /* it would be the same once more */
        return;
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
            for (int pair = 0; pair < PAIRS; pair++) {
                if (!s.fence[at][pair] || still_ordered(&s, at, pair))
                    continue;
                removed++;
                bool differs = false;
                for (uint64_t seed = 0; seed < 100 && !differs; seed++) {
                    run_device(shuffle, seed, &s, before, after, at, pair);
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
