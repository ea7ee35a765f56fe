/* template_source.c: templates of directories and files. */
#include "frontends/formats/template/template_source.h"

#include <string.h>

#include "frontends/formats/weights/gguf.h"
#include "ir/base/file.h"
#include "ir/base/json.h"

static sbp_status read_text(sbp_arena *arena, sbp_diag *diag, const char *path, const char **text,
                            size_t *length) {
    const char *data;
    SBP_TRY(sbp_file_read(arena, diag, path, &data, length));
    *text = sbp_arena_strndup(arena, data, *length);
    return SBP_OK;
}

/* chat_template of tokenizer_config.json; NULL: none. */
static sbp_status config_field(sbp_arena *arena, sbp_diag *diag, const char *directory,
                               const sbp_json **out) {
    const sbp_json *root;
    const char *path = sbp_file_join(arena, directory, "tokenizer_config.json");
    *out = NULL;
    if (!sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(arena, diag, path, 0, &root));
    *out = sbp_json_member(root, "chat_template");
    return SBP_OK;
}

/* The template of a name in a list of {"name", "template"}; NULL: none. */
static const sbp_json *named(const sbp_json *list, const char *name) {
    for (int64_t i = 0; list && list->kind == SBP_JSON_ARRAY && i < list->count; i++) {
        const sbp_json *of = sbp_json_member(&list->items[i], "name");
        const sbp_json *text = sbp_json_member(&list->items[i], "template");
        if (of && of->kind == SBP_JSON_STRING && text && text->kind == SBP_JSON_STRING &&
            strcmp(of->string, name) == 0)
            return text;
    }
    return NULL;
}

static const char *additional(sbp_arena *arena, const char *directory, const char *name) {
    return sbp_arena_printf(arena, "%s/additional_chat_templates/%s.jinja", directory, name);
}

static sbp_status of_directory(sbp_arena *arena, sbp_diag *diag, const char *path, sbp_template_source *out) {
    const sbp_json *field;
    const char *file = sbp_file_join(arena, path, "chat_template.jinja"),
               *tools = additional(arena, path, "tool_use");
    SBP_TRY(config_field(arena, diag, path, &field));
    const sbp_json *text = field && field->kind == SBP_JSON_STRING ? field : named(field, "default");
    const sbp_json *tool_text = named(field, "tool_use");
    if (sbp_file_exists(file)) {
        SBP_TRY(read_text(arena, diag, file, &out->text, &out->length));
        out->name = file;
    } else if (text) {
        *out = (sbp_template_source){.text = text->string, .length = (size_t)text->count};
        out->name = sbp_file_join(arena, path, "tokenizer_config.json");
    }
    if (sbp_file_exists(tools))
        return read_text(arena, diag, tools, &out->tool_text, &out->tool_length);
    if (tool_text) {
        out->tool_text = tool_text->string;
        out->tool_length = (size_t)tool_text->count;
    }
    return SBP_OK;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

sbp_status sbp_template_source_of_model(sbp_arena *arena, sbp_diag *diag, const char *path,
                                        sbp_template_source *out) {
    *out = (sbp_template_source){0};
    if (sbp_directory_exists(path))
        return of_directory(arena, diag, path, out);
    if (!ends_with(path, ".gguf"))
        return SBP_OK;
    const sbp_gguf *gguf;
    SBP_TRY(sbp_gguf_open(arena, diag, path, &gguf));
    const sbp_gguf_value *value = sbp_gguf_find(gguf, "tokenizer.chat_template");
    if (value && value->type == SBP_GGUF_STRING && !value->is_array)
        *out = (sbp_template_source){
            .text = value->strings[0].data, .length = (size_t)value->strings[0].length, .name = path};
    return SBP_OK;
}

static sbp_status find_named(sbp_arena *arena, sbp_diag *diag, const char *name, const char *model,
                             sbp_template_source *out) {
    const sbp_json *field = NULL;
    bool is_name = !strchr(name, '/') && name[0] != '.';
    const char *file = model && is_name ? additional(arena, model, name) : NULL;
    if (file && sbp_file_exists(file)) {
        out->name = file;
        return read_text(arena, diag, file, &out->text, &out->length);
    }
    if (model && sbp_directory_exists(model))
        SBP_TRY(config_field(arena, diag, model, &field));
    const sbp_json *text = named(field, name);
    if (!text)
        return sbp_fail(
            diag, SBP_USAGE,
            "--chat-template %s: no file, no directory with a template, and no template of that name in "
            "%s",
            name, model ? model : "the model, whose directory is unknown");
    *out = (sbp_template_source){.text = text->string, .length = (size_t)text->count, .name = name};
    return SBP_OK;
}

sbp_status sbp_template_source_find(sbp_arena *arena, sbp_diag *diag, const char *request, const char *model,
                                    sbp_template_source *out) {
    *out = (sbp_template_source){0};
    if (strstr(request, "{%") || strstr(request, "{{")) { /* itself, as files of TRL's have it */
        *out = (sbp_template_source){.text = request, .length = strlen(request), .name = "given as text"};
        return SBP_OK;
    }
    if (sbp_directory_exists(request)) {
        SBP_TRY(of_directory(arena, diag, request, out));
        if (!out->text)
            return sbp_fail(diag, SBP_INPUT, "--chat-template %s: the directory has no chat template",
                            request);
        return SBP_OK;
    }
    if (!sbp_file_exists(request))
        return find_named(arena, diag, request, model, out);
    out->name = request;
    return read_text(arena, diag, request, &out->text, &out->length);
}
