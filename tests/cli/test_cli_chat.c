/* Conversations as a user meets them: the template of a model, of a plan or given; what is trained; what the
 * result has; the day that templates see, kept when a run goes on. */
#include "tests/cli/cli_testing.h"

#define TEMPLATE "tests/golden/chat/chatml.jinja"

static void put_rows(io_fixture *f) {
    cli_put(f, "d.jsonl",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Who is Lily?\"}, {\"role\": \"assistant\", "
            "\"content\": "
            "\"A girl.\"}]}\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Where is she?\"}, {\"role\": \"assistant\", "
            "\"content\": "
            "\"In the park.\"}, {\"role\": \"user\", \"content\": \"Why?\"}, {\"role\": \"assistant\", "
            "\"content\": \"To "
            "play.\"}]}\n");
    cli_put(f, "today.jinja",
            "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.content }}{% endfor %}");
}

static void test_render(void **state) {
    io_fixture *f = *state;
    put_rows(f);
    cli_ok(f, "$R tokenize $S --render --chat-template " TEMPLATE " <$D/d.jsonl");
    assert_string_equal(strtok(sbp_arena_strdup(f->arena, cli_text(f, "out")), "\n"),
                        "\"<|user|>\\nWho is Lily?\\n<|assistant|>\\nA girl.</s>\\n\"");
    cli_ok(f, "$R tokenize $S --render --add-generation-prompt --chat-template " TEMPLATE " <$D/d.jsonl");
    assert_non_null(strstr(cli_text(f, "out"), "A girl.</s>\\n<|assistant|>\\n\"\n"));
    cli_ok(f, "$R tokenize $S --render --chat-template $D/today.jinja --date 2020-02-29 <$D/d.jsonl");
    assert_int_equal(0, strncmp(cli_text(f, "out"), "\"2020-02-29Who", 14));
    cli_fails(f, 1, "lines failed", "$R tokenize $S --render <$D/d.jsonl");
    assert_non_null(strstr(cli_text(f, "out"), "the model has no chat template"));
    cli_fails(f, 2, "no file, no directory with a template",
              "$R tokenize $S --chat-template nothing <$D/d.jsonl");
}

static void test_train(void **state) {
    io_fixture *f = *state;
    put_rows(f);
    cli_ok(f,
           "$R $S --data $D/d.jsonl --steps 4 --batch-size 1 --out $D/o --loss-on assistant --save-every 2 "
           "--date 2020-02-29 --chat-template " TEMPLATE);
    assert_non_null(strstr(cli_text(f, "err"),
                           "chat template: chatml.jinja; assistant tokens: as the template marks them"));
    cli_ok(f, "cmp $D/o/chat_template.jinja " TEMPLATE);
    cli_ok(f, "$R $S --data $D/d.jsonl --dry-run --loss-on assistant --chat-template " TEMPLATE);
    assert_non_null(strstr(cli_text(f, "out"), "[[")); /* the first label of a document is none of these */
    const sbp_json *options = sbp_json_member(cli_json(f, "o/run.json"), "options");
    assert_string_equal(sbp_json_member(options, "date")->string, "2020-02-29");
    cli_ok(f, "$R $S --out $D/o --resume --steps 5");
    options = sbp_json_member(cli_json(f, "o/run.json"), "options");
    assert_string_equal(sbp_json_member(options, "date")->string, "2020-02-29");
    cli_fails(f, 2, "--resume cannot change --date (it was 2020-02-29)",
              "$R $S --out $D/o --resume --steps 6 --date 2021-01-01");
    cli_fails(f, 2, "expected a day as 2026-03-01", "$R $S --data $D/d.jsonl --out none --date yesterday");
    cli_ok(f, "mkdir $D/m && cp $S/* $D/m && cp " TEMPLATE
              " $D/m/chat_template.jinja && $C compile $D/m -o $D/p "
              "--seq-len 300 && rm -r $D/m && $R tokenize $D/p --render <$D/d.jsonl");
    assert_non_null(strstr(cli_text(f, "out"), "A girl.</s>"));
}

/* Twenty steps and the tokens of all rows against TRL's SFTTrainer with assistant_only_loss. */
static void test_as_trl_trains(void **state) {
    io_fixture *f = *state;
    int count, row_count;
    cli_ok(f, "$R $S --data $G/chat/trl/train.jsonl --loss-on assistant --chat-template " TEMPLATE
              " --shuffle off --batch-size 4 --lr 1e-3 --steps 20 --out $D/o");
    cli_ok(f, "$R tokenize $S --loss-on assistant --chat-template " TEMPLATE
              " <$G/chat/trl/train.jsonl >$D/rows; cp $G/chat/trl/losses.json $D");
    const sbp_json *want = cli_json(f, "losses.json"), **got = cli_lines(f, "o/metrics.jsonl", &count);
    const sbp_json *steps = sbp_json_member(want, "steps"), *rows = sbp_json_member(want, "rows");
    assert_int_equal(count, 20);
    assert_int_equal(steps->count, 20);
    for (int i = 0; i < count; i++) {
        double loss = cli_number(f, &steps->items[i], "loss"),
               norm = cli_number(f, &steps->items[i], "grad_norm");
        assert_true(fabs(cli_number(f, got[i], "loss") - loss) <= SBP_TOLERANCE_F32 * loss);
        assert_true(fabs(cli_number(f, got[i], "grad_norm") - norm) <= SBP_TOLERANCE_CURVE * norm);
    }
    const sbp_json **lines = cli_lines(f, "rows", &row_count);
    assert_int_equal(row_count, rows->count);
    for (int i = 0; i < row_count; i++) {
        sbp_text a, b;
        sbp_text_init(&a, f->arena);
        sbp_text_init(&b, f->arena);
        sbp_json_add_value(&a, lines[i]);
        sbp_json_add_value(&b, &rows->items[i]);
        assert_string_equal(a.data, b.data);
    }
}

static void test_another_end(void **state) {
    io_fixture *f = *state;
    put_rows(f);
    cli_put(f, "t.jsonl", "{\"text\": \"The end.\"}\n");
    cli_ok(f, "mkdir $D/m && cp $S/* $D/m && echo '{\"eos_token_id\": [2, 5], \"top_k\": 3}' "
              ">$D/m/generation_config.json && "
              "echo '{\"eos_token\": \"</s>\", \"bos_token\": \"<s>\"}' >$D/m/special_tokens_map.json");
    cli_ok(f, "$R tokenize $D/m --eos-token '<s>' <$D/t.jsonl");
    assert_non_null(strstr(cli_text(f, "out"), "426, 1], \"labels\""));
    cli_ok(f, "head -1 $D/d.jsonl | $R tokenize $D/m --render --eos-token '<unk>' --chat-template " TEMPLATE);
    assert_non_null(strstr(cli_text(f, "out"), "A girl.<unk>"));
    cli_fails(f, 2, "the tokenizer has no such token", "$R tokenize $D/m --eos-token nonsense <$D/t.jsonl");
    cli_fails(f, 2, "the tokenizer has no such token",
              "$R $D/m --data $D/t.jsonl --out none --eos-token nonsense");
    cli_ok(f,
           "mkdir $D/m/additional_chat_templates && echo '{{ tools }}' "
           ">$D/m/additional_chat_templates/tool_use.jinja && "
           "echo x >$D/m/additional_chat_templates/rag.jinja && touch $D/m/additional_chat_templates/notes");
    cli_ok(f, "$R $D/m --data $D/t.jsonl --steps 1 --out $D/o --eos-token '<s>'");
    cli_ok(f, "rm $D/m/additional_chat_templates/notes && diff -r $D/m/additional_chat_templates "
              "$D/o/additional_chat_templates");
    assert_int_equal(cli_number(f, cli_json(f, "o/config.json"), "eos_token_id"), 1);
    const sbp_json *ids = sbp_json_member(cli_json(f, "o/generation_config.json"), "eos_token_id");
    assert_int_equal(ids->count, 3);
    assert_int_equal(ids->items[0].integer, 1);
    assert_string_equal(sbp_json_member(cli_json(f, "o/special_tokens_map.json"), "eos_token")->string,
                        "<s>");
    cli_ok(f, "echo '\"x\"' | $R tokenize $D/o && $R tokenize $D/o <$D/t.jsonl");
    assert_non_null(strstr(cli_text(f, "out"), "426, 1], \"labels\"")); /* the result has it */
}

static void test_bad_rows(void **state) {
    io_fixture *f = *state;
    put_rows(f);
    cli_ok(f, "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}' >>$D/d.jsonl");
    cli_fails(f, 1, "d.jsonl:3: no token would be trained",
              "$R $S --data $D/d.jsonl --dry-run --loss-on assistant --chat-template " TEMPLATE);
    cli_ok(
        f,
        "$R $S --data $D/d.jsonl --dry-run --loss-on assistant --on-bad-row skip --chat-template " TEMPLATE);
    assert_non_null(strstr(cli_text(f, "err"), "1 of 3 rows left out: they are wrong"));
}

#define ASK "{\"role\": \"user\", \"content\": \"Hi\"}"
#define CALL                                                                                                 \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"function\": "  \
    "{\"name\": \"f\", \"arguments\": {}}}]}"
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}]"
#define LEFT_OUT " not in what the chat template writes"

/* What a template leaves out of rows is counted: also behind a cache and with threads, in pairs, and not
 * where it is written, or empty. */
static void test_what_a_template_leaves_out(void **state) {
    io_fixture *f = *state;
    cli_put(f, "d.jsonl",
            "{\"messages\": [" ASK ", " CALL "], " TOOLS "}\n"
            "{\"messages\": [" ASK ", " CALL "]}\n"
            "{\"messages\": [" ASK
            ", {\"role\": \"assistant\", \"content\": \"Ho\", \"thinking\": \"hm\"}]}\n"
            "{\"messages\": [" ASK
            ", {\"role\": \"assistant\", \"content\": \"Ho\", \"reasoning_content\": \"\", "
            "\"tool_calls\": []}], \"tools\": []}\n");
    cli_put(f, "plain.jinja", "{% for m in messages %}{{ m.content }}.{% endfor %}");
    cli_put(f, "calls.jinja",
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}.{% for c in "
            "m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}");
    static const char run[] =
        "$R $S --data $D/d.jsonl --dry-run --data-cache $D/cache --chat-template $D/plain.jinja 2>$D/said";
    for (int i = 0; i < 2; i++) { /* the second from the cache */
        cli_ok(f, run);
        const char *said = cli_text(f, "said");
        assert_non_null(strstr(said, "warning: tools of 1 row are" LEFT_OUT));
        assert_non_null(strstr(said, "warning: tool_calls of 2 rows are" LEFT_OUT));
        assert_non_null(strstr(said, "warning: reasoning of 1 row are" LEFT_OUT));
        cli_ok(f, "test $(grep -c '" LEFT_OUT "' $D/said) = 3"); /* each once */
    }
    cli_ok(f, "$R $S --data $D/d.jsonl --dry-run --chat-template $D/calls.jinja");
    assert_null(strstr(cli_text(f, "err"), "tools of"));
    assert_null(strstr(cli_text(f, "err"), "tool_calls of"));
    assert_non_null(strstr(cli_text(f, "err"), "reasoning of 1 row are" LEFT_OUT));
    cli_put(f, "pairs.jsonl",
            "{\"prompt\": [" ASK
            "], \"chosen\": [{\"role\": \"assistant\", \"content\": \"A\"}], \"rejected\": ["
            "" CALL "]}\n");
    cli_ok(f, "$R $S --objective dpo --data $D/pairs.jsonl --dry-run --chat-template $D/plain.jinja");
    assert_non_null(strstr(cli_text(f, "err"), "tool_calls of 1 row are" LEFT_OUT));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_render, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_train, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_as_trl_trains, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_another_end, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bad_rows, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_what_a_template_leaves_out, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
