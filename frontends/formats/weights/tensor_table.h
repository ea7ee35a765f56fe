/* tensor_table.h: which parameter buffer of a program holds which tensor of a model. Frontends write it
 * into the plan; the runtime loads, saves and dumps by it.
 *
 * A tensor has one or more recipes (frontends/formats/weights/recipe.h). The first is the canonical one: its
 * source is the name, shape and layout under which weights and gradients are written. The others say how to
 * read the parameter from files that keep it differently (GGUF). On load the first recipe whose source the
 * file has is used; then aliases (tied or renamed tensors) are tried with the canonical steps.
 *
 * Several tensors may take slices of one canonical source; together they must then cover it exactly, so
 * that it can be put together again.
 *
 * Text form: JSON,
 *   {"tensors": [{"buffer": "L0.wq", "trainable": true, "decay": true, "init": {"normal": 0.02},
 *     "recipes": [{"source": "layers.0.q.weight", "dtype": "f32", "shape": [64, 64], "steps": []}, ..],
 *     "aliases": ["q"]}, ..]}
 * steps: {"slice": [axis, start, length]}, of heads {"slice": [axis, start, length, heads]}, {"transpose":
 * true}, {"deinterleave": heads}, {"add": c}, {"cast": "bf16"}; init: "zeros", "ones" or {"normal":
 * deviation}; "pad_row": row that begins as zeros all the same. "stacked": true, in a recipe: the source is a
 * tensor of a file for each number along axis 0, which stands for the "*" in its name. "fresh": true: where
 * the file has no
 * such tensor it is initialised by its rule (adapters, value heads), else that is an error. "format": "q8_0",
 * in which blocks one that is frozen is kept. init may be {"uniform": bound} too. "of_adapter": true,
 * "merged": "lm_head.weight", "low_rank": {"a": buffer, "b": buffer, "in_out": false, "scale": 2}.
 */
#ifndef SBP_FRONTENDS_WEIGHTS_TENSOR_TABLE_H
#define SBP_FRONTENDS_WEIGHTS_TENSOR_TABLE_H

#include "frontends/formats/weights/recipe.h"
#include "ir/base/json.h"

/* scale x B A, B [out, r] and A [r, in] being parameters: what a merged weight has more. */
typedef struct sbp_low_rank {
    const char *a, *b; /* buffers; NULL: nothing */
    bool in_out;       /* the weight is [in, out], the transpose of B A */
    double scale;
} sbp_low_rank;

typedef struct sbp_tensor_entry {
    const char *buffer;
    bool trainable;
    bool decay;         /* takes part in weight decay */
    bool fresh;         /* may be missing in the file */
    sbp_format format;  /* in which it is kept: the buffers are "<buffer>.<part>" */
    bool of_adapter;    /* is in the files of an adapter, not in those of the model */
    const char *merged; /* of_adapter: takes the place of the model's tensor of that name; NULL: of none */
    sbp_low_rank low_rank;
    sbp_init init;
    double deviation; /* SBP_INIT_NORMAL */
    int64_t pad_row;  /* row of the source that begins as zeros (the padding token), -1: none */
    sbp_recipe *recipes;
    int32_t recipe_count, recipe_capacity;
    const char **aliases;
    int32_t alias_count, alias_capacity;
    sbp_recipe_map map; /* of recipes[0]; set by verify */
} sbp_tensor_entry;

typedef struct sbp_tensor_table {
    sbp_tensor_entry *tensors;
    int32_t count, capacity;
} sbp_tensor_table;

/* Appends the JSON text: deterministic, a line per tensor. */
void sbp_tensor_table_print(sbp_text *out, const sbp_tensor_table *table);
/* Reads and verifies. `file` is for messages. Below a guard. */
sbp_status sbp_tensor_table_parse(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text,
                                  size_t length, sbp_tensor_table **out) SBP_CHECKED;
/* Compiles the canonical recipes and checks: buffers differ; recipes of one tensor give one shape; tensors
 * of one canonical source agree on its shape and cover it exactly. Below a guard of `arena`, where it keeps
 * tables of its own. */
sbp_status sbp_tensor_table_verify(sbp_arena *arena, sbp_diag *diag, sbp_tensor_table *table) SBP_CHECKED;

/* Whether some of it is of an adapter. */
bool sbp_tensor_table_has_adapter(const sbp_tensor_table *table);

/* The tensor that a buffer holds; NULL when there is none. Linear search. */
const sbp_tensor_entry *sbp_tensor_table_find(const sbp_tensor_table *table, const char *buffer);

/* The canonical sources, each with the tensors it is made of. */
typedef struct sbp_tensor_source {
    const sbp_recipe *recipe; /* of the first: name, shape, dtype */
    int64_t elems;
    const sbp_tensor_entry **tensors;
    int32_t count, capacity;
} sbp_tensor_source;

/* In table order of their first tensors; only of trainable tensors when `trainable_only`. Below a guard. */
void sbp_tensor_table_sources(sbp_arena *arena, const sbp_tensor_table *table, bool trainable_only,
                              sbp_tensor_source **out, int32_t *count);

#endif
