/* check_table.c: what a check found, as a table with a verdict, or as JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/check.h"
#include "runtime/cli/sbprun/commands.h"

static const char *const verdicts[] = {"right", "WRONG", "unseen", "not checked"};

void sbp_check_add(sbp_check *check, const sbp_finding *finding) {
    SBP_PUSH(check->world->arena, check->findings, check->count, check->capacity, *finding);
}

static int32_t count_of(const sbp_check *check, sbp_verdict verdict) {
    int32_t count = 0;
    for (int32_t i = 0; i < check->count; i++)
        count += check->findings[i].verdict == verdict;
    return count;
}

/* That which is farthest off, of those by numbers; NULL: there is none. */
static const sbp_finding *worst_of(const sbp_check *check, sbp_verdict verdict) {
    const sbp_finding *worst = NULL;
    for (int32_t i = 0; i < check->count; i++) {
        const sbp_finding *f = &check->findings[i];
        if (f->verdict == verdict && (!worst || !(f->found / f->allowed <= worst->found / worst->allowed)))
            worst = f;
    }
    return worst;
}

static const char *overall(const sbp_check *check) {
    return count_of(check, SBP_VERDICT_WRONG)       ? "wrong"
           : count_of(check, SBP_VERDICT_UNCHECKED) ? "not all checked"
                                                    : "right";
}

static void add_table(sbp_text *out, const sbp_check *check) {
    const char *part = "";
    for (int32_t i = 0; i < check->count; i++) {
        const sbp_finding *f = &check->findings[i];
        if (strcmp(part, f->part) != 0)
            sbp_text_add(out, "%s\n", f->part);
        part = f->part;
        sbp_text_add(out, "  %-11s %s%s%s\n", verdicts[f->verdict], f->what ? f->what : "",
                     f->what ? ": " : "", f->text);
    }
}

static void add_verdict(sbp_text *out, const sbp_check *check) {
    const sbp_finding *wrong = worst_of(check, SBP_VERDICT_WRONG),
                      *open = worst_of(check, SBP_VERDICT_UNCHECKED);
    if (wrong)
        sbp_text_add(out, "wrong: %d of %d, the worst: %s%s%s; do not train with this plan here\n",
                     count_of(check, SBP_VERDICT_WRONG), check->count, wrong->part, wrong->what ? ", " : "",
                     wrong->what ? wrong->what : "");
    else if (open)
        sbp_text_add(out, "not all checked: %s: %s; %d others are right\n", open->part, open->text,
                     count_of(check, SBP_VERDICT_RIGHT));
    else
        sbp_text_add(out, "right: %d of %d%s, in %.0f s\n", count_of(check, SBP_VERDICT_RIGHT), check->count,
                     count_of(check, SBP_VERDICT_UNSEEN) ? ", the others are unseen" : "",
                     sbp_seconds() - check->began);
}

static void add_json(sbp_text *out, const sbp_check *check) {
    sbp_json_writer w = sbp_json_writer_on(out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "verdict", overall(check));
    sbp_json_write_double(&w, "seconds", sbp_seconds() - check->began);
    sbp_json_write_array(&w, "findings");
    for (int32_t i = 0; i < check->count; i++) {
        const sbp_finding *f = &check->findings[i];
        sbp_json_write_object(&w, NULL);
        sbp_json_write_string(&w, "part", f->part);
        sbp_json_write_string(&w, "what", f->what);
        sbp_json_write_string(&w, "verdict", verdicts[f->verdict]);
        sbp_json_write_double(&w, "found", f->found);
        sbp_json_write_double(&w, "allowed", f->allowed);
        sbp_json_write_string(&w, "text", f->text);
        sbp_json_write_end(&w);
    }
    sbp_json_write_end(&w);
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
}

sbp_status sbp_check_print(const sbp_check *check) {
    sbp_text out;
    sbp_text_init(&out, check->world->arena);
    if (sbp_options_on(check->world->options, SBP_OPT_JSON)) {
        add_json(&out, check);
    } else {
        add_table(&out, check);
        add_verdict(&out, check);
    }
    SBP_TRY(sbp_print(check->world->diag, out.data, out.length));
    const sbp_finding *open = worst_of(check, SBP_VERDICT_UNCHECKED);
    if (count_of(check, SBP_VERDICT_WRONG))
        return SBP_INPUT;
    return open ? sbp_fail(check->world->diag, SBP_MACHINE, "not all of the plan can be checked here: %s: %s",
                           open->part, open->text)
                : SBP_OK;
}
