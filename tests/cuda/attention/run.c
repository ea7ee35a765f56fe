/* run.c: compiles the kernels of a case (each text once), runs them, compares. */
#include "tests/cuda/attention/run.h"

#include "tests/ptx/tensor/tma.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TEXTS = 512 };

static struct {
    char *text;
    sbp_cuda_object object;
    int32_t arch;
} compiled[MOST_TEXTS];
static int compiled_count;

/* The PTX of a text, which it takes; NULL, and why in run->text. */
static const char *find_ptx(attention_run *run, const sbp_gpu_key *key, char *text) {
    const char *message;
    sbp_cuda_object object;
    sbp_cuda_resources resources;
    for (int i = 0; i < compiled_count; i++)
        if (compiled[i].arch == run->arch.number && strcmp(compiled[i].text, text) == 0) {
            free(text);
            return sbp_cuda_object_ptx(&compiled[i].object);
        }
    if (!kernel_compile(text, key, run->arch, &object, &resources, &message) &&
        (!run->edit || !object.data)) {
        snprintf(run->text, sizeof run->text, "does not compile: %s", message);
        free(object.data);
        free(text);
        return NULL;
    }
    if (compiled_count == MOST_TEXTS)
        attention_run_end();
    compiled[compiled_count].text = text;
    compiled[compiled_count].arch = run->arch.number;
    compiled[compiled_count].object = object;
    return sbp_cuda_object_ptx(&compiled[compiled_count++].object);
}

void attention_run_end(void) {
    for (int i = 0; i < compiled_count; i++) {
        free(compiled[i].text);
        free(compiled[i].object.data);
    }
    compiled_count = 0;
}

static bool fail(attention_run *run, const sbp_cuda_step *step, const char *what) {
    char name[SBP_GPU_NAME];
    kernel_name(&step->key, run->arch, name);
    snprintf(run->text, sizeof run->text, "%s: %s", name, what);
    return false;
}

/* Counts are by kernel and line, and every kernel is called "kernel": each launch has its own. */
static void keep_counts(attention_run *run, const sbp_cuda_step *step, sbp_ptx_counts *counts) {
    size_t bytes;
    FILE *out = open_memstream(&run->step_counts[step->key.step], &bytes);
    if (!out)
        return;
    sbp_ptx_counts_print(counts, out);
    fclose(out);
}

static bool launch(attention_run *run, sbp_ptx_memory *memory, const sbp_cuda_step *step,
                   sbp_gpu_args *args) {
    static sbp_ptx_report report; /* large */
    static _Alignas(64) sbp_ptx_tensor_map maps[SBP_CUDA_TENSOR_MAPS];
    void *params[1 + SBP_CUDA_TENSOR_MAPS] = {args};
    char *text = kernel_text(&step->key, run->arch);
    if (run->edit)
        text = run->edit(&step->key, text);
    const char *ptx = find_ptx(run, &step->key, text);
    if (!ptx) {
        run->status = SBP_PTX_REFUSED;
        return false;
    }
    for (int i = 0; i < step->map_count; i++) {
        const sbp_cuda_tensor_map *m = &step->maps[i];
        const char *broken = sbp_ptx_tensor_map_encode(
            &maps[i], m->dtype == SBP_F16 ? SBP_PTX_TMA_F16 : SBP_PTX_TMA_BF16, (uint32_t)m->rank, m->address,
            m->dims, m->strides, m->box, NULL, (uint32_t)m->swizzle);
        if (broken)
            return fail(run, step, broken);
        params[1 + i] = &maps[i];
    }
    if (step->clear_bytes > 0)
        sbp_ptx_memory_fill(memory, args->scratch + (uint64_t)step->clear_from, 0, 1,
                            (uint64_t)step->clear_bytes);
    sbp_ptx_module *module = sbp_ptx_module_load(memory, ptx, strlen(ptx), &report);
    run->status = report.status;
    if (module) {
        sbp_ptx_options options = run->options;
        options.counts = run->counts ? sbp_ptx_counts_create() : NULL;
        run->status = sbp_ptx_launch(sbp_ptx_module_entry(module, "kernel"), step->grid, step->block,
                                     step->shared_bytes, params, &options, &report);
        if (run->counts) {
            keep_counts(run, step, options.counts);
            sbp_ptx_counts_destroy(options.counts);
        }
        sbp_ptx_module_unload(module);
    }
    return run->status == SBP_PTX_OK || fail(run, step, report.text);
}

static bool run_steps(attention_run *run, attention_case *c, sbp_ptx_memory *memory, sbp_gpu_args *args) {
    sbp_gpu_key key = attention_case_key(c);
    sbp_cuda_step steps[SBP_CUDA_STEPS];
    key.variant = (uint8_t)run->variant;
    if (run->variant != SBP_CUDA_PLAIN &&
        sbp_cuda_attention_choose(&key, run->arch, args, run->variant) != run->variant) {
        snprintf(run->text, sizeof run->text, "there is no such variant for these operands");
        return false;
    }
    int64_t scratch = sbp_cuda_attention_scratch(&key, run->arch, args);
    args->scratch = scratch > 0 ? sbp_ptx_memory_alloc(memory, (uint64_t)scratch) : 0;
    int32_t count = sbp_cuda_attention_launch(&key, run->arch, args, steps);
    sbp_cuda_attention_cross(&key, run->arch);
    for (int32_t i = 0; i < count; i++)
        if (!launch(run, memory, &steps[i], args))
            return false;
    return true;
}

/* FNV-1a */
static uint64_t hash_bytes(uint64_t hash, const void *data, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

bool attention_run_case(attention_run *run, attention_case *c) {
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    sbp_gpu_args args;
    attention_case_args(c, &args);
    run->status = SBP_PTX_OK;
    run->text[0] = 0;
    run->hash = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < c->count; i++) {
        int64_t bytes = attention_case_bytes(c, i),
                shift = c->layout == CASE_ODD ? sbp_dtype_bytes(c->operands[i].dtype) : 0;
        char *data = malloc((size_t)bytes);
        args.operands[i].address = sbp_ptx_memory_alloc(memory, (uint64_t)(bytes + shift)) + (uint64_t)shift;
        attention_case_fill(c, i, data);
        sbp_ptx_memory_write(memory, args.operands[i].address, data, (uint64_t)bytes);
        free(data);
    }
    bool right = run_steps(run, c, memory, &args);
    for (int32_t i = 0; i < c->count && run->status == SBP_PTX_OK; i++) {
        int64_t bytes = attention_case_bytes(c, i);
        if (!c->operands[i].expected || bytes <= 0)
            continue;
        const void *found = sbp_ptx_memory_host(memory, args.operands[i].address, (uint64_t)bytes);
        const char *wrong = attention_case_compare(c, i, found);
        run->hash = hash_bytes(run->hash, found, bytes);
        if (wrong && right) {
            snprintf(run->text, sizeof run->text, "%s", wrong);
            right = false;
        }
    }
    sbp_ptx_memory_destroy(memory);
    return right;
}
