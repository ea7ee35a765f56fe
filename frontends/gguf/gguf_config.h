/* gguf_config.h: a GGUF file described as a Hugging Face config.json. Private to this room.
 *
 * Errors stick in status, so that code reads straight: after the first one every call does nothing. */
#ifndef SBP_FRONTENDS_GGUF_GGUF_CONFIG_H
#define SBP_FRONTENDS_GGUF_GGUF_CONFIG_H

#include "frontends/formats/weights/gguf_table.h"
#include "frontends/source/loading.h"
#include "ir/base/json_write.h"

typedef struct sbp_gguf_config {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *path;
    const sbp_gguf *keys;
    const sbp_weights *tensors;
    sbp_gguf_facts facts;
    const sbp_gguf_family *family;
    int64_t hidden, head_dim, positions;
    sbp_json_writer *out; /* in the object */
    sbp_status status;
} sbp_gguf_config;

void sbp_gguf_config_fail(sbp_gguf_config *c, const char *format, ...) SBP_PRINTF(2, 3);

/* "<architecture>.<key>" of the file; NULL: it has none. */
const sbp_gguf_value *sbp_gguf_config_key(const sbp_gguf_config *c, const char *key);
/* Its value; `fallback` when it is absent. count: from 0 to 2147483647, of an array item `layer`. */
int64_t sbp_gguf_config_count(sbp_gguf_config *c, const char *key, int64_t layer, int64_t fallback);
double sbp_gguf_config_number(sbp_gguf_config *c, const char *key, double fallback);
bool sbp_gguf_config_bool(sbp_gguf_config *c, const char *key, bool fallback);
const char *sbp_gguf_config_string(sbp_gguf_config *c, const char *key, const char *fallback);

/* A tensor of the file; of a layer: blk.<layer>.<name>. */
const sbp_weight *sbp_gguf_config_tensor(const sbp_gguf_config *c, const char *name);
const sbp_weight *sbp_gguf_config_in_layer(const sbp_gguf_config *c, int64_t layer, const char *name);
/* Whether some layer has it. */
bool sbp_gguf_config_has(const sbp_gguf_config *c, const char *name);

/* A number of the file as somebody wrote it before it became fp32: the shortest decimal that is this fp32. */
void sbp_gguf_config_write(sbp_gguf_config *c, const char *field, double value);
/* That decimal as a double. */
double sbp_gguf_config_said(double value);

/* A word for each layer. */
void sbp_gguf_config_layers(sbp_gguf_config *c, const char *field,
                            const char *(*word)(sbp_gguf_config *c, int64_t i));

/* What all experts have (gguf_experts.c). */
void sbp_gguf_config_experts(sbp_gguf_config *c);
/* rope_theta, rope_scaling, rope_parameters (gguf_rope.c). */
void sbp_gguf_config_rope(sbp_gguf_config *c);

/* Streams, branches of low rank, sparse gates (gguf_streams.c). */
void sbp_gguf_config_streams(sbp_gguf_config *c);

#endif
