/* device.h: what runs a program. One implementation per backend; the runtime knows only this header.
 *
 * A device owns one arena per space, that of the disk a file; everything a program touches lies in it. To the
 * runtime it is one object; inside, queues run beside each other (composite/composite.h), and submitting
 * waits for none of them. Commands are given in program order with their operands resolved to spans; a device
 * may run them later, but in an order that the fences allow, and `read`, `write` and `wait` see everything
 * submitted before.
 *
 * Numbers: with the same program, data and device model, results are bit for bit the same from run to
 * run and for any number of threads. Sums of products and of rows are accumulated in fp32 or better
 * (fp64 for f64 operands).
 *
 * Threads: a device is used by one thread at a time. Errors: SBP_MACHINE when the machine lacks memory,
 * driver, feature or room for the file of the disk; SBP_IO when that file cannot be read or written;
 * SBP_INTERNAL when an operand is not inside its arena (that it fits the command, the verifier and the
 * executor have seen); SBP_USAGE when the backend has no kernel for a command (backends/null). A command may
 * fail later than its submit: then what is called next says so, and commands behind it do not run.
 */
#ifndef SBP_BACKENDS_DEVICE_H
#define SBP_BACKENDS_DEVICE_H

#include "ir/program/program.h"

typedef struct sbp_device sbp_device;

typedef struct sbp_device_options {
    int32_t threads;       /* cpu: worker threads; 0: all cores that the process may use */
    int32_t index;         /* which device of this kind, below what `count` says */
    uint64_t shuffle_seed; /* shuffle device: order of the commands between fences */
    /* Device code of the program that will be loaded, as the target compiled it (the plan's section
     * "kernels"); NULL: none. Untrusted as data. Used until load returns; the CPU has no use for it. */
    const void *code;
    int64_t code_bytes;
    /* Directory for the file of the disk arena, which has no name there and ends with the process; NULL:
     * none. */
    const char *offload_dir;
    /* Bytes per second that a queue moves at most, to rehearse another machine's links; 0: as fast as it
     * goes. SBP_TEST_RATES=in:2e9,disk:5e8 in the environment sets them too. Only for queues that
     * the host serves.
     */
    double rates[SBP_QUEUE_COUNT];
    struct sbp_ranks *ranks; /* what collectives of the program are among; NULL: it has none */
    bool tf32;               /* cuda: factors of products in fp32 may be rounded to 10 bits of mantissa */
    bool native_sums; /* cuda over NCCL: sums over ranks in fp32 and fp64 are NCCL's own, in any order */
} sbp_device_options;

/* An operand, resolved: rows x cols elements of `dtype`; element (0, 0) is `offset` bytes into the arena of
 * `space`, the next row `stride` elements further. first_row: the row of the buffer element (or of the
 * formal's buffer) that row 0 is. rows may be 0. `space` is SBP_SPACE_COUNT when the operand is absent. */
typedef struct sbp_span {
    sbp_space space;
    sbp_dtype dtype;
    int64_t offset, rows, cols, stride, first_row;
} sbp_span;

/* A command ready to run. All pointers are valid during the call of submit only; `command` and `kernel`
 * are the program's own. */
typedef struct sbp_dispatch {
    const sbp_command *command;
    const sbp_rowkernel *kernel; /* row commands */
    int64_t rows;                /* row commands: rows to run over, maybe 0 */
    int64_t row0;                /* row commands: absolute row of row 0; sbp_rowkernel_rows_fit() */
    const sbp_span *spans;       /* in the order of the operand list */
    int32_t span_count;
    const double *scalars; /* row commands: one per kernel scalar */
} sbp_dispatch;

typedef struct sbp_device_info {
    char name[128];
    int64_t memory_bytes;     /* of the device space; 0 unknown */
    int64_t used_bytes;       /* by this process, as the driver or kernel reports it; 0 unknown */
    int64_t available_bytes;  /* that it may still take, likewise; 0 unknown */
    int64_t allocation_bytes; /* most of one allocation; 0: no limit */
    int64_t disk_read_bytes, disk_written_bytes; /* so far, of the disk arena */
    int64_t net_sent_bytes, net_away_bytes;      /* so far, by collectives of the program; to other hosts */
    int32_t threads;                             /* 0: not of the host */
    bool software;                               /* a driver that runs on the host's processor, for tests */
} sbp_device_info;

/* A library that is opened when it is used, by a device or by the target of its plans. */
typedef struct sbp_device_library {
    const char *name, *what;   /* "libnvrtc.so.13"; "NVRTC, which compiles kernels" */
    const char *path, *brings; /* where it is, NULL: it was not found; what brings it */
} sbp_device_library;

typedef struct sbp_device_class {
    const char *name; /* "cpu" */
    /* How many devices of this kind there are, the best first; SBP_MACHINE says why there is none. NULL: one.
     */
    sbp_status (*count)(sbp_diag *diag, int32_t *out);
    sbp_status (*create)(const sbp_device_options *options, sbp_diag *diag, sbp_device **out);
    void (*destroy)(sbp_device *device);
    void (*info)(sbp_device *device, sbp_device_info *out);
    /* Allocates the arenas and prepares the kernels of a verified program, once. The program must outlive
     * the device. Arena contents are undefined until written. */
    sbp_status (*load)(sbp_device *device, const sbp_program *program, sbp_diag *diag);
    /* Copies between the caller's memory and an arena of any space; waits for commands that touch it. */
    sbp_status (*write)(sbp_device *device, sbp_space space, int64_t offset, const void *data, int64_t bytes,
                        sbp_diag *diag);
    sbp_status (*read)(sbp_device *device, sbp_space space, int64_t offset, void *data, int64_t bytes,
                       sbp_diag *diag);
    sbp_status (*submit)(sbp_device *device, const sbp_dispatch *dispatch, sbp_diag *diag);
    sbp_status (*wait)(sbp_device *device, sbp_diag *diag);
    /* Direct pointer to arena bytes where the host reaches them as fast as its own (always those of SBP_HOST,
     * never those of SBP_DISK), else NULL: weights are
     * read in place. Waits as read does; later commands need another wait. Valid for the bytes of one buffer.
     * NULL also when the device has failed: the next call says how. */
    void *(*map)(sbp_device *device, sbp_space space, int64_t offset);
    /* How ranks meet where nothing but their devices can bring them together (backends/ranks/transport.h);
     * NULL: they cannot. */
    const struct sbp_transport *transport;
    /* With options.ranks: all of them call it at the same time, between load and the first command, and agree
     * how the program's collectives will be done, of which a note tells. *own: by the device's own means, not
     * through the host's memory. NULL: there are none. */
    sbp_status (*rendezvous)(sbp_device *device, bool *own, sbp_diag *diag);
    /* Ways to compute a command that a device chooses among by measuring. NULL, all three: it has one way for
     * each. What was chosen decides bits. Between load and the first command:
     * - tune_open takes what an earlier tune_text gave, of which `name` is told in messages; *count: choices.
     *   SBP_USAGE where that is damaged or of another device or library; then nothing of it is used.
     * - tune measures the ways to run a command, unless there is a choice for it. Its operands hold anything
     *   afterwards.
     * - tune_text adds all choices to `out`; nothing where there is nothing to choose. Below a guard. */
    sbp_status (*tune_open)(sbp_device *device, const char *name, const void *text, int64_t bytes,
                            int32_t *count, sbp_diag *diag);
    sbp_status (*tune)(sbp_device *device, const sbp_dispatch *dispatch, sbp_diag *diag);
    sbp_status (*tune_text)(sbp_device *device, sbp_text *out, int32_t *count, sbp_diag *diag);
    /* Looks for each library that is opened when it is used. NULL: there is none. */
    void (*libraries)(void (*visit)(void *user, const sbp_device_library *library), void *user);
} sbp_device_class;

/* Every implementation begins with this. */
struct sbp_device {
    const sbp_device_class *class;
};

#endif
