/* options_names.c: names that nobody knows, those near them, and booleans that are turned off by name. */
#include <string.h>

#include "runtime/options/options_internal.h"

/* Optimal string alignment distance. '_' equals '-'. */
static int distance(sbp_arena *arena, const char *a, const char *b, size_t nb) {
    int na = (int)strlen(a), width = (int)nb + 1;
    int *d = SBP_NEW_ARRAY(arena, int, (na + 1) * width);
    for (int i = 0; i <= na; i++)
        d[i * width] = i;
    for (int j = 0; j < width; j++)
        d[j] = j;
    for (int i = 1; i <= na; i++)
        for (int j = 1; j < width; j++) {
            int cost = !sbp_option_same_name(a + i - 1, 1, b + j - 1, 1);
            int best = d[(i - 1) * width + j - 1] + cost;
            int other = d[(i - 1) * width + j] + 1;
            best = other < best ? other : best;
            other = d[i * width + j - 1] + 1;
            best = other < best ? other : best;
            if (i > 1 && j > 1 && sbp_option_same_name(a + i - 1, 1, b + j - 2, 1) &&
                sbp_option_same_name(a + i - 2, 1, b + j - 1, 1)) {
                other = d[(i - 2) * width + j - 2] + 1;
                best = other < best ? other : best;
            }
            d[i * width + j] = best;
        }
    return d[na * width + width - 1];
}

/* The nearest of names that were tried. */
typedef struct search {
    sbp_arena *arena;
    const char *key, *nearest;
    int distance;
} search;

static void try_name(search *s, const char *name, size_t length) {
    int n = distance(s->arena, s->key, name, length);
    if (n >= s->distance)
        return;
    s->distance = n;
    s->nearest = sbp_arena_strndup(s->arena, name, length);
}

static void try_options(search *s, unsigned phases) {
    for (int32_t i = 0; i < SBP_TRL_END; i++) {
        const sbp_option *option = sbp_option_at(i);
        const char *name;
        if (!(option->phases & phases) || option->state == SBP_OPTION_LATER)
            continue;
        try_name(s, option->name, strlen(option->name));
        for (int32_t k = 0; (name = sbp_options_trl_name_at(option, k)); k++)
            try_name(s, name, strlen(name));
    }
}

/* Names of TRL that are no options, too. */
static void try_all(search *s) {
    const char *name, *reason;
    try_options(s, SBP_PHASE_ALL);
    for (int32_t i = 0; sbp_options_refused_at(i, &name, &reason); i++)
        try_name(s, name, strlen(name));
    for (int32_t i = 0; (name = sbp_options_ignored_at(i)); i++)
        try_name(s, name, strlen(name));
}

/* How many letters a name may be off and still be meant: a wrong name would be worse than none. */
static int near_enough(const char *key) {
    enum { LETTERS_A_MISTAKE = 6, MOST = 3 };
    int letters = (int)strlen(key) / LETTERS_A_MISTAKE;
    return letters < 1 ? 1 : letters > MOST ? MOST : letters;
}

/* The nearest of the names that a command accepts, NULL when none is near. Below a guard. */
static const char *nearest(sbp_arena *arena, unsigned phases, const char *name) {
    search s = {.arena = arena, .key = name, .distance = near_enough(name) + 1};
    if (strlen(name) <= 64)
        try_options(&s, phases);
    return s.nearest;
}

const char *sbp_option_nearest_of(sbp_arena *arena, const char *key, const char *const *names,
                                  int32_t count) {
    search s = {.arena = arena, .key = key, .distance = near_enough(key) + 1};
    for (int32_t i = 0; i < count && strlen(key) <= 64; i++)
        try_name(&s, names[i], strlen(names[i]));
    return s.nearest;
}

/* "--name" on the command line, plain in a file. */
const char *sbp_option_shown(const sbp_options *o, const option_setting *s, const char *name) {
    return s->config ? name : sbp_arena_printf(o->arena, strlen(name) == 1 ? "-%s" : "--%s", name);
}

static sbp_status fail_unknown(sbp_options *o, sbp_diag *diag, const option_setting *s, const char *nearest) {
    const char *what = s->config ? "key" : "option";
    if (nearest)
        return sbp_fail(diag, SBP_USAGE, "%s: unknown %s '%.100s'; the nearest is '%s'", s->where, what,
                        sbp_option_shown(o, s, s->key), sbp_option_shown(o, s, nearest));
    return sbp_fail(diag, SBP_USAGE, "%s: unknown %s '%.100s'; --help lists all", s->where, what,
                    sbp_option_shown(o, s, s->key));
}

/* Files of scripts around TRL have keys of these scripts: they are skipped and named. What is likely to be a
 * slip of a known name is none of these. */
sbp_status sbp_options_unknown(sbp_options *o, sbp_diag *diag, const option_setting *s) {
    search all = {.arena = o->arena, .key = s->key, .distance = near_enough(s->key) + 1};
    bool strict = !s->config || s->strict || o->settled ||
                  strcmp(o->values[SBP_OPT_CONFIG_UNKNOWN].text, "error") == 0 || strlen(s->key) > 64;
    if (strict)
        return fail_unknown(o, diag, s, nearest(o->arena, o->phases, s->key));
    try_all(&all);
    if (all.nearest)
        return fail_unknown(o, diag, s, all.nearest);
    if (o->unknown.length == 0)
        sbp_text_init(&o->unknown, o->arena);
    sbp_text_add(&o->unknown, "%s%s", o->unknown.length > 0 ? ", " : "", s->key);
    return SBP_OK;
}

/* What "no_NAME" turns off: a boolean of TRL's or of ours. */
bool sbp_options_find_negated(const char *key, option_target *out) {
    if (!sbp_option_same_name(key, strlen(key) < 3 ? strlen(key) : 3, "no_", 3))
        return false;
    option_target target = sbp_options_find(key + 3, strlen(key + 3));
    if (!sbp_option_is_boolean(&target))
        return false;
    *out = target;
    return true;
}
