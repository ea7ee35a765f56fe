/* cpu.h: what the files of the CPU device share.
 *
 * Operands of a command become pointers (cpu_view), and the function of its kind in the table of the
 * machine's instruction set runs it (kernels/, compiled once per instruction set). They fit the command:
 * the verifier looked at their columns and types, the executor looks at their rows.
 *
 * Determinism. Every command is cut into items by its shapes alone, never by the number of threads; an item
 * computes the same bits whichever thread runs it and whenever. So a pool may hand out items as it likes. */
#ifndef SBP_BACKENDS_CPU_H
#define SBP_BACKENDS_CPU_H

#include "backends/cpu/limits.h"
#include "backends/device.h"

/* ---- pool.c --------------------------------------------------------------------------------------- */

typedef struct cpu_pool cpu_pool;

/* Runs one item. scratch: this thread's own scratch memory, uninitialised. */
typedef void (*cpu_task)(void *arg, int64_t item, char *scratch);

/* threads - 1 workers are started; the caller of cpu_pool_run is the last one. NULL when threads or memory
 * run out. scratch_bytes of memory per thread, touched as needed but for its first page. */
cpu_pool *cpu_pool_create(int threads, size_t scratch_bytes);
void cpu_pool_destroy(cpu_pool *pool);
/* Runs items 0 .. items-1, in any order, and returns when all are done. One caller at a time. */
void cpu_pool_run(cpu_pool *pool, int64_t items, cpu_task task, void *arg);
/* Makes sure that each thread has this much scratch; false when memory runs out. Not while items run. */
bool cpu_pool_reserve(cpu_pool *pool, size_t scratch_bytes);

/* ---- pages.c, cpu_memory.c ------------------------------------------------------------------------ */

/* Zeroed pages, huge ones where the system gives them; NULL when memory runs out or bytes is 0. */
void *cpu_map_pages(size_t bytes);
void cpu_unmap_pages(void *pages, size_t bytes);
/* Touches the pages with all threads of the pool. */
void cpu_touch_pages(cpu_pool *pool, void *pages, size_t bytes);
/* The most memory that this process has used (VmHWM); 0 unknown. */
int64_t cpu_memory_peak(void);

/* ---- commands ------------------------------------------------------------------------------------- */

/* An operand: [rows, cols], the next row `stride` elements further. data is NULL when it is absent. */
typedef struct cpu_view {
    char *data;
    sbp_dtype dtype;
    int64_t rows, cols, stride, first_row;
} cpu_view;

typedef struct cpu_row_plan cpu_row_plan; /* rows.h */

/* A command with everything it needs, valid as long as the device's program. */
typedef struct cpu_command {
    const sbp_command *command;
    const cpu_row_plan *plan; /* row */
    int64_t rows, row0;       /* row */
    int32_t view_count;
    cpu_view views[SBP_MAX_COMMAND_OPERANDS];
    const struct cpu_command *decoded; /* a product: makes b, which is not there (deferred.h); else NULL */
    double scalars[SBP_ROWKERNEL_MAX_SCALARS]; /* row */
} cpu_command;

/* Where a command runs: a pool and memory that the items of one command share (packed matrices). */
typedef struct cpu_lane {
    cpu_pool *pool;
    char *shared; /* CPU_SHARED_BYTES, touched as needed */
} cpu_lane;

enum {
    CPU_HUGE_PAGE_BYTES = 2 << 20,
    CPU_SHARED_BYTES = 16 << 20, /* see kernels/gemm_body.h */
    CPU_SCRATCH_BYTES = 4 << 20, /* per thread: attention tiles are the largest user */
    CPU_FEW_ROWS = 16            /* of a product that packs b piece by piece (kernels/gemm_few_body.h) */
};

/* ---- kernels/ ------------------------------------------------------------------------------------- */

typedef void (*cpu_runner)(cpu_lane *lane, const cpu_command *command);

/* The commands in one instruction set, by kind. */
typedef struct cpu_kernels {
    const char *name;
    cpu_runner run[SBP_CMD_COUNT];
    /* Blocks of a command whose plan decodes, one behind the other (kernels/kernels.h). */
    void (*decode)(const cpu_command *command, int64_t first, int64_t blocks, char *out);
} cpu_kernels;

/* ---- core.c --------------------------------------------------------------------------------------- */

typedef struct cpu_core {
    sbp_device base;
    cpu_lane lane; /* all threads */
    const cpu_kernels *kernels;
    const sbp_program *program;
    char *arena[SBP_SPACE_COUNT];
    size_t arena_bytes[SBP_SPACE_COUNT];
    cpu_row_plan **plans; /* one per kernel of the program */
    int32_t plan_count;
    size_t scratch_bytes; /* per thread: what the program's kernels need */
    int threads;
    /* Where bytes of SBP_HOST lie when that arena is another device's (cpu_cores.h); NULL: it is its own. */
    char *(*address)(void *user, int64_t offset, int64_t bytes);
    void *address_user;
} cpu_core;

/* What the backend device and the cores of queue host are made of. threads: 0 all that the process may
 * use. */
sbp_status cpu_core_create(cpu_core *core, const sbp_device_class *class, int32_t threads,
                           sbp_diag *diag) SBP_CHECKED;
void cpu_core_destroy(cpu_core *core);
void cpu_core_info(const cpu_core *core, sbp_device_info *out);
/* The kernels of a program; `load`: and its arenas, but for that of the disk. */
sbp_status cpu_core_prepare(cpu_core *core, const sbp_program *program, sbp_diag *diag) SBP_CHECKED;
sbp_status cpu_core_load(cpu_core *core, const sbp_program *program, sbp_diag *diag) SBP_CHECKED;
/* Bounds-checks a dispatch and turns it into a command. */
sbp_status cpu_core_resolve(const cpu_core *core, const sbp_dispatch *dispatch, cpu_command *out,
                            sbp_diag *diag) SBP_CHECKED;
void cpu_core_run(const cpu_core *core, cpu_lane *lane, const cpu_command *command);
/* Between host and arena, bounds-checked; no command may be running. */
sbp_status cpu_core_write(const cpu_core *core, sbp_space space, int64_t offset, const void *data,
                          int64_t bytes, sbp_diag *diag) SBP_CHECKED;
sbp_status cpu_core_read(const cpu_core *core, sbp_space space, int64_t offset, void *data, int64_t bytes,
                         sbp_diag *diag) SBP_CHECKED;

#endif
