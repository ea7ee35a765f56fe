/* options_complete.c: completion for bash, zsh and fish, from the table. */
#include <ctype.h>
#include <string.h>

#include "runtime/options/options_internal.h"

static const char *const programs[] = {"sbpc", "sbprun"};

const char *sbp_options_program_at(int32_t index) {
    return index < SBP_COUNT(programs) ? programs[index] : NULL;
}

/* What an option takes: words that can be typed as they are, files. */
typedef struct option_takes {
    const char *words; /* with blanks between them; "": none */
    bool files, nothing, maybe_nothing;
} option_takes;

static bool is_path(const char *begin, size_t length) {
    static const char *const paths[] = {"FILE", "DIR", "MODEL", "OUT"};
    for (int i = 0; i < SBP_COUNT(paths); i++)
        if (length >= strlen(paths[i]) && strncmp(begin, paths[i], strlen(paths[i])) == 0)
            return true;
    return false;
}

/* "r=N,alpha=X,.." is none. */
static bool is_word(const char *begin, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!islower((unsigned char)begin[i]) && !isdigit((unsigned char)begin[i]) && !strchr("_-", begin[i]))
            return false;
    return length > 0;
}

static option_takes takes_of(sbp_arena *arena, const sbp_option *option) {
    option_takes takes = {.nothing = option->kind == SBP_OPTION_SWITCH,
                          .maybe_nothing = strncmp(option->values, "on|off", 6) == 0};
    const char *at = NULL, *begin;
    size_t length;
    bool hidden;
    sbp_text words;
    sbp_text_init(&words, arena);
    while (sbp_option_alternative(option->values, &at, &begin, &length, &hidden)) {
        takes.files |= is_path(begin, length);
        if (!hidden && is_word(begin, length))
            sbp_text_add(&words, "%s%.*s", words.length ? " " : "", (int)length, begin);
    }
    const char *key;
    sbp_option_id id;
    for (int32_t i = 0; sbp_option_is_bundle(option->id) && (key = sbp_option_key_at(option->id, i, &id));
         i++)
        sbp_text_add(&words, " %s=", key);
    if (option->id == SBP_OPT_HELP) {
        takes.nothing = false;
        takes.maybe_nothing = true;
        sbp_text_add(&words, " all rows");
        for (int group = 0; group < sbp_option_group_count(); group++) {
            sbp_text_add(&words, " ");
            for (const char *c = sbp_option_group_topic(group); *c; c++)
                sbp_text_add(&words, "%c", tolower((unsigned char)*c));
        }
    }
    takes.words = words.length ? words.data + strspn(words.data, " ") : "";
    return takes;
}

/* The next option of some phases, from index *at on; NULL: there is none. */
static const sbp_option *next_option(unsigned phases, int32_t *at) {
    while (*at < sbp_option_count()) {
        const sbp_option *option = sbp_option_at((*at)++);
        if ((option->phases & phases) && option->state == SBP_OPTION_BUILT)
            return option;
    }
    return NULL;
}

/* The phases of all commands of a program. */
static unsigned phases_of(const char *program) {
    const option_command *command;
    unsigned phases = 0;
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++)
        phases |= command->phases;
    return phases;
}

/* Names of commands, with `separator` between them. */
static const char *names_of(sbp_arena *arena, const char *program, const char *separator) {
    const option_command *command;
    sbp_text out;
    sbp_text_init(&out, arena);
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++)
        if (*command->command)
            sbp_text_add(&out, "%s%s", out.length ? separator : "", command->command);
    return out.data;
}

/* The first clause of the help, as a shell shows it behind a name; `escaped`: characters that get a '\\', in
 * single quotes of a shell. */
static void add_short_help(sbp_text *out, const sbp_option *option, const char *escaped) {
    enum { MOST = 72 };
    size_t length = strcspn(option->help, ";:");
    while (length > MOST && !(option->help[length] == ' ' && length <= MOST + 8))
        length--;
    for (size_t i = 0; i < length; i++) {
        char c = option->help[i];
        if (c == '\'')
            sbp_text_add(out, "'\\''");
        else
            sbp_text_add(out, "%s%c", strchr(escaped, c) ? "\\" : "", c);
    }
}

static void add_head(sbp_text *out, const char *first, const char *program, const char *where) {
    sbp_text_add(out,
                 "%s# Completion for %s, made from runtime/options/options.def: do not edit. Goes to %s\n",
                 first, program, where);
}

/* ---- bash ------------------------------------------------------------------------------------------- */

static void add_bash_values(sbp_text *out, const char *program) {
    const sbp_option *option;
    for (int32_t at = 0; (option = next_option(phases_of(program), &at));) {
        option_takes takes = takes_of(out->arena, option);
        if (takes.nothing)
            continue;
        sbp_text_add(out, "    --%s", option->name);
        if (option->letter)
            sbp_text_add(out, " | -%c", option->letter);
        sbp_text_add(out, ") words='%s' files=%s ;;\n", takes.words, takes.files ? "yes" : "");
    }
}

static void add_bash_names(sbp_text *out, const option_command *command) {
    const sbp_option *option;
    sbp_text_add(out, "%s) words='", *command->command ? command->command : "*");
    bool first = true;
    for (int32_t at = 0; (option = next_option(command->phases, &at)); first = false)
        sbp_text_add(out, "%s--%s", first ? "" : " ", option->name);
    sbp_text_add(out, "' ;;\n");
}

static void print_bash(sbp_text *out, const char *program) {
    const option_command *command;
    add_head(out, "", program, sbp_arena_printf(out->arena, "share/bash-completion/completions/%s", program));
    sbp_text_add(
        out,
        "_%s() {\n"
        "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words= files=yes\n"
        "    # --name=value is three words\n"
        "    if [ \"$current\" = = ]; then\n"
        "        current=\n"
        "    elif [ \"$before\" = = ]; then\n"
        "        before=${COMP_WORDS[COMP_CWORD - 2]}\n"
        "    fi\n"
        "    case $before in\n",
        program);
    add_bash_values(out, program);
    sbp_text_add(out, "    *)\n        [ \"$COMP_CWORD\" = 1 ] && words='%s'\n",
                 names_of(out->arena, program, " "));
    sbp_text_add(out, "        if [ \"${current:0:1}\" = - ]; then\n            files=\n"
                      "            case ${COMP_WORDS[1]} in\n");
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++)
        if (*command->command)
            sbp_text_add(out, "            "), add_bash_names(out, command);
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++)
        if (!*command->command)
            sbp_text_add(out, "            "), add_bash_names(out, command);
    sbp_text_add(out,
                 "            esac\n        fi\n        ;;\n    esac\n"
                 "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                 "    if [ \"$files\" ]; then\n"
                 "        local IFS=$'\\n'\n"
                 "        compopt -o filenames 2> /dev/null\n"
                 "        COMPREPLY+=($(compgen -f -- \"$current\"))\n"
                 "    fi\n}\ncomplete -F _%s %s\n",
                 program, program);
}

/* ---- zsh -------------------------------------------------------------------------------------------- */

static void add_zsh_option(sbp_text *out, const char *program, const sbp_option *option) {
    option_takes takes = takes_of(out->arena, option);
    sbp_text_add(out, "        '%s--%s%s[", option->kind == SBP_OPTION_LIST ? "*" : "", option->name,
                 takes.nothing ? "" : "=");
    add_short_help(out, option, "[]:\\");
    sbp_text_add(out, "]");
    if (takes.nothing) {
        sbp_text_add(out, "'\n");
        return;
    }
    sbp_text_add(out, "%svalue:", takes.maybe_nothing ? "::" : ":");
    if (takes.files && *takes.words)
        sbp_text_add(out, " _%s_either %s", program, takes.words);
    else if (takes.files)
        sbp_text_add(out, "_files");
    else if (*takes.words)
        sbp_text_add(out, "(%s)", takes.words);
    sbp_text_add(out, "'\n");
}

static void add_zsh_command(sbp_text *out, const option_command *command) {
    const sbp_option *option;
    sbp_text_add(out, "    (%s)\n", *command->command ? command->command : "*");
    if (*command->command)
        sbp_text_add(out, "        shift words\n        (( CURRENT-- ))\n");
    sbp_text_add(out, "        options=(\n");
    for (int32_t at = 0; (option = next_option(command->phases, &at));)
        add_zsh_option(out, command->program, option);
    sbp_text_add(out, "        )\n        ;;\n");
}

static void print_zsh(sbp_text *out, const char *program) {
    const option_command *command;
    add_head(out, sbp_arena_printf(out->arena, "#compdef %s\n", program), program,
             sbp_arena_printf(out->arena, "share/zsh/site-functions/_%s", program));
    sbp_text_add(out,
                 "_%s_either() {\n    _alternative \"words:word:($*)\" 'files:file:_files'\n}\n"
                 "_%s() {\n    local -a options\n"
                 "    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
                 "        _%s_either %s\n        return\n    fi\n    case $words[2] in\n",
                 program, program, program, names_of(out->arena, program, " "));
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++)
        if (*command->command)
            add_zsh_command(out, command);
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++)
        if (!*command->command)
            add_zsh_command(out, command);
    sbp_text_add(out, "    esac\n    _arguments $options '*:file:_files'\n}\n_%s \"$@\"\n", program);
}

/* ---- fish ------------------------------------------------------------------------------------------- */

static void add_fish_option(sbp_text *out, const option_command *command, const sbp_option *option) {
    option_takes takes = takes_of(out->arena, option);
    sbp_text_add(out, "complete -c %s -n '__%s_is \"%s\"' -l %s", command->program, command->program,
                 command->command, option->name);
    if (option->letter)
        sbp_text_add(out, " -s %c", option->letter);
    if (!takes.nothing && !takes.maybe_nothing)
        sbp_text_add(out, takes.files ? " -r -F" : " -x");
    if (*takes.words && !takes.nothing)
        sbp_text_add(out, " -a '%s'", takes.words);
    sbp_text_add(out, " -d '");
    add_short_help(out, option, "\\");
    sbp_text_add(out, "'\n");
}

static void print_fish(sbp_text *out, const char *program) {
    const option_command *command;
    const sbp_option *option;
    add_head(out, "", program,
             sbp_arena_printf(out->arena, "share/fish/vendor_completions.d/%s.fish", program));
    sbp_text_add(out,
                 "function __%s_is\n    set -l words (commandline -opc)\n    set -l command ''\n"
                 "    if contains -- \"$words[2]\" %s\n        set command $words[2]\n    end\n"
                 "    test \"$command\" = \"$argv[1]\"\nend\n"
                 "complete -c %s -n 'test (count (commandline -opc)) = 1' -a '%s'\n",
                 program, names_of(out->arena, program, " "), program, names_of(out->arena, program, " "));
    for (int32_t i = 0; (command = sbp_option_command_at(program, i)); i++)
        for (int32_t at = 0; (option = next_option(command->phases, &at));)
            add_fish_option(out, command, option);
}

/* ---- all pages -------------------------------------------------------------------------------------- */

void sbp_options_print_page(sbp_text *out, sbp_page page, const char *program) {
    switch (page) {
    case SBP_PAGE_MAN:
        sbp_options_print_man(out, program);
        break;
    case SBP_PAGE_BASH:
        print_bash(out, program);
        break;
    case SBP_PAGE_ZSH:
        print_zsh(out, program);
        break;
    case SBP_PAGE_FISH:
        print_fish(out, program);
        break;
    }
}
