/* program_kept.c: in which types a program keeps what it trains, in words. */
#include "ir/program/program.h"

#include <string.h>

/* Numbers of one kind: weights, or states. */
typedef struct tally {
    double bytes;
    double elems[SBP_DTYPE_COUNT]; /* one for each of the parameter, and no scales of blocks */
} tally;

/* "int8 and fp32": those of a tenth of the numbers or more, most first. */
static void add_types(sbp_text *out, const tally *t) {
    bool named[SBP_DTYPE_COUNT] = {false};
    double all = 0;
    for (int d = 0; d < SBP_DTYPE_COUNT; d++)
        all += t->elems[d];
    for (int n = 0; n < SBP_DTYPE_COUNT; n++) {
        int most = -1;
        for (int d = 0; d < SBP_DTYPE_COUNT; d++)
            if (!named[d] && t->elems[d] >= all / 10 && t->elems[d] > 0 &&
                (most < 0 || t->elems[d] > t->elems[most]))
                most = d;
        if (most < 0)
            return;
        named[most] = true;
        sbp_text_add(out, "%s%s", n > 0 ? " and " : "", sbp_dtype_spelling((sbp_dtype)most));
    }
}

static void mark_flushed(const sbp_body *body, bool *trained) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP)
            mark_flushed(&node->u.loop->body, trained);
        else if (node->kind == SBP_NODE_COMMAND && node->u.command->flushes >= 0)
            trained[node->u.command->flushes] = true;
    }
}

static double elems_of(const sbp_buffer *b) {
    return (double)sbp_extent_as_const(b->rows) * (double)b->cols;
}

static void count(tally *t, const sbp_buffer *b, double numbers) {
    double elems = elems_of(b);
    t->bytes += elems * (double)sbp_dtype_bytes(b->dtype);
    t->elems[sbp_dtype_is_dynamic(b->dtype) ? SBP_D8 : b->dtype] += elems == numbers ? elems : 0;
}

/* The parameter "x" of a buffer "x.what"; -1. */
static int32_t parameter_of(sbp_arena *arena, const sbp_map *params, const char *name) {
    const char *dot = strrchr(name, '.');
    return dot ? sbp_map_get(params, sbp_arena_printf(arena, "%.*s", (int)(dot - name), name)) : -1;
}

bool sbp_program_describe_kept(sbp_arena *arena, const sbp_program *p, sbp_text *out) {
    bool *trained = SBP_NEW_ARRAY(arena, bool, p->buffer_count + 1);
    sbp_map params;
    tally weights = {0}, states = {0};
    double numbers = 0, master = 0;
    sbp_map_init(&params, arena);
    for (int32_t e = 0; e < p->entry_count; e++)
        mark_flushed(&p->entries[e].body, trained);
    for (int32_t b = 0; b < p->buffer_count; b++)
        if (trained[b]) {
            sbp_map_set(&params, p->buffers[b].name, b);
            numbers += elems_of(&p->buffers[b]);
            count(&weights, &p->buffers[b], elems_of(&p->buffers[b]));
        }
    for (int32_t b = 0; b < p->buffer_count; b++) {
        const sbp_buffer *buffer = &p->buffers[b];
        bool is_master = buffer->role == SBP_ROLE_MASTER;
        int32_t param =
            is_master || buffer->role == SBP_ROLE_STATE ? parameter_of(arena, &params, buffer->name) : -1;
        if (param < 0)
            continue;
        if (is_master)
            master += elems_of(buffer) * (double)sbp_dtype_bytes(buffer->dtype);
        else
            count(&states, buffer, elems_of(&p->buffers[param]));
    }
    if (numbers == 0)
        return false;
    sbp_text_add(out, "weights ");
    add_types(out, &weights);
    sbp_text_add(out, "%s (%.3g bytes each), ", master > 0 ? " + exact master" : "",
                 (weights.bytes + master) / numbers);
    if (states.bytes == 0) {
        sbp_text_add(out, "no states");
        return true;
    }
    sbp_text_add(out, "states ");
    add_types(out, &states);
    sbp_text_add(out, " (%.3g bytes)", states.bytes / numbers);
    return true;
}
