/* plan.c: opens plan.bin and checks that its sections fit together. */
#include "runtime/run/plan.h"

#include <string.h>

#include "ir/graph/prepare.h"

typedef struct loader {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_plan_file *file;
    const sbp_plan **out;
} loader;

/* A section that must be there. */
static sbp_status need(const loader *l, const char *name, const sbp_plan_section **out) {
    *out = sbp_plan_file_find(l->file, name);
    if (*out)
        return SBP_OK;
    return sbp_fail(l->diag, SBP_INPUT, "%s: no section '%s'", l->file->path, name);
}

static const char *section_name(const loader *l, const char *name) {
    return sbp_arena_printf(l->arena, "%s: section '%s'", l->file->path, name);
}

static sbp_status load_program(const loader *l, sbp_plan *plan) {
    const sbp_plan_section *text;
    sbp_program *program;
    SBP_TRY(need(l, SBP_PLAN_PROGRAM, &text));
    const char *name = section_name(l, SBP_PLAN_PROGRAM);
    SBP_TRY(sbp_program_parse(l->arena, l->diag, name, text->data, (size_t)text->length, &program));
    sbp_status status = sbp_program_verify(program, l->diag);
    if (status == SBP_MACHINE) /* which says nothing of the plan */
        return status;
    if (status != SBP_OK)
        return sbp_fail(l->diag, status, "%s does not verify", name);
    for (int32_t b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].offset < 0 && !sbp_buffer_in_shares(program, b))
            return sbp_fail(l->diag, SBP_INPUT, "%s: buffer '%.200s' has no offset", name,
                            program->buffers[b].name);
    plan->program = program;
    const sbp_plan_section *prepare = sbp_plan_file_find(l->file, SBP_PLAN_PREPARE);
    if (!prepare || prepare->length == 0)
        return SBP_OK;
    return sbp_prepare_parse(l->arena, l->diag, section_name(l, SBP_PLAN_PREPARE), prepare->data,
                             (size_t)prepare->length, &program->prepare);
}

/* One that is kept in blocks has a buffer for each part. */
static sbp_status bind_parts(const loader *l, sbp_plan *plan, const sbp_map *names, int32_t t, int32_t *parts,
                             int32_t *tensor_of) {
    const sbp_tensor_entry *tensor = &plan->tensors->tensors[t];
    const sbp_format_info *f = sbp_format_of(tensor->format);
    for (int32_t k = 0; k < f->part_count; k++) {
        const char *name = sbp_arena_printf(l->arena, "%s.%s", tensor->buffer, f->parts[k].name);
        int32_t b = sbp_map_get(names, name);
        const sbp_buffer *buffer = b >= 0 ? &plan->program->buffers[b] : NULL;
        if (!buffer || buffer->role != SBP_ROLE_PARAM || buffer->dtype != f->parts[k].dtype ||
            buffer->count != 1 || buffer->cols != f->parts[k].count || tensor->map.elems % f->block != 0 ||
            sbp_extent_as_const(buffer->rows) != tensor->map.elems / f->block || tensor_of[b] >= 0)
            return sbp_fail(l->diag, SBP_INPUT,
                            "%s: section '%s': '%.200s' is not the %s of %lld numbers in %s", l->file->path,
                            SBP_PLAN_TENSORS, name, f->parts[k].name, (long long)tensor->map.elems, f->name);
        parts[k] = b;
        tensor_of[b] = t;
    }
    return SBP_OK;
}

/* A parameter has one buffer of the program, with as many elements, and the reverse. */
static sbp_status bind_tensor(const loader *l, sbp_plan *plan, const sbp_map *names, int32_t t,
                              int32_t *buffers, int32_t *tensor_of) {
    const sbp_tensor_entry *tensor = &plan->tensors->tensors[t];
    int32_t b = sbp_map_get(names, tensor->buffer);
    if (b < 0 || plan->program->buffers[b].role != SBP_ROLE_PARAM)
        return sbp_fail(l->diag, SBP_INPUT, "%s: section '%s': '%.200s' is not a parameter of the program",
                        l->file->path, SBP_PLAN_TENSORS, tensor->buffer);
    const sbp_buffer *buffer = &plan->program->buffers[b];
    int64_t rows = sbp_extent_as_const(buffer->rows);
    if (rows < 0 || buffer->count != 1 || rows * buffer->cols != tensor->map.elems ||
        !sbp_dtype_is_float(buffer->dtype))
        return sbp_fail(l->diag, SBP_INPUT,
                        "%s: section '%s': '%.200s' has %lld elements, its buffer is %s of %lld x %lld",
                        l->file->path, SBP_PLAN_TENSORS, tensor->buffer, (long long)tensor->map.elems,
                        sbp_dtype_name(buffer->dtype), (long long)rows, (long long)buffer->cols);
    buffers[t] = b;
    tensor_of[b] = t;
    return SBP_OK;
}

/* The low halves of a parameter: as many, beside bf16. */
static sbp_status bind_masters(const loader *l, sbp_plan *plan, const sbp_map *names, int32_t *masters) {
    const sbp_program *p = plan->program;
    int32_t bound = 0, there = 0;
    for (int32_t t = 0; t < plan->tensors->count; t++) {
        const sbp_buffer *high = &p->buffers[plan->buffers[t]];
        int32_t b = sbp_map_get(
            names, sbp_arena_printf(l->arena, "%s.%s", high->name, sbp_suffixes[SBP_SUFFIX_MASTER_LO].name));
        b = plan->tensors->tensors[t].format ? -1 : b;
        masters[t] = b >= 0 && p->buffers[b].role == SBP_ROLE_MASTER ? b : -1;
        if (masters[t] < 0)
            continue;
        const sbp_buffer *low = &p->buffers[b];
        if (high->dtype != SBP_BF16 || low->dtype != SBP_I16 || low->count != 1 || low->cols != high->cols ||
            !sbp_extent_equal(low->rows, high->rows))
            return sbp_fail(l->diag, SBP_INPUT,
                            "%s: section '%s': '%.200s' is not the i16 half of a bf16 one", l->file->path,
                            SBP_PLAN_PROGRAM, low->name);
        bound++;
    }
    for (int32_t b = 0; b < p->buffer_count; b++)
        there += p->buffers[b].role == SBP_ROLE_MASTER;
    if (there != bound)
        return sbp_fail(l->diag, SBP_INPUT, "%s: section '%s': %d buffers of role master, of %d parameters",
                        l->file->path, SBP_PLAN_PROGRAM, there, bound);
    return SBP_OK;
}

static sbp_status load_tensors(const loader *l, sbp_plan *plan) {
    const sbp_plan_section *text;
    sbp_tensor_table *table;
    SBP_TRY(need(l, SBP_PLAN_TENSORS, &text));
    SBP_TRY(sbp_tensor_table_parse(l->arena, l->diag, section_name(l, SBP_PLAN_TENSORS), text->data,
                                   (size_t)text->length, &table));
    plan->tensors = table;
    int32_t *buffers = SBP_NEW_ARRAY(l->arena, int32_t, table->count);
    int32_t *tensor_of = SBP_NEW_ARRAY(l->arena, int32_t, plan->program->buffer_count);
    plan->buffers = buffers;
    plan->tensor_of = tensor_of;
    sbp_map names;
    sbp_map_init(&names, l->arena);
    for (int32_t b = 0; b < plan->program->buffer_count; b++) {
        tensor_of[b] = -1;
        if (plan->program->buffers[b].function == -1)
            sbp_map_set(&names, plan->program->buffers[b].name, b);
    }
    int32_t(*parts)[SBP_MAX_FORMAT_PARTS] =
        sbp_arena_array(l->arena, (size_t)table->count + 1, sizeof *parts);
    plan->parts = parts;
    for (int32_t t = 0; t < table->count; t++) {
        sbp_format format = table->tensors[t].format;
        if (format) {
            if (!plan->decoders[format])
                plan->decoders[format] = sbp_format_decoder_create(l->arena, l->diag, format);
            if (!plan->decoders[format])
                return SBP_INTERNAL;
            SBP_TRY(bind_parts(l, plan, &names, t, parts[t], tensor_of));
            buffers[t] = parts[t][0];
        } else {
            SBP_TRY(bind_tensor(l, plan, &names, t, buffers, tensor_of));
        }
    }
    for (int32_t b = 0; b < plan->program->buffer_count; b++)
        if (plan->program->buffers[b].role == SBP_ROLE_PARAM && tensor_of[b] < 0)
            return sbp_fail(l->diag, SBP_INPUT, "%s: section '%s': nothing for parameter '%.200s'",
                            l->file->path, SBP_PLAN_TENSORS, plan->program->buffers[b].name);
    int32_t *masters = SBP_NEW_ARRAY(l->arena, int32_t, table->count);
    plan->masters = masters;
    return bind_masters(l, plan, &names, masters);
}

/* Bytes in the plan's arena, which the file's need not be; a NUL byte follows. */
static const void *keep(const loader *l, const sbp_plan_section *section) {
    if (!section || section->length == 0)
        return NULL;
    char *copy = sbp_arena_alloc(l->arena, (size_t)section->length + 1);
    return memcpy(copy, section->data, (size_t)section->length);
}

/* Text that may be absent; a NUL byte inside is an error. */
static sbp_status load_text(const loader *l, const char *name, const char **out, int64_t *bytes) {
    const sbp_plan_section *section = sbp_plan_file_find(l->file, name);
    const char *text = keep(l, section);
    *out = text ? text : "";
    *bytes = text ? section->length : 0;
    if (memchr(*out, 0, (size_t)*bytes))
        return sbp_fail(l->diag, SBP_INPUT, "%s: section '%s' holds a zero byte", l->file->path, name);
    return SBP_OK;
}

sbp_status sbp_plan_load(sbp_arena *arena, sbp_diag *diag, const sbp_plan_file *file, const sbp_plan **out) {
    const loader l = {arena, diag, file, out};
    sbp_plan *plan = SBP_NEW(arena, sbp_plan);
    plan->path = sbp_arena_strdup(arena, file->path);
    SBP_TRY(load_program(&l, plan));
    SBP_TRY(load_tensors(&l, plan));
    const sbp_plan_section *meta, *kernels = sbp_plan_file_find(file, SBP_PLAN_KERNELS);
    SBP_TRY(need(&l, SBP_PLAN_META, &meta));
    SBP_TRY(sbp_json_parse(arena, diag, section_name(&l, SBP_PLAN_META), meta->data, (size_t)meta->length, 0,
                           &plan->meta));
    SBP_TRY(sbp_json_as_object(diag, plan->meta, &plan->meta));
    int64_t template_bytes;
    SBP_TRY(load_text(&l, SBP_PLAN_TOKENIZER, &plan->tokenizer, &plan->tokenizer_bytes));
    SBP_TRY(load_text(&l, SBP_PLAN_TEMPLATE, &plan->chat_template, &template_bytes));
    plan->kernels = keep(&l, kernels);
    plan->kernels_bytes = kernels ? kernels->length : 0;
    *out = plan;
    return SBP_OK;
}

static sbp_status load_body(void *user) {
    const loader *l = user;
    return sbp_plan_load(l->arena, l->diag, l->file, l->out);
}

sbp_status sbp_plan_open(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_plan **out) {
    loader l = {arena, diag, NULL, out};
    sbp_arena *bytes = sbp_arena_create(); /* of the file: gone when what is kept has been read from them */
    if (!bytes)
        return sbp_fail(diag, SBP_MACHINE, "%s: out of memory for the plan", path);
    sbp_status status = sbp_plan_file_read(bytes, diag, path, &l.file);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, load_body, &l);
    sbp_arena_destroy(bytes);
    return status;
}
