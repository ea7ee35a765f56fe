/* shuffle.c: the queues of a device for tests of fences. */
#include "backends/composite/shuffle.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUES = SBP_QUEUE_COUNT };

struct composite_shuffle {
    composite_run run;
    void *user;
    uint64_t random;
    composite_item **items; /* in the order of submission, since the last wait; NULL: done */
    int32_t count, capacity;
    int64_t fences[QUEUES][QUEUES]; /* [to][from]: number of commands before the last such fence */
};

static uint64_t next_random(composite_shuffle *shuffle) { /* splitmix64 */
    uint64_t z = shuffle->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

composite_shuffle *composite_shuffle_create(uint64_t seed, composite_run run, void *user) {
    composite_shuffle *shuffle = sbp_malloc(sizeof *shuffle);
    if (shuffle)
        *shuffle = (composite_shuffle){.run = run, .user = user, .random = seed};
    return shuffle;
}

static void clear(composite_shuffle *shuffle) {
    for (int32_t i = 0; i < shuffle->count; i++)
        free(shuffle->items[i]);
    shuffle->count = 0;
    memset(shuffle->fences, 0, sizeof shuffle->fences);
}

void composite_shuffle_destroy(composite_shuffle *shuffle) {
    if (!shuffle)
        return;
    clear(shuffle);
    free(shuffle->items);
    free(shuffle);
}

sbp_status composite_shuffle_submit(composite_shuffle *shuffle, const sbp_dispatch *dispatch,
                                    sbp_diag *diag) {
    if (shuffle->count == shuffle->capacity) {
        int32_t capacity = shuffle->capacity ? 2 * shuffle->capacity : 64;
        composite_item **grown = sbp_realloc(shuffle->items, (size_t)capacity * sizeof(composite_item *));
        if (!grown)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for shuffled commands");
        shuffle->items = grown;
        shuffle->capacity = capacity;
    }
    composite_item *item = composite_item_create(dispatch);
    if (!item)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for shuffled commands");
    memcpy(item->after, shuffle->fences[dispatch->command->queue], sizeof item->after);
    shuffle->items[shuffle->count++] = item;
    return SBP_OK;
}

void composite_shuffle_fence(composite_shuffle *shuffle, int32_t from, int32_t to) {
    shuffle->fences[to][from] = shuffle->count;
}

sbp_status composite_shuffle_wait(composite_shuffle *shuffle, sbp_diag *diag) {
    sbp_status status = SBP_OK;
    int32_t first[QUEUES] = {0}; /* the first command of each queue that is not done */
    for (int32_t left = shuffle->count; left > 0 && status == SBP_OK; left--) {
        for (int q = 0; q < QUEUES; q++)
            while (first[q] < shuffle->count &&
                   (!shuffle->items[first[q]] || shuffle->items[first[q]]->dispatch.command->queue != q))
                first[q]++;
        /* one of those that may run, each with the same chance */
        int32_t chosen = -1;
        uint64_t candidates = 0;
        for (int32_t i = 0; i < shuffle->count; i++) {
            const composite_item *item = shuffle->items[i];
            bool may_run = item != NULL;
            if (may_run && item->dispatch.command->queue == SBP_QUEUE_NET)
                may_run = i == first[SBP_QUEUE_NET]; /* the same order on all ranks */
            for (int q = 0; q < QUEUES && may_run; q++)
                may_run = item->after[q] <= first[q];
            if (may_run && next_random(shuffle) % ++candidates == 0)
                chosen = i;
        }
        if (chosen < 0)
            break; /* not with fences that the verifier lets pass: the earliest command waits for none */
        status = shuffle->run(shuffle->user, &shuffle->items[chosen]->dispatch, diag);
        free(shuffle->items[chosen]);
        shuffle->items[chosen] = NULL;
    }
    clear(shuffle);
    return status;
}
