/* key.c: which kernel a command needs, what it is called in messages, and all commands of a program. */
#include "backends/gpu/gpu.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(sbp_gpu_key) == 20 + SBP_GPU_KEY_DTYPES, "a key has no padding");

sbp_gpu_key sbp_gpu_key_of(const sbp_command *command, const sbp_dtype *dtypes, int32_t step,
                           int32_t variant) {
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    sbp_gpu_key key = {.kind = (uint8_t)(traits->moves ? SBP_CMD_COPY : command->kind), /* of one rank */
                       .step = (uint8_t)step,
                       .variant = (uint8_t)variant};
    bool typed = traits->keyed == SBP_KEYED_TYPES || traits->keyed == SBP_KEYED_TRANSPOSES ||
                 traits->keyed == SBP_KEYED_HEADS;
    memset(key.dtypes, SBP_DTYPE_COUNT, sizeof key.dtypes);
    for (int32_t i = 0; typed && i < traits->operand_count; i++)
        if (traits->scratch == 0 || i != traits->scratch)
            key.dtypes[i] = (uint8_t)dtypes[i];
    switch (traits->keyed) {
    case SBP_KEYED_TRANSPOSES:
        key.ta = traits->attributes == SBP_ATTRIBUTES_GEMM && command->u.gemm.ta;
        key.tb = traits->attributes == SBP_ATTRIBUTES_GEMM ? command->u.gemm.tb : command->u.experts.tb;
        break;
    case SBP_KEYED_HEADS:
        key.d_qk = (int32_t)(traits->attributes == SBP_ATTRIBUTES_DELTA ? command->u.delta.d_k
                                                                        : command->u.attention.d_qk);
        key.d_v = (int32_t)(traits->attributes == SBP_ATTRIBUTES_DELTA ? command->u.delta.d_v
                                                                       : command->u.attention.d_v);
        key.reduce = traits->attributes == SBP_ATTRIBUTES_DELTA && command->u.delta.corrects;
        break;
    case SBP_KEYED_PARTS: /* step 0: parts; step 1: their end */
        if (step == 0)
            key.dtypes[traits->item_operand] = (uint8_t)dtypes[traits->item_operand];
        key.reduce = (uint8_t)command->u.reduce.op;
        break;
    case SBP_KEYED_BYTES:
        key.bytes = (uint8_t)sbp_dtype_bytes(dtypes[0]);
        break;
    case SBP_KEYED_KERNEL:
        key.kernel = command->kernel;
        break;
    case SBP_KEYED_TYPES:
    case SBP_KEYED_NOTHING:
        break;
    }
    return key;
}

int sbp_gpu_key_compare(const sbp_gpu_key *a, const sbp_gpu_key *b) {
    return memcmp(a, b, sizeof *a);
}

bool sbp_gpu_key_possible(const sbp_gpu_key *key, int32_t steps, int32_t variants) {
    for (int32_t i = 0; i < SBP_GPU_KEY_DTYPES; i++)
        if (key->dtypes[i] > SBP_DTYPE_COUNT)
            return false;
    return key->kind < SBP_CMD_COUNT && key->step < steps && key->variant < variants &&
           key->reduce < SBP_REDUCE_COUNT;
}

void sbp_gpu_key_text(const sbp_gpu_key *key, const char *variant, char text[SBP_GPU_NAME]) {
    const sbp_command_traits *traits = sbp_command_traits_of((sbp_command_kind)key->kind);
    int at = snprintf(text, SBP_GPU_NAME, "%s", sbp_command_name((sbp_command_kind)key->kind));
#define ADD(...) at += at < SBP_GPU_NAME ? snprintf(text + at, (size_t)(SBP_GPU_NAME - at), __VA_ARGS__) : 0
    if (key->step > 0)
        ADD(".%d", key->step + 1);
    if (traits->keyed == SBP_KEYED_KERNEL)
        ADD(".%d", (int)key->kernel);
    if (traits->keyed == SBP_KEYED_TRANSPOSES)
        ADD(".%c%c", key->ta ? 't' : 'n', key->tb ? 't' : 'n');
    if (traits->keyed == SBP_KEYED_PARTS)
        ADD(".%d", (int)key->reduce);
    if (traits->attributes == SBP_ATTRIBUTES_COLLECTIVE) /* a sum over ranks */
        ADD("%s", key->reduce ? ".add" : ".sum");
    if (traits->attributes == SBP_ATTRIBUTES_DELTA && !key->reduce)
        ADD(".adds");
    if (key->bytes > 0)
        ADD(".%d", (int)key->bytes);
    if (key->d_qk > 0)
        ADD(".%d.%d", (int)key->d_qk, (int)key->d_v);
    int32_t last = SBP_GPU_KEY_DTYPES;
    while (last > 0 && key->dtypes[last - 1] == SBP_DTYPE_COUNT)
        last--;
    for (int32_t i = 0; i < last; i++)
        ADD(".%s", key->dtypes[i] < SBP_DTYPE_COUNT ? sbp_dtype_name((sbp_dtype)key->dtypes[i]) : "x");
    if (variant && *variant)
        ADD(".%s", variant);
    if (key->no64)
        ADD(".no64");
#undef ADD
}

/* ---- commands --------------------------------------------------------------------------------------- */

void sbp_gpu_dispatch_dtypes(const sbp_dispatch *dispatch, sbp_dtype *dtypes) {
    const sbp_span *spans = dispatch->spans;
    for (int32_t i = 0; i < SBP_MAX_COMMAND_OPERANDS; i++)
        dtypes[i] =
            i < dispatch->span_count && spans[i].space != SBP_SPACE_COUNT ? spans[i].dtype : SBP_DTYPE_COUNT;
}

typedef struct walk {
    const sbp_program *program;
    sbp_gpu_visit *visit;
    void *user;
} walk;

static sbp_dtype dtype_of(const walk *w, const sbp_function *function, const sbp_view *view) {
    if (view->ref == SBP_NO_VIEW || (view->ref < 0 && !function)) /* entries have no formals */
        return SBP_DTYPE_COUNT;
    return view->ref >= 0 ? w->program->buffers[view->ref].dtype : function->formals[~view->ref].dtype;
}

static sbp_status walk_body(const walk *w, const sbp_function *function, const sbp_body *body) {
    sbp_dtype dtypes[SBP_MAX_COMMAND_OPERANDS];
    for (int32_t i = 0; i < body->count; i++) {
        const sbp_node *node = &body->nodes[i];
        if (node->kind == SBP_NODE_LOOP)
            SBP_TRY(walk_body(w, function, &node->u.loop->body));
        if (node->kind != SBP_NODE_COMMAND)
            continue;
        const sbp_command *command = node->u.command;
        for (int32_t o = 0; o < SBP_MAX_COMMAND_OPERANDS; o++)
            dtypes[o] = o < command->view_count ? dtype_of(w, function, &command->views[o]) : SBP_DTYPE_COUNT;
        SBP_TRY(w->visit(w->user, command, dtypes));
    }
    return SBP_OK;
}

sbp_status sbp_gpu_each_command(const sbp_program *program, sbp_gpu_visit *visit, void *user) {
    const walk w = {.program = program, .visit = visit, .user = user};
    for (int32_t i = 0; i < program->function_count; i++)
        SBP_TRY(walk_body(&w, &program->functions[i], &program->functions[i].body));
    for (int32_t i = 0; i < program->entry_count; i++)
        SBP_TRY(walk_body(&w, NULL, &program->entries[i].body));
    return SBP_OK;
}

const void *sbp_gpu_key_find(const sbp_gpu_key *key, const void *items, int32_t count, size_t size) {
    const char *first = items;
    int32_t low = 0, high = count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (sbp_gpu_key_compare((const sbp_gpu_key *)(first + (size_t)middle * size), key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const char *found = first + (size_t)low * size;
    return low < count && sbp_gpu_key_compare((const sbp_gpu_key *)found, key) == 0 ? found : NULL;
}
