/* yaml.c: libyaml's documents copied into an arena. */
#include "ir/base/yaml.h"

#include <string.h>
#include <yaml.h>

enum { DEEPEST = 40, MOST_NODES = 200000 };

typedef struct conversion {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_status status;
    const char *file;
    yaml_document_t *document;
    int64_t nodes;
    const sbp_yaml *root;
} conversion;

static sbp_status convert(conversion *c, int index, int depth, sbp_yaml *out);

static sbp_status scalar_text(conversion *c, const yaml_node_t *node, const char **out) {
    const char *text = (const char *)node->data.scalar.value;
    size_t length = node->data.scalar.length;
    if (memchr(text, 0, length))
        return sbp_fail(c->diag, c->status, "%s:%d: a NUL in a text", c->file,
                        (int)node->start_mark.line + 1);
    *out = sbp_arena_strndup(c->arena, text, length);
    return SBP_OK;
}

static sbp_status convert_map(conversion *c, const yaml_node_t *node, int depth, sbp_yaml *out) {
    const yaml_node_pair_t *pairs = node->data.mapping.pairs.start;
    out->count = (int32_t)(node->data.mapping.pairs.top - pairs);
    sbp_yaml *items = SBP_NEW_ARRAY(c->arena, sbp_yaml, out->count);
    for (int32_t i = 0; i < out->count; i++) {
        const yaml_node_t *key = yaml_document_get_node(c->document, pairs[i].key);
        if (key->type != YAML_SCALAR_NODE)
            return sbp_fail(c->diag, c->status, "%s:%d: expected 'key: value'", c->file,
                            (int)key->start_mark.line + 1);
        SBP_TRY(convert(c, pairs[i].value, depth, &items[i]));
        SBP_TRY(scalar_text(c, key, &items[i].key));
        items[i].line = (int32_t)key->start_mark.line + 1;
    }
    out->items = items;
    return SBP_OK;
}

static sbp_status convert(conversion *c, int index, int depth, sbp_yaml *out) {
    const yaml_node_t *node = yaml_document_get_node(c->document, index);
    *out = (sbp_yaml){.line = (int32_t)node->start_mark.line + 1};
    if (depth > DEEPEST || ++c->nodes > MOST_NODES)
        return sbp_fail(c->diag, c->status, "%s:%d: too many values, or one within another too often",
                        c->file, out->line);
    if (node->type == YAML_MAPPING_NODE) {
        out->kind = SBP_YAML_MAP;
        return convert_map(c, node, depth + 1, out);
    }
    if (node->type == YAML_SCALAR_NODE) {
        out->kind = SBP_YAML_SCALAR;
        out->plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        return scalar_text(c, node, &out->text);
    }
    const yaml_node_item_t *from = node->data.sequence.items.start;
    out->kind = SBP_YAML_LIST;
    out->count = (int32_t)(node->data.sequence.items.top - from);
    sbp_yaml *items = SBP_NEW_ARRAY(c->arena, sbp_yaml, out->count);
    for (int32_t i = 0; i < out->count; i++)
        SBP_TRY(convert(c, from[i], depth + 1, &items[i]));
    out->items = items;
    return SBP_OK;
}

static sbp_status convert_document(void *user) {
    conversion *c = user;
    if (!yaml_document_get_root_node(c->document))
        return SBP_OK;
    sbp_yaml *root = SBP_NEW(c->arena, sbp_yaml);
    SBP_TRY(convert(c, 1, 0, root)); /* nodes are numbered from 1, the root is the first */
    c->root = root;
    return SBP_OK;
}

static sbp_status parse_failed(const conversion *c, const yaml_parser_t *parser) {
    if (parser->error == YAML_MEMORY_ERROR)
        return sbp_fail(c->diag, SBP_MACHINE, "out of memory for '%s'", c->file);
    return sbp_fail(c->diag, c->status, "%s:%d: not valid YAML: %s%s%s", c->file,
                    (int)parser->problem_mark.line + 1, parser->problem ? parser->problem : "an error",
                    parser->context ? ", " : "", parser->context ? parser->context : "");
}

sbp_status sbp_yaml_parse(sbp_arena *arena, sbp_diag *diag, sbp_status status, const char *file,
                          const char *text, size_t length, const sbp_yaml **out) {
    yaml_parser_t parser;
    yaml_document_t document;
    conversion c = {.arena = arena, .diag = diag, .status = status, .file = file, .document = &document};
    *out = NULL;
    if (!yaml_parser_initialize(&parser))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for '%s'", file);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, length);
    sbp_status result;
    if (!yaml_parser_load(&parser, &document)) {
        result = parse_failed(&c, &parser);
    } else { /* what the arena cannot hold ends the conversion, not the document */
        result = sbp_guard(arena, diag, convert_document, &c);
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    *out = c.root;
    return result;
}

const sbp_yaml *sbp_yaml_member(const sbp_yaml *map, const char *key) {
    for (int32_t i = 0; map && map->kind == SBP_YAML_MAP && i < map->count; i++)
        if (strcmp(map->items[i].key, key) == 0)
            return &map->items[i];
    return NULL;
}
