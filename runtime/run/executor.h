/* executor.h: runs the entries of a verified program on a device.
 *
 * An executor owns a device with the program's arenas. Per micro-batch the caller binds T, S and the columns
 * of row data; the executor derives the chunk tables and scatter orders from them and writes the row inputs.
 * Then entries run by name: views are resolved to spans, checked (plans are untrusted: no command reaches
 * beyond its buffers, whatever the program says) and submitted in program order. Nothing is allocated per
 * command or per micro-batch.
 *
 * Row data. Columns are found by the names that the program's row inputs carry. Three are also read here:
 * "first", "shared_end" and "own" (ir/program/program.h, attention), from which the lo columns of the chunk
 * tables come; 0 <= first <= shared_end <= own <= row; or own = row + 1, first < shared_end: the row's own
 * keys are among the shared ones, where "place" says. The latter two count as equal to "first" when not
 * given.
 *
 * Memory. Host memory beyond the program's arenas: a number per chunk and window, 1 MiB of staging, and,
 * where the device does not map its memory, one int32 per row for the scatter orders.
 *
 * Threads: one thread at a time. Errors: SBP_INPUT when the plan breaks its own contract at run time or a
 * column holds an index beyond its table; SBP_INTERNAL when the caller breaks this one; and whatever the
 * device reports.
 */
#ifndef SBP_RUNTIME_RUN_EXECUTOR_H
#define SBP_RUNTIME_RUN_EXECUTOR_H

#include "runtime/run/oracle.h"
#include "runtime/run/profile.h"

typedef struct sbp_executor sbp_executor;

/* The program must be verified, carry offsets, and outlive the executor. Constants are written here; all
 * else in the arenas is undefined until written. */
sbp_status sbp_executor_create(sbp_diag *diag, const sbp_device_class *class,
                               const sbp_device_options *options, const sbp_program *program,
                               sbp_executor **out) SBP_CHECKED;
/* With options.ranks: all ranks together, before the first entry runs: the device finds out how they send
 * each other what the program's collectives want (sbp_device_class.rendezvous). */
sbp_status sbp_executor_rendezvous(sbp_executor *executor, sbp_diag *diag) SBP_CHECKED;
/* NULL is allowed. */
void sbp_executor_destroy(sbp_executor *executor);
const sbp_program *sbp_executor_program(const sbp_executor *executor);
sbp_device *sbp_executor_device(sbp_executor *executor);

/* ---- micro-batches ---------------------------------------------------------------------------------- */

/* One number per row or per group; F64, F32, I32 or I64. The memory is the caller's, used only during bind.
 */
typedef struct sbp_column {
    const char *name;
    sbp_dtype dtype;
    const void *data;
    int64_t count;
} sbp_column;

/* Sets the scalars T and S, the chunk tables and all row inputs. t: rows of the micro-batch, from 1 to
 * sbp_program_most_rows; 0 <= s <= s_max. Where several ranks have it together (ir/base/context.h), each
 * takes its own from columns of all; rows that lack to an equal number for each are documents of their own in
 * which nothing counts. Columns that the program does not ask for are ignored. Waits for the device. */
sbp_status sbp_executor_bind(sbp_executor *executor, int64_t t, int64_t s, const sbp_column *columns,
                             int32_t column_count, sbp_diag *diag) SBP_CHECKED;

/* The same of rows begin .. t - 1, behind rows that were run before and that the cache still has: columns
 * have t - begin numbers, places of rows count from 0 as ever. Where more than one row counts, they must fit
 * in one chunk of the head. For programs with `generate`, of one rank. */
sbp_status sbp_executor_bind_behind(sbp_executor *executor, int64_t begin, int64_t t, int64_t s,
                                    const sbp_column *columns, int32_t column_count,
                                    sbp_diag *diag) SBP_CHECKED;
/* A vector that the head leaves, of the first `count` rows of the bound micro-batch; 0 where the program does
 * not compute a row. */
sbp_status sbp_executor_read_rows(sbp_executor *executor, int32_t buffer, int64_t count, double *out,
                                  sbp_diag *diag) SBP_CHECKED;
/* False when the program has no scalar of that name. T and S are set by bind. Scalars are read when a
 * command is submitted; one that was never set is SBP_INPUT then, since a plan may name any. */
bool sbp_executor_set_scalar(sbp_executor *executor, const char *name, double value);
/* The same, one of ir/program/contract.def. */
bool sbp_executor_set(sbp_executor *executor, sbp_scalar_id scalar, double value);

/* Runs an entry of the bound micro-batch. Returns when all is submitted; reading waits. */
sbp_status sbp_executor_run(sbp_executor *executor, const char *entry, sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_executor_wait(sbp_executor *executor, sbp_diag *diag) SBP_CHECKED;

/* ---- the flush hook --------------------------------------------------------------------------------- */

/* A finished gradient, about to be consumed. Valid during the hook. */
typedef struct sbp_gradient {
    sbp_executor *executor;
    int32_t parameter; /* buffer number */
    int32_t buffer;    /* likewise, of a gradient that has one of its own; else -1 */
    sbp_span span;
} sbp_gradient;

/* Called before each command that flushes. *skip, false on entry, leaves the command out. */
typedef sbp_status (*sbp_flush_hook)(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag);
/* NULL removes it. */
void sbp_executor_set_flush_hook(sbp_executor *executor, sbp_flush_hook hook, void *user);
/* Elements first .. first + count - 1, row-major, converted to a float dtype. */
sbp_status sbp_gradient_read(const sbp_gradient *gradient, int64_t first, int64_t count, sbp_dtype dtype,
                             void *out, sbp_diag *diag) SBP_CHECKED;

/* ---- choosing by measuring -------------------------------------------------------------------------- */

/* Whether the device has ways to choose among (sbp_device_class.tune). */
bool sbp_executor_can_tune(const sbp_executor *executor);
/* Lets it measure them for the matmuls of all entries at the most rows, last and shorter chunks left out.
 * Before anything is written: arenas hold anything afterwards, but constants. A micro-batch must be bound
 * anew. */
sbp_status sbp_executor_tune(sbp_executor *executor, sbp_diag *diag) SBP_CHECKED;

/* ---- profile ---------------------------------------------------------------------------------------- */

/* Times every command from now on; NULL ends it. The profile is the caller's. */
void sbp_executor_set_profile(sbp_executor *executor, sbp_profile *profile);

/* Compares commands from now on with loops; NULL ends it. The oracle is the caller's. */
void sbp_executor_set_oracle(sbp_executor *executor, sbp_oracle *oracle);

/* ---- buffers ---------------------------------------------------------------------------------------- */

/* Elements first .. first + count - 1 (row-major, of the allocated t_max rows) of one element of a buffer,
 * converted from or to `dtype`. Waits for commands that touch the arena. */
sbp_status sbp_executor_read(sbp_executor *executor, int32_t buffer, int32_t slot, int64_t first,
                             int64_t count, sbp_dtype dtype, void *out, sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_executor_write(sbp_executor *executor, int32_t buffer, int32_t slot, int64_t first,
                              int64_t count, sbp_dtype dtype, const void *data, sbp_diag *diag) SBP_CHECKED;
/* Where ranks have shares of what is read, all read at the same time, each what it likes, and all finish: who
 * has read all that it wants answers the others until they have, too. What is all in this rank's own share
 * may be read at any time. Each writes what it has of what is written. */
sbp_status sbp_executor_finish_reading(sbp_executor *executor, sbp_diag *diag) SBP_CHECKED;
bool sbp_executor_has_shares(const sbp_executor *executor);
/* Whether ranks have shares of a buffer; elements of it that are here, or on a rank: all, but for shares. */
bool sbp_executor_is_shared(const sbp_executor *executor, int32_t buffer);
void sbp_executor_own(const sbp_executor *executor, int32_t buffer, int64_t *first, int64_t *count);
void sbp_executor_own_of(const sbp_executor *executor, int32_t buffer, int64_t rank, int64_t *first,
                         int64_t *count);
/* Goes on hashing with the bytes of a buffer's first element, as they are kept; all ranks do, of shares. */
sbp_status sbp_executor_hash(sbp_executor *executor, int32_t buffer, uint64_t *hash,
                             sbp_diag *diag) SBP_CHECKED;
/* Fills every buffer of a role, as for optimizer states before the first step. */
sbp_status sbp_executor_fill_role(sbp_executor *executor, sbp_role role, double value,
                                  sbp_diag *diag) SBP_CHECKED;
/* Allocated elements of one element of a buffer. */
int64_t sbp_executor_elems(const sbp_executor *executor, int32_t buffer);
/* The memory of one element of a buffer where the device maps it, else NULL. */
void *sbp_executor_map(sbp_executor *executor, int32_t buffer, int32_t slot);
/* An output of the program by name; SBP_INPUT when there is none. */
sbp_status sbp_executor_output(sbp_executor *executor, const char *name, double *out,
                               sbp_diag *diag) SBP_CHECKED;

#endif
