/* render_lines.c: templates over conversations, for compare.py: standard input has lines
 * {"template": text, "variables": {..}, "date": ".."}, standard output {"text", "spans"} (bytes) or
 * {"error"}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/template/template.h"

static sbp_status render_line(sbp_arena *arena, sbp_diag *diag, const char *line, size_t length,
                              sbp_text *out) {
    const sbp_json *root, *variables;
    const sbp_template *template;
    sbp_rendering result;
    SBP_TRY(sbp_json_parse(arena, diag, "line", line, length, SBP_JSON_ROW, &root));
    const sbp_json *text = sbp_json_member(root, "template");
    SBP_TRY(sbp_json_get_object(diag, root, "variables", SBP_JSON_REQUIRED, &variables));
    SBP_TRY(sbp_template_parse(arena, diag, "template", text->string, (size_t)text->count, &template));
    sbp_template_variable *list = SBP_NEW_ARRAY(arena, sbp_template_variable, variables->count);
    for (int64_t i = 0; i < variables->count; i++)
        list[i] = (sbp_template_variable){.name = variables->items[i].key, .json = &variables->items[i]};
    const char *date = NULL;
    SBP_TRY(sbp_json_get_string(diag, root, "date", SBP_JSON_REQUIRED, &date));
    sbp_template_call call = {.variables = list, .variable_count = (int32_t)variables->count, .date = date};
    SBP_TRY(sbp_template_render(template, arena, diag, &call, &result));
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
