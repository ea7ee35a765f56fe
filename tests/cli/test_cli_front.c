/* What a run leaves for others to look at: the model card, TensorBoard's event files, lines on standard
 * output; and what `sbprun doctor` says of a machine. */
#include "tests/cli/cli_testing.h"

#include "runtime/train/events.h"

#define DATA "tests/golden/stories260k_trl/train.jsonl"

/* ---- the card --------------------------------------------------------------------------------------- */

/* The card is there, and says nothing of where things lie. */
static const char *read_card(io_fixture *f, const char *out) {
    const char *card = cli_text(f, sbp_arena_printf(f->arena, "%s/README.md", out));
    assert_int_equal(strncmp(card, "---\n# Written by sbprun;", 24), 0);
    assert_null(strstr(card, f->directory));
    assert_null(strstr(card, "/home/"));
    assert_null(strstr(card, "tests/"));
    return card;
}

static void test_card_of_an_adapter(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R $S --data " DATA
              " --steps 40 --lora r=4,targets=q_proj+v_proj --base-name some/Model-1B --lr 1e-3 "
              "--eval " DATA " --eval-every 30 --save-every never --out $D/my-model 2>$D/said");
    cli_ok(f, "grep -E '^step 30  eval_loss [0-9.]+  train.jsonl$' $D/said"); /* names, not paths */
    const char *card = read_card(f, "my-model");
    static const char *const parts[] = {
        "\nbase_model: \"some/Model-1B\"\n",
        "\nlibrary_name: peft\n",
        "\nmodel_name: \"my-model\"\n",
        "\n- lora\n- \"base_model:adapter:some/Model-1B\"\n---\n",
        "A low-rank adapter of [some/Model-1B](https://huggingface.co/some/Model-1B),",
        "AutoPeftModelForCausalLM.from_pretrained(\"my-model\")",
        "| `--lora` | `r=4,targets=q_proj+v_proj` |\n",
        "| `--lr` | `1e-3` |\n",
        "\n| steps | 40 |\n",
        "\n| rows of data | 200 |\n",
        "\n| step | loss | evaluation loss |\n"};
    for (int i = 0; i < SBP_COUNT(parts); i++)
        if (!strstr(card, parts[i]))
            fail_msg("the card lacks '%s':\n%s", parts[i], card);
    assert_null(strstr(card, "license:"));
    /* of 40 steps every other and the last; each evaluation at its own step, that before the first too */
    int count;
    double loss = NAN;
    const sbp_json **lines = cli_lines(f, "my-model/metrics.jsonl", &count);
    for (int i = 0; i < count; i++) {
        int step = (int)cli_number(f, lines[i], "step");
        bool train = sbp_json_member(lines[i], "loss") != NULL,
             evaluated = step == 0 || step == 30 || step == 40;
        if (train)
            loss = cli_number(f, lines[i], "loss");
        const char *row = step == 0 ? "\n| 0 | |" : sbp_arena_printf(f->arena, "\n| %d | %.4f |", step, loss);
        if (train)
            assert_int_equal(strstr(card, row) != NULL, step % 2 == 1 || evaluated);
        else
            row = sbp_arena_printf(f->arena, "%s %.4f |\n", row, cli_number(f, lines[i], "eval_loss"));
        if (!train)
            assert_non_null(strstr(card, row));
        if (step == 27)
            assert_int_equal(strstr(card, row)[strlen(row) + 1], '|');
    }
    assert_int_equal(count, 43);
}

/* If there are many steps and evaluations, some are shown, the first and the last among them, in order. */
static void test_card_of_many_evaluations(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "head -2 " DATA " >$D/e && $R $S --data " DATA
              " --steps 70 --batch-size 1 --eval $D/e --eval-every 1 --save-every never --out $D/long");
    const char *row = strstr(read_card(f, "long"), "\n|---:|---:|---:|\n");
    assert_non_null(row);
    int rows = 0, last = -1;
    for (row = strstr(row, "\n| "); row; row = strstr(row + 1, "\n| "), rows++) {
        int step = atoi(row + 3);
        assert_true(step > last);
        assert_int_equal(rows == 0, step == 0);
        last = step;
    }
    assert_int_equal(last, 70);
    assert_in_range(rows, 16, 66);
}

/* How each kind of result is opened. */
static void test_card_of_kinds(void **state) {
    io_fixture *f = *state;
    cli_put(f, "ids.jsonl", "{\"input_ids\": [1, 2, 3, 4, 5]}\n{\"input_ids\": [4, 3, 2, 1]}\n");
    cli_put(f, "talk.jsonl",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
            "{\"role\": \"assistant\", \"content\": \"Ho\"}]}\n");
    cli_put(f, "chat.jinja", "{% for m in messages %}{{ m.content }}.{% endfor %}");
    cli_ok(f, "$R export $S -o $D/base.gguf");
    static const struct {
        const char *command, *present, *absent;
    } cases[] = {
        {"$S --data $D/talk.jsonl --chat-template $D/chat.jinja",
         "tokenizer.apply_chat_template(messages, add_generation_prompt=True,", "Once upon"},
        {"$S --data " DATA, "tokenizer(\"Once upon a time\"", "apply_chat_template"},
        {"$S --data " DATA " --hub-model-id me/model", "AutoModelForCausalLM.from_pretrained(\"me/model\")",
         "from_pretrained(\"out"},
        {"tests/data/onnx/odd_layers.json --data $D/ids.jsonl",
         "model.load_state_dict(load_file(\"out3/model.safetensors\"), strict=False)", "transformers"},
        {"tests/data/onnx/odd_layers.json --data $D/ids.jsonl --lora targets=qkv",
         "`sbprun out4 --base MODEL.json --merge --out DIR`", "from_pretrained"},
        {"$D/base.gguf --data " DATA " --lora",
         "sbprun export \"out5\" -o adapter.gguf\nllama-server -m \"base.gguf\" --lora adapter.gguf\n",
         "AutoPeft"},
        {"$D/base.gguf --data " DATA " --lora --base-name some/Model-1B",
         "AutoPeftModelForCausalLM.from_pretrained(\"out6\")", "llama-server"},
        {"$D/base.gguf --data " DATA, "AutoModelForCausalLM.from_pretrained(\"out7\")", "llama-server"},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "$R %s --steps 1 --save-every never --out $D/out%d",
                                   cases[i].command, i));
        const char *card = cli_text(f, sbp_arena_printf(f->arena, "out%d/README.md", i));
        if (!strstr(card, cases[i].present) || strstr(card, cases[i].absent))
            fail_msg("case %d wants '%s', and no '%s':\n%s", i, cases[i].present, cases[i].absent, card);
    }
    cli_ok(f, "$R $D/out4 --base tests/data/onnx/odd_layers.json --merge --out $D/merged");
    assert_true(cli_exists(f, "merged/model.safetensors"));
}

/* Names that would be markup or YAML, licences of bases, data of the Hub's cache, cards of others. */
static void test_card_of_odd_names(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "mkdir -p $D/models--org--Base/snapshots/1 $D/datasets--org--Rows/snapshots/2 && "
              "cp $S/* $D/models--org--Base/snapshots/1/ && cp " DATA
              " $D/datasets--org--Rows/snapshots/2/a.jsonl && "
              "printf -- '---\\ntags: [x]\\nlicense: apache-2.0\\n---\\nlicense: mit\\n' "
              ">$D/models--org--Base/snapshots/1/README.md");
    cli_ok(f,
           "$R $D/models--org--Base/snapshots/1 --data $D/datasets--org--Rows/snapshots/2/a.jsonl --steps 1 "
           "--save-every never --out \"$D/a|b\\\"'\\`c\"");
    cli_ok(f, "cp \"$D/a|b\\\"'\\`c/README.md\" $D/card && mkdir $D/odd && cp $D/card $D/odd/README.md");
    const char *card = read_card(f, "odd");
    static const char *const parts[] = {"\nbase_model: \"org/Base\"\n",
                                        "\ndatasets:\n- \"org/Rows\"\n",
                                        "\nlicense: \"apache-2.0\"\n",
                                        "\nlibrary_name: transformers\n",
                                        "\nmodel_name: \"a|b\\\"'`c\"\n",
                                        "\n# Model card of `a\\|b\"''c`\n",
                                        "AutoModelForCausalLM.from_pretrained(\"a|b_'_c\")"};
    for (int i = 0; i < SBP_COUNT(parts); i++)
        if (!strstr(card, parts[i]))
            fail_msg("the card lacks '%s':\n%s", parts[i], card);
    cli_ok(f, "$R $S --data " DATA
              " --steps 1 --save-every never --out $D/own && echo mine >$D/own/README.md && "
              "$R $S --data " DATA " --steps 1 --save-every never --out $D/own --overwrite");
    assert_non_null(strstr(cli_text(f, "err"), "was not written by sbprun, or changed: it stays as it is"));
    assert_string_equal(cli_text(f, "own/README.md"), "mine\n");
}

/* ---- the page --------------------------------------------------------------------------------------- */

static int count_of(const char *text, const char *word) {
    int count = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        count++;
    return count;
}

/* Nothing is run or loaded, and nothing of a name is markup; each curve has all of its steps. */
static void test_page(void **state) {
    io_fixture *f = *state;
    cli_ok(f, "$R $S --data " DATA " --steps 12 --eval " DATA " --eval-every 5 --save-every never --out "
              "\"$D/a<b>&\\\"\" && mkdir $D/page && mv $D/a*/report.html $D/a*/metrics.jsonl $D/page");
    const char *page = cli_text(f, "page/report.html");
    assert_non_null(strstr(page, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                                 "style-src 'unsafe-inline'\">"));
    assert_non_null(strstr(page, "<h1>a&lt;b&gt;&amp;&quot;</h1>"));
    static const char *const absent[] = {
        "<script", "http://", "https://", "src=", "href=", "<b>", "url(", "tests/"};
    for (int i = 0; i < SBP_COUNT(absent); i++)
        if (strstr(page, absent[i]))
            fail_msg("the page has '%s'", absent[i]);
    assert_null(strstr(page, f->directory));
    assert_int_equal(count_of(page, "<svg "), count_of(page, "</svg>"));
    assert_int_equal(count_of(page, "<figure>"), 5);
    assert_int_equal(count_of(page, "<circle "), 4); /* before the first step, behind steps 5, 10 and 12 */
    for (const char *dot = page, *steps = "\x00\x05\x0a\x0c"; (dot = strstr(dot, "<circle ")); dot++, steps++)
        assert_int_equal(atoi(strstr(dot, "step ") + 5), *steps);
    assert_non_null(strstr(page, "<circle class=\"eval\" cx=\"70.0\"")); /* the axis begins with the first */
    assert_non_null(strstr(page, ">step 0</text>"));
    int curves = 0;
    for (const char *path = page; (path = strstr(path, "class=\"curve\" d=\"")); curves++) {
        path += strlen("class=\"curve\" d=\"");
        char *d = sbp_arena_strndup(f->arena, path, strcspn(path, "\""));
        assert_int_equal(count_of(d, "M"), 1);
        assert_int_equal(count_of(d, "L"), 11);
        if (curves == 0) { /* the least loss is at the bottom: y of the plot's area */
            int count, at = 0, least = 0;
            double loss = INFINITY, y = 0;
            const sbp_json **lines = cli_lines(f, "page/metrics.jsonl", &count);
            for (int i = 0; i < count; i++)
                if (sbp_json_member(lines[i], "loss")) {
                    double value = cli_number(f, lines[i], "loss");
                    least = value < loss ? at : least;
                    loss = fmin(loss, value);
                    at++;
                }
            for (int i = 0; i <= least; i++)
                d = strpbrk(d, "ML") + 1;
            sscanf(d, "%*f %lf", &y);
            double lowest = y;
            for (const char *next = path; *next != '"'; next++)
                if (strchr("ML", *next) && sscanf(next + 1, "%*f %lf", &y) == 1)
                    assert_true(y <= lowest);
        }
    }
    assert_int_equal(curves, 5);
}

/* ---- event files ------------------------------------------------------------------------------------ */

static uint64_t little(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static uint32_t mask(uint32_t crc) {
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* A number of an event, as Protocol Buffers have it; *at goes behind it. */
static uint64_t varint(const uint8_t **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
}

typedef struct event {
    int64_t step;
    char tag[80]; /* "": none */
    float value;
    bool start;
} event;

/* Fields of an event or of what is in it. */
static void read_message(const uint8_t *at, const uint8_t *end, int depth, event *out) {
    while (at < end) {
        uint64_t key = varint(&at), number = 0;
        const uint8_t *inner = NULL;
        if ((key & 7) == 0)
            number = varint(&at);
        else if ((key & 7) == 1)
            at += 8;
        else if ((key & 7) == 5) {
            memcpy(&out->value, at, 4);
            at += 4;
        } else {
            number = varint(&at);
            inner = at;
            at += number;
        }
        if (depth == 0 && key >> 3 == 2)
            out->step = (int64_t)number;
        else if (depth == 0 && (key >> 3 == 5 || key >> 3 == 7))
            read_message(inner, inner + number, key >> 3 == 5 ? 1 : 3, out);
        else if (depth == 1 && key >> 3 == 1)
            read_message(inner, inner + number, 2, out);
        else if (depth == 2 && key >> 3 == 1)
            snprintf(out->tag, sizeof out->tag, "%.*s", (int)number, (const char *)inner);
        else if (depth == 3)
            out->start = key >> 3 == 1 && number == 1;
    }
    assert_ptr_equal(at, end);
}

/* All events of a file; checksums are right. */
static event *read_events(io_fixture *f, const char *name, int32_t *count) {
    event *events = NULL;
    int32_t capacity = 0;
    const char *data;
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, io_path(f, name), &data, &length));
    *count = 0;
    for (const uint8_t *at = (const uint8_t *)data, *end = at + length; at < end;) {
        uint64_t bytes = little(at, 8);
        assert_int_equal(little(at + 8, 4), mask(sbp_events_crc(at, 8)));
        assert_int_equal(little(at + 12 + bytes, 4), mask(sbp_events_crc(at + 12, bytes)));
        event e = {0};
        read_message(at + 12, at + 12 + bytes, 0, &e);
        SBP_PUSH(f->arena, events, *count, capacity, e);
        at += 16 + bytes;
    }
    return events;
}

/* The value of a tag at a step; NaN: it is not there. */
static float value_of(const event *events, int32_t count, const char *tag, int64_t step) {
    for (int32_t i = 0; i < count; i++)
        if (events[i].step == step && strcmp(events[i].tag, tag) == 0)
            return events[i].value;
    return NAN;
}

static const char *event_file(io_fixture *f, const char *folder, int index) {
    cli_ok(f,
           sbp_arena_printf(f->arena, "cd $D && ls -d %s/events.out.tfevents.* | sed -n %dp", folder, index));
    const char *name = cli_text(f, "out");
    return sbp_arena_strndup(f->arena, name, strcspn(name, "\n"));
}

static void test_event_files(void **state) {
    io_fixture *f = *state;
    int32_t count;
    int line_count, steps = 0;
    assert_int_equal(sbp_events_crc("123456789", 9), 0xe3069283u); /* the check value of CRC-32C */
    cli_ok(f, "cp " DATA " $D/held.jsonl && $R $S --data " DATA " --steps 4 --save-every 2 --eval " DATA
              " --eval $D/held.jsonl --out $D/o --report_to tensorboard");
    const event *events = read_events(f, event_file(f, "o/runs", 1), &count);
    const sbp_json **lines = cli_lines(f, "o/metrics.jsonl", &line_count);
    assert_false(events[1].start);
    for (int i = 0; i < line_count; i++) {
        int64_t step = (int64_t)cli_number(f, lines[i], "step");
        if (sbp_json_member(lines[i], "loss")) {
            static const char *const keys[] = {"loss", "grad_norm", "learning_rate", "epoch"};
            for (int k = 0; k < SBP_COUNT(keys); k++)
                assert_true(value_of(events, count, sbp_arena_printf(f->arena, "train/%s", keys[k]), step) ==
                            (float)cli_number(f, lines[i], keys[k]));
            steps++;
        } else {
            bool held = strstr(sbp_json_member(lines[i], "eval_file")->string, "held") != NULL;
            assert_true(value_of(events, count, held ? "eval/held_loss" : "eval/loss", step) ==
                        (float)cli_number(f, lines[i], "eval_loss"));
        }
    }
    assert_int_equal(steps, 4);
    /* the run goes on: another file, which says from where on it counts */
    cli_ok(f, "rm -r $D/o/checkpoint-4 && $R $S --data " DATA " --resume --out $D/o");
    cli_ok(f, "$R $S --data " DATA " --steps 6 --resume --out $D/o");
    events = read_events(f, event_file(f, "o/runs", 2), &count);
    assert_true(events[1].start && events[1].step == 3);
    assert_true(isnan(value_of(events, count, "train/loss", 2)) &&
                isfinite(value_of(events, count, "train/loss", 3)));
    events = read_events(f, event_file(f, "o/runs", 3), &count);
    assert_true(events[1].start && events[1].step == 5);
    /* in a directory of others, theirs stay */
    cli_ok(f, "mkdir -p $D/logs/x; echo 1 >$D/logs/x/events.out.tfevents.1.other; $R $S --data " DATA
              " --steps 1 --out $D/p --report-to tensorboard --logging_dir $D/logs/x; ls $D/logs/x | wc -l; "
              "test ! -e "
              "$D/p/runs");
    assert_string_equal(cli_text(f, "out"), "2\n");
    /* a run that starts over has its own only */
    cli_ok(f, "$R $S --data " DATA
              " --steps 1 --out $D/o --overwrite --report-to tensorboard; ls $D/o/runs | wc -l");
    assert_string_equal(cli_text(f, "out"), "1\n");
}

/* ---- lines, and a machine ----------------------------------------------------------------------------- */

static void test_lines_on_standard_output(void **state) {
    io_fixture *f = *state;
    cli_ok(f,
           "$R $S --data " DATA " --steps 2 --eval " DATA " --out $D/o --report-to jsonl --json >$D/lines");
    int count, in_file;
    const sbp_json **lines = cli_lines(f, "lines", &count);
    cli_lines(f, "o/metrics.jsonl", &in_file);
    assert_int_equal(count, in_file + 1); /* and the summary */
    cli_ok(f, "head -n -1 $D/lines >$D/first; cmp $D/first $D/o/metrics.jsonl");
    assert_true(cli_number(f, lines[count - 1], "steps") == 2);
    cli_ok(f, "$R $S --data " DATA " --steps 2 --out none --report-to jsonl"); /* without a file */
    cli_lines(f, "out", &count);
    assert_int_equal(count, 2);
    cli_ok(f, "$R $S --data " DATA " --steps 1 --out none --report_to wandb");
    assert_non_null(strstr(cli_text(f, "err"), "--report-to wandb is not built: --report-to jsonl"));
    cli_fails(f, 4, "cannot write to standard output",
              "$R $S --data " DATA " --steps 1 --out none --report-to jsonl "
              ">/dev/full");
}

/* Three of the first step's documents are shown, also where a packed row has many; of pairs three pairs. */
static void test_dry_run_shows_three(void **state) {
    io_fixture *f = *state;
    cli_ok(f,
           "for i in 1 2 3 4; do echo '{\"prompt\": \"A\", \"chosen\": \" B\", \"rejected\": \" C\"}'; done "
           ">$D/pairs.jsonl");
    static const char *const shown[][2] = {{"3", "$S --data " DATA " --packing bfd --seq-len 3000"},
                                           {"3", "$S --data " DATA},
                                           {"6", "$S --objective dpo --data $D/pairs.jsonl"}};
    for (int i = 0; i < SBP_COUNT(shown); i++) {
        cli_ok(f, sbp_arena_printf(f->arena, "$R %s --dry-run >$D/dry", shown[i][1]));
        cli_ok(f, sbp_arena_printf(f->arena, "test $(grep -c '^row [0-9]*: ' $D/dry) = %s", shown[i][0]));
    }
}

/* Before its first step a run says in some lines what it trains, whether it fits and how long it takes; of
 * paths nothing. */
static void test_lines_before_the_first_step(void **state) {
    static const char *const unwanted[] = {"snapshots/", ".tmp", "saved:", "+ "};
    io_fixture *f = *state;
    const char *deep = "hub/models--me--stories/snapshots/0123456789abcdef0123456789abcdef01234567";
    const char *run = sbp_arena_printf(
        f->arena,
        "$R $D/%s --data $D/%s/rows.jsonl --eval $D/%s/rows.jsonl --eval-every 1 --chat-template "
        "$D/%s/talk.jinja --lora --steps 2 --save-every never --overwrite --out $D/o",
        deep, deep, deep, deep);
    cli_ok(f, sbp_arena_printf(
                  f->arena,
                  "mkdir -p $D/%s; cp $S/* $D/%s; echo '{\"messages\": [{\"role\": \"user\", "
                  "\"content\": \"Once\"}, {\"role\": \"assistant\", \"content\": \"upon\"}]}' "
                  ">$D/%s/rows.jsonl; echo '{%% for m in messages %%}{{ m.content }} {%% endfor %%}' "
                  ">$D/%s/talk.jinja",
                  deep, deep, deep, deep));
    cli_ok(f, run);
    char *said = sbp_arena_strdup(f->arena, cli_text(f, "err")), *first = strstr(said, "\nstep 0 ");
    assert_non_null(first);
    first[1] = 0;
    int lines = 0;
    for (const char *at = said; (at = strchr(at, '\n')); at++)
        lines++;
    if (lines > 6)
        fail_msg("%d lines before the first step:\n%s", lines, said);
    for (int i = 0; i < SBP_COUNT(unwanted); i++)
        if (strstr(said, unwanted[i]))
            fail_msg("'%s' before the first step:\n%s", unwanted[i], said);
    static const char *const parts[] = {"backend ",
                                        "\nstories (llama), 278.0K parameters, ",
                                        " trained; sft, fp32\n",
                                        "\nfits       yes: ",
                                        "\ntime       about ",
                                        "chat template: talk.jinja"};
    for (int i = 0; i < SBP_COUNT(parts); i++)
        if (!strstr(said, parts[i]))
            fail_msg("'%s' is missing before the first step:\n%s", parts[i], said);
    cli_ok(f, sbp_arena_printf(f->arena, "%s --verbose", run)); /* the rest */
    static const char *const rest[] = {
        "\n+ ", "/sbpc compile ", "/sbprun ", "\nschedule   stream: ", " saved:", "\nmemory ", "\nlongest "};
    for (int i = 0; i < SBP_COUNT(rest); i++)
        if (!strstr(cli_text(f, "err"), rest[i]))
            fail_msg("'%s' is missing of --verbose:\n%s", rest[i], cli_text(f, "err"));
}

static void test_doctor(void **state) {
    io_fixture *f = *state;
    static const char *const parts[] = {"sbprun",    "sbpc", "processor", "memory",
                                        "disk here", "cpu",  "choice"};
    cli_ok(f, "$R doctor --json >$D/doctor.json");
    const sbp_json *found = cli_json(f, "doctor.json");
    for (int k = 0; k < SBP_COUNT(parts); k++) {
        bool there = false;
        for (int64_t i = 0; i < found->count; i++)
            there |= strcmp(sbp_json_member(&found->items[i], "part")->string, parts[k]) == 0 &&
                     strcmp(sbp_json_member(&found->items[i], "state")->string, "ok") == 0;
        if (!there)
            fail_msg("doctor does not say that %s is there", parts[k]);
    }
    cli_ok(f, "$R doctor >$D/lines; test $(wc -l <$D/lines) = $(grep -c '\"part\"' $D/doctor.json)");
    cli_ok(f, "! grep -vE '^(ok   |none |lacks)  ' $D/lines");
    /* no driver (the tests' environment): libraries are not needed, and what brings them is said */
    cli_ok(f, "SBP_CUDA_LIBRARIES=/nonexistent $R doctor >$D/lines; grep -E '^none .*libnvrtc.so.13 .*not "
              "found \\(pip "
              "install nvidia-cuda-nvrtc==' $D/lines");
    cli_ok(
        f,
        "ln -s $R $D/sbprun && cp -L $R $D/alone && $D/alone doctor >$D/lines; grep '^lacks  sbpc' $D/lines");
    cli_fails(f, 2, "sbprun doctor takes no 'x'", "$R doctor x");
    cli_ok(f, "$R doctor --help | grep -q '^usage: sbprun doctor'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_card_of_an_adapter, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_card_of_many_evaluations, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_card_of_kinds, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_card_of_odd_names, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_page, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_event_files, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_lines_on_standard_output, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_dry_run_shows_three, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_lines_before_the_first_step, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_doctor, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
