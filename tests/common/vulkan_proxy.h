/* vulkan_proxy.h: a libvulkan.so.1 for tests, between the Vulkan device and the real one. It makes calls
 * fail, counts what is created and destroyed, and makes a driver look like another: so errors that no test
 * machine has can be had, without a word about tests in the device.
 *
 * A program finds it in place of the real one by LD_LIBRARY_PATH (or because the process has opened it
 * already: dlopen knows it by its name). SBP_PROXY says what it does, a list of words:
 *
 *     fail=N            the N-th call that can fail does (the first is 1), and no other
 *     call=NAME         counting calls of that function alone ("QueueSubmit2")
 *     error=memory|lost|other|crash   with what, where the function may return that; else with what it may;
 *                       crash: the process ends there
 *     from=N            the N-th and every later call fail: as with a lost device
 *     gpu               the driver's device is no software driver, but "Pretended GPU", a discrete one
 *     heap=BYTES        the size of its first memory heap
 *     budget            it has VK_EXT_memory_budget; usage is what was allocated and not freed, plus
 *     driver=BYTES      what the driver takes for itself
 *     hide=FEATURE      a feature of backends/vulkan/device/features.def that it does not have; repeated for
 *                       more
 *
 * Threads: as the device, one at a time. */
#ifndef SBP_TESTS_COMMON_VULKAN_PROXY_H
#define SBP_TESTS_COMMON_VULKAN_PROXY_H

#include <stdint.h>

typedef struct vulkan_proxy_report {
    int64_t calls;      /* that can fail, since the last reset */
    int64_t alive;      /* objects created and not destroyed */
    const char *failed; /* the function that was made to fail; NULL: none */
} vulkan_proxy_report;

/* Forgets everything and does as `words` say. Symbol "vulkan_proxy_reset" of the library. */
typedef void vulkan_proxy_reset_function(const char *words);
/* Symbol "vulkan_proxy_look". */
typedef void vulkan_proxy_look_function(vulkan_proxy_report *out);

#endif
