/* keys.c: which modules a command needs, and what they are called in messages. */
#include "backends/vulkan/abi.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(sbp_vulkan_key) == 20 + SBP_VULKAN_KEY_DTYPES, "a key has no padding");

/* ---- variants of products --------------------------------------------------------------------------- */

const char *const sbp_vulkan_gemm_names[SBP_VULKAN_ANY] = {[SBP_VULKAN_DIRECT] = "direct",
                                                           [SBP_VULKAN_TILED] = "tiled",
                                                           [SBP_VULKAN_WIDE] = "wide",
                                                           [SBP_VULKAN_MATRIX] = "matrix",
                                                           [SBP_VULKAN_MATRIX_WIDE] = "matrix_wide"};

sbp_vulkan_gemm sbp_vulkan_gemm_named(const char *name) {
    int gemm = 0;
    while (gemm < SBP_VULKAN_ANY && strcmp(sbp_vulkan_gemm_names[gemm], name) != 0)
        gemm++;
    return (sbp_vulkan_gemm)gemm;
}

int32_t sbp_vulkan_gemm_side(sbp_vulkan_gemm gemm) {
    switch (gemm) {
    case SBP_VULKAN_DIRECT:
        return SBP_VULKAN_GEMM_DIRECT;
    case SBP_VULKAN_WIDE:
    case SBP_VULKAN_MATRIX_WIDE:
        return SBP_VULKAN_GEMM_WIDE;
    default:
        return SBP_VULKAN_GEMM_TILED;
    }
}

bool sbp_vulkan_gemm_is_matrix(sbp_vulkan_gemm gemm) {
    return gemm == SBP_VULKAN_MATRIX || gemm == SBP_VULKAN_MATRIX_WIDE;
}

bool sbp_vulkan_gemm_exists(sbp_vulkan_gemm gemm, const sbp_dtype *dtypes) {
    switch (gemm) {
    case SBP_VULKAN_WIDE:
        return dtypes[0] != SBP_F64 && dtypes[1] != SBP_F64 && dtypes[2] != SBP_F64;
    case SBP_VULKAN_MATRIX:
    case SBP_VULKAN_MATRIX_WIDE:
        return dtypes[0] != SBP_F64 && dtypes[1] == dtypes[2] &&
               (dtypes[1] == SBP_F16 || dtypes[1] == SBP_BF16);
    default:
        return true;
    }
}

/* ---- keys ------------------------------------------------------------------------------------------- */

/* Of a step of this command; the dtypes of operands from .. to - 1 count. */
static sbp_vulkan_key key_of(sbp_command_kind kind, int32_t step, const sbp_dtype *dtypes, int32_t from,
                             int32_t to) {
    sbp_vulkan_key key = {.kind = (uint8_t)kind, .step = (uint8_t)step};
    for (int32_t i = 0; i < SBP_VULKAN_KEY_DTYPES; i++)
        key.dtypes[i] = (uint8_t)(i >= from && i < to ? dtypes[i] : SBP_DTYPE_COUNT);
    return key;
}

static void attention_keys(const sbp_command *command, const sbp_dtype *dtypes, int32_t count,
                           int32_t operands, sbp_vulkan_key *keys) {
    for (int32_t i = 0; i < count; i++) {
        keys[i] = key_of(command->kind, i, dtypes, 0, operands);
        keys[i].d_qk = (int32_t)command->u.attention.d_qk;
        keys[i].d_v = (int32_t)command->u.attention.d_v;
    }
}

int32_t sbp_vulkan_step_keys(const sbp_command *command, const sbp_dtype *dtypes, sbp_vulkan_gemm gemm,
                             sbp_vulkan_key *keys) {
    switch (command->kind) {
    case SBP_CMD_FILL:
    case SBP_CMD_COPY:
    case SBP_CMD_COLLECTIVE: /* one rank: a copy */
        keys[0] = key_of(command->kind == SBP_CMD_FILL ? SBP_CMD_FILL : SBP_CMD_COPY, 0, dtypes, 0, 0);
        keys[0].bytes = (uint8_t)sbp_dtype_bytes(dtypes[0]);
        return 1;
    case SBP_CMD_GEMM:
        keys[0] = key_of(SBP_CMD_GEMM, 0, dtypes, 0, SBP_VULKAN_GEMM_OPERANDS);
        keys[0].gemm = (uint8_t)gemm;
        keys[0].ta = command->u.gemm.ta;
        keys[0].tb = command->u.gemm.tb;
        return 1;
    case SBP_CMD_ROW:
        keys[0] = key_of(SBP_CMD_ROW, 0, dtypes, 0, 0);
        keys[0].kernel = command->kernel;
        return 1;
    case SBP_CMD_COLSUM:
        keys[0] = key_of(SBP_CMD_COLSUM, 0, dtypes, 0, 2);
        return 1;
    case SBP_CMD_GATHER:
        keys[0] = key_of(SBP_CMD_GATHER, 0, dtypes, 0, 3);
        return 1;
    case SBP_CMD_SCATTER_ADD:
        keys[0] = key_of(SBP_CMD_SCATTER_ADD, 0, dtypes, 0, 5);
        return 1;
    case SBP_CMD_ATTN_FWD:
        attention_keys(command, dtypes, 1, 8, keys);
        return 1;
    case SBP_CMD_ATTN_BWD: /* dq, then dk and dv */
        attention_keys(command, dtypes, 2, 12, keys);
        return 2;
    case SBP_CMD_REDUCE: /* parts, then their end */
        for (int32_t i = 0; i < 2; i++) {
            keys[i] = key_of(SBP_CMD_REDUCE, i, dtypes, 1, i == 0 ? 2 : 1);
            keys[i].reduce = (uint8_t)command->u.reduce.op;
        }
        return 2;
    case SBP_CMD_FENCE:
    case SBP_CMD_COUNT:
        break;
    }
    return 0;
}

int32_t sbp_vulkan_keys(const sbp_command *command, const sbp_dtype *dtypes, sbp_vulkan_key *keys) {
    int32_t count = 0;
    if (command->kind != SBP_CMD_GEMM)
        return sbp_vulkan_step_keys(command, dtypes, SBP_VULKAN_DIRECT, keys);
    for (sbp_vulkan_gemm gemm = SBP_VULKAN_DIRECT; gemm < SBP_VULKAN_ANY; gemm++)
        if (sbp_vulkan_gemm_exists(gemm, dtypes))
            count += sbp_vulkan_step_keys(command, dtypes, gemm, keys + count);
    return count;
}

bool sbp_vulkan_uses_f64(const sbp_command *command, const sbp_rowkernel *kernel) {
    bool uses = command->kind == SBP_CMD_REDUCE;
    if (command->kind == SBP_CMD_ROW) {
        uses = kernel->compute == SBP_F64;
        for (int32_t i = 0; i < kernel->operand_count; i++)
            uses |= kernel->operands[i].dtype == SBP_F64;
    }
    return uses;
}

int sbp_vulkan_key_compare(const sbp_vulkan_key *a, const sbp_vulkan_key *b) {
    return memcmp(a, b, sizeof *a);
}

bool sbp_vulkan_key_possible(const sbp_vulkan_key *key) {
    for (int32_t i = 0; i < SBP_VULKAN_KEY_DTYPES; i++)
        if (key->dtypes[i] > SBP_DTYPE_COUNT)
            return false;
    return key->kind < SBP_CMD_COUNT && key->step < SBP_VULKAN_STEPS && key->gemm < SBP_VULKAN_ANY &&
           key->reduce < SBP_REDUCE_COUNT;
}

/* ---- text ------------------------------------------------------------------------------------------- */

void sbp_vulkan_key_text(const sbp_vulkan_key *key, char text[SBP_VULKAN_NAME]) {
    int at = snprintf(text, SBP_VULKAN_NAME, "%s%s", sbp_command_name((sbp_command_kind)key->kind),
                      key->step > 0 ? ".2" : "");
#define ADD(...)                                                                                             \
    at += at < SBP_VULKAN_NAME ? snprintf(text + at, (size_t)(SBP_VULKAN_NAME - at), __VA_ARGS__) : 0
    if (key->kind == SBP_CMD_ROW)
        ADD(".%d", (int)key->kernel);
    if (key->kind == SBP_CMD_GEMM)
        ADD(".%c%c", key->ta ? 't' : 'n', key->tb ? 't' : 'n');
    if (key->kind == SBP_CMD_REDUCE)
        ADD(".%d", (int)key->reduce);
    if (key->bytes > 0)
        ADD(".%d", (int)key->bytes);
    if (key->d_qk > 0)
        ADD(".%d.%d", (int)key->d_qk, (int)key->d_v);
    int32_t last = SBP_VULKAN_KEY_DTYPES;
    while (last > 0 && key->dtypes[last - 1] == SBP_DTYPE_COUNT)
        last--;
    for (int32_t i = 0; i < last; i++)
        ADD(".%s", key->dtypes[i] < SBP_DTYPE_COUNT ? sbp_dtype_name((sbp_dtype)key->dtypes[i]) : "x");
    if (key->kind == SBP_CMD_GEMM)
        ADD(".%s", sbp_vulkan_gemm_names[key->gemm]);
    if (key->no64)
        ADD(".no64");
#undef ADD
}
