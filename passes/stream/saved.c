/* saved.c: names of the saved set, for messages and summaries. */
#include <string.h>

#include "passes/lower/lowering.h"

size_t sbp_saved_base_length(const char *name) {
    size_t length = strlen(name), end = length;
    while (end > 0 && name[end - 1] >= '0' && name[end - 1] <= '9')
        end--;
    return end > 1 && end < length && name[end - 1] == '.' ? end - 1 : length;
}

bool sbp_saved_name_matches(const char *name, const char *asked) {
    size_t length = strlen(asked);
    return strcmp(name, asked) == 0 ||
           (sbp_saved_base_length(name) == length && strncmp(name, asked, length) == 0);
}

bool sbp_saved_is_state(const sbp_saved *saved) {
    return saved->rows.c[SBP_N] != 0;
}

typedef struct name_list {
    sbp_arena *arena;
    sbp_map seen;
    const char *separator;
    sbp_text *out;
    bool any;
} name_list;

static void add_name(name_list *list, const char *name) {
    const char *base = sbp_arena_strndup(list->arena, name, sbp_saved_base_length(name));
    if (sbp_map_get(&list->seen, base) >= 0)
        return;
    sbp_map_set(&list->seen, base, 1);
    sbp_text_add(list->out, "%s%s", list->any ? list->separator : "", base);
    list->any = true;
}

static const char *saved_name(const sbp_saved *saved) {
    if (sbp_saved_is_state(saved))
        return SBP_SAVE_STATES;
    return saved->is_carry && strncmp(saved->name, "carry_", 6) == 0 ? saved->name + 6 : saved->name;
}

void sbp_saved_list(const sbp_pipeline *p, const char *separator, sbp_text *out) {
    name_list list = {.arena = p->arena, .separator = separator, .out = out};
    sbp_map_init(&list.seen, p->arena);
    for (int32_t f = 0; f < p->module->func_count; f++)
        for (int32_t i = 0; i < p->results->segments.kinds[f].saved_count; i++)
            add_name(&list, saved_name(&p->results->segments.kinds[f].saved[i]));
}

bool sbp_saved_name_exists(const sbp_pipeline *p, const char *asked) {
    for (int32_t f = 0; f < p->module->func_count; f++)
        for (int32_t i = 0; i < p->results->segments.kinds[f].saved_count; i++)
            if (sbp_saved_name_matches(saved_name(&p->results->segments.kinds[f].saved[i]), asked) ||
                strcmp(asked, SBP_SAVE_ATTENTION) == 0)
                return true;
    return false;
}

bool sbp_saved_is_numbered(const char *name) {
    return name[0] == 't' && name[1] != 0 && name[1 + strspn(name + 1, "0123456789")] == 0;
}

void sbp_saved_names(const sbp_pipeline *p, sbp_text *out) {
    name_list list = {.arena = p->arena, .separator = ", ", .out = out};
    sbp_map_init(&list.seen, p->arena);
    for (int32_t f = 0; f < p->module->func_count; f++)
        for (int32_t i = 0; i < p->results->segments.kinds[f].keepable_count; i++)
            if (!sbp_saved_is_numbered(p->results->segments.kinds[f].keepable[i]))
                add_name(&list, p->results->segments.kinds[f].keepable[i]);
}

bool sbp_saved_name_is_keepable(const sbp_pipeline *p, const char *asked) {
    for (int32_t f = 0; f < p->module->func_count; f++)
        for (int32_t i = 0; i < p->results->segments.kinds[f].keepable_count; i++)
            if (sbp_saved_name_matches(p->results->segments.kinds[f].keepable[i], asked))
                return true;
    return false;
}
