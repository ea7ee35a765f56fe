/* hf_load.h: what hf_load.c and hf_nearest.c share. */
#ifndef SBP_FRONTENDS_HF_HF_LOAD_H
#define SBP_FRONTENDS_HF_HF_LOAD_H

#include "frontends/hf/hf.h"

/* Ready to build; l->model gets the facts. */
void sbp_hf_begin(sbp_hf *hf, sbp_loading *l, const sbp_json *config, const char *model_type);
/* Nothing has read a field, and it may change what is computed. */
bool sbp_hf_is_left_over(const sbp_hf *hf, const sbp_json *field);
/* The model_type that is nearest to one that is not built, and which fields of its config.json and tensors of
 * its weights differ; begins with "; ". "" where no type can read the file. */
const char *sbp_hf_nearest(sbp_loading *l, const sbp_json *config, const char *model_type);

#endif
