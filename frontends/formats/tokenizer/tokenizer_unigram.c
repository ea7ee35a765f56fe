/* tokenizer_unigram.c: the unigram model: of all ways to cut a text into tokens the one whose scores sum to
 * the most.
 *
 * As Hugging Face's `tokenizers`, to the bit: sums in double from the left, the first of equal ones, a
 * character without a token of its own as unknown at 10 below the worst score, runs of unknown ones as one.
 *
 * Where no token reaches over a place, every path goes through it: what is before it is put down there, so
 * that a long text takes memory for its longest stretch without such a place. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the trie
 * ---------------------------------------------------------------------------------------------------- */

typedef struct trie_job {
    sbp_arena *arena;
    const tok_model *m;
    int32_t *order; /* ids by text */
    tok_node *nodes;
    int32_t count, capacity;
} trie_job;

static int by_text(const void *a, const void *b, void *user) {
    const tok_string *tokens = user, *x = &tokens[*(const int32_t *)a], *y = &tokens[*(const int32_t *)b];
    int32_t shorter = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->text, y->text, (size_t)shorter);
    if (order == 0)
        order = (x->length > y->length) - (x->length < y->length);
    return order ? order : *(const int32_t *)a - *(const int32_t *)b;
}

/* A node whose texts are order[from .. to - 1], equal in their first `depth` bytes. */
typedef struct trie_span {
    int32_t node, from, to, depth;
} trie_span;

/* Children of one node beside each other, then theirs: no recursion, as a token may have thousands of bytes.
 */
static void build_trie(trie_job *j) {
    trie_span *waiting = NULL;
    int32_t count = 0, capacity = 0;
    SBP_PUSH(j->arena, j->nodes, j->count, j->capacity, (tok_node){.id = -1});
    SBP_PUSH(j->arena, waiting, count, capacity, ((trie_span){0, 0, j->m->size, 0}));
    while (count > 0) {
        trie_span s = waiting[--count];
        const tok_string *tokens = j->m->tokens;
        for (; s.from < s.to && tokens[j->order[s.from]].length == s.depth; s.from++)
            j->nodes[s.node].id = s.depth > 0 ? j->order[s.from] : -1; /* of equal texts the last */
        j->nodes[s.node].first_child = j->count;
        for (int32_t i = s.from, end; i < s.to; i = end) {
            char byte = tokens[j->order[i]].text[s.depth];
            for (end = i + 1; end < s.to && tokens[j->order[end]].text[s.depth] == byte;)
                end++;
            trie_span child = {j->count, i, end, s.depth + 1};
            j->nodes[s.node].child_count++;
            SBP_PUSH(j->arena, j->nodes, j->count, j->capacity,
                     ((tok_node){.id = -1, .byte = (uint8_t)byte}));
            SBP_PUSH(j->arena, waiting, count, capacity, child);
        }
    }
}

static const tok_node *find_child(const tok_model *m, const tok_node *node, uint8_t byte) {
    const tok_node *children = m->nodes + node->first_child;
    int32_t low = 0, high = node->child_count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (children[middle].byte < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low < node->child_count && children[low].byte == byte ? &children[low] : NULL;
}

/* Hugging Face reads a number as its digits, rounded, over a power of ten, rounded: other than the nearest
 * double in the last bit, which decides between cuts of "======" whose sums are otherwise equal. The digits
 * of the file are taken to be the fewest that name the number, as every writer has them. */
static double as_read(double x) {
    char text[40];
    int digits = 15;
    do {
        snprintf(text, sizeof text, "%.*e", digits - 1, x);
    } while (strtod(text, NULL) != x && ++digits <= 17);
    char *mantissa = text + (*text == '-'), *e = strchr(text, 'e');
    if (!e || digits == 15 || digits > 17) /* infinite, or short enough to be exact */
        return x;
    int64_t exponent = strtol(e + 1, NULL, 10) - (digits - 1);
    mantissa[1] = mantissa[0]; /* over the point */
    double value = (double)strtoull(mantissa + 1, NULL, 10), power = 1;
    if (exponent < -308 || exponent > 0)
        return x;
    char ten[16];
    snprintf(ten, sizeof ten, "1e%d", (int)-exponent);
    power = strtod(ten, NULL);
    return (*text == '-' ? -value : value) / power;
}

sbp_status sbp_unigram_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) {
    const sbp_json *unk = sbp_json_member(json, "unk_id");
    int64_t id = -1;
    if (unk && unk->kind != SBP_JSON_NULL)
        SBP_TRY(sbp_json_as_i64(diag, unk, &id));
    if (id >= m->size || (id < 0 && unk && unk->kind != SBP_JSON_NULL))
        return sbp_json_fail(diag, unk, "the id %lld is not in 0 .. %d", (long long)id, m->size - 1);
    m->unk = (int32_t)id;
    for (int32_t i = 0; i < m->size; i++)
        m->scores[i] = as_read(m->scores[i]);
    double least = m->scores[0];
    for (int32_t i = 1; i < m->size; i++)
        least = m->scores[i] < least ? m->scores[i] : least;
    m->unk_score = least - 10;
    trie_job j = {.arena = arena, .m = m, .order = SBP_NEW_ARRAY(arena, int32_t, m->size)};
    for (int32_t i = 0; i < m->size; i++)
        j.order[i] = i;
    qsort_r(j.order, (size_t)m->size, sizeof *j.order, by_text, m->tokens);
    build_trie(&j);
    m->nodes = j.nodes;
    return SBP_OK;
}

/* ---- encoding
 * ---------------------------------------------------------------------------------------------------- */

typedef struct search {
    tok_work *work;
    tok_buffers *b;
    const tok_piece *piece;
    tok_tokens *out;
    int64_t base;       /* paths[i] ends at byte base + i; what is before has been put down */
    int64_t unknown_at; /* where a run of unknown characters begins, up to what was put down; -1: none */
} search;

/* Tokens of a run of unknown characters, or of one token. */
static sbp_status put_text(search *s, int64_t begin, int64_t end) {
    const tok_model *m = &s->work->t->model;
    int32_t id = sbp_model_id(m, s->piece->text + begin, end - begin);
    bool found = false;
    if (id < 0 && m->byte_fallback)
        SBP_TRY(sbp_model_bytes(s->work, s->piece, begin, end, s->out, &found));
    if (found)
        return SBP_OK;
    return sbp_tokens_add(s->work, s->out, id < 0 ? m->unk : id,
                          sbp_tokens_span(s->work, s->piece, begin, end));
}

static sbp_status put_run(search *s, int64_t end) {
    int64_t begin = s->unknown_at;
    s->unknown_at = -1;
    return begin >= 0 ? put_text(s, begin, end) : SBP_OK;
}

/* Puts down the best path from base to `end`, which becomes the base. */
static sbp_status put_path(search *s, int64_t end) {
    tok_path *paths = s->b->paths;
    int32_t length = (int32_t)(end - s->base);
    for (int32_t at = length; at > 0; at = paths[at].from)
        paths[paths[at].from].next = at;
    for (int32_t at = 0; at < length; at = paths[at].next) {
        int32_t next = paths[at].next;
        if (paths[next].id == s->work->t->model.unk) {
            if (s->unknown_at < 0)
                s->unknown_at = s->base + at;
            continue;
        }
        SBP_TRY(put_run(s, s->base + at));
        SBP_TRY(put_text(s, s->base + at, s->base + next));
    }
    s->base = end;
    return SBP_OK;
}

/* Room for paths that end up to `last` bytes behind the base; new ones are none. */
static sbp_status reserve(search *s, int64_t last, int64_t *reached) {
    while (last >= s->b->path_capacity)
        if (!sbp_has_room(&s->b->paths, &s->b->path_capacity, last, sizeof *s->b->paths))
            return sbp_out_of_tokens(s->work);
    for (; *reached < last; ++*reached)
        s->b->paths[*reached + 1] = (tok_path){.from = -1};
    return SBP_OK;
}

static void offer(search *s, int64_t from, int64_t to, double score, int32_t id) {
    tok_path *path = &s->b->paths[to];
    if (path->from < 0 || score > path->score)
        *path = (tok_path){.score = score, .from = (int32_t)from, .id = id};
}

sbp_status sbp_unigram_encode(tok_work *work, tok_buffers *b, const tok_piece *piece, tok_tokens *out) {
    const tok_model *m = &work->t->model;
    search s = {.work = work, .b = b, .piece = piece, .out = out, .unknown_at = -1};
    int64_t reached = -1; /* paths[0 .. reached] are there */
    SBP_TRY(reserve(&s, 0, &reached));
    b->paths[0] = (tok_path){.from = 0};
    for (int64_t at = 0; at < piece->length;) {
        if (at - s.base == reached && at > s.base) {
            double score = b->paths[reached].score;
            SBP_TRY(put_path(&s, at));
            reached = 0;
            b->paths[0] = (tok_path){.score = score};
        }
        uint32_t code;
        int64_t here = at - s.base, size = sbp_utf8_get(piece->text + at, &code);
        double score = b->paths[here].score;
        bool single = false;
        const tok_node *node = m->nodes;
        for (int64_t end = at;
             end < piece->length && (node = find_child(m, node, (uint8_t)piece->text[end]));) {
            end++;
            if (node->id < 0)
                continue;
            SBP_TRY(reserve(&s, end - s.base, &reached));
            offer(&s, here, end - s.base, score + m->scores[node->id], node->id);
            single |= end - at == size;
        }
        if (!single) {
            if (m->unk < 0)
                return sbp_fail(work->diag, SBP_INPUT, "%s: '%.*s' has no token, and the model has no unk_id",
                                work->t->file, (int)size, piece->text + at);
            SBP_TRY(reserve(&s, here + size, &reached));
            offer(&s, here, here + size, score + m->unk_score, m->unk);
        }
        at += size;
    }
    SBP_TRY(put_path(&s, piece->length));
    return put_run(&s, piece->length);
}
