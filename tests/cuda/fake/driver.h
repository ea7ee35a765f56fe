/* driver.h: what the files of the fake libcuda share. */
#ifndef SBP_TESTS_CUDA_FAKE_DRIVER_H
#define SBP_TESTS_CUDA_FAKE_DRIVER_H

#include "tests/cuda/fake/fake.h"
#include "tests/ptx/ptx.h"

enum { FAKE_MOST_WORDS = 400 };

/* state.c */
typedef struct fake_state {
    char words[FAKE_MOST_WORDS];
    fake_cuda_report report;
    int64_t counted;    /* calls that "call" counts */
    cuda_result sticky; /* what a kernel or copy failed with: every later call does */
    bool initialised;
    int64_t retained;       /* of primary contexts */
    sbp_ptx_memory *memory; /* of the device; of all of them, as no test uses two at once */
    uint64_t random;
    int32_t ids; /* of modules, streams, events: for the log */
} fake_state;

extern fake_state fake;

/* The number of a word, or `other` when it is not there. */
int64_t fake_number(const char *key, int64_t other);
bool fake_says(const char *key, const char *value);
uint64_t fake_random(void); /* below 2^32 */
int64_t fake_memory_bytes(void);

/* memory.c */
void fake_memory_reset(void);

/* streams.c */
void fake_streams_reset(void);
/* Goes on with streams until what is not ready; for the driver's own thread. */
void fake_streams_go_on(void);

/* modules.c */
void fake_modules_reset(void);

#endif
