/* command_tokenize.c: `sbprun tokenize`: texts and rows to ids, and back, line by line. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/files/hub_fetch.h"
#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/commands.h"
#include "runtime/cli/sbprun/inputs.h"
#include "runtime/cli/sbprun/texts.h"
#include "runtime/data/jsonl.h"
#include "runtime/data/source/source.h"
#include "runtime/data/tokenize.h"
#include "runtime/options/options.h"

static const char usage[] =
    "usage: sbprun tokenize MODEL_DIR|FILE.gguf|PLAN [options]\n\n"
    "Reads lines from standard input and writes a line for each. A JSON string "
    "becomes its ids as a JSON array; a\n"
    "row becomes {\"input_ids\", \"labels\"} as in training, labels not shifted, "
    "-100 where there is none, with what\n"
    "is known of its tokens; a pair {\"chosen\": {..}, \"rejected\": {..}}. With\n"
    "--render conversations become the text of the chat template, as JSON strings; with\n"
    "--decode arrays of ids become JSON strings. A line that fails gives "
    "{\"error\"}, and exit status 1 at the\n"
    "end.\n";

typedef struct tokenize_job {
    sbp_arena *arena;
    sbp_diag *diag;
    int argc;
    char *const *argv;
    sbp_options *options;
    sbp_texts texts;
    sbp_columns columns; /* names that rows have otherwise */
    int64_t lines, failed;
} tokenize_job;

/* One line. */
typedef struct line_job {
    tokenize_job *all;
    sbp_arena *arena;
    sbp_diag *diag; /* of this line */
    const char *text;
    size_t length;
    int64_t line;
    sbp_text out;
} line_job;

static sbp_status decode(line_job *job, const sbp_json *root) {
    const sbp_json *array;
    const char *text;
    size_t length;
    SBP_TRY(sbp_json_as_array(job->diag, root, &array));
    int32_t *ids = SBP_NEW_ARRAY(job->arena, int32_t, array->count);
    for (int64_t i = 0; i < array->count; i++) {
        int64_t id;
        SBP_TRY(sbp_json_as_i64(job->diag, &array->items[i], &id));
        if (id < 0 || id > INT32_MAX)
            return sbp_json_fail(job->diag, &array->items[i], "expected an id, found %lld", (long long)id);
        ids[i] = (int32_t)id;
    }
    SBP_TRY(sbp_tokenizer_decode(job->all->texts.tokenizer, job->arena, job->diag, ids, array->count, false,
                                 &text, &length));
    sbp_json_writer w = sbp_json_writer_on(&job->out);
    sbp_json_write_bytes(&w, NULL, text, length);
    return SBP_OK;
}

static void write_number(sbp_json_writer *w, const char *key, double value) {
    sbp_json node = {.kind = isfinite(value) ? SBP_JSON_REAL : SBP_JSON_NULL, .real = value};
    sbp_json_write_value(w, key, &node);
}

static void write_document(sbp_json_writer *w, const char *key, const sbp_document *d) {
    sbp_json_write_object(w, key);
    sbp_json_write_ids(w, "input_ids", d->ids, d->count);
    sbp_json_write_ids(w, "labels", d->labels, d->count);
    for (int32_t k = 0; k < d->column_count; k++) {
        sbp_json_write_array(w, d->columns[k].name);
        for (int64_t i = 0; i < d->count; i++)
            write_number(w, NULL, d->columns[k].values[i]);
        sbp_json_write_end(w);
    }
    for (int32_t k = 0; k < d->number_count; k++)
        write_number(w, d->numbers[k].name, d->numbers[k].value);
    sbp_json_write_end(w);
}

/* The documents of a row: one of a text or an answer as it is, others by the names of their parts. */
static void write_documents(sbp_json_writer *w, const sbp_documents *made) {
    if (made->count == 1 && strcmp(made->documents->part, "prompt") != 0) {
        write_document(w, NULL, made->documents);
        return;
    }
    sbp_json_write_object(w, NULL);
    for (int32_t i = 0; i < made->count; i++)
        write_document(w, made->documents[i].part, &made->documents[i]);
    sbp_json_write_end(w);
}

static sbp_status render_row(line_job *job, sbp_document_maker *maker, const sbp_row *row) {
    bool pair = row->form.type == SBP_ROW_PAIR;
    sbp_json_writer w = sbp_json_writer_on(&job->out);
    if (pair)
        sbp_json_write_object(&w, NULL);
    for (int32_t which = 0; which < (pair ? 2 : 1); which++) {
        sbp_rendering text;
        SBP_TRY(sbp_row_render(maker, job->arena, row, which,
                               sbp_options_on(job->all->options, SBP_OPT_ADD_GENERATION_PROMPT), &text));
        sbp_json_write_bytes(&w, !pair ? NULL : which ? "rejected" : "chosen", text.text, text.length);
    }
    if (pair)
        sbp_json_write_end(&w);
    return SBP_OK;
}

static sbp_status encode_row(line_job *job, const char *where, const sbp_json *root) {
    sbp_row_options options = {.fields = true};
    sbp_row_form form = {0};
    sbp_row row;
    sbp_documents made;
    sbp_document_maker maker = {.tokenizer = job->all->texts.tokenizer,
                                .loss_on = sbp_texts_loss_on(job->all->options),
                                .reasoning = sbp_texts_reasoning(job->all->options),
                                .diag = job->diag,
                                .eos = job->all->texts.chat.eos,
                                .chat_options = &job->all->texts.chat};
    SBP_TRY(sbp_columns_rename(&job->all->columns, job->arena, job->diag, where, root, true, &root));
    SBP_TRY(sbp_row_read(job->arena, job->diag, where, root, &options, &form, &row));
    if (sbp_options_on(job->all->options, SBP_OPT_RENDER))
        return render_row(job, &maker, &row);
    SBP_TRY(sbp_documents_make(&maker, job->arena, &row, &made));
    sbp_json_writer w = sbp_json_writer_on(&job->out);
    write_documents(&w, &made);
    return SBP_OK;
}

static sbp_status handle_body(void *user) {
    line_job *job = user;
    const char *where = sbp_arena_printf(job->arena, "standard input:%lld", (long long)job->line);
    const sbp_json *root;
    sbp_encoding encoding;
    sbp_text_init(&job->out, job->arena);
    SBP_TRY(sbp_json_parse(job->arena, job->diag, where, job->text, job->length, SBP_JSON_ROW, &root));
    if (sbp_options_on(job->all->options, SBP_OPT_DECODE))
        return decode(job, root);
    if (root->kind != SBP_JSON_STRING || sbp_options_on(job->all->options, SBP_OPT_RENDER))
        return encode_row(job, where, root);
    SBP_TRY(sbp_tokenizer_encode(job->all->texts.tokenizer, job->arena, job->diag, root->string,
                                 (size_t)root->count, SBP_ADD_SPECIAL_TOKENS, &encoding));
    sbp_json_writer w = sbp_json_writer_on(&job->out);
    sbp_json_write_ids(&w, NULL, encoding.ids, encoding.count);
    return SBP_OK;
}

/* The first message without its "error: ". */
static sbp_status put_error(void *user) {
    line_job *job = user;
    const char *message = sbp_diag_text(job->diag, SBP_ERROR);
    message += strncmp(message, "error: ", 7) == 0 ? 7 : 0;
    sbp_text_init(&job->out, job->arena);
    sbp_json_writer w = sbp_json_writer_on(&job->out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_bytes(&w, "error", message, strcspn(message, "\n"));
    sbp_json_write_end(&w);
    return SBP_OK;
}

/* What is not the line's fault: why, as far as there was memory to say it. */
static void fail_line(const tokenize_job *all, const line_job *job, sbp_status status) {
    const char *text = job->diag ? sbp_diag_text(job->diag, SBP_ERROR) : "";
    char limit[100];
    if (*text)
        sbp_fail(all->diag, status, "standard input:%lld: %.*s", (long long)job->line,
                 (int)strcspn(text, "\n") - 7, text + 7); /* behind "error: " */
    else if (status == SBP_MACHINE)
        sbp_fail(all->diag, status, "standard input:%lld: out of memory: %s", (long long)job->line,
                 sbp_machine_memory_text(limit, sizeof limit));
}

static sbp_status visit_line(void *user, const char *path, int64_t line, const char *text, size_t length) {
    tokenize_job *all = user;
    (void)path;
    line_job job = {.all = all,
                    .arena = sbp_arena_create(),
                    .diag = sbp_diag_create(),
                    .text = text,
                    .length = length,
                    .line = line};
    sbp_status status = SBP_MACHINE;
    if (job.arena && job.diag) {
        status = sbp_guard(job.arena, job.diag, handle_body, &job);
        all->lines++;
        if (status == SBP_INPUT || status == SBP_USAGE) {
            all->failed++;
            status = sbp_guard(job.arena, all->diag, put_error, &job);
        }
    }
    if (status == SBP_OK)
        status = sbp_print(all->diag, job.out.data, job.out.length);
    if (status == SBP_OK)
        status = sbp_print(all->diag, "\n", 1);
    else
        fail_line(all, &job, status);
    sbp_arena_destroy(job.arena);
    sbp_diag_destroy(job.diag);
    return status;
}

/* ---- the command ------------------------------------------------------------------------------------ */

static sbp_status command_body(void *user) {
    tokenize_job *job = user;
    SBP_TRY(sbp_options_parse(job->arena, job->diag, "sbprun tokenize", SBP_PHASE_TOKENIZE, job->argc,
                              job->argv, &job->options));
    if (sbp_options_on(job->options, SBP_OPT_HELP)) {
        sbp_text text;
        sbp_text_init(&text, job->arena);
        sbp_text_add(&text, "%s", usage);
        sbp_options_print_help(&text, SBP_PHASE_TOKENIZE);
        return sbp_print(job->diag, text.data, text.length);
    }
    if (sbp_options_arg_count(job->options) != 1)
        return sbp_fail(job->diag, SBP_USAGE,
                        "expected one model or plan, found %d arguments; see sbprun tokenize --help",
                        sbp_options_arg_count(job->options));
    SBP_TRY(sbp_columns_parse(job->arena, job->diag, sbp_options_text(job->options, SBP_OPT_COLUMNS),
                              &job->columns));
    const char *model;
    SBP_TRY(sbp_hub_model(job->arena, job->diag, sbp_options_arg(job->options, 0), false, &model));
    SBP_TRY(sbp_texts_open(job->arena, job->diag, job->options, model, false, &job->texts));
    SBP_TRY(sbp_lines_read(job->diag, "-", visit_line, job));
    if (job->failed > 0)
        return sbp_fail(job->diag, SBP_INPUT, "%lld of %lld lines failed", (long long)job->failed,
                        (long long)job->lines);
    return SBP_OK;
}

sbp_status sbp_command_tokenize(sbp_diag *diag, int argc, char *const *argv) {
    tokenize_job job = {.arena = sbp_arena_create(), .diag = diag, .argc = argc, .argv = argv};
    if (!job.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the tokenizer");
    sbp_status status = sbp_guard(job.arena, diag, command_body, &job);
    sbp_arena_destroy(job.arena);
    return status;
}

sbp_status sbp_print(sbp_diag *diag, const char *text, size_t length) {
    if (fwrite(text, 1, length, stdout) == length)
        return SBP_OK;
    return sbp_fail(diag, SBP_IO, "cannot write to standard output: %s", strerror(errno));
}

sbp_status sbp_print_now(sbp_diag *diag, const char *text, size_t length) {
    SBP_TRY(sbp_print(diag, text, length));
    return fflush(stdout) == 0 ? SBP_OK : sbp_fail(diag, SBP_IO, "cannot write to standard output");
}
