/* test_cli_pieces.c: matrices of experts that come to the device in pieces. How many pieces, and where they
 * come from, changes no bit of gradients and weights; from the disk come as many bytes as are planned, a
 * layer's once for each call that reads it. */
#include "tests/cli/drawing.h"
#include "tests/cli/ranks_testing.h"
#include "tests/common/sweep.h"

/* ---- gradients ---------------------------------------------------------------------------------------- */

typedef struct model {
    const char *path, *compile, *run;
    const char *lora;   /* adapters that cover experts */
    const char *freeze; /* what is kept in blocks; "": nothing */
    bool exact;         /* gradients in fp64 are those of the golden */
} model;

static const model models[] = {
    {"deepseek_v3_groups", "--seq-len 55", "--batch-tokens 55", "targets=all-linear", "", true},
    {"qwen3_moe_norm_v", "--seq-len 78", "--batch-tokens 78", "targets=all-linear", "", true},
    {"gpt_oss_mxfp4_v", "--seq-len 106", "--batch-tokens 106", "targets=all-linear", "", false},
    {"qwen3_moe_fp8", "--seq-len 55", "--batch-tokens 55", "targets=all-linear", "", false},
};

static void dump(io_fixture *f, const model *m, const char *settings, const char *name) {
    cli_ok(f,
           sbp_arena_printf(f->arena, "$C compile $G/%s/model -o $D/p %s %s", m->path, m->compile, settings));
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$R $D/p --data $G/%s/train.jsonl %s --offload-dir $D --dump-gradients $D/%s",
                               m->path, m->run, name));
}

static void expect_pieces(io_fixture *f, int pieces) {
    cli_ok(f, "$C inspect $D/p");
    const char *line = sbp_arena_printf(f->arena, "experts come to the device in %d pieces", pieces);
    if (!strstr(cli_unfolded(f, "out"), line))
        fail_msg("no '%s'", line);
}

/* Six experts in four pieces are uneven ones, in nine a piece each. Chunks of a row leave most
 * experts none. */
static void test_pieces_change_no_gradient(void **state) {
    static const struct {
        const char *schedule;
        int pieces;
    } settings[] = {{"--chunk 7 --offload params:host", 2},
                    {"--chunk 7 --offload params:disk+checkpoints:disk", 3},
                    {"--chunk 1 --offload params:host --segment 2", 9},
                    {"--chunk 128 --offload params:disk:9 --save chosen --checkpoint-every 2", 4}};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(models); i++) {
        const model *m = &models[i];
        for (int s = 0; s < SBP_COUNT(settings); s++) {
            if (!testing_all() && s % 2 != i % 2)
                continue;
            const char *lora = s % 2 == 0 ? "" : sbp_arena_printf(f->arena, "--lora r=4,%s", m->lora);
            const char *schedule =
                sbp_arena_printf(f->arena, "--dtype fp64 %s %s", settings[s].schedule, lora);
            printf("  %s %s, %d pieces\n", m->path, schedule, settings[s].pieces);
            dump(f, m, sbp_arena_printf(f->arena, "%s --expert-pieces 1", schedule), "want.safetensors");
            dump(f, m, sbp_arena_printf(f->arena, "%s --expert-pieces %d", schedule, settings[s].pieces),
                 "got.safetensors");
            expect_pieces(f, settings[s].pieces);
            cli_same(f, "want.safetensors", "got.safetensors");
            if (m->exact && !*lora)
                cli_compare(f, m->path, sbp_arena_strdup(f->arena, io_path(f, "got.safetensors")),
                            sbp_arena_printf(f->arena, "tests/golden/%s/grads.safetensors", m->path),
                            sbp_tolerance(SBP_F64));
        }
    }
}

/* From blocks on the device only numbers come in pieces. */
static void test_blocks_on_the_device(void **state) {
    io_fixture *f = *state;
    for (int i = 2; i < SBP_COUNT(models); i++) {
        const char *settings = "--chunk 7 --offload none --lora r=4,targets=all-linear";
        dump(f, &models[i], sbp_arena_printf(f->arena, "%s --expert-pieces 1", settings), "want.safetensors");
        dump(f, &models[i], sbp_arena_printf(f->arena, "%s --expert-pieces 2", settings), "got.safetensors");
        cli_same(f, "want.safetensors", "got.safetensors");
        cli_ok(f, sbp_arena_printf(
                      f->arena, "$C compile $G/%s/model -o $D/p %s %s --expert-pieces 2 --print-after fence",
                      models[i].path, models[i].compile, settings));
        if (strstr(cli_text(f, "out"), "queue = in"))
            fail_msg("something is copied from the host");
    }
}

/* ---- what is read ------------------------------------------------------------------------------------- */

enum { LAYERS = 6, EXPERTS = 5, HIDDEN = 32 };

/* A model of which nothing is there but its shape. */
static void put_config(io_fixture *f, int inner) {
    cli_ok(f, "mkdir -p $D/m");
    cli_put(
        f, "m/config.json",
        sbp_arena_printf(f->arena,
                         "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", "
                         "\"vocab_size\": 71, \"hidden_size\": %d, \"intermediate_size\": 48, "
                         "\"moe_intermediate_size\": %d, \"num_experts\": %d, \"num_experts_per_tok\": 2, "
                         "\"num_hidden_layers\": %d, \"num_attention_heads\": 2, "
                         "\"num_key_value_heads\": 1, \"head_dim\": 16, \"decoder_sparse_step\": 1, "
                         "\"norm_topk_prob\": true, \"router_aux_loss_coef\": 0.0, "
                         "\"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-6, "
                         "\"tie_word_embeddings\": false}",
                         HIDDEN, inner, EXPERTS, LAYERS));
}

static const char lines[] = "{\"input_ids\": [5, 9, 13, 40, 41, 42, 3, 7, 60, 61, 5, 4]}\n"
                            "{\"input_ids\": [50, 19, 3, 44, 4, 42, 33, 7, 6, 1, 5, 4]}\n";

static double read_by_steps(io_fixture *f, int steps) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "rm -rf $D/run; $R $D/p --data $D/d.jsonl --steps %d --batch-size 1 --weights "
                               "random:3 --out $D/run --save-every never --json",
                               steps));
    return cli_number(f, cli_json(f, "out"), "disk_bytes_read");
}

/* Bytes of parameters that a step copies, as planned: from the disk, and to the device. */
typedef struct copied {
    double read, in;
} copied;

static copied planned(io_fixture *f, int inner, const char *settings) {
    put_config(f, inner);
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile $D/m -o $D/p --seq-len 24 --lora r=8 %s > $D/compiled && $C "
                               "inspect $D/p --json",
                               settings));
    const sbp_json *traffic = sbp_json_member(sbp_json_member(cli_json(f, "out"), "traffic"), "params");
    return (copied){cli_number(f, traffic, "read"), cli_number(f, traffic, "in")};
}

/* The forward reads each layer's experts, and the backward all but those of the last two layers, which still
 * stand on the host: what wider experts take more of, 2 * LAYERS - 2 times. To the device each chunk has a
 * matrix once in the forward, and of the three in the backward two again for their inputs' gradients. Two
 * steps read, but for what one step and the end of a run read, as much as is planned. */
static void test_what_is_planned_is_read(void **state) {
    static const struct {
        const char *settings;
        int chunks;
    } cases[] = {{"--offload params:disk --expert-pieces 2 --chunk 24", 1},
                 {"--offload params:disk --expert-pieces 3 --chunk 5", 5}};
    io_fixture *f = *state;
    cli_put(f, "d.jsonl", lines);
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const double more = 32, bytes = EXPERTS * HIDDEN * more * 4;
        copied narrow = planned(f, 64, cases[i].settings),
               wide = planned(f, 64 + (int)more, cases[i].settings);
        print_message("%.0f bytes, with wider experts %.0f\n", narrow.read, wide.read);
        assert_true(wide.read - narrow.read == (2 * LAYERS - 2) * 3 * bytes);
        assert_true(wide.in - narrow.in == LAYERS * (3 + 5) * cases[i].chunks * bytes);
        assert_true(read_by_steps(f, 2) - read_by_steps(f, 1) == wide.read);
    }
}

/* ---- what it takes ------------------------------------------------------------------------------------ */

static double category(io_fixture *f, const char *settings, const char *name) {
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$C compile $D/m -o $D/p --seq-len 4 --lora r=8 %s > $D/compiled && $C "
                               "inspect $D/p --json",
                               settings));
    return cli_number(f, sbp_json_member(cli_json(f, "out"), "categories"), name);
}

/* A layer whole twice, so that the next comes meanwhile; of pieces two, whatever they are of. */
static void test_two_pieces_are_there(void **state) {
    io_fixture *f = *state;
    const double matrices = EXPERTS * HIDDEN * 4096. * 4;
    put_config(f, 4096);
    double whole = category(f, "--offload params --expert-pieces 1", "staging buffers"),
           none = category(f, "--offload params --expert-pieces 5", "staging buffers"),
           pieces = category(f, "--offload params --expert-pieces 5", "workspace"),
           halves = category(f, "--offload params --expert-pieces 2", "workspace");
    print_message("%.0f bytes of staging buffers, %.0f beside pieces, these %.0f\n", whole, none, pieces);
    assert_true(whole - none == 2 * 3 * matrices);
    assert_true(pieces >= 2 * matrices / EXPERTS && pieces < 2.5 * matrices / EXPERTS);
    assert_true(halves > pieces);
}

/* What fits nowhere whole is planned in pieces, and says so; asked for whole it is refused. */
static void test_pieces_are_found(void **state) {
    io_fixture *f = *state;
    const char *settings =
        "--seq-len 64 --lora r=8 --memory 580MiB --device-profile rtx4090-24gb --offload params+checkpoints";
    put_config(f, 32768);
    cli_ok(f, sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p %s", settings));
    if (!strstr(cli_unfolded(f, "err"), "experts come to the device in "))
        fail_msg("it fits without pieces: %s", cli_text(f, "err"));
    cli_fails(f, 3, "does not fit",
              sbp_arena_printf(f->arena, "$C compile $D/m -o $D/p %s --expert-pieces 1", settings));
}

/* What is not cut is not said to be: experts that are on the device as numbers, and shares of ranks. */
static void test_whole_experts_are_said(void **state) {
    static const char *const settings[] = {"", "--offload params:host --ranks 2 --zero 3"};
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        cli_ok(f,
               sbp_arena_printf(
                   f->arena, "$C compile $G/qwen3_moe_norm_v/model -o $D/p --seq-len 64 --expert-pieces 3 %s",
                   settings[i]));
        assert_non_null(strstr(cli_unfolded(f, "err"), "experts come to the device whole"));
        cli_ok(f, "$C inspect $D/p && ! grep -q pieces $D/out");
    }
    cli_ok(f, "$R $G/qwen3_moe_norm_v/model --data $G/qwen3_moe_norm_v/train.jsonl --expert-pieces 3 "
              "--offload states --dry-run"); /* the few lines of a run have it, too */
    assert_non_null(strstr(cli_text(f, "err"), "\noffloaded  states\n"));
    assert_non_null(strstr(cli_unfolded(f, "err"), "experts come to the device whole"));
}

/* ---- drawn -------------------------------------------------------------------------------------------- */

/* Weights after two steps of a model: a golden, or with NULL that of put_config with random weights. */
static void train(io_fixture *f, const model *m, const char *settings, const char *out) {
    const char *where = m ? sbp_arena_printf(f->arena, "$G/%s/model", m->path) : "$D/m",
               *data = m ? sbp_arena_printf(f->arena, "$G/%s/train.jsonl", m->path)
                         : "$D/d.jsonl --weights random:3";
    cli_ok(f,
           sbp_arena_printf(f->arena,
                            "rm -rf $D/%s; $C compile %s -o $D/p %s %s && $R $D/p %s --data %s --out $D/%s "
                            "--steps 2 --batch-size 2 --lr 1e-3 --save-every 2",
                            out, where, m ? m->compile : "--seq-len 24", settings,
                            strstr(settings, "--ranks 2") ? "--ranks 2" : "", data, out));
}

/* With experts whole, and in pieces. ranks: "--ranks 2 --zero 1", or nothing. */
static void draw(io_fixture *f, sbp_rng *rng, const char *ranks) {
    int64_t number = sbp_rng_below(rng, SBP_COUNT(models) + 2);
    const model *m = number < SBP_COUNT(models) ? &models[number] : NULL;
    const char *trained =
        PICK(rng, "", "--lora r=4,targets=all-linear", "--dtype bf16", "--freeze '*experts*'",
             "--lora r=2,targets=all-linear,dropout=0.1", "--dtype bf16 --master none");
    const char *settings = sbp_arena_printf(
        f->arena, "--chunk %s --segment %s --checkpoint-every %s --save %s %s %s %s %s",
        PICK(rng, "16", "96", "7", "1"), PICK(rng, "1", "2"), PICK(rng, "1", "2"),
        PICK(rng, "none", "chosen", "attn_out+lse"), trained,
        PICK(rng, "", "--clip none --accumulate 1", "--optimizer sgd"),
        !m && strstr(trained, "--lora") ? PICK(rng, "--base-dtype q8_0", "--base-dtype nf4", "") : "", ranks);
    const char *pieces =
        sbp_arena_printf(f->arena, "--expert-pieces %s --offload params:%s%s", PICK(rng, "2", "3", "4", "16"),
                         PICK(rng, "host", "disk", "disk:7", "host:9"),
                         PICK(rng, "", "+states+gradients", "+checkpoints:disk+saved", "+states:disk"));
    printf("  %s %s; %s\n", m ? m->path : "a random one", settings, pieces);
    train(f, m, sbp_arena_printf(f->arena, "%s --offload none", settings), "whole");
    train(f, m, sbp_arena_printf(f->arena, "%s %s", settings, pieces), "pieces");
    cli_ok(f, "cd $D/whole && for file in *.safetensors checkpoint-2/*.safetensors; do "
              "cmp $file ../pieces/$file || exit 1; done");
}

static void test_drawn_settings(void **state) {
    io_fixture *f = *state;
    sbp_rng rng = {23};
    put_config(f, 32);
    cli_put(f, "d.jsonl", lines);
    for (int i = 0; i < (testing_all() ? 120 : 4); i++)
        draw(f, &rng, "");
    bool ranks = testing_all() && cli_has_ranks(f, "experts in pieces of several ranks");
    for (int i = 0; i < 24 && ranks; i++)
        draw(f, &rng,
             PICK(&rng, "--ranks 2", "--ranks 2 --zero 1", "--ranks 2 --zero 2", "--ranks 2 --zero 3"));
}

/* ---- other devices ------------------------------------------------------------------------------------ */

static void test_pieces_on(void **state, const char *backend) {
    io_fixture *f = *state;
    if (!cli_has_device(f, backend, "experts in pieces"))
        skip();
    for (int i = 0; i < (testing_all() ? SBP_COUNT(models) : 1); i++) {
        const model *m = &models[testing_all() ? i : 2]; /* with biases and blocks */
        const char *settings = sbp_arena_printf(f->arena,
                                                "--backend %s --dtype fp32 --chunk 64 --offload params:%s "
                                                "--lora r=4,targets=all-linear",
                                                backend, i % 2 == 0 ? "disk" : "host");
        dump(f, m, sbp_arena_printf(f->arena, "%s --expert-pieces 1", settings), "want.safetensors");
        dump(f, m, sbp_arena_printf(f->arena, "%s --expert-pieces 4", settings), "got.safetensors");
        cli_same(f, "want.safetensors", "got.safetensors");
    }
}

static void test_vulkan(void **state) {
    test_pieces_on(state, "vulkan");
}

static void test_cuda(void **state) {
    test_pieces_on(state, "cuda");
}

int main(int argc, char **argv) {
    const struct CMUnitTest vulkan[] = {cmocka_unit_test_setup_teardown(test_vulkan, cli_setup, io_teardown)};
    const struct CMUnitTest cuda[] = {cmocka_unit_test_setup_teardown(test_cuda, cli_setup, io_teardown)};
    if (argc > 1 && strcmp(argv[1], "vulkan") == 0)
        return cmocka_run_group_tests(vulkan, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "cuda") == 0)
        return cmocka_run_group_tests(cuda, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_pieces_change_no_gradient, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_blocks_on_the_device, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_planned_is_read, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_two_pieces_are_there, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_pieces_are_found, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_whole_experts_are_said, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_drawn_settings, cli_setup, io_teardown)};
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
