/* sbprun tokenize: lines in, lines out. Ids are those that TRL recorded. */
#include "tests/cli/cli_testing.h"

#define TRL "$G/stories260k_trl/train.jsonl"

static void expect_line(io_fixture *f, int line, const char *want) {
    const char *text = cli_text(f, "out");
    for (; line > 0; line--)
        text = strchr(text, '\n') + 1;
    if (strncmp(text, want, strlen(want)) != 0 || text[strlen(want)] != '\n')
        fail_msg("found '%.*s', expected '%s'", (int)strcspn(text, "\n"), text, want);
}

static void test_lines(void **state) {
    io_fixture *f = *state;
    cli_put(f, "in",
            "\"The end.</s>\"\n{\"text\": \"The end.\"}\n\n\"\"\n"
            "{\"prompt\": \"The\", \"completion\": \" end.\", \"more\": 1}\n"
            "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 9, -100]}\n"
            "{\"prompt_ids\": [5], \"completion_ids\": [6]}");
    cli_ok(f, "$R tokenize $S <$D/in");
    expect_line(f, 0, "[1, 291, 344, 264, 426, 2]");
    expect_line(f, 1, "{\"input_ids\": [1, 291, 344, 264, 426, 2], \"labels\": [1, 291, 344, 264, 426, 2]}");
    expect_line(f, 2, "[1]");
    expect_line(f, 3,
                "{\"input_ids\": [1, 291, 344, 264, 426, 2], \"labels\": [-100, -100, 344, 264, 426, 2]}");
    expect_line(f, 4, "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 9, -100]}");
    expect_line(f, 5, "{\"input_ids\": [5, 6], \"labels\": [-100, 6]}");
    cli_ok(f, "tail -n +5 $D/in | head -1 | $R tokenize $S --loss-on all");
    expect_line(f, 0, "{\"input_ids\": [1, 291, 344, 264, 426, 2], \"labels\": [1, 291, 344, 264, 426, 2]}");
}

static void test_lines_that_fail(void **state) {
    io_fixture *f = *state;
    int count;
    cli_put(f, "in", "\"a\"\n{\"txt\": 1}\nnonsense\n[1]\n\"b\"\n");
    cli_fails(f, 1, "3 of 5 lines failed", "$R tokenize $S <$D/in");
    const sbp_json **lines = cli_lines(f, "out", &count);
    assert_int_equal(count, 5);
    for (int i = 0; i < count; i++)
        assert_true((sbp_json_member(lines[i], "error") != NULL) == (i > 0 && i < 4));
    assert_non_null(strstr(sbp_json_member(lines[1], "error")->string, "standard input:2: found 'txt'"));
}

/* Text to ids and back, by the model and by its plan. */
static void test_there_and_back(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$C compile $S -o $D/p");
    cli_ok(f, "head -60 " TRL " | $R tokenize $S >$D/a; cat $D/a");
    cli_ok(f, "head -60 " TRL " | $R tokenize $D/p >$D/b; cat $D/b");
    cli_same(f, "a", "b");
    cli_put(f, "in", "\"The end. Zo\\u00eb \\u20ac \\ud83d\\ude00\"\n");
    cli_ok(f, "$R tokenize $D/p <$D/in >$D/ids; $R tokenize $D/p --decode <$D/ids");
    expect_line(f, 0, "\"<s> The end. Zo\xc3\xab \xe2\x82\xac \xf0\x9f\x98\x80\"");
    cli_fails(f, 1, "2 of 2 lines failed", "printf '[-1]\\n\"a\"\\n' | $R tokenize $D/p --decode");
    cli_fails(f, 1, "the plan has no tokenizer",
              "$C compile $G/llama_plain/model -o $D/q --seq-len 100; $R tokenize $D/q </dev/null");
}

/* A tokenizer beside model.json is the model's, as in a directory. */
static void test_beside_an_export(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir $D/x && cp tests/data/onnx/two_widths.json $D/x/model.json && "
              "cp tests/data/stories260K/tokenizer.json $D/x");
    cli_ok(f, "$C compile $D/x/model.json -o $D/p --seq-len 32");
    cli_ok(f, "echo '\"Once upon\"' | $R tokenize tests/data/stories260K > $D/a");
    cli_ok(f, "echo '\"Once upon\"' | $R tokenize $D/p > $D/b && cmp $D/a $D/b && grep -q , $D/b");
    /* by the model's own file, and by the tokenizer's; one of a name that says nothing */
    cli_ok(f, "echo '\"Once upon\"' | $R tokenize $D/x/model.json > $D/b && cmp $D/a $D/b");
    cli_ok(f, "echo '\"Once upon\"' | (cd $D/x && $R tokenize model.json) > $D/b && cmp $D/a $D/b");
    cli_ok(
        f,
        "cp $D/x/tokenizer.json $D/graph.json && echo '\"Once upon\"' | $R tokenize $D/graph.json > $D/b && "
        "cmp $D/a $D/b");
    cli_ok(f, "cp tests/golden/gpt2/model/export18.onnx $D/x/model.onnx && "
              "echo '\"Once upon\"' | $R tokenize $D/x/model.onnx > $D/b && cmp $D/a $D/b");
    /* conversations by the template that lies there */
    cli_ok(f, "echo '{% for m in messages %}{{ m.content }}{% endfor %}' > $D/x/chat_template.jinja");
    cli_put(f, "chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"\\n\\n\"}]}\n");
    cli_ok(f, "$R tokenize $D/x/model.json --render < $D/chat.jsonl");
    expect_line(f, 0, "\"\\n\\n\"");
    cli_fails(f, 1,
              "is not below the model's vocabulary of 50", /* which is not this tokenizer's; it came so far */
              "$R $D/x/model.json --data $D/chat.jsonl --weights random:1 --out none --steps 1");
    cli_fails(f, 4, "has no tokenizer.json",
              "rm $D/x/tokenizer.json; $R tokenize $D/x/model.json < $D/chat.jsonl");
}

/* An adapter without a tokenizer has its base's. */
static void test_beside_an_adapter(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R $S --data " TRL " --lora r=1 --steps 1 --out $D/a && mkdir $D/b && cp $D/a/adapter* $D/b");
    cli_ok(f, "echo '\"Once upon\"' | $R tokenize $S > $D/want");
    for (const char **at = (const char *[]){"a", "b", NULL}; *at; at++)
        cli_ok(f,
               sbp_arena_printf(f->arena,
                                "echo '\"Once upon\"' | $R tokenize $D/%s > $D/got && cmp $D/want $D/got && "
                                "$R $D/%s --data " TRL " --steps 1 --out none",
                                *at, *at));
    cli_ok(f, "sed -i 's/\"base_model_name_or_path\": \"[^\"]*/&x/' $D/b/adapter_config.json");
    cli_ok(f, "$R $D/b --base $S --data " TRL " --steps 1 --out none");
    cli_fails(f, 4, "has no tokenizer.json", "$R tokenize $D/b </dev/null");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_lines_that_fail, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_there_and_back, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_beside_an_export, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_beside_an_adapter, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
