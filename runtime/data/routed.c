/* routed.c: what rows say of experts, against what the plan's model has. */
#include "runtime/data/routed.h"

#include <math.h>

#include "ir/program/routed.h"

static sbp_status wrong_routed(sbp_diag *diag, const sbp_doc *doc, int64_t token, const sbp_routed *r,
                               int id) {
    return sbp_fail(diag, SBP_INPUT,
                    "data row %lld (from 1): '" SBP_ROUTED
                    "': token %lld goes to expert %d in layer %d of experts (both from 0), %s",
                    (long long)doc->row + 1, (long long)token, id, r->layer,
                    id < r->experts ? "twice" : "which the model does not have");
}

/* The experts that tokens of a document go to in a layer: each once, and among those of the layer. */
static sbp_status check_routed_doc(sbp_diag *diag, const sbp_dataset *data, const sbp_doc *doc,
                                   const double *places, const sbp_routed *r) {
    for (int64_t i = 0; i < doc->count; i++) {
        const int16_t *ids =
            isnan(places[i])
                ? NULL
                : data->routed + ((int64_t)places[i] * data->routed_layers + r->layer) * data->routed_chosen;
        for (int j = 0; ids && j < r->chosen; j++) {
            bool wrong = ids[j] >= r->experts;
            for (int k = 0; k < j; k++)
                wrong |= ids[k] == ids[j];
            if (wrong)
                return wrong_routed(diag, doc, i, r, ids[j]);
        }
    }
    return SBP_OK;
}

sbp_status sbp_routed_check(const sbp_program *program, sbp_diag *diag, const sbp_dataset *data) {
    const int32_t column = sbp_dataset_column(data, SBP_ROUTED);
    sbp_routed r;
    int layers = 0;
    for (int32_t i = 0; i < program->row_input_count; i++)
        if (sbp_routed_of(program->row_inputs[i].column, &r) && r.layer >= layers)
            layers = r.layer + 1;
    if (column >= 0 && layers == 0)
        sbp_note(diag, "'" SBP_ROUTED "' of the data is not read: the plan was compiled without "
                       "--routed-experts on");
    for (int32_t i = 0; i < program->row_input_count && column >= 0; i++) {
        if (!sbp_routed_of(program->row_inputs[i].column, &r) || r.slot > 0)
            continue;
        for (int64_t d = 0; d < data->doc_count; d++) {
            const sbp_doc *doc = &data->docs[d];
            if (!((doc->columns | data->added_columns) >> column & 1))
                continue;
            if (data->routed_layers != layers || data->routed_chosen != r.chosen)
                return sbp_fail(diag, SBP_INPUT,
                                "data row %lld (from 1): '" SBP_ROUTED
                                "' has %lld layers of %lld experts; the model has %d with experts, of which "
                                "a token goes to %d",
                                (long long)doc->row + 1, (long long)data->routed_layers,
                                (long long)data->routed_chosen, layers, r.chosen);
            SBP_TRY(check_routed_doc(diag, data, doc, data->columns[column] + doc->first, &r));
        }
    }
    return SBP_OK;
}
