/* tokenizer_added.c: finding added tokens in text, the leftmost first and of those the longest. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>

void sbp_trie_init(tok_trie *trie, sbp_arena *arena) {
    *trie = (tok_trie){0};
    SBP_PUSH(arena, trie->nodes, trie->count, trie->capacity, (tok_trie_node){.token = -1});
}

static int32_t find_child(const tok_trie *trie, int32_t node, uint8_t byte) {
    if (node == 0)
        return trie->roots[byte];
    int32_t child = trie->nodes[node].first_child;
    while (child && trie->nodes[child].byte != byte)
        child = trie->nodes[child].next_sibling;
    return child;
}

void sbp_trie_add(tok_trie *trie, sbp_arena *arena, const char *text, int64_t length, int32_t token) {
    int32_t node = 0;
    for (int64_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)text[i];
        int32_t child = find_child(trie, node, byte);
        if (!child) {
            child = trie->count;
            tok_trie_node fresh = {
                .next_sibling = node ? trie->nodes[node].first_child : 0, .token = -1, .byte = byte};
            SBP_PUSH(arena, trie->nodes, trie->count, trie->capacity, fresh);
            if (node)
                trie->nodes[node].first_child = child;
            else
                trie->roots[byte] = child;
        }
        node = child;
    }
    trie->nodes[node].token = token;
}

/* The longest token at text + at; its end in *end. -1: none. */
static int32_t longest(const tok_trie *trie, const char *text, int64_t length, int64_t at, int64_t *end) {
    int32_t found = -1;
    for (int32_t node = 0; at < length;) {
        node = find_child(trie, node, (uint8_t)text[at]);
        if (!node)
            break;
        at++;
        if (trie->nodes[node].token >= 0) {
            found = trie->nodes[node].token;
            *end = at;
        }
    }
    return found;
}

static bool is_word(tok_work *work, const char *text, int64_t length) {
    return pcre2_match(work->t->word_char, (PCRE2_SPTR)text, (PCRE2_SIZE)length, 0,
                       PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, work->match_data, work->match_context) >= 0;
}

static bool inside_word(tok_work *work, const tok_piece *piece, int64_t begin, int64_t end) {
    if (begin > 0) {
        int64_t start = sbp_utf8_start(piece->text, begin - 1);
        if (is_word(work, piece->text + start, begin - start))
            return true;
    }
    return end < piece->length && is_word(work, piece->text + end, piece->length - end);
}

/* The range extended over white space on the sides that the token strips; not before `least`, up to which
 * there is nothing else behind a token that begins before it. */
static void extend(const tok_added *token, const tok_piece *piece, int64_t least, int64_t *begin,
                   int64_t *end) {
    uint32_t code;
    while (token->left_strip && *begin > least) {
        int64_t start = sbp_utf8_start(piece->text, *begin - 1);
        sbp_utf8_get(piece->text + start, &code);
        if (!sbp_is_whitespace(code))
            break;
        *begin = start;
    }
    if (token->left_strip && *begin < least)
        *begin = least;
    if (token->right_strip && *end < least)
        *end = least;
    while (token->right_strip && *end < piece->length) {
        int size = sbp_utf8_get(piece->text + *end, &code);
        if (!sbp_is_whitespace(code))
            break;
        *end += size;
    }
}

static sbp_status give(const tok_piece *piece, int64_t begin, int64_t end, int32_t added, tok_piece_sink sink,
                       void *user) {
    if (begin >= end) /* also where the token before swallowed what is here */
        return SBP_OK;
    tok_piece slice = sbp_piece_slice(piece, begin, end);
    slice.added = added;
    return sink(user, &slice);
}

sbp_status sbp_cut_added(tok_work *work, const tok_trie *trie, const tok_piece *piece, tok_piece_sink sink,
                         void *user) {
    int64_t done = 0;
    if (trie->count == 1 || piece->added >= 0) {
        tok_piece whole = *piece;
        return sink(user, &whole);
    }
    for (int64_t at = 0; at < piece->length;) {
        int64_t end = 0;
        int32_t index = longest(trie, piece->text, piece->length, at, &end);
        if (index < 0) {
            at++;
            continue;
        }
        int64_t begin = at;
        at = end; /* the search goes on behind the token itself, as in Hugging Face */
        const tok_added *token = &work->t->added[index];
        if (token->single_word && inside_word(work, piece, begin, end))
            continue;
        extend(token, piece, done, &begin, &end);
        SBP_TRY(give(piece, done, begin, -1, sink, user));
        SBP_TRY(give(piece, begin, end, index, sink, user));
        done = end;
    }
    return give(piece, done, piece->length, -1, sink, user);
}
