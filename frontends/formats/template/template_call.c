/* template_call.c: what everything that is evaluated goes through: errors, limits, arguments by parameter. */
#include <stdio.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

sbp_status(sbp_tpl_fail)(tpl_eval *e, const char *format, ...) {
    char text[700];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sbp_fail(e->diag, SBP_INPUT, "%s%s%s:%d:%d: %s", e->where ? e->where : "", e->where ? ": " : "",
                    e->template->name, e->at ? e->at->line : 1, e->at ? e->at->column : 1, text);
}

sbp_status sbp_tpl_charge(tpl_eval *e, int64_t steps) {
    e->left.steps -= steps;
    if (e->left.steps < 0 || steps > e->limits.steps)
        return sbp_tpl_fail(e, "the template takes more than %lld steps", (long long)e->limits.steps);
    if ((int64_t)sbp_arena_bytes(e->arena) > e->limits.memory_bytes)
        return sbp_tpl_fail(e, "the template takes more than %lld bytes of memory",
                            (long long)e->limits.memory_bytes);
    return SBP_OK;
}

sbp_status sbp_tpl_charge_text(tpl_eval *e, size_t bytes) {
    return sbp_tpl_charge(e, 1 + (int64_t)(bytes / 64));
}

sbp_status sbp_tpl_deeper(tpl_eval *e) {
    if (++e->depth > 2 * TPL_MOST_DEPTH)
        return sbp_tpl_fail(e, "values are nested too deep");
    return sbp_tpl_charge(e, 1);
}

/* ---- arguments ------------------------------------------------------------------------------------- */

void sbp_tpl_args_add(tpl_eval *e, tpl_args *args, tpl_value value) {
    SBP_PUSH(e->arena, args->items, args->count, args->capacity, value);
}

void sbp_tpl_args_name(tpl_eval *e, tpl_args *args, tpl_text name, tpl_value value) {
    SBP_PUSH(e->arena, args->named, args->named_count, args->named_capacity,
             (tpl_named){name.data, name.length, value});
}

/* The name of a parameter, up to a blank; *at moves behind it. */
static tpl_text next_parameter(const char **at, bool *optional) {
    tpl_text name = {*at, strcspn(*at, " ?")};
    *at += name.length;
    *optional = **at == '?';
    *at += *optional;
    *at += strspn(*at, " ");
    return name;
}

/* Arguments by parameter. */
static sbp_status bind(tpl_eval *e, const tpl_builtin *builtin, const char *what, tpl_args *args,
                       tpl_value values[TPL_MOST_PARAMETERS]) {
    const char *at = builtin->parameters;
    int32_t index = 0, taken = 0;
    for (; *at; index++) {
        bool optional, found = index < args->count;
        tpl_text name = next_parameter(&at, &optional);
        values[index] = found ? args->items[index] : (tpl_value){.kind = TPL_MISSING};
        for (int32_t i = 0; i < args->named_count; i++) {
            if (!sbp_tpl_same(name, (tpl_text){args->named[i].name, args->named[i].length}))
                continue;
            if (found)
                return sbp_tpl_fail(e, "%s '%s': the argument '%.*s' is given twice", what, builtin->name,
                                    (int)name.length, name.data);
            values[index] = args->named[i].value;
            found = true;
            taken++;
        }
        if (!found && !optional)
            return sbp_tpl_fail(e, "%s '%s': the argument '%.*s' is missing", what, builtin->name,
                                (int)name.length, name.data);
    }
    if (args->count > index)
        return sbp_tpl_fail(e, "%s '%s': expected at most %d arguments, found %d", what, builtin->name, index,
                            args->count);
    if (taken < args->named_count)
        return sbp_tpl_fail(e, "%s '%s' has no argument of that name, or it is not supported", what,
                            builtin->name);
    return SBP_OK;
}

sbp_status sbp_tpl_call_builtin(tpl_eval *e, const tpl_builtin *builtin, const char *what,
                                const tpl_value *self, tpl_args *args, tpl_value *out) {
    tpl_value values[TPL_MOST_PARAMETERS] = {{.kind = TPL_MISSING}};
    SBP_TRY(sbp_tpl_deeper(e));
    if (strcmp(builtin->parameters, "*") != 0)
        SBP_TRY(bind(e, builtin, what, args, values));
    SBP_TRY(builtin->work(e, self, values, args, out));
    e->depth--;
    return SBP_OK;
}
