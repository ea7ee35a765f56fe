/* arrow.c: rows of Arrow's record batches. */
#include <math.h>
#include <string.h>

#include "runtime/data/source/arrow.h"

typedef struct row_job {
    sbp_source *source;
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_row_budget *budget;
} row_job;

static sbp_status damaged(const row_job *job, const sbp_arrow_field *f) {
    return sbp_source_damaged(job->source, job->diag, "row %lld: column '%s' has no value there",
                              (long long)job->source->rows + 1, f->name);
}

static sbp_status read_bits(const row_job *job, sbp_arrow_buffer *buffer, int64_t at, bool *out) {
    const uint8_t *p;
    SBP_TRY(sbp_arrow_bytes(job->source, job->diag, buffer, at >> 3, 1, &p));
    *out = *p >> (at & 7) & 1;
    return SBP_OK;
}

/* A whole number of `bits`. */
static sbp_status read_int(const row_job *job, sbp_arrow_buffer *buffer, int64_t at, int bits,
                           bool is_unsigned, int64_t *out) {
    const uint8_t *p;
    uint64_t value = 0;
    int bytes = bits / 8, unused = 64 - bits;
    SBP_TRY(sbp_arrow_bytes(job->source, job->diag, buffer, at * bytes, bytes, &p));
    memcpy(&value, p, (size_t)bytes);
    *out = is_unsigned ? (int64_t)value : (int64_t)(value << unused) >> unused;
    return SBP_OK;
}

static double half(uint32_t bits) {
    unsigned exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0    ? ldexp(fraction, -24)
                   : exponent == 31 ? (fraction ? NAN : INFINITY)
                                    : ldexp(1024 + fraction, (int)exponent - 25);
    return bits >> 15 ? -value : value;
}

static sbp_status read_real(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out) {
    const uint8_t *p;
    int bytes = f->bits / 8;
    uint32_t bits = 0;
    float single;
    double value;
    SBP_TRY(sbp_arrow_bytes(job->source, job->diag, &f->buffers[1], at * bytes, bytes, &p));
    if (f->bits == 64) {
        memcpy(&value, p, 8);
    } else if (f->bits == 32) {
        memcpy(&single, p, 4);
        value = (double)single;
    } else {
        memcpy(&bits, p, 2);
        value = half(bits);
    }
    sbp_json_set_real(out, value);
    return SBP_OK;
}

/* Where item `at` begins and ends, by two offsets. */
static sbp_status read_range(const row_job *job, sbp_arrow_field *f, int64_t at, int64_t *from, int64_t *to) {
    SBP_TRY(read_int(job, &f->buffers[1], at, f->bits, false, from));
    SBP_TRY(read_int(job, &f->buffers[1], at + 1, f->bits, false, to));
    return *from >= 0 && *to >= *from ? SBP_OK : damaged(job, f);
}

static sbp_status read_text(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out) {
    int64_t from, to;
    const uint8_t *p;
    SBP_TRY(read_range(job, f, at, &from, &to));
    SBP_TRY(sbp_arrow_bytes(job->source, job->diag, &f->buffers[2], from, to - from, &p));
    SBP_TRY(sbp_row_budget_take(job->budget, job->diag, 0, to - from));
    sbp_json_set_text(job->arena, out, p, to - from);
    return SBP_OK;
}

/* 16 bytes: the length; up to 12 bytes of text, or 4 of it, the number of the buffer and the place there. */
static sbp_status read_view(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out) {
    const uint8_t *p;
    int32_t view[4];
    SBP_TRY(sbp_arrow_bytes(job->source, job->diag, &f->buffers[1], at * 16, 16, &p));
    memcpy(view, p, sizeof view);
    if (view[0] < 0 || (view[0] > 12 && (view[2] < 0 || view[2] >= f->text_count)))
        return damaged(job, f);
    if (view[0] > 12)
        SBP_TRY(sbp_arrow_bytes(job->source, job->diag, &f->texts[view[2]], view[3], view[0], &p));
    else
        p += 4;
    SBP_TRY(sbp_row_budget_take(job->budget, job->diag, 0, view[0]));
    sbp_json_set_text(job->arena, out, p, view[0]);
    return SBP_OK;
}

static sbp_status read_value(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out);

static sbp_status read_struct(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out) {
    sbp_growing members = {.arena = job->arena};
    for (int32_t i = 0; i < f->child_count; i++) {
        sbp_arrow_field *child = &f->children[i];
        if (child->kind == SBP_ARROW_OTHER)
            continue;
        SBP_TRY(sbp_row_budget_take(job->budget, job->diag, 1, 0));
        sbp_json *member = sbp_growing_add(&members, out, child->name);
        if (child->unread) {
            member->kind = SBP_JSON_UNREAD;
            continue;
        }
        SBP_TRY(read_value(job, child, at, member));
        if (member->kind == SBP_JSON_NULL)
            sbp_growing_drop(&members);
    }
    sbp_growing_end(&members, SBP_JSON_OBJECT, out);
    return SBP_OK;
}

static sbp_status read_items(const row_job *job, sbp_arrow_field *f, int64_t from, int64_t to,
                             sbp_json *out) {
    sbp_growing items = {.arena = job->arena};
    if (to > f->children->length || to - from > SBP_MOST_ITEMS)
        return damaged(job, f);
    SBP_TRY(sbp_row_budget_take(job->budget, job->diag, to - from, 0));
    sbp_growing_reserve(&items, to - from);
    for (int64_t i = from; i < to; i++)
        SBP_TRY(read_value(job, f->children, i, sbp_growing_add(&items, out, NULL)));
    sbp_growing_end(&items, SBP_JSON_ARRAY, out);
    return SBP_OK;
}

/* Members by keys that are strings; others have no place in a row. */
static sbp_status read_map(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out) {
    sbp_growing members = {.arena = job->arena};
    int64_t from, to;
    SBP_TRY(read_range(job, f, at, &from, &to));
    if (to > f->children->length || to - from > SBP_MOST_ITEMS)
        return damaged(job, f);
    for (int64_t i = from; i < to; i++) {
        sbp_json key = {0};
        SBP_TRY(sbp_row_budget_take(job->budget, job->diag, 1, 0));
        SBP_TRY(read_value(job, &f->children->children[0], i, &key));
        if (key.kind != SBP_JSON_STRING || memchr(key.string, 0, (size_t)key.count))
            continue;
        sbp_json *member = sbp_growing_add(&members, out, key.string);
        SBP_TRY(read_value(job, &f->children->children[1], i, member));
        if (member->kind == SBP_JSON_NULL)
            sbp_growing_drop(&members);
    }
    sbp_growing_end(&members, SBP_JSON_OBJECT, out);
    return SBP_OK;
}

static sbp_status read_number(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out) {
    int64_t value;
    SBP_TRY(read_int(job, &f->buffers[1], at, f->bits, f->is_unsigned, &value));
    if (f->dictionary)
        return read_value(job, f->dictionary, value, out);
    if (f->is_unsigned && value < 0)
        sbp_json_set_real(out, (double)(uint64_t)value);
    else
        sbp_json_set_int(out, value);
    return SBP_OK;
}

/* out is null before. */
static sbp_status read_value(const row_job *job, sbp_arrow_field *f, int64_t at, sbp_json *out) {
    bool bit = true;
    int64_t from, to;
    if (at < 0 || at >= f->length || at > INT64_MAX / 16)
        return damaged(job, f);
    if (f->has_validity && f->null_count != 0 && f->buffers[0].length > 0) /* as Arrow's own reader asks */
        SBP_TRY(read_bits(job, &f->buffers[0], at, &bit));
    if (!bit)
        return SBP_OK;
    switch (f->kind) {
    case SBP_ARROW_BOOLS:
        SBP_TRY(read_bits(job, &f->buffers[1], at, &bit));
        sbp_json_set_bool(out, bit);
        return SBP_OK;
    case SBP_ARROW_INTS:
        return read_number(job, f, at, out);
    case SBP_ARROW_REALS:
        return read_real(job, f, at, out);
    case SBP_ARROW_TEXTS:
        return read_text(job, f, at, out);
    case SBP_ARROW_VIEWS:
        return read_view(job, f, at, out);
    case SBP_ARROW_STRUCT:
        return read_struct(job, f, at, out);
    case SBP_ARROW_LIST:
        SBP_TRY(read_range(job, f, at, &from, &to));
        return read_items(job, f, from, to, out);
    case SBP_ARROW_LIST_VIEW:
        SBP_TRY(read_int(job, &f->buffers[1], at, f->bits, false, &from));
        SBP_TRY(read_int(job, &f->buffers[2], at, f->bits, false, &to)); /* how many */
        if (from < 0 || to < 0 || !sbp_add_i64(from, to, &to))
            return damaged(job, f);
        return read_items(job, f, from, to, out);
    case SBP_ARROW_FIXED_LIST:
        if (!sbp_mul_i64(at, f->list_size, &from) || !sbp_add_i64(from, f->list_size, &to))
            return damaged(job, f);
        return read_items(job, f, from, to, out);
    case SBP_ARROW_MAP:
        return read_map(job, f, at, out);
    default:
        return SBP_OK;
    }
}

/* ---- the format ------------------------------------------------------------------------------------- */

static sbp_status arrow_open(sbp_source *s, sbp_diag *diag) {
    sbp_arrow_state *state = SBP_NEW(s->arena, sbp_arrow_state);
    s->state = state;
    return sbp_arrow_open(s, diag, state);
}

static sbp_status arrow_next(sbp_source *s, sbp_arena *arena, sbp_diag *diag, sbp_record *out, bool *end) {
    sbp_arrow_state *state = s->state;
    sbp_row_budget budget = sbp_row_budget_begin(s, arena);
    row_job job = {s, arena, diag, &budget};
    if (state->row == state->rows) {
        SBP_TRY(sbp_arrow_next_batch(s, diag, state, end));
        if (*end)
            return SBP_OK;
    }
    sbp_json *root = SBP_NEW(arena, sbp_json);
    out->where = root->key = sbp_arena_printf(arena, "%s: row %lld", s->path, (long long)s->rows + 1);
    SBP_TRY(sbp_row_budget_take(&budget, diag, 1, 0));
    SBP_TRY(read_struct(&job, &state->root, state->row, root));
    sbp_row_budget_end(&budget);
    state->row++;
    out->tree = root;
    return SBP_OK;
}

static void arrow_close(sbp_source *s) {
    if (s->state)
        sbp_arrow_close(s, s->state);
}

static double arrow_share(const sbp_source *s) {
    const sbp_arrow_state *state = s->state;
    return s->size > 0 ? (double)state->at / (double)s->size : 0;
}

static void arrow_select(sbp_source *s, bool (*wanted)(void *user, const char *name), void *user) {
    sbp_arrow_state *state = s->state;
    for (int32_t i = 0; i < state->root.child_count; i++)
        state->root.children[i].unread = !wanted(user, state->root.children[i].name);
}

const sbp_format sbp_format_arrow = {.select = arrow_select,
                                     .share = arrow_share,
                                     .name = "Arrow",
                                     .by_position = true,
                                     .open = arrow_open,
                                     .next = arrow_next,
                                     .close = arrow_close};
