/* Rotary types whose frequencies go by the longest document of a step: where a plan allows lengths on both
 * sides, a note and the card of the result say so, and the settings that they name take one for all. */
#include "tests/cli/cli_testing.h"

#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)
#define LONGROPE "tests/golden/llama_rope_longrope_long/model" /* 24 tokens, stretched to 96 */
#define DYNAMIC "tests/golden/llama_rope_dynamic/model"        /* 24 tokens, factor 2 */
#define RULE "those of its longest document"

static void dump(io_fixture *f, const char *model, const char *settings, const char *rows, const char *to) {
    cli_ok(f, TEXT("$C compile %s -o $D/p --dtype fp64 --seq-len 64 --optimizer none %s && $R $D/p --data "
                   "$D/%s.jsonl --batch-size 4 --dump-gradients $D/%s",
                   model, settings, rows, to));
}

/* What the note says behind `before`, up to a blank or the end. */
static const char *setting(io_fixture *f, const char *note, const char *before) {
    const char *at = strstr(note, before);
    if (!at)
        fail_msg("no '%s' in: %s", before, note);
    return sbp_arena_strndup(f->arena, at + strlen(before), strcspn(at + strlen(before), " \n"));
}

static void compare(io_fixture *f, const char *what, const char *a, const char *b) {
    cli_compare(f, what, sbp_arena_strdup(f->arena, io_path(f, a)), sbp_arena_strdup(f->arena, io_path(f, b)),
                sbp_tolerance(SBP_F64));
}

static void put_rows(io_fixture *f) {
    static const char few[] = "{\"input_ids\": [3, 9, 1, 20, 14, 7, 7, 2, 11, 22, 5]}\n";
    const char *many = "{\"input_ids\": [3";
    for (int i = 1; i < 48; i++)
        many = TEXT("%s, %d", many, i * 7 % 23);
    cli_put(f, "short.jsonl", few);
    cli_put(f, "long.jsonl", TEXT("%s]}\n", many));
    cli_put(f, "both.jsonl", TEXT("%s%s]}\n", few, many));
}

static const char *note_of(io_fixture *f, const char *model, int length) {
    cli_ok(f, TEXT("$C compile %s -o $D/p --seq-len %d", model, length));
    return cli_unfolded(f, "err");
}

static void test_longrope(void **state) {
    io_fixture *f = *state;
    put_rows(f);
    assert_null(strstr(note_of(f, LONGROPE, 24), RULE));
    const char *note = sbp_arena_strdup(f->arena, note_of(f, LONGROPE, 64));
    assert_non_null(strstr(note, RULE));
    const char *factor = setting(f, note, "always: --set "),
               *length = setting(f, note, " --set rope_parameters.original");
    const char *both = TEXT("--set %s --set rope_parameters.original%s", factor, length);
    /* the long ones for a short row: as if both lists were the long one */
    dump(f, LONGROPE, both, "short", "forced");
    dump(f, LONGROPE, "--set rope_parameters.short_factor=[1.0,1.3,1.9,2.7,3.4,4.0]", "short", "want");
    compare(f, "long_factor for a short row", "forced", "want");
    dump(f, LONGROPE, "", "short", "free");
    assert_int_equal(cli(f, "cmp -s $D/free $D/forced"), 1);
    /* and the short ones for a long row */
    dump(f, LONGROPE,
         TEXT("--set %s --set rope_parameters.original_max_position_embeddings=1000000000", factor), "long",
         "forced");
    dump(f, LONGROPE, "--set rope_parameters.long_factor=[1.0,1.0,1.1,1.2,1.4,1.5]", "long", "want");
    compare(f, "short_factor for a long row", "forced", "want");
}

static void test_dynamic(void **state) {
    io_fixture *f = *state;
    put_rows(f);
    assert_null(strstr(note_of(f, DYNAMIC, 24), RULE));
    const char *note = sbp_arena_strdup(f->arena, note_of(f, DYNAMIC, 64));
    assert_non_null(strstr(note, RULE));
    assert_non_null(strstr(note, "for those of 48 tokens"));
    const char *theta = setting(f, note, "with it --set ");
    dump(f, DYNAMIC, TEXT("--set 'rope_parameters.rope_type=\"default\"' --set %s", theta), "long", "forced");
    dump(f, DYNAMIC, "", "long", "want");
    compare(f, "a row of 48 tokens", "forced", "want");
    /* for a short row, too, they are those then */
    dump(f, DYNAMIC, TEXT("--set 'rope_parameters.rope_type=\"default\"' --set %s", theta), "both", "forced");
    dump(f, DYNAMIC, "", "both", "want");
    compare(f, "beside a row of 48 tokens", "forced", "want");
}

static void test_card(void **state) {
    io_fixture *f = *state;
    put_rows(f);
    cli_ok(f, "$R " LONGROPE " --data $D/both.jsonl --seq-len 64 --steps 1 --out $D/new --quiet");
    assert_non_null(
        strstr(cli_text(f, "new/README.md"), "The longest document of the data has 48 tokens, above the 24"));
    assert_non_null(strstr(cli_text(f, "new/README.md"), RULE));
    cli_ok(f, "$R $G/llama_mqa/model --data $D/both.jsonl --seq-len 64 --steps 1 --out $D/plain --quiet");
    assert_null(strstr(cli_text(f, "plain/README.md"), RULE));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_longrope, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_dynamic, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_card, cli_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
