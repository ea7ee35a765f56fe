/* command.h: the rules of a command, and the table of them.
 *
 * A rule is a function sbp_<rule>_<command> in commands/<command>.c:
 *   rows    how the rows of operands must agree (sbp_row_rule, program.h)
 *   check   the verifier's constraints on attributes, columns, dtypes and row inputs
 *   access  what an operand is to the command where its attributes decide that, not commands.def
 *   alias   whether two operands may be the same rows and columns of one buffer
 *   text    its attributes, as the text form prints and reads them
 *   work    what it computes and moves; how fast that goes is the planner's (passes/planner/cost.c)
 * A missing rule does not link. The head comment of the file defines the command: operands, shapes, equation.
 */
#ifndef SBP_IR_PROGRAM_COMMANDS_COMMAND_H
#define SBP_IR_PROGRAM_COMMANDS_COMMAND_H

#include "ir/program/program.h"
#include "ir/program/program_check.h"

/* ---- rows ------------------------------------------------------------------------------------------- */

typedef struct sbp_row_rules {
    const sbp_program *program;
    const sbp_command *command;
    sbp_row_rule *list; /* room for SBP_MAX_ROW_RULES */
    int32_t count;
} sbp_row_rules;

/* Rules on absent operands are dropped. other: -1 where the relation has none. */
void sbp_rows_add(sbp_row_rules *rules, sbp_row_relation relation, int32_t operand, int32_t other, int64_t n);

/* ---- text ------------------------------------------------------------------------------------------- */

typedef enum sbp_field_type {
    SBP_FIELD_FLAG,   /* bool: stands there alone, when it is true */
    SBP_FIELD_INT,    /* int64_t */
    SBP_FIELD_DOUBLE, /* double */
    SBP_FIELD_WORD    /* an enum, or int32_t: one of `words` */
} sbp_field_type;

/* An attribute: where the command has it, and when it is written. */
typedef struct sbp_field {
    const char *name;
    sbp_field_type type;
    void *at;
    double fallback;  /* its value where the text does not have it */
    bool always;      /* written even if it has that value */
    bool hidden;      /* read, but never written: it means nothing beside the others that are there */
    const char *what; /* of words, for messages: "a queue" */
    const char *const *words;
    int32_t word_count;
} sbp_field;

enum { SBP_MAX_FIELDS = 8 };

typedef struct sbp_fields {
    sbp_command *command;
    sbp_field list[SBP_MAX_FIELDS]; /* in the order in which they are written */
    int32_t count;
} sbp_fields;

/* What was added, for `always`, `hidden` and a fallback. */
sbp_field *sbp_field_flag(sbp_fields *fields, const char *name, bool *at);
sbp_field *sbp_field_int(sbp_fields *fields, const char *name, int64_t *at);
sbp_field *sbp_field_double(sbp_fields *fields, const char *name, double *at, double fallback);
/* Words are always written. at: an enum or an int32_t. */
sbp_field *sbp_field_word(sbp_fields *fields, const char *name, void *at, const char *const *words,
                          int32_t word_count, const char *what);
/* The attributes of a command of this kind, besides queue, flushes and gradient. */
void sbp_command_fields(sbp_command *command, sbp_fields *out);

/* ---- work ------------------------------------------------------------------------------------------- */

/* Bytes of all operands; those of `some` (-1: none) in no more rows than `like` has. */
double sbp_work_bytes(const sbp_work_query *q, int32_t some, int32_t like);

/* ---- the table -------------------------------------------------------------------------------------- */

/* What each file has, and the table links. */
#define SBP_DECLARE_RULES(name)                                                                              \
    void sbp_rows_##name(sbp_row_rules *rules);                                                              \
    sbp_status sbp_check_##name(const sbp_subject *s) SBP_CHECKED;                                           \
    sbp_access sbp_access_##name(const sbp_command *command, int32_t operand, sbp_access stated);            \
    bool sbp_alias_##name(const sbp_rowkernel *kernel, int32_t written, int32_t other);                      \
    void sbp_text_##name(sbp_fields *fields);                                                                \
    void sbp_work_##name(const sbp_work_query *q, sbp_work *out); /* kind and bytes are set */
#define COMMAND(id, text, queues, operands, traits, synopsis) SBP_DECLARE_RULES(text)
#include "ir/program/commands.def"
#undef COMMAND

typedef struct sbp_command_rules {
    void (*rows)(sbp_row_rules *rules);
    sbp_status (*check)(const sbp_subject *s);
    sbp_access (*access)(const sbp_command *command, int32_t operand, sbp_access stated);
    bool (*alias)(const sbp_rowkernel *kernel, int32_t written, int32_t other);
    void (*text)(sbp_fields *fields);
    void (*work)(const sbp_work_query *q, sbp_work *out);
} sbp_command_rules;

const sbp_command_rules *sbp_command_rules_of(sbp_command_kind kind);
/* The queues of commands.def, a bit each. */
uint32_t sbp_command_queues(sbp_command_kind kind);
/* Operands as the text form shows them: the access of commands.def. Otherwise as sbp_command_operands. */
int32_t sbp_command_signature(const sbp_program *program, const sbp_command *command,
                              sbp_command_operand *out);

/* ---- rules of which there is nothing to say -------------------------------------------------------- */

#define SBP_RULE_ROWS_NONE(name)                                                                             \
    void sbp_rows_##name(sbp_row_rules *rules) {                                                             \
        (void)rules;                                                                                         \
    }
#define SBP_RULE_CHECK_NONE(name)                                                                            \
    sbp_status sbp_check_##name(const sbp_subject *s) {                                                      \
        (void)s;                                                                                             \
        return SBP_OK;                                                                                       \
    }
/* What commands.def says, whatever the attributes. */
#define SBP_RULE_ACCESS_STATED(name)                                                                         \
    sbp_access sbp_access_##name(const sbp_command *command, int32_t operand, sbp_access stated) {           \
        (void)command, (void)operand;                                                                        \
        return stated;                                                                                       \
    }
#define SBP_RULE_ALIAS_NONE(name)                                                                            \
    bool sbp_alias_##name(const sbp_rowkernel *kernel, int32_t written, int32_t other) {                     \
        (void)kernel, (void)written, (void)other;                                                            \
        return false;                                                                                        \
    }
#define SBP_RULE_TEXT_NONE(name)                                                                             \
    void sbp_text_##name(sbp_fields *fields) {                                                               \
        (void)fields;                                                                                        \
    }
/* The bytes of all operands. */
#define SBP_RULE_WORK_MEMORY(name)                                                                           \
    void sbp_work_##name(const sbp_work_query *q, sbp_work *out) {                                           \
        (void)q, (void)out;                                                                                  \
    }

/* ---- attention: attn_fwd and attn_bwd share most rules (attn.c) ------------------------------------ */

void sbp_attention_rows(sbp_row_rules *rules);
sbp_status sbp_attention_check(const sbp_subject *s) SBP_CHECKED;
void sbp_attention_text(sbp_fields *fields);
sbp_status sbp_attention_check_inputs(const sbp_subject *s) SBP_CHECKED;
void sbp_attention_work(const sbp_work_query *q, sbp_work *out);

#endif
