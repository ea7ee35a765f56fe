/* rows_body.h: the block evaluator of row kernels, for one type of arithmetic. See real.h and ../rows.h. */

/* What the steps of one item see. */
typedef struct real_rows_run {
    const cpu_row_plan *plan;
    const cpu_command *command;
    char *scratch;
    REAL **at; /* per place */
    double *accumulators;
    int64_t row, rows;   /* the block of rows */
    int64_t head, heads; /* the block of heads */
    int64_t elem, elems; /* pieces: the piece */
    row_ahead *ahead;
} real_rows_run;

INLINE int64_t real_step_length(const real_rows_run *run, uint8_t shape, int64_t length) {
    if (!(shape & SBP_VARY_ELEM))
        return 1;
    return run->plan->pieces ? run->elems : length;
}

INLINE int64_t real_shape_rows(const real_rows_run *run, uint8_t shape) {
    return shape & SBP_VARY_ROW ? run->rows : 1;
}

INLINE int64_t real_shape_heads(const real_rows_run *run, uint8_t shape) {
    return shape & SBP_VARY_HEAD ? run->heads : 1;
}

INLINE REAL *real_own_place(const real_rows_run *run, int32_t place) {
    return (REAL *)(void *)(run->scratch + run->plan->offsets[place]);
}

/* ---- memory --------------------------------------------------------------------------------------- */

/* Where the elements of a block lie in an operand: `rows` times `heads` runs of `length` elements, as few as
 * possible. */
typedef struct real_runs {
    char *data;
    sbp_dtype dtype;
    int64_t rows, heads, length, row_bytes, head_bytes;
} real_runs;

static real_runs real_find_runs(const real_rows_run *run, const row_step *step) {
    const sbp_rk_instr *instr = step->instr;
    const sbp_rk_operand *operand = &run->plan->kernel->operands[instr->index];
    const cpu_view *view = &run->command->views[instr->index];
    int64_t bytes = sbp_dtype_bytes(view->dtype);
    real_runs r = {.dtype = view->dtype,
                   .rows = real_shape_rows(run, step->shape),
                   .heads = real_shape_heads(run, step->shape),
                   .length = real_step_length(run, step->shape, step->length),
                   .row_bytes = view->stride * bytes,
                   .head_bytes = operand->head_stride * bytes};
    int64_t column = operand->head_stride * run->head + instr->offset;
    if (step->shape & SBP_VARY_ELEM)
        column += run->elem;
    int64_t row = operand->vary & SBP_VARY_ROW ? run->row : 0;
    r.data = view->data + row * r.row_bytes + column * bytes;
    if (r.heads > 1 && operand->head_stride == r.length) {
        r.length *= r.heads;
        r.heads = 1;
    }
    if (r.rows > 1 && r.heads == 1 && view->stride == r.length) {
        r.length *= r.rows;
        r.rows = 1;
    }
    return r;
}

/* The block of an operand that comes next is asked for while this one is computed, a few lines of the cache
 * before each step: all at once they would have to be waited for, and the machine's own prefetching does not
 * follow as many operands in turns as a kernel has. */
INLINE void real_want_next(const real_rows_run *run, const row_step *step, const real_runs *r) {
    row_ahead *ahead = run->ahead;
    if (r->rows > 1 || r->heads > 1 || !(step->instr->vary & SBP_VARY_ROW) || ahead->count == ROW_AHEAD)
        return;
    int64_t bytes = r->length * sbp_dtype_bytes(r->dtype);
    ahead->next[ahead->count] = r->data + (run->plan->pieces ? bytes : run->plan->block_rows * r->row_bytes);
    ahead->end[ahead->count] = ahead->next[ahead->count] + bytes;
    ahead->count++;
}

INLINE void real_fetch_some(const real_rows_run *run) {
    row_ahead *ahead = run->ahead;
    for (int i = 0; i < ROW_AHEAD_LINES && ahead->count > 0; i++) {
        int last = ahead->count - 1;
        __builtin_prefetch(ahead->next[last]);
        ahead->next[last] += 64;
        if (ahead->next[last] >= ahead->end[last])
            ahead->count = last;
    }
}

static void real_step_load(const real_rows_run *run, const row_step *step) {
    real_runs r = real_find_runs(run, step);
    real_want_next(run, step, &r);
    if (step->in_memory && r.rows == 1 && r.heads == 1) {
        run->at[step->dst] = (REAL *)(void *)r.data;
        return;
    }
    REAL *out = run->at[step->dst];
    for (int64_t i = 0; i < r.rows; i++)
        for (int64_t h = 0; h < r.heads; h++, out += r.length)
            real_load_row(out, r.data + i * r.row_bytes + h * r.head_bytes, r.dtype, r.length);
}

/* Whether what is written here is an operand that the kernel reads, as in a step of an optimizer. */
INLINE bool real_also_read(const real_rows_run *run, const row_step *step) {
    const cpu_view *views = run->command->views;
    for (int32_t i = 0; i < run->plan->kernel->operand_count; i++)
        if (i != step->instr->index && views[i].data == views[step->instr->index].data)
            return true;
    return false;
}

static void real_step_store(const real_rows_run *run, const row_step *step) {
    real_runs r = real_find_runs(run, step);
    const REAL *from = run->at[step->a];
    if (!real_also_read(run, step))
        real_want_next(run, step, &r);
    if ((const char *)(const void *)from == r.data) /* computed in place */
        return;
    for (int64_t i = 0; i < r.rows; i++)
        for (int64_t h = 0; h < r.heads; h++, from += r.length)
            real_store_row(r.data + i * r.row_bytes + h * r.head_bytes, r.dtype, from, r.length);
}

/* Element `column` of the row of sums that the block of absolute row `row` adds to. */
static char *real_partial_at(const real_rows_run *run, const sbp_rk_instr *instr, int64_t row, int64_t head) {
    const sbp_rk_operand *operand = &run->plan->kernel->operands[instr->index];
    const cpu_view *view = &run->command->views[instr->index];
    return view->data +
           (row / SBP_PARTIAL_ROWS * view->stride + head * operand->head_stride + instr->offset) *
               sbp_dtype_bytes(view->dtype);
}

static void real_step_partial(const real_rows_run *run, const row_step *step) {
    const REAL *from = run->at[step->a];
    int64_t length = real_step_length(run, step->shape, step->length);
    int64_t first = step->shape & SBP_VARY_ELEM ? run->elem : 0;
    bool wide = run->command->views[step->instr->index].dtype == SBP_F64;
    for (int64_t r = 0; r < real_shape_rows(run, step->shape); r++)
        for (int64_t h = 0; h < real_shape_heads(run, step->shape); h++, from += length) {
            char *to = real_partial_at(run, step->instr, run->row + r, run->head + h);
            double *sum64 = (double *)(void *)to + first;
            float *sum32 = (float *)(void *)to + first;
            if (wide)
                for (int64_t j = 0; j < length; j++)
                    sum64[j] += (double)from[j];
            else
                for (int64_t j = 0; j < length; j++)
                    sum32[j] += (float)from[j];
        }
}

/* The sums of the rows that an item covers begin at 0. */
static void real_clear_partials(const real_rows_run *run, int64_t first, int64_t end) {
    const sbp_rowkernel *kernel = run->plan->kernel;
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        if (instr->op != SBP_RK_PARTIAL_ADD)
            continue;
        int64_t heads = instr->vary & SBP_VARY_HEAD ? kernel->heads : 1;
        for (int64_t row = first; row < end; row += SBP_PARTIAL_ROWS)
            for (int64_t head = 0; head < heads; head++)
                memset(real_partial_at(run, instr, row, head), 0,
                       (size_t)(instr->length * sbp_dtype_bytes(run->command->views[instr->index].dtype)));
    }
}

/* ---- values --------------------------------------------------------------------------------------- */

static void real_step_index(const real_rows_run *run, const row_step *step) {
    REAL *out = run->at[step->dst];
    int64_t n = real_step_length(run, step->shape, step->length);
    int64_t first = step->instr->offset + (step->shape & SBP_VARY_ELEM ? run->elem : 0);
    for (int64_t j = 0; j < n; j++)
        out[j] = (REAL)(first + j);
}

/* A value as a word of a counter (ir/rowkernel/rowkernel.h). */
static uint32_t real_random_word(REAL number) {
    return number >= 0 && (double)number < 0x1p32 ? (uint32_t)number : 0;
}

static void real_step_random(const real_rows_run *run, const row_step *step) {
    REAL *out = run->at[step->dst];
    int64_t n = real_step_length(run, step->shape, step->length);
    double scalar = run->command->scalars[step->instr->index];
    uint64_t key = scalar >= 0 && scalar < 0x1p63 ? (uint64_t)scalar : 0;
    uint32_t stream = step->a < 0 ? 0 : real_random_word(*run->at[step->a]), words[RANDOM_WORDS];
    int64_t first = step->instr->offset + (step->shape & SBP_VARY_ELEM ? run->elem : 0);
    int64_t skipped = first % 4; /* words of the first counter that belong to elements before */
    for (int64_t r = 0; r < real_shape_rows(run, step->shape); r++)
        for (int64_t h = 0; h < real_shape_heads(run, step->shape); h++, out += n) {
            uint32_t row = (uint32_t)(run->command->row0 + run->row + r);
            uint32_t head = step->instr->vary & SBP_VARY_HEAD ? (uint32_t)(run->head + h) : 0;
            if (step->b >= 0) {
                row = real_random_word(run->at[step->b][r]);
                head = real_random_word(run->at[step->c][r]);
            }
            for (int64_t j = -skipped; j < n; j += RANDOM_WORDS) {
                int64_t from = j < 0 ? skipped : 0, end = n - j < RANDOM_WORDS ? n - j : RANDOM_WORDS;
                random_words(words, row, stream, head, (uint32_t)((first + j) / 4), key);
                if (end - from == RANDOM_WORDS)
                    for (int64_t i = 0; i < RANDOM_WORDS; i++)
                        out[j + i] = (REAL)(int32_t)(words[i] >> 8) * R(0x1p-24);
                else
                    for (int64_t i = from; i < end; i++)
                        out[j + i] = (REAL)(int32_t)(words[i] >> 8) * R(0x1p-24);
            }
        }
}

static void real_step_round(const real_rows_run *run, const row_step *step) {
    int64_t n = real_shape_rows(run, step->shape) * real_shape_heads(run, step->shape) *
                real_step_length(run, step->shape, step->length);
    const REAL *restrict a = run->at[step->a];
    REAL *restrict y = run->at[step->dst];
    sbp_dtype dtype = step->instr->dtype;
    _Alignas(CPU_VECTOR_BYTES) char stored[ROW_BLOCK * sizeof(double)];
    switch (dtype) {
#if REAL_IS_F64
    case SBP_F32:
        for (int64_t i = 0; i < n; i++)
            y[i] = (double)(float)a[i];
        break;
#else
    case SBP_BF16:
        for (int64_t i = 0; i < n; i++)
            y[i] = from_bf16(to_bf16(a[i]));
        break;
    case SBP_F16:
        for (int64_t i = 0; i < n; i++)
            y[i] = from_f16(to_f16(a[i]));
        break;
    case SBP_F32:
#endif
    case SBP_F64:
        memcpy(y, a, (size_t)n * sizeof *y);
        break;
    default:
        for (int64_t i = 0; i < n; i += ROW_BLOCK) {
            int64_t some = n - i < ROW_BLOCK ? n - i : ROW_BLOCK;
            real_store_row(stored, dtype, a + i, some);
            real_load_row(y + i, stored, dtype, some);
        }
    }
}

static void real_step_map(const real_rows_run *run, const row_step *step) {
    int64_t n = real_shape_rows(run, step->shape) * real_shape_heads(run, step->shape) *
                real_step_length(run, step->shape, step->length);
    real_map_loops[step->instr->map][step->scalars](
        n, run->at[step->a], step->b < 0 ? NULL : run->at[step->b], step->c < 0 ? NULL : run->at[step->c],
        run->at[step->dst]);
}

static void real_step_integer(const real_rows_run *run, const row_step *step) {
    int64_t n = real_shape_rows(run, step->shape) * real_shape_heads(run, step->shape) *
                real_step_length(run, step->shape, step->length);
    real_integer_loops[step->instr->integer](n, run->at[step->a], step->b < 0 ? NULL : run->at[step->b],
                                             step->instr->constants[0], step->instr->constants[1],
                                             run->at[step->dst]);
}

static void real_step_lookup(const real_rows_run *run, const row_step *step) {
    int64_t n = real_shape_rows(run, step->shape) * real_shape_heads(run, step->shape) *
                real_step_length(run, step->shape, step->length);
    const sbp_rk_table *table = &run->plan->kernel->tables[step->instr->index];
    _Alignas(64) REAL numbers[SBP_ROWKERNEL_TABLE_NUMBERS] = {0};
    for (int32_t i = 0; i < table->count; i++)
        numbers[i] = (REAL)table->numbers[i];
    real_lookup(n, run->at[step->a], numbers, run->at[step->dst]);
}

static void real_step_expand(const real_rows_run *run, const row_step *step) {
    const REAL *from = run->at[step->a];
    REAL *restrict out = run->at[step->dst];
    int64_t n = real_step_length(run, step->shape, step->length);
    int64_t a_n = real_step_length(run, step->a_shape, step->length);
    int64_t a_heads = real_shape_heads(run, step->a_shape);
    for (int64_t r = 0; r < real_shape_rows(run, step->shape); r++)
        for (int64_t h = 0; h < real_shape_heads(run, step->shape); h++, out += n) {
            const REAL *a = from + (step->a_shape & SBP_VARY_ROW ? r * a_heads * a_n : 0) +
                            (step->a_shape & SBP_VARY_HEAD ? h * a_n : 0);
            if (a_n == n)
                memcpy(out, a, (size_t)n * sizeof *out);
            else
                for (int64_t j = 0; j < n; j++)
                    out[j] = *a;
        }
}

/* ---- reductions ----------------------------------------------------------------------------------- */

INLINE REAL real_combine(sbp_rk_op op, REAL a, REAL b) {
    if (op == SBP_RK_SUM)
        return a + b;
    if (op == SBP_RK_MAX)
        return a > b || a != a ? a : b;
    return a < b || a != a ? a : b;
}

INLINE REAL real_reduction_start(sbp_rk_op op) {
    return op == SBP_RK_SUM ? 0 : op == SBP_RK_MAX ? -(REAL)INFINITY : (REAL)INFINITY;
}

INLINE VEC real_combine_vectors(const sbp_rk_op op, VEC a, VEC b) {
    if (op == SBP_RK_SUM)
        return a + b;
    BITS take = (op == SBP_RK_MAX ? (BITS)(a > b) : (BITS)(a < b)) | (BITS)(a != a);
    return (VEC)((take & (BITS)a) | (~take & (BITS)b));
}

/* Up to ROW_BLOCK elements in SUM_LANES chains (element j in chain j mod SUM_LANES), then chains i and i +
 * half together until one is left. */
INLINE REAL real_reduce_lanes(const sbp_rk_op op, const REAL *a, int64_t n) {
    REAL lanes[SUM_LANES];
    VEC sums[SUM_LANES * sizeof(REAL) / CPU_VECTOR_BYTES];
    VEC start = (VEC){0} + real_reduction_start(op);
    int64_t j = 0;
#pragma GCC unroll 16
    for (int v = 0; v < SBP_COUNT(sums); v++)
        sums[v] = start;
    for (; j + SUM_LANES <= n; j += SUM_LANES)
#pragma GCC unroll 16
        for (int v = 0; v < SBP_COUNT(sums); v++)
            sums[v] = real_combine_vectors(op, *(const VEC_MEMORY *)(a + j + v * VL), sums[v]);
#pragma GCC unroll 16
    for (int v = 0; v < SBP_COUNT(sums); v++)
        *(VEC_MEMORY *)(lanes + v * VL) = sums[v];
    for (int i = 0; j + i < n; i++)
        lanes[i] = real_combine(op, a[j + i], lanes[i]);
    for (int width = SUM_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] = real_combine(op, lanes[i + width], lanes[i]);
    return lanes[0];
}

/* ROW_BLOCK elements at a time; the blocks are added in fp64. */
static double real_reduce(const sbp_rk_op op, const REAL *a, int64_t n) {
    double result = (double)real_reduction_start(op);
    if (n < SUM_LANES / 4) { /* few: one after the other */
        REAL few = real_reduction_start(op);
        for (int64_t j = 0; j < n; j++)
            few = real_combine(op, a[j], few);
        return (double)few;
    }
    for (int64_t j = 0; j < n; j += ROW_BLOCK) {
        int64_t some = n - j < ROW_BLOCK ? n - j : ROW_BLOCK;
        if (op == SBP_RK_SUM)
            result += (double)real_reduce_lanes(SBP_RK_SUM, a + j, some);
        else if (op == SBP_RK_MAX)
            result = (double)real_combine(op, real_reduce_lanes(SBP_RK_MAX, a + j, some), (REAL)result);
        else
            result = (double)real_combine(op, real_reduce_lanes(SBP_RK_MIN, a + j, some), (REAL)result);
    }
    return result;
}

static void real_step_reduce(const real_rows_run *run, const row_step *step) {
    const sbp_rk_op op = step->instr->op;
    const REAL *a = run->at[step->a];
    int64_t rows = real_shape_rows(run, step->a_shape), heads = real_shape_heads(run, step->a_shape);
    int64_t n = real_step_length(run, step->a_shape, run->plan->kernel->instrs[step->instr->a].length);
    if (n < SUM_LANES / 4)
        SBP_CROSS_IF(step->instr->axes & SBP_VARY_ELEM, cpu_rows_sum_few);
    else
        SBP_CROSS_EITHER(n > ROW_BLOCK, cpu_rows_sum_blocks, cpu_rows_sum_block);
    if (run->plan->pieces) {
        double *sum = &run->accumulators[step->reduction];
        double piece = real_reduce(op, a, n);
        *sum = op == SBP_RK_SUM ? *sum + piece : (double)real_combine(op, (REAL)*sum, (REAL)piece);
        return;
    }
    REAL *out = run->at[step->dst];
    bool over_heads = step->instr->axes & SBP_VARY_HEAD, over_elems = step->instr->axes & SBP_VARY_ELEM;
    for (int64_t r = 0; r < rows; r++) {
        if (over_elems && over_heads) {
            double result = (double)real_reduction_start(op);
            for (int64_t h = 0; h < heads; h++, a += n) {
                double head = real_reduce(op, a, n);
                result =
                    op == SBP_RK_SUM ? result + head : (double)real_combine(op, (REAL)result, (REAL)head);
            }
            *out++ = (REAL)result;
        } else if (over_elems) {
            for (int64_t h = 0; h < heads; h++, a += n)
                *out++ = (REAL)real_reduce(op, a, n);
        } else {
            for (int64_t j = 0; j < n; j++)
                out[j] = a[j];
            a += n;
            for (int64_t h = 1; h < heads; h++, a += n)
                for (int64_t j = 0; j < n; j++)
                    out[j] = real_combine(op, out[j], a[j]);
            out += n;
        }
    }
}

/* ---- lists and items ------------------------------------------------------------------------------ */

static void real_run_list(const real_rows_run *run, const row_list *list) {
    static void (*const kinds[])(const real_rows_run *, const row_step *) = {
        [ROW_LOAD] = real_step_load,   [ROW_INDEX] = real_step_index,     [ROW_RANDOM] = real_step_random,
        [ROW_MAP] = real_step_map,     [ROW_INTEGER] = real_step_integer, [ROW_LOOKUP] = real_step_lookup,
        [ROW_ROUND] = real_step_round, [ROW_EXPAND] = real_step_expand,   [ROW_REDUCE] = real_step_reduce,
        [ROW_STORE] = real_step_store, [ROW_PARTIAL] = real_step_partial};
    bool last = run->head + run->heads >= run->plan->kernel->heads;
    for (int32_t i = 0; i < list->count; i++) {
        const row_step *step = &list->steps[i];
        if (!last && step->last_head)
            continue;
        if (step->dst >= 0) /* a load may have pointed it at an operand */
            run->at[step->dst] = real_own_place(run, step->dst);
        if (step->target) {
            real_runs r = real_find_runs(run, step->target);
            if (r.rows == 1 && r.heads == 1)
                run->at[step->dst] = (REAL *)(void *)r.data;
        }
        real_fetch_some(run);
        kinds[step->kind](run, step);
    }
}

static void real_run_whole(real_rows_run *run, int64_t first, int64_t end) {
    const cpu_row_plan *plan = run->plan;
    run->row = first;
    run->rows = end - first < plan->block_rows ? end - first : plan->block_rows;
    run->heads = plan->block_heads;
    real_run_list(run, &plan->once);
    for (; run->row < end; run->row += plan->block_rows) {
        run->rows = end - run->row < plan->block_rows ? end - run->row : plan->block_rows;
        run->head = 0;
        run->heads = plan->block_heads;
        real_run_list(run, &plan->per_rows);
        for (; run->head < plan->kernel->heads; run->head += plan->block_heads) {
            int64_t left = plan->kernel->heads - run->head;
            run->heads = left < plan->block_heads ? left : plan->block_heads;
            real_run_list(run, &plan->per_heads);
            real_run_list(run, &plan->head_stores);
        }
        run->head = 0;
        run->heads = plan->block_heads;
        real_run_list(run, &plan->row_stores);
    }
}

/* One row of one head, in passes. */
static void real_run_pieces(real_rows_run *run) {
    const cpu_row_plan *plan = run->plan;
    for (int32_t i = 0; i < plan->reduction_count; i++)
        run->accumulators[i] = (double)real_reduction_start(plan->reductions[i].instr->op);
    for (int32_t level = 0; level < plan->pass_count; level++) {
        const row_pass *pass = &plan->passes[level];
        run->elem = 0;
        run->elems = 1;
        real_run_list(run, &pass->scalars);
        for (int32_t l = 0; l < pass->list_count; l++) {
            int64_t length = pass->lists[l].length;
            for (run->elem = 0; run->elem < length; run->elem += ROW_BLOCK) {
                run->elems = length - run->elem < ROW_BLOCK ? length - run->elem : ROW_BLOCK;
                real_run_list(run, &pass->lists[l]);
            }
        }
        for (int32_t i = 0; i < plan->reduction_count; i++)
            if (plan->reductions[i].level == level)
                *run->at[plan->reductions[i].place] = (REAL)run->accumulators[i];
    }
    run->elem = 0;
    run->elems = 1;
    real_run_list(run, &plan->final_stores);
}

static void real_rows_item(void *arg, int64_t item, char *scratch) {
    const cpu_command *command = arg;
    const cpu_row_plan *plan = command->plan;
    row_ahead ahead = {0};
    real_rows_run run = {.plan = plan,
                         .command = command,
                         .scratch = scratch,
                         .at = (REAL **)(void *)scratch,
                         .accumulators = (double *)(void *)(scratch + plan->accumulators),
                         .rows = 1,
                         .heads = 1,
                         .ahead = &ahead};
    int64_t first = item * plan->item_rows;
    int64_t end = command->rows - first < plan->item_rows ? command->rows : first + plan->item_rows;
    for (int32_t i = 0; i < plan->place_count; i++)
        run.at[i] = real_own_place(&run, i);
    for (int32_t i = 0; i < plan->kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &plan->kernel->instrs[i];
        if (plan->constants[i] >= 0)
            *run.at[plan->constants[i]] =
                (REAL)(instr->op == SBP_RK_CONST ? instr->imm : command->scalars[instr->index]);
    }
    real_clear_partials(&run, first, end);
    if (!plan->pieces) {
        real_run_whole(&run, first, end);
        return;
    }
    for (run.row = first; run.row < end; run.row++)
        for (run.head = 0; run.head < plan->kernel->heads; run.head++)
            real_run_pieces(&run);
}
