/* rows_plan.c: turns a row kernel into lists of steps over blocks (rows.h). */
#include "backends/cpu/rows.h"

#include <string.h>

/* A place that is free again, for values of the same size. */
typedef struct free_place {
    int32_t place;
    int64_t elems;
} free_place;

typedef struct planner {
    sbp_arena *arena;
    cpu_row_plan *plan;
    const sbp_rowkernel *kernel;
    int32_t levels[SBP_ROWKERNEL_MAX_INSTRS];
    /* whole: how often it is computed: 0 once per item, 1 per block of rows, 2 per block of heads */
    int stages[SBP_ROWKERNEL_MAX_INSTRS];
    int64_t elem_bytes, bytes; /* scratch so far */
    free_place *free;
    int32_t free_count, free_capacity;
    /* per instruction: its place in the lists made so far, -1 none */
    int32_t places[SBP_ROWKERNEL_MAX_INSTRS];
    /* expansions that hold for a whole item or block of rows */
    struct expansion {
        int32_t value, place;
        uint8_t shape;
        int64_t length;
    } * expansions;
    int32_t expansion_count, expansion_capacity;
} planner;

static bool is_constant(const sbp_rk_instr *instr) {
    return instr->op == SBP_RK_CONST || instr->op == SBP_RK_SCALAR;
}

static int32_t operand_value(const sbp_rk_instr *instr, int k) {
    return k == 0 ? instr->a : k == 1 ? instr->b : instr->c;
}

static int operand_count(const sbp_rk_instr *instr) {
    if (instr->op == SBP_RK_MAP)
        return sbp_rowop_arity(instr->map);
    if (instr->op == SBP_RK_INTEGER)
        return sbp_intop_arity(instr->integer);
    return instr->b >= 0 ? 3 : instr->a >= 0 ? 1 : 0;
}

/* ---- shapes and places ---------------------------------------------------------------------------- */

/* The axes among `vary` along which a block has more than one element. */
static uint8_t shape_of(const planner *p, uint8_t vary, int64_t length) {
    uint8_t shape = 0;
    if ((vary & SBP_VARY_ROW) && p->plan->block_rows > 1)
        shape |= SBP_VARY_ROW;
    if ((vary & SBP_VARY_HEAD) && p->plan->block_heads > 1)
        shape |= SBP_VARY_HEAD;
    if ((vary & SBP_VARY_ELEM) && length > 1)
        shape |= SBP_VARY_ELEM;
    return shape;
}

static uint8_t value_shape(const planner *p, int32_t value) {
    const sbp_rk_instr *instr = &p->kernel->instrs[value];
    return shape_of(p, instr->vary, instr->length);
}

static int64_t shape_elems(const planner *p, uint8_t shape, int64_t length) {
    int64_t elems = 1;
    if (shape & SBP_VARY_ROW)
        elems *= p->plan->block_rows;
    if (shape & SBP_VARY_HEAD)
        elems *= p->plan->block_heads;
    if (shape & SBP_VARY_ELEM)
        elems *= p->plan->pieces && length > ROW_BLOCK ? ROW_BLOCK : length;
    return elems;
}

/* A place that nothing else uses, also before and after. */
static int32_t own_place(planner *p, uint8_t shape, int64_t length) {
    SBP_PUSH(p->arena, p->plan->offsets, p->plan->place_count, p->plan->place_capacity, p->bytes);
    p->bytes += sbp_round_up(shape_elems(p, shape, length) * p->elem_bytes, 64);
    return p->plan->place_count - 1;
}

static int32_t new_place(planner *p, uint8_t shape, int64_t length) {
    int64_t elems = shape_elems(p, shape, length);
    for (int32_t i = 0; i < p->free_count; i++)
        if (p->free[i].elems == elems) {
            int32_t place = p->free[i].place;
            p->free[i] = p->free[--p->free_count];
            return place;
        }
    return own_place(p, shape, length);
}

static void release_place(planner *p, int32_t place, uint8_t shape, int64_t length) {
    free_place free = {.place = place, .elems = shape_elems(p, shape, length)};
    SBP_PUSH(p->arena, p->free, p->free_count, p->free_capacity, free);
}

/* ---- steps ---------------------------------------------------------------------------------------- */

static void push(planner *p, row_list *list, const row_step *step) {
    SBP_PUSH(p->arena, list->steps, list->count, list->capacity, *step);
}

/* The place of `value` with shape `wanted`, for a step of `list` at `stage`. What has to be expanded is
 * expanded where the value itself is computed, once, when that is less often than the step; else in `list`,
 * and *is_new is set. (A block of heads that is not full is the beginning of a full one.) */
static int32_t expanded(planner *p, row_list *list, int stage, int32_t value, uint8_t wanted, int64_t length,
                        bool *is_new) {
    uint8_t shape = value_shape(p, value);
    *is_new = false;
    if (shape == wanted)
        return p->places[value];
    int own = p->stages[value];
    bool early = !p->plan->pieces && own < stage;
    for (int32_t i = 0; early && i < p->expansion_count; i++)
        if (p->expansions[i].value == value && p->expansions[i].shape == wanted &&
            p->expansions[i].length == length)
            return p->expansions[i].place;
    row_step step = {.kind = ROW_EXPAND,
                     .dst = early ? own_place(p, wanted, length) : new_place(p, wanted, length),
                     .a = p->places[value],
                     .b = -1,
                     .c = -1,
                     .shape = wanted,
                     .a_shape = shape,
                     .length = wanted & SBP_VARY_ELEM ? length : 1};
    if (early) {
        row_list *lists[2] = {&p->plan->once, &p->plan->per_rows};
        struct expansion expansion = {.value = value, .place = step.dst, .shape = wanted, .length = length};
        push(p, lists[own], &step);
        SBP_PUSH(p->arena, p->expansions, p->expansion_count, p->expansion_capacity, expansion);
    } else {
        *is_new = true;
        push(p, list, &step);
    }
    return step.dst;
}

/* The step of a value that is not a constant; its operands have places. */
static void add_value(planner *p, row_list *list, int32_t value) {
    const sbp_rk_instr *instr = &p->kernel->instrs[value];
    static const row_step_kind kinds[] = {
        [SBP_RK_LOAD] = ROW_LOAD,   [SBP_RK_INDEX] = ROW_INDEX,     [SBP_RK_RANDOM] = ROW_RANDOM,
        [SBP_RK_MAP] = ROW_MAP,     [SBP_RK_INTEGER] = ROW_INTEGER, [SBP_RK_LOOKUP] = ROW_LOOKUP,
        [SBP_RK_ROUND] = ROW_ROUND, [SBP_RK_SUM] = ROW_REDUCE,      [SBP_RK_MAX] = ROW_REDUCE,
        [SBP_RK_MIN] = ROW_REDUCE};
    row_step step = {.kind = kinds[instr->op], .instr = instr, .dst = -1, .a = -1, .b = -1, .c = -1};
    step.shape = value_shape(p, value);
    step.length = step.shape & SBP_VARY_ELEM ? instr->length : 1;
    int32_t *at[3] = {&step.a, &step.b, &step.c};
    bool fresh[3] = {false};
    for (int k = 0; k < operand_count(instr); k++) {
        int32_t operand = operand_value(instr, k);
        uint8_t shape = value_shape(p, operand);
        *at[k] = p->places[operand];
        if (instr->op == SBP_RK_RANDOM && k > 0)
            *at[k] = expanded(p, list, p->stages[value], operand, step.shape & SBP_VARY_ROW, 1, &fresh[k]);
        if (instr->op == SBP_RK_INTEGER && step.shape != shape)
            *at[k] = expanded(p, list, p->stages[value], operand, step.shape, step.length, &fresh[k]);
        if (instr->op != SBP_RK_MAP)
            continue;
        if (shape == 0 && step.shape != 0 && !(k == 0 && sbp_rowop_arity(instr->map) == 3))
            step.scalars |= (uint8_t)(1 << k);
        else
            *at[k] = expanded(p, list, p->stages[value], operand, step.shape, step.length, &fresh[k]);
    }
    if (instr->a >= 0)
        step.a_shape = value_shape(p, instr->a);
    if (sbp_rk_is_reduction(instr) && p->plan->pieces) /* over one element: a copy */
        step.kind = ROW_EXPAND;
    step.dst = new_place(p, step.shape, step.length);
    p->places[value] = step.dst;
    push(p, list, &step);
    for (int k = 0; k < 3; k++)
        if (fresh[k] && instr->op == SBP_RK_RANDOM)
            release_place(p, *at[k], step.shape & SBP_VARY_ROW, 1);
        else if (fresh[k])
            release_place(p, *at[k], step.shape, step.length);
}

/* A store or partial; the value is expanded to the axes that the operand has. */
static void add_store(planner *p, row_list *list, int32_t index) {
    const sbp_rk_instr *instr = &p->kernel->instrs[index], *value = &p->kernel->instrs[instr->a];
    bool partial = instr->op == SBP_RK_PARTIAL_ADD;
    uint8_t vary = instr->vary;
    if (partial)
        vary |= SBP_VARY_ROW | (value->vary & SBP_VARY_HEAD);
    row_step step = {.kind = partial ? ROW_PARTIAL : ROW_STORE, .instr = instr, .dst = -1, .b = -1, .c = -1};
    step.shape = shape_of(p, vary, instr->length);
    step.length = step.shape & SBP_VARY_ELEM ? instr->length : 1;
    step.last_head = p->plan->pieces && !((instr->vary | value->vary) & SBP_VARY_HEAD);
    bool fresh;
    step.a = expanded(p, list, p->stages[index], instr->a, step.shape, step.length, &fresh);
    push(p, list, &step);
    if (fresh)
        release_place(p, step.a, step.shape, step.length);
}

/* Loads in the type of the arithmetic need no copy, unless they are themselves stored: then the store of
 * another value could overwrite them first. */
static void mark_in_memory(planner *p, row_list *list) {
    for (int32_t i = 0; i < list->count; i++) {
        row_step *step = &list->steps[i];
        if (step->kind != ROW_LOAD || p->kernel->operands[step->instr->index].dtype != p->kernel->compute)
            continue;
        step->in_memory = true;
        int32_t value = (int32_t)(step->instr - p->kernel->instrs);
        for (int32_t k = 0; k < p->kernel->instr_count; k++)
            if (sbp_rk_is_store(&p->kernel->instrs[k]) && p->kernel->instrs[k].a == value)
                step->in_memory = false;
    }
}

/* Whether a step of `list` reads an operand in memory: as a load that copies it, or by the place that a load
 * of this list, or of one that runs once per block of rows, has pointed there. No result lies over what an
 * item loads once. */
static bool reads_memory(const cpu_row_plan *plan, const row_list *list, const row_step *step) {
    const row_list *lists[] = {list, &plan->per_rows};
    const int32_t places[] = {step->a, step->b, step->c};
    if (step->kind == ROW_LOAD && !step->in_memory)
        return true;
    for (int l = 0; l < SBP_COUNT(lists); l++)
        for (int32_t i = 0; i < lists[l]->count; i++)
            for (int k = 0; k < 3 && lists[l]->steps[i].in_memory; k++)
                if (lists[l]->steps[i].dst == places[k])
                    return true;
    return false;
}

/* A map whose result is stored in the type of the arithmetic may compute it in the operand itself, unless a
 * later step reads memory, which could be that of the operand (ir/rowkernel/rowkernel.h: all loads, then all
 * stores). */
static void mark_targets(planner *p, row_list *list, row_list *stores) {
    for (int32_t s = 0; s < stores->count; s++) {
        const row_step *store = &stores->steps[s];
        if (store->kind != ROW_STORE || p->kernel->operands[store->instr->index].dtype != p->kernel->compute)
            continue;
        if (store->last_head && p->kernel->heads > 1) /* until then every head reads the operand */
            continue;
        const sbp_rk_instr *stored = &p->kernel->instrs[store->instr->a];
        row_step *producer = NULL;
        for (int32_t i = 0; i < list->count; i++) {
            row_step *step = &list->steps[i];
            if (step->dst == store->a) /* of this value, or of another that had this place before */
                producer = step->kind == ROW_MAP && step->instr == stored ? step : NULL;
            else if (producer && reads_memory(p->plan, list, step))
                producer = NULL;
        }
        if (producer)
            producer->target = store;
        p->plan->in_place |= producer != NULL;
    }
}

/* ---- whole ---------------------------------------------------------------------------------------- */

/* A sum over heads comes with the blocks of heads, though it does not vary with them; there is one block
 * then. */
static void find_stages(planner *p) {
    for (int32_t i = 0; i < p->kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &p->kernel->instrs[i];
        int stage = instr->vary & SBP_VARY_ROW ? 1 : 0;
        if ((instr->vary & SBP_VARY_HEAD) && p->kernel->heads > 1)
            stage = 2;
        for (int k = 0; k < operand_count(instr); k++)
            if (p->stages[operand_value(instr, k)] > stage)
                stage = p->stages[operand_value(instr, k)];
        p->stages[i] = sbp_rk_is_store(instr) && stage == 0 ? 1 : stage;
    }
}

static void plan_whole(planner *p) {
    cpu_row_plan *plan = p->plan;
    const sbp_rowkernel *kernel = p->kernel;
    row_list *lists[3] = {&plan->once, &plan->per_rows, &plan->per_heads};
    int32_t last_use[SBP_ROWKERNEL_MAX_INSTRS];
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        last_use[i] = -1;
        for (int k = 0; k < operand_count(&kernel->instrs[i]); k++)
            last_use[operand_value(&kernel->instrs[i], k)] =
                sbp_rk_is_store(&kernel->instrs[i]) ? INT32_MAX : i;
    }
    find_stages(p);
    for (int stage = 0; stage < 3; stage++)
        for (int32_t i = 0; i < kernel->instr_count; i++) {
            const sbp_rk_instr *instr = &kernel->instrs[i];
            if (is_constant(instr) || sbp_rk_is_store(instr) || p->stages[i] != stage || last_use[i] < 0)
                continue;
            add_value(p, lists[stage], i);
            /* Temporaries of the innermost list are used again once nobody reads them. */
            for (int k = 0; k < operand_count(instr); k++) {
                int32_t value = operand_value(instr, k);
                bool again = false;
                for (int l = 0; l < k; l++)
                    again |= operand_value(instr, l) == value;
                if (last_use[value] == i && !again && !is_constant(&kernel->instrs[value]) &&
                    p->stages[value] == 2)
                    release_place(p, p->places[value], value_shape(p, value), kernel->instrs[value].length);
            }
        }
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        if (!sbp_rk_is_store(instr))
            continue;
        add_store(p, p->stages[i] == 2 ? &plan->head_stores : &plan->row_stores, i);
    }
    for (int stage = 0; stage < 3; stage++)
        mark_in_memory(p, lists[stage]);
    mark_targets(p, &plan->per_heads, &plan->head_stores);
    if (plan->per_heads.count == 0)
        mark_targets(p, &plan->per_rows, &plan->row_stores);
}

/* ---- pieces --------------------------------------------------------------------------------------- */

/* Whether an instruction is a sum (max, min) over pieces. */
static bool sums_pieces(const planner *p, int32_t index) {
    const sbp_rk_instr *instr = &p->kernel->instrs[index];
    return sbp_rk_is_reduction(instr) && value_shape(p, instr->a) != 0;
}

/* Whether an instruction runs over pieces: its value, or what it stores, is long. */
static bool is_long(const planner *p, int32_t index) {
    const sbp_rk_instr *instr = &p->kernel->instrs[index];
    return sums_pieces(p, index) || shape_of(p, instr->vary, instr->length) != 0;
}

static int64_t run_length(const planner *p, int32_t index) {
    const sbp_rk_instr *instr = &p->kernel->instrs[index];
    return sums_pieces(p, index) ? p->kernel->instrs[instr->a].length : instr->length;
}

static void plan_list(planner *p, row_pass *pass, int32_t level, int64_t length) {
    const sbp_rowkernel *kernel = p->kernel;
    bool wanted[SBP_ROWKERNEL_MAX_INSTRS] = {false}, any = false;
    row_list list = {.length = length};
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        if ((sbp_rk_is_store(instr) || sums_pieces(p, i)) && is_long(p, i) && run_length(p, i) == length &&
            p->levels[instr->a] == level)
            wanted[i] = any = true;
    }
    if (!any)
        return;
    for (int32_t i = kernel->instr_count - 1; i >= 0; i--) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        for (int k = 0; wanted[i] && k < operand_count(instr); k++)
            if (value_shape(p, operand_value(instr, k)) != 0)
                wanted[operand_value(instr, k)] = true;
    }
    int32_t last_use[SBP_ROWKERNEL_MAX_INSTRS];
    for (int32_t i = 0; i < kernel->instr_count; i++)
        for (int k = 0; wanted[i] && k < operand_count(&kernel->instrs[i]); k++)
            last_use[operand_value(&kernel->instrs[i], k)] =
                sbp_rk_is_store(&kernel->instrs[i]) ? INT32_MAX : i;
    int32_t held[SBP_ROWKERNEL_MAX_INSTRS], held_count = 0;
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        if (!wanted[i])
            continue;
        if (sbp_rk_is_store(instr)) {
            add_store(p, &list, i);
        } else if (sums_pieces(p, i)) {
            row_step step = {.kind = ROW_REDUCE, .instr = instr, .dst = -1, .b = -1, .c = -1};
            step.a = p->places[instr->a];
            step.a_shape = SBP_VARY_ELEM;
            step.length = length;
            while (p->plan->reductions[step.reduction].instr != instr)
                step.reduction++;
            push(p, &list, &step);
        } else {
            add_value(p, &list, i);
            held[held_count++] = i;
        }
        for (int32_t h = 0; h < held_count;) {
            if (last_use[held[h]] > i) {
                h++;
                continue;
            }
            release_place(p, p->places[held[h]], SBP_VARY_ELEM, length);
            held[h] = held[--held_count];
        }
    }
    for (int32_t h = 0; h < held_count; h++)
        release_place(p, p->places[held[h]], SBP_VARY_ELEM, length);
    mark_in_memory(p, &list);
    mark_targets(p, &list, &list);
    SBP_PUSH(p->arena, pass->lists, pass->list_count, pass->list_capacity, list);
}

static void plan_pieces(planner *p) {
    cpu_row_plan *plan = p->plan;
    const sbp_rowkernel *kernel = p->kernel;
    for (int32_t i = 0; i < kernel->instr_count; i++)
        if (p->levels[i] >= plan->pass_count)
            plan->pass_count = p->levels[i] + 1;
    if (plan->pass_count == 0)
        plan->pass_count = 1;
    plan->passes = SBP_NEW_ARRAY(p->arena, row_pass, plan->pass_count);
    for (int32_t i = 0; i < kernel->instr_count; i++)
        if (sums_pieces(p, i)) {
            row_reduction reduction = {.instr = &kernel->instrs[i], .level = p->levels[i] - 1};
            reduction.place = p->places[i] = new_place(p, 0, 1);
            SBP_PUSH(p->arena, plan->reductions, plan->reduction_count, plan->reduction_capacity, reduction);
        }
    for (int32_t level = 0; level < plan->pass_count; level++) {
        row_pass *pass = &plan->passes[level];
        for (int32_t i = 0; i < kernel->instr_count; i++) {
            const sbp_rk_instr *instr = &kernel->instrs[i];
            if (p->levels[i] == level && !is_constant(instr) && !sbp_rk_is_store(instr) &&
                value_shape(p, i) == 0 && !sums_pieces(p, i))
                add_value(p, &pass->scalars, i);
        }
        for (int32_t i = 0; i < kernel->instr_count; i++) { /* each length once */
            bool seen = false;
            for (int32_t k = 0; k < pass->list_count; k++)
                seen |= pass->lists[k].length == run_length(p, i);
            if (!seen && is_long(p, i))
                plan_list(p, pass, level, run_length(p, i));
        }
    }
    for (int32_t i = 0; i < kernel->instr_count; i++)
        if (sbp_rk_is_store(&kernel->instrs[i]) && !is_long(p, i))
            add_store(p, &plan->final_stores, i);
}

/* ---- the plan ------------------------------------------------------------------------------------- */

static sbp_status choose_blocks(planner *p, sbp_diag *diag) {
    cpu_row_plan *plan = p->plan;
    const sbp_rowkernel *k = p->kernel;
    bool over_heads = false, partial = false;
    for (int32_t i = 0; i < k->instr_count; i++) {
        /* (over heads alone keeps a whole row, even of one head) */
        over_heads |= sbp_rk_is_reduction(&k->instrs[i]) && (k->instrs[i].axes & SBP_VARY_HEAD) &&
                      (k->heads > 1 || !(k->instrs[i].axes & SBP_VARY_ELEM));
        partial |= k->instrs[i].op == SBP_RK_PARTIAL_ADD;
    }
    if (over_heads && k->heads * k->n > INT64_C(1) << 24)
        return sbp_fail(diag, SBP_MACHINE, "kernel '%s' reduces over %lld heads of %lld elements", k->name,
                        (long long)k->heads, (long long)k->n);
    plan->pieces = k->n > ROW_WHOLE && !over_heads;
    plan->block_rows = plan->block_heads = 1;
    if (!plan->pieces) {
        int64_t heads = k->n < ROW_BLOCK ? ROW_BLOCK / k->n : 1;
        plan->block_heads = over_heads || heads > k->heads ? k->heads : heads;
        if (plan->block_heads == k->heads && k->heads * k->n < ROW_BLOCK)
            plan->block_rows = ROW_BLOCK / (k->heads * k->n);
    }
    int64_t per_row = k->heads * k->n;
    plan->item_rows = per_row < ROW_ITEM_ELEMS ? ROW_ITEM_ELEMS / per_row : 1;
    if (partial)
        plan->item_rows = sbp_round_up(plan->item_rows, SBP_PARTIAL_ROWS);
    return SBP_OK;
}

/* The format whose kernel this is, if there is a loop for it. Compared as text, which says all of it. */
static sbp_format decoded_format(sbp_arena *arena, const sbp_rowkernel *kernel, sbp_diag *diag) {
    static const sbp_format known[] = {SBP_FORMAT_Q8_0, SBP_FORMAT_Q4_0, SBP_FORMAT_Q4_1,
                                       SBP_FORMAT_Q4_K, SBP_FORMAT_Q6_K, SBP_FORMAT_NF4};
    const char *prefix = "dequantize.", *name = kernel->name;
    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return SBP_FORMAT_NONE;
    for (int i = 0; i < SBP_COUNT(known); i++) {
        if (strcmp(name + strlen(prefix), sbp_format_of(known[i])->name) != 0)
            continue;
        sbp_dtype to = kernel->operands[kernel->operand_count - 1].dtype;
        sbp_arena_mark mark = sbp_arena_begin(arena);
        const sbp_rowkernel *own =
            to == SBP_F32 || to == SBP_BF16 ? sbp_format_kernel(arena, diag, known[i], to) : NULL;
        bool same = false;
        if (own) {
            sbp_text text, own_text;
            sbp_text_init(&text, arena);
            sbp_text_init(&own_text, arena);
            sbp_rowkernel_print(&text, kernel);
            sbp_rowkernel_print(&own_text, own);
            same = strcmp(text.data, own_text.data) == 0;
        }
        sbp_arena_end(arena, mark);
        return same ? known[i] : SBP_FORMAT_NONE;
    }
    return SBP_FORMAT_NONE;
}

typedef struct plan_job {
    sbp_arena *arena;
    const sbp_rowkernel *kernel;
    cpu_row_plan *plan;
    sbp_diag *diag;
} plan_job;

static sbp_status plan_body(void *user) {
    plan_job *job = user;
    planner own = {.arena = job->arena, .kernel = job->kernel}, *p = &own; /* the arena stays with the plan */
    p->plan = job->plan = SBP_NEW(job->arena, cpu_row_plan);
    p->plan->arena = job->arena;
    p->plan->kernel = job->kernel;
    p->plan->decodes = decoded_format(job->arena, job->kernel, job->diag);
    p->elem_bytes = sbp_dtype_bytes(job->kernel->compute);
    sbp_rowkernel_levels(job->kernel, p->levels);
    SBP_TRY(choose_blocks(p, job->diag));
    p->plan->constants = SBP_NEW_ARRAY(job->arena, int32_t, job->kernel->instr_count + 1);
    for (int32_t i = 0; i < job->kernel->instr_count; i++) {
        bool constant = is_constant(&job->kernel->instrs[i]);
        p->places[i] = constant ? new_place(p, 0, 1) : -1;
        p->plan->constants[i] = p->places[i];
    }
    if (p->plan->pieces)
        plan_pieces(p);
    else
        plan_whole(p);
    cpu_row_plan *plan = p->plan;
    int64_t pointers = sbp_round_up(plan->place_count * (int64_t)sizeof(void *), 64);
    for (int32_t i = 0; i < plan->place_count; i++)
        plan->offsets[i] += pointers;
    plan->accumulators = pointers + p->bytes;
    plan->scratch_bytes = plan->accumulators + (plan->reduction_count + 1) * (int64_t)sizeof(double);
    if (plan->scratch_bytes > INT64_C(1) << 28)
        return sbp_fail(job->diag, SBP_MACHINE, "kernel '%s' needs %lld bytes of scratch memory per thread",
                        job->kernel->name, (long long)plan->scratch_bytes);
    return SBP_OK;
}

sbp_status cpu_row_plan_create(const sbp_rowkernel *kernel, sbp_diag *diag, cpu_row_plan **out) {
    *out = NULL;
    plan_job job = {.arena = sbp_arena_create(), .kernel = kernel, .diag = diag};
    if (!job.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a row kernel");
    sbp_status status = sbp_guard(job.arena, diag, plan_body, &job);
#ifdef SBP_VERIFY
    if (status == SBP_OK)
        status = cpu_row_plan_check(job.plan, 2, diag);
#endif
    if (status != SBP_OK) {
        sbp_arena_destroy(job.arena);
        return status;
    }
    *out = job.plan;
    return SBP_OK;
}

void cpu_row_plan_destroy(cpu_row_plan *plan) {
    if (plan)
        sbp_arena_destroy(plan->arena);
}
