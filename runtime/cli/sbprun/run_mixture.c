/* run_mixture.c: which rows of the data are taken: weights of their parts, and rows that are held out. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbprun/outputs.h"

/* Where the weights came from, for messages. */
static const char *said_in(const sbp_world *world) {
    const char *config = sbp_options_from_config(world->options, SBP_OPT_MIXTURE_WEIGHTS);
    return config ? sbp_arena_printf(world->arena, "%s: ", config) : "";
}

static sbp_status read_weight(const sbp_world *world, const char *text, sbp_mixture_rows rows, double *out) {
    char *end;
    *out = NAN;
    if (strcasecmp(text, "none") == 0)
        return SBP_OK;
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out) || *out < 0)
        return sbp_fail(world->diag, SBP_USAGE, "%s--mixture-weights: found '%.60s', expected %s",
                        said_in(world), text,
                        rows == SBP_MIXTURE_SHARES ? "0 or a number above" : "a number of 0 to 1, or none");
    if (*out > 1 && rows != SBP_MIXTURE_SHARES)
        return sbp_fail(world->diag, SBP_USAGE,
                        "%s--mixture-weights: %s is above 1, and no row is taken twice: give the data twice "
                        "(--data), with 1 and what is left (--mixture-rows shares: weights are shares)",
                        said_in(world), text);
    return SBP_OK;
}

/* Weights, separated by ',' or given one by one. */
static sbp_status read_weights(const sbp_world *world, sbp_arena *arena, sbp_mixture *m, double *weights) {
    int32_t count = 0;
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_MIXTURE_WEIGHTS); i++) {
        char *rest = sbp_arena_strdup(arena, sbp_options_list_at(world->options, SBP_OPT_MIXTURE_WEIGHTS, i));
        for (char *text; (text = strtok_r(rest, ", ", &rest)); count++) {
            double weight;
            SBP_TRY(read_weight(world, text, m->rows, &weight));
            if (count < m->part_count)
                weights[count] = weight;
        }
        m->weighted = true;
    }
    if (m->weighted && count != m->part_count)
        return sbp_fail(
            world->diag, SBP_USAGE,
            "%s--mixture-weights has %d weight%s, --data is given %d time%s: give one for each, in "
            "their order (none: all of its rows)",
            said_in(world), (int)count, count == 1 ? "" : "s", (int)m->part_count,
            m->part_count == 1 ? "" : "s");
    return SBP_OK;
}

/* Checks weights that are shares, as TRL has them. */
static sbp_status check_shares(const sbp_world *world, const sbp_mixture *m, const double *weights) {
    double sum = 0;
    bool lacks = false;
    for (int32_t i = 0; i < m->part_count; i++) {
        lacks |= isnan(weights[i]);
        sum += weights[i];
    }
    if (lacks || !(sum > 0) || isinf(sum))
        return sbp_fail(world->diag, SBP_USAGE, "%s--mixture-weights: %s: give each --data its share",
                        said_in(world),
                        lacks      ? "some have a share (fraction) and others none"
                        : sum == 0 ? "all shares are 0"
                                   : "the shares are too large to add");
    return SBP_OK;
}

static sbp_status read_test_size(const sbp_world *world, double *out) {
    const sbp_options *o = world->options;
    *out = 0;
    if (!sbp_options_given(o, SBP_OPT_TEST_SPLIT_SIZE))
        return SBP_OK;
    const char *text = sbp_options_text(o, SBP_OPT_TEST_SPLIT_SIZE);
    *out = sbp_options_double(o, SBP_OPT_TEST_SPLIT_SIZE);
    if (*out >= 1 && strspn(text, "0123456789") != strlen(text))
        return sbp_fail(
            world->diag, SBP_USAGE,
            "--test-split-size %s: expected a share of the rows, below 1, or a whole number of them", text);
    return SBP_OK;
}

/* Refuses what says how rows are chosen where none are: on the command line it is a mistake. */
static sbp_status check_use(const sbp_world *world, const sbp_mixture *m) {
    static const sbp_option_id how[] = {SBP_OPT_MIXTURE_ROWS, SBP_OPT_MIXTURE_SEED};
    for (int i = 0; i < SBP_COUNT(how); i++)
        if (!m->weighted && m->test_size == 0 && sbp_options_given(world->options, how[i]) &&
            !sbp_options_from_config(world->options, how[i]))
            return sbp_fail(world->diag, SBP_USAGE,
                            "--%s has no effect without --mixture-weights or --test-split-size: leave it out",
                            sbp_option_name(how[i]));
    return SBP_OK;
}

sbp_status sbp_run_find_mixture(const sbp_world *world, sbp_arena *arena, sbp_mixture *out) {
    const sbp_options *o = world->options;
    int32_t count = sbp_options_list_count(o, SBP_OPT_DATA);
    double *weights = SBP_NEW_ARRAY(arena, double, count + 1);
    sbp_mixture_part *parts = SBP_NEW_ARRAY(arena, sbp_mixture_part, count + 1);
    *out = (sbp_mixture){.parts = parts,
                         .part_count = count,
                         .rows = sbp_options_is(o, SBP_OPT_MIXTURE_ROWS, "first")    ? SBP_MIXTURE_FIRST
                                 : sbp_options_is(o, SBP_OPT_MIXTURE_ROWS, "shares") ? SBP_MIXTURE_SHARES
                                                                                     : SBP_MIXTURE_RANDOM,
                         .seed = (uint64_t)sbp_options_int(o, SBP_OPT_MIXTURE_SEED)};
    SBP_TRY(read_weights(world, arena, out, weights));
    SBP_TRY(read_test_size(world, &out->test_size));
    SBP_TRY(check_use(world, out));
    if (out->weighted && out->rows == SBP_MIXTURE_SHARES)
        SBP_TRY(check_shares(world, out, weights));
    for (int32_t i = 0; i < count; i++) {
        const char *path = sbp_options_list_at(o, SBP_OPT_DATA, i), *name = sbp_run_dataset_name(arena, path);
        parts[i] = (sbp_mixture_part){.name = name ? name : path, .weight = out->weighted ? weights[i] : NAN};
    }
    return SBP_OK;
}

bool sbp_run_evaluates_held_out(const sbp_world *world, const sbp_session *session) {
    const sbp_options *o = world->options;
    return sbp_options_given(o, SBP_OPT_TEST_SPLIT_SIZE) && sbp_options_list_count(o, SBP_OPT_EVAL) == 0 &&
           !session->evaluates_nothing && !session->check;
}

const char *sbp_run_eval_name(const sbp_world *world, int32_t index) {
    return index < sbp_options_list_count(world->options, SBP_OPT_EVAL)
               ? sbp_options_list_at(world->options, SBP_OPT_EVAL, index)
               : "rows that are held out";
}
