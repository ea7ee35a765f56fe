/* export.h: a model of Hugging Face's files, or an adapter, as a GGUF file, as llama.cpp's
 * converter writes it.
 *
 * Reads config.json, weights, tokenizer, chat templates, generation_config.json and the model card of a
 * directory; knows no graph. The numbers are streamed: memory holds the file's head, an adapter that is
 * merged, and a few MiB of numbers.
 *
 * Errors: SBP_INPUT, naming the file and what is not known; a file that is not whole is never left behind. */
#ifndef SBP_FRONTENDS_EXPORT_EXPORT_H
#define SBP_FRONTENDS_EXPORT_EXPORT_H

#include "ir/base/base.h"

typedef struct sbp_export_request {
    const char *source; /* a directory: of a model or of an adapter; or a .gguf file */
    const char *base;   /* of an adapter; NULL: as its adapter_config.json names it */
    const char *output;
    const char *type; /* f32, f16, bf16, q8_0; NULL: f32 of an adapter, else bf16 */
    const char *pre;  /* the pre-tokenizer as llama.cpp calls it; NULL: by the ids of its check text */
    bool merge;       /* the adapter into its base; else it is written as an adapter */
    bool (*stop)(void);
} sbp_export_request;

typedef struct sbp_export_report {
    bool adapter;
    const char *type;
    const char *architecture;
    int32_t tensors, keys;
    int64_t bytes;
} sbp_export_report;

/* Below a guard of `arena`, where the report's text lies. SBP_INTERRUPTED: `stop` said so. */
sbp_status sbp_export_gguf(sbp_arena *arena, sbp_diag *diag, const sbp_export_request *request,
                           sbp_export_report *report) SBP_CHECKED;

#endif
