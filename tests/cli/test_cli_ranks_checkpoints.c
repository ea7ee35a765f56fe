/* test_cli_ranks_checkpoints.c: checkpoints that ranks write together, each its part: they hold what one rank
 * would have written, any number of ranks with any shares goes on from them, and whatever happens to a rank
 * while it writes, the checkpoint before stays. */
#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

#define AT "LD_PRELOAD=" SBP_SIGNAL_AT " "

enum { VOCABULARY = 51, ROWS = 12 };

static void write_rows(io_fixture *f) {
    sbp_rng rng = {.state = 5};
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int r = 0; r < ROWS; r++) {
        sbp_text_add(&out, "{");
        draw_ids(&rng, &out, "input_ids", 2 + sbp_rng_below(&rng, 20), VOCABULARY);
        sbp_text_add(&out, "}\n");
    }
    cli_put(f, "t", out.data);
}

static void compile(io_fixture *f, const char *plan, const char *settings, int ranks, int zero) {
    cli_ok(f,
           sbp_arena_printf(f->arena, "$C compile %s --seq-len 64 --threads 1 --ranks %d --zero %d -o $D/%s",
                            settings, ranks, zero, plan));
}

/* A command that runs a plan with `ranks` ranks. */
static const char *run_of(io_fixture *f, const char *plan, int ranks, const char *options) {
    return sbp_arena_printf(f->arena, "$R $D/%s --data $D/t --schedule constant --lr 1e-3 --ranks %d %s",
                            plan, ranks, options);
}

/* ---- what they hold ----------------------------------------------------------------------------------- */

/* Tensors "NAME[FIRST:END]" of some files are those elements of NAME in another; *elems: of all. */
static int64_t expect_pieces(io_fixture *f, const char *pieces, const char *whole) {
    sbp_weights *got, *want;
    int64_t elems = 0, all = 0;
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, pieces), &got));
    assert_ok(f, sbp_weights_open(f->arena, f->diag, io_path(f, whole), &want));
    for (int32_t i = 0; i < sbp_weights_count(got); i++) {
        const sbp_weight *piece = sbp_weights_at(got, i);
        const char *bracket = strrchr(piece->name, '[');
        long long first, end;
        assert_true(bracket && sscanf(bracket, "[%lld:%lld]", &first, &end) == 2);
        const char *name = sbp_arena_strndup(f->arena, piece->name, (size_t)(bracket - piece->name));
        const sbp_weight *of = sbp_weights_find(want, name);
        if (!of || strcmp(of->encoding, piece->encoding) != 0 || end - first != piece->elems ||
            end > of->elems)
            fail_msg("%s: as one rank has it: %s", piece->name, of ? of->encoding : "not there");
        sbp_dtype dtype = strcmp(of->encoding, "U8") == 0 ? SBP_D8 : of->dtype; /* as bytes */
        size_t bytes = (size_t)(piece->elems * sbp_dtype_bytes(dtype));
        char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
        assert_true(a && b);
        assert_ok(f, sbp_weights_read(got, piece, 0, piece->elems, dtype, a, f->diag));
        assert_ok(f, sbp_weights_read(want, of, first, piece->elems, dtype, b, f->diag));
        if (memcmp(a, b, bytes) != 0)
            fail_msg("%s differs from what one rank has", piece->name);
        elems += piece->elems;
        free(a);
        free(b);
    }
    for (int32_t i = 0; i < sbp_weights_count(want); i++)
        all += sbp_weights_at(want, i)->elems;
    assert_int_equal(elems, all);
    sbp_weights_close(got);
    sbp_weights_close(want);
    return elems;
}

/* One document a step, so that gradients are those of one rank to the bit. */
static void test_they_are_those_of_one_rank(void **state) {
    io_fixture *f = *state;
    static const struct {
        int ranks, zero;
        const char *settings, *shares;
    } cases[] = {{3, 0, "$G/qwen2_tied/model", ""},
                 {2, 1, "$D/m --state-dtype int8", ""},
                 {4, 2, "$D/m --param-dtype bf16 --state-dtype bf16", ""},
                 {3, 3, "$G/gemma3_softcap/model --dtype fp64", ""},
                 {4, 3, "$D/m --param-dtype bf16", "--shard-group 2"},
                 {2, 3, "$G/llama_mqa/model --lora-r 3", ""}};
    if (!cli_has_ranks(f, "checkpoints of several ranks"))
        skip();
    write_rows(f);
    cli_ok(f, "mkdir $D/m; cp tests/data/configs/SmolLM2-135M.json $D/m/config.json");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        bool own = strncmp(cases[i].settings, "$D", 2) == 0,
             adapter = strstr(cases[i].settings, "lora") != NULL;
        const char *settings = sbp_arena_printf(
            f->arena, "%s --clip none %s", cases[i].settings,
            own ? "--set hidden_size=64 --set intermediate_size=96 --set num_attention_heads=4 --set "
                  "num_key_value_heads=2 --set num_hidden_layers=2 --set vocab_size=64"
                : "");
        const char *options =
            sbp_arena_printf(f->arena, "--batch-size 1 --steps 2 %s", own ? "--weights random:1" : "");
        compile(f, "p", settings, 1, 0);
        compile(f, "q", sbp_arena_printf(f->arena, "%s %s", settings, cases[i].shares), cases[i].ranks,
                cases[i].zero);
        cli_ok(f, sbp_arena_printf(f->arena, "rm -rf $D/one $D/all; %s --out $D/one && %s --out $D/all",
                                   run_of(f, "p", 1, options), run_of(f, "q", cases[i].ranks, options)));
        int64_t elems = expect_pieces(f, "all/checkpoint-2/optimizer.safetensors.index.json",
                                      "one/checkpoint-2/optimizer.safetensors");
        assert_true(elems > 500);
        assert_int_equal(cli_exists(f, "all/checkpoint-2/model-00001-of-00002.safetensors") ||
                             cli_exists(f, "all/checkpoint-2/model.safetensors.index.json"),
                         !adapter);
        const char *file = adapter ? "/adapter_model.safetensors" : "";
        double off = cli_compare(
            f, "weights",
            sbp_arena_strdup(f->arena, io_path(f, sbp_arena_printf(f->arena, "all/checkpoint-2%s", file))),
            sbp_arena_strdup(f->arena, io_path(f, sbp_arena_printf(f->arena, "one/checkpoint-2%s", file))),
            SBP_TOLERANCE_F64);
        assert_true(off == 0);
    }
}

/* ---- going on ----------------------------------------------------------------------------------------- */

/* (The gradient of a key's bias is 0 but for rounding, which AdamW makes steps of: hence SGD.)
 * Four ranks with shares of everything, three with shares of states, one, two: to the numbers of one alone.
 */
static void test_any_number_goes_on(void **state) {
    io_fixture *f = *state;
    static const struct {
        int ranks, zero;
        const char *shares;
    } runs[] = {{4, 3, ""}, {3, 1, ""}, {4, 2, "--shard-group 2"}, {1, 0, ""}, {2, 2, "--context-parallel 2"},
                {1, 0, ""}};
    static const char *const models[] = {"$G/gpt_neox_plain/model --optimizer sgd-momentum",
                                         "$G/qwen2_tied/model", "$G/gemma3_softcap/model",
                                         "$G/llama_mqa/model --lora-r 3"};
    double worst = 0;
    if (!cli_has_ranks(f, "going on from checkpoints of other ranks"))
        skip();
    write_rows(f);
    for (int m = 0; m < SBP_COUNT(models); m += testing_all() ? 1 : 4) {
        const char *settings = sbp_arena_printf(f->arena, "%s --dtype fp64", models[m]);
        cli_ok(f, "rm -rf $D/o $D/want");
        for (int i = 0; i < SBP_COUNT(runs); i++) {
            compile(f, "p", sbp_arena_printf(f->arena, "%s %s", settings, runs[i].shares), runs[i].ranks,
                    runs[i].zero);
            cli_ok(f,
                   run_of(f, "p", runs[i].ranks,
                          sbp_arena_printf(f->arena, "--batch-size 4 --steps %d --save-every 1 --out $D/o %s",
                                           i + 1, i > 0 ? "--resume" : "")));
            assert_int_equal(strstr(cli_text(f, "err"), "going on after step ") != NULL, i > 0);
        }
        cli_ok(f, run_of(f, "p", 1, "--batch-size 4 --steps 6 --out $D/want"));
        static const char *const files[] = {"optimizer.safetensors", "model.safetensors"};
        for (int k = 0; k < 2; k++) {
            const char *name = k && strstr(models[m], "lora") ? "adapter_model.safetensors" : files[k];
            name = sbp_arena_printf(f->arena, "checkpoint-6/%s", name);
            double off = cli_compare(
                f, name, sbp_arena_strdup(f->arena, io_path(f, sbp_arena_printf(f->arena, "o/%s", name))),
                sbp_arena_strdup(f->arena, io_path(f, sbp_arena_printf(f->arena, "want/%s", name))),
                SBP_TOLERANCE_F64);
            worst = off > worst ? off : worst;
        }
    }
    assert_true(worst > 0); /* it was not the same run */
    print_message("off by %.2g\n", worst);
}

/* The same number has the same bits, whatever is in shares. */
static void test_same_bits(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "bits of checkpoints"))
        skip();
    write_rows(f);
    for (int zero = 0; zero <= 3; zero += 3) {
        compile(f, "p", "$G/qwen2_tied/model --state-dtype bf16 --param-dtype bf16", 3, zero);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "rm -rf $D/a $D/b; %s --steps 6 --out $D/a && %s --steps 3 --out $D/b && "
                                   "%s --steps 6 --out $D/b --resume && diff -r $D/a/checkpoint-6 "
                                   "$D/b/checkpoint-6",
                                   run_of(f, "p", 3, "--batch-size 4"), run_of(f, "p", 3, "--batch-size 4"),
                                   run_of(f, "p", 3, "--batch-size 4")));
    }
}

/* ---- what goes wrong ---------------------------------------------------------------------------------- */

/* A run that goes on after step `step` to the bits of $D/whole. */
static void goes_on(io_fixture *f, const char *what, const char *run) {
    cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/o --resume", run));
    if (!strstr(cli_text(f, "err"), "going on after step "))
        fail_msg("%s: it begins again: %s", what, cli_text(f, "err"));
    cli_ok(f, "cmp $D/whole/model.safetensors $D/o/model.safetensors && diff -r $D/whole/checkpoint-6 "
              "$D/o/checkpoint-6 && test -z \"$(ls -A $D/o | grep -E '^\\.|tmp$')\"");
}

/* A part of the weights or of the states that is of another checkpoint, whatever part it is. */
static void test_parts_of_another_checkpoint(void **state) {
    io_fixture *f = *state;
    static const char *const parts[] = {"optimizer-00001-of-00003", "optimizer-00003-of-00003",
                                        "model-00002-of-00004"};
    if (!cli_has_ranks(f, "parts of checkpoints"))
        skip();
    write_rows(f);
    compile(f, "p", "$G/qwen2_tied/model", 3, 3);
    cli_ok(f, run_of(f, "p", 3, "--batch-size 4 --save-every 2 --keep all --steps 4 --out $D/whole"));
    for (int i = 0; i < SBP_COUNT(parts); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "rm -rf $D/o; cp -r $D/whole $D/o; cp $D/o/checkpoint-2/%s.safetensors "
                                   "$D/o/checkpoint-4",
                                   parts[i]));
        cli_sum_again(f, "o/checkpoint-4");
        cli_fails(f, 1, sbp_arena_printf(f->arena, "%s.safetensors' is of another checkpoint", parts[i]),
                  run_of(f, "p", 3, "--batch-size 4 --steps 5 --resume --out $D/o"));
    }
}

/* One rank is killed before a call for its own file, or rank 0 before one that makes the checkpoint one. */
static void test_killed_while_writing(void **state) {
    io_fixture *f = *state;
    static const char *const texts[] = {
        "optimizer-00001", "optimizer-00002", "optimizer-00003", "model-00001", "model-00002",
        "model-00003",     "checksums",       "trainer_state",   "index.json",  ".checkpoint-4-"};
    sbp_rng rng = {.state = 31};
    int draws = testing_all() ? 60 : 3, died = 0;
    if (!cli_has_ranks(f, "ranks that are killed while they write"))
        skip();
    write_rows(f);
    compile(f, "p", "$G/qwen2_tied/model --state-dtype bf16", 3, 3);
    const char *run = run_of(f, "p", 3, "--batch-size 4 --save-every 2 --keep 2 --steps 6");
    cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/whole", run));
    for (int i = 0; i < draws; i++) {
        const char *text = texts[sbp_rng_below(&rng, SBP_COUNT(texts))];
        int number = 1 + (int)sbp_rng_below(&rng, text[0] == '.' ? 12 : 16);
        const char *what = sbp_arena_printf(f->arena, "KILL@any:%d:%s", number, text);
        cli_ok(f, "rm -rf $D/o");
        int status =
            cli(f, sbp_arena_printf(f->arena, "env " AT "SBP_AT=%s %s --timeout 20 --out $D/o", what, run));
        printf("  %s: exit status %d\n", what, status);
        died += status != 0;
        if (status != 0 && status != 3)
            fail_msg("%s: exit status %d: %s", what, status, cli_text(f, "err"));
        bool any = cli(f, "ls $D/o | grep -q '^checkpoint-'") == 0;
        if (any)
            goes_on(f, what, run);
    }
    assert_true(died > draws / 3);
}

/* The disk of one rank is full: all end and say why, and the checkpoint before stays. */
static void test_a_full_disk(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "a rank whose disk is full"))
        skip();
    write_rows(f);
    compile(f, "p", "$G/qwen2_tied/model", 3, 3);
    const char *run = run_of(f, "p", 3, "--batch-size 4 --save-every 2");
    cli_ok(f, sbp_arena_printf(f->arena, "%s --steps 6 --out $D/whole; %s --steps 2 --out $D/o", run, run));
    for (int rank = 0; rank < 3; rank++) {
        cli_fails(f, 4, sbp_arena_printf(f->arena, "rank %d: cannot write", rank),
                  sbp_arena_printf(f->arena,
                                   "$M --mca btl tcp,self -n 3 sh -c 'trap \"\" XFSZ; [ "
                                   "$OMPI_COMM_WORLD_RANK = %d ] && ulimit -f 4; "
                                   "exec $R $D/p --data $D/t --schedule constant --lr 1e-3 --batch-size 4 "
                                   "--save-every 2 --steps 6 --out $D/o --resume'",
                                   rank));
        cli_ok(f, "test \"$(ls -A $D/o | grep checkpoint)\" = checkpoint-2");
    }
    goes_on(f, "a full disk", sbp_arena_printf(f->arena, "%s --steps 6", run));
}

/* Files that are not what was written, or not there, are named, whichever rank looks at them. */
static void test_damaged(void **state) {
    io_fixture *f = *state;
    static const char *const files[] = {"optimizer-00001-of-00003.safetensors",
                                        "optimizer-00003-of-00003.safetensors",
                                        "model-00002-of-0000*.safetensors"};
    if (!cli_has_ranks(f, "damaged checkpoints"))
        skip();
    write_rows(f);
    compile(f, "p", "$G/qwen2_tied/model", 3, 2);
    compile(f, "q", "$G/qwen2_tied/model", 1, 0);
    cli_ok(f, sbp_arena_printf(f->arena, "%s --steps 2 --out $D/o", run_of(f, "p", 3, "--batch-size 4")));
    for (int i = 0; i < SBP_COUNT(files); i++)
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            cli_ok(f, sbp_arena_printf(f->arena,
                                       "rm -rf $D/b; cp -r $D/o $D/b; printf x | dd of=$(ls "
                                       "$D/b/checkpoint-2/%s) bs=1 seek=900 conv=notrunc 2>/dev/null",
                                       files[i]));
            const char *run =
                run_of(f, ranks > 1 ? "p" : "q", ranks, "--batch-size 4 --steps 4 --out $D/b --resume");
            cli_fails(f, 1, "is damaged", run);
            cli_ok(f, sbp_arena_printf(f->arena, "rm $D/b/checkpoint-2/%s", files[i]));
            cli_fails(f, 4, "is missing; delete '", run);
        }
    /* where checksums do not tell, what lacks is seen by itself */
    cli_ok(f, "sed -i '/-00002-of-/d' $D/o/checkpoint-2/optimizer.safetensors.index.json");
    cli_sum_again(f, "o/checkpoint-2");
    cli_fails(f, 1, "is not there from its first element to its last, once",
              run_of(f, "q", 1, "--batch-size 4 --steps 4 --out $D/o --resume"));
}

/* Where a rank does not see --out, rank 0 writes all, and says so. */
static void test_not_shared(void **state) {
    io_fixture *f = *state;
    if (!cli_has_ranks(f, "ranks that do not see each other's files"))
        skip();
    write_rows(f);
    compile(f, "p", "$G/qwen2_tied/model", 2, 3);
    cli_ok(f, "mkdir -p $D/x $D/y; for o in \"$D/x:$D/y\" \"$D/x:$D/x\"; do "
              "RUN=\"$R $D/p --data $D/t --schedule constant --lr 1e-3 --batch-size 4 --steps 2 --out\"; "
              "$M -n 1 --wdir ${o%:*} $RUN o : -n 1 --wdir ${o#*:} $RUN o 2>$D/said || exit 1; "
              "mv $D/x/o $D/o.$(basename ${o#*:}); mv $D/said $D/said.$(basename ${o#*:}); done");
    assert_non_null(strstr(cli_text(f, "said.y"), "not all ranks see 'o': rank 0 writes checkpoints alone"));
    assert_null(strstr(cli_text(f, "said.x"), "not all ranks"));
    assert_true(cli_exists(f, "o.y/checkpoint-2/optimizer.safetensors"));
    assert_false(cli_exists(f, "o.x/checkpoint-2/optimizer.safetensors"));
    (void)expect_pieces(f, "o.x/checkpoint-2/optimizer.safetensors.index.json",
                        "o.y/checkpoint-2/optimizer.safetensors");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_they_are_those_of_one_rank, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_any_number_goes_on, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_same_bits, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_parts_of_another_checkpoint, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_killed_while_writing, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_a_full_disk, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_damaged, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_not_shared, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
