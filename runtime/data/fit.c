/* fit.c: rows that are too long. */
#include "runtime/data/fit.h"

#include <string.h>

int64_t sbp_documents_tokens(const sbp_documents *d) {
    int64_t tokens = 0;
    for (int32_t i = 0; i < d->count; i++)
        tokens += d->documents[i].count;
    return tokens;
}

const char *sbp_documents_lengths(sbp_arena *arena, const sbp_documents *d) {
    sbp_text out;
    sbp_text_init(&out, arena);
    sbp_text_add(&out, d->count == 2 ? "a pair of " : "a document of ");
    for (int32_t i = 0; i < d->count; i++)
        sbp_text_add(&out, "%s%lld", i ? " + " : "", (long long)d->documents[i].count);
    sbp_text_add(&out, " tokens");
    for (int32_t i = 0; d->count > 1 && i < d->count; i++)
        sbp_text_add(&out, "%s%s%s", i ? ", " : " (", d->documents[i].part, i + 1 == d->count ? ")" : "");
    return out.data;
}

static bool has_label(const sbp_document *d) {
    for (int64_t i = 0; i < d->count; i++)
        if (d->labels[i] >= 0)
            return true;
    return false;
}

static bool is_prompt(const sbp_document *d) {
    return strcmp(d->part, "prompt") == 0;
}

static sbp_fit cut(sbp_documents *d, int64_t room, bool keep_unlabelled) {
    int64_t share = room / d->count;
    sbp_fit fit = SBP_FIT_WHOLE;
    for (int32_t i = 0; i < d->count; i++) {
        sbp_document *one = &d->documents[i];
        bool pair = d->count > 1, longer = one->count > share;
        if ((is_prompt(one) && longer) || (pair && one->prompt >= share))
            return SBP_FIT_CUT_AWAY;
        if (longer) {
            one->count = share;
            one->prompt = one->prompt < share ? one->prompt : share;
            fit = SBP_FIT_CUT;
        }
        if (!pair && !is_prompt(one) && !keep_unlabelled && !has_label(one))
            return SBP_FIT_CUT_AWAY;
    }
    return fit;
}

bool sbp_documents_can_split(const sbp_documents *d) {
    const sbp_document *whole = d->documents;
    bool columns = whole->column_count > 0;
    if (whole->column_count == 1 && strcmp(whole->columns->name, sbp_data_columns[SBP_DATA_WEIGHT].name) == 0)
        columns = false; /* goes with the labels */
    return d->count == 1 && !columns && whole->number_count == 0 && !is_prompt(whole);
}

static sbp_fit split(sbp_arena *arena, sbp_documents *d, int64_t room) {
    const sbp_document *whole = d->documents;
    if (!sbp_documents_can_split(d))
        return SBP_FIT_OVERLONG;
    int64_t count = sbp_ceil_div(whole->count, room);
    sbp_document *pieces = SBP_NEW_ARRAY(arena, sbp_document, count);
    for (int64_t k = 0, at = 0; k < count; k++, at += room) {
        pieces[k] = *whole;
        pieces[k].ids += at;
        pieces[k].labels += at;
        for (int32_t c = 0; c < whole->column_count; c++)
            pieces[k].columns[c].values += at;
        pieces[k].count = whole->count - at < room ? whole->count - at : room;
        pieces[k].prompt = whole->prompt > at ? whole->prompt - at : 0;
        if (pieces[k].prompt > pieces[k].count)
            pieces[k].prompt = pieces[k].count;
    }
    d->documents = pieces;
    d->count = (int32_t)count;
    return SBP_FIT_SPLIT;
}

sbp_fit sbp_documents_fit(sbp_arena *arena, sbp_documents *d, int64_t room, sbp_overlong overlong) {
    int64_t tokens = sbp_documents_tokens(d);
    if (tokens == 0)
        return SBP_FIT_EMPTY;
    if (room > 0 && (overlong == SBP_OVERLONG_TRUNCATE || overlong == SBP_OVERLONG_CUT))
        return cut(d, room, overlong == SBP_OVERLONG_CUT);
    if (room == 0 || tokens <= room)
        return SBP_FIT_WHOLE;
    return overlong == SBP_OVERLONG_SPLIT  ? split(arena, d, room)
           : overlong == SBP_OVERLONG_DROP ? SBP_FIT_DROPPED
                                           : SBP_FIT_OVERLONG;
}
