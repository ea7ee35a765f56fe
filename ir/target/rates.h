/* rates.h: how fast a machine is, as the cost model needs to know, and its text: words in pairs, a key of
 * rates.def and its number; '#' begins a comment that ends with the line. Threads: no state. */
#ifndef SBP_IR_TARGET_RATES_H
#define SBP_IR_TARGET_RATES_H

#include "ir/base/types.h"

typedef struct sbp_rates {
    double product[SBP_DTYPE_COUNT]; /* of operands of this type, with many rows */
    double attention[SBP_DTYPE_COUNT];
    double half_rows;       /* rows at which a product reaches half of its rate */
    double memory, row_ops; /* of row kernels and other commands: bytes moved, scalar operations
                               (sbp_rowkernel_ops); what takes longer counts */
    double in, out;         /* of copies from the host to the device, and back */
    double host, host_ops;  /* of row kernels on the host's cores */
    double disk_read, disk_write;
    double net;             /* of a rank, to the others and at once from them; 0: as `out` */
    double between;         /* the same, to ranks of other hosts; 0: as net */
    double host_ranks;      /* ranks of a host, which share its memory, cores and disks; 0: one, or with
                               `between` 0 all */
    double command_seconds; /* per command */
} sbp_rates;

/* One number by its key; "link_bytes" and "disk_bytes" stand for both directions. False: no such key. */
bool sbp_rates_set(sbp_rates *rates, const char *key, double value);
/* The next word of such a text, copied; NULL at its end. */
const char *sbp_rates_word(sbp_arena *arena, const char **at);
/* Key number i; NULL after the last. */
const char *sbp_rates_key(int i);
/* Its number; 0: not known. */
double sbp_rates_value(const sbp_rates *rates, int i);
/* A key that is needed and is 0; NULL: none. */
const char *sbp_rates_missing(const sbp_rates *rates);
/* Reads a text. Messages name `from`; SBP_INPUT: a key or number that is none, or one that is missing. */
sbp_status sbp_rates_parse(sbp_arena *arena, sbp_diag *diag, const char *from, const char *text,
                           sbp_rates *out) SBP_CHECKED;
/* A line "key number" each, in shortest forms, of those that are known. */
void sbp_rates_print(sbp_text *out, const sbp_rates *rates);
/* Of a type: its own, or what follows from others (fp64: half of fp32; other types: fp32). */
double sbp_rates_product(const sbp_rates *rates, sbp_dtype dtype);
double sbp_rates_attention(const sbp_rates *rates, sbp_dtype dtype);
/* For people: "products 450 GFLOP/s in fp32, ..", two lines with `indent` between them. */
void sbp_rates_describe(sbp_text *out, const sbp_rates *rates, const char *indent);

#endif
