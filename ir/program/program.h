/* program.h: the program IR: what runs, in destination-passing form. A plan carries its text; the
 * runtime walks it and hands commands to a device. Nothing is decided at run time except sizes: every
 * buffer has an offset in the arena of its memory space.
 *
 * Sizes. T rows of the micro-batch at hand (at most `t_max`), S groups (at most `s_max`), C and H rows per
 * chunk of the layers and of the head, N chunks of the layers; W and D are `context` times T and C. T and S
 * come with each micro-batch. Commands run on exact row counts: a view never reaches beyond the rows that
 * exist, tails are never padded.
 *
 * Views. An operand is [start for length] rows of one element (`slot`) of a buffer, or of a formal of the
 * function, and a column range. start = base + step * i + table column, i the index of the innermost
 * loop over a chunk table (a loop over a scalar has no index that views could use). With `until`, length is
 * the end row instead. In `length`, inside a loop over a table that steps by C (H), C (H) stands for the rows
 * of the current chunk, so [0 for C] of chunk scratch is exact in the last chunk too; everywhere else it is
 * the nominal chunk size. The end is clamped to the rows of the buffer. Everything is row-major; the stride
 * from row to row is the buffer's column count. Buffers whose rows name C or H but neither T nor S are local
 * to the chunk: their row r is row row0 + r of the sequence (`first_row` of spans; those of D rows: `context`
 * times row0, plus r, of the sequence of all ranks). A view with a `width`
 * sees the element, whose rows are constant, as a row-major matrix of `width` columns instead, whatever its
 * own are: start, length and columns count in that matrix (text: w/256[0 for 4]). For a formal that matrix is
 * made of what the call passes, which therefore has whole rows and a fixed first one (program_c28).
 *
 * Commands. What they are called and take is in commands.def; commands/<name>.c defines each of them: shapes,
 * equation, what may alias. All sums over floats are in at least fp32 (backends/device.h has the rest of that
 * contract).
 *
 * Spaces and queues. A buffer lives in the device's memory, the host's, or a file (disk), each an arena. A
 * command runs on one queue, and its operands lie where that queue reaches:
 *   compute      every command, a collective only where nothing is sent or among the ranks of a context; all
 *                operands on the device
 *   in, out      copy from host to device, from device to host
 *   host         the host's own cores: all operands on the host; with the bits that the CPU device computes
 *   net          collectives, in the order in which they are given, which must be the same on all ranks;
 *                operands on the device or on the host
 *   disk         copy between host and disk, either way. Nothing else touches a buffer on disk, whose
 *                elements begin at multiples of SBP_DISK_ALIGNMENT.
 *
 * Order. Within a queue commands may overlap or be reordered unless a fence stands between them. Queues run
 * beside each other.
 *
 * Programs are untrusted when they come from a plan: sbp_program_verify() must pass before use.
 */
#ifndef SBP_IR_PROGRAM_PROGRAM_H
#define SBP_IR_PROGRAM_PROGRAM_H

#include "ir/base/context.h"
#include "ir/program/contract.h"
#include "ir/rowkernel/rowkernel.h"

typedef enum sbp_space { SBP_DEVICE, SBP_HOST, SBP_DISK, SBP_SPACE_COUNT } sbp_space;

enum { SBP_DISK_ALIGNMENT = 4096 }; /* bytes: of a file's blocks, for transfers around the page cache */
enum { SBP_MAX_RANKS = 1 << 20, SBP_MAX_CONTEXT = 1 << 10 };
enum { SBP_BUCKET_ALIGNMENT = 256 }; /* elements: where parts of a bucket begin, in every type */

typedef enum sbp_queue {
    SBP_QUEUE_COMPUTE,
    SBP_QUEUE_IN,
    SBP_QUEUE_OUT,
    SBP_QUEUE_HOST,
    SBP_QUEUE_DISK,
    SBP_QUEUE_NET,
    SBP_QUEUE_COUNT
} sbp_queue;

typedef enum sbp_role {
#define ROLE(id, text, category) SBP_ROLE_##id,
#include "ir/program/roles.def"
#undef ROLE
    SBP_ROLE_COUNT
} sbp_role;

typedef enum sbp_command_kind {
#define COMMAND(id, text, queues, operands, traits, synopsis) SBP_CMD_##id,
#include "ir/program/commands.def"
#undef COMMAND
    SBP_CMD_COUNT
} sbp_command_kind;

/* The numbers of their operands, SBP_GEMM_D and so on; SBP_GEMM_OPERANDS: how many there are. */
#define READS(id, name) SBP_##id,
#define WRITES(id, name) SBP_##id,
#define UPDATES(id, name) SBP_##id,
#define MAY_READ(id, name) SBP_##id,
#define MAY_WRITE(id, name) SBP_##id,
#define COMMAND(id, text, queues, operands, traits, synopsis) enum { operands SBP_##id##_OPERANDS };
#include "ir/program/commands.def"
#undef COMMAND
#undef READS
#undef WRITES
#undef UPDATES
#undef MAY_READ
#undef MAY_WRITE

typedef enum sbp_access { SBP_READ, SBP_WRITE, SBP_UPDATE } sbp_access;

enum { SBP_MAX_COMMAND_OPERANDS = SBP_ROWKERNEL_MAX_OPERANDS };

/* A buffer, or an array of `count` of them with equal shapes, one after the other.
 *
 * A sharded bucket holds this rank's share of its elements; no command names its parts, which say what lies
 * where in all of it. An own bucket has room for all elements; between entries only this rank's
 * share of them counts.
 *
 * A bucket is a buffer in which others lie, its parts: each a matrix of its own inside every element of the
 * bucket, of the bucket's space, type and count. Commands name either, so that what belongs together moves in
 * one piece. Parts begin at multiples of SBP_BUCKET_ALIGNMENT elements and have constant rows;
 * those of a staging buffer may be of several things that stand in it at different times. */
typedef enum sbp_sharding { SBP_WHOLE, SBP_SHARDED, SBP_OWN, SBP_SHARDING_COUNT } sbp_sharding;

/* A number of rows that follows the chunk: one row for every `per` rows of the longest chunk, plus `more`. */
typedef struct sbp_blocks {
    int64_t per;  /* rows of a chunk to each; 0: the buffer is none of these */
    int64_t more; /* rows beyond */
    bool of_head; /* of the head's chunks */
    bool of_all;  /* of the rows of all ranks of a context */
} sbp_blocks;

typedef struct sbp_buffer {
    const char *name;
    sbp_role role;
    sbp_space space;
    sbp_dtype dtype;
    int32_t count;
    sbp_extent rows; /* of one element of the array */
    int64_t cols;
    int32_t function;      /* the function whose scratch it is; -1: of the program */
    int64_t offset;        /* bytes in the arena of its space; -1 before the memory pass */
    int64_t stride;        /* bytes from element to element of the array; 0 before the memory pass */
    const double *data;    /* role const: its rows * cols numbers, written by the host at load; else NULL */
    int32_t part_of;       /* 1 + number of the bucket that it lies in; 0: of none */
    int64_t place;         /* elements from the beginning of that bucket's element */
    sbp_sharding sharding; /* of a bucket */
    sbp_blocks blocks;     /* where `rows` follows from the longest chunk; only passes know it */
} sbp_buffer;

/* base + step * i + tables[table].column at i */
typedef struct sbp_index {
    sbp_extent base, step;
    int32_t column; /* of the loop's table, -1: none */
} sbp_index;

typedef struct sbp_view {
    int32_t ref; /* buffer number, or ~formal; SBP_NO_VIEW when the operand is absent */
    int32_t slot;
    sbp_index start;
    sbp_index length;
    bool until; /* `length` is the end row */
    int64_t col, cols;
    int64_t width; /* columns of the matrix that the view sees; 0: the buffer's or formal's own */
} sbp_view;

#define SBP_NO_VIEW INT32_MIN
#define SBP_LITERAL (-1) /* in place of a program scalar's number */

typedef enum sbp_reduce_op {
    SBP_REDUCE_SUM,
    SBP_REDUCE_MAX,
    SBP_REDUCE_SUMSQ,
    SBP_REDUCE_COUNT
} sbp_reduce_op;
typedef enum sbp_collective_op {
#define COLLECTIVE(id, text, kind, communicator, accumulate) SBP_##id,
#include "ir/program/collectives.def"
#undef COLLECTIVE
    SBP_COLLECTIVE_COUNT
} sbp_collective_op;

/* Columns of collectives.def, which says what they mean. */
typedef enum sbp_collective_kind {
    SBP_KIND_ALL_REDUCE,
    SBP_KIND_REDUCE_SCATTER,
    SBP_KIND_ALL_GATHER,
    SBP_KIND_BROADCAST,
    SBP_KIND_SHARE,
    SBP_KIND_TO_HEADS,
    SBP_KIND_TO_ROWS,
    SBP_COLLECTIVE_KINDS
} sbp_collective_kind;
typedef enum sbp_communicator {
    SBP_AMONG_WORLD,
    SBP_AMONG_GROUP,
    SBP_AMONG_GROUPS,
    SBP_AMONG_CONTEXT
} sbp_communicator;
typedef enum sbp_accumulate { SBP_DST_WRITES, SBP_DST_UPDATES, SBP_DST_ADDS, SBP_DST_OWN } sbp_accumulate;

typedef struct sbp_collective_info {
    const char *name; /* in the text form */
    sbp_collective_kind kind;
    sbp_communicator among;
    sbp_accumulate into;
} sbp_collective_info;

extern const sbp_collective_info sbp_collectives[SBP_COLLECTIVE_COUNT];

/* Taps of conv_rows: so few that the first rows of a chunk, those of one partial, alone read the state. */
enum { SBP_CONV_MOST_TAPS = SBP_PARTIAL_ROWS };

typedef struct sbp_attention_attrs {
    int64_t heads, kv_heads, d_qk, d_v;
    int64_t window;        /* 0: none */
    double scale, softcap; /* softcap 0: none */
    bool by_rank;          /* q has this rank's rows of a chunk, k and v those of all of its context
                              (ir/base/context.h) */
} sbp_attention_attrs;

/* Rows of a document, counted from its first, of which delta_rule makes one product each; and the most
 * columns of a head of q, k or v. */
enum { SBP_DELTA_BLOCK = 64, SBP_DELTA_MOST_DIMENSIONS = 1 << 12 };

typedef struct sbp_delta_attrs {
    int64_t heads, key_heads; /* of v; of q and k, each for heads / key_heads of those */
    int64_t d_k, d_v;         /* columns of a head */
    bool corrects;            /* a row adds what the state lacks of it; else all of it */
} sbp_delta_attrs;

typedef struct sbp_command {
    sbp_command_kind kind;
    int32_t queue;  /* sbp_queue; of a fence: compute, it is of those that it names */
    int32_t kernel; /* row: number of the kernel */
    sbp_view *views;
    int32_t view_count;
    int32_t *scalars; /* row: per kernel scalar the program's, or SBP_LITERAL */
    double *literals; /* per kernel scalar, where it is a literal: its value, 0 or more; NULL when none is */
    int32_t scalar_count;
    /* When >= 0: this command consumes the finished gradient of that parameter (buffer number): a flush or an
     * optimizer update. The runtime's one hook for dumping gradients. `gradient` is the operand that holds
     * it. */
    int32_t flushes, gradient;
    union {
        double fill;
        struct {
            double alpha, beta;
            bool ta, tb;
        } gemm;
        sbp_attention_attrs attention;
        sbp_delta_attrs delta;
        struct {
            sbp_reduce_op op;
            double beta;
        } reduce; /* and colsum's beta */
        struct {
            sbp_collective_op op;
            sbp_context_heads heads; /* of to_heads and to_rows */
        } collective;
        bool share; /* row */
        struct {
            bool tb;                   /* expert_gemm */
            bool a_by_slot, b_by_slot; /* each slot of a row has elements of its own; b: expert_gemm_dw */
            bool adds;                 /* expert_gemm_dw: to what is there */
            bool more;                 /* expert_gemm: slots of other experts keep what d has */
            int64_t of;                /* expert_gemm: experts in all, of which b has some; 0: those of b */
        } experts;
        struct {
            int32_t from, to;
        } fence;
    } u;
} sbp_command;

typedef enum sbp_node_kind { SBP_NODE_COMMAND, SBP_NODE_LOOP, SBP_NODE_CALL } sbp_node_kind;

typedef struct sbp_node sbp_node;

typedef struct sbp_body {
    sbp_node *nodes;
    int32_t count, capacity;
} sbp_body;

typedef struct sbp_loop {
    int32_t table;  /* iterations: the rows of this chunk table; -1: see scalar */
    int32_t scalar; /* with table -1: the value of this scalar, a small integer (0 or 1: a conditional) */
    bool descending;
    sbp_body body;
} sbp_loop;

/* Loops nest at most SBP_MAX_LOOP_DEPTH deep in one body, and at most one of them is over a table. */
enum { SBP_MAX_LOOP_DEPTH = 2 };

typedef struct sbp_call {
    int32_t function;
    sbp_view *views; /* one per formal */
} sbp_call;

struct sbp_node {
    sbp_node_kind kind;
    union {
        sbp_command *command;
        sbp_loop *loop;
        sbp_call *call;
    } u;
};

typedef struct sbp_formal {
    const char *name;
    sbp_access access;
    sbp_dtype dtype;
    sbp_extent rows;
    int64_t cols;
} sbp_formal;

typedef struct sbp_function {
    const char *name;
    sbp_formal *formals;
    int32_t formal_count, formal_capacity;
    sbp_body body;
} sbp_function;

/* Chunks of `step` rows of T, computed by the host for each micro-batch. Columns: 0 row0, 1 rows, 2 hi (the
 * end row), 3 blocks (ceil(rows / SBP_PARTIAL_ROWS), the rows of a row kernel's partials), 4 all (the end row
 * of all ranks' chunks, in W), 5 all_blocks (those of the rows of all ranks' chunks), then one lo per window:
 * the first row, in W, that attention of the chunk reads. */
typedef struct sbp_chunk_table {
    const char *name;
    sbp_symbol step;  /* C or H */
    bool counted;     /* a run ends with the last counted row; at least one row runs */
    int64_t *windows; /* 0: full attention */
    int32_t window_count, window_capacity;
} sbp_chunk_table;

enum {
    SBP_COLUMN_ROW0,
    SBP_COLUMN_ROWS,
    SBP_COLUMN_HI,
    SBP_COLUMN_BLOCKS,
    SBP_COLUMN_ALL,
    SBP_COLUMN_ALL_BLOCKS,
    SBP_COLUMN_LO,
    SBP_MAX_WINDOWS = 16,
    SBP_MAX_COLUMNS = SBP_COLUMN_LO + SBP_MAX_WINDOWS
};

/* Data the host fills for every micro-batch. kind "column": one number per row (or per group, when the
 * buffer has S rows), by name from the packer; "order" and "segment": the scatter order of that column,
 * sorted inside chunks of `chunk` rows (T: the whole). Commands do not write these buffers.
 *
 * Counted rows are those where a column is not 0. "pick" says which row of the batch is the i-th of them,
 * "rank" which of them a row is; both name the row itself where there is none. A column may come in that
 * order (`counted`): rows that count first, then zeros, or in integer columns the last of them again and
 * again.
 *
 * In a program with a context (ir/base/context.h), what has T rows is of the rank's own rows; an input may
 * have W. Counted rows are then counted for each rank by itself. */
typedef enum sbp_row_input_kind {
    SBP_ROW_COLUMN,
    SBP_ROW_ORDER,
    SBP_ROW_SEGMENT,
    SBP_ROW_PICK,
    SBP_ROW_RANK
} sbp_row_input_kind;

typedef struct sbp_row_input {
    sbp_row_input_kind kind;
    int32_t buffer;
    const char *column; /* of pick and rank: what decides which rows count */
    sbp_symbol chunk;
    bool counted; /* of a column */
    bool by_rank; /* of W rows: those of rank 0, then those of rank 1 ..; else as the sequence has them */
} sbp_row_input;

/* A number that an entry leaves in a result buffer (f64), at element `index` of it, e.g. "loss": summed over
 * micro-batches by the device. */
typedef struct sbp_output {
    const char *name;
    int32_t buffer, index;
} sbp_output;

typedef struct sbp_entry {
    const char *name; /* accumulate, update, step, score, prepare */
    sbp_body body;
} sbp_entry;

typedef struct sbp_program {
    const char *name;
    const char *target; /* "cpu"; "cuda:sm_80,sm_90a": a backend, and what it compiles for */
    int64_t t_max, s_max, chunk, head_chunk;
    int64_t ranks;        /* processes that run it together; 1: no collectives */
    int64_t group;        /* size of a sharding group: its ranks, which are neighbours, together hold one full
                             copy, and so does each other group; divides ranks */
    int64_t context;      /* ranks that split one micro-batch by rows, context parallelism
                             (ir/base/context.h); divides ranks */
    const char **scalars; /* set by the host, f64: T, S first, then what the program needs */
    int32_t scalar_count, scalar_capacity;
    sbp_chunk_table *tables;
    int32_t table_count, table_capacity;
    sbp_buffer *buffers;
    int32_t buffer_count, buffer_capacity;
    sbp_row_input *row_inputs;
    int32_t row_input_count, row_input_capacity;
    sbp_output *outputs;
    int32_t output_count, output_capacity;
    sbp_rowkernel **kernels;
    int32_t kernel_count, kernel_capacity;
    sbp_function *functions;
    int32_t function_count, function_capacity;
    sbp_entry *entries;
    int32_t entry_count, entry_capacity;
    int64_t arena_bytes[SBP_SPACE_COUNT];
    sbp_map kernel_texts; /* what sbp_program_add_kernel has seen */
    /* What is computed of the data of a step before it (ir/graph/prepare.h), beside the text: a plan has it
     * in a section of its own. NULL: nothing. */
    const struct sbp_prepare *prepare;
} sbp_program;

typedef struct sbp_command_operand {
    const char *name;
    sbp_access access;
    bool optional;
} sbp_command_operand;

const char *sbp_role_name(sbp_role role);
const char *sbp_role_category(sbp_role role);
const char *sbp_command_name(sbp_command_kind kind);
extern const char *const sbp_space_names[SBP_SPACE_COUNT]; /* device, host, disk */
extern const char *const sbp_queue_names[SBP_QUEUE_COUNT]; /* compute, in, out, host, disk, net */
/* The queue on which a copy runs that leads from one space to another; SBP_QUEUE_COUNT between device and
 * disk and within the disk, where none does. */
sbp_queue sbp_queue_of_copy(sbp_space to, sbp_space from);
const char *sbp_command_synopsis(sbp_command_kind kind);
/* Operand list of a command, with the access that it has by its attributes; for `row`, of its kernel. Writes
 * at most SBP_MAX_COMMAND_OPERANDS, returns the count. */
int32_t sbp_command_operands(const sbp_program *program, const sbp_command *command,
                             sbp_command_operand *out);
/* How the command uses one operand. kernel: that of a `row` command, whatever command->kernel
 * says, else NULL. */
sbp_access sbp_command_access(const sbp_command *command, const sbp_rowkernel *kernel, int32_t operand);
/* Whether operand `other` may be the same rows and columns as `written`. kernel: of `row`, else NULL. */
bool sbp_command_may_alias(sbp_command_kind kind, const sbp_rowkernel *kernel, int32_t written,
                           int32_t other);

/* Where attn_fwd and attn_bwd have what both have. */
typedef struct sbp_attention_operands {
    bool backward;
    int32_t q, k, v, o, lse, first, shared_end, own, work;
} sbp_attention_operands;

/* NULL: no attention. */
const sbp_attention_operands *sbp_command_attention(sbp_command_kind kind);

sbp_program *sbp_program_create(sbp_arena *arena, const char *name);
int32_t sbp_program_find_buffer(const sbp_program *program, const char *name);         /* -1 when absent */
int32_t sbp_program_find_scalar(const sbp_program *program, const char *name);         /* -1 when absent */
const sbp_entry *sbp_program_find_entry(const sbp_program *program, const char *name); /* NULL when absent */
const sbp_entry *sbp_program_entry(const sbp_program *program, sbp_entry_id id);       /* likewise */
bool sbp_entry_is(const char *name, sbp_entry_id id);
/* What a step of training spends its time in: step, else accumulate; of a program that trains nothing score.
 * NULL where there is none of these. */
const sbp_entry *sbp_program_training_entry(const sbp_program *program);
int32_t sbp_program_add_scalar(sbp_arena *arena, sbp_program *program,
                               const char *name); /* or the existing one */
/* The number of an identical kernel if there is one (compared by text without the name). A kernel whose name
 * is taken by a different one is renamed ("norm.2"). */
int32_t sbp_program_add_kernel(sbp_arena *arena, sbp_program *program, sbp_rowkernel *kernel);
/* Whether every run of an entry has collectives, so that all ranks must run it equally often. False where
 * there is no such entry. */
bool sbp_program_entry_communicates(const sbp_program *program, sbp_entry_id entry);
/* Whether the ranks of a context send each other something, in queue compute. */
bool sbp_is_exchange(const sbp_command *command);
/* Whether matrices of experts come to some product in pieces. */
bool sbp_program_has_expert_pieces(const sbp_program *program);
/* Most rows of a micro-batch, those of all ranks that have it together: places of rows are i32. */
#define SBP_MOST_ROWS INT32_MAX
/* The most rows of a micro-batch over all ranks that share it: context * t_max. */
int64_t sbp_program_most_rows(const sbp_program *program);
/* All symbols with the given T and S. */
sbp_sizes sbp_program_sizes(const sbp_program *program, int64_t t, int64_t s);
/* The buffer whose memory a buffer is: its bucket, or itself. */
int32_t sbp_buffer_memory(const sbp_program *program, int32_t buffer);
/* Whether a buffer is a part of a sharded bucket: it has no memory of its own. */
bool sbp_buffer_in_shares(const sbp_program *program, int32_t buffer);
/* Bytes of one element of a buffer at these sizes; false on overflow. */
bool sbp_buffer_bytes(const sbp_buffer *buffer, const sbp_sizes *sizes, int64_t *out);

/* A view of all rows and columns of a buffer element, or of a formal. */
sbp_view sbp_view_buffer(const sbp_program *program, int32_t buffer, int32_t slot);
sbp_view sbp_view_formal(const sbp_function *function, int32_t formal);
sbp_view sbp_view_none(void);
/* All of the element that a view is of, as rows of `width` columns; the width must fit (sbp_view_shape). */
sbp_view sbp_view_wide(const sbp_program *program, const sbp_function *function, const sbp_view *view,
                       int64_t width);
/* Rows and columns of the matrix that a view counts in; false when its width does not fit: the rows are not
 * constant, or their elements no multiple of it. function: where the view stands, NULL for an entry. */
bool sbp_view_shape(const sbp_program *program, const sbp_function *function, const sbp_view *view,
                    sbp_extent *rows, int64_t *cols);
/* Whether a view is of all rows and columns of that matrix. */
bool sbp_view_is_whole(const sbp_program *program, const sbp_function *function, const sbp_view *view);
/* A command for queue compute, without kernel and flush, with room for view_capacity views, all
 * of them absent. */
sbp_command *sbp_command_create(sbp_arena *arena, sbp_command_kind kind, int32_t view_capacity);
/* Narrows a whole view to the rows of the current chunk: [i*step for step]. */
sbp_view sbp_view_chunk(sbp_view whole, sbp_symbol step);
/* Narrows a whole view to the partial rows of the current chunk: [0 for blocks]. */
sbp_view sbp_view_blocks(sbp_view whole, bool of_all);
/* The same memory at every position: of the same rows and columns; or only beginning at the same place. Two
 * absent views are equal, and begin nowhere. */
bool sbp_view_equal(const sbp_view *a, const sbp_view *b);
bool sbp_view_same_start(const sbp_view *a, const sbp_view *b);

/* ---- what views and commands mean in rows (verifier, executor, simulators) ------------------------- */

/* Where a command stands. */
typedef struct sbp_position {
    sbp_sizes sizes;
    int32_t table; /* of the innermost loop over a table, -1: none */
    int64_t i;
    int64_t begin; /* rows of T before the first chunk: they were run before. 0 but in `generate` */
    int64_t columns[SBP_MAX_COLUMNS]; /* row i of the table */
} sbp_position;

/* How many rows of the sequence one row of this extent stands for, in a loop whose chunks have `step` rows: 1
 * if it follows the rank's chunk, `context` if it follows the chunk of all ranks of a context, 0 if it
 * follows neither. */
int64_t sbp_extent_local(const sbp_program *program, sbp_extent rows, sbp_symbol step);

/* Rows start .. start+rows of a buffer element or formal. first_row: row of the sequence that the first is
 * (see "Views"). */
typedef struct sbp_range {
    int64_t start, rows, first_row;
} sbp_range;

/* The column that decides which rows count; NULL: the program does not ask. */
const char *sbp_program_counted(const sbp_program *program);
/* Chunks of a table at these sizes: ceil(T / step). */
int64_t sbp_table_rows(const sbp_program *program, int32_t table, const sbp_sizes *sizes);
/* Fills table, i and the columns up to SBP_COLUMN_LO; the lo columns are set to row0. */
void sbp_position_set(sbp_position *position, const sbp_program *program, int32_t table, int64_t i);
/* The first row of a table's first chunk. */
int64_t sbp_position_begin(const sbp_position *position, const sbp_chunk_table *table);
/* Lets the chunk end before row `end`, if it does not already; end > row0. */
void sbp_position_end(sbp_position *position, int64_t end);
/* False when the view leaves its buffer: start < 0, start beyond the rows, or end before start. For a formal,
 * first_row is relative to the formal. function: where the view stands, NULL for an entry. */
bool sbp_view_resolve(const sbp_program *program, const sbp_function *function, const sbp_view *view,
                      const sbp_position *position, sbp_range *out);
/* The type of a view that is not absent. A formal named outside of a function, which the verifier refuses,
 * counts as f32. */
sbp_dtype sbp_view_dtype(const sbp_program *program, const sbp_function *function, const sbp_view *view);

/* What the rows of a command's operands must satisfy; columns and dtypes are static. */
typedef enum sbp_row_relation {
    SBP_ROWS_SAME,      /* as many rows as `other` */
    SBP_ROWS_NO_LESS,   /* as many rows as `other`, or more */
    SBP_ROWS_ALIGNED,   /* the same rows of the sequence as `other` */
    SBP_ROWS_EXACT,     /* n rows */
    SBP_ROWS_SHARE,     /* n times as many as rows of `other` */
    SBP_ROWS_AT_LEAST,  /* n rows or more */
    SBP_ROWS_BLOCKS,    /* ceil(rows of `other` / SBP_PARTIAL_ROWS) */
    SBP_ROWS_PER,       /* ceil(rows of `other` / n), or more */
    SBP_ROWS_COVER,     /* rows of the sequence from the lo of window n to the end of `other`, or more */
    SBP_ROWS_COVER_ALL, /* likewise to the end of all ranks' rows, of which `other` are one's */
    SBP_ROWS_ORDER,     /* one whole chunk of the symbol n (maybe the last, shorter one) */
    SBP_ROWS_NAMED /* its numbers are of rows of `other`: the executor looks at them, shapes say nothing */
} sbp_row_relation;

typedef struct sbp_row_rule {
    sbp_row_relation relation;
    int32_t operand, other;
    int64_t n;
} sbp_row_rule;

enum { SBP_MAX_ROW_RULES = SBP_MAX_COMMAND_OPERANDS + 8 };

/* At most SBP_MAX_ROW_RULES rules; for a command whose operands were checked (kernel and views exist). */
int32_t sbp_command_row_rules(const sbp_program *program, const sbp_command *command, sbp_row_rule *out);
/* ranges: one per operand. */
bool sbp_row_rule_holds(const sbp_program *program, const sbp_row_rule *rule, const sbp_range *ranges,
                        const sbp_position *position);
/* The operand whose rows a row command runs over; -1: none varies with the row, and it runs over one. */
int32_t sbp_command_rows_operand(const sbp_program *program, const sbp_command *command);

/* ---- work: what a command computes and moves (planner, profile) ------------------------------------ */

/* An operand of a command at hand. */
typedef struct sbp_operand_shape {
    int64_t rows, cols;
    int64_t first_row; /* row of the sequence, of queries; 0 where that is not known */
    sbp_dtype dtype;
    sbp_space space; /* SBP_SPACE_COUNT: absent */
} sbp_operand_shape;

typedef struct sbp_work_query {
    const sbp_program *program;
    const sbp_command *command;
    const sbp_operand_shape *operands;
    int64_t chunks; /* which follow one another and are measured as one: the work is their mean */
    int64_t ranks;  /* of a context, whose rows lie beside those of queries by rank; 1: as they are */
} sbp_work_query;

/* What takes the time. */
typedef enum sbp_work_kind {
    SBP_WORK_NONE,       /* nothing */
    SBP_WORK_ROWS,       /* memory, or the operations of a row kernel */
    SBP_WORK_MATMUL,     /* flops */
    SBP_WORK_EXPERTS,    /* flops, or the matrices of experts, which few rows may share: what takes longer */
    SBP_WORK_ATTENTION,  /* flops, of products within a kernel */
    SBP_WORK_COPY,       /* bytes between the spaces of its two operands */
    SBP_WORK_COLLECTIVE, /* `elems`, among all ranks */
    SBP_WORK_EXCHANGE    /* `sent`, among the ranks of a context, and memory */
} sbp_work_kind;

typedef struct sbp_work {
    sbp_work_kind kind;
    double bytes;    /* of all operands: read, or written */
    double flops;    /* of matmuls, attention, delta_rule; a multiply-add counts two */
    double row_ops;  /* scalar operations of a row kernel */
    double rows;     /* of a matmul's d: short ones are slower */
    sbp_dtype dtype; /* of factors, or of what is sent */
    double elems;    /* of a collective: all that there is, not a share */
    double sent;     /* bytes, to all other ranks of the context */
} sbp_work;

void sbp_command_work(const sbp_work_query *query, sbp_work *out);

/* Pairs of a row among row0 .. row0 + rows - 1 of a document and a row that it sees: itself and those before
 * it, of which window > 0 leaves that many. */
double sbp_attention_pairs(int64_t row0, int64_t rows, int64_t window);
/* Operations of attention over `pairs` pairs, a multiply-add counted as two. qk_elems, v_elems: elements of a
 * row of all heads together. Forward: scores and their sums of values. Backward: the scores again and dq, dk;
 * dp and dv. */
double sbp_attention_flops(double pairs, double qk_elems, double v_elems, bool backward);

/* Structure, operand shapes and modes, arena bounds, no T axis outside the roles that may have one. Messages
 * name function or entry, command and constraint ("program_c7"). */
sbp_status sbp_program_verify(const sbp_program *program, sbp_diag *diag) SBP_CHECKED;

/* "weights bf16 + exact master (4 bytes each), states int8 (2.03 bytes)": how what is trained is kept, in
 * bytes per parameter. false, and nothing, of a program that trains nothing. */
bool sbp_program_describe_kept(sbp_arena *arena, const sbp_program *program, sbp_text *out);

/* Text form; printing and parsing round-trip exactly. */
void sbp_program_print(sbp_text *out, const sbp_program *program);
sbp_status sbp_program_parse(sbp_arena *arena, sbp_diag *diag, const char *name, const char *text,
                             size_t length, sbp_program **out) SBP_CHECKED;

#endif
