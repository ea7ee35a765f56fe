/* fit.h: sbpc fit: models x cards x kinds x lengths, each planned as compile would plan it for a device
 * profile: fit.c plans, fit_text.c and fit_page.c say what came of it. */
#ifndef SBP_RUNTIME_CLI_SBPC_FIT_H
#define SBP_RUNTIME_CLI_SBPC_FIT_H

#include "runtime/cli/sbpc/cli.h"

typedef enum sbp_fit_kind { SBP_FIT_FULL, SBP_FIT_LORA, SBP_FIT_QLORA, SBP_FIT_KIND_COUNT } sbp_fit_kind;
extern const char *const sbp_fit_kind_names[SBP_FIT_KIND_COUNT]; /* as --kinds takes them */

/* What one plan came to; a length of 0: the longest. */
typedef struct sbp_fit_cell {
    int32_t model, card, place,
        length; /* indices, place of the kind; length: the longest is behind the last */
    sbp_fit_kind kind;
    bool done, fits;
    int64_t tokens;
    int64_t trained; /* parameters; 0: not known */

    int64_t device_bytes, host_bytes, memory_bytes, host_memory_bytes; /* taken, and there; 0: any amount */
    double seconds;
    const char *placement; /* "checkpoints+states": what lives on the host; "": nothing */
    const char *reason;    /* why it does not fit */
    const sbp_remedy *remedies;
    int32_t remedy_count;
    /* The cheapest change by which it fits, as options of compile; NULL: none is known. What trains the same
     * on as many tokens comes first, by its seconds; then fewer tokens, then another kind, then another
     * optimizer. */
    const char *change;
    int64_t change_tokens;
    double change_seconds;
    sbp_status status; /* of what is wrong otherwise */
} sbp_fit_cell;

typedef struct sbp_fit_model {
    const char *argument, *path, *name, *type; /* type NULL: nothing was planned */
    int64_t parameters;
    int64_t positions; /* what the model was made for; 0: not known */
    const char *error; /* why nothing could be; NULL */
} sbp_fit_model;

typedef struct sbp_fit {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_options *options;
    sbp_fit_model *models;
    sbp_profile *cards;
    const char **card_names; /* of files, without their folders */
    sbp_fit_kind *kinds;
    int64_t *lengths;
    int32_t model_count, card_count, kind_count, length_count;
    /* by model, card, kind, length, the longest behind these */
    sbp_fit_cell *cells;
    int32_t cell_count;
    const char *given; /* options of compile that were given, for people; "": none */
    sbp_arena **kept;  /* of threads, in which texts of cells lie */
    int32_t kept_count;
} sbp_fit;

/* The cell of indices; length_count: the longest. */
const sbp_fit_cell *sbp_fit_at(const sbp_fit *fit, int32_t model, int32_t card, int32_t kind, int32_t length);
/* "8k", "1000" */
const char *sbp_fit_length(sbp_arena *arena, int64_t tokens);
/* "131,072" */
const char *sbp_fit_count(sbp_arena *arena, int64_t number);
/* "8.0B" */
const char *sbp_fit_parameters(sbp_arena *arena, int64_t number);

/* "1.8B of 20.9B parameters" where a kind that is called full trains only part of them; NULL: all. */
const char *sbp_fit_part(const sbp_fit *fit, int32_t model, int32_t card, int32_t kind);
/* What makes a cell fit, for people. */
const char *sbp_fit_change(const sbp_fit *fit, const sbp_fit_cell *cell);
/* What figures mean and are based on: two lines of any length. */
void sbp_fit_describe(const sbp_fit *fit, sbp_text *out);

void sbp_fit_print_text(const sbp_fit *fit, sbp_text *out);
void sbp_fit_print_json(const sbp_fit *fit, sbp_text *out);
void sbp_fit_print_page(const sbp_fit *fit, sbp_text *out);

#endif
