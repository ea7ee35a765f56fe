/* run_mismatched.c: what the plan wants to know of a step's prompts with the answers of other rows
 * (runtime/data/mismatched.h): scored before the step, by the weights at hand and by those of the
 * reference. */
#include "runtime/cli/sbprun/session.h"
#include "runtime/data/mismatched.h"
#include "runtime/train/scored.h"
#include "runtime/train/shadow.h"

static bool has_scalar(const sbp_session *session, sbp_scalar_id id) {
    return session->plan && sbp_program_find_scalar(session->plan->program, sbp_scalar_names[id]) >= 0;
}

sbp_status sbp_run_check_mismatched(const sbp_world *world, const sbp_inputs *inputs,
                                    const sbp_session *session) {
    bool all = session->state.batch_tokens == 0 && session->state.batch_rows >= inputs->data->row_count;
    if (!has_scalar(session, SBP_SCALAR_MISMATCHED_LOGPS) || inputs->stream.steps)
        return SBP_OK;
    if (session->state.batch_tokens == 0 && session->state.batch_rows == 1)
        return sbp_fail(world->diag, SBP_USAGE,
                        "--batch-size 1: the plan's objective compares with the answer of another row of the "
                        "step: give 2 or more");
    if (sbp_dataset_has_mismatched(inputs->data) && session->state.shuffle && !all)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "rows carry what a reference says of the answer of the row before ('ref_KL_logps'), which "
            "shuffling brings into another step: give --shuffle off, and the --batch-size it was computed "
            "for");
    return SBP_OK;
}

static sbp_status add_sum(void *user, const sbp_score *score) {
    double *sum = user;
    for (int32_t i = 0; i < score->doc->labels; i++)
        *sum += score->logps[i];
    return SBP_OK;
}

static sbp_status score(const sbp_world *world, sbp_session *session, const sbp_dataset *mismatched,
                        sbp_scalar_id scalar) {
    double sum = 0;
    SBP_TRY(sbp_trainer_evaluate(&session->trainer, world->diag, mismatched, add_sum, &sum));
    sbp_executor_set(world->executor, scalar, sum);
    return SBP_OK;
}

static double carried_sum(const sbp_dataset *data, const int64_t *rows, int64_t row_count) {
    const double *values =
        data->numbers[sbp_dataset_number(data, sbp_data_columns[SBP_DATA_REF_MISMATCHED].name)];
    double sum = 0;
    for (int64_t r = 0; r < row_count; r++)
        for (int64_t k = data->rows[rows ? rows[r] : r]; k < data->rows[(rows ? rows[r] : r) + 1]; k++)
            sum += values[sbp_dataset_doc_at(data, k)];
    return sum;
}

static sbp_status score_by_reference(const sbp_world *world, sbp_session *session,
                                     const sbp_dataset *mismatched) {
    if (!session->shadow)
        return sbp_fail(
            world->diag, SBP_INPUT,
            "data row 1 (from 1): 'ref_KL_logps' is missing, which the first step of the stream had");
    SBP_TRY(sbp_run_enter_reference(world, session));
    sbp_status status = score(world, session, mismatched, SBP_SCALAR_MISMATCHED_REF_LOGPS);
    sbp_status back = sbp_run_leave_reference(world, session);
    return status != SBP_OK && status != SBP_INTERRUPTED ? status : back != SBP_OK ? back : status;
}

sbp_status sbp_run_score_mismatched(const sbp_world *world, sbp_session *session, const sbp_dataset *data,
                                    const int64_t *rows, int64_t row_count) {
    sbp_dataset *mismatched;
    if (!has_scalar(session, SBP_SCALAR_MISMATCHED_LOGPS))
        return SBP_OK;
    SBP_TRY(sbp_dataset_mismatch(world->diag, data, rows, row_count,
                                 sbp_program_most_rows(session->plan->program), &mismatched));
    sbp_status status = score(world, session, mismatched, SBP_SCALAR_MISMATCHED_LOGPS);
    if (status == SBP_OK && sbp_dataset_has_mismatched(data))
        sbp_executor_set(world->executor, SBP_SCALAR_MISMATCHED_REF_LOGPS,
                         carried_sum(data, rows, row_count));
    else if (status == SBP_OK && has_scalar(session, SBP_SCALAR_MISMATCHED_REF_LOGPS))
        status = score_by_reference(world, session, mismatched);
    sbp_dataset_destroy(mismatched);
    return status;
}
