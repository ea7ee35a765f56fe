/* mutate.h: random damage to program texts. */
#ifndef SBP_TESTS_MUTATE_H
#define SBP_TESTS_MUTATE_H

#include "ir/base/base.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mutate_seed = 20240607;

static inline uint32_t mutate_pick(uint32_t below) {
    mutate_seed = mutate_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(mutate_seed >> 33) % below;
}

/* Another digit, symbol or table column: such texts often parse, and may even verify. */
static inline void mutate_meaning(char *text, size_t length) {
    static const char *const words[] = {"rows", "row0", "hi", "lo0", "lo1", "tb}", "ta}"};
    static const char symbols[] = "TSCHXWEKV";
    size_t at = mutate_pick((uint32_t)length);
    for (size_t k = 0; k < length; k++, at = (at + 1) % length) {
        if (text[at] >= '0' && text[at] <= '9') {
            text[at] = (char)('0' + mutate_pick(10));
            return;
        }
        if (strchr(symbols, text[at])) {
            text[at] = symbols[mutate_pick(9)];
            return;
        }
        for (int w = 0; w < SBP_COUNT(words); w++) {
            size_t n = strlen(words[w]);
            const char *other = words[mutate_pick(SBP_COUNT(words))];
            if (at + n <= length && memcmp(text + at, words[w], n) == 0 && strlen(other) == n) {
                memcpy(text + at, other, n);
                return;
            }
        }
    }
}

/* One random edit of a program text: a byte, a number, a cut, or a piece of the text moved elsewhere. */
static inline size_t mutate(char *text, size_t length, size_t capacity) {
    size_t at = mutate_pick((uint32_t)length), n;
    static const char *const words[] = {
        "-1", "0", "9223372036854775807", "T", "C", "i*C", "lo0", "[", "]", "{", "}", "%x", "@", "until"};
    switch (mutate_pick(8)) {
    case 5:
    case 6:
    case 7:
        mutate_meaning(text, length);
        return length;
    case 0:
        text[at] = (char)(32 + mutate_pick(95));
        return length;
    case 1:
        text[at] = (char)mutate_pick(256);
        return length;
    case 2:
        n = 1 + mutate_pick(20);
        if (at + n > length)
            n = length - at;
        memmove(text + at, text + at + n, length - at - n);
        return length - n;
    case 3: {
        const char *word = words[mutate_pick(SBP_COUNT(words))];
        n = strlen(word);
        if (length + n > capacity)
            return length;
        memmove(text + at + n, text + at, length - at);
        memcpy(text + at, word, n);
        return length + n;
    }
    default: {
        size_t from = mutate_pick((uint32_t)length);
        n = 1 + mutate_pick(40);
        if (from + n > length)
            n = length - from;
        if (at + n > length)
            n = length - at;
        memmove(text + at, text + from, n);
        return length;
    }
    }
}

/* How many mutants a test tries: SBP_FUZZ_ROUNDS from the environment, or `usual`. */
static inline int mutate_rounds(int usual) {
    const char *text = getenv("SBP_FUZZ_ROUNDS");
    return text ? atoi(text) : usual;
}

#endif
