/* gguf.h: architectures of GGUF files. Each describes its file as a Hugging Face config.json and says how the
 * file keeps each parameter; the graph is then built as for a Hugging Face directory. */
#ifndef SBP_FRONTENDS_GGUF_GGUF_H
#define SBP_FRONTENDS_GGUF_GGUF_H

#include "frontends/loading.h"
#include "frontends/weights/gguf.h"

typedef struct sbp_gguf_source {
    sbp_loading *loading;
    const sbp_gguf *keys;
    const sbp_weights *tensors; /* of the file itself, whatever --weights says */
} sbp_gguf_source;

typedef struct sbp_gguf_architecture {
    const char *name; /* general.architecture */
    sbp_status (*load)(sbp_gguf_source *source);
} sbp_gguf_architecture;

#define GGUF(architecture, function) sbp_status function(sbp_gguf_source *source) SBP_CHECKED;
#include "frontends/registry.def"

#endif
