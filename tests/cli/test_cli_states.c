/* What optimizer states and weights become in few bits: a step of 8-bit AdamW against bitsandbytes' formulas
 * in double precision, and the random numbers by which weights in bf16 are rounded. */
#include "tests/cli/cli_testing.h"

#include <fcntl.h>

#define FEW "head -8 $G/stories260k_trl/train.jsonl >$D/few.jsonl"
/* Every step has all rows, so that its gradients are those of the weights before it. */
#define TRAIN                                                                                                \
    "$R $D/p --data $D/few.jsonl --batch-size 8 --shuffle off --schedule constant --save-every 1 --keep all"

/* ---- what a run left ---------------------------------------------------------------------------------- */

/* Weights, states and gradients around one step; the directories of checkpoints are $D/o/checkpoint-N. */
typedef struct step {
    sbp_weights *before, *after, *grad, *old, *new; /* old: NULL before the first step */
} step;

static sbp_weights *open_file(io_fixture *f, const char *name) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, name, &w));
    return w;
}

/* The step after checkpoint `number`, 0: the first one. */
static step open_step(io_fixture *f, int number, bool states) {
    const char *from = number == 0 ? "tests/data/stories260K"
                                   : sbp_arena_printf(f->arena, "%s/o/checkpoint-%d", f->directory, number);
    const char *to = sbp_arena_printf(f->arena, "%s/o/checkpoint-%d", f->directory, number + 1);
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$R $D/p --data $D/few.jsonl --batch-size 8 --shuffle off --weights %s "
                               "--dump-gradients $D/g%d.safetensors",
                               from, number));
    step s = {.before = open_file(f, from),
              .after = open_file(f, to),
              .grad = open_file(f, io_path(f, sbp_arena_printf(f->arena, "g%d.safetensors", number)))};
    if (states)
        s.new = open_file(f, sbp_arena_printf(f->arena, "%s/optimizer.safetensors", to));
    if (states && number > 0)
        s.old = open_file(f, sbp_arena_printf(f->arena, "%s/optimizer.safetensors", from));
    return s;
}

static void close_step(step *s) {
    sbp_weights_close(s->before);
    sbp_weights_close(s->after);
    sbp_weights_close(s->grad);
    sbp_weights_close(s->old);
    sbp_weights_close(s->new);
}

static double *read_named(io_fixture *f, const sbp_weights *w, const char *name, int64_t elems) {
    const sbp_weight *t = sbp_weights_find(w, name);
    if (!t || t->elems != elems)
        fail_msg("no '%s' of %lld elements", name, (long long)elems);
    return cli_read_tensor(f, w, t);
}

/* ---- AdamW in 8 bits ---------------------------------------------------------------------------------- */

/* The numbers that are not negative, by the definition of bitsandbytes' create_dynamic_map: decades of 1, 2,
 * .. 64 (unsigned: 2 .. 128) parts, of which the middles count; 0 and 1. */
typedef struct map {
    double at[256];
    int count;
    bool is_signed;
} map;

static map make_map(bool is_signed) {
    map m = {.count = 1, .is_signed = is_signed};
    for (int decade = 0; decade < 7; decade++) {
        int parts = (is_signed ? 1 : 2) << decade;
        for (int i = 0; i < parts; i++)
            m.at[m.count++] = (float)(pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / parts));
    }
    m.at[m.count++] = 1;
    assert_int_equal(m.count, is_signed ? 129 : 256);
    return m;
}

static double decode(const map *m, uint8_t byte) {
    if (!m->is_signed)
        return m->at[byte];
    return byte == 0x80 ? 1 : byte & 0x80 ? -m->at[byte & 0x7f] : m->at[byte];
}

/* The nearest number; what is below 0 keeps its sign, and has no -1. */
static double nearest(const map *m, double x) {
    int best = 0;
    for (int k = 1; k < m->count; k++)
        if (fabs(m->at[k] - fabs(x)) < fabs(m->at[best] - fabs(x)))
            best = k;
    if (!(x < 0))
        return m->at[best];
    return -m->at[best < 1 ? 1 : best > 127 ? 127 : best];
}

typedef struct counts {
    int64_t codes, borders, signs, params, plain;
} counts;

/* A state of one parameter before and behind a step. */
typedef struct moment {
    uint8_t *codes;              /* behind; NULL: fp32 */
    double *old, *kept, *absmax; /* values before; behind: fp32 ones, or the largest of each block */
} moment;

static uint8_t *read_bytes(const sbp_weight *t) {
    uint8_t *bytes = calloc((size_t)t->elems + 1, 1);
    int file = open(t->path, O_RDONLY);
    assert_true(bytes && file >= 0 && strcmp(t->encoding, "U8") == 0 && t->bytes == t->elems);
    assert_true(pread(file, bytes, (size_t)t->elems, t->offset) == t->elems);
    close(file);
    return bytes;
}

static moment read_moment(io_fixture *f, const step *s, const char *param, const char *suffix, int64_t elems,
                          const map *m) {
    bool blocks = elems >= 4096 && elems % 256 == 0;
    const char *name = sbp_arena_printf(f->arena, "%s.%s", param, suffix);
    const char *largest = sbp_arena_printf(f->arena, "%s_absmax", name);
    moment out = {0};
    const sbp_weight *t = sbp_weights_find(s->new, name);
    assert_true(t && t->elems == elems);
    assert_string_equal(t->encoding, blocks ? "U8" : "F32");
    assert_true((sbp_weights_find(s->new, largest) != NULL) == blocks);
    if (!blocks) {
        out.kept = cli_read_tensor(f, s->new, t);
        out.old = s->old ? read_named(f, s->old, name, elems) : calloc((size_t)elems, sizeof(double));
        return out;
    }
    out.codes = read_bytes(t);
    out.absmax = read_named(f, s->new, largest, elems / 256);
    out.old = calloc((size_t)elems, sizeof(double));
    if (s->old) {
        uint8_t *codes = read_bytes(sbp_weights_find(s->old, name));
        double *absmax = read_named(f, s->old, largest, elems / 256);
        for (int64_t i = 0; i < elems; i++)
            out.old[i] = decode(m, codes[i]) * absmax[i / 256];
        free(codes);
        free(absmax);
    }
    return out;
}

static void free_moment(moment *m) {
    free(m->codes);
    free(m->old);
    free(m->kept);
    free(m->absmax);
}

static void expect_near(const char *what, int64_t i, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s[%lld]: %.12g, expected %.12g within %g", what, (long long)i, got, want, tolerance);
}

/* What is kept of the new values; terms: how large what was added up in them is. */
static void expect_kept(const char *what, const map *m, const moment *got, const double *value,
                        const double *terms, int64_t elems, counts *c) {
    if (!got->codes) {
        for (int64_t i = 0; i < elems; i++)
            expect_near(what, i, got->kept[i], value[i], SBP_TOLERANCE_ELEMENT_F32 * terms[i]);
        return;
    }
    for (int64_t b = 0; b < elems / 256; b++) {
        double absmax = 0, most = 0;
        for (int64_t i = 256 * b; i < 256 * (b + 1); i++) {
            absmax = fmax(absmax, fabs(value[i]));
            most = fmax(most, terms[i]);
        }
        expect_near(what, b, got->absmax[b], absmax, SBP_TOLERANCE_ELEMENT_F32 * most);
        for (int64_t i = 256 * b; i < 256 * (b + 1); i++) {
            double x = absmax > 0 ? value[i] / absmax : 0, want = nearest(m, x);
            double found = decode(m, got->codes[i]);
            c->codes++;
            c->signs += x < 0 && fabs(x) < m->at[1] / 2;
            if (found == want)
                continue;
            /* between 0 and the negative next to it the border is 0 */
            double border = fmax(found, want) == 0 ? 0 : (found + want) / 2;
            c->borders++;
            if (!(fabs(x - border) <=
                  SBP_TOLERANCE_ELEMENT_F32 * (absmax > 0 ? (terms[i] + fabs(x) * most) / absmax : 0)))
                fail_msg("%s[%lld]: %.9g became %.9g, expected %.9g", what, (long long)i, x, found, want);
        }
    }
}

/* Step `number` + 1 of one parameter. As in bitsandbytes, but that the decay comes before the step, as in
 * torch.optim.AdamW, and not behind it. */
static void expect_update(io_fixture *f, const step *s, int number, const sbp_weight *param, counts *c) {
    const double lr = 0.003, b1 = 0.8, b2 = 0.95, eps = 1e-6, decay = param->rank > 1 ? 0.1 : 0;
    const map first = make_map(true), second = make_map(false);
    int64_t n = param->elems;
    double *w = cli_read_tensor(f, s->before, param), *g = read_named(f, s->grad, param->name, n);
    double *got = read_named(f, s->after, param->name, n);
    moment m = read_moment(f, s, param->name, "exp_avg", n, &first);
    moment v = read_moment(f, s, param->name, "exp_avg_sq", n, &second);
    double *next_m = calloc((size_t)n, sizeof(double)), *next_v = calloc((size_t)n, sizeof(double));
    double *terms = calloc((size_t)n, sizeof(double));
    double rate = lr / (1 - pow(b1, number + 1)), root = sqrt(1 - pow(b2, number + 1));
    for (int64_t i = 0; i < n; i++) {
        next_m[i] = b1 * m.old[i] + (1 - b1) * g[i];
        next_v[i] = b2 * v.old[i] + (1 - b2) * g[i] * g[i];
        terms[i] = fabs(m.old[i]) + fabs(g[i]);
        double share = rate / (sqrt(next_v[i]) / root + eps);
        expect_near(param->name, i, got[i], w[i] * (1 - lr * decay) - share * next_m[i],
                    SBP_TOLERANCE_ULP_F32 * 0x1p-23 * fabs(w[i]) +
                        SBP_TOLERANCE_ELEMENT_F32 * share * terms[i]);
    }
    expect_kept(sbp_arena_printf(f->arena, "%s.exp_avg", param->name), &first, &m, next_m, terms, n, c);
    expect_kept(sbp_arena_printf(f->arena, "%s.exp_avg_sq", param->name), &second, &v, next_v, next_v, n, c);
    c->params++;
    c->plain += !m.codes;
    free_moment(&m);
    free_moment(&v);
    free(w);
    free(g);
    free(got);
    free(next_m);
    free(next_v);
    free(terms);
}

/* Parameters whose states are in fp32: in the model as it is, those of fewer than 4096 elements; where rows
 * of the MLP are 169 wide, those as well that have a rest beside whole blocks. */
static void test_adamw_in_8_bits(void **state) {
    io_fixture *f = *state;
    static const struct {
        int width, first;
        const char *run;
        int64_t plain;
    } cases[] = {{172, 0, "--weights $S", 11 + 2 * 5}, {169, 1, "--weights random:1", 11 + 5 * 5}};
    int64_t signs = 0;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        counts c = {0};
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      FEW " && rm -rf $D/o $D/model && mkdir $D/model && cp $S/tokenizer.json $D/model "
                          "&& sed 's/\"intermediate_size\": 172/\"intermediate_size\": %d/' "
                          "$S/config.json >$D/model/config.json && $C compile $D/model -o $D/p "
                          "--seq-len 933 --state-dtype int8 --clip none && " TRAIN
                          " --steps 3 --lr 0.003 --betas 0.8,0.95 --eps 1e-6 --weight-decay 0.1 "
                          "--out $D/o %s",
                      cases[i].width, cases[i].run));
        for (int number = cases[i].first; number < 3; number++) {
            step s = open_step(f, number, true);
            c.params = c.plain = 0;
            for (int32_t w = 0; w < sbp_weights_count(s.before); w++)
                expect_update(f, &s, number, sbp_weights_at(s.before, w), &c);
            assert_int_equal(c.plain, cases[i].plain);
            close_step(&s);
        }
        printf(
            "  %lld parameters, states of %lld in fp32; %lld codes, %lld beside a border, %lld kept a sign\n",
            (long long)c.params, (long long)c.plain, (long long)c.codes, (long long)c.borders,
            (long long)c.signs);
        assert_true(c.plain < c.params && c.borders * 1000 <= c.codes);
        signs += c.signs;
    }
    assert_true(signs > 0);
}

/* ---- random numbers ----------------------------------------------------------------------------------- */

/* The literal streams of the updates of a plan with these options: "N NAME" lines, sorted by name. */
static char *streams_of(io_fixture *f, const char *options) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile $S -o $D/p --seq-len 933 --dtype bf16 --master none %s "
                               "--print-after offload >$D/plan.txt && sed -n 's/.*@update[.].*stream = "
                               "\\([0-9]*\\).*flushes = \\([^,}]*\\).*/\\2 \\1/p' $D/plan.txt | sort",
                               options));
    return sbp_arena_strdup(f->arena, cli_text(f, "out"));
}

static int compare_ints(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* A stream of its own for every parameter, which is of its name alone. */
static void test_streams_are_of_names(void **state) {
    io_fixture *f = *state;
    static const char *const others[] = {"--train '*layers.3*'", "--clip none --accumulate 1",
                                         "--state-dtype bf16", "--optimizer lion --train '*_proj*'"};
    char *all = streams_of(f, "");
    int streams[200], count = 0, lines;
    for (char *at = strchr(all, ' '); at; at = strchr(at + 1, ' '))
        streams[count++] = atoi(at);
    qsort(streams, (size_t)count, sizeof *streams, compare_ints);
    assert_int_equal(count, cli_count_tensors(f, "tests/data/stories260K"));
    for (int i = 1; i < count; i++)
        assert_true(streams[i - 1] < streams[i]);
    for (int i = 0; i < SBP_COUNT(others); i++) {
        char *some = streams_of(f, others[i]);
        lines = 0;
        for (char *line = strtok(some, "\n"); line; line = strtok(NULL, "\n"), lines++)
            if (!strstr(all, sbp_arena_printf(f->arena, "%s\n", line)))
                fail_msg("%s: '%s' is another stream than with all parameters", others[i], line);
        assert_true(lines >= 9);
    }
}

/* A number in fp32 between two of bf16: which part of the way it went, and whether it was rounded up. */
typedef struct rounded {
    double part;
    bool up;
} rounded;

/* A step of SGD that was rounded to bf16 at random; all that is not between two numbers has part 0. */
static rounded *rounded_step(io_fixture *f, const step *s, const char *name, double lr, int64_t *count) {
    const sbp_weight *param = sbp_weights_find(s->before, name);
    assert_non_null(param);
    int64_t n = *count = param->elems;
    double *w = cli_read_tensor(f, s->before, param), *g = read_named(f, s->grad, name, n);
    double *got = read_named(f, s->after, name, n);
    rounded *out = calloc((size_t)n, sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < n; i++) {
        float exact = (float)w[i] - (float)lr * (float)g[i], down, up;
        uint32_t bits, low;
        memcpy(&bits, &exact, sizeof bits);
        low = bits & 0xffff0000u;
        memcpy(&down, &low, sizeof down);
        low += 0x10000;
        memcpy(&up, &low, sizeof up);
        out[i].part = (bits & 0xffff) / 65536.0;
        out[i].up = got[i] == up;
        if (got[i] != down && got[i] != up)
            fail_msg("%s[%lld]: %.9g became %.9g", name, (long long)i, exact, got[i]);
    }
    free(w);
    free(g);
    free(got);
    return out;
}

/* As many are rounded up as their parts say. Two parameters of one shape that had the same random numbers
 * would never round up the smaller of two parts and down the larger; with numbers of their own, one in 24
 * does. */
static void test_random_numbers_differ(void **state) {
    io_fixture *f = *state;
    enum { LAYERS = 5 };
    rounded *layers[LAYERS];
    int64_t n = 0;
    double expected = 0, variance = 0, ups = 0, lr = 0.1;
    cli_ok(f, FEW
           "; $C compile $S -o $D/p --seq-len 933 --dtype bf16 --master none --optimizer sgd --clip none");
    cli_ok(f, TRAIN " --steps 2 --lr 0.1 --out $D/o");
    step s = open_step(f, 1, false);
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = rounded_step(f, &s, sbp_arena_printf(f->arena, "model.layers.%d.mlp.gate_proj.weight", i),
                                 lr, &n);
        for (int64_t k = 0; k < n; k++) {
            expected += layers[i][k].part;
            variance += layers[i][k].part * (1 - layers[i][k].part);
            ups += layers[i][k].up;
        }
    }
    printf("  %.0f rounded up, expected %.0f +- %.0f\n", ups, expected, sqrt(variance));
    assert_true(variance > 1000 && fabs(ups - expected) < 5 * sqrt(variance));
    for (int i = 1; i < LAYERS; i++) {
        int64_t turned = 0;
        for (int64_t k = 0; k < n; k++) {
            rounded a = layers[i - 1][k], b = layers[i][k];
            turned += a.part < b.part ? a.up && !b.up : a.part > b.part && b.up && !a.up;
        }
        printf("  layers %d and %d: %lld of %lld the other way\n", i - 1, i, (long long)turned, (long long)n);
        assert_true(turned > n / 100);
    }
    for (int i = 0; i < LAYERS; i++)
        free(layers[i]);
    close_step(&s);
}

/* The same run has the same bits, one with another seed has others, unless nothing is random. */
static void test_seeds(void **state) {
    io_fixture *f = *state;
    static const char *const formats[] = {"--master none", "--state-dtype bf16",
                                          "--master none --rounding nearest"};
    cli_ok(f, FEW);
    for (int i = 0; i < SBP_COUNT(formats); i++) {
        cli_ok(f,
               sbp_arena_printf(f->arena, "$C compile $S -o $D/p --seq-len 933 --dtype bf16 %s", formats[i]));
        cli_ok(f, "rm -rf $D/a $D/b $D/c; for o in 'a --seed 1' 'b --seed 1' 'c --seed 2'; do " TRAIN
                  " --steps 3 --lr 1e-3 --out $D/$o || exit 1; done");
        cli_same(f, "a/model.safetensors", "b/model.safetensors");
        cli_same(f, "a/checkpoint-3/optimizer.safetensors", "b/checkpoint-3/optimizer.safetensors");
        bool same = cli(f, "cmp $D/a/model.safetensors $D/c/model.safetensors") == 0;
        if (same != (i == 2))
            fail_msg("%s: seeds 1 and 2 %s", formats[i], same ? "agree" : "differ");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_adamw_in_8_bits, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_streams_are_of_names, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_random_numbers_differ, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_seeds, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
