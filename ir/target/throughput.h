/* throughput.h: how fast a machine is, as the cost model needs to know, and its text: words in pairs, a key
 * of throughput.def and its number; '#' begins a comment that ends with the line. Threads: no state. */
#ifndef SBP_IR_TARGET_THROUGHPUT_H
#define SBP_IR_TARGET_THROUGHPUT_H

#include "ir/base/types.h"

typedef struct sbp_throughput {
    double matmul[SBP_DTYPE_COUNT]; /* of operands of this type, with many rows */
    double attention[SBP_DTYPE_COUNT];
    double half_rows;       /* rows at which a matmul reaches half of its rate */
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
} sbp_throughput;

/* One number by its key; "link_bytes" and "disk_bytes" stand for both directions. False: no such key. */
bool sbp_throughput_set(sbp_throughput *throughput, const char *key, double value);
/* The next word of such a text, copied; NULL at its end. */
const char *sbp_throughput_word(sbp_arena *arena, const char **at);
/* Key number i; NULL after the last. */
const char *sbp_throughput_key(int i);
/* Its number; 0: not known. */
double sbp_throughput_value(const sbp_throughput *throughput, int i);
/* A key that is needed and is 0; NULL: none. */
const char *sbp_throughput_missing(const sbp_throughput *throughput);
/* Reads a text. Messages name `from`; SBP_INPUT: a key or number that is none, or one that is missing. */
sbp_status sbp_throughput_parse(sbp_arena *arena, sbp_diag *diag, const char *from, const char *text,
                                sbp_throughput *out) SBP_CHECKED;
/* A line "key number" each, in shortest forms, of those that are known. */
void sbp_throughput_print(sbp_text *out, const sbp_throughput *throughput);
/* Rates for a type: the one that was given, or what follows from others (fp64: half of fp32; other
 * types: fp32). */
double sbp_throughput_matmul(const sbp_throughput *throughput, sbp_dtype dtype);
double sbp_throughput_attention(const sbp_throughput *throughput, sbp_dtype dtype);
/* The rate of kernels that multiply row by row with scalars, whatever the type of rows is: no more than
 * attention has in the type of sums. */
double sbp_throughput_scalars(const sbp_throughput *throughput, sbp_dtype dtype);
/* For people: "matmuls 450 GFLOP/s in fp32, ..", two lines with `indent` between them. */
void sbp_throughput_describe(sbp_text *out, const sbp_throughput *throughput, const char *indent);

#endif
