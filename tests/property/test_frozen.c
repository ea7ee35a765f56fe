/* test_frozen.c: which parameters are trained changes nothing but what is computed for nothing.
 *
 * Each draw compiles a small model with random --train and --freeze, schedule, types and limits. Either there
 * is a plan, and then its gradients are those of the plan that trains everything (fp64 or bf16, default
 * schedule) for exactly the parameters that the globs leave, and a step of training leaves the others as they
 * were; or the refusal names an option that was given. The commands run in this process, so that a sanitizer
 * sees them. SBP_TEST_ALL=1 draws many times as often; SBP_FROZEN_SEED=N begins elsewhere. */
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>

#include "backends/cpu/cpu_target.h"
#include "frontends/formats/weights/weights.h"
#include "tests/common/in_process.h"
#include "tests/common/testing.h"
#include "tests/rowkernel_random.h"
#include "tests/tolerance.h"

typedef struct subject {
    const char *model, *data;
    int rows, layers; /* rows: of all documents */
    const char *compile;
} subject;

#define ONNX(name) "tests/data/onnx/" name ".json", "$D/rows.jsonl"
#define GOLDEN(name) "tests/golden/" name "/model", "tests/golden/" name "/train.jsonl"

static const subject subjects[] = {
    {GOLDEN("llama_plain"), 94, 3, ""},
    {GOLDEN("gemma3_layer_types"), 94, 4, ""},
    {GOLDEN("qwen2_sliding"), 100, 3, ""},
    {GOLDEN("gemma3_untied_bias"), 79, 2, ""},
    {GOLDEN("llama_tied_pad"), 100, 2, ""},
    {GOLDEN("llama_mqa"), 79, 2, ""},
    {GOLDEN("llama_dft"), 94, 2, "--loss-type dft"},
    {GOLDEN("qwen3_tied"), 55, 2, ""},
    {GOLDEN("lfm2_v"), 121, 3, ""},
    {ONNX("odd_layers"), 16, 4, ""},
    {ONNX("two_widths"), 16, 3, ""},
    {ONNX("side_values"), 16, 5, ""},
};

/* Rows for the models in one file, which have no tokenizer. */
static const char rows[] =
    "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"labels\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n"
    "{\"input_ids\": [11, 12, 13, 4, 5], \"labels\": [-100, 12, 13, 4, 5]}\n"
    "{\"input_ids\": [40, 2], \"labels\": [40, 2]}\n";

enum { MAX_GLOBS = 12, MAX_TENSORS = 128 };

/* What was asked for: the words of the command, and the globs again. */
typedef struct draw {
    const subject *s;
    char words[1400];
    size_t length;
    const char *train[MAX_GLOBS], *freeze[MAX_GLOBS];
    int train_count, freeze_count;
    sbp_dtype dtype;
    double tolerance; /* against what trains everything, in bf16 for bf16 and in fp64 for others */
    bool updates;     /* a step of training is possible and looked at */
} draw;

typedef struct bench {
    io_fixture *f;
    sbp_rng rng;
    sbp_arena *arena;                                    /* names of tensors */
    const char *names[SBP_COUNT(subjects)][MAX_TENSORS]; /* of the unfrozen gradients */
    int name_count[SBP_COUNT(subjects)];
    int planned, refused, tensors, updates, idle; /* idle: plans that train nothing */
} bench;

static int64_t below(bench *b, int64_t n) {
    return sbp_rng_below(&b->rng, n);
}

static void add(draw *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(draw *d, const char *format, ...) {
    va_list args;
    va_start(args, format);
    d->words[d->length++] = ' ';
    d->length += (size_t)vsnprintf(d->words + d->length, sizeof d->words - d->length, format, args);
    va_end(args);
    assert_true(d->length < sizeof d->words);
}

/* ---- draws ------------------------------------------------------------------------------------------- */

/* Its parameters have other names, and so few rows that bf16 leaves little of some gradients. */
static bool is_one_file(const draw *d) {
    return d->s->data[0] == '$';
}

static const char *random_glob(bench *b, const draw *d) {
    static const char *const kinds[] = {"q_proj",       "k_proj",  "v_proj",    "o_proj",
                                        "gate_proj",    "up_proj", "down_proj", "norm",
                                        "embed_tokens", "layers",  "self_attn", "mlp"};
    int number = (int)(d->s - subjects);
    int64_t layer = below(b, d->s->layers), last = layer + below(b, d->s->layers - layer);
    switch (is_one_file(d) ? 4 : below(b, 5)) {
    case 0:
        return sbp_arena_printf(b->arena, "*layers.[%d-%d].*", (int)layer, (int)last);
    case 1:
        return sbp_arena_printf(b->arena, "*%s*", kinds[below(b, SBP_COUNT(kinds))]);
    case 2:
        return sbp_arena_printf(b->arena, "*.%d.*%s*", (int)layer, kinds[below(b, 8)]);
    case 3:
        return sbp_arena_printf(b->arena, "*layers.%d.*", (int)layer);
    default:
        return b->names[number][below(b, b->name_count[number])];
    }
}

static int draw_globs(bench *b, draw *d, const char *option, int most, const char **out) {
    int count = 1 + (int)below(b, most);
    for (int i = 0; i < count; i++) {
        out[i] = random_glob(b, d);
        add(d, "%s %s", option, out[i]);
    }
    return count;
}

static void draw_parts(bench *b, draw *d) {
    int64_t way = below(b, 5);
    if (way < 3)
        d->train_count = draw_globs(b, d, "--train", way == 0 ? MAX_GLOBS : 2, d->train);
    if (way > 1)
        d->freeze_count = draw_globs(b, d, "--freeze", way == 4 ? MAX_GLOBS : 2, d->freeze);
}

static void draw_types(bench *b, draw *d) {
    static const char *const kept[] = {"", "--param-dtype bf16", "--grad-dtype bf16", "--param-dtype fp64"};
    int64_t way = below(b, is_one_file(d) ? 6 : 8);
    d->dtype = way < 6 ? SBP_F64 : way == 6 ? SBP_F32 : SBP_BF16;
    d->tolerance = d->dtype == SBP_BF16 ? SBP_TOLERANCE_BF16_ANY : sbp_tolerance(d->dtype);
    add(d, "--dtype %s", d->dtype == SBP_F64 ? "fp64" : d->dtype == SBP_F32 ? "fp32" : "bf16");
    if (d->dtype == SBP_F64)
        return;
    int64_t k = below(b, SBP_COUNT(kept));
    add(d, "%s", kept[k]);
    if (d->dtype == SBP_F32 && k == 1) /* the frozen ones keep the file's type */
        d->tolerance = SBP_TOLERANCE_BF16_WEIGHTS;
    if (d->dtype == SBP_F32 && k == 2)
        d->tolerance = SBP_TOLERANCE_BF16;
}

static void draw_saved(bench *b, draw *d) {
    static const char *const names[] = {"attn_norm", "q", "k", "v", "attn_out", "lse", "gate", "up", "act"};
    int64_t way = below(b, 6);
    if (way == 0)
        add(d, "--save none");
    if (way > 2)
        return;
    add(d, "--save %s", names[below(b, SBP_COUNT(names))]);
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (way == 2 && below(b, 3) == 0)
            d->length += (size_t)snprintf(d->words + d->length, sizeof d->words - d->length, "+%s", names[i]);
}

static void draw_schedule(bench *b, draw *d) {
    static const char *const modes[] = {"stream", "checkpoint", "standard"};
    static const char *const offload[] = {"auto", "none", "host"};
    if (below(b, 3) == 0)
        add(d, "--backward %s", modes[below(b, SBP_COUNT(modes))]);
    if (below(b, 2))
        add(d, "--chunk %d", 1 + (int)below(b, below(b, 2) ? 16 : 2 * d->s->rows));
    if (below(b, 2))
        add(d, "--head-chunk %d", 1 + (int)below(b, below(b, 2) ? 16 : 2 * d->s->rows));
    if (below(b, 2))
        add(d, "--segment %d", 1 + (int)below(b, d->s->layers + 1));
    if (below(b, 2))
        add(d, "--checkpoint-every %d", 1 + (int)below(b, d->s->layers + 2));
    if (below(b, 3) == 0)
        add(d, "--offload %s", offload[below(b, SBP_COUNT(offload))]);
    draw_saved(b, d);
}

static draw make_draw(bench *b) {
    static const char *const optimizers[] = {"", "--optimizer sgd", "--optimizer none",
                                             "--clip none --accumulate 1"};
    draw d = {.s = &subjects[below(b, SBP_COUNT(subjects))]};
    int64_t optimizer = below(b, SBP_COUNT(optimizers));
    add(&d, "%s %s", d.s->compile, optimizers[optimizer]);
    d.updates = optimizer != 2 && below(b, 4) == 0 && !is_one_file(&d);
    draw_parts(b, &d);
    draw_types(b, &d);
    draw_schedule(b, &d);
    bool limited = below(b, 5) == 0;
    if (limited) /* the process itself takes 6150 KiB more than one without a model */
        add(&d, "--memory %dKiB", (SBP_CPU_RUNTIME_BYTES >> 10) + 6150 + (int)below(b, 1400));
    add(&d, "--seq-len %d", d.s->rows);
    return d;
}

/* ---- what must hold ---------------------------------------------------------------------------------- */

static bool is_trained(const draw *d, const char *name) {
    bool trained = d->train_count == 0;
    for (int i = 0; i < d->train_count; i++)
        trained |= fnmatch(d->train[i], name, 0) == 0;
    for (int i = 0; i < d->freeze_count; i++)
        trained &= fnmatch(d->freeze[i], name, 0) != 0;
    return trained;
}

/* Whether a message contains an option that the draw gave. */
static bool names_an_option(const draw *d, const char *message) {
    for (const char *at = d->words; (at = strstr(at, "--")); at += 2) {
        char option[40];
        snprintf(option, sizeof option, "%.*s", (int)strcspn(at, " "), at);
        if (strstr(message, option))
            return true;
    }
    return false;
}

static double *tensor(const bench *b, sbp_weights *file, const char *name, int64_t *elems) {
    const sbp_weight *w = sbp_weights_find(file, name);
    if (!w)
        return NULL;
    double *data = SBP_NEW_ARRAY(b->f->arena, double, w->elems + 1);
    assert_ok(b->f, sbp_weights_read(file, w, 0, w->elems, SBP_F64, data, b->f->diag));
    *elems = w->elems;
    return data;
}

static double relative_error(const double *x, const double *y, int64_t n) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (x[i] - y[i]) * (x[i] - y[i]);
        norm += y[i] * y[i];
    }
    return sqrt(difference) / (norm > 0 ? sqrt(norm) : 1);
}

/* File with the gradients of everything. */
static const char *reference_name(bench *b, int number, sbp_dtype dtype) {
    return sbp_arena_printf(b->f->arena, "%s%d.safetensors", dtype == SBP_BF16 ? "h" : "r", number);
}

/* The gradients of the draw against those of everything; returns how many there are. */
static int check_gradients(bench *b, const draw *d) {
    int number = (int)(d->s - subjects), trained = 0;
    sbp_weights *got, *want;
    const char *reference = reference_name(b, number, d->dtype);
    assert_ok(b->f, sbp_weights_open(b->f->arena, b->f->diag, io_path(b->f, "g.safetensors"), &got));
    assert_ok(b->f, sbp_weights_open(b->f->arena, b->f->diag, io_path(b->f, reference), &want));
    for (int i = 0; i < b->name_count[number]; i++) {
        const char *name = b->names[number][i];
        int64_t elems = 0, same = 0;
        double *x = tensor(b, got, name, &elems), *y = tensor(b, want, name, &same);
        if (is_trained(d, name) != (x != NULL))
            fail_msg("%s:%s: %s of '%s'", d->s->model, d->words, x ? "a gradient" : "no gradient", name);
        if (!x)
            continue;
        assert_int_equal(elems, same);
        double error = relative_error(x, y, elems);
        if (!(error <= d->tolerance))
            fail_msg("%s:%s: gradient of '%s' is off by %.3g, at most %g", d->s->model, d->words, name, error,
                     d->tolerance);
        trained++;
    }
    assert_int_equal(sbp_weights_count(got), trained);
    sbp_weights_close(got);
    sbp_weights_close(want);
    return trained;
}

/* After a step of training: what is frozen has the bits that it had, something else has not. */
static void check_update(bench *b, const draw *d) {
    sbp_weights *before, *after;
    int moved = 0;
    assert_ok(b->f, sbp_weights_open(b->f->arena, b->f->diag, d->s->model, &before));
    assert_ok(b->f, sbp_weights_open(b->f->arena, b->f->diag, io_path(b->f, "o"), &after));
    for (int32_t i = 0; i < sbp_weights_count(before); i++) {
        const char *name = sbp_weights_at(before, i)->name;
        int64_t n = 0, m = 0;
        double *x = tensor(b, before, name, &n), *y = tensor(b, after, name, &m);
        if (!y || n != m)
            fail_msg("%s:%s: no '%s' in the result", d->s->model, d->words, name);
        bool same = memcmp(x, y, (size_t)n * sizeof *x) == 0;
        if (!is_trained(d, name) && !same)
            fail_msg("%s:%s: '%s' is frozen and moved", d->s->model, d->words, name);
        moved += !same;
    }
    if (moved == 0)
        fail_msg("%s:%s: nothing moved", d->s->model, d->words);
    sbp_weights_close(before);
    sbp_weights_close(after);
    b->updates++;
}

static void run(bench *b, const draw *d, const char *rest) {
    char command[400];
    snprintf(command, sizeof command, "sbprun $D/p --data %s --batch-tokens %d --threads 1 %s", d->s->data,
             d->s->rows, rest);
    outcome o = in_process(b->f, command, NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s:%s: %s: status %d: %s", d->s->model, d->words, command, o.status, o.message);
}

static void try_draw(bench *b, const draw *d) {
    char command[1800];
    sbp_text kept;
    sbp_text_init(&kept, b->f->arena);
    sbp_text_add(&kept, "rows.jsonl");
    for (int i = 0; i < SBP_COUNT(subjects); i++)
        sbp_text_add(&kept, " %s %s", reference_name(b, i, SBP_F64), reference_name(b, i, SBP_BF16));
    in_process_clean(b->f, kept.data);
    snprintf(command, sizeof command, "sbpc compile %s -o $D/p%s", d->s->model, d->words);
    outcome o = in_process(b->f, command, NULL, 0, NULL);
    if (o.status != SBP_OK) {
        if ((o.status != SBP_INPUT && o.status != SBP_USAGE && o.status != SBP_MACHINE) ||
            !names_an_option(d, o.message))
            fail_msg("%s: status %d: %s", command, o.status, o.message);
        b->refused++;
        return;
    }
    b->planned++;
    bool any = false;
    int number = (int)(d->s - subjects);
    for (int i = 0; i < b->name_count[number]; i++)
        any |= is_trained(d, b->names[number][i]);
    if (!any) {
        b->idle++;
        return;
    }
    run(b, d, "--dump-gradients $D/g.safetensors");
    b->tensors += check_gradients(b, d);
    if (d->updates) {
        run(b, d, "--steps 1 --lr 0.5 --out $D/o");
        check_update(b, d);
    }
}

/* ---- adapters beside side values ---------------------------------------------------------------------- */

/* Three steps in fp64 of adapters on everything, in $D/NAME. */
static void train_adapters(bench *b, const char *settings, const char *name) {
    draw d = {.s = &subjects[SBP_COUNT(subjects) - 1]};
    add(&d, "--dtype fp64 --optimizer sgd --clip none --lora r=3,alpha=6,targets=all-linear --seq-len %d %s",
        d.s->rows, settings);
    outcome o = in_process(
        b->f, sbp_arena_printf(b->f->arena, "sbpc compile %s -o $D/p%s", d.s->model, d.words), NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s: %s", d.words, o.message);
    run(b, &d, sbp_arena_printf(b->f->arena, "--steps 3 --lr 0.5 --out $D/%s", name));
}

/* All layers as one segment, where nothing crosses, make the same adapters as segments with side values. */
static void test_adapters(void **state) {
    static const char *const settings[] = {
        "--segment 1 --chunk 3", "--segment 1 --checkpoint-every 3 --chunk 5 --save @attention",
        "--segment 2 --checkpoint-every 2 --offload host --chunk 7", "--segment 1 --backward standard",
        "--segment 1 --accumulate 1 --chunk 4"};
    bench b = {.f = *state, .arena = sbp_arena_create()};
    io_put(io_path(b.f, "rows.jsonl"), rows, strlen(rows));
    train_adapters(&b, "--segment 5", "whole");
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        const char *name = sbp_arena_printf(b.f->arena, "cut%d", i);
        sbp_weights *got, *want;
        train_adapters(&b, settings[i], name);
        assert_ok(b.f, sbp_weights_open(b.f->arena, b.f->diag,
                                        io_path(b.f, "whole/adapter_model.safetensors"), &want));
        assert_ok(b.f, sbp_weights_open(
                           b.f->arena, b.f->diag,
                           io_path(b.f, sbp_arena_printf(b.f->arena, "%s/adapter_model.safetensors", name)),
                           &got));
        assert_true(sbp_weights_count(want) > 40 && sbp_weights_count(got) == sbp_weights_count(want));
        for (int32_t k = 0; k < sbp_weights_count(want); k++) {
            int64_t n = 0, m = 0;
            const char *tensor_name = sbp_weights_at(want, k)->name;
            double *x = tensor(&b, got, tensor_name, &n), *y = tensor(&b, want, tensor_name, &m);
            assert_true(x && n == m);
            if (!(relative_error(x, y, n) <= SBP_TOLERANCE_F64))
                fail_msg("%s: %s is off by %g", settings[i], tensor_name, relative_error(x, y, n));
        }
        sbp_weights_close(want);
        sbp_weights_close(got);
    }
    sbp_arena_destroy(b.arena);
}

/* ---- the tests --------------------------------------------------------------------------------------- */

static void make_reference(bench *b, int i, sbp_dtype dtype) {
    draw d = {.s = &subjects[i]};
    snprintf(d.words, sizeof d.words, "sbpc compile %s -o $D/p --dtype %s %s --seq-len %d", d.s->model,
             dtype == SBP_BF16 ? "bf16" : "fp64", d.s->compile, d.s->rows);
    outcome o = in_process(b->f, d.words, NULL, 0, NULL);
    if (o.status != SBP_OK)
        fail_msg("%s: %s", d.words, o.message);
    run(b, &d, sbp_arena_printf(b->f->arena, "--dump-gradients $D/%s", reference_name(b, i, dtype)));
}

/* Gradients of everything, and the names of its tensors. */
static void make_references(bench *b) {
    for (int i = 0; i < SBP_COUNT(subjects); i++) {
        sbp_weights *w;
        make_reference(b, i, SBP_BF16);
        make_reference(b, i, SBP_F64);
        assert_ok(b->f,
                  sbp_weights_open(b->arena, b->f->diag, io_path(b->f, reference_name(b, i, SBP_F64)), &w));
        assert_true(sbp_weights_count(w) <= MAX_TENSORS);
        for (int32_t k = 0; k < sbp_weights_count(w); k++)
            b->names[i][b->name_count[i]++] = sbp_arena_strdup(b->arena, sbp_weights_at(w, k)->name);
        sbp_weights_close(w);
    }
}

static int count(const char *variable, int once) {
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : once;
}

static void test_draws(void **state) {
    bench b = {.f = *state, .arena = sbp_arena_create()};
    io_put(io_path(b.f, "rows.jsonl"), rows, strlen(rows));
    make_references(&b);
    int seed = count("SBP_FROZEN_SEED", 1), draws = testing_draws(60, 3000);
    for (int i = 0; i < draws; i++) {
        io_renew(b.f);
        b.rng = (sbp_rng){(uint64_t)(seed + i)};
        draw d = make_draw(&b);
        try_draw(&b, &d);
    }
    print_message("%d draws: %d planned (%d train nothing), %d refused; %d gradients, %d updates\n", draws,
                  b.planned, b.idle, b.refused, b.tensors, b.updates);
    assert_true(b.planned > draws / 2 && b.refused > 0 && b.tensors > 4 * draws && b.updates > draws / 20);
    sbp_arena_destroy(b.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_draws), cmocka_unit_test(test_adapters)};
    return cmocka_run_group_tests(tests, io_setup, in_process_teardown);
}
