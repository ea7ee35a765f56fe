/* PTX that Triton made, run by ptxrun: test_ptx_triton FOLDER [MUTANTS]
 *
 * FOLDER holds a case (README.md). Its kernel must end without a report and give what is wanted (one whose
 * case names a "twin" is damaged and must be reported); and each of its mutants, lines of the file MUTANTS
 * that begin with the folder's name, must be reported, or give what is not wanted, as its line says. With
 * SBP_TEST_ALL=1 under more seeds. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/common/sweep.h"
#include "tests/ptx/tensor/formats.h"

static char folder[PATH_MAX], scratch[] = "/tmp/sbp_triton_XXXXXX";
static const char *case_name, *mutants_file;

enum { NOT_WANTED = 100 }; // beside ptxrun's exit statuses 0, 1, 2

// ---- files ------------------------------------------------------------------------------------------------

// A whole file with a NUL behind it; NULL where there is none. The caller frees it.
static char *read_file(const char *in, const char *name, size_t *bytes) {
    char path[PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/%s", in, name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        return NULL;
    }
    char *text = NULL;
    size_t room = 0, used = 0, got = 0;
    do {
        used += got;
        room = 2 * room + 65536;
        text = realloc(text, room + 1);
        assert_non_null(text);
    } while ((got = fread(text + used, 1, room - used, file)) > 0);
    fclose(file);
    text[used] = '\0';
    *bytes = used;
    return text;
}

static json_t *read_json(const char *name) {
    size_t bytes;
    char *text = read_file(folder, name, &bytes);
    assert_non_null(text);
    json_t *json = json_loads(text, 0, NULL);
    free(text);
    assert_non_null(json);
    return json;
}

// ---- running ----------------------------------------------------------------------------------------------

// ptxrun's exit status; 128 + signal; what it says goes to scratch/said.
static int run_ptx(const char *case_file, int seed) {
    char seed_text[16], said[PATH_MAX];
    snprintf(seed_text, sizeof seed_text, "%d", seed);
    snprintf(said, sizeof said, "%s/said", scratch);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int out = open(said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(out, 2);
        alarm(testing_all() ? 2400 : 600);
        execl(SBP_PTXRUN, "ptxrun", case_file, "--out", scratch, seed > 0 ? "--seed" : NULL, seed_text,
              (char *)NULL);
        _exit(127);
    }
    int status;
    while (waitpid(child, &status, 0) < 0) {
        assert_int_equal(errno, EINTR);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The first line that ptxrun said.
static const char *said(void) {
    static char line[400];
    size_t bytes;
    char *text = read_file(scratch, "said", &bytes);
    snprintf(line, sizeof line, "%.*s", text ? (int)strcspn(text, "\n") : 0, text ? text : "");
    free(text);
    return line;
}

static sbp_ptx_type type_of(const char *name, size_t *bytes) {
    *bytes = strcmp(name, "f32") == 0 || strcmp(name, "i32") == 0 ? 4 : 2;
    return strcmp(name, "f32") == 0    ? SBP_PTX_F32
           : strcmp(name, "i32") == 0  ? SBP_PTX_S32
           : strcmp(name, "bf16") == 0 ? SBP_PTX_BF16
                                       : SBP_PTX_F16;
}

/* Norm of the difference over norm of what is wanted, of a whole output; infinity where it is missing or has
 * a NaN. */
static double error_of(const char *out, const char *name, const char *dtype, const float *want,
                       size_t count) {
    char file[256];
    size_t element, bytes = 0;
    const sbp_ptx_type type = type_of(dtype, &element);
    snprintf(file, sizeof file, "%s.bin", name);
    char *got = read_file(out, file, &bytes);
    double difference = 0, size = 0;
    for (size_t i = 0; i < count && bytes == count * element; i++) {
        uint32_t bits = 0;
        memcpy(&bits, got + i * element, element);
        const double value = sbp_ptx_value(type, bits);
        difference += (value - want[i]) * (value - want[i]);
        size += (double)want[i] * want[i];
    }
    free(got);
    return bytes != count * element || isnan(difference) ? (double)INFINITY
                                                         : sqrt(difference / (size > 0 ? size : 1));
}

// Whether all outputs in `out` are within expect.json's errors; the worst share of what is allowed.
static bool is_wanted(const char *out, double *worst) {
    json_t *expect = read_json("expect.json"), *entry;
    const char *name;
    assert_true(json_object_size(expect) > 0);
    bool good = true;
    *worst = 0;
    json_object_foreach(expect, name, entry) {
        char file[256];
        size_t bytes;
        snprintf(file, sizeof file, "want_%s.bin", name);
        char *want = read_file(folder, file, &bytes);
        assert_true(want && bytes >= 4);
        const double allowed = json_real_value(json_object_get(entry, "tol"));
        const double error = error_of(out, name, json_string_value(json_object_get(entry, "dtype")),
                                      (const float *)(void *)want, bytes / 4);
        good = good && error <= allowed;
        *worst = fmax(*worst, allowed > 0 ? error / allowed : error > 0 ? (double)INFINITY : 0);
        free(want);
    }
    json_decref(expect);
    return good;
}

// Outputs of an earlier run would pass for those of this one.
static void forget_outputs(void) {
    json_t *expect = read_json("expect.json"), *entry;
    const char *name;
    json_object_foreach(expect, name, entry) {
        char path[PATH_MAX + 256];
        snprintf(path, sizeof path, "%s/%s.bin", scratch, name);
        unlink(path);
    }
    json_decref(expect);
}

static int judged(const char *case_file, int seed, double *worst) {
    forget_outputs();
    const int status = run_ptx(case_file, seed);
    return status == 0 && !is_wanted(scratch, worst) ? NOT_WANTED : status;
}

// ---- edits ------------------------------------------------------------------------------------------------

// The n-th line of text that contains the pattern, as its start; NULL: there is none.
static char *find_line(char *text, const char *pattern, int n) {
    for (char *line = text; *line;) {
        char *end = line + strcspn(line, "\n"), kept = *end;
        *end = '\0';
        const bool found = strstr(line, pattern) != NULL;
        *end = kept;
        if (found && --n == 0) {
            return line;
        }
        line = kept ? end + 1 : end;
    }
    return NULL;
}

/* Carries out one edit in place (texts only get shorter, or a word longer: the caller has left room):
 *     delete N PATTERN            the N-th line that contains PATTERN, or "all" of them
 *     replace N OLD => NEW        in the N-th line that contains OLD
 * false: nothing there to edit. */
static bool edit(char *text, const char *order) {
    char which[8], pattern[256], replacement[256] = "";
    const bool deletes = sscanf(order, " delete %7s %255[^\n]", which, pattern) == 2;
    if (!deletes && sscanf(order, " replace %7s %255[^\n]", which, pattern) != 2) {
        return false;
    }
    char *arrow = deletes ? NULL : strstr(pattern, " => ");
    if (arrow) {
        snprintf(replacement, sizeof replacement, "%s", arrow + 4);
        *arrow = '\0';
    } else if (!deletes) {
        return false;
    }
    const bool all = strcmp(which, "all") == 0;
    int edits = 0;
    char *line;
    while ((line = find_line(text, pattern, all ? 1 : atoi(which)))) {
        char *from = deletes ? line : strstr(line, pattern);
        char *to = deletes ? line + strcspn(line, "\n") : from + strlen(pattern);
        memmove(from + strlen(replacement), to, strlen(to) + 1);
        memcpy(from, replacement, strlen(replacement));
        edits++;
        if (!all) {
            break;
        }
    }
    return edits > 0;
}

// scratch/mutant: the case with an edited kernel.ptx, its other files by links. `orders`: edits separated by
// " & ".
static void make_mutant(const char *orders, char *out_case_file, size_t room) {
    char path[PATH_MAX + 300], list[1024];
    snprintf(path, sizeof path,
             "rm -rf %s/mutant && mkdir %s/mutant && ln -s %s/* %s/mutant/ && rm %s/mutant/kernel.ptx",
             scratch, scratch, folder, scratch, scratch);
    assert_int_equal(system(path), 0);
    size_t bytes;
    char *text = read_file(folder, "kernel.ptx", &bytes);
    assert_non_null(text);
    text = realloc(text, bytes + 4096);
    assert_non_null(text);
    snprintf(list, sizeof list, "%s", orders);
    for (char *order = list, *next; order; order = next) {
        next = strstr(order, " & ");
        if (next) {
            *next = '\0';
            next += 3;
        }
        if (!edit(text, order)) {
            fail_msg("%s: nothing to edit: %s", case_name, order);
        }
    }
    snprintf(path, sizeof path, "%s/mutant/kernel.ptx", scratch);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    free(text);
    snprintf(out_case_file, room, "%s/mutant/case.json", scratch);
}

// ---- tests ------------------------------------------------------------------------------------------------

static int last_seed(void) {
    return testing_all() ? 6 : 2;
}

static void the_kernel_gives_what_is_wanted(void **state) {
    (void)state;
    char case_file[PATH_MAX + 16];
    snprintf(case_file, sizeof case_file, "%s/case.json", folder);
    for (int seed = 0; seed <= last_seed(); seed += seed ? 1 : 2) { // 0: the default
        double worst = 0;
        const int status = judged(case_file, seed, &worst);
        print_message("seed %d: status %d, error %.2f of what is allowed %s\n", seed, status, worst, said());
        assert_int_equal(status, 0);
    }
}

// A comparison that nothing fails proves nothing.
static void the_comparison_can_fail(void **state) {
    (void)state;
    double worst;
    forget_outputs();
    assert_false(is_wanted(scratch, &worst)); // outputs are missing
    assert_true(isinf(worst));
    json_t *expect = read_json("expect.json");
    const char *name = json_object_iter_key(json_object_iter(expect));
    char file[256];
    size_t bytes;
    snprintf(file, sizeof file, "want_%s.bin", name);
    char *want = read_file(folder, file, &bytes);
    snprintf(file, sizeof file, "%s/%s.bin", scratch, name);
    FILE *out = fopen(file, "wb");
    assert_true(want && out);
    ((float *)(void *)want)[bytes / 8] += 1;
    fwrite(want, 1, bytes, out);
    fclose(out);
    assert_false(is_wanted(scratch, &worst));
    free(want);
    json_decref(expect);
}

/* "NAME | outcome | edits": outcome `reported` (status 1) or `wrong` (no report, not what is wanted).
 * "+NAME": only with SBP_TEST_ALL=1. */
static void every_mutant_is_noticed(void **state) {
    (void)state;
    size_t bytes;
    char *text = mutants_file ? read_file("/", mutants_file, &bytes) : strdup(""), *rest = NULL;
    assert_non_null(text);
    int count = 0, missed = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char name[128], outcome[32], orders[1024], case_file[PATH_MAX];
        line += line[0] == '+' && testing_all();
        if (line[0] == '#' ||
            sscanf(line, " %127[^ |] | %31[^ |] | %1023[^\n]", name, outcome, orders) != 3 ||
            strcmp(name, case_name) != 0) {
            continue;
        }
        make_mutant(orders, case_file, sizeof case_file);
        double worst = 0;
        const int status = judged(case_file, 0, &worst);
        const bool noticed = strcmp(outcome, "reported") == 0 ? status == 1 : status == NOT_WANTED;
        print_message("%s: %s: %s %s\n", noticed ? "noticed" : "MISSED", orders,
                      status == NOT_WANTED ? "numbers not wanted"
                      : status == 0        ? "as if nothing were"
                                           : "",
                      said());
        missed += !noticed;
        count++;
    }
    free(text);
    print_message("%d mutants, %d missed\n", count, missed);
    assert_int_equal(missed, 0);
}

int main(int argc, char **argv) {
    if (argc < 2 || !realpath(argv[1], folder) || !mkdtemp(scratch)) {
        fprintf(stderr, "usage: test_ptx_triton FOLDER [MUTANTS]\n");
        return 2;
    }
    case_name = strrchr(folder, '/') + 1;
    mutants_file = argc > 2 ? argv[2] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernel_gives_what_is_wanted),
        cmocka_unit_test(the_comparison_can_fail),
        cmocka_unit_test(every_mutant_is_noticed),
    };
    const int failed = cmocka_run_group_tests_name(case_name, tests, NULL, NULL);
    char remove[64];
    snprintf(remove, sizeof remove, "rm -rf %s", scratch);
    return system(remove) != 0 || failed ? 1 : 0;
}
