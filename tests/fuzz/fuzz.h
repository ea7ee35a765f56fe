/* fuzz.h: what a fuzz target is: one function that reads an input from anywhere and comes back, with a result
 * or an error. No crash, no leak, no more time or memory than the reader's header promises. README.md says
 * how a target is added.
 *
 * With clang the function is libFuzzer's (tests/fuzz/run); without, fuzz_main.c calls it with the seeds and
 * with drawn changes of them. */
#ifndef SBP_TESTS_FUZZ_FUZZ_H
#define SBP_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- for readers of files
 * -------------------------------------------------------------------------------------------- */

/* Writes a file with that ending (".gguf") in memory and gives its path, which stays valid until the next
 * call with the same ending: each process has one file of an ending, and takes it away when it ends. Aborts
 * when there is no room. */
const char *fuzz_file(const char *ending, const void *data, size_t size);

/* ---- seeds
 * -----------------------------------------------------------------------------------------------------------
 */

typedef struct fuzz_seed {
    uint8_t *data;
    size_t size;
} fuzz_seed;

typedef struct fuzz_seeds {
    fuzz_seed *list;
    size_t count, capacity;
} fuzz_seeds;

/* FILE, FOLDER (each file in it, by name), lines:FILE (each line) or blocks:FILE (what stands between lines
 * of "---"). Aborts, naming it, when there is nothing. */
void fuzz_seeds_add(fuzz_seeds *seeds, const char *argument);
void fuzz_seeds_free(fuzz_seeds *seeds);

#endif
