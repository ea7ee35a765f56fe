/* options_man.c: manual pages of the two programs, in roff (man(7)), from the table. */
#include <ctype.h>
#include <string.h>

#include "runtime/options/options_internal.h"

static const option_command commands[] = {
    {"sbpc", "compile", SBP_PHASE_COMPILE, SBP_PHASE_COMPILE, "MODEL -o plan.bin [options]", "makes a plan"},
    {"sbpc", "inspect", SBP_PHASE_INSPECT | SBP_PHASE_COMPILE, SBP_PHASE_INSPECT, "plan.bin|MODEL [options]",
     "says what a plan holds, takes and does; of a model, with the options of compile, what its plan would"},
    {"sbpc", "fit", SBP_PHASE_FIT | SBP_PHASE_COMPILE, SBP_PHASE_FIT, "MODEL.. [--cards NAME,..] [options]",
     "says which models fit which machines, how long documents may be, and what a step takes"},
    {"sbprun", "", SBP_PHASE_RUN | SBP_PHASE_COMPILE, SBP_PHASE_RUN | SBP_PHASE_COMPILE,
     "MODEL|PLAN --data FILE [options]", "trains, evaluates and scores"},
    {"sbprun", "tokenize", SBP_PHASE_TOKENIZE, SBP_PHASE_TOKENIZE, "MODEL|PLAN [options]",
     "texts and rows from standard input to token ids, and back"},
    {"sbprun", "export", SBP_PHASE_EXPORT, SBP_PHASE_EXPORT, "MODEL -o FILE.gguf [options]",
     "a model, an adapter, or a model with an adapter merged into it, as a GGUF file for llama.cpp"},
    {"sbprun", "check", SBP_PHASE_RUN | SBP_PHASE_COMPILE, 0, "MODEL|PLAN [--data FILE] [options of the run]",
     "says whether gradients are right on this machine: sbprun check --help"},
    {"sbprun", "generate", SBP_PHASE_GENERATE | SBP_PHASE_COMPILE, SBP_PHASE_GENERATE,
     "MODEL|PLAN --prompt TEXT [options]", "answers to prompts, with their log-probabilities, as JSON lines"},
    {"sbprun", "chat", SBP_PHASE_GENERATE | SBP_PHASE_COMPILE, 0, "MODEL|PLAN [options of generate]",
     "a conversation in the terminal: sbprun chat --help"},
    {"sbprun", "doctor", SBP_PHASE_DOCTOR, SBP_PHASE_DOCTOR, "[options]",
     "what this machine has and lacks, and what to install"},
};

const option_command *sbp_option_command_at(const char *program, int32_t index) {
    for (int32_t i = 0; i < SBP_COUNT(commands); i++)
        if (strcmp(commands[i].program, program) == 0 && index-- == 0)
            return &commands[i];
    return NULL;
}

/* Text in which nothing is a request or another character than it looks like. */
static void add_plain(sbp_text *out, const char *text) {
    bool begins = out->length == 0 || out->data[out->length - 1] == '\n';
    for (const char *c = text; *c; c++) {
        if (*c == '\\')
            sbp_text_add(out, "\\e");
        else if (*c == '-')
            sbp_text_add(out, "\\-");
        else if (*c == '\'')
            sbp_text_add(out, "\\(aq");
        else if (*c == '~')
            sbp_text_add(out, "\\(ti");
        else if (*c == '^')
            sbp_text_add(out, "\\(ha");
        else
            sbp_text_add(out, "%s%c", begins && *c == '.' ? "\\&" : "", *c);
        begins = *c == '\n';
    }
}

/* Names of TRL that mean the same, but for the option's own. */
static void add_aliases(sbp_text *out, const sbp_option *option) {
    const char *name;
    bool first = true;
    for (int32_t i = 0; (name = sbp_options_trl_name_at(option, i)); i++)
        if (!sbp_option_same_name(option->name, strlen(option->name), name, strlen(name))) {
            sbp_text_add(out, first ? " [TRL: " : ", ");
            add_plain(out, name);
            first = false;
        }
    sbp_text_add(out, first ? "" : "]");
}

static void add_option(sbp_text *out, const sbp_option *option, const char *key) {
    sbp_text_add(out, ".TP\n");
    if (option->letter && !key)
        sbp_text_add(out, "\\fB\\-%c\\fR, ", option->letter);
    sbp_text_add(out, key ? "\\fB" : "\\fB\\-\\-");
    add_plain(out, key ? key : option->name);
    sbp_text_add(out, "\\fR");
    if (option->kind != SBP_OPTION_SWITCH) {
        sbp_text_add(out, key ? "=\\fI" : " \\fI");
        add_plain(out, sbp_option_values(out->arena, option, "|"));
        sbp_text_add(out, "\\fR");
    }
    sbp_text_add(out, "\n");
    add_plain(out, option->help);
    if (option->kind != SBP_OPTION_SWITCH && *option->fallback) {
        sbp_text_add(out, " (");
        add_plain(out, option->fallback);
        sbp_text_add(out, ")");
    }
    add_aliases(out, option);
    sbp_text_add(out, "\n");
}

/* The options of a command in their groups; those of every command only where `common`. */
static void add_options(sbp_text *out, const option_command *command, bool common) {
    for (int group = 0; group < sbp_option_group_count(); group++) {
        bool any = false;
        for (int32_t i = 0; i < sbp_option_count(); i++) {
            const sbp_option *option = sbp_option_at(i);
            if (option->group != group || !(option->phases & command->shown) ||
                (option->state != SBP_OPTION_BUILT && option->state != SBP_OPTION_HIDDEN) ||
                (option->phases == SBP_PHASE_ALL && !common))
                continue;
            if (!any) {
                sbp_text_add(out, ".SS ");
                add_plain(out, sbp_option_group_title(group));
                sbp_text_add(out, "\n");
            }
            any = true;
            add_option(out, option, NULL);
        }
    }
}

/* The keys of the bundles of a command. */
static void add_keys(sbp_text *out, const option_command *command) {
    const char *key;
    sbp_option_id id;
    for (int32_t b = 0; b < sbp_option_count(); b++) {
        const sbp_option *bundle = sbp_option_at(b);
        if (!(bundle->phases & command->shown) || !sbp_option_is_bundle(bundle->id))
            continue;
        sbp_text_add(out, ".SS Keys of \\-\\-%s\n", bundle->name);
        for (int32_t i = 0; (key = sbp_option_key_at(bundle->id, i, &id)); i++)
            add_option(out, sbp_option_at((int32_t)id), key);
    }
}

static void add_synopsis(sbp_text *out, const char *program) {
    const option_command *command;
    sbp_text_add(out, ".SH SYNOPSIS\n.nf\n");
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++) {
        sbp_text_add(out, "\\fB%s%s%s\\fR ", program, *command->command ? " " : "", command->command);
        add_plain(out, command->usage);
        sbp_text_add(out, "\n");
    }
    sbp_text_add(out, ".fi\n.SH DESCRIPTION\n");
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++) {
        sbp_text_add(out, ".TP\n\\fB%s%s%s\\fR\n", program, *command->command ? " " : "", command->command);
        add_plain(out, command->what);
        sbp_text_add(out, ".\n");
    }
}

/* A page that --help has, as it is. */
static void add_page(sbp_text *out, const char *title, const char *text) {
    sbp_text_add(out, ".SH %s\n.nf\n", title);
    add_plain(out, text);
    sbp_text_add(out, ".fi\n");
}

static void add_upper(sbp_text *out, const char *text) {
    for (; *text; text++)
        sbp_text_add(out, "%c", toupper((unsigned char)*text));
}

void sbp_options_print_man(sbp_text *out, const char *program) {
    const option_command *command;
    bool run = sbp_option_command_at(program, 0)->phases & SBP_PHASE_RUN;
    sbp_text_add(out, ".\\\" Made from runtime/options/options.def: do not edit.\n.TH ");
    add_upper(out, program);
    sbp_text_add(out, " 1 \"\" \"%s %s\" \"StreamBP Compiler\"\n.SH NAME\n%s \\- ", program, SBP_VERSION,
                 program);
    sbp_text_add(out, "%s\n",
                 run ? "fine\\-tune transformer models on long sequences with exact gradients"
                     : "compile transformer models into plans that sbprun trains by");
    add_synopsis(out, program);
    if (run) {
        add_page(out, "EXAMPLES",
                 strstr(sbp_help_of_sbprun, "For example:\n\n") + strlen("For example:\n\n"));
        add_page(out, "ROWS", sbp_help_of_rows);
    }
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++) {
        if (!command->shown) /* those of another */
            continue;
        sbp_text_add(out, ".SH OPTIONS OF ");
        add_upper(out, program);
        sbp_text_add(out, *command->command ? " " : "");
        add_upper(out, command->command);
        sbp_text_add(out, "\n");
        add_options(out, command, i == 0);
        add_keys(out, command);
    }
    sbp_text_add(out,
                 ".SH EXIT STATUS\n0 done; 1 the input is at fault; 2 wrong usage; 3 the machine lacks "
                 "something; 4 a file could not be read or written; 5 loss or gradient not finite; 130, 143 "
                 "interrupted, after a checkpoint.\n.SH SEE ALSO\n");
    sbp_text_add(out, "\\fB%s\\fR(1)\n", run ? "sbpc" : "sbprun");
}
