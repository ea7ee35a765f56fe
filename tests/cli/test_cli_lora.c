/* Low-rank adapters through the real programs: gradients and log-probabilities of adapters that peft saved
 * (tests/golden/lora), new adapters, what is written, merged and resumed, and what is refused. */
#include "tests/cli/cli_testing.h"
#include "tests/cli/golden_lists.h"

/* A case: path, the golden case whose model and rows it has, and its expectation. */
typedef struct lora_case {
    const char *path, *base, *options;
    const sbp_json *expect;
} lora_case;

static lora_case open_case(io_fixture *f, const char *name) {
    lora_case c = {.path = sbp_arena_printf(f->arena, "tests/golden/lora/%s", name)};
    assert_ok(f, sbp_json_read(f->arena, f->diag, sbp_arena_printf(f->arena, "%s/expect.json", c.path), 0,
                               &c.expect));
    assert_ok(f, sbp_json_get_string(f->diag, c.expect, "base", SBP_JSON_REQUIRED, &c.base));
    assert_ok(f, sbp_json_get_string(f->diag, c.expect, "options", SBP_JSON_REQUIRED, &c.options));
    return c;
}

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

/* ---- gradients ---------------------------------------------------------------------------------------- */

static void compare_gradients(io_fixture *f, const lora_case *c, const char *options, double tolerance) {
    cli_ok(f, TEXT("$C compile %s/adapter -o $D/p --seq-len 94 %s", c->path, options));
    cli_ok(f, TEXT("$R $D/p --data $G/%s/train.jsonl --batch-size 100 --dump-gradients $D/g.safetensors",
                   c->base));
    cli_compare(f, TEXT("%s %s", c->path, options), sbp_arena_strdup(f->arena, io_path(f, "g.safetensors")),
                TEXT("%s/grads.safetensors", c->path), tolerance);
}

static void test_gradients_of_peft(void **state) {
    static const char *const settings[] = {
        "--chunk 7 --head-chunk 5 --segment 2 --checkpoint-every 2 --offload host",
        "--backward standard",
        "--seq-len 45 --clip none --accumulate any --chunk 16",
        "--clip none --accumulate 1 --chunk 1",
    };
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(golden_lora); i++) {
        lora_case c = open_case(f, golden_lora[i]);
        compare_gradients(f, &c, "--dtype fp64", sbp_tolerance(SBP_F64));
        compare_gradients(f, &c, "--dtype fp32 --chunk 7", sbp_tolerance(SBP_F32));
        compare_gradients(f, &c, TEXT("--dtype fp64 %s", settings[i % SBP_COUNT(settings)]),
                          sbp_tolerance(SBP_F64));
    }
}

/* Parts of an adapter that are frozen change no gradient of the others. */
static void test_frozen_parts(void **state) {
    static const struct {
        const char *name, *options;
        int32_t tensors;
    } parts[] = {{"patterns", "--freeze '*lora_A*'", 11},
                 {"patterns", "--train '*layers.1.mlp*' --segment 2", 6},
                 {"saved", "--train '*.lm_head.weight'", 1},
                 {"saved", "--freeze '*lm_head*' --chunk 5", 10},
                 {"fused", "--train '*qkv_proj.lora_B*'", 2}};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(parts); i++) {
        lora_case c = open_case(f, parts[i].name);
        cli_ok(f,
               TEXT("$C compile %s/adapter -o $D/p --seq-len 94 --dtype fp64 %s", c.path, parts[i].options));
        cli_ok(f, TEXT("$R $D/p --data $G/%s/train.jsonl --batch-size 100 --dump-gradients $D/g.safetensors",
                       c.base));
        const char *got = sbp_arena_strdup(f->arena, io_path(f, "g.safetensors"));
        assert_int_equal(cli_count_tensors(f, got), parts[i].tensors);
        cli_compare_some(f, parts[i].options, got, TEXT("%s/grads.safetensors", c.path),
                         sbp_tolerance(SBP_F64));
    }
    lora_case c = open_case(f, "q_only");
    cli_fails(f, 2, "of the adapter", TEXT("$C compile %s/adapter -o $D/p --train '*mlp*'", c.path));
}

/* ---- dropout ------------------------------------------------------------------------------------------ */

/* Loss of a step, as metrics.jsonl says. */
static double loss_of_step(io_fixture *f, const char *directory, int step) {
    int count;
    const sbp_json **lines = cli_lines(f, TEXT("%s/metrics.jsonl", directory), &count);
    assert_true(count >= step);
    return cli_number(f, lines[step - 1], "loss");
}

/* What drops belongs to step, adapter, document, position and column: however rows are cut, packed and
 * computed, gradients are those of peft with these numbers (tests/golden/make_lora.py). */
static void test_dropout_is_of_the_data(void **state) {
    static const char *const settings[] = {
        "--chunk 7 --head-chunk 5 --segment 2 --checkpoint-every 2 --offload host",
        "--chunk 5 --save q+attn_out+act --checkpoint-every 2",
        "--backward standard",
        "--backward checkpoint --chunk 11",
        "--seq-len 45 --clip none --accumulate any --chunk 16",
        "--seq-len 61 --clip none --accumulate any --chunk 9",
        "--clip none --accumulate 1 --chunk 1",
    };
    io_fixture *f = *state;
    lora_case c = open_case(f, "dropped");
    for (int i = 0; i < SBP_COUNT(settings); i++)
        compare_gradients(f, &c, TEXT("--dtype fp64 %s", settings[i]), sbp_tolerance(SBP_F64));
    /* The check can fail: another seed, nothing dropped. */
    cli_ok(f, TEXT("$C compile %s/adapter -o $D/p --seq-len 94 --dtype fp64", c.path));
    cli_ok(f, TEXT("$C compile %s/adapter -o $D/q --seq-len 94 --dtype fp64 --lora-dropout 0", c.path));
    const char *dump = TEXT("--data $G/%s/train.jsonl --batch-size 100 --dump-gradients", c.base);
    cli_ok(f, TEXT("$R $D/p %s $D/g1 --seed 43 && $R $D/q %s $D/g2 && $R $D/p %s $D/g3", dump, dump, dump));
    const char *right = sbp_arena_strdup(f->arena, io_path(f, "g3"));
    for (int i = 1; i <= 2; i++) {
        const char *wrong = sbp_arena_strdup(f->arena, io_path(f, TEXT("g%d", i)));
        assert_true(cli_compare_some(f, "seed", wrong, right, INFINITY) > 0.01);
    }
    /* Other numbers in every step. */
    const char *train =
        TEXT("--data $G/%s/train.jsonl --batch-size 100 --shuffle off --lr 0 --steps 2", c.base);
    cli_ok(f, TEXT("$R $D/p %s --out $D/t1 && $R $D/q %s --out $D/t2", train, train));
    assert_true(fabs(loss_of_step(f, "t1", 1) - loss_of_step(f, "t1", 2)) > 0.001);
    assert_true(loss_of_step(f, "t2", 1) == loss_of_step(f, "t2", 2));
    /* None where nothing is trained. */
    cli_ok(f, TEXT("$R $D/p --data $G/%s/train.jsonl --score $D/s1 && $R $D/q --data $G/%s/train.jsonl "
                   "--score $D/s2",
                   c.base, c.base));
    cli_same(f, "s1", "s2");
    cli_ok(f, TEXT("$R $D/p %s --eval $G/%s/train.jsonl --out none --json >$D/e1", train, c.base));
    cli_ok(f, TEXT("$R $D/q %s --eval $G/%s/train.jsonl --out none --json >$D/e2", train, c.base));
    assert_true(cli_number(f, cli_json(f, "e1"), "eval_loss") ==
                cli_number(f, cli_json(f, "e2"), "eval_loss"));
    /* Off where it is in TRL, unless it is asked for. */
    cli_ok(f, TEXT("$C compile %s/adapter -o $D/p --seq-len 94 --objective dpo 2>$D/notes", c.path));
    assert_non_null(strstr(cli_text(f, "notes"), "lora_dropout of 0.3 is off"));
    cli_fails(f, 2, "lora-dropout", TEXT("$C compile %s/adapter -o $D/p --lora-dropout 1", c.path));
}

/* ---- log-probabilities -------------------------------------------------------------------------------- */

/* Scores in the directory against log-probabilities of every next token per document. */
static void compare_scores(io_fixture *f, const char *file, const lora_case *c, const char *key) {
    const sbp_json *want, **lines;
    int count, compared = 0, rows = 0;
    assert_ok(f, sbp_json_get_array(f->diag, c->expect, key, SBP_JSON_REQUIRED, &want));
    lines = cli_lines(f, file, &count);
    const char *text;
    size_t length;
    assert_ok(f,
              sbp_file_read(f->arena, f->diag, TEXT("tests/golden/%s/train.jsonl", c->base), &text, &length));
    char *copy = sbp_arena_strndup(f->arena, text, length), *rest = NULL;
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), rows++) {
        const sbp_json *row;
        assert_ok(f, sbp_json_parse(f->arena, f->diag, "row", line, strlen(line), 0, &row));
        const sbp_json *labels = sbp_json_member(row, "labels"), *logps = NULL;
        for (int i = 0; i < count; i++)
            if (cli_number(f, lines[i], "row") == rows)
                logps = sbp_json_member(lines[i], "logps");
        int64_t at = 0;
        for (int64_t k = 1; k < labels->count; k++) {
            if (labels->items[k].integer == -100)
                continue;
            double a, b;
            assert_non_null(logps);
            assert_true(at < logps->count);
            assert_ok(f, sbp_json_as_double(f->diag, &logps->items[at++], &a));
            assert_ok(f, sbp_json_as_double(f->diag, &want->items[rows].items[k - 1], &b));
            /* the label is the token in these rows */
            if (!(fabs(a - b) <= sbp_tolerance(SBP_F64) * 100))
                fail_msg("%s: %s: row %d, token %lld: %.17g, expected %.17g", c->path, key, rows,
                         (long long)k, a, b);
            compared++;
        }
    }
    assert_true(compared > 20);
}

static void test_log_probabilities_on_off_and_merged(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(golden_lora); i++) {
        lora_case c = open_case(f, golden_lora[i]);
        cli_ok(f, TEXT("rm -rf $D/merged; $C compile %s/adapter -o $D/p --seq-len 94 --dtype fp64", c.path));
        cli_ok(f, TEXT("$R $D/p --data $G/%s/train.jsonl --score $D/on", c.base));
        compare_scores(f, "on", &c, "logprobs");
        cli_ok(f,
               "$R $D/p --merge --out $D/merged && $C compile $D/merged -o $D/q --seq-len 94 --dtype fp64");
        cli_ok(f, TEXT("$R $D/q --data $G/%s/train.jsonl --score $D/merged.jsonl", c.base));
        compare_scores(f, "merged.jsonl", &c, "logprobs");
        if (sbp_json_member(c.expect, "logprobs_without")->kind == SBP_JSON_NULL)
            continue;
        cli_ok(f, TEXT("$R $D/p --data $G/%s/train.jsonl --adapter 0 --score $D/off", c.base));
        compare_scores(f, "off", &c, "logprobs_without");
    }
}

static double *read_merged(io_fixture *f, const char *file, const char *name, sbp_dtype dtype,
                           int64_t *count) {
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, file), &w));
    const sbp_weight *t = sbp_weights_find(w, name);
    assert_non_null(t);
    assert_int_equal(t->dtype, dtype);
    double *x = cli_read_tensor(f, w, t);
    *count = t->elems;
    sbp_weights_close(w);
    return x;
}

/* How many weights of q_proj a merged adapter has changed, and how many there are. */
static int64_t count_changed(io_fixture *f, const char *file, sbp_dtype dtype, int64_t *count) {
    static const char name[] = "model.layers.0.self_attn.q_proj.weight";
    double *merged = read_merged(f, file, name, dtype, count),
           *base = read_merged(f, "base/model.safetensors", name, SBP_BF16, count);
    int64_t changed = 0;
    for (int64_t i = 0; i < *count; i++)
        changed += merged[i] != base[i];
    free(merged);
    free(base);
    return changed;
}

/* Merging says what was merged into what and where it is; and nothing of plans and names that pass. */
static void test_what_merging_says(void **state) {
    static const char *const unwanted[] = {".tmp", "sbpc compile", "schedule ", "\nbackend ", "\nfits "};
    io_fixture *f = *state;
    lora_case c = open_case(f, "q_only");
    cli_ok(f, TEXT("$R %s/adapter --merge --out $D/merged", c.path));
    const char *said = sbp_arena_strdup(f->arena, cli_text(f, "err"));
    for (int i = 0; i < SBP_COUNT(unwanted); i++)
        if (strstr(said, unwanted[i]))
            fail_msg("'%s' in: %s", unwanted[i], said);
    const char *of = strstr(said, "merged 3 modules of "), *into = of ? strstr(of, "/adapter into ") : NULL;
    assert_true(into && strstr(into, TEXT("/%s/model: %s\n", c.base, io_path(f, "merged"))));
    cli_ok(f, "$C inspect $D/merged/plan.bin");
}

/* What an early adapter adds to a base in bf16 is too little for bf16, and not for fp32. */
static void test_type_of_what_is_merged(void **state) {
    static const struct {
        const char *name, *in_config;
        sbp_dtype dtype;
    } types[] = {{"fp32", "float32", SBP_F32}, {"bf16", "bfloat16", SBP_BF16}, {"fp16", "float16", SBP_F16}};
    io_fixture *f = *state;
    int64_t changed[SBP_COUNT(types)], count = 0;
    lora_case c = open_case(f, "q_only");
    const char *data = TEXT("--data $G/%s/train.jsonl --seq-len 94", c.base);
    cli_ok(f,
           TEXT("$R $G/%s/model %s --dtype bf16 --master none --lr 0 --steps 1 --out $D/base", c.base, data));
    cli_ok(f, TEXT("$R $D/base %s --dtype bf16 --lora r=2 --lr 1e-6 --steps 1 --out $D/early", data));
    for (int i = 0; i < SBP_COUNT(types); i++) {
        cli_ok(f,
               TEXT("rm -rf $D/merged; $R $D/early --merge --merge-dtype %s --out $D/merged", types[i].name));
        cli_ok(f, TEXT("grep -q '\"dtype\": \"%s\"' $D/merged/config.json", types[i].in_config));
        changed[i] = count_changed(f, "merged/model.safetensors", types[i].dtype, &count);
    }
    assert_true(changed[0] > count * 9 / 10 && changed[1] < count / 10);
    cli_fails(f, 1, "which fp16 cannot hold",
              TEXT("$R %s/adapter --merge --merge-dtype fp16 --adapter 1e9 --out $D/large", c.path));
    cli_fails(f, 2, "--merge-dtype needs --merge",
              TEXT("$R $D/early %s --merge-dtype fp32 --out $D/none", data));
}

/* ---- new adapters ------------------------------------------------------------------------------------- */

static void check_fresh(io_fixture *f, const lora_case *c) {
    sbp_weights *got, *want;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "new/adapter_model.safetensors"), &got));
    assert_ok(
        f, sbp_weights_open(f->arena, f->diag, TEXT("%s/adapter/adapter_model.safetensors", c->path), &want));
    assert_int_equal(sbp_weights_count(got), sbp_weights_count(want));
    assert_string_equal(sbp_weights_metadata(got, "format"), "pt");
    for (int32_t i = 0; i < sbp_weights_count(want); i++) {
        const sbp_weight *w = sbp_weights_at(want, i), *g = sbp_weights_find(got, w->name);
        if (!g || g->rank != w->rank || memcmp(g->dim, w->dim, (size_t)w->rank * sizeof *w->dim) != 0)
            fail_msg("%s: %s is not in the adapter, or has another shape", c->path, w->name);
        assert_int_equal(g->dtype, SBP_F32);
        double *x = cli_read_tensor(f, got, g), sum = 0, most = 0;
        for (int64_t k = 0; k < g->elems; k++) {
            sum += x[k] * x[k];
            most = fabs(x[k]) > most ? fabs(x[k]) : most;
        }
        free(x);
        if (strstr(w->name, "lora_B"))
            assert_true(most == 0);
        if (!strstr(w->name, "lora_A"))
            continue;
        double bound = 1 / sqrt((double)w->dim[1]), spread = sqrt(3 * sum / (double)g->elems) / bound;
        if (!(most <= bound && most > 0.8 * bound && spread > 0.7 && spread < 1.3))
            fail_msg("%s: %s is at most %g, of bound %g, spread %g of that of uniform numbers", c->path,
                     w->name, most, bound, spread);
    }
    sbp_weights_close(got);
    sbp_weights_close(want);
}

/* Members that decide what an adapter is, as peft has written them. */
static void check_config(io_fixture *f, const lora_case *c) {
    static const char *const keys[] = {
        "r",    "lora_alpha",   "use_rslora",    "peft_type",           "task_type",
        "bias", "rank_pattern", "alpha_pattern", "layers_to_transform", "exclude_modules"};
    const sbp_json *got = cli_json(f, "new/adapter_config.json"), *want;
    assert_ok(f, sbp_json_read(f->arena, f->diag, TEXT("%s/adapter/adapter_config.json", c->path), 0, &want));
    for (int i = 0; i < SBP_COUNT(keys); i++) {
        sbp_text a, b;
        sbp_text_init(&a, f->arena);
        sbp_text_init(&b, f->arena);
        sbp_json_add_value(&a, sbp_json_member(got, keys[i]));
        sbp_json_add_value(&b, sbp_json_member(want, keys[i]));
        if (strcmp(a.data, b.data) != 0)
            fail_msg("%s: adapter_config.json has %s %s, peft's %s", c->path, keys[i], a.data, b.data);
    }
    assert_true(cli_number(f, got, "lora_dropout") == cli_number(f, want, "lora_dropout"));
    const char *base;
    assert_ok(f, sbp_json_get_string(f->diag, got, "base_model_name_or_path", SBP_JSON_REQUIRED, &base));
    assert_true(base[0] == '/' && sbp_file_exists(TEXT("%s/config.json", base)));
}

static void test_new_adapters_begin_as_peft_does(void **state) {
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(golden_lora); i++) {
        lora_case c = open_case(f, golden_lora[i]);
        cli_ok(f, TEXT("rm -rf $D/new; $C compile $G/%s/model -o $D/p --seq-len 94 %s", c.base, c.options));
        cli_ok(f, TEXT("$R $D/p --data $G/%s/train.jsonl --steps 1 --lr 0 --out $D/new", c.base));
        check_fresh(f, &c);
        check_config(f, &c);
    }
    cli_ok(f, "cp $D/new/adapter_model.safetensors $D/a; cp $D/p $D/q; rm -rf $D/new");
    cli_ok(f, "$R $G/llama_plain/model --lora --data $G/llama_plain/train.jsonl --steps 1 --out $D/new");
    const sbp_json *config = cli_json(f, "new/adapter_config.json"), *targets;
    assert_true(cli_number(f, config, "r") == 16 && cli_number(f, config, "lora_alpha") == 32 &&
                cli_number(f, config, "lora_dropout") == 0);
    assert_ok(f, sbp_json_get_array(f->diag, config, "target_modules", SBP_JSON_REQUIRED, &targets));
    assert_true(targets->count == 2);
    cli_ok(f, "rm -rf $D/new; cp $D/q $D/p");
    cli_ok(f, "$R $D/p --data $G/gpt_neox_plain/train.jsonl --steps 1 --lr 0 --out $D/new");
    cli_same(f, "a", "new/adapter_model.safetensors");
    cli_ok(
        f,
        "rm -rf $D/new; $R $D/p --data $G/gpt_neox_plain/train.jsonl --steps 1 --lr 0 --out $D/new --seed 1; "
        "cmp -s $D/a $D/new/adapter_model.safetensors; test $? = 1");
}

/* Adapters of the plan p: trained tensors of its gradients. */
static int count_trained(io_fixture *f, const char *base, const char *options) {
    cli_ok(f, TEXT("$C compile $G/%s/model -o $D/p --seq-len 94 %s", base, options));
    cli_ok(f,
           TEXT("$R $D/p --data $G/%s/train.jsonl --batch-size 100 --dump-gradients $D/g.safetensors", base));
    return cli_count_tensors(f, sbp_arena_strdup(f->arena, io_path(f, "g.safetensors")));
}

/* Three layers of llama_plain: which modules get an adapter, counted as A and B. */
static void test_names_and_patterns(void **state) {
    static const struct {
        const char *options;
        int32_t tensors;
    } drawn[] = {{"--lora-targets '(.*q_proj)|(.*v_proj)'", 12},
                 {"--lora-targets 'model\\.layers\\.(0|1)?.*\\.(q_proj)'", 6},
                 {"--lora-targets 'model.layers.1.+q_proj'", 2},
                 {"--lora-targets '.*layers\\.\\d{,2}\\.mlp\\.up_proj'", 6},
                 {"--lora-targets '.*_proj' --lora-exclude '(.*mlp.*)|(.*[qk]_proj)'", 12},
                 {"--lora r=3,targets=q_proj+o_proj --lora-exclude o_proj", 6},
                 {"--lora targets=q_proj+embed_tokens --lora-exclude embed_tokens", 6},
                 {"--lora targets=q_proj+lm_head --lora-exclude lm_head", 6},
                 {"--lora targets=q_proj --lora-layers 1 --lora-layers-pattern '(?:layers)'", 2},
                 {"--lora_target_modules q_proj v_proj --lora_r 2", 12},
                 {"--lora_target_modules 'q_proj v_proj'", 12},
                 {"--lora_target_modules '[q_proj, \"v_proj\"]'", 12},
                 {"--lora_target_modules all-linear --lora-exclude '[up_proj,down_proj]'", 30},
                 {"--config $D/flow", 12},
                 {"--config $D/block", 18}};
    static const struct {
        const char *options, *message;
    } wrong[] = {{"--lora targets=o_proj --lora-exclude o_proj", "is left out, by --lora exclude"},
                 {"--lora targets=q_proj --lora-layers 1 --lora-layers-pattern '(layers)|(h)'",
                  "is left out, by --lora exclude, --lora layers"},
                 {"--lora targets=nothing", "modules look like model.layers.0.self_attn.q_proj"}};
    io_fixture *f = *state;
    cli_put(f, "flow", "use_peft: true\nlora_target_modules: [q_proj, v_proj]\nlora_r: 4\n");
    cli_put(f, "block",
            "lora_target_modules:\n# these\n  - q_proj\n  - 'v_proj' # and\n  - k_proj\nlora_r: 4\n");
    for (int i = 0; i < SBP_COUNT(drawn); i++) {
        int got = count_trained(f, "llama_plain", drawn[i].options);
        if (got != drawn[i].tensors)
            fail_msg("%s: %d tensors are trained, expected %d", drawn[i].options, got, drawn[i].tensors);
    }
    for (int i = 0; i < SBP_COUNT(wrong); i++)
        cli_fails(f, 2, wrong[i].message,
                  TEXT("$C compile $G/llama_plain/model -o $D/p %s", wrong[i].options));
    /* Ranks by pattern: the first that matches the end of a name. */
    cli_ok(f, "$C compile $G/llama_plain/model -o $D/p --seq-len 94 --lora r=4,targets=q_proj+v_proj "
              "--lora-rank-pattern '(foo)?q_(proj)=8' --lora-rank-pattern 'v_proj=2'");
    cli_ok(f, "rm -rf $D/new; $R $D/p --data $G/llama_plain/train.jsonl --steps 1 --out $D/new");
    sbp_weights *w;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, "new/adapter_model.safetensors"), &w));
    for (int32_t i = 0; i < sbp_weights_count(w); i++) {
        const sbp_weight *t = sbp_weights_at(w, i);
        assert_int_equal(t->dim[strstr(t->name, "lora_A") ? 0 : 1], strstr(t->name, "q_proj") ? 8 : 2);
    }
    sbp_weights_close(w);
}

/* Adapters whose configuration says in another way what they are: the same gradients. */
static void test_configurations_of_peft(void **state) {
    static const char *const edits[] = {
        "s/\"target_modules\": *\\[[^]]*\\]/\"target_modules\": \"(x)|(.*q_proj)\"/",
        "s/\"r\": 4/\"r\": 7/; s/\"rank_pattern\": {}/\"rank_pattern\": {\"(foo)?q_(proj)\": 4}/; "
        "s/\"alpha_pattern\": {}/\"alpha_pattern\": {\"(x)|q_proj\": 8}/; "
        "s/\"lora_alpha\": 8/\"lora_alpha\": 5/",
        "s/\"init_lora_weights\": true/\"init_lora_weights\": false/",
        "s/\"init_lora_weights\": true/\"init_lora_weights\": \"gaussian\"/",
        "s/\"init_lora_weights\": true/\"init_lora_weights\": \"orthogonal\"/",
        "s/\"init_lora_weights\": true/\"init_lora_weights\": \"eva\"/; "
        "s/\"eva_config\": null/\"eva_config\": {\"rho\": 2.0}/"};
    io_fixture *f = *state;
    lora_case c = open_case(f, "q_only");
    cli_ok(f, "cp -r $G/lora/q_only/adapter $D/adapter; cp $D/adapter/adapter_config.json $D/config");
    for (int i = 0; i < SBP_COUNT(edits); i++) {
        cli_ok(f, TEXT("tr -d '\\n' <$D/config >$D/flat; sed '%s' $D/flat >$D/adapter/adapter_config.json && "
                       "! cmp -s $D/flat $D/adapter/adapter_config.json",
                       edits[i]));
        cli_ok(f, TEXT("$C compile $D/adapter --base $G/%s/model -o $D/p --seq-len 94 --dtype fp64", c.base));
        cli_ok(f, TEXT("$R $D/p --data $G/%s/train.jsonl --batch-size 100 --dump-gradients $D/g.safetensors",
                       c.base));
        cli_compare(f, edits[i], sbp_arena_strdup(f->arena, io_path(f, "g.safetensors")),
                    TEXT("%s/grads.safetensors", c.path), sbp_tolerance(SBP_F64));
    }
}

/* ---- training ----------------------------------------------------------------------------------------- */

static void test_resumed_and_continued(void **state) {
    static const char *const names[] = {"saved", "fused", "dropped"};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(names); i++) {
        lora_case c = open_case(f, names[i]);
        const char *dtype = i == 0 ? "fp32" : "bf16",
                   *train =
                       TEXT("--data $G/%s/train.jsonl --batch-size 2 --lr 1e-2 --schedule constant", c.base);
        cli_ok(f, TEXT("rm -rf $D/a $D/b; $C compile $G/%s/model -o $D/p --seq-len 94 --dtype %s %s", c.base,
                       dtype, c.options));
        cli_ok(f, TEXT("$R $D/p %s --steps 4 --out $D/a", train));
        cli_ok(f, TEXT("$R $D/p %s --steps 2 --out $D/b", train));
        cli_ok(f, "$R $D/p --steps 4 --out $D/b --resume");
        cli_same(f, "a/adapter_model.safetensors", "b/adapter_model.safetensors");
        cli_same(f, "a/checkpoint-4/optimizer.safetensors", "b/checkpoint-4/optimizer.safetensors");
        assert_false(cli_exists(f, "a/model.safetensors") || cli_exists(f, "a/config.json"));
        /* What was trained, as a model of its own right and as weights of the plan: the same loss. */
        cli_ok(f, TEXT("$R $D/a %s --dtype %s --seq-len 94 --eval $G/%s/train.jsonl --steps 1 --out $D/c%d "
                       "--json && "
                       "$R $D/p --weights $D/a --eval $G/%s/train.jsonl --out none --json >$D/other",
                       train, dtype, c.base, i, c.base));
        int count;
        const sbp_json **lines = cli_lines(f, TEXT("c%d/metrics.jsonl", i), &count);
        assert_true(count >= 2);
        assert_true(fabs(cli_number(f, lines[0], "eval_loss") -
                         cli_number(f, cli_json(f, "other"), "eval_loss")) < sbp_tolerance(SBP_F32));
        assert_true(cli_number(f, lines[count - 1], "eval_loss") < cli_number(f, lines[0], "eval_loss"));
    }
}

/* ---- what is frozen costs nothing ---------------------------------------------------------------------- */

static int count_lines(const char *text, const char *a, const char *b) {
    int count = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        char line[4096];
        size_t n = strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), at);
        count += strstr(line, a) && strstr(line, b);
    }
    return count;
}

static void test_frozen_weights_cost_nothing(void **state) {
    io_fixture *f = *state;
    lora_case c = open_case(f, "last_layer");
    cli_ok(f, TEXT("$C compile %s/adapter -o $D/p --seq-len 94 --stop-after memory", c.path));
    const char *text = cli_text(f, "out");
    assert_int_equal(count_lines(text, "buffer ", ".grad grad "), 6);
    assert_int_equal(count_lines(text, "buffer ", ".exp_avg state "), 6);
    assert_int_equal(count_lines(text, "call @layer", ".backward("), 1);
    assert_int_equal(count_lines(text, "call @layer", ".forward("), 4); /* training and scoring, two layers */
    assert_int_equal(count_lines(text, "scatter_add", ""), 0);
}

/* ---- refused ------------------------------------------------------------------------------------------ */

static void test_refusals_of_experts(void **state) {
    io_fixture *f = *state;
    cli_fails(f, 2, "adapters of experts have none",
              "$C compile $G/gpt_oss_v/model -o $D/p --lora dropout=0.1,target_parameters=experts.down_proj");
    cli_fails(f, 2, "one is model.layers.2.mlp.experts.down_proj",
              "$C compile $G/gpt_oss_v/model -o $D/p --lora target_parameters=experts.up_proj");
}

static void test_refusals(void **state) {
    static const struct {
        const char *edit, *field;
    } fields[] = {
        {"s/\"use_dora\": false/\"use_dora\": true/", "use_dora"},
        {"s/\"bias\": \"none\"/\"bias\": \"all\"/", "bias"},
        {"s/\"init_lora_weights\": true/\"init_lora_weights\": \"pissa\"/", "init_lora_weights"},
        {"s/\"init_lora_weights\": true/\"init_lora_weights\": \"pissa_niter_4\"/", "init_lora_weights"},
        {"s/\"init_lora_weights\": true/\"init_lora_weights\": \"loftq\"/", "init_lora_weights"},
        {"s/\"init_lora_weights\": true/\"init_lora_weights\": \"mica\"/", "init_lora_weights"},
        {"s/\"init_lora_weights\": true/\"init_lora_weights\": \"lora_ga\"/", "init_lora_weights"},
        {"s/\"trainable_token_indices\": null/\"trainable_token_indices\": [1]/", "trainable_token_indices"},
        {"s/\"lora_bias\": false/\"lora_bias\": true/", "lora_bias"},
        {"s/\"peft_type\": \"LORA\"/\"peft_type\": \"IA3\"/", "peft_type"},
        {"s/\"r\": 4/\"r\": 4, \"new_field\": 3/", "new_field"}};
    static const struct {
        const char *options, *message;
    } options[] = {{"--lora targets=no_such", "no weight has such a name"},
                   {"--lora target_parameters=no_such", "no tensor of experts or routers has such a name"},
                   {"--lora targets=lm_head", "an adapter on the head"},
                   {"--lora targets=embed_tokens", "embeddings, norms and the head are not supported"},
                   {"--lora targets=input_layernorm", "embeddings, norms and the head are not supported"},
                   {"--lora modules_to_save=nothing", "there is no such module"},
                   {"--lora colour=red", "is unknown; its keys are r, alpha"},
                   {"--lora r=0", "--lora r: 0 is below 1"},
                   {"--lora r=1.5", "found '1.5', expected a whole number"},
                   {"--lora-targets '(q_proj'", "not a regular expression"},
                   {"--lora-rank-pattern q_proj", "expected REGEX=NUMBER"},
                   {"--lora-targets '.*q_proj' --lora-layers 1", "says itself which layers"},
                   {"--base x", "is not an adapter"},
                   {"--use_dora true", "weight-decomposed"}};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(options); i++)
        cli_fails(f, 2, options[i].message,
                  TEXT("$C compile $G/llama_plain/model -o $D/p %s", options[i].options));
    cli_fails(f, 2, "--lora exclude=out_proj leaves such modules out",
              "$C compile $G/falcon_h1_plain/model -o $D/p --lora targets=all-linear");
    cli_ok(f,
           "$C compile $G/falcon_h1_plain/model -o $D/p --lora targets=all-linear --lora-exclude out_proj");
    cli_fails(f, 2, "untie them",
              "$C compile $G/llama_tied_pad/model -o $D/p --lora modules_to_save=embed_tokens");
    cli_fails(f, 2, "untie them",
              "$C compile $G/llama_tied_pad/model -o $D/p --lora modules_to_save=lm_head");
    cli_ok(f, "cp -r $G/lora/q_only/adapter $D/adapter; cp $D/adapter/adapter_config.json $D/config");
    cli_fails(f, 1, "give --base MODEL", "$C compile $D/adapter -o $D/p");
    cli_fails(f, 2, "is an adapter, and goes on", "$C compile $D/adapter -o $D/p --lora r=2");
    for (int i = 0; i < SBP_COUNT(fields); i++) {
        cli_ok(f, TEXT("sed '%s' $D/config >$D/adapter/adapter_config.json && ! cmp -s $D/config "
                       "$D/adapter/adapter_config.json",
                       fields[i].edit));
        cli_fails(f, 1, fields[i].field, "$C compile $D/adapter -o $D/p --base $G/llama_plain/model");
    }
    cli_fails(
        f, 1, "adapter_model.bin: weights in pickle are not read",
        "cp -r $D/adapter $D/pickled; mv $D/pickled/adapter_model.safetensors $D/pickled/adapter_model.bin; "
        "cp $D/config $D/pickled/adapter_config.json; "
        "$C compile $D/pickled -o $D/p --base $G/llama_plain/model");
    /* Tensors that the configuration does not speak of, or that are not there. */
    cli_ok(f, "sed 's/\"r\": 4/\"r\": 5/' $D/config >$D/adapter/adapter_config.json");
    cli_fails(f, 1, "the model expects", "$C compile $D/adapter -o $D/p --base $G/llama_plain/model");
    cli_ok(f, "sed 's/\"q_proj\"/\"q_proj\", \"k_proj\"/' $D/config >$D/adapter/adapter_config.json");
    cli_fails(f, 1, "which adapter_config.json asks for",
              "$C compile $D/adapter -o $D/p --base $G/llama_plain/model");
    cli_ok(f, "sed 's/\"layers_to_transform\": null/\"layers_to_transform\": [0, 1]/' $D/config "
              ">$D/adapter/adapter_config.json");
    cli_fails(f, 1, "belongs to nothing", "$C compile $D/adapter -o $D/p --base $G/llama_plain/model");
}

/* Absolute; beside the adapter; from here; in the cache of the Hub, whose name stays; --base. */
static void test_where_the_base_is(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir -p $D/hub/models--some--model/snapshots/abc $D/hub/models--some--model/refs $D/x; "
              "printf abc >$D/hub/models--some--model/refs/main; cp $G/llama_plain/model/* "
              "$D/hub/models--some--model/snapshots/abc; cp -r $G/llama_plain/model $D/x/beside; "
              "cp -r $G/lora/q_only/adapter $D/x/adapter; cp $D/x/adapter/adapter_config.json $D/config");
    static const char *const names[] = {"../beside", "tests/golden/llama_plain/model", "some/model",
                                        "$D/x/beside"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        cli_ok(f, TEXT("rm -rf $D/out1; sed 's#\\.\\./\\.\\./\\.\\./llama_plain/model#'%s'#' $D/config "
                       ">$D/x/adapter/adapter_config.json && HF_HUB_CACHE=$D/hub $R $D/x/adapter --data "
                       "$G/llama_plain/train.jsonl --steps 1 --out $D/out1",
                       names[i]));
        const char *base;
        assert_ok(f, sbp_json_get_string(f->diag, cli_json(f, "out1/adapter_config.json"),
                                         "base_model_name_or_path", SBP_JSON_REQUIRED, &base));
        if (i == 2)
            assert_string_equal(base, "some/model");
        else
            assert_true(base[0] == '/' && !strstr(base, ".."));
    }
}

/* What transformers cannot open by its path is called as the file, or --base-name, says. */
static void test_what_the_base_is_called(void **state) {
    static const struct {
        const char *edit, *options, *base;
    } bases[] = {{"", "", "model.json"},
                 {"", "--base-name some/model", "some/model"},
                 {"2s#{#{\"metadataProps\": [{\"key\": \"streambp.base_model\", \"value\": \"its/model\"}],#",
                  "", "its/model"},
                 {"2s#{#{\"metadataProps\": [{\"key\": \"streambp.base_model\", \"value\": \"its/model\"}],#",
                  "--base-name /other/one", "/other/one"}};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(bases); i++) {
        cli_ok(f, TEXT("rm -rf $D/o; cp $G/mistral_window/model/*.safetensors $D; "
                       "sed '%s' $G/mistral_window/model/export18.json >$D/model.json; "
                       "$R $D/model.json --lora targets=all-linear %s --seq-len 94 --data "
                       "$G/mistral_window/train.jsonl --steps 1 --out $D/o",
                       bases[i].edit, bases[i].options));
        bool warned = strstr(cli_text(f, "err"), "which transformers cannot open: --base-name NAME") != NULL;
        const char *base;
        assert_ok(f, sbp_json_get_string(f->diag, cli_json(f, "o/adapter_config.json"),
                                         "base_model_name_or_path", SBP_JSON_REQUIRED, &base));
        assert_true(i == 0 ? warned && strstr(base, "model.json")
                           : !warned && strcmp(base, bases[i].base) == 0);
    }
}

/* ---- other devices ------------------------------------------------------------------------------------- */

static const char *backend;

/* Low ranks, random numbers and all else by another device's kernels. */
static void test_gradients_on_a_device(void **state) {
    static const char *const names[] = {"dropped", "patterns"};
    io_fixture *f = *state;
    if (!cli_has_device(f, backend, "adapters"))
        skip();
    for (int i = 0; i < (strcmp(backend, "cuda") == 0 ? 1 : SBP_COUNT(names)); i++) { /* without a GPU slow */
        lora_case c = open_case(f, names[i]);
        compare_gradients(f, &c, TEXT("--backend %s --dtype fp32 --chunk %d", backend, i ? 16 : 64),
                          sbp_tolerance(SBP_F32));
    }
}

int main(int argc, char **argv) {
    backend = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest on_device[] = {
        cmocka_unit_test_setup_teardown(test_gradients_on_a_device, cli_setup, io_teardown)};
    if (backend)
        return cmocka_run_group_tests(on_device, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gradients_of_peft, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_dropout_is_of_the_data, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_frozen_parts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_log_probabilities_on_off_and_merged, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_merging_says, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_type_of_what_is_merged, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_new_adapters_begin_as_peft_does, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_names_and_patterns, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_configurations_of_peft, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resumed_and_continued, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_frozen_weights_cost_nothing, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals_of_experts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_where_the_base_is, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_the_base_is_called, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
