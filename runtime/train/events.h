/* events.h: numbers of a run as TensorBoard reads them: event files (records of TFRecord with CRC-32C,
 * in them messages of Protocol Buffers: tensorflow/core/util/event.proto), under the tags that
 * transformers gives them.
 *
 * A run that goes on writes a further file into the same folder, which begins by saying from which step on
 * what stands in earlier ones no longer counts.
 *
 * Owner: who opened it. Errors: SBP_IO with the path. Threads: one. */
#ifndef SBP_RUNTIME_TRAIN_EVENTS_H
#define SBP_RUNTIME_TRAIN_EVENTS_H

#include "ir/base/base.h"

typedef struct sbp_events sbp_events;

/* Creates the folder if need be. first_step: of what will be written, 0 for a run that begins, whose earlier
 * files there go, if the folder is the run's own. */
sbp_status sbp_events_open(sbp_diag *diag, const char *folder, bool own, int64_t first_step,
                           sbp_events **out) SBP_CHECKED;
/* What is not finite is left out: no curve has it. */
sbp_status sbp_events_add(sbp_events *events, sbp_diag *diag, int64_t step, const char *tag,
                          double value) SBP_CHECKED;
/* A text, as TensorBoard's plugin "text" shows it: Markdown. SBP_MACHINE: there is no memory for it. */
sbp_status sbp_events_add_text(sbp_events *events, sbp_diag *diag, int64_t step, const char *tag,
                               const char *text, size_t length) SBP_CHECKED;
/* What was added is in the file. */
sbp_status sbp_events_flush(sbp_events *events, sbp_diag *diag) SBP_CHECKED;
/* NULL is allowed. */
sbp_status sbp_events_close(sbp_events *events, sbp_diag *diag) SBP_CHECKED;

/* CRC-32C (Castagnoli) of bytes, as the records carry it before masking. */
uint32_t sbp_events_crc(const void *data, size_t length);

#endif
