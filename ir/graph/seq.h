/* seq.h: how rows of a result depend on rows of an operand. The StreamBP pass needs nothing else.
 *
 * Where a prompt is shared, row r's document is the prompt and its own completion: PREFIX leaves out the
 * completions between them, and WINDOW counts positions of the document. RECUR knows no prompt but the row's
 * own: a state has one past. */
#ifndef SBP_IR_GRAPH_SEQ_H
#define SBP_IR_GRAPH_SEQ_H

#include <stdint.h>

typedef enum sbp_seq_kind {
    SBP_SEQ_NONE,   /* no dependence through rows: the operand has no row axis */
    SBP_SEQ_ROW,    /* row r only */
    SBP_SEQ_WINDOW, /* rows max(first(r), r-w+1) .. r */
    SBP_SEQ_RECUR,  /* rows own(r) .. r, those before r through a state of fixed size */
    SBP_SEQ_PREFIX, /* rows first(r) .. r */
    SBP_SEQ_MIRROR, /* rows r .. r+w-1: the transpose of WINDOW */
    SBP_SEQ_AFTER,  /* rows r .. end of the own rows: the transpose of RECUR */
    SBP_SEQ_SUFFIX, /* rows r .. end of the document: the transpose of PREFIX */
    SBP_SEQ_GROUP,  /* rows with the same index */
    SBP_SEQ_REDUCE, /* all rows; the result has no row axis */
    SBP_SEQ_ALL,    /* anything else */
    SBP_SEQ_COUNT
} sbp_seq_kind;

typedef struct sbp_seq {
    sbp_seq_kind kind;
    int64_t window; /* WINDOW and MIRROR */
} sbp_seq;

const char *sbp_seq_name(sbp_seq_kind kind);
sbp_seq sbp_seq_of(sbp_seq_kind kind);
sbp_seq sbp_seq_windowed(int64_t window); /* PREFIX when window is 0 */

/* z reads y as `outer`, y reads x as `inner`; how z depends on x. z_rows: whether z has a row axis. */
sbp_seq sbp_seq_compose(sbp_seq outer, sbp_seq inner, int z_rows);
/* Both dependences at once. */
sbp_seq sbp_seq_join(sbp_seq a, sbp_seq b);
/* How the cotangent of the operand depends on the cotangent of the result. */
sbp_seq sbp_seq_transpose(sbp_seq seq);

#endif
