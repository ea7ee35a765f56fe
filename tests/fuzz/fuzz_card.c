/* fuzz_card.c: the card of a data set. Patterns that it gives stay in its repository, and none is an option
 * of a program, in one word or another. */
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/files/named_path.h"
#include "runtime/data/source/card.h"
#include "tests/fuzz/fuzz.h"

typedef struct job {
    sbp_arena *arena;
    sbp_diag *diag;
    const uint8_t *data;
    size_t size;
} job;

static void check(const char *pattern) {
    int depth = 0;
    if (*pattern == '-' || *pattern == '/' || strstr(pattern, "://") || strpbrk(pattern, "{},") ||
        !sbp_named_path_stays(pattern))
        abort();
    for (const char *part = pattern; *part;
         part += strspn(part, "/")) { /* by another way than that function's */
        size_t length = strcspn(part, "/");
        if (strncmp(part, "..", 2) == 0 && length == 2)
            depth--;
        else if (!(length == 1 && *part == '.'))
            depth++;
        if (depth < 0)
            abort();
        part += length;
    }
}

static sbp_status run(void *user) {
    const job *j = user;
    static const char *const configs[] = {NULL, "default", "small"}, *const splits[] = {"train", "test"};
    const char **patterns, *text = sbp_arena_strndup(j->arena, (const char *)j->data, j->size);
    int32_t count;
    for (int i = 0; i < SBP_COUNT(configs) * SBP_COUNT(splits); i++) {
        const sbp_card_request request = {
            .id = "org/rows", .path = "README.md", .config = configs[i / 2], .split = splits[i % 2]};
        sbp_status status = sbp_card_files(j->arena, j->diag, &request, text, &patterns, &count);
        if (status != SBP_OK && sbp_diag_count(j->diag, SBP_ERROR) == 0)
            abort();
        for (int32_t k = 0; status == SBP_OK && k < count; k++)
            check(patterns[k]);
    }
    return SBP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    job j = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .data = data, .size = size};
    if (j.arena && j.diag)
        (void)!sbp_guard(j.arena, j.diag, run, &j);
    sbp_diag_destroy(j.diag);
    sbp_arena_destroy(j.arena);
    return 0;
}
