/* test_cuda_library: where NVIDIA's libraries are looked for, and what is said when one is not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/cuda/library.h"

#define FILE_NAME "libnvrtc.so.13"
#define OLDER_NAME "libnvrtc.so.12"

static char folder[] = "/tmp/sbp_cuda_library_XXXXXX";

static const char *in_folder(const char *name) {
    static char paths[8][300];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static int make_folder(void **state) {
    (void)state;
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("CUDA_HOME");
    unsetenv("CUDA_PATH");
    unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
    unsetenv("SBP_CUDA_LIBRARIES");
    return mkdtemp(folder) ? 0 : 1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

/* Folders of a path below ours, and the library in the last of them under a name. */
static void put_library(const char *below, const char *name) {
    char command[900];
    snprintf(command, sizeof command, "mkdir -p '%s' && cp '%s/%s' '%s/%s'", in_folder(below),
             SBP_FAKE_FOLDER, FILE_NAME, in_folder(below), name);
    assert_int_equal(system(command), 0);
}

/* Opens NVRTC: where it lay, or the message. */
static sbp_status open_library(char text[8192]) {
    sbp_diag *diag = sbp_diag_create();
    sbp_cuda_library library;
    sbp_status status = sbp_cuda_library_open(SBP_CUDA_NVRTC, diag, &library);
    snprintf(text, 8192, "%s", status == SBP_OK ? library.path : sbp_diag_text(diag, SBP_ERROR));
    if (status == SBP_OK && strncmp(text, "/tmp/", 5) != 0 && !strstr(text, SBP_FAKE_FOLDER))
        sbp_cuda_library_keep(&library); /* the real one */
    sbp_cuda_library_close(&library);
    sbp_diag_destroy(diag);
    return status;
}

static void expect_in(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("'%s' is not in: %s", part, text);
}

static void named_folders(void **state) {
    (void)state;
    char text[8192], list[700];
    setenv("SBP_CUDA_LIBRARIES", "/nonexistent/one:/nonexistent/other", 1);
    assert_int_equal(open_library(text), SBP_MACHINE);
    expect_in(text, "Tried: /nonexistent/one/" FILE_NAME "; /nonexistent/other/" FILE_NAME ".");
    expect_in(text, "`pip install nvidia-cuda-nvrtc==13.0.88`");
    snprintf(list, sizeof list, "/nonexistent/one:%s", SBP_FAKE_FOLDER);
    setenv("SBP_CUDA_LIBRARIES", list, 1);
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, SBP_FAKE_FOLDER "/" FILE_NAME);
    unsetenv("SBP_CUDA_LIBRARIES");
}

/* A file that is no library is said with what the loader has against it, and the search goes on. */
static void damaged(void **state) {
    (void)state;
    char text[8192], list[700];
    put_library("damaged", FILE_NAME);
    FILE *file = fopen(in_folder("damaged/" FILE_NAME), "w");
    assert_non_null(file);
    fputs("no library, but long enough that the loader reads all of the header that it wants to see\n", file);
    assert_int_equal(fclose(file), 0);
    setenv("SBP_CUDA_LIBRARIES", in_folder("damaged"), 1);
    assert_int_equal(open_library(text), SBP_MACHINE);
    expect_in(text, in_folder("damaged/" FILE_NAME));
    expect_in(text, "ELF");
    snprintf(list, sizeof list, "%s:%s", in_folder("damaged"), SBP_FAKE_FOLDER);
    setenv("SBP_CUDA_LIBRARIES", list, 1);
    assert_int_equal(open_library(text), SBP_OK);
    unsetenv("SBP_CUDA_LIBRARIES");
}

/* The order: LD_LIBRARY_PATH, the loader, toolkits, environments. */
static void order(void **state) {
    (void)state;
    char text[8192];
    put_library("toolkit/lib", FILE_NAME);
    put_library("venv/lib/python3.11/site-packages/nvidia/cu13/lib", FILE_NAME);
    put_library("conda/lib", FILE_NAME);
    setenv("LD_LIBRARY_PATH", SBP_FAKE_FOLDER, 1);
    setenv("CUDA_HOME", in_folder("toolkit"), 1);
    setenv("VIRTUAL_ENV", in_folder("venv"), 1);
    setenv("CONDA_PREFIX", in_folder("conda"), 1);
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, SBP_FAKE_FOLDER "/" FILE_NAME);
    unsetenv("LD_LIBRARY_PATH");
    assert_int_equal(open_library(text), SBP_OK);
    if (strncmp(text, folder, strlen(folder)) != 0) {
        printf("skipped: NVRTC in toolkits and environments: the loader knows one already (%s)\n", text);
        return;
    }
    assert_string_equal(text, in_folder("toolkit/lib/" FILE_NAME));
    unsetenv("CUDA_HOME");
    assert_int_equal(open_library(text), SBP_OK);
    if (strncmp(text, folder, strlen(folder)) != 0)
        return; /* /usr/local/cuda */
    assert_string_equal(text, in_folder("venv/lib/python3.11/site-packages/nvidia/cu13/lib/" FILE_NAME));
    setenv("VIRTUAL_ENV", in_folder("toolkit"), 1); /* without NVRTC in the place of packages, but in lib */
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, in_folder("toolkit/lib/" FILE_NAME));
    unsetenv("VIRTUAL_ENV");
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, in_folder("conda/lib/" FILE_NAME));
    unsetenv("CONDA_PREFIX");
    assert_int_equal(open_library(text), SBP_MACHINE);
    expect_in(text,
              "the loader's own places; /usr/local/cuda/lib64/" FILE_NAME "; /usr/local/cuda/lib/" FILE_NAME);
}

/* CUDA 12's NVRTC where CUDA 13's is nowhere; and before it where the driver would refuse what CUDA 13
 * compiles. */
static void older(void **state) {
    (void)state;
    char text[8192], list[700];
    put_library("old", OLDER_NAME);
    put_library("new", FILE_NAME);
    put_library("driver", "libcuda.so.1");
    snprintf(list, sizeof list, "%s:%s", in_folder("old"), in_folder("new"));
    setenv("SBP_CUDA_LIBRARIES", in_folder("old"), 1);
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, in_folder("old/" OLDER_NAME));
    setenv("SBP_CUDA_LIBRARIES", list, 1);
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, in_folder("new/" FILE_NAME));
    snprintf(list, sizeof list, "%s:%s:%s", in_folder("driver"), in_folder("new"), in_folder("old"));
    setenv("SBP_CUDA_LIBRARIES", list, 1);
    setenv("SBP_FAKE_DRIVER", "13000", 1);
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, in_folder("new/" FILE_NAME));
    setenv("SBP_FAKE_DRIVER", "12080", 1);
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, in_folder("old/" OLDER_NAME));
    snprintf(list, sizeof list, "%s:%s", in_folder("driver"), in_folder("new"));
    setenv("SBP_CUDA_LIBRARIES", list, 1); /* the newer one, where there is no other */
    assert_int_equal(open_library(text), SBP_OK);
    assert_string_equal(text, in_folder("new/" FILE_NAME));
    unsetenv("SBP_FAKE_DRIVER");
    unsetenv("SBP_CUDA_LIBRARIES");
}

/* An environment that nobody has activated: that of the first python3 of PATH, and those of the home folder.
 * The search is asked for CUDA 12's file, which the loader of no machine here knows. */
static void not_activated(void **state) {
    (void)state;
    char text[8192], path[700], *before = strdup(getenv("PATH")),
                                *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    assert_non_null(before);
    put_library("other driver", "libcuda.so.1"); /* a file that stays open is not written over */
    put_library("work/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib", OLDER_NAME);
    put_library("people/me/train/.venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib", OLDER_NAME);
    assert_int_equal(mkdir(in_folder("work/bin"), 0700), 0);
    assert_int_equal(symlink("/bin/true", in_folder("work/bin/python3")), 0);
    setenv("LD_LIBRARY_PATH", in_folder("other driver"), 1);
    setenv("SBP_FAKE_DRIVER", "12080", 1);
    setenv("HOME", in_folder("people/me"), 1);
    snprintf(path, sizeof path, "%s:%s", in_folder("work/bin"), before);
    setenv("PATH", path, 1);
    assert_int_equal(open_library(text), SBP_OK);
    expect_in(text, "/work/bin/../lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/" OLDER_NAME);
    setenv("PATH", "/nonexistent", 1);
    assert_int_equal(open_library(text), SBP_OK);
    expect_in(text, "/people/me/train/.venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/" OLDER_NAME);
    setenv("PATH", before, 1);
    home ? setenv("HOME", home, 1) : unsetenv("HOME");
    unsetenv("SBP_FAKE_DRIVER");
    unsetenv("LD_LIBRARY_PATH");
    free(before);
    free(home);
}

/* The driver comes with no package, and a toolkit's stub is not taken for it. */
static void driver(void **state) {
    (void)state;
    sbp_diag *diag = sbp_diag_create();
    sbp_cuda_library library;
    char text[100];
    setenv("SBP_CUDA_LIBRARIES", "/nonexistent", 1);
    setenv("CUDA_HOME", "/nonexistent/toolkit", 1);
    assert_int_equal(sbp_cuda_library_open(SBP_CUDA_DRIVER, diag, &library), SBP_MACHINE);
    expect_in(sbp_diag_text(diag, SBP_ERROR), "libcuda.so.1 (the CUDA driver)");
    expect_in(sbp_diag_text(diag, SBP_ERROR), "It comes with NVIDIA's driver");
    assert_null(strstr(sbp_diag_text(diag, SBP_ERROR), "toolkit"));
    assert_null(strstr(sbp_diag_text(diag, SBP_ERROR), "pip"));
    unsetenv("SBP_CUDA_LIBRARIES");
    sbp_diag_clear(diag);
    if (sbp_cuda_library_open(SBP_CUDA_DRIVER, diag, &library) != SBP_OK) {
        expect_in(sbp_diag_text(diag, SBP_ERROR), "the loader's own places");
        assert_null(strstr(sbp_diag_text(diag, SBP_ERROR), "toolkit"));
    }
    sbp_cuda_library_close(&library);
    unsetenv("CUDA_HOME");
    snprintf(text, sizeof text, "%s", sbp_cuda_library_package(SBP_CUDA_DRIVER));
    assert_string_equal(text, "");
    sbp_diag_destroy(diag);
}

static void functions(void **state) {
    (void)state;
    struct {
        int (*nvrtcVersion)(int *, int *);
        int (*nvrtcMissing)(void);
    } api;
    const sbp_cuda_symbol symbols[] = {{"nvrtcVersion", 0}, {"nvrtcMissing", sizeof api.nvrtcVersion}};
    sbp_diag *diag = sbp_diag_create();
    sbp_cuda_library library;
    int major = 0, minor = 0;
    setenv("SBP_CUDA_LIBRARIES", SBP_FAKE_FOLDER, 1);
    assert_int_equal(sbp_cuda_library_open(SBP_CUDA_NVRTC, diag, &library), SBP_OK);
    assert_int_equal(sbp_cuda_library_symbols(&library, symbols, 1, &api, diag), SBP_OK);
    assert_int_equal(api.nvrtcVersion(&major, &minor), 0);
    assert_int_equal(minor, 99);
    assert_int_equal(sbp_cuda_library_symbols(&library, symbols, 2, &api, diag), SBP_MACHINE);
    expect_in(sbp_diag_text(diag, SBP_ERROR), SBP_FAKE_FOLDER "/" FILE_NAME " has no function nvrtcMissing");
    assert_null(sbp_cuda_library_symbol(&library, "nvrtcMissing"));
    sbp_cuda_library_close(&library);
    sbp_diag_destroy(diag);
    unsetenv("SBP_CUDA_LIBRARIES");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(named_folders), cmocka_unit_test(damaged),
                                       cmocka_unit_test(order),         cmocka_unit_test(driver),
                                       cmocka_unit_test(older),         cmocka_unit_test(not_activated),
                                       cmocka_unit_test(functions)};
    return cmocka_run_group_tests_name("cuda libraries", tests, make_folder, remove_folder);
}
