/* hf_load.h: the parts of loading a config.json: hf_fields.c, hf_nearest.c, hf_load.c. */
#ifndef SBP_FRONTENDS_HF_HF_LOAD_H
#define SBP_FRONTENDS_HF_HF_LOAD_H

#include "frontends/hf/hf.h"

/* Ready to build; l->model gets the facts. */
void sbp_hf_begin(sbp_hf *hf, sbp_loading *l, const sbp_json *config, const char *model_type);
/* Reads what the model says of tokens and names. Where both the wrapper of a multimodal model and its
 * text_config have a field, text_config counts. */
void sbp_hf_read_facts(sbp_hf *hf, sbp_loading *l);
/* Nothing has read a field, and it may change what is computed. */
bool sbp_hf_is_left_over(const sbp_hf *hf, const sbp_json *field);
/* An error of the first such field. */
void sbp_hf_check_left_over(sbp_hf *hf);
/* Dropout of the file is not done: said, where there is any. */
void sbp_hf_say_dropout(const sbp_hf *hf);
/* One of the words of a list with blanks between them. */
bool sbp_hf_is_listed(const char *list, const char *word);
/* The model_type that is nearest to one that is not built, and which fields of its config.json and tensors of
 * its weights differ; begins with "; ". "" where no type can read the file. */
const char *sbp_hf_nearest(sbp_loading *l, const sbp_json *config, const char *model_type);

#endif
