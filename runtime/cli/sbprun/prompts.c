/* prompts.c: the prompts of `sbprun generate`, as tokens. */
#include "runtime/cli/sbprun/prompts.h"

#include <string.h>

#include "ir/base/json_write.h"
#include "runtime/data/source/source.h"

typedef struct reading {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_document_maker maker;
    sbp_columns columns;
    int32_t most;
    sbp_prompts *out;
} reading;

/* Messages up to the last turn of the assistant, which is to be written anew. */
static int64_t asked_messages(const sbp_json *messages) {
    int64_t count = messages->kind == SBP_JSON_ARRAY ? messages->count : 0;
    while (count > 1) {
        const sbp_json *role = sbp_json_member(&messages->items[count - 1], "role");
        if (!role || role->kind != SBP_JSON_STRING || strcmp(role->string, "assistant") != 0)
            break;
        count--;
    }
    return count;
}

/* The row without its answer: the prompt alone, or conversation or text as one. */
static const sbp_json *question_of(sbp_arena *arena, const sbp_json *row) {
    static const char *const beside[] = {"tools", "chat_template_kwargs"};
    static const char *const asked[] = {"prompt", "prompt_ids", "messages", "text", "input_ids"};
    sbp_json *root = SBP_NEW(arena, sbp_json);
    sbp_json *items = SBP_NEW_ARRAY(arena, sbp_json, SBP_COUNT(beside) + 1);
    *root = *row;
    root->items = items;
    root->table = NULL;
    root->count = 0;
    for (int i = 0; i < SBP_COUNT(asked) && root->count == 0; i++) {
        const sbp_json *member = sbp_json_member(row, asked[i]);
        if (!member)
            continue;
        items[root->count] = *member;
        items[root->count].key = strstr(asked[i], "ids") ? "prompt_ids" : "prompt";
        if (strcmp(asked[i], "messages") == 0)
            items[root->count].count = asked_messages(member);
        root->count++;
    }
    for (int i = 0; i < SBP_COUNT(beside) && root->count > 0; i++) {
        const sbp_json *member = sbp_json_member(row, beside[i]);
        if (member)
            items[root->count++] = *member;
    }
    for (int64_t i = 0; i < root->count; i++)
        items[i].index = (int32_t)i;
    return root->count > 0 ? root : row;
}

static sbp_status add_row(reading *r, const char *where, const sbp_json *root) {
    const sbp_row_options options = {0};
    sbp_row_form form = {0}; /* rows may differ */
    sbp_row row;
    sbp_documents made;
    SBP_TRY(sbp_columns_rename(&r->columns, r->arena, r->diag, where, root, true, &root));
    const sbp_json *question = question_of(r->arena, root), *asked = sbp_json_member(question, "prompt");
    SBP_TRY(sbp_row_read(r->arena, r->diag, where, question, &options, &form, &row));
    if (row.form.type != SBP_ROW_PROMPT)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: expected a prompt, a text or messages to go on from; see sbprun --help rows",
                        where);
    SBP_TRY(sbp_documents_make(&r->maker, r->arena, &row, &made));
    const sbp_document *d = &made.documents[0];
    if (d->count == 0)
        return sbp_fail(r->diag, SBP_INPUT, "%s: the prompt has no tokens", where);
    SBP_PUSH(r->arena, r->out->items, r->out->count, r->out->capacity,
             (sbp_prompt){.where = where,
                          .ids = d->ids,
                          .count = d->count,
                          .row = root,
                          .asked = asked ? asked : sbp_json_member(question, "prompt_ids")});
    r->out->longest = d->count > r->out->longest ? d->count : r->out->longest;
    return SBP_OK;
}

/* The tree of a record, whose names stay when the source is closed: prompts keep it. */
static sbp_status parse_record(reading *r, const sbp_source *source, const sbp_record *record,
                               const sbp_json **out) {
    SBP_TRY(sbp_record_parse(record, r->arena, r->diag, out));
    if (sbp_source_names_stay(source))
        return SBP_OK;
    sbp_text text;
    sbp_text_init(&text, r->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    sbp_json_write_value(&w, NULL, *out);
    return sbp_json_parse(r->arena, r->diag, record->where, text.data, text.length, SBP_JSON_ROW, out);
}

static sbp_status read_rows(reading *r, sbp_source *source) {
    sbp_record record;
    const sbp_json *root;
    for (bool end = false; r->out->count < r->most;) {
        SBP_TRY(sbp_source_read(source, r->arena, r->diag, &record, &end));
        if (end)
            return SBP_OK;
        SBP_TRY(parse_record(r, source, &record, &root));
        SBP_TRY(add_row(r, record.where, root));
    }
    return SBP_OK;
}

static sbp_status read_argument(reading *r, const char *argument) {
    const char *const *files;
    int32_t count;
    SBP_TRY(sbp_source_expand(r->arena, r->diag, argument, &files, &count));
    for (int32_t i = 0; i < count; i++) {
        sbp_source *source;
        SBP_TRY(sbp_source_open(r->diag, files[i], &source));
        sbp_status status = read_rows(r, source);
        sbp_source_close(source);
        SBP_TRY(status);
    }
    return SBP_OK;
}

static sbp_status add_text(reading *r, const char *where, const char *text) {
    sbp_json root = {.kind = SBP_JSON_OBJECT, .key = where, .count = 1};
    sbp_json member = {.kind = SBP_JSON_STRING,
                       .key = "prompt",
                       .parent = &root,
                       .count = (int64_t)strlen(text),
                       .string = text};
    root.items = &member;
    return add_row(r, where, &root);
}

static reading begin_reading(sbp_arena *arena, sbp_diag *diag, const sbp_texts *texts, sbp_prompts *out) {
    return (reading){.arena = arena,
                     .diag = diag,
                     .maker = {.tokenizer = texts->tokenizer,
                               .diag = diag,
                               .eos = texts->chat.eos,
                               .chat_options = &texts->chat,
                               .chat_arena = arena},
                     .most = INT32_MAX,
                     .out = out};
}

static sbp_status read_files(reading *r, const sbp_options *options, sbp_option_id files) {
    SBP_TRY(sbp_columns_parse(r->arena, r->diag, sbp_options_text(options, SBP_OPT_COLUMNS), &r->columns));
    if (files == SBP_OPT_SAMPLE_PROMPTS) /* written for it, perhaps, with the names of here */
        sbp_columns_allow_missing(r->arena, &r->columns);
    for (int32_t i = 0; i < sbp_options_list_count(options, files); i++)
        SBP_TRY(read_argument(r, sbp_options_list_at(options, files, i)));
    if (r->out->count == 0)
        return sbp_fail(r->diag, SBP_INPUT, "--%s has no rows", sbp_option_name(files));
    return SBP_OK;
}

sbp_status sbp_prompts_add(sbp_arena *arena, sbp_diag *diag, const sbp_texts *texts, const char *where,
                           const sbp_json *row, sbp_prompts *out) {
    reading r = begin_reading(arena, diag, texts, out);
    return add_row(&r, where, row);
}

sbp_status sbp_prompts_read(sbp_arena *arena, sbp_diag *diag, const sbp_options *options,
                            const sbp_texts *texts, sbp_prompts *out) {
    reading r = begin_reading(arena, diag, texts, out);
    int32_t given = sbp_options_list_count(options, SBP_OPT_PROMPT);
    *out = (sbp_prompts){0};
    if (given + sbp_options_list_count(options, SBP_OPT_DATA) == 0)
        return sbp_fail(diag, SBP_USAGE, "what to go on from is missing: give --prompt TEXT or --data FILE");
    for (int32_t i = 0; i < given; i++)
        SBP_TRY(add_text(&r, sbp_arena_printf(arena, "--prompt %d", i + 1),
                         sbp_options_list_at(options, SBP_OPT_PROMPT, i)));
    return read_files(&r, options, SBP_OPT_DATA);
}

sbp_status sbp_prompts_read_files(sbp_arena *arena, sbp_diag *diag, const sbp_options *options,
                                  const sbp_texts *texts, sbp_option_id files, int32_t most,
                                  sbp_prompts *out) {
    reading r = begin_reading(arena, diag, texts, out);
    r.most = most;
    *out = (sbp_prompts){0};
    return read_files(&r, options, files);
}
