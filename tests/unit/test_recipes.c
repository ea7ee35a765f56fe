/* Every command and file of options in TRL's documentation and scripts, alignment-handbook and open-r1
 * (tests/data/trl/recipes.json: sources, names and values): what each becomes here. The table is
 * tests/data/trl/recipes.md (SBP_UPDATE_GOLDENS=1 writes it); no name's meaning changes without a word. */
#include "tests/unit/options_testing.h"

#define RECIPES "tests/data/trl/recipes.json"
#define TABLE "tests/data/trl/recipes.md"

enum { MOST_ARGUMENTS = 120 };

typedef struct outcome_counts {
    int runs, notes, refused;
} outcome_counts;

/* One line of all that was said, without what names a file of this test. */
static const char *said(io_fixture *f, sbp_severity severity) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    const char *text = sbp_diag_text(f->diag, severity), *path = io_path(f, "recipe.yaml");
    for (const char *c = text; *c;) {
        if (strncmp(c, path, strlen(path)) == 0) {
            c += strlen(path);
            c += *c == ':' ? 1 + strspn(c + 1, "0123456789") : 0;
            c += strspn(c, ": ");
        } else if (strncmp(c, "error: ", 7) == 0 || strncmp(c, "note: ", 6) == 0) {
            c += *c == 'e' ? 7 : 6;
        } else if (strncmp(c, "sbprun: ", 8) == 0) {
            c += 8;
        } else {
            sbp_text_add(&out, *c == '\n' ? (c[1] ? "; " : "") : *c == '|' ? "\\|" : "%c", *c);
            c++;
        }
    }
    return out.length ? out.data : "";
}

static void add_outcome(io_fixture *f, const sbp_json *recipe, sbp_text *table, outcome_counts *counts) {
    const sbp_json *arguments = sbp_json_member(recipe, "arguments"),
                   *config = sbp_json_member(recipe, "config");
    const char *verb = sbp_json_member(recipe, "verb")->string, *path = io_path(f, "recipe.yaml");
    char *argv[MOST_ARGUMENTS] = {sbp_arena_strdup(f->arena, verb)}, **args = argv;
    int argc = 1;
    for (int64_t i = 0; arguments && i < arguments->count && argc < MOST_ARGUMENTS; i++)
        argv[argc++] = sbp_arena_strdup(f->arena, arguments->items[i].string);
    if (config) {
        sbp_text text;
        sbp_text_init(&text, f->arena);
        sbp_text_add(&text, "# YAML, of which JSON is a part\n");
        sbp_json_add_value(&text, config);
        io_put(path, text.data, text.length);
        argv[argc++] = sbp_arena_strdup(f->arena, "--config");
        argv[argc++] = sbp_arena_strdup(f->arena, path);
    }
    sbp_options *o;
    char *const *begin = args;
    sbp_diag_clear(f->diag);
    sbp_status status = sbp_options_begin_command(f->arena, f->diag, &argc, &begin);
    if (status == SBP_OK)
        status = sbp_options_parse(f->arena, f->diag, "sbprun", SBP_PHASE_RUN | SBP_PHASE_COMPILE, argc,
                                   begin, &o);
    if (status == SBP_OK)
        status = sbp_options_settle_batch(o, f->diag, 1);
    assert_true(status == SBP_OK || status == SBP_USAGE);
    const char *notes = said(f, SBP_NOTE), *errors = said(f, SBP_ERROR);
    if (status != SBP_OK)
        counts->refused++;
    else if (*notes)
        counts->notes++;
    else
        counts->runs++;
    assert_true((status == SBP_OK) == !*errors);
    sbp_text_add(table, "| %s | %s | %s%s%s |\n",
                 sbp_json_member(recipe, "source")->string + strlen("huggingface/"), verb,
                 status == SBP_OK ? "taken" : "refused: ", status == SBP_OK && *notes ? "; " : "",
                 status == SBP_OK ? notes : errors);
}

static void test_what_becomes_of_each(void **state) {
    io_fixture *f = *state;
    const sbp_json *root;
    sbp_text table, all;
    outcome_counts counts = {0};
    const char *golden = "";
    size_t length = 0;
    sbp_text_init(&table, f->arena);
    sbp_text_init(&all, f->arena);
    assert_ok(f, sbp_json_read(f->arena, f->diag, RECIPES, 0, &root));
    const sbp_json *recipes = sbp_json_member(root, "recipes");
    for (int64_t i = 0; i < recipes->count; i++)
        add_outcome(f, &recipes->items[i], &table, &counts);
    sbp_text_add(&all,
                 "# What becomes of recipes of others\n\nMade by tests/unit/test_recipes.c of recipes.json. "
                 "Of %d, %d are "
                 "taken as they are, %d with notes, %d are refused.\n\n| of huggingface | command | here "
                 "|\n|---|---|---|\n%s",
                 (int)recipes->count, counts.runs, counts.notes, counts.refused, table.data);
    if (getenv("SBP_UPDATE_GOLDENS"))
        io_put(TABLE, all.data, all.length);
    assert_ok(f, sbp_file_read(f->arena, f->diag, TABLE, &golden, &length));
    if (strcmp(golden, all.data) != 0)
        fail_msg("%s is out of date: run with SBP_UPDATE_GOLDENS=1 and read what changed", TABLE);
    assert_true(recipes->count > 150 && counts.runs + counts.notes > 95);
    sbp_diag_clear(f->diag);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_becomes_of_each, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
