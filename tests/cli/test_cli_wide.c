/* Gradients of wide models (tests/golden/wide): a few cases of every family at widths that people use, long
 * in one or two directions and thin in the others, against transformers in float64. What changes its way of
 * computing by size is met here: cases of tests/golden are at most 137 wide.
 *
 *     test_cli_wide            the cpu, every case
 *     test_cli_wide isa        some cases, for each instruction set
 *     test_cli_wide vulkan     some cases, in fp32 and in chunks; with SBP_TEST_ALL=1 all
 *     test_cli_wide cuda       likewise */
#include "tests/cli/cli_testing.h"
#include "tests/common/wide.h"

#include <dirent.h>

#define FOLDER "tests/golden/wide"
#define OTHERS "../shared/golden_wide"
#define TEXT(...) sbp_arena_printf(f->arena, __VA_ARGS__)

/* In options, @ and what follows it is a part of all rows: @3 a third of them, and one more. */
typedef struct setting {
    const char *name, *compile;
    sbp_dtype dtype;
} setting;

/* By default a case has one of the former, every second one of the latter, the next case the next ones. */
static const setting of_fp64[] = {
    {"chunks", "--chunk @3 --head-chunk @2", SBP_F64},
    {"g 2, k 2", "--chunk @2 --segment 2 --checkpoint-every 2 --head-chunk @5", SBP_F64},
    {"as planned", "", SBP_F64},
    {"saved", "--chunk @2 --save @attention --offload host", SBP_F64},
};
static const setting of_fp32[] = {
    {"fp32, standard", "--backward standard", SBP_F32},
    {"fp32, chunks", "--chunk @4 --head-chunk @3", SBP_F32},
    {"fp32, as planned", "", SBP_F32},
    {"fp32, checkpoint", "--backward checkpoint", SBP_F32},
};

/* One of each kind of layer: on every instruction set. */
static const char *const structures[] = {"qwen3_hidden_4100", "gemma4_experts_1040", "qwen3_next_mlp_1100",
                                         "granite_hybrid_experts_1040", "llama_mlp_4100"};

/* On a software driver, which takes seconds for a million parameters, and on the PTX machine. */
static const char *const on_devices[] = {"llama_vocab_70001", "llama_mlp_4100", "qwen3_hidden_4100",
                                         "mixtral_1100", "gpt_oss_experts_320"};

static const char *backend = "cpu";
static int runs, wrong;
static double worst[2]; /* fp64, fp32 */

static int64_t rows_of(io_fixture *f, const char *path, int *documents) {
    const char *text;
    size_t length;
    int64_t rows = 0;
    *documents = 0;
    assert_ok(f, sbp_file_read(f->arena, f->diag, TEXT("%s/train.jsonl", path), &text, &length));
    char *copy = sbp_arena_strdup(f->arena, text);
    for (char *line = strtok(copy, "\n"); line; line = strtok(NULL, "\n")) {
        const sbp_json *root, *ids;
        assert_ok(f, sbp_json_parse(f->arena, f->diag, path, line, strlen(line), 0, &root));
        assert_ok(f, sbp_json_get_array(f->diag, root, "input_ids", SBP_JSON_REQUIRED, &ids));
        rows += ids->count;
        ++*documents;
    }
    return rows;
}

/* Options with parts of all rows as numbers. */
static const char *with_rows(io_fixture *f, const char *options, int64_t rows) {
    sbp_text text;
    sbp_text_init(&text, f->arena);
    for (const char *c = options; *c; c++)
        if (c[0] == '@' && c[1] >= '1' && c[1] <= '9')
            sbp_text_add(&text, "%d", (int)(rows / (*++c - '0') + 1));
        else
            sbp_text_add_n(&text, c, 1);
    return text.data;
}

/* In fp32, as in test_cli_golden, three times what transformers itself is off there, where that is more. */
static double tolerance_of(io_fixture *f, const char *path, sbp_dtype dtype) {
    const sbp_json *expect;
    if (dtype == SBP_F64)
        return SBP_TOLERANCE_F64;
    assert_ok(f, sbp_json_read(f->arena, f->diag, TEXT("%s/expect.json", path), 0, &expect));
    const sbp_json *theirs = sbp_json_member(expect, "hf_float32");
    return theirs ? fmax(SBP_TOLERANCE_F32,
                         SBP_TIMES_TRANSFORMERS_F32 * cli_number(f, theirs, "max_relative_error"))
                  : SBP_TOLERANCE_DEEP_F32;
}

static void run_case(io_fixture *f, const char *path, const setting *s) {
    int documents;
    int64_t rows = rows_of(f, path, &documents);
    const char *tensor;
    cli_ok(f, TEXT("$C compile $D/model -o $D/p --backend %s --dtype %s --seq-len %d %s",
                   strcmp(backend, "cuda") == 0 ? "cuda --arch sm_90a" : backend,
                   s->dtype == SBP_F64 ? "fp64" : "fp32", (int)rows, with_rows(f, s->compile, rows)));
    cli_ok(f, TEXT("$R $D/p --data %s/train.jsonl --batch-size %d --dump-gradients $D/g.safetensors", path,
                   documents));
    double error = wide_compare(f, path, io_path(f, "g.safetensors"), &tensor),
           allowed = tolerance_of(f, path, s->dtype);
    print_message("%s (%s): off by %.2g, at most %.2g (%s)%s\n", path, s->name, error, allowed, tensor,
                  error <= allowed ? "" : ": WRONG");
    wrong += !(error <= allowed);
    worst[s->dtype == SBP_F32] = fmax(worst[s->dtype == SBP_F32], error);
    runs++;
}

static void make_model(io_fixture *f, const char *path) {
    cli_ok(f, "rm -rf $D/model");
    wide_write_model(f, path, sbp_arena_strdup(f->arena, io_path(f, "model")));
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The cases of a folder, sorted. */
static const char **cases_of(io_fixture *f, const char *folder, int *count) {
    const char **names = NULL;
    int32_t n = 0, capacity = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && sbp_file_exists(TEXT("%s/%s/expect.json", folder, entry->d_name)) &&
            testing_wants(entry->d_name))
            SBP_PUSH(f->arena, names, n, capacity, sbp_arena_strdup(f->arena, entry->d_name));
    closedir(dir);
    qsort(names, (size_t)n, sizeof *names, compare_names);
    *count = n;
    return names;
}

static void report(int cases) {
    print_message("%d cases, %d runs; worst error in fp64 %.2g, in fp32 %.2g\n", cases, runs, worst[0],
                  worst[1]);
    if (wrong > 0)
        fail_msg("%d of %d runs are wrong", wrong, runs);
}

static void run_folder(io_fixture *f, const char *folder) {
    int count;
    const char **names = cases_of(f, folder, &count);
    for (int i = 0; i < count; i++) {
        const char *path = TEXT("%s/%s", folder, names[i]);
        make_model(f, path);
        for (int s = 0; s < SBP_COUNT(of_fp64); s++) {
            if (testing_all() || s == i % SBP_COUNT(of_fp64))
                run_case(f, path, &of_fp64[s]);
            if (testing_all() || (i % 2 == 0 && s == i / 2 % SBP_COUNT(of_fp32)))
                run_case(f, path, &of_fp32[s]);
        }
    }
    report(count);
    assert_true(count > 0);
}

static void test_every_case(void **state) {
    run_folder(*state, FOLDER);
}

/* Cases that somebody else made, where they are beside the sources. */
static void test_cases_of_others(void **state) {
    if (!testing_all())
        skip();
    if (!sbp_file_exists(OTHERS "/README.md")) {
        print_message("skipped: wide cases of %s: it is missing\n", OTHERS);
        skip();
    }
    run_folder(*state, OTHERS);
}

/* The chunks that the planner chooses: as many rows as the target likes; more, where memory is no matter;
 * fewer, where it has what chunks of 128 rows take and a little. */
static void test_chosen_chunks(void **state) {
    io_fixture *f = *state;
    static const char path[] = FOLDER "/llama_rows_2600";
    make_model(f, path);
    cli_ok(f, "$C compile $D/model -o $D/p --backend cpu --dtype fp32 --seq-len 2600 --chunk 128 "
              "--head-chunk 128 --json");
    const sbp_json *peak = sbp_json_member(cli_json(f, "out"), "peak_bytes");
    const char *little = TEXT("--memory %.3fMiB", cli_number(f, peak, "device") / (1 << 20) + 0.1);
    const setting settings[] = {{"as liked", "", SBP_F32},
                                {"with room", "--memory 1GiB", SBP_F32},
                                {"with little room", little, SBP_F32}};
    for (int i = 0; i < SBP_COUNT(settings); i++)
        run_case(f, path, &settings[i]);
    report(1);
}

static void run_list(io_fixture *f, const char *const *names, int count, const setting *list, int settings) {
    for (int i = 0; i < count; i++) {
        const char *path = TEXT(FOLDER "/%s", names[i]);
        make_model(f, path);
        for (int s = 0; s < settings; s++)
            if (testing_all() || s == i % settings)
                run_case(f, path, &list[s]);
    }
    report(count);
}

static void test_instruction_sets(void **state) {
    if (!cli_has_isa(*state, "wide models"))
        return;
    run_list(*state, structures, SBP_COUNT(structures), of_fp32, SBP_COUNT(of_fp32));
}

static void test_device(void **state) {
    io_fixture *f = *state;
    const char *const *names = on_devices;
    int count = SBP_COUNT(on_devices);
    if (!cli_has_device(f, backend, "wide models"))
        skip();
    if (testing_all())
        names = cases_of(f, FOLDER, &count);
    run_list(f, names, count, &of_fp32[1], 1);
}

/* A summary notices an element that is off, in a tensor of a million: by its projections where the element is
 * none that it has, and numbers that are none. */
static void test_the_summary_can_fail(void **state) {
    enum { N = 1000003 };
    static double g[N];
    (void)state;
    for (int64_t i = 0; i < N; i++)
        g[i] = wide_value("noise", i, 0, 1);
    wide_summary truth = wide_summary_of("a", g, N), same = wide_summary_of("a", g, N);
    assert_true(wide_error(&truth, &same) == 0);
    g[12345] += 1;
    wide_summary other = wide_summary_of("a", g, N);
    assert_true(wide_error(&truth, &other) > SBP_TOLERANCE_DEEP_F32);
    g[12345] = NAN;
    other = wide_summary_of("a", g, N);
    assert_true(wide_error(&truth, &other) > 1);
}

int main(int argc, char **argv) {
    const struct CMUnitTest cpu[] = {
        cmocka_unit_test_setup_teardown(test_the_summary_can_fail, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_every_case, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_chosen_chunks, cli_setup, io_teardown),
        cmocka_unit_test_setup_teardown(test_cases_of_others, cli_setup, io_teardown),
    };
    const struct CMUnitTest isa[] = {
        cmocka_unit_test_setup_teardown(test_instruction_sets, cli_setup, io_teardown)};
    const struct CMUnitTest device[] = {cmocka_unit_test_setup_teardown(test_device, cli_setup, io_teardown)};
    if (argc > 1 && strcmp(argv[1], "isa") == 0)
        return cmocka_run_group_tests(isa, NULL, NULL);
    backend = argc > 1 ? argv[1] : backend;
    return argc > 1 ? cmocka_run_group_tests(device, NULL, NULL) : cmocka_run_group_tests(cpu, NULL, NULL);
}
