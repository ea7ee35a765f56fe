/* gguf_llama.c: GGUF files of architecture llama. */
#include "frontends/loading.h"

sbp_status sbp_load_gguf(sbp_loading *l) {
    return sbp_fail(l->diag, SBP_USAGE, "'%s': GGUF models are not built yet", l->path);
}
