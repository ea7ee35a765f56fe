/* test_cli_rl.c: `sbprun grpo --reward`: answers are sampled with the weights at hand, rewarded, and trained
 * on; a run that is killed goes on to the same bits; what is refused. */
#include "tests/cli/cli_testing.h"

/* A reward that can be learned fast: the share of letters that are e; and one that is other each time. */
static const char rewards[] =
    "import os\n"
    "def letter(prompts, completions, completion_ids, **columns):\n"
    "    assert len(prompts) == len(completions) == len(completion_ids) == len(columns['name'])\n"
    "    assert all(type(c) is str for c in completions)\n"
    "    print('this is no protocol')\n"
    "    return [c.count('e') / max(1, len(c)) for c in completions]\n"
    "def fickle(completions, **columns):\n"
    "    return [int.from_bytes(os.urandom(2), 'big') / 65536 for c in completions]\n"
    "def some(completions, trainer_state, **columns):\n"
    "    return [None if i % 4 == 1 else len(c) / 100 for i, c in enumerate(completions)]\n"
    "def breaks(completions, **columns):\n"
    "    raise KeyError('answer')\n";

static const char prompts[] = "{\"prompt\": \"Once upon a time\", \"name\": 1}\n"
                              "{\"prompt\": \"One day\", \"name\": 2}\n"
                              "{\"prompt\": \"Tom and Lily\", \"name\": 3}\n"
                              "{\"prompt\": \"The little dog\", \"name\": 4}\n";

static void put_files(io_fixture *f) {
    cli_put(f, "r.py", rewards);
    cli_put(f, "p.jsonl", prompts);
}

/* What the sampler said of its tokens is what scoring says, to the bit. */
static void check_logps(io_fixture *f, int *rows) {
    int scores;
    const sbp_json **got = cli_lines(f, "rows.jsonl", rows), **want = cli_lines(f, "scores", &scores);
    assert_int_equal(*rows, scores);
    for (int i = 0; i < scores; i++) {
        const sbp_json *x = sbp_json_member(got[i], "old_per_token_logps"),
                       *y = sbp_json_member(want[i], "logps");
        assert_int_equal(x->count, y->count);
        for (int64_t k = 0; k < x->count; k++)
            if (x->items[k].real != y->items[k].real)
                fail_msg("row %d, token %lld: %.17g, scored %.17g", i, (long long)k, x->items[k].real,
                         y->items[k].real);
    }
}

/* The reward rises; ratios are 1 to the bit; log-probabilities of the answers are those of --score. */
static void test_reward_rises(void **state) {
    io_fixture *f = *state;
    int count, rows;
    put_files(f);
    cli_ok(f,
           "$R grpo $S --data $D/p.jsonl --reward $D/r.py:letter --n 8 --batch-size 32 --max-new-tokens 16 "
           "--steps 8 --lr 2e-3 --dtype fp32 --quiet --out $D/out1 --save-every 4");
    const sbp_json **lines = cli_lines(f, "out1/metrics.jsonl", &count);
    assert_int_equal(count, 8);
    for (int i = 0; i < count; i++) {
        assert_true(cli_number(f, lines[i], "sampling/importance_sampling_ratio/min") == 1);
        assert_true(cli_number(f, lines[i], "sampling/importance_sampling_ratio/max") == 1);
        assert_true(cli_number(f, lines[i], "clip_ratio/region_mean") == 0);
        assert_true(cli_number(f, lines[i], "rewards/letter/mean") == cli_number(f, lines[i], "reward"));
    }
    /* of a table, whose names are not the rows' own */
    cli_put(f, "p.csv", "prompt,name\nOnce upon a time,a\nOne day,b\n");
    cli_ok(f, "$R grpo $S --data $D/p.csv --reward $D/r.py:letter --n 2 --max-new-tokens 4 --steps 2 --quiet "
              "--out none");
    assert_true(cli_number(f, lines[7], "reward") > 1.3 * cli_number(f, lines[0], "reward"));
    /* the first answers are those of the model that the run began with */
    cli_ok(f, "grep -v end_of_step $D/out1/rollouts/step-0.jsonl > $D/rows.jsonl");
    cli_ok(f,
           "$R $S --objective grpo --data $D/rows.jsonl --score $D/scores --quiet --out none --dtype fp32");
    check_logps(f, &rows);
    assert_int_equal(rows, 32);
    /* and the last are not: they are those of the weights after 4 steps, which a checkpoint has */
    cli_ok(f, "grep -v end_of_step $D/out1/rollouts/step-4.jsonl > $D/rows.jsonl");
    cli_ok(
        f,
        "$R $D/out1/checkpoint-4 --objective grpo --data $D/rows.jsonl --score $D/scores --quiet --out none "
        "--dtype fp32");
    check_logps(f, &rows);
}

/* Rewards that are never the same again: what was sampled and rewarded before the end is taken as it was. */
static void test_resumed_run_has_the_same_bits(void **state) {
    io_fixture *f = *state;
    put_files(f);
    const char *run =
        "$R grpo $S --data $D/p.jsonl --reward $D/r.py:fickle --reward $D/r.py:some --reward_weights "
        "0.5 --reward_weights 2 --num_generations 4 --batch-size 8 --inner-epochs 2 --max-new-tokens 8 "
        "--steps 6 "
        "--lr 1e-3 --top-k 20 --dtype fp32 --quiet --save-every 1 --keep 10";
    cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/whole", run));
    /* as if it had been killed after step 3, in the middle of a batch, with the next generation written */
    cli_ok(f, "cp -r $D/whole $D/again && rm -rf $D/again/checkpoint-[456] $D/again/model.safetensors");
    cli_ok(f, "cp -r $D/again $D/short && rm $D/short/rollouts/step-4.jsonl && "
              "touch $D/short/rollouts/step-4.jsonl.12.0.tmp $D/short/rollouts/step-4.jsonl.mine");
    cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/again --resume", run));
    cli_ok(f, "cmp $D/whole/model.safetensors $D/again/model.safetensors");
    cli_ok(f, "cmp $D/whole/rollouts/step-4.jsonl $D/again/rollouts/step-4.jsonl");
    /* killed while a generation was written; settings are those of the run, not what the command has */
    cli_fails(f, 2, "--resume cannot change --lr (it was 0.001)",
              "$R grpo $S --out $D/short --resume --lr 1e-6 --quiet");
    cli_ok(f, "$R grpo $S --out $D/short --resume --quiet");
    cli_ok(
        f,
        "test ! -e $D/short/rollouts/step-4.jsonl.12.0.tmp && test -e $D/short/rollouts/step-4.jsonl.mine");
    cli_ok(f, "cmp $D/whole/rollouts/step-2.jsonl $D/short/rollouts/step-2.jsonl");
    const sbp_json **whole, **again;
    int count, lines;
    whole = cli_lines(f, "whole/metrics.jsonl", &count);
    again = cli_lines(f, "short/metrics.jsonl", &lines);
    assert_int_equal(count, lines);
    for (int i = 0; i < count; i++)
        assert_true(cli_number(f, whole[i], "learning_rate") == cli_number(f, again[i], "learning_rate"));
    /* a run that begins has what the command has, and removes all that is its own */
    cli_ok(f, "touch $D/short/rollouts/step-9.jsonl.12.0.tmp && $R grpo $S --data $D/p.jsonl --reward "
              "$D/r.py:fickle --n 2 --max-new-tokens 2 --steps 1 --overwrite --quiet --out $D/short");
    assert_true(cli_number(f, cli_lines(f, "short/metrics.jsonl", &lines)[0], "learning_rate") == 1e-6);
    cli_ok(f, "test \"$(ls $D/short/rollouts | tr '\\n' ' ')\" = 'step-0.jsonl step-4.jsonl.mine '");
}

/* Answers have the bits of training whatever the model, its type and the schedule. */
static void test_bits_are_those_of_training(void **state) {
    static const struct {
        const char *model, *options, *run; /* run: for scoring, too */
    } cases[] = {
        {"$S", "--dtype bf16 --chunk 16", ""},
        {"$S", "--dtype fp32 --lora --lora-dropout 0.3", ""},
        {"$S", "--dtype fp32 --base-dtype nf4 --lora", ""},
        {"$S", "--dtype fp32 --checkpoint-every 2 --offload host --save none", "--temperature 0.7"},
        {"$G/gpt_oss_v/model", "--dtype fp32", ""},
        {"$G/gemma3n_v/model", "--dtype fp32", ""},
        {"$G/qwen3_5_dense_v/model", "--dtype fp32", ""},
        {"$G/llama_rope_dynamic/model", "--dtype fp64 --set max_position_embeddings=64", ""},
    };
    io_fixture *f = *state;
    put_files(f);
    cli_put(f, "ids.jsonl", "{\"prompt_ids\": [5, 9, 11, 7, 30, 12, 8]}\n{\"prompt_ids\": [3]}\n");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        int rows;
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$R %s --objective grpo --data $D/ids.jsonl --reward $D/r.py:fickle --n 3 "
                      "--batch-size 6 --max-new-tokens 20 --steps 1 --quiet --out $D/bits --overwrite "
                      "%s %s",
                      cases[i].model, cases[i].options, cases[i].run));
        cli_ok(f, "grep -v end_of_step $D/bits/rollouts/step-0.jsonl > $D/rows.jsonl");
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "$R $D/bits/plan.bin --weights %s --data $D/rows.jsonl --score $D/scores --quiet "
                      "--out none %s",
                      cases[i].model, cases[i].run));
        check_logps(f, &rows);
        assert_int_equal(rows, 6);
    }
}

static void test_what_is_refused(void **state) {
    io_fixture *f = *state;
    put_files(f);
    static const struct {
        int status;
        const char *options, *message;
    } cases[] = {
        {2, "--reward $D/r.py:letter --batch-size 12 --n 8",
         "--batch-size 12: the rows of a step are answers, 8"},
        {2, "--reward $D/r.py:letter --n 1", "give at least 2"},
        {2, "--reward $D/r.py:letter --temperature 0", "--temperature: 0 is not above 0"},
        {1, "--reward $D/r.py:letter --n 2 --batch-size 64",
         "--data has 4 prompts, fewer than the 32 of a step"},
        {1, "--reward $D/r.py:absent", "absent"},
        {1, "--reward $D/r.py:breaks", "KeyError"},
        {1, "--reward $D/none.py:letter", "none.py"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_fails(f, cases[i].status, cases[i].message,
                  sbp_arena_printf(
                      f->arena,
                      "$R grpo $S --data $D/p.jsonl --max-new-tokens 4 --steps 1 --quiet --out none %s",
                      cases[i].options));
    }
    cli_fails(f, 2, "does not compare answers to a prompt",
              "$R sft $S --data $D/p.jsonl --reward $D/r.py:letter --out none");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reward_rises, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resumed_run_has_the_same_bits, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bits_are_those_of_training, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
