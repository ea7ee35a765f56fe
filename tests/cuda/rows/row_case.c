/* row_case.c: memory for row kernels, and three ways to run them. */
#include "tests/cuda/rows/row_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_device.h"
#include "tests/tolerance.h"

int32_t row_add_kernel(testing *t, sbp_program *program, sbp_rowkernel *kernel) {
    testing_check(t, sbp_rowkernel_verify(kernel, t->diag));
    int32_t number = sbp_program_add_kernel(t->arena, program, kernel);
    sbp_command *command = SBP_NEW(t->arena, sbp_command);
    *command = (sbp_command){.kind = SBP_CMD_ROW, .flushes = -1, .kernel = number};
    command->view_count = kernel->operand_count;
    command->views = SBP_NEW_ARRAY(t->arena, sbp_view, kernel->operand_count + 1);
    for (int32_t i = 0; i < kernel->operand_count; i++)
        command->views[i] = sbp_view_none();
    if (program->entry_count == 0) {
        sbp_entry entry = {.name = "accumulate"};
        SBP_PUSH(t->arena, program->entries, program->entry_count, program->entry_capacity, entry);
    }
    sbp_body *body = &program->entries[0].body;
    sbp_node node = {.kind = SBP_NODE_COMMAND, .u.command = command};
    SBP_PUSH(t->arena, body->nodes, body->count, body->capacity, node);
    return number;
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static int64_t rows_of(const row_case *c, const sbp_rk_operand *o) {
    if (o->vary & SBP_VARY_ROW)
        return c->rows;
    return o->mode == SBP_RK_PARTIAL ? sbp_ceil_div(c->rows, SBP_PARTIAL_ROWS) : 1;
}

static int64_t columns_of(const row_case *c, const sbp_rk_operand *o) {
    return ((o->vary & SBP_VARY_HEAD ? c->kernel->heads : 1) - 1) * o->head_stride + o->length;
}

static int64_t place(const sbp_span *span, int64_t row, int64_t column) {
    return span->offset + (row * span->stride + column) * sbp_dtype_bytes(span->dtype);
}

static double number_for(sbp_rng *rng, sbp_dtype dtype) {
    if (sbp_dtype_is_float(dtype) || sbp_dtype_is_dynamic(dtype))
        return sbp_round_to(dtype, sbp_rng_unit(rng));
    return dtype == SBP_BOOL ? (double)sbp_rng_below(rng, 2) : (double)sbp_rng_below(rng, 5) - 2;
}

/* Row 1: nothing but -inf; 2: a NaN; 3: some -inf; 4: an inf; 5: one number throughout; then the same again.
 */
static double special_for(double number, int64_t row, int64_t column) {
    switch (row % 6) {
    case 1:
        return -INFINITY;
    case 2:
        return column == 77 ? NAN : number;
    case 3:
        return column % 3 == 0 || column < 2000 ? -INFINITY : number;
    case 4:
        return column == 1234 ? INFINITY : number;
    case 5:
        return 0.25;
    default:
        return number;
    }
}

enum { LONG_ROW = 4096 };

row_image row_image_make(testing *t, const row_case *c) {
    const sbp_rowkernel *k = c->kernel;
    row_image image = {0};
    sbp_rng rng = {c->seed};
    int64_t at = 256;
    for (int32_t i = 0; i < k->operand_count; i++) {
        const sbp_rk_operand *o = &k->operands[i];
        sbp_span *s = &image.spans[i];
        if (c->alias && c->alias[i] >= 0) {
            *s = image.spans[c->alias[i]];
            s->dtype = o->dtype;
            continue;
        }
        int64_t bytes = sbp_dtype_bytes(o->dtype), columns = columns_of(c, o);
        *s = (sbp_span){.space = SBP_DEVICE, .dtype = o->dtype, .rows = rows_of(c, o), .cols = columns};
        s->stride = c->odd ? columns + 7 : sbp_round_up(columns, 16);
        s->offset = at + (c->odd ? 3 * bytes : 0);
        at = sbp_round_up(s->offset + s->rows * s->stride * bytes, 256) + 256;
    }
    image.size = at;
    image.bytes = sbp_arena_alloc(t->arena, (size_t)at);
    memset(image.bytes, 0xff, (size_t)at);
    for (int32_t i = 0; i < k->operand_count; i++)
        for (int64_t r = 0; r < image.spans[i].rows && !(c->alias && c->alias[i] >= 0); r++)
            for (int64_t j = 0; j < image.spans[i].cols; j++) {
                double number = number_for(&rng, image.spans[i].dtype);
                if (c->special && image.spans[i].cols > LONG_ROW)
                    number = special_for(number, r, j);
                sbp_element_set(image.bytes + place(&image.spans[i], r, j), image.spans[i].dtype, 0, number);
            }
    return image;
}

static row_image copy_of(testing *t, const row_image *in) {
    row_image out = *in;
    out.bytes = sbp_arena_alloc(t->arena, (size_t)in->size);
    memcpy(out.bytes, in->bytes, (size_t)in->size);
    return out;
}

/* ---- running ---------------------------------------------------------------------------------------- */

row_image row_run_reference(testing *t, const row_case *c, const row_image *in) {
    row_image out = copy_of(t, in);
    sbp_rk_view views[SBP_ROWKERNEL_MAX_OPERANDS];
    for (int32_t i = 0; i < c->kernel->operand_count; i++)
        views[i] = (sbp_rk_view){.data = out.bytes + out.spans[i].offset, .stride = out.spans[i].stride};
    assert_int_equal(sbp_rowkernel_run_reference(c->kernel, c->rows, c->row0, views, c->scalars), SBP_OK);
    return out;
}

static sbp_dispatch dispatch_of(const row_case *c, const row_image *image, sbp_command *command) {
    *command = (sbp_command){
        .kind = SBP_CMD_ROW, .flushes = -1, .kernel = c->number, .view_count = c->kernel->operand_count};
    return (sbp_dispatch){.command = command,
                          .kernel = c->kernel,
                          .rows = c->rows,
                          .row0 = c->row0,
                          .spans = image->spans,
                          .span_count = c->kernel->operand_count,
                          .scalars = c->scalars};
}

row_image row_run_cpu(testing *t, const row_case *c, const row_image *in, const sbp_program *program) {
    row_image out = copy_of(t, in);
    const sbp_device_class *class = &sbp_cpu_device;
    sbp_device_options options = {.threads = 1};
    sbp_command command;
    sbp_dispatch dispatch = dispatch_of(c, &out, &command);
    sbp_device *device;
    sbp_program *own = sbp_program_create(t->arena, "cpu");
    own->arena_bytes[SBP_DEVICE] = in->size;
    for (int32_t k = 0; k < program->kernel_count; k++)
        (void)sbp_program_add_kernel(t->arena, own, program->kernels[k]);
    testing_check(t, class->create(&options, t->diag, &device));
    testing_check(t, class->load(device, own, t->diag));
    testing_check(t, class->write(device, SBP_DEVICE, 0, in->bytes, in->size, t->diag));
    testing_check(t, class->submit(device, &dispatch, t->diag));
    testing_check(t, class->wait(device, t->diag));
    testing_check(t, class->read(device, SBP_DEVICE, 0, out.bytes, out.size, t->diag));
    class->destroy(device);
    return out;
}

static const sbp_cuda_object *object_of(const kernel_set *set, const sbp_gpu_key *key) {
    for (int32_t i = 0; i < set->count; i++)
        if (sbp_gpu_key_compare(&set->sources[i].key, key) == 0)
            return &set->objects[i];
    return NULL;
}

/* Bytes from the first to behind the last element. */
static int64_t extent(const sbp_span *s) {
    return s->rows > 0 ? ((s->rows - 1) * s->stride + s->cols) * sbp_dtype_bytes(s->dtype) : 0;
}

/* Each operand in memory of its own, which ends where it ends; its addresses modulo 256 are those of the
 * image. */
static void to_memory(sbp_ptx_memory *memory, const row_case *c, row_image *image, sbp_gpu_args *args) {
    for (int32_t i = 0; i < c->kernel->operand_count; i++) {
        const sbp_span *s = &image->spans[i];
        if (c->alias && c->alias[i] >= 0) {
            args->operands[i].address = args->operands[c->alias[i]].address;
            continue;
        }
        uint64_t before = (uint64_t)(s->offset % 256), bytes = (uint64_t)extent(s);
        if (bytes == 0)
            continue;
        uint64_t base = sbp_ptx_memory_alloc(memory, before + bytes);
        assert_true(base != 0);
        args->operands[i].address = base + before;
        assert_true(sbp_ptx_memory_write(memory, base + before, image->bytes + s->offset, bytes));
    }
}

static void from_memory(sbp_ptx_memory *memory, row_image *image, const sbp_gpu_args *args, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (extent(&image->spans[i]) > 0)
            assert_true(sbp_ptx_memory_read(memory, args->operands[i].address,
                                            image->bytes + image->spans[i].offset,
                                            (uint64_t)extent(&image->spans[i])));
}

row_image row_run_ptx(testing *t, const row_case *c, const row_image *in, const kernel_set *set,
                      const sbp_ptx_options *options, bool *vector) {
    static sbp_ptx_report report; /* large */
    row_image out = copy_of(t, in);
    const uint64_t nowhere[SBP_SPACE_COUNT] = {0};
    const sbp_cuda_machine machine = {.arch = {80, false}, .processors = 108, .variant = SBP_CUDA_VARIANTS};
    sbp_command command;
    sbp_dispatch dispatch = dispatch_of(c, &out, &command);
    sbp_gpu_args args;
    sbp_cuda_step steps[SBP_CUDA_STEPS];
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    (void)sbp_gpu_args_fill(&dispatch, nowhere, 0, &args);
    to_memory(memory, c, &out, &args);
    int32_t count = sbp_cuda_steps(&dispatch, &machine, &args, steps);
    assert_int_equal(count, c->rows > 0);
    for (int32_t i = 0; i < count; i++) {
        *vector = steps[i].key.variant == SBP_CUDA_VECTOR;
        const sbp_cuda_object *object = object_of(set, &steps[i].key);
        assert_non_null(object);
        const char *ptx = sbp_cuda_object_ptx(object);
        sbp_ptx_module *module = sbp_ptx_module_load(memory, ptx, strlen(ptx), &report);
        if (!module)
            fail_msg("kernel '%s': %s", c->kernel->name, report.text);
        void *params[] = {&args};
        if (sbp_ptx_launch(sbp_ptx_module_entry(module, "kernel"), steps[i].grid, steps[i].block,
                           steps[i].shared_bytes, params, options, &report) != SBP_PTX_OK)
            fail_msg("kernel '%s' (%s): %s", c->kernel->name, *vector ? "vectors" : "plain", report.text);
        sbp_ptx_module_unload(module);
    }
    from_memory(memory, &out, &args, c->kernel->operand_count);
    sbp_ptx_memory_destroy(memory);
    return out;
}

/* ---- comparing -------------------------------------------------------------------------------------- */

static double tolerance_of(const row_case *c, sbp_dtype dtype) {
    double tolerance = fmax(sbp_tolerance(dtype), sbp_tolerance(c->kernel->compute));
    for (int32_t i = 0; i < c->kernel->instr_count && c->kernel->compute == SBP_F32; i++)
        if (c->kernel->instrs[i].op == SBP_RK_ROUND && sbp_dtype_bytes(c->kernel->instrs[i].dtype) == 2)
            tolerance = fmax(tolerance, SBP_TOLERANCE_ROUNDED_INSIDE);
    return tolerance;
}

/* Marks what the stores of an operand, or the sums of a partial, write. */
static void mark_written(const row_case *c, const row_image *image, int32_t operand, bool *written) {
    const sbp_rk_operand *o = &c->kernel->operands[operand];
    const sbp_span *s = &image->spans[operand];
    for (int32_t i = 0; i < c->kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &c->kernel->instrs[i];
        if ((instr->op != SBP_RK_STORE && instr->op != SBP_RK_PARTIAL_ADD) || instr->index != operand)
            continue;
        for (int64_t r = 0; r < s->rows; r++)
            for (int64_t h = 0; h < (o->vary & SBP_VARY_HEAD ? c->kernel->heads : 1); h++)
                for (int64_t j = 0; j < instr->length; j++)
                    written[place(s, r, h * o->head_stride + instr->offset + j)] = true;
    }
}

static void compare_operand(const row_case *c, const row_image *expected, const row_image *found,
                            int32_t operand, const char *name, const bool *written) {
    const sbp_span *s = &expected->spans[operand];
    double error = 0, norm = 0;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t j = 0; j < s->cols; j++) {
            int64_t at = place(s, r, j);
            double want = sbp_element_get(expected->bytes + at, s->dtype, 0);
            double got = sbp_element_get(found->bytes + at, s->dtype, 0);
            if (!written[at])
                continue;
            if (isnan(want) != isnan(got) || isinf(want) != isinf(got) || (isinf(want) && want != got))
                fail_msg("%s, kernel '%s': %s[%lld, %lld] is %g, expected %g", name, c->kernel->name,
                         c->kernel->operands[operand].name, (long long)r, (long long)j, got, want);
            if (!isfinite(want))
                continue;
            error += (got - want) * (got - want);
            norm += want * want;
        }
    if (!(sqrt(error) <= tolerance_of(c, s->dtype) * sqrt(norm)))
        fail_msg("%s, kernel '%s': %s: relative error %.3g", name, c->kernel->name,
                 c->kernel->operands[operand].name, sqrt(error / norm));
}

void row_compare(const row_case *c, const row_image *expected, const row_image *found, const char *name) {
    bool *all = calloc((size_t)expected->size, sizeof *all);
    assert_non_null(all);
    for (int32_t i = 0; i < c->kernel->operand_count; i++) {
        if (c->kernel->operands[i].mode == SBP_RK_IN)
            continue;
        bool *written = calloc((size_t)expected->size, sizeof *written);
        assert_non_null(written);
        mark_written(c, expected, i, written);
        compare_operand(c, expected, found, i, name, written);
        for (int64_t b = 0; b < expected->size; b++) {
            int64_t bytes = sbp_dtype_bytes(c->kernel->operands[i].dtype);
            for (int64_t k = 0; written[b] && k < bytes; k++)
                all[b + k] = true;
        }
        free(written);
    }
    for (int64_t b = 0; b < expected->size; b++)
        if (!all[b] && expected->bytes[b] != found->bytes[b])
            fail_msg("%s, kernel '%s': byte %lld, which is no output, was overwritten", name, c->kernel->name,
                     (long long)b);
    free(all);
}

void row_same_bits(const row_case *c, const row_image *expected, const row_image *found, const char *name) {
    for (int32_t i = 0; i < c->kernel->operand_count; i++) {
        const sbp_span *s = &expected->spans[i];
        for (int64_t r = 0; r < s->rows; r++)
            for (int64_t j = 0; j < s->cols; j++) {
                const unsigned char *want = expected->bytes + place(s, r, j),
                                    *got = found->bytes + place(s, r, j);
                if (memcmp(want, got, (size_t)sbp_dtype_bytes(s->dtype)) == 0)
                    continue;
                double a = sbp_element_get(want, s->dtype, 0), b = sbp_element_get(got, s->dtype, 0);
                if (!isnan(a) || !isnan(b))
                    fail_msg("%s, kernel '%s': %s[%lld, %lld] is %.17g, on the CPU %.17g", name,
                             c->kernel->name, c->kernel->operands[i].name, (long long)r, (long long)j, b, a);
            }
    }
}

/* ---- counts ----------------------------------------------------------------------------------------- */

void row_add_sectors(const sbp_ptx_counts *counts, bool vectors_only, int64_t *sectors, int64_t *least) {
    char *text = NULL, line[256];
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    sbp_ptx_counts_print(counts, out);
    assert_int_equal(fclose(out), 0);
    FILE *in = fmemopen(text, size, "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        unsigned long long touched, could;
        const char *at = strstr(line, "requests, ");
        bool vector = strstr(line, ".global.v4") || strstr(line, ".global.v2");
        if ((vector || !vectors_only) && at &&
            sscanf(at, "requests, %llu sectors (least %llu)", &touched, &could) == 2) {
            *sectors += (int64_t)touched;
            *least += (int64_t)could;
        }
    }
    (void)fclose(in);
    free(text);
}
