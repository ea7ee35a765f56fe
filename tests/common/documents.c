/* documents.c: packed documents for tests. */
#include "tests/common/documents.h"

#include <assert.h>
#include <string.h>

#include "ir/program/contract.h"
#include "tests/common/testing.h"

/* Appends a family: a prompt (length 0: none) and completions; without prompt each completion is a document.
 */
static void add_family(documents *d, int64_t prompt, const int64_t *completions, int64_t count) {
    int64_t begin = d->rows;
    for (int64_t k = -1; k < count; k++) {
        int64_t length = k < 0 ? prompt : completions[k], start = d->rows;
        bool shares = k >= 0 && prompt > 0;
        for (int64_t i = 0; i < length; i++, d->rows++) {
            assert(d->rows < DOCUMENTS_MAX_ROWS);
            d->first[d->rows] = begin;
            d->shared_end[d->rows] = shares ? begin + prompt : begin;
            d->own[d->rows] = shares ? start : begin;
            d->position[d->rows] = (shares ? prompt : 0) + i;
            d->family[d->rows] = d->families;
        }
    }
    d->families++;
}

static void add_document(documents *d, int64_t length) {
    add_family(d, 0, &length, 1);
}

documents documents_layout(int64_t rows) {
    documents d = {0};
    int64_t last = rows >= 8, plain = rows / 4;
    int64_t rest = rows - last - plain, prompt = rest / 4;
    if (plain > 0)
        add_document(&d, plain);
    int64_t half = (rest - prompt) / 2, completions[] = {half, rest - prompt - half};
    if (prompt > 0)
        add_family(&d, prompt, completions, 2);
    else if (rest > 0)
        add_document(&d, rest);
    if (last)
        add_document(&d, 1);
    return d;
}

documents documents_random(int64_t rows, sbp_rng *rng) {
    documents d = {0};
    while (d.rows < rows) {
        int64_t left = rows - d.rows, length = 1 + sbp_rng_below(rng, left < 9 ? left : 9);
        if (sbp_rng_below(rng, 2) == 0 || left < 4) {
            add_document(&d, length);
            continue;
        }
        int64_t completions[3], count = 1 + sbp_rng_below(rng, 3), prompt = 1 + sbp_rng_below(rng, left - 3);
        left -= prompt;
        for (int64_t k = 0; k < count; k++) {
            completions[k] = left > 0 ? 1 + sbp_rng_below(rng, left) : 0;
            left -= completions[k];
        }
        add_family(&d, prompt, completions, count);
    }
    return d;
}

int64_t documents_distance(const documents *d, int64_t r, int64_t c) {
    if (c >= d->own[r] && c <= r)
        return r - c;
    if (c >= d->first[r] && c < d->shared_end[r])
        return d->position[r] - (c - d->first[r]);
    return -1;
}

bool documents_allow(const documents *d, sbp_seq seq, int64_t r, int64_t s) {
    int64_t back = documents_distance(d, r, s), ahead = documents_distance(d, s, r);
    switch (seq.kind) {
    case SBP_SEQ_ROW:
        return r == s;
    case SBP_SEQ_WINDOW:
        return back >= 0 && back < seq.window;
    case SBP_SEQ_RECUR:
        return s >= d->own[r] && s <= r;
    case SBP_SEQ_AFTER:
        return r >= d->own[s] && r <= s;
    case SBP_SEQ_PREFIX:
        return back >= 0;
    case SBP_SEQ_MIRROR:
        return ahead >= 0 && ahead < seq.window;
    case SBP_SEQ_SUFFIX:
        return ahead >= 0;
    case SBP_SEQ_REDUCE:
    case SBP_SEQ_ALL:
        return true;
    default:
        return false;
    }
}

double document_rows_value(const document_rows *rows, const char *name, int64_t r) {
    const struct {
        const char *name;
        const int32_t *data;
    } columns[] = {{"tok", rows->tok},          {"pos", rows->pos},   {"first", rows->first},
                   {"shared_end", rows->first}, {"own", rows->first}, {"label", rows->label}};
    for (int i = 0; i < SBP_COUNT(columns); i++)
        if (strcmp(columns[i].name, name) == 0)
            return columns[i].data[r];
    const int64_t below = sbp_column_number(name, SBP_TOK_BELOW_PREFIX);
    if (below > 0)
        return rows->tok[r] < below ? rows->tok[r] : 0;
    if (strcmp(name, "copies") != 0)
        fail_msg("no row input '%s'", name);
    return 1;
}
