/* gguf.h: GGUF files. Each is described as a Hugging Face config.json (gguf_config.c), its tensors go by
 * Hugging Face's names (frontends/formats/weights/gguf_view.c); the graph is then built as for a Hugging Face
 * directory. */
#ifndef SBP_FRONTENDS_GGUF_GGUF_H
#define SBP_FRONTENDS_GGUF_GGUF_H

#include "frontends/formats/weights/gguf_table.h"
#include "frontends/source/loading.h"

typedef struct sbp_gguf_source {
    sbp_loading *loading;
    const sbp_gguf *keys;
    const sbp_weights *tensors; /* of the file itself, whatever --weights says */
} sbp_gguf_source;

/* The text of config.json, in the arena. */
sbp_status sbp_gguf_describe(const sbp_gguf_source *source, const sbp_gguf_facts *facts,
                             const char **out) SBP_CHECKED;

#endif
