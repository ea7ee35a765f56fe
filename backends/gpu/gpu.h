/* gpu.h: what backends share whose commands run as compiled kernels (vulkan/, cuda/): which kernel a command
 * needs (its key), how a plan carries them (images), where a kernel finds its operands (the argument record).
 * How a row kernel becomes one: row.h.
 *
 * A command is one or more launches ("steps"). Each uses one kernel, found by its key: the kind of command,
 * and what the code depends on of its attributes and the dtypes of its operands. Only what a program uses is
 * compiled. How many steps a command has, which variants of a kernel there are, and how many groups of
 * threads are launched is the backend's own: vulkan/abi.h, cuda/abi.h.
 *
 * Nothing here needs a driver or a compiler. Threads: no state. */
#ifndef SBP_BACKENDS_GPU_H
#define SBP_BACKENDS_GPU_H

#include "backends/device.h"
#include "ir/program/traits.h"

/* ---- keys ------------------------------------------------------------------------------------------- */

enum {
    SBP_GPU_NAME = 96, /* longest text of a key, with its zero */
    SBP_GPU_KEY_DTYPES = 16
};

/* Which kernel it is. No padding: equal keys are equal bytes. */
typedef struct sbp_gpu_key {
    uint8_t kind;                       /* sbp_command_kind; a collective of one rank is a copy, of several
                                           the backend's own */
    uint8_t step;                       /* of the command */
    uint8_t variant;                    /* the backend's own: ways to compute the same */
    uint8_t ta, tb;                     /* gemm: transposed */
    uint8_t reduce;                     /* reduce: sbp_reduce_op; collective: 1 adds to what is there;
                                           delta_rule: 1 corrects */
    uint8_t bytes;                      /* fill, copy: of an element */
    uint8_t no64;                       /* for devices without double */
    int32_t kernel;                     /* row: number in the program */
    int32_t d_qk, d_v;                  /* attention; delta_rule: d_k, d_v */
    uint8_t dtypes[SBP_GPU_KEY_DTYPES]; /* of operands that count; SBP_DTYPE_COUNT: absent, or does not */
} sbp_gpu_key;

/* The key of one step of a command (no fence). dtypes: one per operand, SBP_DTYPE_COUNT where it is
 * absent. */
sbp_gpu_key sbp_gpu_key_of(const sbp_command *command, const sbp_dtype *dtypes, int32_t step,
                           int32_t variant);
/* For messages: "row.3", "gemm.nt.f32.f32.f32.x.x.tiled". variant: its name, NULL or "" when there is but
 * one. */
void sbp_gpu_key_text(const sbp_gpu_key *key, const char *variant, char text[SBP_GPU_NAME]);
/* Below 0, 0 or above: an order of keys. */
int sbp_gpu_key_compare(const sbp_gpu_key *a, const sbp_gpu_key *b);
/* The first item of that key, or NULL. items: `count` of `size` bytes each, which begin with their keys and
 * are sorted by them. */
const void *sbp_gpu_key_find(const sbp_gpu_key *key, const void *items, int32_t count, size_t size);
/* Whether a key, which may come out of a file, is of a command with at most `steps` steps and `variants`
 * variants. */
bool sbp_gpu_key_possible(const sbp_gpu_key *key, int32_t steps, int32_t variants);

/* The dtypes of the operands of a command about to run, as keys want them: SBP_MAX_COMMAND_OPERANDS of them.
 */
void sbp_gpu_dispatch_dtypes(const sbp_dispatch *dispatch, sbp_dtype *dtypes);

/* Calls `visit` with every command of a program and the dtypes of its operands (SBP_MAX_COMMAND_OPERANDS of
 * them), commands of functions and of entries alike; ends at the first failure. */
typedef sbp_status sbp_gpu_visit(void *user, const sbp_command *command, const sbp_dtype *dtypes);
sbp_status sbp_gpu_each_command(const sbp_program *program, sbp_gpu_visit *visit, void *user) SBP_CHECKED;

/* ---- the plan's section "kernels" ------------------------------------------------------------------ */

/* Code of one kernel. `tag` is the backend's own (features it needs, the architecture it is for); of one key
 * there is one image per tag. */
typedef struct sbp_gpu_image {
    sbp_gpu_key key;
    uint32_t tag;
    const void *data;
    int64_t bytes;
} sbp_gpu_image;

typedef struct sbp_gpu_images {
    const sbp_gpu_image *items; /* sorted by key, then tag */
    int32_t count;
} sbp_gpu_images;

/* What tells containers of one backend from those of others. */
typedef struct sbp_gpu_format {
    const char *magic;   /* 8 characters */
    const char *backend; /* for messages: "Vulkan" */
    int32_t version, steps, variants;
} sbp_gpu_format;

/* Bytes of a container. Below a guard (the arena's errors jump). */
void sbp_gpu_images_write(sbp_arena *arena, const sbp_gpu_format *format, const sbp_gpu_image *images,
                          int32_t count, const void **data, int64_t *bytes);
/* Reads one; `data` is untrusted. Images are copied into the arena, so they are aligned to 16 bytes.
 * SBP_INPUT when it is no container, is of another version or is damaged. Below a guard. */
sbp_status sbp_gpu_images_read(sbp_arena *arena, sbp_diag *diag, const sbp_gpu_format *format,
                               const void *data, int64_t bytes, sbp_gpu_images *out) SBP_CHECKED;
/* The first image of that key, those of other tags behind it; NULL when there is none. */
const sbp_gpu_image *sbp_gpu_images_find(const sbp_gpu_images *images, const sbp_gpu_key *key);

/* ---- texts of kernels ------------------------------------------------------------------------------ */

/* A file that was put into the program at build time (embed.cmake). */
typedef struct sbp_gpu_file {
    const char *name; /* "prelude.cuh", "attention/common.cuh" */
    const char *text; /* NUL-terminated */
} sbp_gpu_file;

/* Adds the file of this name, whatever folder it is in; lines `#include "name"` of it become those files.
 * files: the last has no name. False: there is none, and nothing is added. Below a guard. */
bool sbp_gpu_add_file(sbp_text *out, const sbp_gpu_file *files, const char *name);
/* Adds the kernel of this name: the backend's own, "name.suffix", or that of all backends, "name.kernel" of
 * kernels/, behind the file `spelling`. False: there is none. Below a guard. */
bool sbp_gpu_add_kernel(sbp_text *out, const sbp_gpu_file *files, const char *name, const char *suffix,
                        const char *spelling);

/* ---- operands -------------------------------------------------------------------------------------- */

/* Absent, or without an element. */
static inline bool sbp_gpu_is_empty(const sbp_span *span) {
    return span->space == SBP_SPACE_COUNT || span->rows == 0 || span->cols == 0;
}

/* Its rows follow each other. */
static inline bool sbp_gpu_is_dense(const sbp_span *span) {
    return span->rows <= 1 || span->stride == span->cols;
}

/* Bytes from its first element to behind its last; of an empty one 0. SBP_INTERNAL when there cannot be such
 * an operand; backend: for the message. */
sbp_status sbp_gpu_span_bytes(const sbp_span *span, const char *backend, sbp_diag *diag,
                              int64_t *out) SBP_CHECKED;

/* ---- delta_rule ------------------------------------------------------------------------------------- */

enum {
    SBP_GPU_DELTA_STEPS = 4, /* of delta_rule_bwd */
    SBP_GPU_DELTA_MORE_ROWS = 1
};

/* The workspace that those and, without `next`, delta_rule need for `rows` rows: operand `work`, in rows of
 * wide elements. */
int64_t sbp_gpu_delta_columns(const sbp_delta_attrs *attrs, bool backward);
int64_t sbp_gpu_delta_rows(int64_t rows, bool backward);

/* ---- products of experts ---------------------------------------------------------------------------- */

/* Steps of expert_gemm and expert_gemm_dw: which slots an expert has, left in scratch memory of
 * sbp_gpu_expert_scratch bytes; the product. */
enum { SBP_GPU_EXPERT_STEPS = 2 };
static inline int64_t sbp_gpu_expert_scratch(int64_t experts) {
    return (3 * experts + 1) * (int64_t)sizeof(int32_t);
}

/* ---- the argument record --------------------------------------------------------------------------- */

/* An operand as kernels see it. */
typedef struct sbp_gpu_operand {
    uint64_t address; /* of element (0, 0); 0 when absent */
    int32_t rows, cols, stride, first_row;
} sbp_gpu_operand;

/* Laid out alike here, in GLSL (scalar layout) and in CUDA C. What the numbers mean is said where they are
 * written (args.c). */
typedef struct sbp_gpu_args {
    uint64_t scratch;
    int64_t row0;       /* row */
    int32_t rows;       /* row */
    int32_t count;      /* of operands */
    int32_t ints[10];   /* attributes */
    float floats[16];   /* attributes; the scalars of row kernels */
    double doubles[16]; /* the same */
    uint32_t keys[32];  /* the same as integers, low and high word: keys of random numbers */
    sbp_gpu_operand operands[SBP_MAX_COMMAND_OPERANDS];
} sbp_gpu_args;

/* Fills a record; addresses: of byte 0 of each arena (0: none); scratch: address of the scratch memory.
 * ints[8] and ints[9] are left 0, for what only the backend knows. Returns the bytes of it that matter
 * (operands beyond the last are left alone). sbp_gpu_fits() must hold. */
int64_t sbp_gpu_args_fill(const sbp_dispatch *dispatch, const uint64_t addresses[SBP_SPACE_COUNT],
                          uint64_t scratch, sbp_gpu_args *out);
/* Whether a dispatch keeps to what kernels can count: rows, columns and strides below 2^31, absolute rows
 * below 2^32. */
bool sbp_gpu_fits(const sbp_dispatch *dispatch);

#endif
