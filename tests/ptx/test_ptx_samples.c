/* PTX that somebody else compiled, as cases of ptxrun: ../shared/ptx and triton/ here. A folder bad_* must be
 * a fault; any other must give what expect.json says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const roots[] = {"../shared/ptx"};
static char out_folder[] = "/tmp/sbp_ptx_XXXXXX";

static int run_case(const char *folder, const char *seed) {
    const pid_t child = fork();
    if (child == 0) {
        char json[4096];
        (void)snprintf(json, sizeof json, "%s/case.json", folder);
        if (strncmp(strrchr(folder, '/'), "/bad_", 5) == 0 && !freopen("/dev/null", "w", stderr)) {
            _exit(99);
        }
        execl(PTXRUN, PTXRUN, json, "--out", out_folder, "--seed", seed, (char *)NULL);
        _exit(98);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 97;
}

// Values as floats; freed by the caller.
static float *read_values(const char *folder, const char *format, const char *name, const char *dtype,
                          size_t *count) {
    char path[4096];
    const int used = snprintf(path, sizeof path, "%s/", folder);
    (void)snprintf(path + used, sizeof path - (size_t)used, format, name);
    FILE *f = fopen(path, "rb");
    if (!f) {
        print_error("no %s\n", path);
    }
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const long bytes = ftell(f);
    rewind(f);
    const bool wide = strcmp(dtype, "f32") == 0, bf16 = strcmp(dtype, "bf16") == 0;
    assert_true(wide || bf16 || strcmp(dtype, "f16") == 0);
    *count = (size_t)bytes / (wide ? 4 : 2);
    uint8_t *raw = malloc((size_t)bytes + 1);
    float *values = calloc(*count + 1, sizeof *values);
    assert_true(raw && values && fread(raw, 1, (size_t)bytes, f) == (size_t)bytes);
    (void)fclose(f);
    for (size_t k = 0; k < *count; k++) {
        uint32_t bits = 0;
        memcpy(&bits, raw + k * (wide ? 4 : 2), wide ? 4 : 2);
        if (bf16) {
            bits <<= 16;
        } else if (!wide) {
            const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
            const double size = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
            values[k] = (float)(bits >> 15 ? -size : size);
            continue;
        }
        memcpy(&values[k], &bits, 4);
    }
    free(raw);
    return values;
}

static void compare(const char *folder, const char *name, const json_t *expect) {
    size_t count, wanted_count;
    const double tolerance = json_number_value(json_object_get(expect, "tol"));
    float *got =
        read_values(out_folder, "%s.bin", name, json_string_value(json_object_get(expect, "dtype")), &count);
    float *want = read_values(folder, "want_%s.bin", name, "f32", &wanted_count);
    assert_int_equal(count, wanted_count);
    double error = 0, size = 0;
    for (size_t k = 0; k < count; k++) {
        error += ((double)got[k] - want[k]) * ((double)got[k] - want[k]);
        size += (double)want[k] * want[k];
    }
    free(got);
    free(want);
    const double relative = sqrt(error / size);
    if (!(relative <= tolerance)) {
        print_error("%s: %s: relative error %g above %g\n", folder, name, relative, tolerance);
    }
    assert_true(relative <= tolerance);
}

static void check_folder(const char *folder, const char *seed) {
    if (strncmp(strrchr(folder, '/'), "/bad_", 5) == 0) {
        assert_int_equal(run_case(folder, seed), 1);
        return;
    }
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/expect.json", folder);
    json_error_t error;
    json_t *expect = json_load_file(path, 0, &error);
    assert_non_null(expect);
    const int status = run_case(folder, seed);
    if (status != 0) {
        print_error("%s, seed %s: status %d\n", folder, seed, status);
    }
    assert_int_equal(status, 0);
    const char *name;
    json_t *one;
    assert_true(json_object_size(expect) > 0);
    json_object_foreach(expect, name, one) {
        compare(folder, name, one);
    }
    json_decref(expect);
}

static int check_root(const char *root, const char *seed) {
    DIR *d = opendir(root);
    int checked = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char folder[2048], json[2100];
        (void)snprintf(folder, sizeof folder, "%s/%s", root, e->d_name);
        (void)snprintf(json, sizeof json, "%s/case.json", folder);
        if (e->d_name[0] != '.' && access(json, R_OK) == 0) {
            check_folder(folder, seed);
            checked++;
        }
    }
    if (d) {
        (void)closedir(d);
    }
    return checked;
}

static void samples_run(void **state) {
    (void)state;
    assert_non_null(mkdtemp(out_folder));
    for (size_t r = 0; r < sizeof roots / sizeof roots[0]; r++) {
        const char *const seeds[] = {"1", "2", "77"};
        int checked = 0;
        for (size_t s = 0; s < sizeof seeds / sizeof seeds[0]; s++) {
            checked += check_root(roots[r], seeds[s]);
        }
        if (!checked) {
            print_message("skipped: no cases in %s\n", roots[r]);
        }
    }
    char command[64];
    (void)snprintf(command, sizeof command, "rm -r %s", out_folder);
    assert_int_equal(system(command), 0);
}

// Edges of the contract: folders of DIR that are not there, numbers of 64 bits, buffers of nothing, keys that
// nobody knows, the address of a parameter, names that end with their braces.
static void the_contract_has_edges(void **state) {
    (void)state;
    static const char text[] =
        ".version 9.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry k(.param .u64 p, .param .u64 n, .param .u64 empty)\n{\n.reg .b64 %a, %n; .reg .b32 "
        "%q;\n"
        "ld.param.u64 %a, [p]; mov.b32 %q, n; cvt.u64.u32 %n, %q; cvta.param.u64 %n, %n; ld.u64 %n, [%n];\n"
        "{ .reg .b32 %a; mov.u32 %a, 7; bra L; trap; L: }\nbra L; trap;\nL: st.global.u64 [%a], %n; "
        "ret;\n}\n";
    static const char json[] =
        "{\"ptx\": \"kernel.ptx\", \"entry\": \"k\", \"grid\": [1], \"block\": [1, 1, 1], \"note\": "
        "{\"18446744073709551615\": 1},\n"
        "\"buffers\": [{\"bytes\": 8, \"out\": \"o.bin\"}, {\"bytes\": 0, \"out\": \"nothing.bin\"}],\n"
        "\"args\": [{\"buffer\": 0}, {\"u64\": 18446744073709551607}, {\"buffer\": 1}]}\n";
    char folder[] = "/tmp/sbp_ptx_XXXXXX", path[100], command[600];
    uint64_t value = 0;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/kernel.ptx", folder);
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && fclose(f) == 0);
    (void)snprintf(path, sizeof path, "%s/case.json", folder);
    f = fopen(path, "w");
    assert_true(f && fputs(json, f) >= 0 && fclose(f) == 0);
    (void)snprintf(command, sizeof command, "%s %s/case.json --out %s/some/where", PTXRUN, folder, folder);
    assert_int_equal(system(command), 0);
    (void)snprintf(path, sizeof path, "%s/some/where/o.bin", folder);
    f = fopen(path, "rb");
    assert_true(f && fread(&value, 1, 8, f) == 8 && fclose(f) == 0);
    assert_true(value == UINT64_MAX - 8);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(samples_run),
                                       cmocka_unit_test(the_contract_has_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
