/* fit_text.c: what sbpc fit found, as a table and as JSON. */
#include <stdio.h>
#include <string.h>

#include "runtime/cli/sbpc/fit.h"

enum { CARD = 14, KIND = 7, CELL = 10 };

const char *const sbp_fit_kind_names[SBP_FIT_KIND_COUNT] = {"full", "lora", "qlora"};

const sbp_fit_cell *sbp_fit_at(const sbp_fit *f, int32_t model, int32_t card, int32_t kind, int32_t length) {
    return &f->cells[((model * f->card_count + card) * f->kind_count + kind) * (f->length_count + 1) +
                     length];
}

const char *sbp_fit_length(sbp_arena *arena, int64_t tokens) {
    return tokens % 1024 == 0 ? sbp_arena_printf(arena, "%lldk", (long long)(tokens / 1024))
                              : sbp_arena_printf(arena, "%lld", (long long)tokens);
}

const char *sbp_fit_count(sbp_arena *arena, int64_t number) {
    sbp_text out;
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)number);
    sbp_text_init(&out, arena);
    for (int i = 0; i < length; i++)
        sbp_text_add(&out, "%s%c", i > 0 && (length - i) % 3 == 0 ? "," : "", digits[i]);
    return out.data;
}

const char *sbp_fit_parameters(sbp_arena *arena, int64_t number) {
    return number < 1000000      ? sbp_arena_printf(arena, "%.0fK", (double)number / 1e3)
           : number < 1000000000 ? sbp_arena_printf(arena, "%.0fM", (double)number / 1e6)
                                 : sbp_arena_printf(arena, "%.1fB", (double)number / 1e9);
}

/* ---- as text ----------------------------------------------------------------------------------------- */

static const char *seconds_of(const sbp_fit *f, double seconds) {
    char text[32];
    return sbp_arena_strdup(f->arena, sbp_format_seconds(text, sizeof text, seconds));
}

const char *sbp_fit_change(const sbp_fit *f, const sbp_fit_cell *cell) {
    if (!cell->change)
        return "no change that was tried makes it fit";
    if (strncmp(cell->change, "without ", 8) == 0)
        return sbp_arena_printf(f->arena, "fits %s (%s)", cell->change, seconds_of(f, cell->change_seconds));
    return sbp_arena_printf(f->arena, "fits with %s (%s)", cell->change, seconds_of(f, cell->change_seconds));
}

/* "8k and 32k fit with --optimizer sgd (12 s), ..": a line for each length that does not fit. */
static void add_changes(const sbp_fit *f, int32_t m, int32_t c, int32_t k, sbp_text *out) {
    for (int32_t n = 0; n < f->length_count; n++) {
        const sbp_fit_cell *cell = sbp_fit_at(f, m, c, k, n);
        if (cell->fits)
            continue;
        sbp_text line;
        sbp_text_init(&line, f->arena);
        sbp_text_add(&line, "%*s%s %s\n", CARD + KIND + 2, "", sbp_fit_length(f->arena, f->lengths[n]),
                     cell->change || !cell->reason ? sbp_fit_change(f, cell) : cell->reason);
        sbp_text_add_wrapped(out, line.data, SBP_CLI_WIDTH, CARD + KIND + 6);
    }
}

const char *sbp_fit_part(const sbp_fit *f, int32_t m, int32_t c, int32_t k) {
    int64_t all = f->models[m].parameters, trained = 0;
    for (int32_t n = 0; n <= f->length_count; n++)
        trained = sbp_fit_at(f, m, c, k, n)->trained > 0 ? sbp_fit_at(f, m, c, k, n)->trained : trained;
    if (f->kinds[k] != SBP_FIT_FULL || trained <= 0 || trained >= all)
        return NULL;
    return sbp_arena_printf(f->arena, "%s of %s parameters", sbp_fit_parameters(f->arena, trained),
                            sbp_fit_parameters(f->arena, all));
}

/* A line, where the kind's name promises more than is trained. */
static void add_part(const sbp_fit *f, int32_t m, int32_t c, int32_t k, sbp_text *out) {
    const char *part = sbp_fit_part(f, m, c, k);
    if (part)
        sbp_text_add(out, "%*strains %s: the rest is frozen\n", CARD + KIND + 2, "", part);
}

static void add_model(const sbp_fit *f, int32_t m, sbp_text *out) {
    const sbp_fit_model *model = &f->models[m];
    sbp_text_add(out, "%s%s (%s), %s parameters", m > 0 ? "\n" : "", model->name, model->type,
                 sbp_fit_parameters(f->arena, model->parameters));
    if (model->positions > 0)
        sbp_text_add(out, ", made for %s tokens", sbp_fit_count(f->arena, model->positions));
    sbp_text_add(out, "\n%-*s %-*s", CARD, "card", KIND, "kind");
    for (int32_t n = 0; n < f->length_count; n++)
        sbp_text_add(out, " %*s", CELL, sbp_fit_length(f->arena, f->lengths[n]));
    sbp_text_add(out, " %*s\n", CELL + 2, "longest");
    for (int32_t c = 0; c < f->card_count; c++)
        for (int32_t k = 0; k < f->kind_count; k++) {
            const sbp_fit_cell *longest = sbp_fit_at(f, m, c, k, f->length_count);
            sbp_text_add(out, "%-*s %-*s", CARD, k == 0 ? f->card_names[c] : "", KIND,
                         sbp_fit_kind_names[f->kinds[k]]);
            for (int32_t n = 0; n < f->length_count; n++) {
                const sbp_fit_cell *cell = sbp_fit_at(f, m, c, k, n);
                sbp_text_add(out, " %*s", CELL, cell->fits ? seconds_of(f, cell->seconds) : "no");
            }
            sbp_text_add(out, " %*s\n", CELL + 2,
                         longest->fits ? sbp_fit_count(f->arena, longest->tokens) : "-");
            add_part(f, m, c, k, out);
            add_changes(f, m, c, k, out);
        }
}

/* What all of it is based on. */
void sbp_fit_describe(const sbp_fit *f, sbp_text *out) {
    char memory[32], host[32];
    const sbp_options *o = f->options;
    sbp_text_add(out,
                 "Seconds of a step of one document of that length, planned by a cost model: nothing was "
                 "run. no: it "
                 "does not fit. longest: tokens of the longest document that fits, whatever the model was "
                 "made for. lora: adapters as --lora "
                 "%s has them, "
                 "qlora: with --base-dtype %s too; all else as sbpc compile takes it%s%s.",
                 sbp_options_is(o, SBP_OPT_LORA, "off") ? "on" : sbp_options_bundle(o, SBP_OPT_LORA),
                 sbp_options_given(o, SBP_OPT_BASE_DTYPE) ? sbp_options_text(o, SBP_OPT_BASE_DTYPE) : "nf4",
                 *f->given ? ", with " : "", f->given);
    sbp_text_add(out, "\nCards, and what is assumed of their hosts: ");
    for (int32_t c = 0; c < f->card_count; c++) {
        const sbp_fit_cell *cell = sbp_fit_at(f, 0, c, 0, 0);
        for (int32_t m = 0; m < f->model_count && cell->memory_bytes == 0; m++)
            cell = sbp_fit_at(f, m, c, 0, 0);
        sbp_text_add(out, "%s%s %s", c > 0 ? "; " : "", f->card_names[c],
                     sbp_format_bytes(memory, sizeof memory, (double)cell->memory_bytes));
        if (cell->host_memory_bytes > 0)
            sbp_text_add(out, " and %s",
                         sbp_format_bytes(host, sizeof host, (double)cell->host_memory_bytes));
        else
            sbp_text_add(out, " and any amount");
    }
    sbp_text_add(out, ".\n");
}

void sbp_fit_print_text(const sbp_fit *f, sbp_text *out) {
    sbp_text about;
    for (int32_t m = 0; m < f->model_count; m++)
        if (!f->models[m].error)
            add_model(f, m, out);
    sbp_text_init(&about, f->arena);
    sbp_fit_describe(f, &about);
    sbp_text_add(out, "\n");
    sbp_text_add_wrapped(out, about.data, SBP_CLI_WIDTH, 0);
}

/* ---- as JSON ----------------------------------------------------------------------------------------- */

static void write_cell(const sbp_fit *f, const sbp_fit_cell *cell, sbp_json_writer *w) {
    sbp_json_write_object(w, NULL);
    sbp_json_write_string(w, "model", f->models[cell->model].name);
    sbp_json_write_string(w, "card", f->card_names[cell->card]);
    sbp_json_write_string(w, "kind", sbp_fit_kind_names[cell->kind]);
    if (cell->length < f->length_count)
        sbp_json_write_int(w, "tokens", f->lengths[cell->length]);
    else
        sbp_json_write_string(w, "tokens", "longest");
    sbp_json_write_bool(w, "fits", cell->fits);
    if (cell->fits) {
        if (cell->length == f->length_count)
            sbp_json_write_int(w, "longest", cell->tokens);
        sbp_json_write_double(w, "seconds", cell->seconds);
        sbp_json_write_int(w, "trained", cell->trained);
        sbp_json_write_int(w, "device_bytes", cell->device_bytes);
        sbp_json_write_int(w, "host_bytes", cell->host_bytes);
        sbp_json_write_string(w, "offload", *cell->placement ? cell->placement : "none");
        sbp_json_write_end(w);
        return;
    }
    sbp_json_write_string(w, "reason", cell->reason);
    if (cell->change) {
        sbp_json_write_object(w, "cheapest");
        sbp_json_write_string(w, "change", cell->change);
        sbp_json_write_int(w, "tokens", cell->change_tokens);
        sbp_json_write_double(w, "seconds", cell->change_seconds);
        sbp_json_write_end(w);
    }
    sbp_json_write_array(w, "changes");
    for (int32_t i = 0; i < cell->remedy_count; i++) {
        const sbp_remedy *r = &cell->remedies[i];
        sbp_json_write_object(w, NULL);
        sbp_json_write_string(w, "change", r->text);
        sbp_json_write_int(w, "tokens", r->t_max);
        sbp_json_write_double(w, "seconds", r->seconds);
        sbp_json_write_int(w, "device_bytes", r->device_bytes);
        sbp_json_write_int(w, "host_bytes", r->host_bytes);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
    sbp_json_write_end(w);
}

void sbp_fit_print_json(const sbp_fit *f, sbp_text *out) {
    sbp_json_writer w = sbp_json_writer_on(out);
    w.lines = 2;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_string(&w, "sbpc", SBP_VERSION);
    sbp_json_write_string(&w, "options", f->given);
    sbp_json_write_array(&w, "models");
    for (int32_t m = 0; m < f->model_count; m++) {
        const sbp_fit_model *model = &f->models[m];
        sbp_json_write_object(&w, NULL);
        sbp_json_write_string(&w, "model", model->name);
        if (model->error) {
            sbp_json_write_string(&w, "error", model->error);
        } else {
            sbp_json_write_string(&w, "type", model->type);
            sbp_json_write_int(&w, "parameters", model->parameters);
            sbp_json_write_int(&w, "context", model->positions);
        }
        sbp_json_write_end(&w);
    }
    sbp_json_write_end(&w);
    sbp_json_write_array(&w, "cards");
    for (int32_t c = 0; c < f->card_count; c++) {
        sbp_json_write_object(&w, NULL);
        sbp_json_write_string(&w, "card", f->card_names[c]);
        sbp_json_write_int(&w, "memory_bytes", f->cards[c].memory_bytes);
        sbp_json_write_int(&w, "host_memory_bytes",
                           sbp_options_int(f->options, SBP_OPT_HOST_MEMORY) > 0
                               ? sbp_options_int(f->options, SBP_OPT_HOST_MEMORY)
                               : f->cards[c].host_memory_bytes);
        sbp_json_write_end(&w);
    }
    sbp_json_write_end(&w);
    sbp_json_write_array(&w, "cells");
    for (int32_t i = 0; i < f->cell_count; i++)
        if (!f->models[f->cells[i].model].error)
            write_cell(f, &f->cells[i], &w);
    sbp_json_write_end(&w);
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
}
