/* run_samples.c: the same prompts, answered again and again. */
#include "runtime/cli/sbprun/run_samples.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/completions.h"
#include "runtime/cli/sbprun/ending.h"
#include "runtime/cli/sbprun/step_files.h"

#define FOLDER "samples"

enum {
    USUAL_PROMPTS = 4, /* of --eval */
    SHOWN_BYTES = 80,  /* of a prompt, of an answer, in a line of progress */
    SHOWN_STEPS = 12   /* in report.html */
};

struct sbp_samples {
    sbp_world *world;
    int64_t every;
    sbp_texts texts;
    sbp_prompts prompts;
    sbp_stopping stopping;
    sbp_generator *generator;
    sbp_token_sampler *sampler;
    int64_t written; /* the step of the last ones; -1: none */
};

/* ---- prompts ------------------------------------------------------------------------------------------ */

bool sbp_samples_are_asked_for(const sbp_options *o) {
    return sbp_options_given(o, SBP_OPT_SAMPLE_EVERY);
}

sbp_status sbp_samples_open(sbp_world *world, sbp_session *session, sbp_inputs *inputs) {
    const sbp_options *o = world->options;
    const sbp_option_id from =
        sbp_options_list_count(o, SBP_OPT_SAMPLE_PROMPTS) > 0 ? SBP_OPT_SAMPLE_PROMPTS : SBP_OPT_EVAL;
    if (world->place.count > 1)
        return sbp_fail(world->diag, SBP_USAGE,
                        "--sample-every: one process writes answers and trains: leave out --ranks");
    if (sbp_options_list_count(o, from) == 0)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "--sample-every: give --sample-prompts FILE, or --eval, whose first %d rows are asked "
            "then",
            (int)USUAL_PROMPTS);
    sbp_samples *s = SBP_NEW(world->arena, sbp_samples);
    *s = (sbp_samples){.world = world, .every = sbp_options_int(o, SBP_OPT_SAMPLE_EVERY), .written = -1};
    inputs->samples = s;
    SBP_TRY(sbp_texts_open(world->arena, world->diag, o, session->model ? session->model : session->plan_path,
                           true, &s->texts));
    return sbp_prompts_read_files(world->arena, world->diag, o, &s->texts, from,
                                  from == SBP_OPT_EVAL ? USUAL_PROMPTS : INT32_MAX, &s->prompts);
}

int64_t sbp_samples_rows(const sbp_samples *s) {
    return s->prompts.longest + sbp_options_int(s->world->options, SBP_OPT_MAX_NEW_TOKENS);
}

sbp_status sbp_samples_begin(sbp_samples *s, const sbp_session *session, const sbp_outputs *outputs) {
    if (!s)
        return SBP_OK;
    sbp_world *world = s->world;
    SBP_TRY(sbp_ending_find(world, session, &s->texts, &s->stopping));
    SBP_TRY(sbp_completions_open(world, session, "--sample-every", s->prompts.count, s->prompts.longest,
                                 s->stopping.most_tokens, &s->generator, &s->sampler));
    return outputs->out ? sbp_step_files_begin(world->diag, sbp_file_join(world->arena, outputs->out, FOLDER),
                                               session->state.step > 0 ? session->state.step + 1 : 0)
                        : SBP_OK;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

typedef struct taking {
    sbp_samples *samples;
    const sbp_outputs *outputs;
    sbp_arena *arena;
    int64_t step;
    sbp_text lines, shown; /* of the file; for TensorBoard, in Markdown */
} taking;

/* A text, of messages the last one, where it is one; NULL. */
static const sbp_json *asked_text(const sbp_prompt *p) {
    const sbp_json *asked = p->asked;
    if (asked && asked->kind == SBP_JSON_ARRAY && asked->count > 0)
        asked = sbp_json_member(&asked->items[asked->count - 1], "content");
    return asked && asked->kind == SBP_JSON_STRING ? asked : NULL;
}

/* What was asked: text or messages as the data have it; else what the tokens decode to. */
static sbp_status question_text(const taking *t, const sbp_prompt *p, const char **text, size_t *length) {
    const sbp_json *asked = asked_text(p);
    *text = NULL;
    *length = 0;
    if (asked) {
        *text = asked->string;
        *length = (size_t)asked->count;
        return SBP_OK;
    }
    return t->samples->texts.tokenizer
               ? sbp_tokenizer_decode(t->samples->texts.tokenizer, t->arena, t->samples->world->diag, p->ids,
                                      p->count, true, text, length)
               : SBP_OK;
}

/* The first bytes of a text in one line, whole characters. */
static const char *short_of(sbp_arena *arena, const char *text, size_t length) {
    size_t n = length < SHOWN_BYTES ? length : SHOWN_BYTES;
    while (n > 0 && n < length && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    char *line = sbp_arena_printf(arena, "%.*s%s", (int)n, text, n < length ? ".." : "");
    for (char *c = line; *c; c++)
        *c = (unsigned char)*c < ' ' || *c == 127 ? ' ' : *c;
    return line;
}

static void write_answer(taking *t, const sbp_prompt *p, const sbp_completion *c, const char *asked,
                         size_t asked_bytes) {
    sbp_json_writer w = sbp_json_writer_on(&t->lines);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "step", t->step);
    sbp_json_write_int(&w, "row", c->prompt);
    if (asked)
        sbp_json_write_bytes(&w, "prompt", asked, asked_bytes);
    else
        sbp_json_write_null(&w, "prompt");
    sbp_completion_write(&w, c);
    sbp_json_write_string(&w, "finish_reason", sbp_finish_name(c->finish));
    sbp_json_write_int(&w, "prompt_tokens", p->count);
    sbp_json_write_end(&w);
    sbp_text_add(&t->lines, "\n");
}

/* Markdown takes a text as it is between fences. */
static void add_fenced(sbp_text *out, const char *text, size_t length) {
    sbp_text_add(out, "\n\n~~~~\n");
    sbp_text_add_n(out, text, length);
    sbp_text_add(out, "\n~~~~\n\n");
}

static sbp_status take_answer(void *user, sbp_arena *arena, const sbp_completion *c) {
    taking *t = user;
    const sbp_samples *s = t->samples;
    const sbp_prompt *p = &s->prompts.items[c->prompt];
    const char *asked;
    size_t asked_bytes;
    (void)arena; /* the answer's own */
    SBP_TRY(question_text(t, p, &asked, &asked_bytes));
    write_answer(t, p, c, asked, asked_bytes);
    if (!c->text)
        return SBP_OK;
    add_fenced(&t->shown, asked, asked_bytes);
    add_fenced(&t->shown, c->text, c->text_bytes);
    if (c->prompt == 0 && !t->outputs->metrics.quiet) {
        sbp_progress_break();
        sbp_note(s->world->diag, "step %lld: '%s' goes on: '%s'", (long long)t->step,
                 short_of(t->arena, asked, asked_bytes), short_of(t->arena, c->text, c->text_bytes));
    }
    return SBP_OK;
}

static sbp_status take_body(void *user) {
    taking *t = user;
    sbp_samples *s = t->samples;
    sbp_world *world = s->world;
    static const sbp_sampling likeliest = {.temperature = 0, .top_p = 1};
    const sbp_prompt **prompts = SBP_NEW_ARRAY(t->arena, const sbp_prompt *, s->prompts.count);
    for (int32_t p = 0; p < s->prompts.count; p++)
        prompts[p] = &s->prompts.items[p];
    const sbp_completing what = {.arena = t->arena,
                                 .diag = world->diag,
                                 .generator = s->generator,
                                 .sampler = s->sampler,
                                 .tokenizer = s->texts.tokenizer,
                                 .sampling = &likeliest,
                                 .stopping = &s->stopping,
                                 .prompts = prompts,
                                 .prompt_count = s->prompts.count,
                                 .each = 1,
                                 .visit = take_answer,
                                 .user = t};
    sbp_text_init(&t->lines, t->arena);
    sbp_text_init(&t->shown, t->arena);
    SBP_TRY(sbp_completions_make(&what));
    s->written = t->step;
    if (t->outputs->out)
        SBP_TRY(sbp_file_write(world->diag, sbp_step_file(t->arena, t->outputs->out, FOLDER, t->step),
                               t->lines.data, t->lines.length));
    if (!t->outputs->metrics.events || t->shown.length == 0)
        return SBP_OK;
    SBP_TRY(sbp_events_add_text(t->outputs->metrics.events, world->diag, t->step, "samples", t->shown.data,
                                t->shown.length));
    return sbp_events_flush(t->outputs->metrics.events, world->diag);
}

sbp_status sbp_samples_take(sbp_samples *s, const sbp_session *session, const sbp_outputs *outputs,
                            bool last) {
    const int64_t step = session->state.step;
    if (!s || s->written == step || (!last && step % s->every != 0))
        return SBP_OK;
    taking t = {.samples = s, .outputs = outputs, .arena = sbp_arena_create(), .step = step};
    if (!t.arena)
        return sbp_fail(s->world->diag, SBP_MACHINE, "out of memory for answers");
    sbp_status status = sbp_guard(t.arena, s->world->diag, take_body, &t);
    sbp_arena_destroy(t.arena);
    return status;
}

/* ---- report.html -------------------------------------------------------------------------------------- */

typedef struct steps {
    int64_t *items;
    int32_t count, capacity;
} steps;

static int by_step(const void *x, const void *y) {
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* Steps that have a file, in order; of many, the first, the last and some between. */
static void find_steps(sbp_arena *arena, const char *folder, steps *out) {
    DIR *names = opendir(folder);
    for (const struct dirent *entry; names && (entry = readdir(names));) {
        int64_t step = sbp_step_file_step(entry->d_name);
        if (step >= 0)
            SBP_PUSH(arena, out->items, out->count, out->capacity, step);
    }
    if (names)
        closedir(names);
    if (out->count == 0)
        return;
    qsort(out->items, (size_t)out->count, sizeof *out->items, by_step);
    const int64_t all = out->count;
    for (int32_t i = 0; all > SHOWN_STEPS && i < SHOWN_STEPS; i++)
        out->items[i] = out->items[i * (all - 1) / (SHOWN_STEPS - 1)];
    out->count = all > SHOWN_STEPS ? SHOWN_STEPS : (int32_t)all;
}

static const sbp_json *text_of(const sbp_json *row, const char *key) {
    const sbp_json *text = sbp_json_member(row, key);
    return text && text->kind == SBP_JSON_STRING ? text : NULL;
}

static sbp_status read_step(const sbp_world *world, const sbp_outputs *outputs, int64_t step,
                            const sbp_json **rows, int32_t count) {
    const char *text, *path = sbp_step_file(world->arena, outputs->out, FOLDER, step);
    size_t length;
    SBP_TRY(sbp_file_read(world->arena, world->diag, path, &text, &length));
    for (int32_t i = 0; i < count && length > 0; i++) {
        const char *end = memchr(text, '\n', length);
        size_t line = end ? (size_t)(end - text) : length;
        SBP_TRY(sbp_json_parse(world->arena, world->diag, path, text, line, SBP_JSON_ROW, &rows[i]));
        text += line + (end != NULL);
        length -= line + (end != NULL);
    }
    return SBP_OK;
}

sbp_status sbp_samples_add_page(const sbp_world *world, const sbp_outputs *outputs, sbp_text *page) {
    enum { MOST = 16 }; /* prompts */
    steps found = {0};
    if (!sbp_samples_are_asked_for(world->options))
        return SBP_OK;
    find_steps(world->arena, sbp_file_join(world->arena, outputs->out, FOLDER), &found);
    const sbp_json **rows = SBP_NEW_ARRAY(world->arena, const sbp_json *, (size_t)found.count *MOST + 1);
    for (int32_t s = 0; s < found.count; s++)
        SBP_TRY(read_step(world, outputs, found.items[s], rows + (size_t)s * MOST, MOST));
    if (found.count > 0)
        sbp_text_add(page, "<h2>Samples</h2>\n<p>The most likely answers, by step.</p>\n");
    for (int32_t p = 0; p < MOST && found.count > 0 && rows[p]; p++) {
        const sbp_json *asked = text_of(rows[p], "prompt");
        sbp_text_add(page, "<pre class=\"no\">");
        sbp_text_add_escaped(page, asked ? asked->string : "(ids)");
        sbp_text_add(page, "</pre>\n<table>\n");
        for (int32_t s = 0; s < found.count; s++) {
            const sbp_json *row = rows[(size_t)s * MOST + (size_t)p],
                           *text = row ? text_of(row, "text") : NULL;
            sbp_text_add(page, "<tr><th>%lld</th><td><pre>", (long long)found.items[s]);
            sbp_text_add_escaped(page, text ? text->string : "");
            sbp_text_add(page, "</pre></td></tr>\n");
        }
        sbp_text_add(page, "</table>\n");
    }
    return SBP_OK;
}

void sbp_samples_close(sbp_samples *s) {
    if (!s)
        return;
    sbp_token_sampler_destroy(s->sampler);
    sbp_generator_destroy(s->generator);
}
