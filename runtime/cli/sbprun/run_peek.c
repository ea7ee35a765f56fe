/* run_peek.c: the first row of each file of data, before a plan is made for them: compiling may take minutes,
 * and a row says at once that it is not what is trained here. */
#include <string.h>

#include "runtime/cli/sbprun/inputs.h"
#include "runtime/cli/sbprun/rl.h"
#include "runtime/cli/sbprun/session.h"
#include "runtime/data/rows.h"

static bool trains_on_rejected(const sbp_options *o, const sbp_json *row, const sbp_row_form *form) {
    const sbp_json *label = sbp_json_member(row, "label");
    return form->type == SBP_ROW_COMPLETION && label && label->kind == SBP_JSON_BOOL &&
           !sbp_options_given(o, SBP_OPT_OBJECTIVE);
}

static bool is_prompt(const sbp_json *row) {
    static const char *const prompts[] = {"prompt", "prompt_ids"}, *const others[] = {
                                                                       "completion", "completion_ids",
                                                                       "chosen",     "chosen_ids",
                                                                       "messages",   "conversations",
                                                                       "input_ids"};
    bool is = false;
    if (row->kind != SBP_JSON_OBJECT || sbp_json_member(row, "text"))
        return false;
    for (int i = 0; i < SBP_COUNT(prompts); i++)
        is |= sbp_json_member(row, prompts[i]) != NULL;
    for (int i = 0; i < SBP_COUNT(others); i++)
        is &= !sbp_json_member(row, others[i]);
    return is;
}

static sbp_status check_row(const sbp_world *world, const sbp_session *session, const sbp_record *record) {
    const sbp_options *o = world->options;
    const char *objective = sbp_options_text(o, SBP_OPT_OBJECTIVE);
    bool pairs = sbp_options_wants_pairs(o);
    const sbp_row_options options = {.no_pairs = !pairs && session->train,
                                     .objective = objective,
                                     .objective_of_pairs = sbp_options_objective_of_pairs()};
    sbp_columns columns;
    sbp_row_form form = {.type = SBP_ROW_NONE};
    const sbp_json *tree;
    sbp_row row;
    SBP_TRY(sbp_columns_parse(world->arena, world->diag, sbp_options_text(o, SBP_OPT_COLUMNS), &columns));
    SBP_TRY(sbp_record_parse(record, world->arena, world->diag, &tree));
    SBP_TRY(
        sbp_columns_rename(&columns, world->arena, world->diag, record->where, tree, record->text, &tree));
    if (session->train && is_prompt(tree))
        return sbp_fail(
            world->diag, SBP_INPUT,
            "%s: a prompt without an answer: with --reward FILE.py:NAME sbprun samples answers and "
            "trains on their rewards (of TRL: --reward trl.rewards:accuracy_reward)",
            record->where);
    SBP_TRY(sbp_row_read(world->arena, world->diag, record->where, tree, &options, &form, &row));
    if (session->train && pairs && form.type != SBP_ROW_PAIR)
        return sbp_fail(world->diag, SBP_INPUT, "%s: %s needs 'chosen' and 'rejected'", record->where,
                        objective);
    if (session->train && trains_on_rejected(o, tree, &form))
        sbp_note(
            world->diag,
            "%s: rows have a 'label', which %s does not read: answers that it calls false are trained like "
            "the others (sbprun --help rows: what reads it)",
            record->where, objective);
    return SBP_OK;
}

static sbp_status peek(const sbp_world *world, const sbp_session *session, const char *path) {
    sbp_source *source;
    sbp_record record;
    bool end;
    if (strcmp(path, "-") == 0)
        return SBP_OK;
    SBP_TRY(sbp_source_open(world->diag, path, &source));
    sbp_status status = sbp_source_read(source, world->arena, world->diag, &record, &end);
    if (status == SBP_OK && !end && !sbp_options_is(world->options, SBP_OPT_ON_BAD_ROW, "skip"))
        status = check_row(world, session, &record);
    sbp_source_close(source);
    return status;
}

sbp_status sbp_run_peek(const sbp_world *world, const sbp_session *session) {
    static const sbp_option_id lists[] = {SBP_OPT_DATA, SBP_OPT_EVAL};
    for (int k = sbp_rl_is_asked_for(world->options) ? 1 : 0; k < SBP_COUNT(lists); k++) /* prompts */
        for (int32_t i = 0; i < sbp_options_list_count(world->options, lists[k]); i++) {
            const char *const *files;
            int32_t count;
            SBP_TRY(sbp_source_expand(world->arena, world->diag,
                                      sbp_options_list_at(world->options, lists[k], i), &files, &count));
            for (int32_t f = 0; f < count; f++)
                SBP_TRY(peek(world, session, files[f]));
        }
    return SBP_OK;
}
