/* Drawn adapters against the model that they make: with M = W + s B A the plain gradient of M, by a plan of
 * the merged weights that knows of no adapter, says what those of A and B are: dA = s B^T dM, dB = s dM A^T;
 * that of a module that is trained whole is its own. Whatever the targets, ranks, bases, settings and
 * objectives. */
#include "tests/cli/drawing.h"
#include "tests/common/sweep.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

typedef struct drawn {
    const char *objective, *base; /* base: "", "--base-dtype nf4" */
    double alpha;
    bool rslora, pattern; /* pattern: alpha is 3.5 where a module's name ends with o_proj */
    int vocabulary;
} drawn;

/* ---- data --------------------------------------------------------------------------------------------- */

static void draw_numbers(sbp_rng *rng, sbp_text *out, const char *key, int64_t count) {
    sbp_text_add(out, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++)
        sbp_text_add(out, "%s%.3f", i ? ", " : "", -1 - 4 * sbp_rng_unit(rng));
    sbp_text_add(out, "]");
}

/* Rows of the kind that the objective takes, with all that it would ask a reference for. */
static void put_rows(io_fixture *f, sbp_rng *rng, const drawn *d) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int i = 0; i < 4; i++) {
        int64_t prompt = 1 + sbp_rng_below(rng, 6), first = 1 + sbp_rng_below(rng, 12),
                second = 1 + sbp_rng_below(rng, 12);
        sbp_text_add(&out, "{");
        if (strcmp(d->objective, "sft") == 0) {
            draw_ids(rng, &out, "input_ids", prompt + first, d->vocabulary);
            sbp_text_add(&out, "}\n");
            continue;
        }
        bool pairs = strcmp(d->objective, "ppo") != 0 && strcmp(d->objective, "grpo") != 0;
        draw_ids(rng, &out, "prompt_ids", prompt, d->vocabulary);
        sbp_text_add(&out, ", ");
        draw_ids(rng, &out, pairs ? "chosen_ids" : "completion_ids", first, d->vocabulary);
        sbp_text_add(&out, ", ");
        if (pairs) {
            draw_ids(rng, &out, "rejected_ids", second, d->vocabulary);
            sbp_text_add(&out, ", \"ref_chosen_logps\": %.3f, \"ref_rejected_logps\": %.3f",
                         -30 * sbp_rng_unit(rng), -30 * sbp_rng_unit(rng));
        } else {
            sbp_text_add(&out, "\"group\": %d, \"reward\": %.3f", i / 2, 2 * sbp_rng_unit(rng));
            draw_numbers(rng, &out, "ref_per_token_logps", first);
        }
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, "rows.jsonl", out.data);
}

/* ---- what gradients ought to be -------------------------------------------------------------------------
 */

#define PREFIX "base_model.model."

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

typedef struct files {
    io_fixture *f;
    sbp_weights *got, *adapter, *plain;
} files;

static const sbp_weight *find(const sbp_weights *w, const char *name) {
    const sbp_weight *t = sbp_weights_find(w, name);
    if (!t)
        fail_msg("there is no '%s'", name);
    return t;
}

static double norm_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* The gradient of lora_A, [r, in], or lora_B, [out, r], of a module. *norm: that of the sums of the terms'
 * magnitudes, to which roundings are in proportion where terms cancel. */
static double *expected_factor(const files *o, const drawn *d, const char *module, bool of_a, double *norm) {
    io_fixture *f = o->f;
    const sbp_weight *wa = find(o->adapter, TEXT(PREFIX "%s.lora_A.weight", module)),
                     *wb = find(o->adapter, TEXT(PREFIX "%s.lora_B.weight", module)),
                     *wm = find(o->plain, TEXT("%s.weight", module));
    int64_t r = wa->dim[0], in = wa->dim[1], out = wb->dim[0];
    assert_true(wb->dim[1] == r && wm->dim[0] == out && wm->dim[1] == in);
    double *a = cli_read_tensor(f, o->adapter, wa), *b = cli_read_tensor(f, o->adapter, wb),
           *m = cli_read_tensor(f, o->plain, wm), alpha = d->alpha;
    if (d->pattern && ends_with(module, "o_proj"))
        alpha = 3.5;
    double scale = alpha / (d->rslora ? sqrt((double)r) : (double)r);
    int64_t elems = (of_a ? in : out) * r;
    double *want = calloc((size_t)elems, sizeof *want), *most = calloc((size_t)elems, sizeof *most);
    assert_true(want && most);
    for (int64_t k = 0; k < r; k++)
        for (int64_t y = 0; y < out; y++)
            for (int64_t x = 0; x < in; x++) {
                double term = scale * m[y * in + x] * (of_a ? b[y * r + k] : a[k * in + x]);
                want[of_a ? k * in + x : y * r + k] += term;
                most[of_a ? k * in + x : y * r + k] += fabs(term);
            }
    *norm = norm_of(most, elems);
    free(most);
    free(a);
    free(b);
    free(m);
    return want;
}

/* Returns how many factors were compared; *worst: relative to the norms of the tensors, and of
 * which one. */
static int compare(const files *o, const drawn *d, double *worst, const char **where) {
    static const char *const ends[] = {".lora_A.weight", ".lora_B.weight"};
    io_fixture *f = o->f;
    int factors = 0;
    *worst = 0;
    for (int32_t i = 0; i < sbp_weights_count(o->got); i++) {
        const sbp_weight *g = sbp_weights_at(o->got, i);
        assert_true(strncmp(g->name, PREFIX, strlen(PREFIX)) == 0);
        const char *name = g->name + strlen(PREFIX);
        if (strcmp(name, "v_head.summary.bias") == 0)
            continue; /* one number, a sum that cancels: test_cli_ppo has it */
        double *x = cli_read_tensor(f, o->got, g), *y = NULL, norm = 0;
        for (int k = 0; k < 2 && !y; k++)
            if (ends_with(name, ends[k]))
                y = expected_factor(o, d, TEXT("%.*s", (int)(strlen(name) - strlen(ends[k])), name), k == 0,
                                    &norm);
        factors += y != NULL;
        if (!y) {
            y = cli_read_tensor(f, o->plain, find(o->plain, name));
            norm = norm_of(y, g->elems);
        }
        for (int64_t k = 0; k < g->elems; k++)
            x[k] -= y[k];
        double off = norm > 0 ? norm_of(x, g->elems) / norm : norm_of(x, g->elems);
        if (!(off <= *worst)) {
            *worst = off;
            *where = g->name;
        }
        free(x);
        free(y);
    }
    return factors;
}

/* ---- drawing --------------------------------------------------------------------------------------------
 */

typedef struct model {
    const char *name, *path;
    int vocabulary;
    bool apart; /* table and head are two tensors */
} model;

enum { STORIES = 6 };
static const model models[] = {{"llama", "$G/llama_plain/model", 97, true},
                               {"qwen2", "$G/qwen2_plain/model", 59, true},
                               {"phi3", "$G/phi3_plain/model", 57, true},
                               {"gpt_neox", "$G/gpt_neox_plain/model", 55, false},
                               {"gemma3", "$G/gemma3_untied_bias/model", 73, true},
                               {"tied", "$G/llama_tied_pad/model", 61, false},
                               {"stories", "$S", 512, false}};

/* Options of a new adapter. */
static const char *draw_adapter(io_fixture *f, sbp_rng *rng, const model *m, drawn *d) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    d->alpha = sbp_rng_below(rng, 2) ? 8 : 1.5;
    d->rslora = sbp_rng_below(rng, 3) == 0;
    d->pattern = sbp_rng_below(rng, 3) == 0;
    sbp_text_add(&out, "--lora r=%s,alpha=%g", PICK(rng, "1", "2", "4", "7"), d->alpha);
    sbp_text_add(&out, "%s", d->rslora ? " --lora-rslora on" : "");
    sbp_text_add(&out, "%s", d->pattern ? " --lora-alpha-pattern o_proj=3.5" : "");
    bool fused = strcmp(m->name, "gpt_neox") == 0;
    sbp_text_add(&out, " %s",
                 fused ? PICK(rng, "", "--lora-targets all-linear", "--lora-targets query_key_value+dense")
                       : PICK(rng, "", "--lora-targets all-linear", "--lora-targets o_proj+down_proj",
                              "--lora-targets '.*\\.(o_proj|down_proj|k_proj)'",
                              "--lora-targets all-linear --lora-exclude '.*layers\\.0\\.mlp.*'"));
    if (!strstr(out.data, "k_proj"))
        sbp_text_add(&out, " %s", PICK(rng, "", "--lora-layers 1", "--lora-layers 0+1"));
    sbp_text_add(&out, " %s", PICK(rng, "", "", "--lora-rank-pattern down_proj=3"));
    sbp_text_add(&out, " %s",
                 PICK(rng, "", "", "--lora-modules-to-save input_layernorm", "--lora-modules-to-save norm",
                      m->apart ? "--lora-modules-to-save embed_tokens" : "",
                      m->apart ? "--lora-modules-to-save lm_head+norm" : ""));
    return out.data;
}

static const char *draw_settings(io_fixture *f, sbp_rng *rng, bool may_save) {
    const char *placement = sbp_rng_below(rng, 2) ? draw_placement(f, rng) : "";
    return TEXT("--chunk %s --head-chunk %s --segment %s --checkpoint-every %s --save %s --seq-len %s %s",
                PICK(rng, "1", "5", "16", "64"), PICK(rng, "3", "64"), PICK(rng, "1", "2"),
                PICK(rng, "1", "2", "3"), may_save ? PICK(rng, "none", "attn_out+lse", "k+v") : "none",
                PICK(rng, "64", "40"), placement);
}

#define DUMP "--data $D/rows.jsonl --batch-size 4 --offload-dir $D --out none --dump-gradients"

static void dump(io_fixture *f, const char *path, const char *options, const char *name) {
    cli_ok(f, TEXT("$C compile %s -o $D/p %s && $R $D/p " DUMP " $D/%s", path, options, name));
}

/* fixed: an objective, on a base in nf4; NULL: drawn. */
static void draw(io_fixture *f, sbp_rng *rng, const char *fixed, int *compared, double *worst) {
    const model *m = &models[fixed ? STORIES : sbp_rng_below(rng, SBP_COUNT(models))];
    drawn d = {.vocabulary = m->vocabulary, .objective = fixed, .base = ""};
    if (!fixed)
        d.objective = PICK(rng, "sft", "sft", "dpo", "simpo", "orpo", "grpo", "ppo");
    if (fixed || (m == &models[STORIES] && sbp_rng_below(rng, 4) > 0))
        d.base = "--base-dtype nf4";
    bool ppo = strcmp(d.objective, "ppo") == 0;
    const char *adapter = draw_adapter(f, rng, m, &d),
               *settings = draw_settings(f, rng, !strstr(adapter, "--lora-layers 1")),
               *dtype = PICK(rng, "fp64", "fp64", ppo ? "fp64" : "fp32"), /* sums over values of PPO cancel */
                   *frozen = PICK(rng, "", "", "--freeze '*lora_A*'", "--freeze '*lora_B*'"),
               *common = TEXT("--objective %s %s", d.objective, d.base);
    printf("  %s %s %s --dtype %s %s %s\n", m->name, common, adapter, dtype, frozen, settings);
    put_rows(f, rng, &d);
    cli_ok(f,
           TEXT("rm -rf $D/a $D/m; $C compile %s -o $D/p --seq-len 64 %s %s && $R $D/p --data $D/rows.jsonl "
                "--batch-size 4 --steps 2 --lr 0.05 --schedule constant --save-every never --out $D/a",
                m->path, common, adapter));
    dump(f, "$D/a", TEXT("%s --dtype %s %s %s", common, dtype, frozen, settings), "got.safetensors");
    cli_ok(f, TEXT("$C compile $D/a -o $D/p --dtype fp64 --seq-len 64 %s && $R $D/p --merge --out $D/m",
                   common));
    dump(f, "$D/m", TEXT("--objective %s --dtype fp64 --seq-len 64", d.objective), "want.safetensors");
    files o = {.f = f};
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "got.safetensors"), &o.got));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "a/adapter_model.safetensors"), &o.adapter));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "want.safetensors"), &o.plain));
    double off;
    const char *where = "";
    *compared += compare(&o, &d, &off, &where);
    bool wide = strcmp(dtype, "fp64") == 0;
    if (!(off <= (wide ? SBP_TOLERANCE_F64 : SBP_TOLERANCE_F32)))
        fail_msg("'%s' is off by %.3g", where, off);
    worst[wide] = off > worst[wide] ? off : worst[wide];
    d.alpha *= 1.01; /* the comparison can fail */
    d.pattern = false;
    if (compare(&o, &d, &off, &where) > 0)
        assert_true(off > 0.0005);
    sbp_weights_close(o.got);
    sbp_weights_close(o.adapter);
    sbp_weights_close(o.plain);
    /* What drops is the same however it is computed. */
    if (sbp_rng_below(rng, 2))
        return;
    common = TEXT("%s --lora-dropout 0.2 --dtype fp64 %s", common, frozen);
    dump(f, "$D/a", TEXT("%s %s", common, settings), "got.safetensors");
    dump(f, "$D/a", TEXT("%s --seq-len 64 --backward standard", common), "want.safetensors");
    cli_compare(f, "dropout", sbp_arena_strdup(f->arena, io_path(f, "got.safetensors")),
                io_path(f, "want.safetensors"), SBP_TOLERANCE_F64);
}

static void test_drawn_adapters(void **state) {
    static const char *const fixed[] = {"ppo", "dpo"};
    io_fixture *f = *state;
    sbp_rng rng = {getenv("SBP_LORA_SEED") ? strtoull(getenv("SBP_LORA_SEED"), NULL, 10) : 5};
    int compared = 0;
    double worst[2] = {0, 0};
    for (int i = 0; i < SBP_COUNT(fixed); i++)
        draw(f, &rng, fixed[i], &compared, worst);
    for (int i = 0; i < (testing_all() ? 200 : 9); i++)
        draw(f, &rng, NULL, &compared, worst);
    printf("  %d factors, fp64 off by %.1g, fp32 by %.1g\n", compared, worst[1], worst[0]);
    assert_true(compared > 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_drawn_adapters, cli_setup, io_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
