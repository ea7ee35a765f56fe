/* run_rows.c: rows as people see them before they train on them: the tokens that the model gets, special ones
 * as well, and what each counts in the loss. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/cli/sbprun/outputs.h"

enum { SHOWN_TOKENS = 400, SHOWN_TOKENS_WHEN_ASKED = 4000 };

typedef struct row_writer {
    const sbp_world *world;
    sbp_inputs *inputs;
    const sbp_session *session;
    sbp_showing how;
    sbp_text *out;
    sbp_arena *arena; /* of the tokenizer and what it decodes */
    const sbp_tokenizer *tokenizer;
} row_writer;

/* Tokens that look alike. */
typedef struct stretch {
    double weight; /* 0: they are not trained */
    bool special;
    bool told; /* the weight stands before the tokens like these in front of them */
} stretch;

static bool is_told(stretch look) {
    return look.weight == 0 || look.weight == 1 || look.told;
}

static stretch look_of(const row_writer *w, const sbp_doc *doc, int64_t i) {
    const sbp_dataset *data = w->inputs->data;
    int32_t column = sbp_dataset_column(data, sbp_data_columns[SBP_DATA_WEIGHT].name);
    bool trained = i > 0 && data->labels[doc->first + i] >= 0,
         weighed = trained && column >= 0 && (doc->columns >> column & 1);
    return (stretch){.weight = weighed ? data->columns[column][doc->first + i] : trained,
                     .special = w->how != SBP_SHOW_PLAIN && w->tokenizer &&
                                sbp_tokenizer_is_special(w->tokenizer, data->tokens[doc->first + i])};
}

/* ---- looks ------------------------------------------------------------------------------------------ */

/* Escape sequences of terminals: trained green, or yellow where a token does not count 1; the rest faint;
 * special tokens underlined. */
static void begin_colour(sbp_text *out, stretch look) {
    sbp_text_add(out, "\033[%s%sm",
                 look.weight == 0   ? "2"
                 : look.weight == 1 ? "32"
                                    : "33",
                 look.special ? ";4" : "");
    if (!is_told(look))
        sbp_text_add(out, "%gx ", look.weight);
}

static void begin_html(sbp_text *out, stretch look) {
    sbp_text_add(out, "<span class=\"%s%s\"",
                 look.weight == 0   ? "no"
                 : look.weight == 1 ? "yes"
                                    : "part",
                 look.special ? " special" : "");
    if (look.weight != 0 && look.weight != 1)
        sbp_text_add(out, " title=\"weight %g\"", look.weight);
    sbp_text_add(out, ">");
    if (!is_told(look))
        sbp_text_add(out, "<sub>%g</sub>", look.weight);
}

static void begin_look(const row_writer *w, stretch look) {
    if (w->how == SBP_SHOW_COLOURS)
        begin_colour(w->out, look);
    else if (w->how == SBP_SHOW_HTML)
        begin_html(w->out, look);
    else if (!is_told(look))
        sbp_text_add(w->out, "[[%gx ", look.weight);
    else
        sbp_text_add(w->out, look.weight != 0 ? "[[" : "");
}

static void end_look(const row_writer *w, stretch look) {
    if (w->how == SBP_SHOW_COLOURS)
        sbp_text_add(w->out, "\033[0m");
    else if (w->how == SBP_SHOW_HTML)
        sbp_text_add(w->out, "</span>");
    else
        sbp_text_add(w->out, look.weight != 0 ? "]]" : "");
}

/* A terminal does what control characters of a text say: '?' stands for them. */
static void add_text(const row_writer *w, const char *text, size_t length) {
    unsigned char *copy = (unsigned char *)sbp_arena_strndup(w->arena, text, length);
    bool plain = w->how == SBP_SHOW_PLAIN && !isatty(STDOUT_FILENO);
    for (size_t i = 0; i < length && !plain; i++) {
        bool upper = copy[i] == 0xc2 && i + 1 < length && copy[i + 1] < 0xa0; /* U+0080 to U+009F */
        if ((copy[i] < ' ' && copy[i] != '\n' && copy[i] != '\t') || copy[i] == 0x7f || upper)
            copy[i] = '?';
        if (upper)
            copy[i + 1] = '?';
    }
    if (w->how != SBP_SHOW_HTML) {
        sbp_text_add_n(w->out, (const char *)copy, length);
        return;
    }
    for (char *line = (char *)copy, *end; line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (end)
            *end = 0;
        sbp_text_add_escaped(w->out, line);
        sbp_text_add(w->out, end ? "\n" : "");
    }
}

static void add_legend(const row_writer *w) {
    static const struct {
        stretch look;
        const char *name;
    } looks[] = {
        {{1, false, true}, "trained"}, {{0, false, true}, "not trained"}, {{0, true, true}, "special token"}};
    if (w->how == SBP_SHOW_PLAIN) {
        sbp_text_add(w->out, "first rows of the first step, trained tokens in [[ ]]:\n");
        return;
    }
    sbp_text_add(w->out, w->how == SBP_SHOW_HTML ? "<p>The first rows of the first step: "
                                                 : "first rows of the first step: ");
    for (int i = 0; i < SBP_COUNT(looks); i++) {
        begin_look(w, looks[i].look);
        sbp_text_add(w->out, "%s", looks[i].name);
        end_look(w, looks[i].look);
        sbp_text_add(w->out, i + 1 < SBP_COUNT(looks) ? ", " : "");
    }
    sbp_text_add(w->out, w->how == SBP_SHOW_HTML ? "; with a number, what a token counts.</p>\n" : "\n");
}

/* ---- rows ------------------------------------------------------------------------------------------- */

/* Text of tokens [from, to) of a document, as they stand in it; ids where there is no tokenizer. */
static sbp_status add_tokens(const row_writer *w, const sbp_doc *doc, int64_t from, int64_t to) {
    const int32_t *ids = w->inputs->data->tokens + doc->first;
    const char *before, *all;
    size_t before_length, all_length;
    for (int64_t k = from; !w->tokenizer && k < to; k++)
        sbp_text_add(w->out, "%s%d", k > 0 ? " " : "", ids[k]);
    if (!w->tokenizer)
        return SBP_OK;
    SBP_TRY(sbp_tokenizer_decode(w->tokenizer, w->arena, w->world->diag, ids, from, false, &before,
                                 &before_length));
    SBP_TRY(sbp_tokenizer_decode(w->tokenizer, w->arena, w->world->diag, ids, to, false, &all, &all_length));
    if (before_length < all_length)
        add_text(w, all + before_length, all_length - before_length);
    return SBP_OK;
}

static sbp_status add_document(const row_writer *w, const sbp_doc *doc) {
    int64_t most =
        sbp_options_chosen(w->world->options, SBP_OPT_SHOW) ? SHOWN_TOKENS_WHEN_ASKED : SHOWN_TOKENS;
    int64_t count = doc->count < most ? doc->count : most;
    sbp_text_add(w->out, w->how == SBP_SHOW_HTML ? "<pre>row %lld: " : "row %lld: ", (long long)doc->row);
    double told = 0;
    for (int64_t i = 0, end; i < count; i = end) {
        stretch look = look_of(w, doc, i), next = look;
        look.told = look.weight == told;
        told = look.weight;
        for (end = i + 1; end < count; end++) {
            next = look_of(w, doc, end);
            if (next.weight != look.weight || next.special != look.special)
                break;
        }
        begin_look(w, look);
        SBP_TRY(add_tokens(w, doc, i, end));
        end_look(w, look);
    }
    sbp_text_add(w->out, "%s%s\n", count < doc->count ? " ..." : "", w->how == SBP_SHOW_HTML ? "</pre>" : "");
    return SBP_OK;
}

static sbp_status add_rows(const row_writer *w, int64_t most) {
    const sbp_dataset *d = w->inputs->data;
    int64_t shown = 0; /* rows; documents where rows are packed of many */
    while (shown < most && shown < d->row_count) {
        int64_t count;
        const int64_t *rows = sbp_sampler_next(&w->inputs->sampler, &count);
        for (int64_t r = 0; r < count && shown < most; r++, shown += !d->packed_rows)
            for (int64_t k = d->rows[rows[r]]; k < d->rows[rows[r] + 1]; k++) {
                if (d->packed_rows && shown++ == most)
                    return SBP_OK;
                SBP_TRY(add_document(w, &d->docs[sbp_dataset_doc_at(d, k)]));
            }
    }
    return SBP_OK;
}

static sbp_status show_body(void *user) {
    row_writer *w = user;
    const sbp_plan *plan = w->session->plan;
    if (plan->tokenizer_bytes > 0)
        SBP_TRY(sbp_tokenizer_from_json(w->arena, w->world->diag, plan->path, plan->tokenizer,
                                        (size_t)plan->tokenizer_bytes, &w->tokenizer));
    add_legend(w);
    SBP_TRY(add_rows(w, sbp_options_int(w->world->options, SBP_OPT_SHOW)));
    sbp_sampler_seek(&w->inputs->sampler, 0, 0);
    return SBP_OK;
}

sbp_showing sbp_run_showing(void) {
    const char *no_colour = getenv("NO_COLOR"), *terminal = getenv("TERM");
    bool dumb = terminal && strcmp(terminal, "dumb") == 0;
    return isatty(STDOUT_FILENO) && !dumb && !(no_colour && *no_colour) ? SBP_SHOW_COLOURS : SBP_SHOW_PLAIN;
}

sbp_status sbp_run_show_rows(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session,
                             sbp_showing how, sbp_text *out) {
    row_writer w = {.world = world,
                    .inputs = inputs,
                    .session = session,
                    .how = how,
                    .out = out,
                    .arena = sbp_arena_create()};
    if (!w.arena)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for the first rows");
    sbp_status status = sbp_options_int(world->options, SBP_OPT_SHOW) > 0
                            ? sbp_guard(w.arena, world->diag, show_body, &w)
                            : SBP_OK;
    sbp_arena_destroy(w.arena);
    return status;
}
