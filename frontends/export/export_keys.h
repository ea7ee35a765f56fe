/* export_keys.h: the keys of a GGUF file beside those of the tokenizer. Below a guard. */
#ifndef SBP_FRONTENDS_EXPORT_EXPORT_KEYS_H
#define SBP_FRONTENDS_EXPORT_EXPORT_KEYS_H

#include "frontends/weights/gguf_write.h"

/* general.*: name, origin, licence, sampling. Numbers of parameters as llama.cpp's converter counts them: those of
 * all experts of a kind as one; below zero for an adapter, whose size is not known. */
typedef struct exp_meta_request {
    const char *directory;
    const sbp_json *config; /* config.json */
    double parameters, shared, of_experts;
    int64_t experts; /* 0: none */
} exp_meta_request;

sbp_status exp_put_meta(sbp_arena *arena, sbp_diag *diag, const exp_meta_request *request,
                        sbp_gguf_keys *keys) SBP_CHECKED;

#endif
