/* encode_texts.c: our side of compare.py: encode_texts [--json FILE | --time SECONDS | --threads N] TOKENIZER
 *
 * Standard input has texts, each a 32-bit length and its bytes; standard output, for each, a 32-bit count,
 * the ids, the offsets (pairs), the length of the decoded text and that text; a count of -1, a length and a
 * message where there is an error. --json writes the self-contained tokenizer. --time encodes the texts over
 * and over, without offsets, and prints the bytes a second of the fastest round; --threads does that on N
 * threads, and compares what they give. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "frontends/formats/tokenizer/tokenizer.h"

typedef struct texts {
    sbp_gguf_string *list;
    int64_t bytes;
    int32_t count, capacity;
} texts;

static char *read_text(int32_t *length) {
    if (fread(length, sizeof *length, 1, stdin) != 1)
        return NULL;
    char *text = malloc((size_t)*length + 1);
    if (!text || fread(text, 1, (size_t)*length, stdin) != (size_t)*length)
        abort();
    return text;
}

static void put(const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, stdout) != bytes)
        abort();
}

static void put_number(int64_t value) {
    int32_t number = (int32_t)value;
    put(&number, sizeof number);
}

static void put_error(sbp_diag *diag) {
    const char *message = sbp_diag_text(diag, SBP_ERROR);
    put_number(-1);
    put_number((int64_t)strlen(message));
    put(message, strlen(message));
}

static void answer(const sbp_tokenizer *t, const char *text, int32_t length) {
    sbp_arena *arena = sbp_arena_create();
    sbp_diag *diag = sbp_diag_create();
    sbp_encoding e;
    const char *back;
    size_t back_length;
    if (!arena || !diag)
        abort();
    if (sbp_tokenizer_encode(t, arena, diag, text, (size_t)length, SBP_ADD_SPECIAL_TOKENS | SBP_WITH_OFFSETS,
                             &e) != SBP_OK ||
        sbp_tokenizer_decode(t, arena, diag, e.ids, e.count, false, &back, &back_length) != SBP_OK) {
        put_error(diag);
    } else {
        put_number(e.count);
        put(e.ids, (size_t)e.count * sizeof *e.ids);
        for (int64_t i = 0; i < e.count; i++) {
            put_number(e.offsets[i][0]);
            put_number(e.offsets[i][1]);
        }
        put_number((int64_t)back_length);
        put(back, back_length);
    }
    sbp_diag_destroy(diag);
    sbp_arena_destroy(arena);
}

/* ---- timing
 * ----------------------------------------------------------------------------------------------------------
 */

typedef struct worker {
    const sbp_tokenizer *t;
    const texts *all;
    int64_t tokens;
    uint64_t hash;
    pthread_t thread;
} worker;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *encode_all(void *user) {
    worker *w = user;
    w->tokens = 0;
    w->hash = 0;
    for (int64_t i = 0; i < w->all->count; i++) {
        sbp_arena *arena = sbp_arena_create();
        sbp_encoding e;
        if (!arena || sbp_tokenizer_encode(w->t, arena, NULL, w->all->list[i].data,
                                           (size_t)w->all->list[i].length, 0, &e) != SBP_OK)
            abort();
        w->tokens += e.count;
        w->hash = sbp_hash_bytes(e.ids, (size_t)e.count * sizeof *e.ids, w->hash);
        sbp_arena_destroy(arena);
    }
    return NULL;
}

static int measure(const sbp_tokenizer *t, const texts *all, double seconds, int threads) {
    worker workers[64];
    double best = 1e30, begun = now();
    do {
        double start = now();
        for (int i = 0; i < threads; i++) {
            workers[i] = (worker){.t = t, .all = all};
            if (pthread_create(&workers[i].thread, NULL, encode_all, &workers[i]) != 0)
                abort();
        }
        for (int i = 0; i < threads; i++) {
            pthread_join(workers[i].thread, NULL);
            if (workers[i].hash != workers[0].hash) {
                puts("threads differ");
                return 1;
            }
        }
        double took = now() - start;
        best = took < best ? took : best;
    } while (now() - begun < seconds);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"bytes_per_second\": %.0f, \"tokens\": %lld, \"peak_mib\": %ld}\n",
           (double)all->bytes * threads / best, (long long)workers[0].tokens, used.ru_maxrss >> 10);
    return 0;
}

static int write_json(const sbp_tokenizer *t, sbp_arena *arena, sbp_diag *diag, const char *path) {
    const char *text;
    size_t length;
    FILE *file = fopen(path, "wb");
    if (!file || sbp_tokenizer_to_json(t, arena, diag, &text, &length) != SBP_OK ||
        fwrite(text, 1, length, file) != length)
        return 1;
    return fclose(file) != 0;
}

int main(int argc, char **argv) {
    const char *json = NULL;
    double seconds = -1;
    int threads = 1, at = 1, status = 0;
    for (; at + 2 < argc; at += 2) {
        if (strcmp(argv[at], "--json") == 0)
            json = argv[at + 1];
        else if (strcmp(argv[at], "--time") == 0)
            seconds = atof(argv[at + 1]);
        else if (strcmp(argv[at], "--threads") == 0)
            threads = atoi(argv[at + 1]);
        else
            break;
    }
    if (at + 1 != argc || threads < 1 || threads > 64) {
        fprintf(stderr, "usage: %s [--json FILE | --time SECONDS | --threads N] TOKENIZER\n", argv[0]);
        return 2;
    }
    sbp_arena *arena = sbp_arena_create();
    sbp_diag *diag = sbp_diag_create();
    const sbp_tokenizer *t;
    if (!arena || !diag || sbp_tokenizer_load(arena, diag, argv[at], &t) != SBP_OK) {
        fprintf(stderr, "%s\n", sbp_diag_text(diag, SBP_ERROR));
        return 1;
    }
    texts all = {0};
    int32_t length;
    if (json)
        status = write_json(t, arena, diag, json);
    for (char *text; !json && (text = read_text(&length));) {
        if (seconds < 0 && threads == 1) {
            answer(t, text, length);
            fflush(stdout);
            free(text);
            continue;
        }
        sbp_gguf_string one = {text, length};
        SBP_PUSH(arena, all.list, all.count, all.capacity, one);
        all.bytes += length;
    }
    if (all.count > 0)
        status = measure(t, &all, seconds, threads);
    for (int64_t i = 0; i < all.count; i++)
        free((char *)(uintptr_t)all.list[i].data);
    sbp_diag_destroy(diag);
    sbp_arena_destroy(arena);
    return status;
}
