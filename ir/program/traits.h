/* traits.h: the column `traits` of commands.def. Backends make their tables of it: which kernel a command
 * needs, what a launch works on, when there is nothing to do. What only one command has is not here. */
#ifndef SBP_IR_PROGRAM_TRAITS_H
#define SBP_IR_PROGRAM_TRAITS_H

#include "ir/program/program.h"

/* The member of the union of sbp_command that a command has. */
typedef enum sbp_attributes {
    SBP_ATTRIBUTES_NONE,
    SBP_ATTRIBUTES_FILL,
    SBP_ATTRIBUTES_GEMM,
    SBP_ATTRIBUTES_ROW, /* and a kernel */
    SBP_ATTRIBUTES_ATTENTION,
    SBP_ATTRIBUTES_DELTA,
    SBP_ATTRIBUTES_EXPERTS,
    SBP_ATTRIBUTES_REDUCE,
    SBP_ATTRIBUTES_COLLECTIVE,
    SBP_ATTRIBUTES_FENCE
} sbp_attributes;

/* What selects the kernel of a command, where it is compiled for what it is used with. */
typedef enum sbp_keyed {
    SBP_KEYED_TYPES,      /* dtypes of all operands but the scratch one */
    SBP_KEYED_TRANSPOSES, /* and which factors are transposed */
    SBP_KEYED_HEADS,      /* and the columns of heads */
    SBP_KEYED_PARTS,      /* the operation; of parts, too, the dtype that is read */
    SBP_KEYED_BYTES,      /* bytes of an element of operand 0 */
    SBP_KEYED_KERNEL,     /* the row kernel */
    SBP_KEYED_NOTHING     /* there is no kernel */
} sbp_keyed;

/* What the work of a command is cut into. */
typedef enum sbp_items {
    SBP_ITEMS_NONE,
    SBP_ITEMS_ELEMENTS,    /* elements, each by itself */
    SBP_ITEMS_RUNS,        /* elements of rows that an index places; of one index the first adds them up */
    SBP_ITEMS_BLOCKS,      /* columns of SBP_PARTIAL_ROWS rows */
    SBP_ITEMS_COLUMNS,     /* columns, each a sum over rows */
    SBP_ITEMS_TILES,       /* tiles of a product */
    SBP_ITEMS_KERNEL_ROWS, /* rows of a row kernel, as it wants them */
    SBP_ITEMS_QUERIES,     /* tiles of rows of each head; backwards, too, of the rows that they see */
    SBP_ITEMS_STATES,      /* columns of the state of each head, which go through all rows */
    SBP_ITEMS_CHOICES,     /* rows, of which each chooses columns */
    SBP_ITEMS_EXPERTS,     /* experts, of which each finds its slots; the operand has a column more */
    SBP_ITEMS_SLOTS,       /* tiles of slots of one expert, or of an expert's matrix */
    SBP_ITEMS_PARTS        /* parts of all elements, then what they add up to */
} sbp_items;

typedef struct sbp_command_traits {
    int32_t operand_count; /* in commands.def */
    sbp_attributes attributes;
    sbp_keyed keyed;
    sbp_items items;
    int32_t item_operand; /* whose shape says how many items there are */
    int32_t empty;        /* nothing is to be done where this operand has no elements .. */
    bool never_empty;     /* .. unless something is always to be done */
    uint32_t wide_if;     /* a bit per operand: sums are in f64 where one of them is f64 */
    int32_t scratch;      /* the operand that is workspace; 0: none */
    bool backward;        /* gradients of another command */
    bool moves;           /* dst = src, operands 0 and 1, where a program has one rank */
} sbp_command_traits;

const sbp_command_traits *sbp_command_traits_of(sbp_command_kind kind);
/* The command of that text; false: there is none. */
bool sbp_command_find(const char *text, sbp_command_kind *out);
/* dtypes: one per operand. */
bool sbp_command_sums_in_f64(sbp_command_kind kind, const sbp_dtype *dtypes);

/* The row kernel that a command runs; NULL: it has none. */
const sbp_rowkernel *sbp_command_kernel(const sbp_program *program, const sbp_command *command);
/* What it is called in messages: the name of its kernel, or its own. */
const char *sbp_command_title(const sbp_program *program, const sbp_command *command);

static inline sbp_attributes sbp_command_attributes(const sbp_command *command) {
    return sbp_command_traits_of(command->kind)->attributes;
}

#endif
