/* table.c: the table of commands: names, queues and operands from commands.def, rules by name. */
#include "ir/program/command.h"
#include "ir/program/traits.h"

#include <string.h>

/* ---- from commands.def ------------------------------------------------------------------------------ */

enum {
    COMPUTE = 1 << SBP_QUEUE_COMPUTE,
    IN = 1 << SBP_QUEUE_IN,
    OUT = 1 << SBP_QUEUE_OUT,
    HOST = 1 << SBP_QUEUE_HOST,
    DISK = 1 << SBP_QUEUE_DISK,
    NET = 1 << SBP_QUEUE_NET
};

#define READS(id, name) {#name, SBP_READ, false},
#define WRITES(id, name) {#name, SBP_WRITE, false},
#define UPDATES(id, name) {#name, SBP_UPDATE, false},
#define MAY_READ(id, name) {#name, SBP_READ, true},
#define MAY_WRITE(id, name) {#name, SBP_WRITE, true},
#define COMMAND(id, text, queues, operands, traits, synopsis)                                                \
    static const sbp_command_operand operands_of_##text[] = {operands{0}};
#include "ir/program/commands.def"
#undef COMMAND
#undef READS
#undef WRITES
#undef UPDATES
#undef MAY_READ
#undef MAY_WRITE

static const struct {
    const char *name, *synopsis;
    const sbp_command_operand *operands;
    uint32_t queues;
    sbp_command_traits traits;
    sbp_command_rules rules;
} commands[SBP_CMD_COUNT] = {
#define ATTRIBUTES(group) .attributes = SBP_ATTRIBUTES_##group,
#define KEYED(by) .keyed = SBP_KEYED_##by,
#define ITEMS(kind, operand) .items = SBP_ITEMS_##kind, .item_operand = SBP_##operand,
#define EMPTY(operand) .empty = SBP_##operand,
#define NEVER_EMPTY .never_empty = true,
#define WIDE(operands) .wide_if = operands,
#define IF(operand) (1U << SBP_##operand)
#define SCRATCH(operand) .scratch = SBP_##operand,
#define BACKWARD .backward = true,
#define MOVES .moves = true,
#define COMMAND(id, text, queues, operands, traits, synopsis)                                                \
    {#text,                                                                                                  \
     synopsis,                                                                                               \
     operands_of_##text,                                                                                     \
     queues,                                                                                                 \
     {traits.operand_count = SBP_##id##_OPERANDS},                                                           \
     {sbp_rows_##text, sbp_check_##text, sbp_access_##text, sbp_alias_##text, sbp_text_##text,               \
      sbp_work_##text}},
#include "ir/program/commands.def"
#undef COMMAND
};

const char *sbp_command_name(sbp_command_kind kind) {
    return commands[kind].name;
}

const char *sbp_command_synopsis(sbp_command_kind kind) {
    return commands[kind].synopsis;
}

const sbp_command_rules *sbp_command_rules_of(sbp_command_kind kind) {
    return &commands[kind].rules;
}

uint32_t sbp_command_queues(sbp_command_kind kind) {
    return commands[kind].queues;
}

/* ---- traits ----------------------------------------------------------------------------------------- */

const sbp_command_traits *sbp_command_traits_of(sbp_command_kind kind) {
    return &commands[kind].traits;
}

bool sbp_command_find(const char *text, sbp_command_kind *out) {
    for (int kind = 0; kind < SBP_CMD_COUNT; kind++)
        if (strcmp(text, commands[kind].name) == 0) {
            *out = (sbp_command_kind)kind;
            return true;
        }
    return false;
}

bool sbp_command_sums_in_f64(sbp_command_kind kind, const sbp_dtype *dtypes) {
    for (int32_t k = 0; k < commands[kind].traits.operand_count; k++)
        if (commands[kind].traits.wide_if >> k & 1 && dtypes[k] == SBP_F64)
            return true;
    return false;
}

const sbp_rowkernel *sbp_command_kernel(const sbp_program *program, const sbp_command *command) {
    return sbp_command_attributes(command) == SBP_ATTRIBUTES_ROW ? program->kernels[command->kernel] : NULL;
}

const char *sbp_command_title(const sbp_program *program, const sbp_command *command) {
    const sbp_rowkernel *kernel = sbp_command_kernel(program, command);
    return kernel ? kernel->name : sbp_command_name(command->kind);
}

/* ---- operands --------------------------------------------------------------------------------------- */

static sbp_access kernel_access(const sbp_rowkernel *kernel, int32_t operand) {
    return kernel->operands[operand].mode == SBP_RK_IN ? SBP_READ : SBP_WRITE;
}

static int32_t kernel_operands(const sbp_program *program, const sbp_command *command,
                               sbp_command_operand *out) {
    if (command->kernel < 0 || command->kernel >= program->kernel_count)
        return 0;
    const sbp_rowkernel *kernel = program->kernels[command->kernel];
    int32_t count = kernel->operand_count;
    if (count > SBP_MAX_COMMAND_OPERANDS)
        count = SBP_MAX_COMMAND_OPERANDS;
    for (int32_t k = 0; k < count; k++)
        out[k] = (sbp_command_operand){
            .name = kernel->operands[k].name,
            .access = kernel_access(kernel, k),
        };
    return count;
}

int32_t sbp_command_signature(const sbp_program *program, const sbp_command *command,
                              sbp_command_operand *out) {
    if (sbp_command_attributes(command) == SBP_ATTRIBUTES_ROW)
        return kernel_operands(program, command, out);
    int32_t count = commands[command->kind].traits.operand_count;
    for (int32_t k = 0; k < count; k++)
        out[k] = commands[command->kind].operands[k];
    return count;
}

int32_t sbp_command_operands(const sbp_program *program, const sbp_command *command,
                             sbp_command_operand *out) {
    int32_t count = sbp_command_signature(program, command, out);
    for (int32_t k = 0; k < count; k++)
        out[k].access = commands[command->kind].rules.access(command, k, out[k].access);
    return count;
}

sbp_access sbp_command_access(const sbp_command *command, const sbp_rowkernel *kernel, int32_t operand) {
    if (sbp_command_attributes(command) == SBP_ATTRIBUTES_ROW)
        return kernel_access(kernel, operand);
    return commands[command->kind].rules.access(command, operand,
                                                commands[command->kind].operands[operand].access);
}

bool sbp_command_may_alias(sbp_command_kind kind, const sbp_rowkernel *kernel, int32_t written,
                           int32_t other) {
    return commands[kind].rules.alias(kernel, written, other);
}

/* ---- rows ------------------------------------------------------------------------------------------- */

void sbp_rows_add(sbp_row_rules *rules, sbp_row_relation relation, int32_t operand, int32_t other,
                  int64_t n) {
    if (rules->command->views[operand].ref != SBP_NO_VIEW)
        rules->list[rules->count++] = (sbp_row_rule){relation, operand, other, n};
}

int32_t sbp_command_row_rules(const sbp_program *program, const sbp_command *command, sbp_row_rule *out) {
    sbp_row_rules rules = {.program = program, .command = command, .list = out};
    commands[command->kind].rules.rows(&rules);
    return rules.count;
}

/* ---- text ------------------------------------------------------------------------------------------- */

static sbp_field *add_field(sbp_fields *fields, sbp_field field) {
    fields->list[fields->count] = field;
    return &fields->list[fields->count++];
}

sbp_field *sbp_field_flag(sbp_fields *fields, const char *name, bool *at) {
    return add_field(fields, (sbp_field){.name = name, .type = SBP_FIELD_FLAG, .at = at});
}

sbp_field *sbp_field_int(sbp_fields *fields, const char *name, int64_t *at) {
    return add_field(fields, (sbp_field){.name = name, .type = SBP_FIELD_INT, .at = at});
}

sbp_field *sbp_field_double(sbp_fields *fields, const char *name, double *at, double fallback) {
    return add_field(fields,
                     (sbp_field){.name = name, .type = SBP_FIELD_DOUBLE, .at = at, .fallback = fallback});
}

sbp_field *sbp_field_word(sbp_fields *fields, const char *name, void *at, const char *const *words,
                          int32_t word_count, const char *what) {
    return add_field(fields, (sbp_field){.name = name,
                                         .type = SBP_FIELD_WORD,
                                         .at = at,
                                         .always = true,
                                         .what = what,
                                         .words = words,
                                         .word_count = word_count});
}

void sbp_command_fields(sbp_command *command, sbp_fields *out) {
    *out = (sbp_fields){.command = command};
    commands[command->kind].rules.text(out);
}

/* ---- work ------------------------------------------------------------------------------------------- */

double sbp_work_bytes(const sbp_work_query *q, int32_t some, int32_t like) {
    double bytes = 0;
    for (int32_t k = 0; k < q->command->view_count; k++) {
        const sbp_operand_shape *o = &q->operands[k];
        int64_t rows = k == some && q->operands[like].rows < o->rows ? q->operands[like].rows : o->rows;
        if (o->space != SBP_SPACE_COUNT)
            bytes += (double)rows * (double)o->cols * (double)sbp_dtype_bytes(o->dtype);
    }
    return bytes;
}

void sbp_command_work(const sbp_work_query *query, sbp_work *out) {
    *out = (sbp_work){.kind = SBP_WORK_ROWS, .bytes = sbp_work_bytes(query, -1, -1)};
    commands[query->command->kind].rules.work(query, out);
}
