/* What of a conversation is trained, by what its messages say: labels and weights of tokens. The tokenizer is
 * that of stories260K. */
#include "tests/common/row_line.h"
#include "tests/unit/io_testing.h"

#include "runtime/data/dataset.h"
#include "runtime/data/pack.h"

typedef struct turns_case {
    io_fixture *f;
    sbp_chat_options options;
    sbp_document_maker maker;
    const char *line;
    sbp_documents made;
} turns_case;

static void begin(turns_case *c, io_fixture *f, const char *template, sbp_loss_on loss_on) {
    *c = (turns_case){.f = f};
    const sbp_tokenizer *tokenizer;
    assert_ok(f, sbp_tokenizer_load(f->arena, f->diag, "tests/data/stories260K", &tokenizer));
    c->options = (sbp_chat_options){.source = {.text = template, .length = strlen(template), .name = "t"},
                                    .date = "2026-03-01",
                                    .tokenizer = tokenizer,
                                    .assistant = sbp_loss_is_on_answers(loss_on),
                                    .quiet = true};
    c->maker = (sbp_document_maker){.tokenizer = tokenizer,
                                    .loss_on = loss_on,
                                    .diag = f->diag,
                                    .chat_options = &c->options,
                                    .chat_arena = f->arena};
}

static sbp_status case_body(void *user) {
    turns_case *c = user;
    sbp_row_options options = {.fields = true};
    sbp_row_form form = {0};
    sbp_row row;
    SBP_TRY(row_of_line(c->f->arena, c->f->diag, "d:7", c->line, strlen(c->line), &options, &form, &row));
    return sbp_documents_make(&c->maker, c->f->arena, &row, &c->made);
}

static sbp_status make(turns_case *c, const char *line) {
    c->line = line;
    return sbp_guard(c->f->arena, c->f->diag, case_body, c);
}

static double weight_of(const sbp_document *d, int64_t i) {
    for (int32_t k = 0; k < d->column_count; k++)
        if (strcmp(d->columns[k].name, "weight") == 0)
            return d->columns[k].values[i];
    return d->labels[i] >= 0;
}

/* Every stretch of tokens that count alike, "|text" or "|0.5:text". */
static const char *counted(turns_case *c) {
    const sbp_document *d = c->made.documents;
    sbp_text out;
    sbp_text_init(&out, c->f->arena);
    for (int64_t i = 0, end; i < d->count; i = end) {
        for (end = i + 1; end < d->count && weight_of(d, end) == weight_of(d, i);)
            end++;
        const char *text;
        size_t length;
        assert_int_equal(d->labels[i] >= 0, weight_of(d, i) > 0);
        if (d->labels[i] < 0)
            continue;
        assert_ok(c->f, sbp_tokenizer_decode(c->maker.tokenizer, c->f->arena, c->f->diag, d->ids + i, end - i,
                                             false, &text, &length));
        sbp_text_add(&out, "|");
        if (weight_of(d, i) != 1)
            sbp_text_add(&out, "%g:", weight_of(d, i));
        sbp_text_add_n(&out, text, length);
    }
    return out.length ? out.data : "";
}

static void expect(turns_case *c, const char *line, const char *want) {
    assert_ok(c->f, make(c, line));
    if (strcmp(counted(c), want) != 0)
        fail_msg("%s\nexpected %s\nfound    %s", line, want, counted(c));
}

static const char plain[] = "{% for m in messages %}<s>{{ m.role }}:\n{{ m.content }}</s>\n{% endfor %}"
                            "{% if add_generation_prompt %}<s>assistant:\n{% endif %}";
static const char marked[] = "{% for m in messages %}<s>{{ m.role }}:\n{% if m.role == 'assistant' %}{% "
                             "generation %}{{ m.content }}</s>\n"
                             "{% endgeneration %}{% else %}{{ m.content }}</s>\n{% endif %}{% endfor %}";
/* The system message stands before the loop, which begins behind it. */
static const char before[] =
    "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}\n{% set messages = messages[1:] %}"
    "{% endif %}{% for m in messages %}<s>{{ m.role }}:\n{{ m.content | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:\n{% endif %}";
static const char by_number[] =
    "{% for i in range(messages | length) %}<s>{{ messages[i].role }}:\n{{ messages[i].content }}</s>\n"
    "{% endfor %}{% if add_generation_prompt %}<s>assistant:\n{% endif %}";

#define TALK(user, first, second)                                                                            \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"hi you\"" user                                      \
    "}, {\"role\": \"assistant\", \"content\": \"yes\"" first                                                \
    "}, {\"role\": \"user\", \"content\": \"more\"}, {\"role\": \"assistant\", \"content\": \"no it "        \
    "is\"" second "}]}"

/* By marks and by differences of renderings. */
static void test_answers(void **state) {
    io_fixture *f = *state;
    static const char *const templates[] = {marked, plain};
    for (int t = 0; t < SBP_COUNT(templates); t++) {
        turns_case c;
        begin(&c, f, templates[t], SBP_LOSS_ASSISTANT);
        expect(&c, TALK("", "", ""), "|yes</s> |no it is</s> ");
        expect(&c, TALK("", ", \"train\": true", ", \"weight\": 1"), "|yes</s> |no it is</s> ");
        expect(&c, TALK("", ", \"train\": false", ""), "|no it is</s> ");
        expect(&c, TALK("", ", \"weight\": 0", ""), "|no it is</s> ");
        expect(&c, TALK("", "", ", \"training\": false"), "|yes</s> ");
        expect(&c, TALK("", "", ", \"loss\": false"), "|yes</s> ");
        expect(&c, TALK("", "", ", \"loss\": 1.5, \"train\": null"), "|yes</s> |no it is</s> ");
        expect(&c, TALK("", ", \"weight\": 0.5", ""), "|0.5:yes</s> |no it is</s> ");
        expect(&c, TALK("", ", \"weight\": 2", ", \"train\": 0"), "|2:yes</s> ");
        expect(&c, TALK(", \"train\": true", ", \"train\": false", ""), "|hi you</s>|no it is</s> ");
        expect(&c, TALK(", \"train\": true, \"weight\": 0.25", "", ""),
               "|0.25:hi you</s>|yes</s> |no it is</s> ");
        expect(&c, TALK(", \"weight\": 0.5", "", ""), "|yes</s> |no it is</s> ");
        assert_fails(f, SBP_INPUT, "d:7: no token would be trained: its messages say so",
                     make(&c, TALK("", ", \"train\": false", ", \"train\": false")));
        assert_fails(f, SBP_INPUT, "d:7: messages[1].train: expected true or false, found a string",
                     make(&c, TALK("", ", \"train\": \"no\"", "")));
        assert_fails(f, SBP_INPUT, "d:7: messages[3].weight: expected a number from 0 on",
                     make(&c, TALK("", "", ", \"weight\": -1")));
        assert_fails(f, SBP_INPUT, "messages[3].weight: expected a number",
                     make(&c, TALK("", "", ", \"weight\": \"1\"")));
    }
    assert_int_equal(0, sbp_diag_count(f->diag, SBP_WARNING));
}

/* All that the template writes for a message. */
static void test_all(void **state) {
    io_fixture *f = *state;
    static const sbp_loss_on both[] = {SBP_LOSS_ALL, SBP_LOSS_AUTO};
    for (int k = 0; k < SBP_COUNT(both); k++) {
        turns_case c;
        begin(&c, f, plain, both[k]);
        expect(
            &c, TALK("", "", ""),
            "|<s> user:\nhi you</s> \n<s> assistant:\nyes</s> \n<s> user:\nmore</s> \n<s> assistant:\nno it "
            "is</s> \n");
        expect(&c, TALK(", \"train\": false", ", \"weight\": 0.5", ""),
               "|0.5:<s> assistant:\nyes</s> \n|<s> user:\nmore</s> \n<s> assistant:\nno it is</s> \n");
        assert_fails(
            f, SBP_INPUT, "no token would be trained: its messages say so",
            make(&c, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"train\": false}]}"));
    }
}

#define WITH_SYSTEM(of_system, of_user)                                                                      \
    "{\"messages\": [{\"role\": \"system\", \"content\": \" be\"" of_system                                  \
    "}, {\"role\": \"user\", \"content\": \" hi \"" of_user                                                  \
    "}, {\"role\": \"assistant\", \"content\": \"yes\"}]}"

/* A message that the template writes outside of its loop, contents that it strips. */
static void test_outside_of_the_loop(void **state) {
    io_fixture *f = *state;
    turns_case c;
    begin(&c, f, before, SBP_LOSS_ALL);
    expect(&c, WITH_SYSTEM(", \"train\": false", ""), "|<s> user:\nhi</s> \n<s> assistant:\nyes</s> \n");
    expect(&c, WITH_SYSTEM(", \"weight\": 0.5", ", \"train\": false"),
           "|0.5:<s>  be\n|<s> assistant:\nyes</s> \n");
    begin(&c, f, before, SBP_LOSS_ASSISTANT);
    expect(&c, WITH_SYSTEM(", \"train\": true", ""), "| be|yes</s> ");
    expect(&c, WITH_SYSTEM("", ", \"train\": true"), "|hi</s>|yes</s> ");
    begin(&c, f, by_number, SBP_LOSS_ASSISTANT);
    expect(&c, WITH_SYSTEM("", ""), "|yes</s> ");
    expect(&c, TALK("", ", \"train\": false", ""), "|no it is</s> "); /* answers are counted */
    assert_fails(f, SBP_INPUT, "d:7: message 1 (from 0): what the template writes of it cannot be told",
                 make(&c, WITH_SYSTEM("", ", \"train\": true")));
    begin(&c, f, by_number, SBP_LOSS_ALL);
    assert_fails(f, SBP_INPUT, "d:7: message 0 (from 0): what the template writes of it cannot be told",
                 make(&c, TALK(", \"train\": false", "", "")));
}

/* A token with characters of two messages counts as the one does that counts more; it is left out only if all
 * of it is. "li" and "ttle" are one token here. */
static void test_borders(void **state) {
    io_fixture *f = *state;
    turns_case c;
    begin(&c, f, "{% for m in messages %}{{ m.content }}{% endfor %}", SBP_LOSS_ALL);
#define WORD(of_first, of_second)                                                                            \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a li\"" of_first                                    \
    "}, {\"role\": \"assistant\", \"content\": \"ttle so\"" of_second "}]}"
    assert_ok(f, make(&c, WORD("", "")));
    const sbp_document *d = c.made.documents;
    assert_int_equal(d->count, 3); /* a, little, so */
    expect(&c, WORD(", \"train\": false", ""), "|little so");
    expect(&c, WORD("", ", \"train\": false"), "|a little");
    expect(&c, WORD(", \"weight\": 0.5", ", \"weight\": 0.25"), "|0.5:a little|0.25:so");
    begin(&c, f,
          "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% "
          "endgeneration "
          "%}{% else %}{{ m.content }}{% endif %}{% endfor %}",
          SBP_LOSS_ASSISTANT);
    expect(&c, WORD("", ""), "|little so");
    expect(&c, WORD(", \"train\": true, \"weight\": 0.5", ""), "|0.5:a|little so");
    expect(&c, WORD(", \"train\": true", ", \"weight\": 0.5"), "|a little|0.5:so");
}

/* Completions, where prompts are not trained; preference pairs, of which nothing is left out. */
static void test_prompts_and_pairs(void **state) {
    io_fixture *f = *state;
    turns_case c;
#define COMPLETION(of_prompt, of_first, of_second)                                                           \
    "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi you\"" of_prompt                                   \
    "}], \"completion\": [{\"role\": \"assistant\", \"content\": \"yes\"" of_first                           \
    "}, {\"role\": \"user\", \"content\": \"more\"}, {\"role\": \"assistant\", \"content\": "                \
    "\"no\"" of_second "}]}"
    begin(&c, f, plain, SBP_LOSS_AUTO);
    expect(&c, COMPLETION("", ", \"train\": false", ""), "|<s> user:\nmore</s> \n<s> assistant:\nno</s> \n");
    expect(&c, COMPLETION(", \"train\": false", "", ", \"weight\": 0.5"),
           "|yes</s> \n<s> user:\nmore</s> \n|0.5:<s> assistant:\nno</s> \n");
    assert_fails(f, SBP_INPUT, "d:7: prompt[0].train: the prompt is not trained",
                 make(&c, COMPLETION(", \"train\": true", "", "")));
    begin(&c, f, plain, SBP_LOSS_ASSISTANT);
    expect(&c, COMPLETION("", ", \"train\": false", ""), "|no</s> ");
    begin(&c, f, plain, SBP_LOSS_ALL);
    expect(&c, COMPLETION(", \"train\": false", ", \"train\": false", ", \"weight\": 3"),
           "|<s> user:\nmore</s> \n|3:<s> assistant:\nno</s> \n");
#define PAIR(of_prompt, of_chosen)                                                                           \
    "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"" of_prompt                                       \
    "}], \"chosen\": [{\"role\": \"assistant\", \"content\": \"yes\"" of_chosen                              \
    "}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"no\"}]}"
    begin(&c, f, plain, SBP_LOSS_AUTO);
    expect(&c, PAIR(", \"train\": false", ", \"train\": true, \"weight\": 1.0"), "|yes</s> \n");
    assert_int_equal(c.made.count, 2);
    assert_fails(f, SBP_INPUT, "d:7: chosen: message 0 (from 0) has a 'train' or 'weight', and both answers",
                 make(&c, PAIR("", ", \"train\": false")));
    assert_fails(f, SBP_INPUT, "d:7: chosen: message 0 (from 0) has",
                 make(&c, PAIR("", ", \"weight\": 0.5")));
}

/* Tool calls in a loop; thoughts between tags, empty where there are none; marks around answers. */
static const char rich[] =
    "{% for m in messages %}<s>{{ m.role }}:\n{% if m.role == 'assistant' %}{% generation %}<think>\n"
    "{{ m.reasoning_content or '' }}\n</think>\n\n{{ m.content or '' }}{% for c in m.tool_calls or [] "
    "%}; call "
    "{{ c.function.name }}{% endfor %}</s>{% endgeneration %}\n{% else %}{{ m.content }}</s>\n{% endif %}"
    "{% endfor %}";
/* The same without marks, and calls without a loop. */
static const char one_call[] =
    "{% for m in messages %}<s>{{ m.role }}:\n{% if m.reasoning_content %}thought:\n{{ m.reasoning_content "
    "}}\n"
    "{% endif %}{{ m.content or '' }}{% if m.tool_calls %}call {{ m.tool_calls[0].function.name }}{% endif %}"
    "</s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant:\n{% endif %}";

#define CALLS(names) ", \"tool_calls\": [" names "]"
#define A_CALL(name) "{\"function\": {\"name\": \"" name "\"}}"
#define ASK "{\"role\": \"user\", \"content\": \"hi\"}, "
#define TOOL "{\"role\": \"tool\", \"content\": \"4\"}, "
#define SAYS(what, more) "{\"role\": \"assistant\", \"content\": \"" what "\"" more "}"
#define ROW(messages) "{\"messages\": [" messages "]}"

static void test_turns(void **state) {
    io_fixture *f = *state;
    static const char *const templates[] = {marked, plain};
    for (int t = 0; t < SBP_COUNT(templates); t++) {
        turns_case c;
        begin(&c, f, templates[t], SBP_LOSS_LAST_TURN);
        expect(&c, TALK("", "", ""), "|no it is</s> ");
        expect(&c, TALK("", ", \"weight\": 2", ", \"weight\": 0.5"), "|0.5:no it is</s> ");
        expect(&c, TALK("", ", \"train\": true", ""), "|yes</s> |no it is</s> ");
        expect(&c, TALK(", \"train\": true", "", ", \"train\": false"), "|hi you</s>");
        expect(&c, ROW(ASK SAYS("yes", "") ", " SAYS("so", "") ", {\"role\": \"user\", \"content\": \"a\"}"),
               "|so</s> ");
        begin(&c, f, templates[t], SBP_LOSS_FIRST_TURN);
        expect(&c, TALK("", "", ""), "|yes</s> ");
        expect(&c, TALK("", ", \"train\": false", ", \"train\": true"), "|no it is</s> ");
        assert_fails(f, SBP_INPUT, "no token would be trained: no message is the assistant's",
                     make(&c, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"));
        assert_fails(f, SBP_INPUT, "d:7: --loss-on first-turn: rows are not conversations",
                     make(&c, "{\"text\": \"a\"}"));
        assert_fails(f, SBP_INPUT, "d:7: --loss-on first-turn: rows are not conversations",
                     make(&c, "{\"input_ids\": [5]}"));
        if (templates[t] == plain) {
            assert_fails(
                f, SBP_USAGE, "preference pair are trained whole: --loss-on first-turn does not apply",
                make(&c,
                     "{\"prompt\": [], \"chosen\": [" SAYS("a", "") "], \"rejected\": [" SAYS("b", "") "]}"));
            begin(&c, f, plain, SBP_LOSS_LAST_TURN);
            expect(&c,
                   "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}], \"completion\": [" SAYS(
                       "yes", "") ", " SAYS("so", "") "]}",
                   "|so</s> ");
        }
    }
}

static void test_tool_calls(void **state) {
    io_fixture *f = *state;
    turns_case c;
    begin(&c, f, rich, SBP_LOSS_TOOL_CALLS);
    expect(&c, ROW(ASK SAYS("see", CALLS(A_CALL("so") ", " A_CALL("go"))) ", " TOOL SAYS("yes", "")),
           "|; call so; call go</s>");
    expect(&c,
           ROW(ASK SAYS("see", CALLS(A_CALL("so")) ", \"weight\": 0.5") ", " TOOL SAYS("yes",
                                                                                       ", \"train\": true")),
           "|0.5:; call so</s>|<think>\n\n</think>\n\nyes</s>");
    expect(&c, ROW(ASK SAYS("see", CALLS(A_CALL("so")) ", \"train\": true") ", " TOOL SAYS("yes", "")),
           "|<think>\n\n</think>\n\nsee; call so</s>");
    assert_fails(f, SBP_INPUT,
                 "no token would be trained: the assistant calls no tool; leave the row out (--on",
                 make(&c, TALK("", "", "")));
    begin(&c, f, one_call, SBP_LOSS_TOOL_CALLS);
    expect(&c, ROW(ASK SAYS("", CALLS(A_CALL("so"))) ", " TOOL SAYS("yes", "")), "|call so</s> ");
    assert_fails(f, SBP_INPUT, "d:7: message 1 (from 0): which of it are tool calls cannot be told",
                 make(&c, ROW(ASK SAYS("see", CALLS(A_CALL("so"))))));
}

#define THOUGHT(text) ", \"reasoning_content\": \"" text "\""

static void test_reasoning(void **state) {
    io_fixture *f = *state;
    turns_case c;
    static const char talk[] = ROW(ASK SAYS("yes", THOUGHT("hm")) ", " ASK SAYS("so", ""));
    static const char *const want[][SBP_REASONING_COUNT] = {
        {"|<think>\nhm\n</think>\n\nyes</s>|<think>\n\n</think>\n\nso</s>",
         "|<think>\nhm\n</think>\n\nyes</s>|so</s>", "|yes</s>|so</s>"},
        {"|<think>\n\n</think>\n\nso</s>", "|so</s>", "|so</s>"}};
    static const sbp_loss_on on[] = {SBP_LOSS_ASSISTANT, SBP_LOSS_LAST_TURN};
    for (int k = 0; k < SBP_COUNT(on); k++)
        for (int r = 0; r < SBP_REASONING_COUNT; r++) {
            begin(&c, f, rich, on[k]);
            c.maker.reasoning = (sbp_reasoning)r;
            expect(&c, talk, want[k][r]);
        }
    begin(&c, f, rich, SBP_LOSS_ALL);
    c.maker.reasoning = SBP_REASONING_NONE;
    expect(&c,
           ROW(ASK SAYS("yes", THOUGHT("hm")) ", {\"role\": \"user\", \"content\": \"<think>a</think>\"}"),
           "|<s> user:\nhi</s> \n<s> assistant:\n|yes</s><s> user:\n<think>a</think></s> \n");
    begin(&c, f, plain, SBP_LOSS_ASSISTANT);
    c.maker.reasoning = SBP_REASONING_NONE;
    /* blocks in contents, talk about tags, a block whose first tag was in the prompt */
    expect(&c, ROW(ASK SAYS("<think>hm</think> so", "") ", " SAYS("</think>\\n\\nyes", "")),
           "|so</s> |yes</s> ");
    expect(&c, ROW(ASK SAYS("so <think>a</think> it", "") ", " SAYS("ho</think>yes", "")),
           "|so <think>a</think> it</s> |yes</s> ");
    expect(&c, ROW(ASK SAYS("[THINK]hm[/THINK]so", "") ", " SAYS("<seed:think>hm</seed:think>it", "")),
           "|so</s> |it</s> ");
    expect(&c, ROW(ASK SAYS("<think>no end", "")), "|<think>no end</s> ");
    c.maker.reasoning = SBP_REASONING_FILLED;
    expect(&c, ROW(ASK SAYS("<think>hm</think> so", "") ", " SAYS("</think>\\n\\nyes", "")),
           "|<think>hm</think> so</s> |yes</s> ");
    begin(&c, f, one_call, SBP_LOSS_ASSISTANT); /* without tags */
    c.maker.reasoning = SBP_REASONING_NONE;
    expect(&c, ROW(ASK SAYS("so", THOUGHT("it is"))), "|thought:\n|\nso</s> ");
    begin(&c, f, by_number, SBP_LOSS_ALL);
    c.maker.reasoning = SBP_REASONING_NONE;
    assert_fails(f, SBP_INPUT, "which of it is reasoning cannot be told", make(&c, TALK("", "", "")));
    assert_fails(f, SBP_INPUT, "d:7: --loss-on-reasoning none: rows are not conversations",
                 make(&c, "{\"text\": \"a\"}"));
    begin(&c, f, plain, SBP_LOSS_AUTO);
    c.maker.reasoning = SBP_REASONING_FILLED;
    assert_fails(
        f, SBP_USAGE, "preference pair are trained whole: --loss-on-reasoning filled does not apply",
        make(&c, "{\"prompt\": [], \"chosen\": [" SAYS("a", "") "], \"rejected\": [" SAYS("b", "") "]}"));
}

typedef struct vectors_job {
    io_fixture *f;
    const char *text;
    int count, by_loss[SBP_LOSS_ON_COUNT];
} vectors_job;

static int place_of(const char *const *names, int count, const char *name) {
    int k = 0;
    while (k < count && strcmp(names[k], name) != 0)
        k++;
    assert_true(k < count);
    return k;
}

static sbp_status check_vector(vectors_job *job, const char *line) {
    io_fixture *f = job->f;
    const sbp_json *vector;
    const char *loss_on, *reasoning, *name, *template;
    size_t length;
    turns_case c;
    SBP_TRY(sbp_json_parse(f->arena, f->diag, "vectors", line, strlen(line), SBP_JSON_ROW, &vector));
    SBP_TRY(sbp_json_get_string(f->diag, vector, "template", SBP_JSON_REQUIRED, &name));
    SBP_TRY(sbp_json_get_string(f->diag, vector, "loss_on", SBP_JSON_REQUIRED, &loss_on));
    SBP_TRY(sbp_json_get_string(f->diag, vector, "reasoning", SBP_JSON_REQUIRED, &reasoning));
    SBP_TRY(sbp_file_read(f->arena, f->diag, sbp_arena_printf(f->arena, "tests/golden/chat/%s", name),
                          &template, &length));
    int on = place_of(sbp_loss_on_names, SBP_LOSS_ON_COUNT, loss_on);
    begin(&c, f, sbp_arena_strndup(f->arena, template, length), (sbp_loss_on)on);
    c.maker.reasoning = (sbp_reasoning)place_of(sbp_reasoning_names, SBP_REASONING_COUNT, reasoning);
    const sbp_json *row = sbp_json_member(vector, "row"), *want = sbp_json_member(vector, "weights");
    sbp_row_options options = {0};
    sbp_row_form form = {0};
    sbp_row read;
    SBP_TRY(sbp_row_read(f->arena, f->diag, "row", row, &options, &form, &read));
    SBP_TRY(sbp_documents_make(&c.maker, f->arena, &read, &c.made));
    const sbp_document *d = c.made.documents;
    assert_int_equal(d->count, want->count);
    for (int64_t i = 0; i < d->count; i++) {
        double number =
            want->items[i].kind == SBP_JSON_INT ? (double)want->items[i].integer : want->items[i].real;
        assert_true(weight_of(d, i) == number && (d->labels[i] >= 0) == (number > 0));
    }
    job->by_loss[on]++;
    job->count++;
    return SBP_OK;
}

static sbp_status check_vectors(void *user) {
    vectors_job *job = user;
    for (const char *at = job->text; *at;) {
        size_t length = strcspn(at, "\n");
        SBP_TRY(check_vector(job, sbp_arena_strndup(job->f->arena, at, length)));
        at += length + (at[length] == '\n');
    }
    return SBP_OK;
}

/* Weights of tokens as tests/golden/chat/compare_turns.py finds them, which goes another way. */
static void test_vectors(void **state) {
    io_fixture *f = *state;
    vectors_job job = {.f = f};
    size_t length;
    assert_ok(f, sbp_file_read(f->arena, f->diag, "tests/golden/chat/turns.jsonl", &job.text, &length));
    assert_ok(f, sbp_guard(f->arena, f->diag, check_vectors, &job));
    print_message("%d conversations\n", job.count);
    for (int k = SBP_LOSS_ALL; k < SBP_LOSS_ON_COUNT; k++)
        assert_true(job.by_loss[k] >= 4 || k == SBP_LOSS_COMPLETION);
}

/* What messages say is not what templates see. */
static void test_templates_do_not_see_it(void **state) {
    io_fixture *f = *state;
    turns_case c;
    begin(&c, f, "{% for m in messages %}{{ m }}{% endfor %}", SBP_LOSS_ALL);
    expect(&c, "{\"messages\": [{\"role\": \"user\", \"weight\": 1, \"train\": true, \"training\": true}]}",
           "|{'role': 'user'}");
}

/* Rows of files: of documents that are cut or split, weights go with their tokens into the column `weight`;
 * threads, packing and the cache change nothing. */
static void test_data(void **state) {
    io_fixture *f = *state;
    turns_case c;
    static const char lines[] = TALK("", ", \"weight\": 0.5", "") "\n" TALK("", "", "") "\n" TALK(
        "", ", \"train\": false", ", \"weight\": 0.125") "\n";
    io_put(io_path(f, "d.jsonl"), lines, sizeof lines - 1);
    const char *file = io_path(f, "d.jsonl"), *cache = io_path(f, "cache");
    begin(&c, f, plain, SBP_LOSS_ASSISTANT);
    double whole[400], column[400];
    int64_t count = 0;
    static const struct {
        int64_t most;
        sbp_overlong overlong;
        bool cached;
    } ways[] = {{0, SBP_OVERLONG_ERROR, false},
                {0, SBP_OVERLONG_ERROR, true},
                {0, SBP_OVERLONG_ERROR, true},
                {16, SBP_OVERLONG_SPLIT, false},
                {40, SBP_OVERLONG_CUT, false}};
    for (int w = 0; w < SBP_COUNT(ways); w++) {
        sbp_dataset *data;
        sbp_dataset_options options = {.files = &file,
                                       .file_count = 1,
                                       .tokenizer = c.maker.tokenizer,
                                       .chat = &c.options,
                                       .max_tokens = ways[w].most,
                                       .overlong = ways[w].overlong,
                                       .cache = ways[w].cached ? cache : NULL,
                                       .loss_on = SBP_LOSS_ASSISTANT};
        assert_ok(f, sbp_dataset_load(f->diag, &options, &data));
        int64_t at = 0;
        for (int64_t d = 0; d < data->doc_count; d++) {
            const sbp_doc *doc = &data->docs[d];
            int64_t number = d;
            assert_ok(f, sbp_pack_column(f->diag, data, &number, 1, doc->count, "weight", column));
            for (int64_t i = 0; i + 1 < doc->count; i++) {
                if (w == 0)
                    whole[at + i] = column[i];
                if (ways[w].overlong != SBP_OVERLONG_CUT)
                    assert_true(column[i] == whole[at + i]);
                assert_int_equal(column[i] > 0, data->labels[doc->first + i + 1] >= 0);
            }
            assert_true(column[doc->count - 1] == 0);
            at += doc->count;
        }
        count = w == 0 ? at : count;
        if (ways[w].overlong != SBP_OVERLONG_CUT)
            assert_int_equal(at, count);
        sbp_dataset_destroy(data);
    }
    double seen[4] = {0};
    for (int64_t i = 0; i < count; i++)
        seen[whole[i] == 0.5 ? 1 : whole[i] == 1 ? 2 : whole[i] == 0.125 ? 3 : 0]++;
    assert_true(seen[1] > 0 && seen[2] > seen[1] && seen[3] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, io_setup, io_teardown)
        CASE(test_answers),
        CASE(test_all),
        CASE(test_outside_of_the_loop),
        CASE(test_borders),
        CASE(test_prompts_and_pairs),
        CASE(test_turns),
        CASE(test_tool_calls),
        CASE(test_reasoning),
        CASE(test_vectors),
        CASE(test_templates_do_not_see_it),
        CASE(test_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
