/* documents.h: packed documents of uneven length, some of which share a prompt, and which rows may depend on
 * which. Written from what a batch is (one packed row axis), not from the code under test.
 *
 * A family is a document, or a prompt followed by its completions. For row r: first: where the family begins;
 * a plain document and the prompt itself have shared_end = own = first; a completion has shared_end: the end
 * of the prompt, and own: where the completion begins. Row r sees [first, shared_end) and [own, r]. */
#ifndef SBP_TESTS_COMMON_DOCUMENTS_H
#define SBP_TESTS_COMMON_DOCUMENTS_H

#include "ir/graph/seq.h"
#include "tests/rowkernel_random.h"

enum { DOCUMENTS_MAX_ROWS = 64 };

typedef struct documents {
    int64_t rows;
    int64_t families;
    int64_t first[DOCUMENTS_MAX_ROWS], shared_end[DOCUMENTS_MAX_ROWS], own[DOCUMENTS_MAX_ROWS];
    int64_t position[DOCUMENTS_MAX_ROWS]; /* within the document as the model sees it, prompt included */
    int64_t family[DOCUMENTS_MAX_ROWS];
} documents;

/* A plain document, a prompt with two completions, and a last document of one row, as far as rows allow:
 * 11 rows are 2 + (2 + 3 + 3) + 1. */
documents documents_layout(int64_t rows);
documents documents_random(int64_t rows, sbp_rng *rng);

/* Positions from key row c to query row r; -1 when r does not see c. */
int64_t documents_distance(const documents *d, int64_t r, int64_t c);

/* Whether row r of a result may depend on row s of an operand. GROUP is not known here: false. */
bool documents_allow(const documents *d, sbp_seq seq, int64_t r, int64_t s);

/* Value of the row input `name` of @model (tok, pos, first, shared_end, own, label, copies) at row r, of
 * documents that share no prompt and of which there is one copy; fails for another name. */
typedef struct document_rows {
    const int32_t *tok, *pos, *first, *label;
} document_rows;
double document_rows_value(const document_rows *rows, const char *name, int64_t r);

#endif
