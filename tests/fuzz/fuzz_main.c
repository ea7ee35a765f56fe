/* fuzz_main.c: a target without libFuzzer: fuzz_NAME [--rounds N] [--write FOLDER] SEEDS...
 *
 * Runs each seed, then N drawn changes of seeds, the same ones on every run. --write only puts the seeds down
 * as files, for libFuzzer. An input that takes a minute ends the program; what it was is in
 * /tmp/sbp-fuzz-input, as for any other crash. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

enum { SECONDS_PER_INPUT = 600, MOST_BYTES = 1 << 16 };

/* ---- drawn changes
 * --------------------------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state, uint64_t below) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return below ? z % below : 0;
}

/* Puts `size` bytes in place of `gone` ones. The buffer has room for MOST_BYTES. */
static size_t put(uint8_t *text, size_t length, size_t at, size_t gone, const uint8_t *bytes, size_t size) {
    uint8_t copy[64];
    size = size > sizeof copy ? sizeof copy : size;
    if (length - gone + size > MOST_BYTES)
        return length;
    memcpy(copy, bytes, size); /* which may lie in the text */
    memmove(text + at + size, text + at + gone, length - at - gone);
    memcpy(text + at, copy, size);
    return length - gone + size;
}

static size_t change(uint64_t *state, uint8_t *text, size_t length, const fuzz_seeds *seeds) {
    static const char *const words[] = {
        "\"",   "{",  "}",    "[", "]", "null", "-1", "1e999", "\\u0", "\xff", "4294967296", "2147483647",
        "\xc3", "\n", "\x80", "0", "(", ")",    "\\", "*",     "{%",   "%}",   "{{",         ","};
    const fuzz_seed *other = &seeds->list[draw(state, seeds->count)];
    size_t at = draw(state, length + 1), span = draw(state, 2) ? 1 : draw(state, 33);
    size_t rest = length - at, gone = span > rest ? rest : span;
    const char *word = words[draw(state, sizeof words / sizeof *words)];
    uint8_t byte = (uint8_t)draw(state, 256);
    switch (draw(state, 7)) {
    case 0:
        return put(text, length, at, gone, &byte, 0);
    case 1:
        return put(text, length, at, 0, &byte, 1);
    case 2:
        if (rest)
            text[at] ^= (uint8_t)(1u << draw(state, 8));
        return length;
    case 3:
        return put(text, length, at, draw(state, 2) ? gone : 0, (const uint8_t *)word, strlen(word));
    case 4: { /* a part of a seed */
        size_t from = draw(state, other->size + 1), size = draw(state, 64);
        return put(text, length, at, draw(state, 2) ? gone : 0, other->data + from,
                   size > other->size - from ? other->size - from : size);
    }
    case 5: { /* a part of itself */
        size_t from = draw(state, length + 1), size = draw(state, 64);
        return put(text, length, at, 0, text + from, size > length - from ? length - from : size);
    }
    default:
        if (rest)
            text[at] = byte;
        return draw(state, 8) ? length : at;
    }
}

/* ---- running
 * ---------------------------------------------------------------------------------------------------------
 */

static uint8_t *current;
static size_t current_size;

static void keep_input(void) {
    int file = open("/tmp/sbp-fuzz-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file >= 0 && write(file, current, current_size) >= 0)
        close(file);
}

static void on_signal(int number) {
    keep_input();
    signal(number, SIG_DFL);
    raise(number);
}

/* In memory of its own, so that a read beyond its end is seen. */
static void run(const uint8_t *text, size_t length) {
    current = malloc(length ? length : 1);
    current_size = length;
    if (!current)
        abort();
    memcpy(current, text, length);
    alarm(SECONDS_PER_INPUT);
    LLVMFuzzerTestOneInput(current, length);
    free(current);
}

static int write_seeds(const fuzz_seeds *seeds, const char *folder) {
    for (size_t i = 0; i < seeds->count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed%zu", folder, i);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(seeds->list[i].data, 1, seeds->list[i].size, file) != seeds->list[i].size ||
            fclose(file)) {
            fprintf(stderr, "cannot write %s\n", path);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    static const int caught[] = {SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    fuzz_seeds seeds = {0};
    uint64_t rounds = 0, state = 1;
    const char *folder = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            rounds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--write") == 0 && i + 1 < argc)
            folder = argv[++i];
        else
            fuzz_seeds_add(&seeds, argv[i]);
    }
    if (seeds.count == 0) {
        fprintf(stderr, "usage: %s [--rounds N] [--write FOLDER] SEEDS...\n", argv[0]);
        return 2;
    }
    if (folder) {
        int status = write_seeds(&seeds, folder);
        fuzz_seeds_free(&seeds);
        return status;
    }
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        signal(caught[i], on_signal);
    for (size_t i = 0; i < seeds.count; i++)
        run(seeds.list[i].data, seeds.list[i].size);
    uint8_t *text = malloc(MOST_BYTES);
    for (uint64_t round = 0; text && round < rounds; round++) {
        const fuzz_seed *seed = &seeds.list[draw(&state, seeds.count)];
        size_t length = seed->size < MOST_BYTES ? seed->size : MOST_BYTES;
        memcpy(text, seed->data, length);
        for (uint64_t changes = 1 + draw(&state, 6); changes > 0; changes--)
            length = change(&state, text, length, &seeds);
        run(text, length);
    }
    free(text);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%zu seeds, %llu changes of them; at most %ld MiB\n", seeds.count, (unsigned long long)rounds,
           used.ru_maxrss >> 10);
    fuzz_seeds_free(&seeds);
    return 0;
}
