/* stopping.h: what is generated, as text while it comes, and whether it ends.
 *
 * Generation ends at the first of
 *  - an id that ends sequences, which is no part of the text;
 *  - a stop string in the text, wherever tokens border; the text is cut before it. Of several it is the one
 *    that is complete first; of those that end at the same place the longest;
 *  - the limit of new tokens, the last of which is part of the text, as is an id that ends sequences of their
 *    number.
 * The reasons are those of OpenAI's API and of vLLM: "stop" for the first two, "length" for the third; "stop"
 * where the last token makes both true.
 *
 * The pieces one behind the other are what sbp_tokenizer_decode gives for all ids, special ones skipped,
 * up to a stop string. A piece holds back what more tokens could change (sbp_decode_stream), and what may be
 * the beginning of a stop string; so pieces are whole characters of UTF-8. The last piece has the rest. A
 * token costs what its own text does, times the lengths of the stop strings at most.
 *
 * Threads: a stream is used by one at a time.
 */
#ifndef SBP_RUNTIME_GENERATE_STOPPING_H
#define SBP_RUNTIME_GENERATE_STOPPING_H

#include "frontends/formats/tokenizer/tokenizer.h"

typedef enum sbp_finish { SBP_FINISH_NOT, SBP_FINISH_STOP, SBP_FINISH_LENGTH } sbp_finish;

/* "stop", "length"; NULL for SBP_FINISH_NOT. */
const char *sbp_finish_name(sbp_finish finish);

typedef struct sbp_stopping {
    const int32_t *end_ids; /* [end_id_count] */
    int32_t end_id_count;
    const char *const *strings; /* [string_count], UTF-8, none empty */
    int32_t string_count;
    int64_t most_tokens; /* 0: no limit */
} sbp_stopping;

typedef struct sbp_text_piece {
    const char
        *text; /* [length] and a NUL; valid until the next call on the stream; "" where nothing is final */
    size_t length;
    sbp_finish finish;
} sbp_text_piece;

typedef struct sbp_text_stream sbp_text_stream;

/* Keeps the tokenizer and all that `stopping` names. A string that is empty or no UTF-8, or a negative limit:
 * SBP_USAGE. */
sbp_status sbp_text_stream_create(const sbp_tokenizer *tokenizer, sbp_diag *diag,
                                  const sbp_stopping *stopping, sbp_text_stream **out) SBP_CHECKED;
void sbp_text_stream_destroy(sbp_text_stream *stream); /* NULL: nothing */

/* The next generated id; none comes behind one that ended the text. After a failure the stream can only be
 * destroyed. A negative id: SBP_INPUT. */
sbp_status sbp_text_stream_push(sbp_text_stream *stream, sbp_diag *diag, int32_t id,
                                sbp_text_piece *out) SBP_CHECKED;
/* Ends a text that nothing ended: its rest, with finish as it is (a stop string may be in the rest). After an
 * end there is no rest. */
sbp_status sbp_text_stream_flush(sbp_text_stream *stream, sbp_diag *diag, sbp_text_piece *out) SBP_CHECKED;

#endif
