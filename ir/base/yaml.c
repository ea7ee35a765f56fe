/* yaml.c: libyaml's events to a tree in an arena. */
#include "ir/base/yaml.h"

#include <string.h>
#include <yaml.h>

enum { DEEPEST = 40, MOST_NODES = 200000, MOST_DIRECTIVES = 100 };

/* What an anchor names. */
typedef struct anchored {
    sbp_yaml node;
    int64_t nodes; /* with all that is in it */
    int depth;     /* below it */
    bool whole;    /* false: it is being read */
} anchored;

/* Events, not libyaml's documents: those are built whole before one can see how deep they are, in time that
 * grows with the square of that. */
typedef struct conversion {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_status status;
    const char *file;
    yaml_parser_t parser;
    yaml_event_t event; /* at hand; of type NO_EVENT: none */
    int64_t nodes;
    int deepest; /* of what was read since this was set */
    sbp_map names;
    anchored *anchors;
    int32_t anchor_count, anchor_capacity;
    const sbp_yaml *root;
} conversion;

static int line_of(const conversion *c) {
    return (int)c->event.start_mark.line + 1;
}

static sbp_status fail_at(const conversion *c, int line, const char *what) {
    return sbp_fail(c->diag, c->status, "%s:%d: %s", c->file, line, what);
}

static sbp_status parse_failed(const conversion *c) {
    const yaml_parser_t *parser = &c->parser;
    if (parser->error == YAML_MEMORY_ERROR)
        return sbp_fail(c->diag, SBP_MACHINE, "out of memory for '%s'", c->file);
    return sbp_fail(c->diag, c->status, "%s:%d: not valid YAML: %s%s%s", c->file,
                    (int)parser->problem_mark.line + 1, parser->problem ? parser->problem : "an error",
                    parser->context ? ", " : "", parser->context ? parser->context : "");
}

static sbp_status next(conversion *c) {
    yaml_event_delete(&c->event);
    return yaml_parser_parse(&c->parser, &c->event) ? SBP_OK : parse_failed(c);
}

static sbp_status count(conversion *c, int depth, int64_t nodes) {
    c->nodes += nodes;
    c->deepest = depth > c->deepest ? depth : c->deepest;
    return depth <= DEEPEST && c->nodes <= MOST_NODES
               ? SBP_OK
               : fail_at(c, line_of(c), "too many values, or one within another too often");
}

static sbp_status scalar_text(const conversion *c, const char **out) {
    const char *text = (const char *)c->event.data.scalar.value;
    size_t length = c->event.data.scalar.length;
    if (memchr(text, 0, length))
        return fail_at(c, line_of(c), "a NUL in a text");
    *out = sbp_arena_strndup(c->arena, text, length);
    return SBP_OK;
}

/* The place of what the event at hand names; -1: nothing. */
static sbp_status begin_anchor(conversion *c, const yaml_char_t *name, int32_t *out) {
    *out = -1;
    if (!name)
        return SBP_OK;
    if (sbp_map_get(&c->names, (const char *)name) >= 0)
        return fail_at(c, line_of(c), "not valid YAML: found duplicate anchor");
    *out = c->anchor_count;
    sbp_map_set(&c->names, sbp_arena_strdup(c->arena, (const char *)name), *out);
    SBP_PUSH(c->arena, c->anchors, c->anchor_count, c->anchor_capacity, (anchored){0});
    return SBP_OK;
}

static sbp_status follow_alias(conversion *c, int depth, sbp_yaml *out) {
    int32_t at = sbp_map_get(&c->names, (const char *)c->event.data.alias.anchor);
    if (at < 0)
        return fail_at(c, line_of(c), "not valid YAML: found undefined alias");
    const anchored *a = &c->anchors[at];
    if (!a->whole)
        return fail_at(c, line_of(c), "too many values, or one within another too often");
    SBP_TRY(count(c, depth + a->depth, a->nodes));
    *out = a->node;
    return SBP_OK;
}

static sbp_status read_node(conversion *c, int depth, sbp_yaml *out);

static sbp_status read_list(conversion *c, int depth, sbp_yaml *out) {
    sbp_yaml *items = NULL, item;
    int32_t capacity = 0;
    SBP_TRY(next(c));
    while (c->event.type != YAML_SEQUENCE_END_EVENT) {
        SBP_TRY(read_node(c, depth + 1, &item));
        SBP_PUSH(c->arena, items, out->count, capacity, item);
        SBP_TRY(next(c));
    }
    out->items = items;
    return SBP_OK;
}

static sbp_status read_map(conversion *c, int depth, sbp_yaml *out) {
    sbp_yaml *items = NULL, item, key;
    int32_t capacity = 0;
    SBP_TRY(next(c));
    while (c->event.type != YAML_MAPPING_END_EVENT) {
        int line = line_of(c);
        if (c->event.type != YAML_SCALAR_EVENT && c->event.type != YAML_ALIAS_EVENT)
            return fail_at(c, line, "expected 'key: value'");
        SBP_TRY(read_node(c, depth + 1, &key));
        if (key.kind != SBP_YAML_SCALAR)
            return fail_at(c, key.line, "expected 'key: value'");
        SBP_TRY(next(c));
        SBP_TRY(read_node(c, depth + 1, &item));
        item.key = key.text;
        item.line = key.line;
        SBP_PUSH(c->arena, items, out->count, capacity, item);
        SBP_TRY(next(c));
    }
    out->items = items;
    return SBP_OK;
}

/* The node that the event at hand begins; afterwards its last one is at hand. */
static sbp_status read_node(conversion *c, int depth, sbp_yaml *out) {
    int32_t anchor;
    int64_t before = c->nodes;
    int outer = c->deepest;
    yaml_event_type_t type = c->event.type;
    *out = (sbp_yaml){.line = line_of(c)};
    if (type == YAML_ALIAS_EVENT)
        return follow_alias(c, depth, out);
    c->deepest = depth;
    SBP_TRY(count(c, depth, 1));
    SBP_TRY(begin_anchor(c,
                         type == YAML_SCALAR_EVENT           ? c->event.data.scalar.anchor
                         : type == YAML_SEQUENCE_START_EVENT ? c->event.data.sequence_start.anchor
                                                             : c->event.data.mapping_start.anchor,
                         &anchor));
    if (type == YAML_SCALAR_EVENT) {
        out->kind = SBP_YAML_SCALAR;
        out->plain = c->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        SBP_TRY(scalar_text(c, &out->text));
    } else if (type == YAML_SEQUENCE_START_EVENT) {
        out->kind = SBP_YAML_LIST;
        SBP_TRY(read_list(c, depth, out));
    } else {
        out->kind = SBP_YAML_MAP;
        SBP_TRY(read_map(c, depth, out));
    }
    if (anchor >= 0)
        c->anchors[anchor] = (anchored){*out, c->nodes - before, c->deepest - depth, true};
    c->deepest = outer > c->deepest ? outer : c->deepest;
    return SBP_OK;
}

/* Lines that begin with '%' before the document: each is compared with all before it. */
static sbp_status check_directives(const conversion *c, const char *text, size_t length) {
    int found = 0;
    for (size_t at = 0;
         at < length && (text[at] == '%' || text[at] == '#' || text[at] == '\n' || text[at] == '\r');) {
        found += text[at] == '%';
        if (found > MOST_DIRECTIVES)
            return fail_at(c, found, "too many directives");
        const char *end = memchr(text + at, '\n', length - at);
        at = end ? (size_t)(end - text) + 1 : length;
    }
    return SBP_OK;
}

static sbp_status read_document(void *user) {
    conversion *c = user;
    sbp_map_init(&c->names, c->arena);
    SBP_TRY(next(c)); /* of the stream, of the document, then its node */
    SBP_TRY(next(c));
    if (c->event.type == YAML_STREAM_END_EVENT)
        return SBP_OK;
    SBP_TRY(next(c));
    sbp_yaml *root = SBP_NEW(c->arena, sbp_yaml);
    SBP_TRY(read_node(c, 0, root));
    SBP_TRY(next(c)); /* that it ends there */
    c->root = root;
    return SBP_OK;
}

sbp_status sbp_yaml_parse(sbp_arena *arena, sbp_diag *diag, sbp_status status, const char *file,
                          const char *text, size_t length, const sbp_yaml **out) {
    conversion c = {.arena = arena, .diag = diag, .status = status, .file = file};
    *out = NULL;
    SBP_TRY(check_directives(&c, text, length));
    if (!yaml_parser_initialize(&c.parser))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for '%s'", file);
    yaml_parser_set_encoding(&c.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&c.parser, (const unsigned char *)text, length);
    sbp_status result = sbp_guard(arena, diag, read_document, &c);
    yaml_event_delete(&c.event);
    yaml_parser_delete(&c.parser);
    *out = result == SBP_OK ? c.root : NULL;
    return result;
}

const sbp_yaml *sbp_yaml_member(const sbp_yaml *map, const char *key) {
    for (int32_t i = 0; map && map->kind == SBP_YAML_MAP && i < map->count; i++)
        if (strcmp(map->items[i].key, key) == 0)
            return &map->items[i];
    return NULL;
}
