/* objective.h: losses: small graphs over one number per row.
 *
 * An objective becomes function @objective of the module:
 *   arguments  streams [T] named as the results of @model: logp, entropy, hit; what it asks for of the data:
 *              row inputs [T], numbers per group [S], scalars of the step
 *   results    plain, rank 0, fp64: "loss" first, which is minimised, then metrics under TRL's names
 * Every result is a sum over rows, or over groups of rows, of a term that is already divided by its step-wide
 * denominator: the results of the micro-batches of a step, and of ranks, add up, and so do gradients.
 *
 * Rows and groups. S is the number of groups of a micro-batch, and an objective has one kind of them: an
 * index [T] says which group a row is of (sbp_objective_index), sbp_objective_group_sum adds a term up over
 * the rows of each, in fp64, and what is computed from such sums is [S] and fp64 too: a sum of 50,000
 * log-probabilities has no digits to spare. Values [T] have the type of logp.
 *
 * Settings are numbers that the user may choose at compile time and again at each run (--beta): scalars of
 * the step with a default.
 *
 * What depends on data alone goes into @prepare (ir/graph/prepare.h), a graph over all rows of the step: sums
 * and means over groups that micro-batches part, and over the step. sbp_objective_prepare gives the place to
 * build it, with the same functions; what sbp_objective_prepared names there, the loss reads by that name as
 * if rows had it.
 *
 * Statistics. What is no sum over rows but a function of such sums in a micro-batch (of routers:
 * statistics.c) is function @statistics: its arguments are those results of @model, or (SBP_OF_STEP) their
 * sums over a step, its results are added to those of @objective of the same name.
 *
 * To add one: a file objective_<name>.c with one function, and its line in objectives.def.
 */
#ifndef SBP_FRONTENDS_OBJECTIVES_OBJECTIVE_H
#define SBP_FRONTENDS_OBJECTIVES_OBJECTIVE_H

#include "frontends/source/head.h"
#include "ir/graph/graph.h"
#include "ir/program/contract.h"

/* Names of statistics of routers, results of @model [experts]: choices and probabilities of all rows. */
#define SBP_STATISTIC_CHOICES "expert_choices"
#define SBP_STATISTIC_PROBABILITIES "expert_probabilities"

/* settings.def: the numbers that users choose, which are options too. */
typedef enum sbp_setting_id {
#define OPTION(id, ...) SBP_SETTING_##id,
#define KEY OPTION
#include "frontends/objectives/settings.def"
#undef KEY
#undef OPTION
    SBP_SETTING_COUNT
} sbp_setting_id;

typedef struct sbp_setting {
    const char *name; /* of the scalar; the option is called so too, with dashes */
    double value;     /* the default */
} sbp_setting;

/* What makes another graph, beside the variant. */
typedef struct sbp_objective_request {
    bool by_sequence;          /* importance ratios are those of sequences, not of tokens */
    const char *sampling_mode; /* how log-probabilities of the sampler are made up for; NULL: the default */
    bool sampling_ignored;     /* they are not */
    bool entropy_bonus;        /* the loss has a term of the entropy */
    sbp_balance balance;       /* the model's, where it has probabilities of experts */
} sbp_objective_request;

typedef struct sbp_objective {
    sbp_builder *builder;
    const char *loss_type; /* variant; NULL: the default */
    sbp_objective_request request;
    sbp_dtype dtype;              /* of logp, entropy, hit: fp32 or fp64 */
    sbp_value logp, entropy, hit; /* of @prepare: SBP_NO_VALUE */
    sbp_value value;              /* where the head has one (frontends/source/head.h) */
    const char *counted; /* a row input: where it is 0, nothing of logp, entropy, hit and value is read */
    /* what of the loss depends on weights and is taken for a constant, so that gradients are not its
     * derivatives; NULL: nothing */
    const char *held;
    sbp_setting *settings; /* that it has asked for */
    int32_t setting_count, setting_capacity;
    int32_t passes;                /* that a batch is used for, unless --inner-epochs says else; 0: one */
    struct sbp_objective *prepare; /* NULL: none yet */
    struct sbp_objective *loss;    /* of @prepare: the objective that it is of */
} sbp_objective;

/* Errors stick in objective->builder->status. */
typedef void (*sbp_objective_builder)(sbp_objective *objective);

/* Which objective. */
typedef struct sbp_objective_choice {
    const char *name;            /* in objectives.def, or .. */
    sbp_objective_builder build; /* .. one that is not in the table */
    const char *loss_type;
    sbp_objective_request request;
} sbp_objective_choice;

typedef struct sbp_objective_settings {
    const sbp_setting *items;
    int32_t count;
    int32_t passes;            /* over a batch; 0: one */
    const char *counted;       /* sbp_objective.counted; NULL: all rows may be read */
    const char *held;          /* sbp_objective.held */
    const sbp_module *prepare; /* the module of @prepare; NULL: there is none */
} sbp_objective_settings;

/* Adds @objective to a module that has @model. settings: what it asked for, in the module's arena; NULL: not
 * wanted. An unknown name or variant is SBP_USAGE and lists what there is. Needs no guard. */
sbp_status sbp_objective_add(sbp_module *module, sbp_diag *diag, const sbp_objective_choice *choice,
                             sbp_objective_settings *settings) SBP_CHECKED;
/* What an objective wants of the head of the model; nothing, when there is none of that name. */
sbp_head_options sbp_objective_head(const char *name);
/* Names in the table; NULL after the last. */
const char *sbp_objective_name(int32_t index);
/* The first in the table that takes preferences: what rows of that kind are for. */
const char *sbp_objective_of_pairs(void);
/* NULL when there is none of that name. */
sbp_objective_builder sbp_objective_find(const char *name);

/* ---- for builders ---------------------------------------------------------------------------------- */

/* Numbers per row [T] in the dtype of the objective: a column of the data; 1 where the row has it, where its
 * document is that part of a row of data, where it has one of two columns, else 0; what @prepare gives. */
sbp_value sbp_objective_row(sbp_objective *objective, sbp_column_id column);
sbp_value sbp_objective_has(sbp_objective *objective, sbp_column_id column);
sbp_value sbp_objective_in(sbp_objective *objective, sbp_part_id part);
sbp_value sbp_objective_one_of(sbp_objective *objective, sbp_column_id a, sbp_column_id b);
sbp_value sbp_objective_prepared_row(sbp_objective *objective, const char *name);
/* Scalars of the step in that dtype: one that the runtime sets; a total of the data, or of one part of its
 * rows; the same in fp64 (SBP_PART_COUNT: of all parts); a number that @prepare gives. */
sbp_value sbp_objective_scalar(sbp_objective *objective, sbp_scalar_id scalar);
sbp_value sbp_objective_total(sbp_objective *objective, sbp_total_id total);
sbp_value sbp_objective_part_total(sbp_objective *objective, sbp_total_id total, sbp_part_id part);
sbp_value sbp_objective_wide_total(sbp_objective *objective, sbp_total_id total, sbp_part_id part);
sbp_value sbp_objective_prepared_number(sbp_objective *objective, const char *name);
/* Makes a setting known; where it is already, nothing. */
void sbp_objective_add_setting(sbp_objective *objective, const char *name, double fallback);
/* A setting, as scalar in the dtype of `like`, with which it is to be combined. */
sbp_value sbp_objective_setting(sbp_objective *objective, sbp_setting_id id, double fallback, sbp_value like);
/* The group of each row, i32 [T]; a number per group, fp64 [S], of the group's document of that part
 * (SBP_PART_COUNT: of its only one). */
sbp_value sbp_objective_index(sbp_objective *objective, sbp_column_id column);
sbp_value sbp_objective_group(sbp_objective *objective, sbp_column_id column, sbp_part_id part);
/* Sums of a term [T] over the rows of each group, fp64 [S]. */
sbp_value sbp_objective_group_sum(sbp_objective *objective, sbp_value term, sbp_value index);
/* A value per group [S] for each row of it: [T], in the dtype of the objective. */
sbp_value sbp_objective_of_group(sbp_objective *objective, sbp_value value, sbp_value index);
/* A number in the type of `like`. */
sbp_value sbp_objective_number(sbp_objective *objective, double value, sbp_value like);
/* 1 where a < b, else 0, in their type. */
sbp_value sbp_objective_less(sbp_objective *objective, sbp_value a, sbp_value b);
/* The result `name`: the sum of `term`, [T] or [S]; a second one of that name is added to the first. */
void sbp_objective_result(sbp_objective *objective, const char *name, sbp_value term);
/* Where @prepare is built: everything in fp64, T all rows of the step, S the documents of the step, so that
 * indices "doc", "unit" and "group" may be used beside each other. */
sbp_objective *sbp_objective_prepare(sbp_objective *objective);
/* A value of @prepare, [T] or a number, which the loss may read by this name; numbers are metrics, too. */
void sbp_objective_prepared(sbp_objective *prepare, const char *name, sbp_value value);
/* Function @statistics, where @model has statistics; their settings become those of the objective. */
sbp_status sbp_objective_add_statistics(sbp_objective *objective, const sbp_func *model,
                                        const sbp_balance *balance) SBP_CHECKED;
/* A message about loss_type, which sticks; `known` lists what there is. */
void sbp_objective_refuse(sbp_objective *objective, const char *objective_name, const char *known);

#define OBJECTIVE(name, function, ...) void function(sbp_objective *objective);
#include "frontends/objectives/objectives.def"
#undef OBJECTIVE
enum {
    SBP_OBJECTIVE_COUNT = 0
#define OBJECTIVE(...) +1
#include "frontends/objectives/objectives.def"
#undef OBJECTIVE
};

#endif
