/* memory: gives every buffer an offset in the arena of its memory space.
 *
 * requires  schedule
 * preserves everything but offsets
 * breaks    nothing
 *
 * Persistent buffers lie at the beginning. The buffers of a function share a frame by their live ranges
 * inside the function; frames and the buffers of entries share the rest by their live ranges in each entry.
 * Both are packed largest first, each at the lowest offset that is free throughout its life. No buffer lies
 * across a multiple of the largest allocation of the target.
 */
#include "passes/lower/memory.h"

#include <stdlib.h>
#include <string.h>

#include "ir/program/contract.h"
#include "passes/lower/passes.h"

bool sbp_memory_is_persistent(sbp_role role) {
    switch (role) {
    case SBP_ROLE_STREAM:
    case SBP_ROLE_SAVED:
    case SBP_ROLE_ACCUM:
    case SBP_ROLE_CARRY:
    case SBP_ROLE_STATES:
    case SBP_ROLE_SCRATCH:
    case SBP_ROLE_STAGING:
    case SBP_ROLE_WORKSPACE:
    case SBP_ROLE_CACHE:
        return false;
    default:
        return true;
    }
}

/* Bytes of one element of a buffer at t_max, rounded up to the alignment; all elements: times count. */
static sbp_status buffer_bytes(const sbp_program *program, int32_t buffer, int64_t alignment, sbp_diag *diag,
                               int64_t *out) {
    const sbp_buffer *b = &program->buffers[buffer];
    sbp_sizes sizes = sbp_program_sizes(program, program->t_max, program->s_max);
    int64_t bytes;
    if (!sbp_buffer_bytes(b, &sizes, &bytes) || bytes > INT64_MAX / 2 - alignment)
        return sbp_fail(diag, SBP_MACHINE, "buffer '%s' is larger than 2^62 bytes", b->name);
    if (b->space == SBP_DISK && alignment < SBP_DISK_ALIGNMENT)
        alignment = SBP_DISK_ALIGNMENT;
    *out = sbp_round_up(bytes, alignment);
    return SBP_OK;
}

/* ---- live ranges ------------------------------------------------------------------------------------- */

typedef struct walk {
    sbp_arena *arena;
    const sbp_program *program;
    sbp_live_set *buffers; /* per buffer */
    bool *started;         /* per buffer: seen in the loop being walked */
    bool *carried;         /* per buffer: read in the loop before it was written there */
    int32_t position;
    sbp_live_set *calls; /* per function; NULL inside functions */
} walk;

/* An access. A whole write begins a new interval, unless the memory is one of an array. What is done to a
 * part is done to its bucket. */
static void touch(walk *w, int32_t buffer, int32_t position, bool whole_write) {
    whole_write = whole_write && w->program->buffers[buffer].part_of == 0;
    buffer = sbp_buffer_memory(w->program, buffer);
    sbp_live_set *set = &w->buffers[buffer];
    if (set->count == 0 || (whole_write && w->program->buffers[buffer].count == 1))
        SBP_PUSH(w->arena, set->ranges, set->count, set->capacity, (sbp_live_range){position, position});
    set->ranges[set->count - 1].end = position;
}

/* What a loop carries from one iteration to the next is live during all of it. */
static void stretch(walk *w, int32_t buffer, int32_t begin, int32_t end) {
    sbp_live_set *set = &w->buffers[buffer];
    while (set->count > 1 && set->ranges[set->count - 2].end >= begin)
        set->count--;
    sbp_live_range *last = &set->ranges[set->count - 1];
    last->begin = last->begin < begin ? last->begin : begin;
    last->end = end;
}

static bool is_whole(const walk *w, const sbp_view *view) {
    return sbp_view_is_whole(w->program, NULL, view); /* of a buffer: no function is asked */
}

static void walk_command(walk *w, const sbp_command *command, bool in_loop) {
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    sbp_command_operands(w->program, command, operands);
    for (int pass = 0; pass < 2; pass++) /* reads first: an operand may be read and written */
        for (int32_t i = 0; i < command->view_count; i++) {
            int32_t ref = command->views[i].ref;
            bool reads = operands[i].access != SBP_WRITE;
            if (ref < 0 || reads != (pass == 0))
                continue;
            bool also_read = false; /* in place: the write ends nothing */
            for (int32_t k = 0; k < command->view_count; k++)
                also_read |= command->views[k].ref == ref && operands[k].access != SBP_WRITE;
            bool whole = !reads && !also_read && is_whole(w, &command->views[i]);
            touch(w, ref, w->position, whole);
            int32_t memory = sbp_buffer_memory(w->program, ref);
            bool chunk_local =
                w->program->buffers[ref].rows.c[SBP_T] == 0 && w->program->buffers[ref].rows.c[SBP_S] == 0 &&
                w->program->buffers[ref].rows.c[SBP_W] == 0 && w->program->buffers[ref].rows.c[SBP_N] == 0;
            if (in_loop && !w->started[memory] && (reads || !chunk_local))
                w->carried[memory] = true;
            w->started[memory] = true;
        }
    w->position++;
}

static void walk_call(walk *w, const sbp_call *call) {
    const sbp_function *function = &w->program->functions[call->function];
    for (int pass = 0; pass < 2; pass++)
        for (int32_t f = 0; f < function->formal_count; f++) {
            bool writes = function->formals[f].access == SBP_WRITE;
            if (call->views[f].ref >= 0 && writes == (pass == 1))
                touch(w, call->views[f].ref, w->position, writes && is_whole(w, &call->views[f]));
        }
    if (w->calls) {
        sbp_live_set *set = &w->calls[call->function];
        SBP_PUSH(w->arena, set->ranges, set->count, set->capacity,
                 (sbp_live_range){w->position, w->position});
    }
    w->position++;
}

static void walk_body(walk *w, const sbp_body *body, bool in_loop) {
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_COMMAND) {
            walk_command(w, node->u.command, in_loop);
        } else if (node->kind == SBP_NODE_LOOP) {
            int32_t begin = w->position;
            for (int32_t b = 0; b < w->program->buffer_count && !in_loop; b++)
                w->started[b] = w->carried[b] = false;
            walk_body(w, &node->u.loop->body, true);
            for (int32_t b = 0; b < w->program->buffer_count; b++)
                if (w->started[b] && w->carried[b])
                    stretch(w, b, begin, w->position);
        } else {
            walk_call(w, node->u.call);
        }
    }
}

static int32_t walk_all(sbp_arena *arena, const sbp_program *program, const sbp_body *body,
                        sbp_live_set *buffers, sbp_live_set *calls) {
    walk w = {.arena = arena, .program = program, .buffers = buffers, .calls = calls};
    w.started = SBP_NEW_ARRAY(arena, bool, program->buffer_count + 1);
    w.carried = SBP_NEW_ARRAY(arena, bool, program->buffer_count + 1);
    walk_body(&w, body, false);
    return w.position;
}

/* Buffers of the program that functions name directly (row data, vectors) are persistent, so that calls tell
 * all. */
void sbp_memory_frames(sbp_arena *arena, const sbp_program *program, int32_t entries, sbp_liveness *out) {
    size_t n = (size_t)program->buffer_count;
    out->entry_count = entries;
    out->lengths = SBP_NEW_ARRAY(arena, int32_t, entries + 1);
    out->buffers = SBP_NEW_ARRAY(arena, sbp_live_set, (size_t)entries * n + 1);
    out->calls = SBP_NEW_ARRAY(arena, sbp_live_set, (size_t)entries * (size_t)program->function_count + 1);
    out->frames = SBP_NEW_ARRAY(arena, sbp_live_set, n + 1);
    out->function_lengths = SBP_NEW_ARRAY(arena, int32_t, program->function_count + 1);
    sbp_live_set *sets = SBP_NEW_ARRAY(arena, sbp_live_set, n + 1);
    for (int32_t f = 0; f < program->function_count; f++) {
        memset(sets, 0, n * sizeof *sets);
        out->function_lengths[f] = walk_all(arena, program, &program->functions[f].body, sets, NULL);
        for (size_t b = 0; b < n; b++)
            if (program->buffers[b].function == f)
                out->frames[b] = sets[b];
    }
}

void sbp_memory_keep_cache(sbp_arena *arena, const sbp_program *program, sbp_liveness *live, int32_t entry,
                           const char *name) {
    if (strcmp(name, sbp_entry_names[SBP_ENTRY_GENERATE]) != 0 &&
        strcmp(name, sbp_entry_names[SBP_ENTRY_CHOOSE]) != 0)
        return;
    for (int32_t b = 0; b < program->buffer_count; b++) {
        sbp_live_set *set = &live->buffers[(size_t)entry * (size_t)program->buffer_count + (size_t)b];
        if (program->buffers[b].role != SBP_ROLE_CACHE)
            continue;
        set->count = 0;
        SBP_PUSH(arena, set->ranges, set->count, set->capacity,
                 (sbp_live_range){0, live->lengths[entry] > 0 ? live->lengths[entry] - 1 : 0});
    }
}

void sbp_memory_liveness(sbp_arena *arena, const sbp_program *program, sbp_liveness *out) {
    size_t n = (size_t)program->buffer_count;
    sbp_memory_frames(arena, program, program->entry_count, out);
    for (size_t e = 0; e < (size_t)program->entry_count; e++) {
        out->lengths[e] = walk_all(arena, program, &program->entries[e].body, out->buffers + e * n,
                                   out->calls + e * (size_t)program->function_count);
        sbp_memory_keep_cache(arena, program, out, (int32_t)e, program->entries[e].name);
    }
}

void sbp_memory_touch(sbp_arena *arena, const sbp_program *program, sbp_liveness *live, int32_t entry,
                      const sbp_spot *spots, int32_t count, int32_t function) {
    walk w = {.arena = arena,
              .program = program,
              .buffers = live->buffers + (size_t)entry * (size_t)program->buffer_count,
              .position = live->lengths[entry]};
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < count; i++) {
            bool writes = spots[i].access == SBP_WRITE;
            if (writes == (pass == 1))
                touch(&w, spots[i].buffer, w.position, writes);
        }
    if (function >= 0) {
        sbp_live_set *set = &live->calls[(size_t)entry * (size_t)program->function_count + (size_t)function];
        SBP_PUSH(arena, set->ranges, set->count, set->capacity, (sbp_live_range){w.position, w.position});
    }
    live->lengths[entry]++;
}

static bool is_live(const sbp_live_set *set, int32_t position) {
    for (int32_t i = 0; i < set->count; i++)
        if (set->ranges[i].begin <= position && position <= set->ranges[i].end)
            return true;
    return false;
}

/* ---- packing ----------------------------------------------------------------------------------------- */

/* Something to be placed, and when it is live in each timeline (an entry, or the one function). */
typedef struct parcel {
    int64_t bytes, offset;
    int32_t buffer; /* or ~function: its frame */
    const sbp_live_set **sets;
    int32_t order;
} parcel;

static int by_size(const void *x, const void *y) {
    const parcel *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->order - b->order;
}

/* Moves an offset on so that [offset, offset + bytes) crosses no multiple of the largest allocation. */
static int64_t within_block(int64_t offset, int64_t bytes, int64_t block) {
    if (block > 0 && bytes > 0 && offset / block != (offset + bytes - 1) / block)
        return sbp_round_up(offset, block);
    return offset;
}

/* ---- which parcels meet: ranges of a timeline in order of their beginnings, as a tree of halves, so that
 * those that a range overlaps are found without looking at the others ---- */

typedef struct span {
    int32_t begin, end, last, parcel; /* last: the greatest end of the half that it is the middle of */
} span;

typedef struct timeline {
    span *spans;
    int32_t count, capacity;
} timeline;

static int by_begin(const void *x, const void *y) {
    const span *a = x, *b = y;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->parcel - b->parcel;
}

static int32_t last_of(span *spans, int32_t from, int32_t to) {
    if (from >= to)
        return INT32_MIN;
    int32_t middle = from + (to - from) / 2, left = last_of(spans, from, middle),
            right = last_of(spans, middle + 1, to), last = spans[middle].end;
    last = left > last ? left : last;
    spans[middle].last = right > last ? right : last;
    return spans[middle].last;
}

typedef struct neighbours {
    int32_t *seen;  /* per parcel: the last one that it was found for, plus 1 */
    int32_t *found; /* of the one asked for: those that are placed */
    int32_t count, asked;
    int64_t looks; /* at ranges and places */
} neighbours;

static void find_overlaps(const span *spans, int32_t from, int32_t to, const sbp_live_range *r,
                          neighbours *n) {
    if (from >= to)
        return;
    int32_t middle = from + (to - from) / 2;
    const span *s = &spans[middle];
    n->looks++;
    if (s->last < r->begin)
        return;
    find_overlaps(spans, from, middle, r, n);
    if (s->begin > r->end)
        return;
    if (s->end >= r->begin && s->parcel < n->asked && n->seen[s->parcel] != n->asked + 1) {
        n->seen[s->parcel] = n->asked + 1;
        n->found[n->count++] = s->parcel;
    }
    find_overlaps(spans, middle + 1, to, r, n);
}

static timeline *make_timelines(sbp_arena *arena, const parcel *parcels, int32_t count, int32_t timelines) {
    timeline *lines = SBP_NEW_ARRAY(arena, timeline, timelines + 1);
    for (int32_t t = 0; t < timelines; t++) {
        for (int32_t i = 0; i < count; i++)
            for (int32_t k = 0; k < parcels[i].sets[t]->count; k++) {
                const sbp_live_range *r = &parcels[i].sets[t]->ranges[k];
                SBP_PUSH(arena, lines[t].spans, lines[t].count, lines[t].capacity,
                         ((span){r->begin, r->end, 0, i}));
            }
        if (lines[t].count > 0)
            qsort(lines[t].spans, (size_t)lines[t].count, sizeof *lines[t].spans, by_begin);
        (void)last_of(lines[t].spans, 0, lines[t].count);
    }
    return lines;
}

typedef struct place {
    int64_t offset, end;
    int32_t parcel;
} place;

static int by_offset(const void *x, const void *y) {
    const place *a = x, *b = y;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->parcel - b->parcel;
}

/* Places the parcels from `base` on, the largest first, each at the lowest offset that those leave which are
 * live with it; returns the end. */
static int64_t pack(sbp_arena *arena, parcel *parcels, int32_t count, int32_t timelines, int64_t base,
                    int64_t block, int64_t *looks) {
    int64_t end = base;
    qsort(parcels, (size_t)count, sizeof *parcels, by_size);
    timeline *lines = make_timelines(arena, parcels, count, timelines);
    neighbours n = {.seen = SBP_NEW_ARRAY(arena, int32_t, count + 1),
                    .found = SBP_NEW_ARRAY(arena, int32_t, count + 1)};
    place *placed = SBP_NEW_ARRAY(arena, place, count + 1), *few = SBP_NEW_ARRAY(arena, place, count + 1);
    for (int32_t i = 0; i < count; i++) {
        int64_t at = within_block(base, parcels[i].bytes, block);
        n.asked = i;
        n.count = 0;
        for (int32_t t = 0; t < timelines; t++)
            for (int32_t k = 0; k < parcels[i].sets[t]->count; k++)
                find_overlaps(lines[t].spans, 0, lines[t].count, &parcels[i].sets[t]->ranges[k], &n);
        bool many = n.count > i / 16; /* to go through all is less than to sort them */
        for (int32_t k = 0; k < n.count && !many; k++) {
            const parcel *other = &parcels[n.found[k]];
            few[k] = (place){other->offset, other->offset + other->bytes, n.found[k]};
        }
        if (n.count > 1 && !many)
            qsort(few, (size_t)n.count, sizeof *few, by_offset);
        const place *others = many ? placed : few;
        n.looks += many ? i : n.count;
        for (int32_t k = 0; k < (many ? i : n.count); k++)
            if (others[k].offset < at + parcels[i].bytes && at < others[k].end &&
                n.seen[others[k].parcel] == i + 1)
                at = within_block(others[k].end, parcels[i].bytes, block);
        parcels[i].offset = at;
        int32_t below = 0, above = i; /* behind those of the same offset */
        while (below < above) {
            int32_t middle = below + (above - below) / 2;
            if (placed[middle].offset <= at)
                below = middle + 1;
            else
                above = middle;
        }
        memmove(&placed[below + 1], &placed[below], (size_t)(i - below) * sizeof *placed);
        placed[below] = (place){at, at + parcels[i].bytes, i};
        end = at + parcels[i].bytes > end ? at + parcels[i].bytes : end;
    }
    *looks += n.looks;
    return end;
}

typedef struct packer {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_program *program;
    const sbp_target_info *target;
    int64_t *looks;
} packer;

static sbp_status whole_bytes(const packer *p, int32_t buffer, int64_t *out) {
    sbp_buffer *b = &p->program->buffers[buffer];
    SBP_TRY(buffer_bytes(p->program, buffer, p->target->alignment_bytes, p->diag, &b->stride));
    if (!sbp_mul_i64(b->stride, b->count, out))
        return sbp_fail(p->diag, SBP_MACHINE, "buffer '%s' is larger than 2^62 bytes", b->name);
    if (p->target->max_allocation_bytes > 0 && *out > p->target->max_allocation_bytes &&
        b->space == SBP_DEVICE) {
        char need[32], limit[32];
        return sbp_fail(p->diag, SBP_MACHINE, "buffer '%s' takes %s, %s allocates at most %s at once",
                        b->name, sbp_format_bytes(need, sizeof need, (double)*out), p->target->name,
                        sbp_format_bytes(limit, sizeof limit, (double)p->target->max_allocation_bytes));
    }
    return SBP_OK;
}

/* Lays out the frame of one function; offsets are relative to it. */
static sbp_status pack_function(const packer *p, const sbp_liveness *live, int32_t function,
                                int64_t *frame_bytes) {
    sbp_program *prog = p->program;
    parcel *parcels = NULL;
    int32_t count = 0, capacity = 0;
    for (int32_t b = 0; b < prog->buffer_count; b++) {
        if (prog->buffers[b].function != function)
            continue;
        parcel item = {.buffer = b, .order = count, .sets = SBP_NEW_ARRAY(p->arena, const sbp_live_set *, 1)};
        item.sets[0] = &live->frames[b];
        SBP_TRY(whole_bytes(p, b, &item.bytes));
        SBP_PUSH(p->arena, parcels, count, capacity, item);
    }
    *frame_bytes = count > 0 ? pack(p->arena, parcels, count, 1, 0, 0, p->looks) : 0;
    for (int32_t i = 0; i < count; i++)
        prog->buffers[parcels[i].buffer].offset = parcels[i].offset;
    return SBP_OK;
}

/* Where frames and the buffers of entries lie. */
static sbp_status pack_space(const packer *p, const sbp_liveness *live, const int64_t *frames,
                             sbp_space space, int64_t base) {
    sbp_program *prog = p->program;
    parcel *parcels = NULL;
    int32_t count = 0, capacity = 0, n = prog->buffer_count, entries = live->entry_count;
    for (int32_t b = 0; b < n; b++) {
        const sbp_buffer *buffer = &prog->buffers[b];
        if (buffer->function >= 0 || buffer->space != space || buffer->part_of > 0 ||
            sbp_memory_is_persistent(buffer->role))
            continue;
        parcel item = {
            .buffer = b, .order = count, .sets = SBP_NEW_ARRAY(p->arena, const sbp_live_set *, entries)};
        SBP_TRY(whole_bytes(p, b, &item.bytes));
        for (int32_t e = 0; e < entries; e++)
            item.sets[e] = &live->buffers[(size_t)e * (size_t)n + (size_t)b];
        SBP_PUSH(p->arena, parcels, count, capacity, item);
    }
    for (int32_t f = 0; f < prog->function_count && space == SBP_DEVICE; f++) {
        if (frames[f] == 0)
            continue;
        parcel item = {.buffer = ~f, .bytes = frames[f], .order = count};
        item.sets = SBP_NEW_ARRAY(p->arena, const sbp_live_set *, entries);
        for (int32_t e = 0; e < entries; e++)
            item.sets[e] = &live->calls[(size_t)e * (size_t)prog->function_count + (size_t)f];
        SBP_PUSH(p->arena, parcels, count, capacity, item);
    }
    int64_t end = base;
    if (count > 0)
        end = pack(p->arena, parcels, count, entries, base,
                   space == SBP_DEVICE ? p->target->max_allocation_bytes : 0, p->looks);
    for (int32_t i = 0; i < count; i++) {
        if (parcels[i].buffer >= 0) {
            prog->buffers[parcels[i].buffer].offset = parcels[i].offset;
            continue;
        }
        for (int32_t b = 0; b < n; b++)
            if (prog->buffers[b].function == ~parcels[i].buffer)
                prog->buffers[b].offset += parcels[i].offset;
    }
    prog->arena_bytes[space] = end;
    return SBP_OK;
}

/* Parts lie where their buckets have them. */
static sbp_status place_parts(const packer *p) {
    for (int32_t b = 0; b < p->program->buffer_count; b++) {
        sbp_buffer *part = &p->program->buffers[b];
        if (part->part_of == 0)
            continue;
        const sbp_buffer *bucket = &p->program->buffers[part->part_of - 1];
        if (bucket->sharding == SBP_SHARDED)
            continue;
        SBP_TRY(buffer_bytes(p->program, b, p->target->alignment_bytes, p->diag, &part->stride));
        part->stride = part->count > 1 ? bucket->stride : part->stride;
        part->offset = bucket->offset + part->place * sbp_dtype_bytes(bucket->dtype);
    }
    return SBP_OK;
}

sbp_status sbp_memory_pack_counted(sbp_arena *arena, sbp_diag *diag, sbp_program *program,
                                   const sbp_liveness *live, const sbp_target_info *target, int64_t *looks) {
    packer p = {.arena = arena, .diag = diag, .program = program, .target = target, .looks = looks};
    int64_t *frames = SBP_NEW_ARRAY(arena, int64_t, program->function_count + 1);
    for (int32_t f = 0; f < program->function_count; f++)
        SBP_TRY(pack_function(&p, live, f, &frames[f]));
    for (int space = 0; space < SBP_SPACE_COUNT; space++) {
        int64_t at = 0;
        for (int32_t b = 0; b < program->buffer_count; b++) {
            sbp_buffer *buffer = &program->buffers[b];
            if (buffer->function >= 0 || buffer->space != (sbp_space)space || buffer->part_of > 0 ||
                !sbp_memory_is_persistent(buffer->role))
                continue;
            int64_t bytes = 0;
            SBP_TRY(whole_bytes(&p, b, &bytes));
            at = within_block(at, bytes, space == SBP_DISK ? 0 : target->max_allocation_bytes);
            buffer->offset = at;
            if (!sbp_add_i64(at, bytes, &at))
                return sbp_fail(diag, SBP_MACHINE, "the plan needs more than 2^63 bytes");
        }
        SBP_TRY(pack_space(&p, live, frames, (sbp_space)space, at));
    }
    return place_parts(&p);
}

sbp_status sbp_memory_pack(sbp_arena *arena, sbp_diag *diag, sbp_program *program, const sbp_liveness *live,
                           const sbp_target_info *target) {
    int64_t looks = 0;
    return sbp_memory_pack_counted(arena, diag, program, live, target, &looks);
}

sbp_status sbp_pass_memory(const sbp_pass_input *in, sbp_program *program) {
    sbp_liveness live;
    sbp_memory_liveness(in->arena, program, &live);
    return sbp_memory_pack(in->arena, in->diag, program, &live, &in->target);
}

/* ---- other sizes ------------------------------------------------------------------------------------- */

sbp_extent sbp_memory_block_rows(const sbp_program *program, const sbp_blocks *blocks) {
    int64_t chunk = blocks->of_head ? program->head_chunk : program->chunk;
    chunk *= blocks->of_all ? program->context : 1;
    return sbp_extent_const(sbp_ceil_div(chunk, blocks->per) + blocks->more);
}

sbp_program *sbp_memory_resize(sbp_arena *arena, const sbp_program *program, int64_t t_max, int64_t chunk,
                               int64_t head_chunk) {
    sbp_program *copy = SBP_NEW(arena, sbp_program);
    *copy = *program;
    copy->t_max = copy->s_max = t_max;
    copy->chunk = chunk;
    copy->head_chunk = head_chunk;
    copy->buffers = SBP_NEW_ARRAY(arena, sbp_buffer, copy->buffer_count);
    copy->buffer_capacity = copy->buffer_count;
    memcpy(copy->buffers, program->buffers, (size_t)copy->buffer_count * sizeof *copy->buffers);
    for (int32_t b = 0; b < copy->buffer_count; b++)
        if (copy->buffers[b].blocks.per > 0)
            copy->buffers[b].rows = sbp_memory_block_rows(copy, &copy->buffers[b].blocks);
    return copy;
}

/* ---- the peak ---------------------------------------------------------------------------------------- */

/* Bytes live inside a function at the position where most are; per role. */
static sbp_status function_peak(const sbp_program *program, const sbp_liveness *live, int32_t function,
                                const int64_t *bytes, int64_t roles[SBP_ROLE_COUNT]) {
    int64_t best = -1;
    for (int32_t t = 0; t < live->function_lengths[function]; t++) {
        int64_t sum = 0, here[SBP_ROLE_COUNT] = {0};
        for (int32_t b = 0; b < program->buffer_count; b++)
            if (program->buffers[b].function == function && is_live(&live->frames[b], t)) {
                sum += bytes[b];
                here[program->buffers[b].role] += bytes[b];
            }
        if (sum > best) {
            best = sum;
            for (int r = 0; r < SBP_ROLE_COUNT; r++)
                roles[r] = here[r];
        }
    }
    return SBP_OK;
}

sbp_status sbp_memory_find_peak(sbp_arena *arena, const sbp_program *program, sbp_space space,
                                int64_t alignment, sbp_diag *diag, sbp_memory_peak *out) {
    sbp_liveness live;
    sbp_memory_liveness(arena, program, &live);
    int32_t n = program->buffer_count;
    int64_t *bytes = SBP_NEW_ARRAY(arena, int64_t, n + 1), fixed[SBP_ROLE_COUNT] = {0};
    int64_t(*functions)[SBP_ROLE_COUNT] =
        sbp_arena_array(arena, (size_t)program->function_count + 1, sizeof *functions);
    for (int32_t b = 0; b < n; b++) {
        SBP_TRY(buffer_bytes(program, b, alignment, diag, &bytes[b]));
        const sbp_buffer *buffer = &program->buffers[b];
        bytes[b] = buffer->space == space ? bytes[b] * buffer->count : 0;
        if (buffer->part_of > 0) /* of its bucket's bytes, under its own role */
            bytes[b] = buffer->space == space ? sbp_extent_as_const(buffer->rows) * buffer->cols *
                                                    sbp_dtype_bytes(buffer->dtype) /
                                                    (sbp_buffer_in_shares(program, b) ? program->group : 1)
                                              : 0;
        if (buffer->function < 0 && sbp_memory_is_persistent(buffer->role))
            fixed[buffer->role] += bytes[b];
        if (buffer->part_of > 0 && sbp_memory_is_persistent(buffer->role))
            fixed[SBP_ROLE_BUCKET] -= bytes[b];
    }
    for (int32_t f = 0; f < program->function_count; f++)
        SBP_TRY(function_peak(program, &live, f, bytes, functions[f]));
    *out = (sbp_memory_peak){.live_bytes = -1, .arena_bytes = program->arena_bytes[space], .entry = ""};
    for (int32_t e = 0; e < program->entry_count; e++)
        for (int32_t t = 0; t < live.lengths[e]; t++) {
            int64_t roles[SBP_ROLE_COUNT], sum = 0;
            int32_t called = -1;
            for (int32_t f = 0; f < program->function_count; f++)
                if (is_live(&live.calls[(size_t)e * (size_t)program->function_count + (size_t)f], t))
                    called = f;
            for (int r = 0; r < SBP_ROLE_COUNT; r++)
                roles[r] = fixed[r] + (called >= 0 ? functions[called][r] : 0);
            for (int32_t b = 0; b < n; b++)
                if (program->buffers[b].function < 0 && !sbp_memory_is_persistent(program->buffers[b].role) &&
                    is_live(&live.buffers[(size_t)e * (size_t)n + (size_t)b], t))
                    roles[program->buffers[b].role] += bytes[b];
            for (int r = 0; r < SBP_ROLE_COUNT; r++)
                sum += roles[r];
            if (sum > out->live_bytes) {
                out->live_bytes = sum;
                out->entry = program->entries[e].name;
                for (int r = 0; r < SBP_ROLE_COUNT; r++)
                    out->roles[r] = roles[r];
            }
        }
    return SBP_OK;
}
