/* Ranks that have documents together: weights, losses, scores and gradients are those of one rank, of every
 * model, with schedules, placement and shares drawn, of documents shorter than there are ranks too; they send
 * what was planned, to the byte, and two runs have the same bits. */
#include "tests/cli/drawing.h"
#include "tests/cli/golden_lists.h"
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

enum { VOCABULARY = 31, ROWS = 9 };

/* $D/t: some longer than a chunk of all ranks, some of one or two tokens. */
static void write_rows(io_fixture *f, uint64_t seed, int longest) {
    sbp_rng rng = {.state = seed};
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int r = 0; r < ROWS; r++) {
        sbp_text_add(&out, "{");
        draw_ids(&rng, &out, "input_ids", 1 + sbp_rng_below(&rng, r % 3 == 0 ? longest : 3), VOCABULARY);
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, "t", out.data);
}

/* Trains into $D/NAME and $D/NAME.g, with `together` of the `ranks` ranks having documents together; both
 * runs beside each other, with folders of their own for what MPI removes at its end. */
static void train(io_fixture *f, const char *name, const char *settings, int ranks, int together) {
    const char *start = ranks > 1 ? sbp_arena_printf(f->arena, "$M -n %d ", ranks) : "";
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "rm -rf $D/%s; mkdir -p $D/mpi; $C compile %s -o $D/p --dtype fp64 --seq-len 60 --threads "
                  "1 --ranks %d "
                  "--context-parallel %d >$D/said || exit\n"
                  "%s$R $D/p --data $D/t --batch-size 5 --steps 3 --lr 1e-3 --out $D/%s >$D/said & steps=$!\n"
                  "OMPI_MCA_orte_tmpdir_base=$D/mpi %s$R $D/p --data $D/t --batch-size 5 --dump-gradients "
                  "$D/%s.g; dump=$?\n"
                  "wait $steps && exit $dump",
                  name, settings, ranks, together, start, name, start, name));
}

static double compare(io_fixture *f, const char *what, const char *file) {
    const char *want = sbp_arena_strdup(f->arena, io_path(f, sbp_arena_printf(f->arena, "one%s", file)));
    return cli_compare(f, what, io_path(f, sbp_arena_printf(f->arena, "all%s", file)), want,
                       SBP_TOLERANCE_F64);
}

/* As many ranks together as there are, or half of them. */
static void draw_ranks(sbp_rng *rng, int *ranks, int *together) {
    static const int pairs[][2] = {{2, 2}, {3, 3}, {4, 4}, {4, 2}, {6, 3}, {8, 8}};
    int pick = (int)sbp_rng_below(rng, testing_all() ? SBP_COUNT(pairs) : 4);
    *ranks = pairs[pick][0];
    *together = pairs[pick][1];
}

static const char *draw_settings(io_fixture *f, sbp_rng *rng) {
    int zero = (int)sbp_rng_below(rng, 4);
    return sbp_arena_printf(
        f->arena,
        "--chunk %d --head-chunk %d --segment %d --checkpoint-every %d --zero %d "
        "--context-exchange %s %s %s %s %s",
        1 + (int)sbp_rng_below(rng, 20), 1 + (int)sbp_rng_below(rng, 30), 1 + (int)sbp_rng_below(rng, 2),
        1 + (int)sbp_rng_below(rng, 2), zero, PICK(rng, "auto", "all-to-all", "all-gather", "all-gather"),
        PICK(rng, "", "--save attn_out+lse", "--save k+v", "--save q+attn_out", "--backward standard"),
        PICK(rng, "", "", "--head-rows all"), PICK(rng, "", "", "--lora-r 3", "--freeze '*layers.0.*'"),
        sbp_rng_below(rng, 2) ? draw_placement(f, rng) : "");
}

/* ---- models ----------------------------------------------------------------------------------------- */

static void test_models(void **state) {
    io_fixture *f = *state;
    bool all = testing_all();
    double worst = 0;
    int models = 0;
    if (!cli_has_ranks(f, "models of which ranks have documents together"))
        skip();
    cli_ok(f, "ls -d $G/*/model | grep -v /gpt2/"); /* which comes as ONNX only */
    char *names = sbp_arena_strdup(f->arena, cli_text(f, "out")), *rest;
    for (char *name = strtok_r(names, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest)) {
        bool chosen = all;
        for (int i = 0; i < SBP_COUNT(golden_drawn_ranks) && !chosen; i++)
            chosen = strstr(name, golden_drawn_ranks[i]) != NULL;
        sbp_rng rng = {.state = 70 + (uint64_t)models};
        for (int draw = 0; chosen && draw < (all ? 4 : 1); draw++, models++) {
            int ranks, together;
            draw_ranks(&rng, &ranks, &together);
            const char *settings = sbp_arena_printf(f->arena, "%s %s", name, draw_settings(f, &rng));
            const char *alone = sbp_arena_printf(f->arena, "%s %s", name,
                                                 strstr(settings, "--lora-r")   ? "--lora-r 3"
                                                 : strstr(settings, "--freeze") ? "--freeze '*layers.0.*'"
                                                                                : "");
            write_rows(f, 300 + (uint64_t)models, 50);
            train(f, "one", alone, 1, 1);
            train(f, "all", settings, ranks, together);
            printf("  %d ranks, %d together: %s\n", ranks, together, settings);
            double off = compare(f, settings, ".g");
            worst = off > worst ? off : worst;
            off = compare(f, settings,
                          strstr(settings, "--lora-r") ? "/adapter_model.safetensors" : "/model.safetensors");
            worst = off > worst ? off : worst;
        }
    }
    assert_true(models >= SBP_COUNT(golden_drawn_ranks));
    print_message("%d runs; worst tensor off by %.2g\n", models, worst);
}

/* ---- scores ----------------------------------------------------------------------------------------- */

static void test_scores(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "scores of ranks that have documents together"))
        skip();
    write_rows(f, 9, 50);
    for (int together = 1; together <= 3; together++)
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile $G/llama_mqa/model -o $D/p --dtype fp64 --threads 1 --seq-len 60 --chunk 4 "
                      "--ranks %d --context-parallel %d && %s$R $D/p --data $D/t --out none --score $D/s%d",
                      together, together,
                      together > 1 ? sbp_arena_printf(f->arena, "$M -n %d ", together) : "", together));
    int count, others;
    const sbp_json **want = cli_lines(f, "s1", &count);
    assert_int_equal(count, ROWS);
    for (int together = 2; together <= 3; together++) {
        const sbp_json **got = cli_lines(f, sbp_arena_printf(f->arena, "s%d", together), &others);
        assert_int_equal(others, count);
        for (int r = 0; r < count; r++) {
            const sbp_json *a = sbp_json_member(got[r], "logps"), *b = sbp_json_member(want[r], "logps");
            assert_true(a && b && a->count == b->count);
            for (int64_t i = 0; i < a->count; i++) {
                double x = NAN, y = NAN;
                (void)!sbp_json_as_double(NULL, &a->items[i], &x);
                (void)!sbp_json_as_double(NULL, &b->items[i], &y);
                assert_true(fabs(x - y) <= SBP_TOLERANCE_F64 * (1 + fabs(y)));
            }
        }
    }
}

/* ---- bytes, bits, memory ---------------------------------------------------------------------------- */

static int64_t number(io_fixture *f, const char *file, const char *object, const char *key) {
    const sbp_json *at = cli_json(f, file);
    int64_t value = -1;
    if (object)
        at = sbp_json_member(at, object);
    at = at ? sbp_json_member(at, key) : NULL;
    if (!at || sbp_json_as_i64(NULL, at, &value) != SBP_OK)
        fail_msg("%s: no %s", file, key);
    return value;
}

/* One full micro-batch of one document, which is no whole number of chunks; with heads that do and do not go
 * into the ranks. By the formula: q, k, v and o of a row, forward; q, k, v again, o, do, dq, dk and dv,
 * backward: slots of the other ranks, of every row of this one. The other way: k and v to all the others,
 * again, and dk and dv. And two vectors of the head. */
static void test_bytes(void **state) {
    io_fixture *f = *state;
    enum { HEAD = 8, KV_HEADS = 3, ROWS_OF_ALL = 57 };
    if (!cli_has_ranks(f, "bytes of ranks that have documents together"))
        skip();
    for (int run = 0; run < 5; run++) {
        bool keys = run >= 3;
        int together = keys ? 2 * (run - 2) : 2 + run; /* 2, 3, 4; 2, 4 */
        sbp_text row;
        sbp_text_init(&row, f->arena);
        int own = (ROWS_OF_ALL + together - 1) / together, all = own * together;
        sbp_text_add(&row, "{\"input_ids\": [1");
        for (int i = 1; i < all; i++)
            sbp_text_add(&row, ", %d", 3 + i % 20);
        sbp_text_add(&row, "]}\n");
        cli_put(f, "t", row.data);
        cli_ok(f, "mkdir -p $D/m; cp tests/data/configs/SmolLM2-135M.json $D/m/config.json");
        cli_ok(f,
               sbp_arena_printf(
                   f->arena,
                   "$C compile $D/m --set hidden_size=48 --set intermediate_size=64 --set "
                   "num_attention_heads=6 --set num_key_value_heads=3 --set num_hidden_layers=2 --set "
                   "vocab_size=40 --seq-len %d --chunk 5 --save none --segment 1 --checkpoint-every 1 "
                   "--threads 1 --ranks %d --context-parallel %d --context-exchange %s --json -o $D/p "
                   ">$D/planned "
                   "&& $M -n %d $R "
                   "$D/p --data $D/t --weights random:1 --batch-size 1 --steps 1 --json --out none >$D/sent",
                   all, together, together, keys ? "all-gather" : "all-to-all", together));
        int64_t kv = together == 2 ? 2 : 1,
                q = kv * 2; /* slots of a rank: 3 units over 2, 3 ranks; 6 over 4 */
        if (together == 4)
            kv = 2, q = 2; /* six units, of one query each */
        int64_t row_elems = HEAD * ((2 * q + 2 * kv) + (q + 2 * kv) + (3 * q + 2 * kv));
        if (keys)
            row_elems = HEAD * (2 + 2 + 2) * KV_HEADS;
        int64_t layers = 2 * own * (together - 1) * row_elems * 4;
        int64_t planned = number(f, "planned", "interconnect", "context_bytes");
        const char *way = NULL;
        const sbp_json *said = sbp_json_member(cli_json(f, "planned"), "context_exchange");
        assert_true(said && sbp_json_as_string(NULL, said, &way) == SBP_OK);
        assert_string_equal(way, keys ? "all-gather" : "all-to-all");
        int64_t head = planned - layers;
        printf("  %d together%s: %lld bytes\n", together, keys ? ", keys" : "", (long long)planned);
        assert_true(head >= 0 && head % (4 * own * (together - 1)) == 0 &&
                    head <= 4 * 4 * own * (together - 1));
        int64_t rest = number(f, "planned", "interconnect", "micro_batch_bytes") +
                       number(f, "planned", "interconnect", "step_bytes");
        assert_int_equal(number(f, "sent", NULL, "interconnect_bytes_sent"), planned + rest);
    }
}

static void test_same_bits(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "bits of ranks that have documents together"))
        skip();
    write_rows(f, 11, 50);
    train(f, "one", "$G/gemma3_softcap/model --chunk 4 --zero 3 --optimizer lion", 4, 2);
    train(f, "all", "$G/gemma3_softcap/model --chunk 4 --zero 3 --optimizer lion", 4, 2);
    cli_same(f, "one/model.safetensors", "all/model.safetensors");
    cli_same(f, "one.g", "all.g");
}

/* Stopped with four together, on with none of two, then three. */
static void test_others_go_on(void **state) {
    io_fixture *f = *state;
    static const int runs[][2] = {{4, 4}, {2, 1}, {3, 3}};
    if (!cli_has_ranks(f, "going on with other ranks together"))
        skip();
    write_rows(f, 12, 50);
    for (int i = 0; i < SBP_COUNT(runs); i++)
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$C compile $G/qwen2_tied/model --dtype fp64 --seq-len 60 --threads 1 "
                                "--ranks %d --context-parallel %d --chunk 3 -o $D/p && $R $D/p --ranks %d "
                                "--data $D/t --batch-size 4 --schedule constant --steps %d --lr 1e-3 --out "
                                "$D/all --save-every 1 %s",
                                runs[i][0], runs[i][1], runs[i][0], 2 * i + 2, i > 0 ? "--resume" : ""));
    cli_ok(f, "$C compile $G/qwen2_tied/model --dtype fp64 --seq-len 60 -o $D/p && $R $D/p --data $D/t "
              "--batch-size 4 --schedule constant --steps 6 --lr 1e-3 --out $D/one");
    compare(f, "weights", "/model.safetensors");
}

/* A document that does not fit one rank. */
static void test_longer(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "a document that is too long for one rank"))
        skip();
    const char *compile = "$C compile $S --backward stream --chunk 64 --threads 1 --ranks 4 --seq-len 16000 "
                          "--memory 160MiB --offload none -o $D/p --zero 3";
    cli_fails(f, 3, "--context-parallel 4 (", compile);
    cli_ok(f, sbp_arena_printf(f->arena, "%s --context-parallel 4 --json >$D/planned", compile));
    assert_true(number(f, "planned", "peak_bytes", "device") <= 40 << 20);
    cli_ok(f, sbp_arena_printf(f->arena, "%s --context-parallel auto", compile));
    assert_non_null(strstr(cli_text(f, "err"), "--context-parallel 4: documents do not fit fewer ranks"));
    cli_ok(f, "$C compile $S --ranks 4 --seq-len 64 --context-parallel auto -o $D/p");
    assert_non_null(strstr(cli_text(f, "err"), "--context-parallel 1: documents fit one rank"));
    cli_fails(f, 2, "--ranks (4) must be a multiple of it",
              "$C compile $S --seq-len 64 --ranks 4 --context-parallel 3 -o $D/p");
    cli_fails(f, 2, "--ranks (1) must be", "$C compile $S --seq-len 64 --context-parallel 2 -o $D/p");
}

/* Sinks belong to heads, which stay on each rank: keys and values of all rows go there, and
 * nothing else is built.
 */
static void test_sinks(void **state) {
    io_fixture *f = *state;
    static const char compile[] =
        "$C compile $G/gpt_oss_v/model -o $D/p --dtype fp64 --seq-len 78 --threads 1 "
        "--ranks 2 --context-parallel 2 --chunk 7 --context-exchange";
    cli_fails(f, 1, "its sinks belong to heads, which stay where they are",
              sbp_arena_printf(f->arena, "%s all-to-all", compile));
    if (!cli_has_ranks(f, "sinks of ranks that have documents together"))
        skip();
    cli_ok(f, sbp_arena_printf(f->arena,
                               "%s auto && $M -n 2 $R $D/p --data $G/gpt_oss_v/train.jsonl --batch-tokens 78 "
                               "--dump-gradients $D/all.g",
                               compile));
    cli_compare(f, "gpt_oss_v", sbp_arena_strdup(f->arena, io_path(f, "all.g")),
                "tests/golden/gpt_oss_v/grads.safetensors", SBP_TOLERANCE_F64);
}

/* A case of each family. States go over the rows of all ranks: chunks cut documents, and have more rows
 * of all ranks than one block of a sum over rows, or of the delta rule. Value heads in 3 parts: some
 * ranks have none. */
static void test_families(void **state) {
    io_fixture *f = *state;
    static const struct {
        const char *model, *settings;
        int ranks, tokens;
    } cases[] = {
#define ROW(model, settings, ranks, tokens) {model, settings, ranks, tokens},
        GOLDEN_RANKS(ROW)
#undef ROW
    };
    if (!cli_has_ranks(f, "families of ranks that have documents together"))
        skip();
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile $G/%s/model -o $D/p --dtype fp64 --seq-len %d --threads 1 "
                                   "--ranks %d --context-parallel %d %s && $M -n %d $R $D/p --data "
                                   "$G/%s/train.jsonl --batch-tokens %d --dump-gradients $D/all.g",
                                   cases[i].model, cases[i].tokens, cases[i].ranks, cases[i].ranks,
                                   cases[i].settings, cases[i].ranks, cases[i].model, cases[i].tokens));
        cli_compare(f, cases[i].settings, sbp_arena_strdup(f->arena, io_path(f, "all.g")),
                    sbp_arena_printf(f->arena, "tests/golden/%s/grads.safetensors", cases[i].model),
                    SBP_TOLERANCE_F64);
    }
}

/* Three value heads of each of two key heads, on four ranks: decay and beta go where v goes, which is not as
 * many to each rank. */
static void test_value_heads(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "value heads of ranks that have documents together"))
        skip();
    write_rows(f, 13, 50);
    cli_ok(f, "mkdir -p $D/m && cp $G/qwen3_next_dense/model/config.json $D/m");
    for (int ranks = 1; ranks <= 4; ranks += 3)
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$C compile $D/m --set linear_num_value_heads=6 --dtype fp64 --seq-len 60 --threads 1 "
                      "--chunk 5 --ranks %d --context-parallel %d -o $D/p && %s$R $D/p --data $D/t --weights "
                      "random:1 --batch-size 5 --dump-gradients $D/%s.g",
                      ranks, ranks, ranks > 1 ? "$M -n 4 " : "", ranks > 1 ? "all" : "one"));
    compare(f, "value heads", ".g");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_models, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_scores, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bytes, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_same_bits, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_others_go_on, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_longer, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_sinks, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_families, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_value_heads, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
