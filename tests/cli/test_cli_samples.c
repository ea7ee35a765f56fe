/* test_cli_samples.c: `--sample-every`: answers on the way, which change nothing of the training; and that
 * the cache of generated rows takes no memory beside it. */
#include "tests/cli/cli_testing.h"

static const char rows[] =
    "{\"prompt\": \"Once upon a time\", \"completion\": \", there was a dog named Max.\"}\n"
    "{\"prompt\": \"One day\", \"completion\": \" Max liked to play in the park.\"}\n"
    "{\"prompt\": \"Tom <b>& Lily\", \"completion\": \" were happy.\"}\n"
    "{\"prompt\": \"The little dog\", \"completion\": \" ran home.\"}\n"
    "{\"prompt\": \"A cat\", \"completion\": \" sat.\"}\n";

static void put_files(io_fixture *f) {
    cli_put(f, "d.jsonl", rows);
    cli_put(f, "p.jsonl", "{\"prompt\": \"Once upon a time\"}\n");
}

/* The bits of training are those without samples; what is written is what `sbprun generate` says. */
static void test_training_is_the_same(void **state) {
    static const char *const settings[] = {
        "--lora --lora-dropout 0.3 --report-to tensorboard",
        "--dtype bf16 --chunk 16 --offload host",
    };
    io_fixture *f = *state;
    int count;
    put_files(f);
    for (int i = 0; i < SBP_COUNT(settings); i++) {
        const char *run = sbp_arena_printf(
            f->arena, "$R sft $S --data $D/d.jsonl --steps 5 --lr 2e-3 --overwrite %s --quiet", settings[i]);
        cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/plain", run));
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "%s --out $D/shown --sample-every 2 --sample-prompts $D/d.jsonl "
                                   "--max-new-tokens 12",
                                   run));
        cli_ok(f, "for w in $D/plain/*.safetensors; do cmp $w $D/shown/${w##*/} || exit 1; done");
        cli_ok(f, "ls $D/shown/samples | tr '\\n' ' ' > $D/steps");
        assert_string_equal(cli_text(f, "steps"), "step-0.jsonl step-2.jsonl step-4.jsonl step-5.jsonl ");
        assert_non_null(strstr(cli_text(f, "shown/report.html"), "Tom &lt;b&gt;&amp; Lily"));
        const sbp_json **shown = cli_lines(f, "shown/samples/step-5.jsonl", &count);
        assert_int_equal(count, 5);
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "$R generate $D/shown --data $D/d.jsonl --temperature 0 --max-new-tokens 12 "
                                "--quiet %s",
                                i == 1 ? "--dtype bf16" : ""));
        const sbp_json **said = cli_lines(f, "out", &count);
        assert_int_equal(count, 5);
        for (int r = 0; r < count; r++)
            assert_string_equal(sbp_json_member(shown[r], "text")->string,
                                sbp_json_member(said[r], "text")->string);
    }
}

static void test_event_files_have_the_texts(void **state) {
    io_fixture *f = *state;
    put_files(f);
    cli_ok(f, "sed 's/\"prompt\"/\"q\"/' $D/d.jsonl >$D/q.jsonl"); /* p.jsonl has the names of here */
    cli_ok(f, "$R sft $S --data $D/q.jsonl --columns prompt=q --sample-prompts $D/p.jsonl --steps 1 "
              "--sample-every 1 --max-new-tokens 4 --out $D/q && test -s $D/q/samples/step-1.jsonl");
    cli_ok(f, "$R sft $S --data $D/d.jsonl --eval $D/d.jsonl --steps 2 --sample-every 1 --max-new-tokens 4 "
              "--report-to tensorboard --out $D/o");
    assert_non_null(strstr(cli_text(f, "err"), "step 2: 'Once upon a time' goes on: '"));
    cli_ok(f, "test $(grep -c . $D/o/samples/step-1.jsonl) = 4 && " /* of --eval, the first four */
              "test $(grep -a -c 'Once upon a time' $D/o/runs/events*) = 3");
}

/* A run that goes on writes what it would have written. */
static void test_resumed_run_writes_the_same(void **state) {
    io_fixture *f = *state;
    const char *run = "$R sft $S --data $D/d.jsonl --steps 6 --lr 2e-3 --sample-every 2 --sample-prompts "
                      "$D/p.jsonl --max-new-tokens 8 --save-every 1 --keep 10 --quiet";
    put_files(f);
    cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/whole", run));
    cli_ok(f, "cp -r $D/whole $D/again && rm -rf $D/again/checkpoint-[456] $D/again/model.safetensors && "
              "echo x >$D/again/samples/step-4.jsonl && echo x >$D/again/samples/step-60.jsonl");
    cli_ok(f, sbp_arena_printf(f->arena, "%s --out $D/again --resume", run));
    cli_ok(f, "diff -r $D/whole/samples $D/again/samples && cmp $D/whole/model.safetensors "
              "$D/again/model.safetensors");
}

/* In memory, training and the cache take turns. */
static void test_cache_takes_no_memory_beside_training(void **state) {
    io_fixture *f = *state;
    double peak[2];
    for (int i = 0; i < 2; i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$C compile $S -o $D/p --seq-len 8192 --save gate+up+act+q+k+v --json "
                                   "--for %s",
                                   i ? "both" : "train"));
        peak[i] = cli_number(f, sbp_json_member(cli_json(f, "out"), "peak_bytes"), "device");
    }
    const double cache = 8192.0 * 5 * 2 * 32 * 4; /* rows, layers, keys and values, 4 heads of 8, bytes */
    if (peak[1] - peak[0] > cache / 8)
        fail_msg("a plan that generates, too, takes %.0f bytes more, the cache has %.0f", peak[1] - peak[0],
                 cache);
}

static void test_what_is_refused(void **state) {
    static const struct {
        int status;
        const char *options, *message;
    } cases[] = {
        {2, "$S --sample-every 1", "give --sample-prompts FILE, or --eval"},
        {2, "$D/train.bin --sample-every 1 --sample-prompts $D/p.jsonl", "sbpc compile --for both"},
        {4, "$S --sample-every 1 --sample-prompts $D/none.jsonl", "none.jsonl"},
        {1, "$S --sample-every 1 --sample-prompts $D/p.jsonl --seq-len 40 --max-new-tokens 64",
         "the plan has"},
    };
    io_fixture *f = *state;
    put_files(f);
    cli_ok(f, "$C compile $S -o $D/train.bin --seq-len 64");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        int status = cli(
            f, sbp_arena_printf(f->arena, "$R %s --data $D/d.jsonl --steps 1 --out none", cases[i].options));
        if (status != cases[i].status || !strstr(cli_text(f, "err"), cases[i].message))
            fail_msg("%s: status %d, %s", cases[i].options, status, cli_text(f, "err"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_training_is_the_same, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_event_files_have_the_texts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_resumed_run_writes_the_same, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_cache_takes_no_memory_beside_training, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
