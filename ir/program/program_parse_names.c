/* program_parse_names.c: the smallest things that a program is read of: names, words, numbers, symbols. */
#include "ir/program/program_parse.h"

#include <string.h>

/* The lexer stands behind a name that turns out to be wrong, maybe on the next line. */
sbp_status sbp_parser_name(sbp_program_parser *p, const char **out) {
    p->name_line = p->lexer.line;
    return sbp_lexer_name(&p->lexer, out);
}

sbp_status sbp_parser_fail_name(sbp_program_parser *p, const char *what, const char *name) {
    p->lexer.line = p->name_line;
    return sbp_lexer_fail(&p->lexer, "%s '%.80s'", what, name);
}

sbp_status sbp_parser_int32(sbp_program_parser *p, int64_t least, int64_t most, int32_t *out) {
    int64_t value;
    SBP_TRY(sbp_lexer_int(&p->lexer, &value));
    if (value < least || value > most)
        return sbp_lexer_fail(&p->lexer, "%lld is not within %lld to %lld", (long long)value,
                              (long long)least, (long long)most);
    *out = (int32_t)value;
    return SBP_OK;
}

sbp_status sbp_parser_known_name(sbp_program_parser *p, const sbp_map *map, const char *what, int32_t *out) {
    const char *name;
    SBP_TRY(sbp_parser_name(p, &name));
    *out = sbp_map_get(map, name);
    return *out >= 0 ? SBP_OK : sbp_parser_fail_name(p, sbp_arena_printf(p->arena, "no %s", what), name);
}

/* One of `words`. */
sbp_status sbp_parser_word(sbp_program_parser *p, const char *const *words, int count, const char *what,
                           int *out) {
    for (int w = 0; w < count; w++)
        if (sbp_lexer_is(&p->lexer, words[w])) {
            *out = w;
            return sbp_lexer_next(&p->lexer);
        }
    return sbp_lexer_fail(&p->lexer, "expected %s, found '%.60s'", what, p->lexer.text);
}

bool sbp_parser_is_symbol(const sbp_lexer *lexer, sbp_symbol *out) {
    for (int s = 1; s < SBP_SYMBOL_COUNT; s++)
        if (sbp_lexer_is(lexer, sbp_symbol_name((sbp_symbol)s))) {
            *out = (sbp_symbol)s;
            return true;
        }
    return false;
}

sbp_status sbp_parser_symbol(sbp_program_parser *p, sbp_symbol *out) {
    if (!sbp_parser_is_symbol(&p->lexer, out))
        return sbp_lexer_fail(&p->lexer, "expected T, S, C or H, found '%.60s'", p->lexer.text);
    return sbp_lexer_next(&p->lexer);
}
