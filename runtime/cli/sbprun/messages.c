/* messages.c: who says what. */
#include "runtime/cli/sbprun/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/train/metrics.h"

enum { MOST_HELD = 16 };

static int32_t own = -1; /* rank, -1: there is one */
static char *held[MOST_HELD];
static int held_count;

static const char *skip(const char *text, const char *start) {
    size_t length = strlen(start);
    return strncmp(text, start, length) == 0 ? text + length : text;
}

static void print(sbp_severity severity, const char *text) {
    static const char *const names[] = {"note: ", "warning: ", "error: "};
    char rank[32] = "";
    if (own >= 0)
        snprintf(rank, sizeof rank, "rank %d: ", (int)own);
    sbp_progress_break();
    fflush(stdout);
    /* options on a command line are said to be sbprun's; what concerns other ranks names this one */
    fprintf(stderr, "sbprun: %s%s%s\n", names[severity], rank, skip(skip(text, "sbprun: "), rank));
}

void sbp_messages_sink(void *user, sbp_severity severity, const char *text) {
    (void)user;
    if (own > 0 && severity != SBP_ERROR)
        return;
    size_t bytes = strlen(text) + 1;
    char *copy = own >= 0 && severity == SBP_ERROR && held_count < MOST_HELD ? sbp_malloc(bytes) : NULL;
    if (!copy) {
        print(severity, text);
        return;
    }
    memcpy(copy, text, bytes);
    held[held_count++] = copy;
}

void sbp_messages_of_rank(int32_t rank) {
    own = rank;
}

void sbp_messages_release(bool wanted) {
    for (int i = 0; i < held_count; i++) {
        if (wanted)
            print(SBP_ERROR, held[i]);
        free(held[i]);
    }
    held_count = 0;
}
