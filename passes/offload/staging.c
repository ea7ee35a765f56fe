/* staging.c: which tensor stands in which staging buffer, and the moves between places.
 *
 * The future is known: of the tensors of a pool the one that is wanted last gives up its staging buffer
 * (Belady); those that the task at hand wants never do. A fetch is issued as early as its staging buffer is
 * free and its source there, but not before a fetch of the same queue that is needed earlier: queues are
 * first in, first out. What is written is written back when its staging buffer is given up, right behind the
 * task that wrote it, unless nobody reads it again.
 *
 * An example: AdamW on the device over three layers whose parameters live on the host, in a pool of two
 * staging buffers (sbpc compile MODEL --offload params --print-after offload, entry update):
 *
 *   task               buffer 0   buffer 1   moves                        why
 *   update embedding   -          -          in:  buffer 0 <- layer 0     both are free: fetches are
 *                                            in:  buffer 1 <- layer 1     issued as early as that
 *   update layer 0     layer 0*   layer 1    out: layer 0 <- buffer 0     * written. Layer 2 needs one: of
 *                                            in:  buffer 0 <- layer 2     layers 0 and 1, layer 0 is wanted
 *   update layer 1     layer 2    layer 1*                                last (never), so it is written back
 *   update layer 2     layer 2*   layer 1*   out: layer 1, layer 2        the end: all are written back
 *
 * Updating layer 1 and fetching layer 2 run beside each other, on queues compute and in. */
#include "passes/offload/staging.h"

typedef struct use {
    int32_t task;
    bool overwrites; /* all of it, reading nothing */
} use;

typedef struct sbp_standing {
    int32_t pool[SBP_PLACE_COUNT];   /* -1: never there */
    int32_t staged[SBP_PLACE_COUNT]; /* -1: not there */
    bool valid[SBP_PLACE_COUNT];     /* holds the tensor as it is now */
    int32_t since[SBP_PLACE_COUNT];  /* valid behind this task */
    int32_t dirty;                   /* the one place that is newer than the placement; KEPT: none */
    use *uses;                       /* in the list being walked, ascending */
    int32_t use_count, use_capacity, next_use;
} sbp_standing;

/* ---- places ------------------------------------------------------------------------------------------ */

/* Where content comes from on its way from the placement. */
static sbp_place_kind before(const sbp_placed_tensor *tensor, sbp_place_kind place) {
    if (place == SBP_PLACE_COMPUTED && tensor->sharded)
        return SBP_PLACE_WHOLE;
    if (place == SBP_PLACE_SHARE) /* all of it need not come to the device */
        return tensor->space == SBP_DISK ? SBP_PLACE_HOST : SBP_PLACE_KEPT;
    if (place >= SBP_PLACE_WHOLE)
        return tensor->space == SBP_DEVICE ? SBP_PLACE_KEPT : SBP_PLACE_DEVICE;
    return place == SBP_PLACE_DEVICE && tensor->space == SBP_DISK ? SBP_PLACE_HOST : SBP_PLACE_KEPT;
}

static sbp_place_kind wanted_place(const sbp_placed_tensor *tensor, const sbp_task *task,
                                   const sbp_operand *operand) {
    if (task->on_host || operand->form == SBP_FORM_HOST ||
        (task->kind == SBP_TASK_COLLECTIVE && tensor->space != SBP_DEVICE))
        return tensor->space == SBP_HOST ? SBP_PLACE_KEPT : SBP_PLACE_HOST;
    if (operand->form == SBP_FORM_COMPUTED && tensor->computed != tensor->stored)
        return SBP_PLACE_COMPUTED;
    if (operand->form == SBP_FORM_SHARE ? !tensor->sharded : tensor->sharded)
        return tensor->sharded ? SBP_PLACE_WHOLE : SBP_PLACE_SHARE;
    return tensor->space == SBP_DEVICE && tensor->buffer >= 0 ? SBP_PLACE_KEPT : SBP_PLACE_DEVICE;
}

static sbp_space space_of(const sbp_placed_tensor *tensor, sbp_place_kind place) {
    return place == SBP_PLACE_KEPT ? tensor->space : place == SBP_PLACE_HOST ? SBP_HOST : SBP_DEVICE;
}

static sbp_dtype dtype_at(const sbp_placed_tensor *tensor, sbp_place_kind place) {
    return place == SBP_PLACE_COMPUTED ? tensor->computed : tensor->stored;
}

enum { ALL = -1 }; /* in place of a part */

/* Whether what stands there is the numbers of a tensor that is kept in blocks. */
static bool is_unpacked(const sbp_staging *s, int32_t tensor, sbp_place_kind place) {
    return s->r->tensors[tensor].packed && place == SBP_PLACE_COMPUTED;
}

/* Whether all of a tensor stands there, not a share. */
static bool is_whole(const sbp_placed_tensor *tensor, sbp_place_kind place) {
    return place == SBP_PLACE_WHOLE || place == SBP_PLACE_COMPUTED ||
           (place != SBP_PLACE_SHARE && !tensor->sharded);
}

/* Rows of a tensor as it is stored, or converted, there. */
static sbp_extent rows_at(const sbp_staging *s, int32_t tensor, sbp_place_kind place) {
    const sbp_placed_tensor *it = &s->r->tensors[tensor];
    int64_t rows = sbp_extent_as_const(it->rows), group = s->p->program->group;
    if (is_whole(it, place) != it->sharded)
        return it->rows;
    return sbp_extent_const(it->sharded ? rows * group : rows / group);
}

/* How the tensor lies there; -1: it has no parts. */
static int32_t layout_at(const sbp_staging *s, int32_t tensor, sbp_place_kind place) {
    const sbp_tensor_pool *pool = &s->r->pools[s->r->tensors[tensor].pool];
    if (!is_whole(&s->r->tensors[tensor], place))
        return -1;
    return is_unpacked(s, tensor, place) ? pool->unpacked.layout : pool->layout;
}

static sbp_spot staging_spot(const sbp_staging *s, const sbp_staging_pool *pool, int32_t staged,
                             int32_t tensor, int32_t part) {
    int32_t first = part == ALL ? pool->buffer : pool->parts[layout_at(s, tensor, pool->place)] + part;
    return (sbp_spot){.buffer = first + staged / pool->piece * pool->buffers,
                      .element = staged % pool->piece};
}

static sbp_spot spot_at(const sbp_staging *s, int32_t tensor, sbp_place_kind place, int32_t part) {
    const sbp_standing *st = &s->standing[tensor];
    const sbp_placed_tensor *it = &s->r->tensors[tensor];
    if (place == SBP_PLACE_KEPT)
        return (sbp_spot){.buffer = part == ALL ? it->buffer : it->parts[part], .element = it->element};
    return staging_spot(s, &s->pools[st->pool[place]], st->staged[place], tensor, part);
}

/* What a task reads of a tensor. What is written in parts is read as a whole: the other parts stay. */
static bool is_read(const sbp_operand *operand) {
    return operand->access != SBP_WRITE || operand->part != ALL;
}

/* ---- pools ------------------------------------------------------------------------------------------- */

/* Staging buffers that hold numbers of this shape, whatever the blocks are that they come from. */
static int32_t find_unpacked(const sbp_staging *s, int32_t tensor) {
    const sbp_placed_tensor *it = &s->r->tensors[tensor];
    const sbp_tensor_pool *pool = &s->r->pools[it->pool];
    for (int32_t k = 0; k < s->pool_count; k++)
        if (s->pools[k].unpacked && s->pools[k].dtype == it->computed &&
            s->pools[k].layout == pool->unpacked.layout && s->pools[k].cols == pool->unpacked.cols &&
            sbp_extent_equal(s->pools[k].rows, pool->unpacked.rows))
            return k;
    return -1;
}

/* Staging buffers that buckets share whatever their parts are. */
static int32_t find_shared(const sbp_staging *s, const sbp_placed_tensor *it, sbp_place_kind place) {
    for (int32_t k = 0; k < s->pool_count && place == SBP_PLACE_HOST && it->parts && it->shared; k++)
        if (s->pools[k].shared && s->pools[k].place == place && s->pools[k].of == it->role &&
            s->pools[k].dtype == it->stored)
            return k;
    return -1;
}

/* Staging buffers of a pool at a place; made when the first tensor needs one. by_place: per pool and place,
 * -1. */
static int32_t find_pool(sbp_staging *s, int32_t *by_place, int32_t tensor, sbp_place_kind place) {
    static const char *const suffixes[] = {"", ".here", "", ".whole", ".computed", ".share"};
    const sbp_placed_tensor *it = &s->r->tensors[tensor];
    const sbp_tensor_pool *pool = &s->r->pools[it->pool];
    int32_t *found = &by_place[it->pool * SBP_PLACE_COUNT + (int)place];
    bool unpacked = is_unpacked(s, tensor, place);
    if (*found < 0)
        *found = unpacked ? find_unpacked(s, tensor) : find_shared(s, it, place);
    if (*found >= 0)
        return *found;
    sbp_extent rows = unpacked ? pool->unpacked.rows : rows_at(s, tensor, place);
    int64_t cols = unpacked ? pool->unpacked.cols : it->cols;
    const char *name = pool->name
                           ? pool->name
                           : sbp_arena_printf(s->p->arena, "staging.%s.%s.%lldx%lld",
                                              sbp_role_name(pool->role), sbp_dtype_name(dtype_at(it, place)),
                                              (long long)sbp_extent_as_const(rows), (long long)cols);
    SBP_PUSH(s->p->arena, s->pools, s->pool_count, s->pool_capacity,
             (sbp_staging_pool){.name = sbp_arena_printf(s->p->arena, "%s%s", name, suffixes[place]),
                                .place = place,
                                .of = pool->role,
                                .shared = it->shared,
                                .role = pool->name ? it->role : SBP_ROLE_STAGING,
                                .dtype = dtype_at(it, place),
                                .unpacked = unpacked,
                                .layout = layout_at(s, tensor, place),
                                .rows = rows,
                                .cols = cols,
                                .last_task = -1,
                                .buffer = -1});
    *found = s->pool_count - 1;
    return *found;
}

/* A bucket stands in a pool: there is room, and buffers for its parts. */
static void add_layout(sbp_staging *s, sbp_staging_pool *pool, int32_t tensor) {
    int32_t layout = layout_at(s, tensor, pool->place);
    if (layout < 0)
        return;
    if (!pool->parts) {
        pool->parts = SBP_NEW_ARRAY(s->p->arena, int32_t, s->r->layout_count);
        for (int32_t i = 0; i < s->r->layout_count; i++)
            pool->parts[i] = -1;
    }
    pool->parts[layout] = 0;
    sbp_extent rows = pool->unpacked ? pool->rows : rows_at(s, tensor, pool->place);
    if (sbp_extent_as_const(rows) > sbp_extent_as_const(pool->rows))
        pool->rows = rows;
}

static bool names_before(const sbp_task *task, int32_t operand) {
    for (int32_t i = 0; i < operand; i++)
        if (task->operands[i].tensor == task->operands[operand].tensor &&
            task->operands[i].form == task->operands[operand].form)
            return true;
    return false;
}

/* How many tensors of each pool a task wants, and reads. */
typedef struct demand {
    int32_t wants, reads;
} demand;

enum { CLOSE = 2 }; /* tasks that are no further apart: no time to fetch in between */

static bool is_wanted_by(const sbp_task *task, int32_t tensor) {
    for (int32_t i = 0; i < task->operand_count; i++)
        if (task->operands[i].tensor == tensor)
            return true;
    return false;
}

/* Task number `at` wants a tensor in a pool. */
static void count_demand(const sbp_staging *s, sbp_staging_pool *pool, const sbp_call_list *list, int32_t at,
                         const sbp_operand *operand, demand *d) {
    bool reads = is_read(operand), close = pool->last_task >= 0 && pool->last_task >= at - CLOSE,
         lasts = s->r->tensors[operand->tensor]
                     .lasts; /* arrays of streams count on two staging buffers (calls.c) */
    d->wants++;
    d->reads += reads;
    pool->hurries |=
        !lasts || (reads && close && !is_wanted_by(&list->tasks[pool->last_task], operand->tensor));
}

static void count_task(sbp_staging *s, int32_t *by_place, const sbp_call_list *list, int32_t task_number,
                       demand *demands) {
    const sbp_task *task = &list->tasks[task_number];
    for (int32_t i = 0; i < task->operand_count; i++) {
        const sbp_operand *operand = &task->operands[i];
        if (operand->tensor < 0 || names_before(task, i))
            continue;
        const sbp_placed_tensor *it = &s->r->tensors[operand->tensor];
        sbp_standing *st = &s->standing[operand->tensor];
        for (sbp_place_kind at = wanted_place(it, task, operand); at != SBP_PLACE_KEPT; at = before(it, at)) {
            if (st->pool[at] < 0) {
                st->pool[at] = find_pool(s, by_place, operand->tensor, at);
                s->pools[st->pool[at]].tensors++;
                add_layout(s, &s->pools[st->pool[at]], operand->tensor);
            }
            count_demand(s, &s->pools[st->pool[at]], list, task_number, operand, &demands[st->pool[at]]);
            if (it->buffer < 0)
                break;
        }
    }
}

static int32_t max_i32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t min_i32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t times(int32_t a, int32_t b) {
    return a > 0 && b > INT32_MAX / a ? INT32_MAX : a * b;
}

int32_t sbp_offload_piece(const sbp_program_builder *p, sbp_space space, sbp_dtype dtype, sbp_extent rows,
                          int64_t cols, int32_t count) {
    int64_t most = p->target.max_allocation_bytes, bytes;
    sbp_sizes sizes = sbp_program_sizes(p->program, p->options.t_max, p->options.t_max);
    sbp_buffer one = {.dtype = dtype, .count = 1, .rows = rows, .cols = cols};
    if (most <= 0 || space != SBP_DEVICE || count < 2 || !sbp_buffer_bytes(&one, &sizes, &bytes))
        return max_i32(count, 1);
    int64_t fit = most / sbp_round_up(bytes > 0 ? bytes : 1, p->target.alignment_bytes);
    return fit < 1 ? 1 : fit < count ? (int32_t)fit : count;
}

static bool is_new_shape(const sbp_staging *s, const sbp_staging_pool *pool, int32_t layout, int32_t part) {
    const sbp_layout *l = &s->r->layouts[layout];
    for (int32_t k = 0; k <= layout; k++) {
        const sbp_layout *other = &s->r->layouts[k];
        for (int32_t i = 0; pool->parts[k] >= 0 && i < (k < layout ? other->count : part); i++)
            if (other->cols[i] == l->cols[part] && sbp_extent_equal(other->rows[i], l->rows[part]))
                return false;
    }
    return true;
}

/* How many shared staging buffers fit in the room of two for each shape that stands in one: as many gradients
 * of a layer can be in flight while updates run. */
static int64_t shared_staging(const sbp_staging *s, const sbp_staging_pool *pool) {
    int64_t elems = 0;
    for (int32_t k = 0; k < s->r->layout_count; k++)
        for (int32_t i = 0; pool->parts[k] >= 0 && i < s->r->layouts[k].count; i++)
            if (is_new_shape(s, pool, k, i))
                elems += 2 * sbp_extent_as_const(s->r->layouts[k].rows[i]) * s->r->layouts[k].cols[i];
    return elems / (sbp_extent_as_const(pool->rows) * pool->cols);
}

/* Adds `count` staging buffers behind each other, with the parts of all that stand in them. */
static void add_staging(sbp_staging *s, sbp_staging_pool *pool, sbp_space space, int32_t count) {
    const sbp_program *program = s->p->program;
    int32_t staging =
        sbp_lower_buffer(s->p, pool->name, pool->role, space, pool->dtype, count, pool->rows, pool->cols, -1);
    for (int32_t l = 0; pool->parts && l < s->r->layout_count; l++) {
        if (pool->parts[l] < 0)
            continue;
        if (staging == pool->buffer)
            pool->parts[l] = program->buffer_count;
        sbp_bucket_parts(s->p, staging, &s->r->layouts[l]);
    }
    if (staging == pool->buffer)
        pool->buffers = program->buffer_count - staging;
}

sbp_status sbp_staging_make(sbp_program_builder *p, const sbp_call_schedule *r, sbp_staging *s) {
    *s = (sbp_staging){.p = p, .r = r};
    s->standing = SBP_NEW_ARRAY(p->arena, sbp_standing, r->tensor_count + 1);
    for (int32_t i = 0; i < r->tensor_count; i++)
        for (int k = 0; k < SBP_PLACE_COUNT; k++)
            s->standing[i].pool[k] = -1;
    int32_t places = r->pool_count * SBP_PLACE_COUNT;
    int32_t *by_place = SBP_NEW_ARRAY(p->arena, int32_t, places + 1);
    demand *demands = SBP_NEW_ARRAY(p->arena, demand, places + 1);
    for (int32_t i = 0; i < places; i++)
        by_place[i] = -1;
    for (int32_t l = 0; l < r->list_count; l++) {
        for (int32_t k = 0; k < s->pool_count; k++)
            s->pools[k].last_task = -1;
        for (int32_t a = 0; a < r->lists[l].task_count; a++) {
            count_task(s, by_place, &r->lists[l], a, demands);
            for (int32_t k = 0; k < s->pool_count; k++) {
                s->pools[k].most = max_i32(s->pools[k].most, demands[k].wants);
                s->pools[k].fetched = max_i32(s->pools[k].fetched, demands[k].reads);
                s->pools[k].last_task = demands[k].wants > 0 ? a : s->pools[k].last_task;
                demands[k] = (demand){0};
            }
        }
    }
    for (int32_t k = 0; k < s->pool_count; k++) {
        sbp_staging_pool *pool = &s->pools[k];
        /* twice what one task reads: the next one's come while it runs, unless that is far away; a conversion
         * runs in its own queue. On the host always: what goes to disk passes what comes from there. */
        bool twice = pool->place == SBP_PLACE_HOST ||
                     ((pool->place == SBP_PLACE_DEVICE || pool->place == SBP_PLACE_WHOLE) && pool->hurries);
        pool->count = twice ? max_i32(pool->most, 2 * pool->fetched) : pool->most;
        if (pool->place == SBP_PLACE_WHOLE && pool->hurries)
            pool->count = max_i32(pool->count, times(pool->fetched, p->options.schedule.gathered));
        if (pool->shared && pool->parts && pool->place == SBP_PLACE_HOST)
            pool->count = max_i32(pool->count, (int32_t)(pool->fetched * shared_staging(s, pool)));
        pool->count = min_i32(pool->tensors, pool->count);
        pool->wanted = SBP_NEW_ARRAY(p->arena, int32_t, 2 * pool->fetched + 1);
        pool->holds = SBP_NEW_ARRAY(p->arena, int32_t, pool->count + 1);
        pool->free_after = SBP_NEW_ARRAY(p->arena, int32_t, pool->count + 1);
        sbp_space space = pool->place == SBP_PLACE_HOST ? SBP_HOST : SBP_DEVICE;
        pool->piece = sbp_offload_piece(p, space, pool->dtype, pool->rows, pool->cols, pool->count);
        pool->buffer = p->program->buffer_count;
        for (int32_t i = 0; i < pool->count; i += pool->piece)
            add_staging(s, pool, space, min_i32(pool->piece, pool->count - i));
    }
    return SBP_OK;
}

/* ---- walking ----------------------------------------------------------------------------------------- */

void sbp_staging_begin(sbp_staging *s, const sbp_call_list *list) {
    s->list = list;
    s->fetching[0] = s->fetching[1] = -1;
    s->moves = NULL;
    s->move_count = s->move_capacity = 0;
    for (int q = 0; q < SBP_QUEUE_COUNT; q++)
        s->latest[q] = -1;
    for (int32_t k = 0; k < s->pool_count; k++) {
        s->pools[k].brought = 0;
        for (int32_t i = 0; i < 2 * s->pools[k].fetched; i++)
            s->pools[k].wanted[i] = -1;
        for (int32_t i = 0; i < s->pools[k].count; i++)
            s->pools[k].holds[i] = s->pools[k].free_after[i] = -1;
    }
    for (int32_t i = 0; i < s->r->tensor_count; i++) {
        sbp_standing *st = &s->standing[i];
        st->use_count = st->next_use = 0;
        st->dirty = SBP_PLACE_KEPT;
        for (int k = 0; k < SBP_PLACE_COUNT; k++) {
            st->staged[k] = st->since[k] = -1;
            st->valid[k] = false;
        }
        st->valid[SBP_PLACE_KEPT] = s->r->tensors[i].lasts;
    }
    for (int32_t a = 0; a < list->task_count; a++)
        for (int32_t i = 0; i < list->tasks[a].operand_count; i++) {
            const sbp_operand *o = &list->tasks[a].operands[i];
            if (o->tensor < 0)
                continue;
            sbp_standing *st = &s->standing[o->tensor];
            if (st->use_count > 0 && st->uses[st->use_count - 1].task == a)
                st->uses[st->use_count - 1].overwrites &= !is_read(o);
            else
                SBP_PUSH(s->p->arena, st->uses, st->use_count, st->use_capacity,
                         (use){.task = a, .overwrites = !is_read(o)});
        }
}

/* The use after task `at`; NULL when there is none. */
static const use *next_use(sbp_standing *st, int32_t at) {
    while (st->next_use < st->use_count && st->uses[st->next_use].task <= at)
        st->next_use++;
    return st->next_use < st->use_count ? &st->uses[st->next_use] : NULL;
}

static const char *pool_name(const sbp_staging *s, int32_t tensor) {
    const char *name = s->r->pools[s->r->tensors[tensor].pool].name;
    return name ? name : s->p->program->buffers[s->r->tensors[tensor].buffer].name;
}

static void touch(sbp_staging *s, int32_t tensor, sbp_place_kind place, int32_t after) {
    const sbp_standing *st = &s->standing[tensor];
    if (place == SBP_PLACE_KEPT)
        return;
    int32_t *free_after = &s->pools[st->pool[place]].free_after[st->staged[place]];
    *free_after = *free_after > after ? *free_after : after;
}

/* Where the parts of a packed tensor are, and its parameters as numbers. */
static void add_parts(sbp_staging *s, sbp_move *move, sbp_place_kind from, sbp_place_kind to) {
    const sbp_placed_tensor *it = &s->r->tensors[move->tensor];
    int32_t parts = s->r->layouts[layout_at(s, move->tensor, from)].count;
    move->part_count = parts + it->packed_count;
    move->parts = SBP_NEW_ARRAY(s->p->arena, sbp_spot, move->part_count);
    for (int32_t k = 0; k < move->part_count; k++) {
        bool number = k >= parts;
        move->parts[k] = number ? spot_at(s, move->tensor, to, it->packed_count > 1 ? k - parts : ALL)
                                : spot_at(s, move->tensor, from, k);
        move->parts[k].access = number ? SBP_WRITE : SBP_READ;
    }
}

/* Between this rank's share and all of it; -1: the move is of one or the other. */
static int32_t collective_of(const sbp_placed_tensor *tensor, sbp_place_kind from, sbp_place_kind to) {
    if (is_whole(tensor, from) == is_whole(tensor, to))
        return -1;
    return is_whole(tensor, to) ? SBP_ALL_GATHER : SBP_SHARE;
}

static int32_t queue_of(const sbp_placed_tensor *tensor, sbp_place_kind from, sbp_place_kind to) {
    int32_t collective = collective_of(tensor, from, to);
    if (collective == SBP_SHARE && space_of(tensor, from) == SBP_DEVICE)
        return SBP_QUEUE_COMPUTE;
    return collective >= 0 ? SBP_QUEUE_NET
                           : (int32_t)sbp_queue_of_copy(space_of(tensor, to), space_of(tensor, from));
}

static void add_move(sbp_staging *s, int32_t tensor, sbp_place_kind from, sbp_place_kind to, int32_t after) {
    const sbp_placed_tensor *it = &s->r->tensors[tensor];
    sbp_move move = {.tensor = tensor,
                     .after = after,
                     .order = s->move_count,
                     .from = spot_at(s, tensor, from, ALL),
                     .to = spot_at(s, tensor, to, ALL),
                     .from_dtype = dtype_at(it, from),
                     .to_dtype = dtype_at(it, to),
                     .from_rows = rows_at(s, tensor, from),
                     .to_rows = rows_at(s, tensor, to),
                     .collective = collective_of(it, from, to),
                     .queue = queue_of(it, from, to)};
    move.from.access = SBP_READ;
    move.to.access = SBP_WRITE;
    if (is_unpacked(s, tensor, to))
        add_parts(s, &move, from, to);
    SBP_PUSH(s->p->arena, s->moves, s->move_count, s->move_capacity, move);
    touch(s, tensor, from, after);
    touch(s, tensor, to, after);
    s->standing[tensor].since[to] = after;
    s->standing[tensor].valid[to] = true;
}

/* Gives the tensor a staging buffer at a place, for task `at`. */
static sbp_status take_staging(sbp_staging *s, int32_t tensor, sbp_place_kind place, int32_t at);

/* The newest content, step by step from where it was written to its placement. */
static sbp_status write_back(sbp_staging *s, int32_t tensor, int32_t at) {
    const sbp_placed_tensor *it = &s->r->tensors[tensor];
    sbp_standing *st = &s->standing[tensor];
    while (st->dirty != SBP_PLACE_KEPT) {
        sbp_place_kind from = (sbp_place_kind)st->dirty, to = before(it, from);
        if (to != SBP_PLACE_KEPT && st->staged[to] < 0)
            SBP_TRY(take_staging(s, tensor, to, at));
        int32_t after = st->since[from];
        if (to != SBP_PLACE_KEPT) {
            int32_t free_after = s->pools[st->pool[to]].free_after[st->staged[to]];
            after = after > free_after ? after : free_after;
        }
        add_move(s, tensor, from, to, after);
        st->dirty = (int32_t)to;
    }
    return SBP_OK;
}

/* Whether somebody reads the tensor behind task `at` as it is then. */
static bool is_read_later(const sbp_staging *s, int32_t tensor, int32_t at) {
    const use *next = next_use(&s->standing[tensor], at);
    return next ? !next->overwrites : s->r->tensors[tensor].lasts;
}

static sbp_status give_up(sbp_staging *s, int32_t tensor, sbp_place_kind place, int32_t at) {
    sbp_standing *st = &s->standing[tensor];
    if (st->dirty == (int32_t)place) {
        /* the task at hand may be the one that reads it: it is pinned then, and not here */
        if (is_read_later(s, tensor, at - 1)) {
            if (s->r->tensors[tensor].buffer < 0)
                return sbp_fail(s->p->diag, SBP_INTERNAL, "offload: '%s' is given up before it was read",
                                pool_name(s, tensor));
            SBP_TRY(write_back(s, tensor, at));
        } else {
            st->dirty = SBP_PLACE_KEPT;
        }
    }
    s->pools[st->pool[place]].holds[st->staged[place]] = -1;
    st->staged[place] = -1;
    st->valid[place] = false;
    return SBP_OK;
}

static sbp_status take_staging(sbp_staging *s, int32_t tensor, sbp_place_kind place, int32_t at) {
    sbp_standing *st = &s->standing[tensor];
    sbp_staging_pool *pool = &s->pools[st->pool[place]];
    int32_t best = -1, best_key = -1;
    for (int32_t i = 0; i < pool->count; i++) {
        int32_t held = pool->holds[i], key;
        if (held < 0) { /* of free staging buffers, the one that was free first; before any that is not */
            key = INT32_MAX - 1 - pool->free_after[i] / 2;
        } else {
            if (at < s->list->task_count && is_wanted_by(&s->list->tasks[at], held))
                continue;
            const use *next = next_use(&s->standing[held], at - 1);
            key = next ? next->task : s->list->task_count;
        }
        /* of tensors that nobody wants again, the one that was read first: the next comes meanwhile */
        if (best < 0 || key > best_key || (key == best_key && pool->free_after[i] < pool->free_after[best])) {
            best = i;
            best_key = key;
        }
    }
    if (best < 0)
        return sbp_fail(s->p->diag, SBP_INTERNAL, "offload: task %d of %s finds no staging buffer in %s", at,
                        s->list->entry, pool->name);
    if (pool->holds[best] >= 0)
        SBP_TRY(give_up(s, pool->holds[best], place, at));
    pool->holds[best] = tensor;
    st->staged[place] = best;
    return SBP_OK;
}

/* The last task before `at` that takes time. Converting earlier would wait for the copy, and everything
 * behind it with it; behind fills, what they clear would be there beside what is converted. */
static int32_t before_fills(const sbp_call_list *list, int32_t at) {
    do
        at--;
    while (at >= 0 && list->tasks[at].kind == SBP_TASK_FILL);
    return at;
}

/* The task behind which what task `at` wants may be gathered. As early as two staging buffers for each that a
 * task reads would let it, however many there are: a fence waits for all that was given to the interconnect
 * before it. */
static int32_t not_too_early(sbp_staging_pool *pool, int32_t at) {
    int32_t *wanted = &pool->wanted[pool->fetched > 0 ? pool->brought++ % (2 * pool->fetched) : 0],
            before = pool->fetched > 0 ? *wanted : -1;
    *wanted = at;
    return before;
}

/* Makes the tensor stand at a place for task `at`; with content when it is going to be read. */
static sbp_status realise(sbp_staging *s, int32_t tensor, sbp_place_kind place, int32_t at, bool content) {
    const sbp_placed_tensor *it = &s->r->tensors[tensor];
    sbp_standing *st = &s->standing[tensor];
    if (place == SBP_PLACE_KEPT) {
        if (content && !st->valid[place])
            SBP_TRY(write_back(s, tensor, at));
        return SBP_OK;
    }
    if (st->staged[place] >= 0 && (st->valid[place] || !content))
        return SBP_OK;
    sbp_place_kind from = before(it, place);
    bool anywhere = false;
    for (int k = 0; k < SBP_PLACE_COUNT; k++)
        anywhere |= st->valid[k];
    content = content && (it->lasts || anywhere); /* what is written and read in one call begins empty */
    if (content) {
        if (it->buffer < 0)
            return sbp_fail(s->p->diag, SBP_INTERNAL,
                            "offload: '%s' is read in a memory space where it has no buffer",
                            pool_name(s, tensor));
        SBP_TRY(realise(s, tensor, from, at, true));
        if (st->valid[place]) /* it was newer elsewhere, and passed here on its way back */
            return SBP_OK;
    }
    if (st->staged[place] < 0)
        SBP_TRY(take_staging(s, tensor, place, at));
    if (!content)
        return SBP_OK;
    int32_t free_after = s->pools[st->pool[place]].free_after[st->staged[place]], after = st->since[from];
    int32_t queue = queue_of(it, from, place);
    after = after > free_after ? after : free_after;
    if (place == SBP_PLACE_WHOLE)
        after = max_i32(after, not_too_early(&s->pools[st->pool[place]], at));
    if (queue == SBP_QUEUE_COMPUTE)
        after = max_i32(after, before_fills(s->list, at));
    if (queue == SBP_QUEUE_IN)
        after = max_i32(after, s->fetching[1]);
    after = after > s->latest[queue] ? after : s->latest[queue];
    s->latest[queue] = after;
    add_move(s, tensor, from, place, after);
    return SBP_OK;
}

/* The task wrote the tensor at a place: it is nowhere else as it is now. */
static sbp_status wrote(sbp_staging *s, int32_t tensor, sbp_place_kind place, int32_t at) {
    sbp_standing *st = &s->standing[tensor];
    st->dirty = SBP_PLACE_KEPT;
    for (int k = 0; k < SBP_PLACE_COUNT; k++)
        if (k != (int)place) {
            st->valid[k] = false;
            if (k != SBP_PLACE_KEPT && st->staged[k] >= 0)
                SBP_TRY(give_up(s, tensor, (sbp_place_kind)k, at));
        }
    st->valid[place] = true;
    st->since[place] = at;
    st->dirty = (int32_t)place;
    return SBP_OK;
}

sbp_status sbp_staging_bring(sbp_staging *s, int32_t at, sbp_spot *spots) {
    const sbp_task *task = &s->list->tasks[at];
    sbp_place_kind *places = SBP_NEW_ARRAY(s->p->arena, sbp_place_kind, task->operand_count + 1);
    /* What a function fetches from the host itself comes last, and of the rest nothing earlier than
     * behind the last such task but one: it would stand in queue in before what that fetches, and wait
     * for the disk. */
    for (int last = 0; last < 2; last++)
        for (int32_t i = 0; i < task->operand_count; i++) {
            const sbp_operand *o = &task->operands[i];
            if ((o->form == SBP_FORM_HOST) != (last == 1))
                continue;
            if (o->tensor < 0) {
                spots[i] = (sbp_spot){o->buffer, o->element, o->access};
                continue;
            }
            places[i] = wanted_place(&s->r->tensors[o->tensor], task, o);
            SBP_TRY(realise(s, o->tensor, places[i], at, is_read(o)));
            spots[i] = spot_at(s, o->tensor, places[i], o->part);
            spots[i].access = o->access;
        }
    for (int32_t i = 0; i < task->operand_count; i++)
        if (task->operands[i].tensor >= 0)
            touch(s, task->operands[i].tensor, places[i], at);
    bool fetches = false;
    for (int32_t i = 0; i < task->operand_count; i++)
        fetches |= task->operands[i].form == SBP_FORM_HOST;
    if (fetches) {
        s->fetching[1] = s->fetching[0];
        s->fetching[0] = at;
    }
    for (int32_t i = 0; i < task->operand_count; i++)
        if (task->operands[i].tensor >= 0 && task->operands[i].access != SBP_READ)
            SBP_TRY(wrote(s, task->operands[i].tensor, places[i], at));
    return SBP_OK;
}

sbp_status sbp_staging_end(sbp_staging *s) {
    for (int32_t i = 0; i < s->r->tensor_count; i++)
        if (s->r->tensors[i].lasts)
            SBP_TRY(write_back(s, i, s->list->task_count));
    return SBP_OK;
}
