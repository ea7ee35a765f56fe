/* marks.c: for compare_marks.py: what the assistant said, by marked copies and by differences of renderings.
 * Standard input has lines {"template", "variables": {"messages", "tools", ..}, "date"}; standard output
 * {"text", "spans" (bytes)} or {"error"}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/chat.h"

/* What belongs to the row, and what the row gives to the template besides. */
static const sbp_json *settings_of(sbp_arena *arena, const sbp_json *variables) {
    sbp_json *out = SBP_NEW(arena, sbp_json), *items = SBP_NEW_ARRAY(arena, sbp_json, variables->count);
    *out = *variables;
    out->items = items;
    out->table = NULL;
    out->count = 0;
    for (int64_t i = 0; i < variables->count; i++) {
        const char *key = variables->items[i].key;
        if (strcmp(key, "messages") != 0 && strcmp(key, "tools") != 0 &&
            strcmp(key, "add_generation_prompt") != 0)
            items[out->count++] = variables->items[i];
    }
    return out;
}

static sbp_status render_line(sbp_arena *arena, sbp_diag *diag, const char *line, size_t length,
                              sbp_text *out) {
    const sbp_json *root, *variables, *messages;
    sbp_rendering result;
    sbp_chat *chat;
    SBP_TRY(sbp_json_parse(arena, diag, "line", line, length, SBP_JSON_ROW, &root));
    const sbp_json *text = sbp_json_member(root, "template");
    SBP_TRY(sbp_json_get_object(diag, root, "variables", SBP_JSON_REQUIRED, &variables));
    SBP_TRY(sbp_json_get_array(diag, variables, "messages", SBP_JSON_REQUIRED, &messages));
    const sbp_json *tools = sbp_json_member(variables, "tools");
    sbp_chat_options options = {
        .source = {.text = text->string, .length = (size_t)text->count, .name = "template"},
        .date = sbp_json_member(root, "date")->string,
        .assistant = true,
        .quiet = true};
    SBP_TRY(sbp_chat_open(arena, diag, &options, &chat));
    sbp_conversation talk = {.where = "row",
                             .messages = messages,
                             .tools = tools && tools->kind == SBP_JSON_ARRAY ? tools : NULL,
                             .kwargs = settings_of(arena, variables)};
    SBP_TRY(sbp_chat_render_marked(chat, arena, diag, &talk, &result));
    sbp_text_add(out, "{\"text\": ");
    sbp_json_add_string(out, result.text, result.length);
    sbp_text_add(out, ", \"spans\": [");
    for (int32_t i = 0; i < result.span_count; i++)
        sbp_text_add(out, "%s[%lld, %lld]", i ? ", " : "", (long long)result.spans[i][0],
                     (long long)result.spans[i][1]);
    sbp_text_add(out, "]}");
    return SBP_OK;
}

typedef struct line_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *line;
    size_t length;
} line_job;

static sbp_status line_body(void *user) {
    line_job *job = user;
    sbp_text out;
    sbp_text_init(&out, job->arena);
    if (render_line(job->arena, job->diag, job->line, job->length, &out) != SBP_OK) {
        const char *message = sbp_diag_text(job->diag, SBP_ERROR);
        sbp_text_init(&out, job->arena);
        sbp_text_add(&out, "{\"error\": ");
        sbp_json_add_string(&out, message, strcspn(message, "\n"));
        sbp_text_add(&out, "}");
    }
    puts(out.data);
    return SBP_OK;
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t got;
    int failed = 0;
    while ((got = getline(&line, &capacity, stdin)) > 0) {
        line_job job = {sbp_arena_create(), sbp_diag_create(), line, (size_t)got};
        if (!job.arena || !job.diag || sbp_guard(job.arena, job.diag, line_body, &job) != SBP_OK)
            failed = 1;
        sbp_arena_destroy(job.arena);
        sbp_diag_destroy(job.diag);
    }
    free(line);
    return failed;
}
