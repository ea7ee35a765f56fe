/* test_cli_generate.c: `sbprun generate`: greedy answers are those of transformers, log-probabilities have
 * the bits of `--score`, answers are the same again; what ends an answer, and what is refused. */
#include "tests/cli/cli_testing.h"

#include "ir/base/json_write.h"
#include "tests/rowkernel_random.h"

static void add_ids(sbp_text *out, const sbp_json *ids) {
    for (int64_t i = 0; i < ids->count; i++)
        sbp_text_add(out, "%s%lld", i ? ", " : "", (long long)ids->items[i].integer);
}

/* Greedy answers of models of all structures (tests/data/generate/greedy.py); an answer may end before. */
static void test_greedy_is_that_of_transformers(void **state) {
    io_fixture *f = *state;
    const sbp_json *cases = NULL;
    assert_ok(f, sbp_json_read(f->arena, f->diag, "tests/data/generate/greedy.json", 0, &cases));
    for (int64_t i = 0; i < cases->count; i++) {
        const sbp_json *one = &cases->items[i], *ids = sbp_json_member(one, "ids");
        const char *model = sbp_json_member(one, "model")->string;
        sbp_text line;
        sbp_text_init(&line, f->arena);
        sbp_text_add(&line, "{\"prompt_ids\": [");
        add_ids(&line, sbp_json_member(one, "prompt"));
        sbp_text_add(&line, "]}\n");
        cli_put(f, "p.jsonl", line.data);
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "$R generate $G/%s/model --data $D/p.jsonl --temperature 0 --quiet "
                                   "--max-new-tokens %lld",
                                   model, (long long)ids->count));
        int count;
        const sbp_json *got = sbp_json_member(cli_lines(f, "out", &count)[0], "ids");
        assert_int_equal(count, 1);
        bool ended =
            strcmp(sbp_json_member(cli_lines(f, "out", &count)[0], "finish_reason")->string, "stop") == 0;
        if (got->count != ids->count && !ended)
            fail_msg("%s: %lld tokens", model, (long long)got->count);
        for (int64_t k = 0; k < got->count; k++)
            if (got->items[k].integer != ids->items[k].integer)
                fail_msg("%s: token %lld is %lld, transformers has %lld", model, (long long)k,
                         (long long)got->items[k].integer, (long long)ids->items[k].integer);
    }
}

/* Two random answers to each of these prompts, token ids and commas, scored by a plan that trains: the same
 * bits. scoring: options of that plan beside those of both. */
static void check_bits(io_fixture *f, const char *model, const char *options, const char *scoring, int tokens,
                       const char *const *prompts, int count) {
    int answers, scores;
    sbp_text rows;
    sbp_text_init(&rows, f->arena);
    for (int i = 0; i < count; i++)
        sbp_text_add(&rows, "{\"prompt_ids\": [%s]}\n", prompts[i]);
    cli_put(f, "p.jsonl", rows.data);
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "$R generate %s --data $D/p.jsonl --n 2 --max-new-tokens %d --quiet %s && cp $D/out "
                  "$D/answers",
                  model, tokens, options));
    const sbp_json **got = cli_lines(f, "answers", &answers);
    assert_int_equal(answers, 2 * count);
    sbp_text_init(&rows, f->arena);
    for (int i = 0; i < answers; i++) {
        sbp_text_add(&rows, "{\"prompt_ids\": [%s], \"completion_ids\": [", prompts[i / 2]);
        add_ids(&rows, sbp_json_member(got[i], "ids"));
        sbp_text_add(&rows, "]}\n");
    }
    cli_put(f, "rows.jsonl", rows.data);
    cli_ok(f, sbp_arena_printf(f->arena,
                               "$R %s --data $D/rows.jsonl --score $D/scores --quiet --out none --save none "
                               "%s %s",
                               model, scoring, options));
    const sbp_json **want = cli_lines(f, "scores", &scores);
    assert_int_equal(scores, answers);
    int compared = 0;
    for (int i = 0; i < answers; i++) {
        const sbp_json *x = sbp_json_member(got[i], "logps"), *y = sbp_json_member(want[i], "logps");
        assert_int_equal(x->count, y->count);
        for (int64_t k = 0; k < x->count; k++, compared++)
            if (x->items[k].real != y->items[k].real)
                fail_msg("%s %s: answer %d, token %lld: %.17g, scored %.17g", model, options, i, (long long)k,
                         x->items[k].real, y->items[k].real);
    }
    assert_true(compared >= answers);
}

/* A plan that trains in bf16 keeps numbers of an F32 file as two halves; here as bf16, as one that generates
 * does. */
static void test_bits_are_those_of_scoring(void **state) {
    static const char *const prompts[] = {
        "5, 9, 11, 7, 30, 12, 8, 5, 5, 21", "3",
        "4, 4, 8, 15, 16, 23, 42, 4, 8, 15, 16, 23, 42, 4, 8, 15, 16, 23, 42, 4, 8, 15, 16, 23"};
    static const struct {
        const char *model, *options, *scoring;
        int tokens; /* over 64, of a block, where there are states */
    } cases[] = {
        {"$S", "", "--chunk 13", 14},
        {"$S", "--dtype bf16", "--chunk 16 --precision param=bf16,master=none", 14},
        {"$S", "--dtype fp64 --top-k 5", "--chunk 7", 14},
        {"$S", "--base-dtype nf4 --lora", "--chunk 16", 14},
        {"$G/mixtral_v/model", "", "--chunk 5", 14},
        {"$G/gemma4_shared/model", "", "", 14},
        {"$G/llama4_v/model", "", "--chunk 9", 14},
        {"$G/llama_rope_dynamic/model", "--set max_position_embeddings=64", "", 14},
        {"$G/gpt_oss_mxfp4_v/model", "", "--chunk 16", 14},
        {"$G/qwen3_5_dense_v/model", "", "", 70},
        {"$G/granite_hybrid_v/model", "", "", 70},
        {"$G/lfm2_v/model", "", "--chunk 11", 14},
    };
    io_fixture *f = *state;
    for (int i = 0; i < SBP_COUNT(cases); i++)
        check_bits(f, cases[i].model, cases[i].options, cases[i].scoring, cases[i].tokens, prompts,
                   SBP_COUNT(prompts));
}

/* More than the 512 keys of a tile of attention on the CPU, and more than two tiles: in one batch of several
 * texts, with windows that are narrower and wider than a tile and with none, in chunks that end anywhere, and
 * with answers that share their prompt. */
static void test_bits_of_long_texts(void **state) {
    static const struct {
        const char *window, *options, *scoring;
    } cases[] = {
        {"null", "", "--chunk 97"},
        {"null", "", "--chunk 333 --share-prompt on"},
        {"600", "", ""},
        {"600", "--dtype fp64", "--share-prompt on"},
        {"600", "--dtype bf16", "--chunk 100 --precision param=bf16,master=none --share-prompt on"},
        {"37", "--dtype bf16", "--precision param=bf16,master=none"},
    };
    static const int lengths[] = {690, 5, 1290};
    io_fixture *f = *state;
    const char *prompts[SBP_COUNT(lengths)];
    sbp_rng rng = {.state = 7};
    for (int i = 0; i < SBP_COUNT(lengths); i++) {
        sbp_text ids;
        sbp_text_init(&ids, f->arena);
        for (int k = 0; k < lengths[i]; k++)
            sbp_text_add(&ids, "%s%d", k ? ", " : "", 3 + (int)sbp_rng_below(&rng, 58));
        prompts[i] = ids.data;
    }
    cli_ok(f, "cp -r $G/mistral_window/model $D/form");
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena,
                                   "rm -rf $D/m && cp -r $D/form $D/m && sed -e "
                                   "'s/\"max_position_embeddings\": *[0-9]*/\"max_position_embeddings\": "
                                   "2000/' -e 's/\"sliding_window\": *[0-9]*/\"sliding_window\": %s/' "
                                   "$D/form/config.json > $D/m/config.json && grep -q "
                                   "'sliding_window\": %s' $D/m/config.json",
                                   cases[i].window, cases[i].window));
        check_bits(f, "$D/m", cases[i].options,
                   sbp_arena_printf(f->arena, "--seq-len 6000 %s", cases[i].scoring), 14, prompts,
                   SBP_COUNT(prompts));
    }
}

/* Prompts of 1 to 30 tokens below 40. */
static int random_prompts(io_fixture *f, uint64_t *random) {
    sbp_text rows;
    sbp_text_init(&rows, f->arena);
    int count = 1 + (int)(io_random(random) % 6);
    for (int p = 0; p < count; p++) {
        int length = 1 + (int)(io_random(random) % 30);
        sbp_text_add(&rows, "{\"prompt_ids\": [");
        for (int k = 0; k < length; k++)
            sbp_text_add(&rows, "%s%d", k ? ", " : "", 3 + (int)(io_random(random) % 37));
        sbp_text_add(&rows, "]}\n");
    }
    cli_put(f, "p.jsonl", rows.data);
    return count;
}

/* Which answers are written together, by how many threads, in which chunks and in how much room changes no
 * byte of them; they end at different times. */
static void test_together_as_alone(void **state) {
    static const struct {
        const char *model, *options;
        int block; /* rows of chunks: a multiple of it */
    } models[] = {
        {"$S", "--stop a --stop ' '", 1},
        {"$S", "--stop e --dtype bf16", 1},
        {"$S", "--stop . --base-dtype nf4", 1},
        {"$G/mixtral_v/model", "", 1},
        {"$G/gemma4_shared/model", "", 1},
        {"$G/llama4_v/model", "", 1},
        {"$G/gpt_oss_mxfp4_v/model", "--dtype fp64", 1},
        {"$G/mistral_window/model", "", 1},
        {"$G/smollm3_windows/model", "", 1},
        {"$G/gemma3n_v/model", "", 1},
        {"$G/qwen3_5_dense_v/model", "", 64}, /* states: one at a time, whatever is asked for */
    };
    io_fixture *f = *state;
    uint64_t random = 2026;
    int short_of_room = 0, different = 0;
    for (int round = 0; round < testing_sweep(22, 500); round++) {
        const int m = round % SBP_COUNT(models);
        int prompts = random_prompts(f, &random), each = 1 + (int)(io_random(&random) % 5);
        int tokens = 1 + (int)(io_random(&random) % 16), most = 2 + (int)(io_random(&random) % 15);
        int room = 30 + tokens + (int)(io_random(&random) % 120);
        const char *common = sbp_arena_printf(
            f->arena, "$R generate %s --data $D/p.jsonl --quiet --n %d --max-new-tokens %d --seed %d %s",
            models[m].model, each, tokens, round, models[m].options);
        cli_ok(f, sbp_arena_printf(f->arena, "%s --max-num-seqs 1 && cp $D/out $D/alone", common));
        cli_ok(f, sbp_arena_printf(
                      f->arena,
                      "%s --max-num-seqs %d --threads %d --chunk %d --seq-len %d && cmp $D/alone $D/out",
                      common, most, 1 + (int)(io_random(&random) % 3),
                      models[m].block * (1 + (int)(io_random(&random) % 20)), room));
        int count;
        const sbp_json **lines = cli_lines(f, "out", &count);
        assert_int_equal(count, prompts * each);
        for (int i = 1; i < count; i++)
            different += sbp_json_member(lines[i], "ids")->count != sbp_json_member(lines[0], "ids")->count;
        short_of_room += room < most * (30 + tokens);
    }
    assert_true(short_of_room > 0 && different > 0);
}

/* A draw depends on seed, prompt, sample and place alone; a plan gives what its model does. */
static void test_draws_are_the_same_again(void **state) {
    io_fixture *f = *state;
    const char *common = "--prompt 'Once upon a time' --max-new-tokens 12 --quiet --threads 1";
    cli_ok(f, sbp_arena_printf(f->arena, "$R generate $S %s --n 3 && cp $D/out $D/three", common));
    cli_ok(f, sbp_arena_printf(f->arena, "$R generate $S %s --n 1 && head -n 1 $D/three | cmp - $D/out",
                               common));
    cli_ok(f, sbp_arena_printf(f->arena, "$R generate $S %s --n 3 --seed 43 && ! cmp -s $D/three $D/out",
                               common));
    cli_ok(f, "$C compile $S --for generate --seq-len 40 -o $D/plan.bin --quiet");
    cli_ok(f, sbp_arena_printf(f->arena, "$R generate $D/plan.bin %s --n 3 && cmp $D/three $D/out", common));
    int count;
    (void)cli_lines(f, "three", &count);
    assert_int_equal(count, 3);
}

/* A stop string is cut off, a conversation ends before its last answer. */
static void test_what_ends_an_answer(void **state) {
    io_fixture *f = *state;
    int count;
    cli_ok(
        f,
        "$R generate $S --prompt 'Once upon a time' --temperature 0 --quiet --stop 'girl named' --stop xyz");
    const sbp_json *a = cli_lines(f, "out", &count)[0];
    assert_string_equal(sbp_json_member(a, "text")->string, ", there was a little ");
    assert_string_equal(sbp_json_member(a, "finish_reason")->string, "stop");
    cli_put(f, "t.jinja",
            "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}");
    cli_put(f, "chat.jsonl",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", "
            "\"content\": \"Ho\"}]}\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"
            "{\"prompt\": \"Once\", \"completion\": \" upon\"}\n{\"text\": \"Once\"}\n");
    cli_ok(
        f,
        "$R generate $S --data $D/chat.jsonl --chat-template $D/t.jinja --max-new-tokens 5 --temperature 0 "
        "--quiet");
    const sbp_json **lines = cli_lines(f, "out", &count);
    assert_int_equal(count, 4);
    for (int i = 0; i < 4; i += 2) {
        assert_string_equal(sbp_json_member(lines[i], "text")->string,
                            sbp_json_member(lines[i + 1], "text")->string);
        assert_true(cli_number(f, lines[i], "prompt_tokens") == cli_number(f, lines[i + 1], "prompt_tokens"));
        assert_string_equal(sbp_json_member(lines[i], "finish_reason")->string, "length");
    }
}

/* Answers of a conversation go on from all of it, as generate goes on from the same messages. */
static void test_conversation(void **state) {
    io_fixture *f = *state;
    int count;
    cli_put(f, "t.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    cli_ok(f, "printf 'Once upon\\\\\n a time\nTom was\n\n/new\nTom was\n/exit\nTom\n' | $R chat $S "
              "--chat-template $D/t.jinja --max-new-tokens 9 --temperature 0 --quiet --seq-len 60");
    char *first = sbp_arena_strdup(f->arena, cli_text(f, "out")), *second = strchr(first, '\n');
    assert_non_null(second);
    *second++ = '\0';
    char *third = strchr(second, '\n');
    assert_non_null(third);
    *third++ = '\0';
    sbp_text rows;
    sbp_text_init(&rows, f->arena);
    static const char form[] = "{\"role\": \"user\", \"content\": \"%s\"}";
    sbp_json_writer w = sbp_json_writer_on(&rows);
    sbp_text_add(&rows, "{\"messages\": [");
    sbp_text_add(&rows, form, "Once upon\\n a time");
    sbp_text_add(&rows, ", {\"role\": \"assistant\", \"content\": ");
    sbp_json_write_string(&w, NULL, first);
    sbp_text_add(&rows, "}, ");
    sbp_text_add(&rows, form, "Tom was");
    sbp_text_add(&rows, "]}\n{\"messages\": [");
    sbp_text_add(&rows, form, "Tom was");
    sbp_text_add(&rows, "]}\n");
    cli_put(f, "rows.jsonl", rows.data);
    cli_ok(
        f,
        "$R generate $S --data $D/rows.jsonl --chat-template $D/t.jinja --max-new-tokens 9 --temperature 0 "
        "--quiet");
    const sbp_json **lines = cli_lines(f, "out", &count);
    assert_int_equal(count, 2);
    assert_string_equal(sbp_json_member(lines[0], "text")->string, second);
    *strchr(third, '\n') = '\0';
    assert_string_equal(sbp_json_member(lines[1], "text")->string, third);
    cli_fails(f, 1, "has no chat template", "$R chat $S");
    cli_fails(f, 2, "leave out --prompt", "$R chat $S --prompt x");
}

static void test_what_is_refused(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R generate --help && grep -q -e --max-new-tokens $D/out");
    cli_fails(f, 2, "give --prompt TEXT or --data FILE", "$R generate $S");
    cli_fails(f, 2, "found 0 arguments", "$R generate --prompt x");
    cli_fails(f, 2, "is above 1", "$R generate $S --prompt x --top-p 1.5");
    cli_fails(f, 2, "is below 0", "$R generate $S --prompt x --temperature -1");
    cli_fails(f, 2, "is not above 0", "$R $S --data x --temperature 0");
    cli_fails(
        f, 2, "need the model's tokenizer",
        "echo '{\"prompt_ids\": [3]}' > $D/ids && $R generate $G/llama_plain/model --data $D/ids --stop x");
    cli_fails(f, 1, "expected a prompt",
              "echo '{\"prompt\": \"a\", \"x\": 1}' > $D/ok && echo '{\"chosen\": \"a\", "
              "\"rejected\": \"b\"}' > $D/pair && $R generate $S --data $D/pair");
    cli_ok(
        f,
        "$C compile $S --seq-len 40 -o $D/train.bin --quiet && $C compile $S --for generate --seq-len 40 -o "
        "$D/plan.bin --quiet");
    cli_fails(f, 2, "leave out --objective dpo", "$C compile $S --for generate --objective dpo -o $D/x");
    cli_fails(f, 2, "leave out --ranks", "$C compile $S --for generate --ranks 2 -o $D/x");
    cli_fails(f, 2, "is a plan that trains", "$R generate $D/train.bin --prompt x");
    cli_fails(f, 1, "compile it with --seq-len",
              "$R generate $D/plan.bin --prompt Once --prompt 'Once upon' --n 2 --max-new-tokens 50");
    assert_string_equal(cli_text(f, "out"), ""); /* before an answer is written */
    cli_fails(f, 2, "max-num-seqs", "$R generate $S --prompt x --max-num-seqs 17");
    cli_fails(f, 2, "leave out --max-num-seqs", "$R chat $S --max-num-seqs 2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_greedy_is_that_of_transformers, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bits_are_those_of_scoring, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bits_of_long_texts, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_together_as_alone, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_draws_are_the_same_again, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_ends_an_answer, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_conversation, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_is_refused, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
