/* testing.h: what the tests of the CUDA device share: the fake driver, opened before the device finds it. */
#ifndef SBP_TESTS_CUDA_DEVICE_TESTING_H
#define SBP_TESTS_CUDA_DEVICE_TESTING_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/fake/fake.h"

static fake_cuda_reset_function *fake_reset;
static fake_cuda_look_function *fake_look;
static void *fake_library;

static inline int fake_open(void **state) {
    (void)state;
    void *library = fake_library = dlopen(SBP_FAKE_CUDA_FOLDER "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        print_message("%s\n", dlerror());
        return -1;
    }
    void *reset = dlsym(library, "fake_cuda_reset"), *look = dlsym(library, "fake_cuda_look");
    memcpy(&fake_reset, &reset, sizeof reset);
    memcpy(&fake_look, &look, sizeof look);
    return reset && look ? 0 : -1;
}

/* Everything was given back, and nothing used wrongly. */
static inline void fake_is_clean(void) {
    fake_cuda_report report;
    fake_look(&report);
    assert_int_equal(report.alive, 0);
    assert_int_equal(report.wrong, 0);
}

#endif
