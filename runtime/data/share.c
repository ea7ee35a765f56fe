/* share.c: rows of prompts that are run once.
 *
 * What a row of a document becomes depends on the tokens up to it, and on nothing else of the document (the
 * model sees rows before it, at the positions of the document). So a row is the same in two documents that
 * begin alike, and where nothing is read of it in one of them, it need not be there: rows behind it see that
 * of the other. The last row of a prompt, whose label is the first token of the answer, is one that is read,
 * and so every answer begins with one of its own.
 */
#include "runtime/data/pack.h"

#include <string.h>

static int64_t common_tokens(const sbp_dataset *data, const sbp_doc *a, const sbp_doc *b) {
    const int32_t *x = data->tokens + a->first, *y = data->tokens + b->first;
    int64_t most = a->count < b->count ? a->count : b->count, same = 0;
    while (same < most && x[same] == y[same])
        same++;
    return same;
}

sbp_status sbp_pack_shared(sbp_packer *p, sbp_diag *diag, const sbp_dataset *data, int64_t leader,
                           int64_t number, int32_t *out) {
    const sbp_doc *doc = &data->docs[number];
    const int32_t *labels = data->labels + doc->first;
    int64_t most = common_tokens(data, &data->docs[leader], doc), rows = 0;
    most = most < doc->count ? most : doc->count - 1; /* there is always a last row */
    while (rows < most && labels[rows + 1] < 0)
        rows++;
    *out = 0;
    if (rows <= 0)
        return SBP_OK;
    if (!sbp_pack_grow(&p->numbers, &p->number_capacity, doc->count, sizeof *p->numbers))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for packing a document of %d tokens", doc->count);
    SBP_TRY(sbp_pack_document(p, diag, data, number, p->counted, p->numbers));
    while (*out < rows && p->numbers[*out] == 0)
        ++*out;
    return SBP_OK;
}
