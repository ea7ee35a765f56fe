/* emit_row.c: the kernel around the passes: which row, head and elements a thread has (row.h). */
#include "backends/gpu/emit/emitter.h"

#include <stdio.h>
#include <string.h>

/* ---- declarations ----------------------------------------------------------------------------------- */

/* Rows of operands: of partials (one per block), or of the others. */
static void addresses(emitter *e, bool partials) {
    for (int32_t i = 0; i < e->kernel->operand_count; i++) {
        const sbp_rk_operand *o = &e->kernel->operands[i];
        if ((o->mode == SBP_RK_PARTIAL) == partials)
            emit_line(e, "%s p%d = row_address(args.operands[%d], %s, %d);", e->dialect->address, i, i,
                      partials                 ? "block"
                      : o->vary & SBP_VARY_ROW ? "row"
                                               : "0",
                      (int)sbp_dtype_bytes(o->dtype));
    }
}

/* Results of reductions: registers, of each element of a thread where heads alone were summed. */
static void declare_results(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        if (!sbp_rk_is_reduction(instr))
            continue;
        if (instr->vary & SBP_VARY_ELEM)
            emit_line(e, "REAL r%d[(%lld + LANES * WIDTH - 1) / (LANES * WIDTH) * WIDTH];", k,
                      (long long)instr->length);
        else if (!(instr->vary & SBP_VARY_HEAD) || e->units)
            emit_line(e, "REAL r%d;", k);
    }
}

/* Per head, where a team loops over them. */
static void declare_shared(emitter *e) {
    for (int32_t k = 0; k < e->kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &e->kernel->instrs[k];
        if (sbp_rk_is_reduction(instr) && (instr->vary & INNER) == SBP_VARY_HEAD && !e->units)
            emit_line(e, "%sREAL r%d[HEADS];", e->dialect->shared, k);
    }
    emit_sums_shared(e);
}

/* Reductions over the threads of a team. */
static int32_t team_reductions(const emitter *e) {
    int32_t count = 0;
    for (int32_t k = 0; k < e->kernel->instr_count; k++)
        count += sbp_rk_is_reduction(&e->kernel->instrs[k]) && (e->kernel->instrs[k].axes & SBP_VARY_ELEM);
    return count;
}

/* ---- a thread's own elements ------------------------------------------------------------------------ */

/* `row` (or block) and `place`, the number of this thread among those that have a row: thread after thread,
 * row after row, in 32 bits; of huge rows a group has a slice. */
static void place_of(emitter *e, const char *row, int64_t places) {
    emit_line(e, "const uint PLACES = %lldu;", (long long)places);
    if (places < SBP_GPU_ROW_PACKED) {
        emit_line(e, "uint part = group_number() %% PLACES * uint(THREADS);");
        emit_line(e, "uint rest = part %% PLACES + uint(thread), place = rest %% PLACES;");
        emit_line(e, "int %s = int(group_number() / PLACES * uint(THREADS) + part / PLACES + rest / PLACES);",
                  row);
        return;
    }
    emit_line(e, "const uint SLICES = (PLACES + uint(THREADS) - 1u) / uint(THREADS);");
    emit_line(e, "int %s = int(group_number() / SLICES);", row);
    emit_line(e, "uint place = group_number() %% SLICES * uint(THREADS) + uint(thread);");
    emit_line(e, "if (place >= PLACES)");
    emit_line(e, "    return;");
}

static void head_and_element(emitter *e) {
    long long across = (long long)(e->kernel->n / e->width);
    emit_line(e, "int h = int(place / %lldu), j = int(place %% %lldu) * WIDTH;", across, across);
}

static void flat(emitter *e) {
    place_of(e, "row", e->kernel->heads * (e->kernel->n / e->width));
    emit_line(e, "if (row >= args.rows)");
    emit_line(e, "    return;");
    head_and_element(e);
    addresses(e, false);
    emit_flat_stores(e);
}

static void open_block_rows(emitter *e) {
    emit_line(e, "for (int block_row = 0; block_row < %d; block_row++) {", SBP_PARTIAL_ROWS);
    emit_open(e);
    emit_line(e, "int row = block * %d + block_row;", SBP_PARTIAL_ROWS);
    emit_line(e, "if (row >= args.rows)");
    emit_line(e, "    break;");
    emit_line(e, "const bool fresh = block_row == 0;");
    addresses(e, false);
}

static void columns(emitter *e) {
    bool all_heads = emit_any_headless(e);
    place_of(e, "block", (all_heads ? 1 : e->kernel->heads) * (e->kernel->n / e->width));
    emit_line(e, "if (block * %d >= args.rows)", SBP_PARTIAL_ROWS);
    emit_line(e, "    return;");
    if (all_heads)
        emit_line(e, "int j = int(place) * WIDTH;");
    else
        head_and_element(e);
    addresses(e, true);
    emit_sums_declare(e);
    open_block_rows(e);
    if (all_heads) {
        emit_line(e, "for (int h = 0; h < HEADS; h++) {");
        emit_open(e);
    }
    emit_flat_stores(e);
    if (all_heads)
        emit_close(e);
    emit_close(e);
    emit_sums_store(e);
}

/* ---- a team's row ----------------------------------------------------------------------------------- */

static void one_row(emitter *e) {
    declare_results(e);
    emit_kept(e);
    emit_passes(e);
}

static void row_and_head(emitter *e, const char *first_row) {
    emit_line(e, "int row = %sint(unit / uint(HEADS)), h = int(unit %% uint(HEADS));", first_row);
}

static void heads(emitter *e) {
    emit_line(e, "uint unit = group_number() * uint(TEAMS) + uint(team);");
    row_and_head(e, "");
    emit_line(e, "if (row >= args.rows)");
    emit_line(e, "    return;");
    addresses(e, false);
    one_row(e);
}

static void rows(emitter *e) {
    emit_line(e, "int row = int(group_number());");
    emit_line(e, "if (row >= args.rows)");
    emit_line(e, "    return;");
    addresses(e, false);
    one_row(e);
}

/* Rows, or heads of them, as many at a time as there are teams; each leaves what it adds to the partials. */
static void blocks_by_unit(emitter *e) {
    bool apart = e->teams > 1;
    emit_line(e, "int block = int(group_number());");
    addresses(e, true);
    emit_sums_declare(e);
    emit_line(e, "for (int first = 0; first < %d * HEADS; first += TEAMS) {", SBP_PARTIAL_ROWS);
    emit_open(e);
    emit_line(e, "uint unit = uint(first + team);");
    char first_row[48];
    snprintf(first_row, sizeof first_row, "block * %d + ", SBP_PARTIAL_ROWS);
    row_and_head(e, first_row);
    emit_line(e, apart ? "if (row < args.rows) {" : "if (row >= args.rows)");
    if (apart)
        emit_open(e);
    else
        emit_line(e, "    break;");
    emit_line(e, "const bool fresh = unit == 0u;");
    addresses(e, false);
    one_row(e);
    if (apart) {
        emit_close(e);
        emit_sums_combine(e);
    } else if (team_reductions(e) == 1 && e->dialect->reductions_meet) { /* its memory is used again */
        emit_line(e, "%s", e->dialect->team_barrier);
    }
    emit_close(e);
    emit_sums_store(e);
}

static void blocks(emitter *e) {
    if (e->units) {
        blocks_by_unit(e);
        return;
    }
    emit_line(e, "int block = int(group_number());");
    addresses(e, true);
    open_block_rows(e);
    one_row(e);
    emit_line(e, "%s", e->dialect->team_barrier);
    emit_close(e);
}

/* ---- the kernel ------------------------------------------------------------------------------------- */

static void kernel_text(emitter *e) {
    static void (*const modes[])(emitter *) = {[SBP_GPU_ROW_FLAT] = flat,
                                               [SBP_GPU_ROW_COLUMNS] = columns,
                                               [SBP_GPU_ROW_HEADS] = heads,
                                               [SBP_GPU_ROW_ROWS] = rows,
                                               [SBP_GPU_ROW_BLOCKS] = blocks};
    e->indent = 0;
    e->loop = 1;
    e->unmet = e->unseen = false;
    memset(e->declared, 0, sizeof e->declared);
    memset(e->first_loop, 0, sizeof e->first_loop);
    memset(e->last_loop, 0, sizeof e->last_loop);
    memset(e->loops_of, 0, sizeof e->loops_of);
    declare_shared(e);
    emit_line(e, "%s {", e->dialect->kernel);
    emit_open(e);
    emit_line(e, e->teams > 1 ? "const int thread = int(LANE), lane = thread %% LANES, team = thread / LANES;"
                              : "const int thread = int(LANE), lane = thread, team = 0;");
    modes[e->shape->mode](e);
    emit_close(e);
}

void sbp_gpu_emit_row(sbp_text *out, const sbp_rowkernel *kernel, const sbp_gpu_row_shape *shape,
                      const sbp_gpu_dialect *dialect) {
    emitter *e = SBP_NEW(out->arena, emitter);
    *e = (emitter){.kernel = kernel, .shape = shape, .dialect = dialect};
    bool flat_mode = shape->mode == SBP_GPU_ROW_FLAT || shape->mode == SBP_GPU_ROW_COLUMNS;
    e->width = shape->width;
    e->teams = sbp_gpu_row_teams(shape);
    e->units = flat_mode || kernel->heads == 1 || shape->mode == SBP_GPU_ROW_HEADS || shape->heads_apart;
    sbp_rowkernel_levels(kernel, e->levels);
    for (int32_t o = 0; o < kernel->operand_count; o++)
        for (int32_t i = 0; i < kernel->operand_count; i++)
            e->aliases |= sbp_rowkernel_may_alias(kernel, o, i);
    if (e->units && !flat_mode && e->width > 1) { /* a first run finds out what more than one loop needs */
        sbp_text nowhere;
        sbp_text_init(&nowhere, out->arena);
        e->out = &nowhere;
        e->counting = true;
        kernel_text(e);
        e->counting = false;
        emit_choose_kept(e);
    }
    emit_functions(out, kernel, dialect);
    sbp_text_add(out, "#define HEADS %lld\n#define WIDTH %d\n", (long long)kernel->heads, shape->width);
    dialect->constants(out, shape);
    e->out = out;
    kernel_text(e);
}
