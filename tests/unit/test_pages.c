/* What is installed beside the programs: manual pages and completions have every option, with its values, and
 * shells take them. */
#include "tests/unit/io_testing.h"

#include "runtime/options/options.h"

static const char *print(io_fixture *f, sbp_page page, const char *program) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    sbp_options_print_page(&text, page, program);
    return text.data;
}

/* The phases whose options a program takes. */
static unsigned phases_of(const char *program) {
    return strcmp(program, "sbpc") == 0
               ? SBP_PHASE_COMPILE | SBP_PHASE_INSPECT
               : SBP_PHASE_COMPILE | SBP_PHASE_RUN | SBP_PHASE_TOKENIZE | SBP_PHASE_DOCTOR;
}

/* How a page writes an option; roff escapes each '-'. */
static const char *in_page(io_fixture *f, sbp_page page, const sbp_option *o) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    if (page == SBP_PAGE_FISH) {
        sbp_text_add(&text, " -l %s ", o->name);
        return text.data;
    }
    if (page != SBP_PAGE_MAN) {
        sbp_text_add(&text, page == SBP_PAGE_ZSH ? "--%s%s[" : "--%s%s", o->name,
                     page == SBP_PAGE_ZSH && (o->kind != SBP_OPTION_SWITCH || strcmp(o->name, "help") == 0)
                         ? "="
                         : "");
        return text.data;
    }
    sbp_text_add(&text, "\\fB\\-\\-");
    for (const char *c = o->name; *c; c++)
        sbp_text_add(&text, *c == '-' ? "\\-" : "%c", *c);
    sbp_text_add(&text, "\\fR");
    return text.data;
}

static void test_every_option_is_in_every_page(void **state) {
    io_fixture *f = *state;
    const char *program;
    int seen = 0;
    for (int32_t p = 0; (program = sbp_options_program_at(p)); p++)
        for (int page = SBP_PAGE_MAN; page <= SBP_PAGE_FISH; page++) {
            const char *text = print(f, (sbp_page)page, program);
            if (page != SBP_PAGE_MAN && !strstr(text, "auto cpu cuda vulkan"))
                fail_msg("page %d of %s: the words of --backend are not all", page, program);
            assert_null(strstr(text, "vulkan null")); /* words that are taken, and not shown */
            for (int32_t i = 0; i < sbp_option_count(); i++) {
                const sbp_option *o = sbp_option_at(i);
                if (!(o->phases & phases_of(program)))
                    continue;
                bool there = strstr(text, in_page(f, (sbp_page)page, o)) != NULL;
                bool man = page == SBP_PAGE_MAN && o->state == SBP_OPTION_HIDDEN;
                if (there != (o->state == SBP_OPTION_BUILT || man))
                    fail_msg("page %d of %s: --%s is %s", page, program, o->name,
                             there ? "there" : "missing");
                seen += there;
            }
        }
    assert_true(seen > 500);
}

/* In a manual page no line is a request by accident, none is empty, each font ends. */
static void test_manual_pages_are_sound(void **state) {
    io_fixture *f = *state;
    static const char *const requests[] = {".\\\"", ".TH", ".SH", ".SS", ".TP", ".nf", ".fi"};
    const char *program;
    for (int32_t p = 0; (program = sbp_options_program_at(p)); p++) {
        const char *text = print(f, SBP_PAGE_MAN, program);
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
            bool known = line[0] != '.' && line[0] != '\'';
            for (int i = 0; i < SBP_COUNT(requests); i++)
                known |= strncmp(line, requests[i], strlen(requests[i])) == 0;
            if (!known)
                fail_msg("%s.1 has the line '%.*s'", program, (int)strcspn(line, "\n"), line);
            int fonts = 0;
            for (const char *c = line; *c && *c != '\n'; c++)
                fonts += strncmp(c, "\\fB", 3) == 0 || strncmp(c, "\\fI", 3) == 0 ? 1
                         : strncmp(c, "\\fR", 3) == 0                             ? -1
                                                                                  : 0;
            if (fonts != 0)
                fail_msg("%s.1: a font does not end in '%.*s'", program, (int)strcspn(line, "\n"), line);
        }
        assert_non_null(strstr(text, "\n.SH EXIT STATUS\n"));
        assert_non_null(strstr(text, "\\(ti/.cache")); /* a tilde stays one */
    }
    assert_non_null(strstr(print(f, SBP_PAGE_MAN, "sbprun"), "\\fB\\-q\\fR, \\fB\\-\\-quiet\\fR"));
    assert_non_null(
        strstr(print(f, SBP_PAGE_MAN, "sbprun"), "\\fB\\-\\-lr\\fR \\fIX\\fR\nlearning rate (2e\\-5)"));
    assert_non_null(
        strstr(print(f, SBP_PAGE_MAN, "sbprun"), "[TRL: num_iterations, num_ppo_epochs, ppo_epochs]"));
}

/* An option of zsh is 'NAME[help]', or 'NAME=[help]:value:WHAT'; two colons where the value may be left
 * out. */
static void test_options_of_zsh(void **state) {
    io_fixture *f = *state;
    const char *program;
    int seen = 0;
    for (int32_t p = 0; (program = sbp_options_program_at(p)); p++)
        for (const char *line = print(f, SBP_PAGE_ZSH, program); *line; line += strcspn(line, "\n") + 1) {
            const char *text = line + strspn(line, " "), *end = line + strcspn(line, "\n"), *help = text;
            if (strncmp(text, "'--", 3) != 0 && strncmp(text, "'*--", 4) != 0)
                continue;
            while (help < end && (*help != ']' || help[-1] == '\\'))
                help++;
            bool value = memchr(text, '=', strcspn(text, "[")) != NULL;
            if (value ? strncmp(help, "]:value:", 8) != 0 && strncmp(help, "]::value:", 9) != 0
                      : strncmp(help, "]'\n", 3) != 0)
                fail_msg("%s: '%.*s'", program, (int)(end - text), text);
            seen++;
        }
    assert_true(seen > 200);
}

/* What bash answers: words of a command line as COMP_WORDS has them, the last one being completed. */
static void complete(io_fixture *f, const char *program, const char *words, const char *expected) {
    char line[400] = "", command[400];
    const char *path = io_path(f, "completion");
    const char *text = print(f, SBP_PAGE_BASH, program);
    assert_ok(f, sbp_file_write(f->diag, path, text, strlen(text)));
    snprintf(
        command, sizeof command,
        "bash -c 'set -eu; . %s; COMP_WORDS=(%s %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _%s || true; "
        "echo \"${COMPREPLY[@]}\"' 2>&1",
        path, program, words, program);
    FILE *answer = popen(command, "r");
    assert_non_null(answer);
    if (!fgets(line, sizeof line, answer))
        line[0] = '\0';
    assert_int_equal(pclose(answer), 0);
    line[strcspn(line, "\n")] = '\0';
    assert_string_equal(line, expected);
}

static void test_bash_completes(void **state) {
    io_fixture *f = *state;
    complete(f, "sbprun", "--dty", "--dtype");
    complete(f, "sbprun", "m --dtype b", "bf16");
    complete(f, "sbprun", "m --dtype = b", "bf16");
    complete(f, "sbprun", "m --dtype =", "fp32 bf16 fp64");
    complete(f, "sbprun", "m --optimizer adam", "adamw");
    complete(f, "sbprun", "m --lr 2", "");
    complete(f, "sbprun", "tok", "tokenize");
    complete(f, "sbprun", "tokenize m --dec", "--decode");
    complete(f, "sbprun", "m --deter", "--deterministic");
    complete(f, "sbprun", "m --loss epsilon", "epsilon= epsilon_high=");
    complete(f, "sbprun", "m --config runtime/opt", "runtime/options");
    complete(f, "sbprun", "m --help lor", "lora");
    complete(f, "sbpc", "compile m --lora rs", "rslora=");
    complete(f, "sbpc", "inspect m --sv", "--svg");
    complete(f, "sbpc", "compile m --sv", "");
}

/* The shells that are here read what is for them without a word. */
static void test_shells_take_them(void **state) {
    static const struct shell {
        sbp_page page;
        const char *name;
    } shells[] = {{SBP_PAGE_BASH, "bash"}, {SBP_PAGE_ZSH, "zsh"}, {SBP_PAGE_FISH, "fish"}};
    io_fixture *f = *state;
    const char *program;
    for (int32_t p = 0; (program = sbp_options_program_at(p)); p++)
        for (int i = 0; i < SBP_COUNT(shells); i++) {
            char command[300];
            const char *path = io_path(f, "completion"), *text = print(f, shells[i].page, program);
            assert_ok(f, sbp_file_write(f->diag, path, text, strlen(text)));
            snprintf(command, sizeof command,
                     "command -v %s > /dev/null || exit 0; test -z \"$(%s -n %s 2>&1)\"", shells[i].name,
                     shells[i].name, path);
            if (system(command) != 0)
                fail_msg("%s does not read the completion of %s", shells[i].name, program);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_option_is_in_every_page, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_manual_pages_are_sound, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_options_of_zsh, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_bash_completes, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_shells_take_them, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
