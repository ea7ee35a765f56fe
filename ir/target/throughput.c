/* throughput.c: throughput as text. */
#include "ir/target/throughput.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key;
    size_t offset;
    bool needed;
} keys[] = {
#define RATE(key, field, needed, unit) {key, offsetof(sbp_throughput, field), needed},
#include "ir/target/throughput.def"
#undef RATE
};

static double *field(sbp_throughput *throughput, int k) {
    return (double *)(void *)((char *)throughput + keys[k].offset);
}

static double value_of(const sbp_throughput *throughput, int k) {
    return *(const double *)(const void *)((const char *)throughput + keys[k].offset);
}

bool sbp_throughput_set(sbp_throughput *throughput, const char *key, double value) {
    if (strcmp(key, "link_bytes") == 0) {
        throughput->in = throughput->out = value;
        return true;
    }
    if (strcmp(key, "disk_bytes") == 0) {
        throughput->disk_read = throughput->disk_write = value;
        return true;
    }
    for (int k = 0; k < SBP_COUNT(keys); k++)
        if (strcmp(keys[k].key, key) == 0) {
            *field(throughput, k) = value;
            return true;
        }
    return false;
}

const char *sbp_throughput_key(int i) {
    return i >= 0 && i < SBP_COUNT(keys) ? keys[i].key : NULL;
}

const char *sbp_throughput_missing(const sbp_throughput *throughput) {
    for (int k = 0; k < SBP_COUNT(keys); k++)
        if (keys[k].needed && !(value_of(throughput, k) > 0))
            return keys[k].key;
    return NULL;
}

const char *sbp_throughput_word(sbp_arena *arena, const char **at) {
    for (;;) {
        *at += strspn(*at, " \t\r\n");
        if (**at != '#')
            break;
        *at += strcspn(*at, "\n");
    }
    size_t length = strcspn(*at, " \t\r\n");
    const char *word = length > 0 ? sbp_arena_strndup(arena, *at, length) : NULL;
    *at += length;
    return word;
}

sbp_status sbp_throughput_parse(sbp_arena *arena, sbp_diag *diag, const char *from, const char *text,
                                sbp_throughput *out) {
    *out = (sbp_throughput){0};
    for (const char *at = text, *key; (key = sbp_throughput_word(arena, &at)) != NULL;) {
        const char *word = sbp_throughput_word(arena, &at);
        char *end = NULL;
        double value = word ? strtod(word, &end) : 0;
        if (!word || *end || !(value > 0 && value < 1e30))
            return sbp_fail(diag, SBP_INPUT, "%s: %s: '%s' is not a positive number", from, key,
                            word ? word : "");
        if (!sbp_throughput_set(out, key, value))
            return sbp_fail(diag, SBP_INPUT, "%s: '%s' is not a rate", from, key);
    }
    const char *missing = sbp_throughput_missing(out);
    return missing ? sbp_fail(diag, SBP_INPUT, "%s: throughput needs '%s'", from, missing) : SBP_OK;
}

void sbp_throughput_print(sbp_text *out, const sbp_throughput *throughput) {
    for (int k = 0; k < SBP_COUNT(keys); k++) {
        if (!(value_of(throughput, k) > 0))
            continue;
        sbp_text_add(out, "%s ", keys[k].key);
        sbp_text_add_double(out, value_of(throughput, k));
        sbp_text_add(out, "\n");
    }
}

double sbp_throughput_value(const sbp_throughput *throughput, int i) {
    return value_of(throughput, i);
}

double sbp_throughput_matmul(const sbp_throughput *throughput, sbp_dtype dtype) {
    if (throughput->matmul[dtype] > 0)
        return throughput->matmul[dtype];
    return throughput->matmul[SBP_F32] / (dtype == SBP_F64 ? 2 : 1);
}

double sbp_throughput_attention(const sbp_throughput *throughput, sbp_dtype dtype) {
    if (throughput->attention[dtype] > 0)
        return throughput->attention[dtype];
    return throughput->attention[SBP_F32] / (dtype == SBP_F64 ? 2 : 1);
}

double sbp_throughput_scalars(const sbp_throughput *throughput, sbp_dtype dtype) {
    double rate = sbp_throughput_attention(throughput, dtype),
           scalar = sbp_throughput_attention(throughput, dtype == SBP_F64 ? SBP_F64 : SBP_F32);
    return rate < scalar ? rate : scalar;
}

void sbp_throughput_describe(sbp_text *out, const sbp_throughput *r, const char *indent) {
    sbp_text_add(out,
                 "matmuls %.3g GFLOP/s in fp32, %.3g in bf16, %.3g in fp64, half of it at %.3g rows; "
                 "attention %.3g, %.3g, %.3g;%s",
                 r->matmul[SBP_F32] / 1e9, r->matmul[SBP_BF16] / 1e9, sbp_throughput_matmul(r, SBP_F64) / 1e9,
                 r->half_rows, r->attention[SBP_F32] / 1e9, r->attention[SBP_BF16] / 1e9,
                 sbp_throughput_attention(r, SBP_F64) / 1e9, indent);
    sbp_text_add(out,
                 "memory %.3g GB/s, rows %.3g Gop/s; to the device %.3g GB/s, back %.3g; host's cores %.3g "
                 "GB/s, %.3g Gop/s; disk reads %.3g GB/s, writes %.3g; %.3g us a command",
                 r->memory / 1e9, r->row_ops / 1e9, r->in / 1e9, r->out / 1e9, r->host / 1e9,
                 r->host_ops / 1e9, r->disk_read / 1e9, r->disk_write / 1e9, r->command_seconds * 1e6);
}
