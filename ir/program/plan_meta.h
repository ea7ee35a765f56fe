/* plan_meta.h: what a plan says of itself (plan_meta.def), written by sbpc and read by both programs. What is
 * missing counts as null.
 *
 * Ownership: what was read lives as long as the JSON tree that it was read from. Errors: SBP_INPUT, naming
 * file and member. */
#ifndef SBP_IR_PROGRAM_PLAN_META_H
#define SBP_IR_PROGRAM_PLAN_META_H

#include "ir/base/json_write.h"

typedef struct sbp_plan_meta {
#define TEXT(object, key, what) const char *key;
#define COUNT(object, key, most, what) int64_t key;
#define ID(object, key, what) int64_t key;
#define TREE(object, shape, key, what) const sbp_json *key;
#include "ir/program/plan_meta.def"
} sbp_plan_meta;

/* In "memory": what the process takes beside the arenas, with as many threads as the plan is for. */
#define SBP_PLAN_PROCESS "the process itself"

/* The trees as they are to be written: texts of JSON; NULL: null. */
typedef struct sbp_plan_trees {
#define TREE(object, shape, key, what) const char *key;
#include "ir/program/plan_meta.def"
} sbp_plan_trees;

/* Writing takes the trees from `trees`; what `meta` has of them is not looked at. Call below a guard. */
void sbp_plan_meta_write(sbp_text *out, const sbp_plan_meta *meta, const sbp_plan_trees *trees);
sbp_status sbp_plan_meta_read(sbp_diag *diag, const sbp_json *root, sbp_plan_meta *out) SBP_CHECKED;

#endif
