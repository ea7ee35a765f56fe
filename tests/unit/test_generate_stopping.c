/* Ids to text piece by piece: the pieces of random ids and of texts against the decoding of all ids, for
 * tokenizers with each of the decoders; stop strings across tokens against a search in the whole text; why a
 * text ends. */
#include "tests/unit/tokenizer_testing.h"

#include "ir/base/json.h"
#include "runtime/generate/stopping.h"

#define DATA "tests/data/tokenizers/"

enum { MOST_IDS = 80, MOST_STRINGS = 4 };

/* ---- tokenizers --------------------------------------------------------------------------------------- */

/* decoder: in place of the file's own; NULL: as it is. */
static const struct {
    const char *path, *decoder;
    bool whole;    /* no text before the end */
    bool one_late; /* one string is held back */
} tokenizers[] = {
    {DATA "qwen2.json", NULL, false, false},
    {DATA "llama3.json", NULL, false, false},
    {DATA "llama2.json", NULL, false, false},
    {DATA "gemma3.json", NULL, false, false},
    {DATA "unigram.json", NULL, false, false},
    {DATA "wordpiece.json", NULL, false, false},
    {DATA "prefix.json", NULL, false, false},
    {DATA "suffix.json", NULL, false, true},
    {DATA "wordlevel.json", NULL, false, false},
    {DATA "tekken.json", NULL, false, false},
    {DATA "ranks.tiktoken", NULL, false, false},
    {DATA "llama.model", NULL, false, false},
    {DATA "unigram.model", NULL, false, false},
    {"tests/data/stories260K/tokenizer.json", NULL, false, false},
    {DATA "llama2.json", "null", false, false},
    {DATA "llama2.json", /* strips every token; the first that is left keeps no space */
     "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Metaspace\","
     "\"replacement\":"
     "\"\\u2581\",\"prepend_scheme\":\"first\",\"split\":false},{\"type\":\"Strip\",\"content\":\"e\","
     "\"start\":1,"
     "\"stop\":2}]}",
     false, false},
    {DATA "llama2.json", /* more than one space in front, over more than one token */
     "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\u2581+\"},"
     "\"content\":"
     "\"  \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
     "\",\"start\":5,"
     "\"stop\":0},{\"type\":\"Fuse\"}]}",
     false, false},
    {DATA "qwen2.json", /* what joins and splits across tokens, and the end of the text */
     "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_"
     "offsets\":true,"
     "\"use_regex\":true},{\"type\":\"Replace\",\"pattern\":{\"String\":\"e \"},\"content\":\"_\"}]}",
     true, false},
    {DATA "llama2.json",
     "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"a\","
     "\"start\":0,"
     "\"stop\":3}]}",
     true, false},
};

typedef struct change {
    sbp_text text;
    sbp_arena *arena;
    const sbp_json *base;
    const char *decoder;
} change;

static sbp_status change_decoder(void *user) {
    change *c = user;
    sbp_text_init(&c->text, c->arena);
    for (int64_t i = 0; i < c->base->count; i++) {
        const sbp_json *item = &c->base->items[i];
        sbp_text_add(&c->text, "%c\"%s\":", i ? ',' : '{', item->key);
        if (strcmp(item->key, "decoder") == 0)
            sbp_text_add(&c->text, "%s", c->decoder);
        else
            sbp_json_add_value(&c->text, item);
    }
    sbp_text_add(&c->text, "}");
    return SBP_OK;
}

static const sbp_tokenizer *tokenizer_of(io_fixture *f, int which) {
    const sbp_tokenizer *t;
    const char *path = tokenizers[which].path;
    if (!tokenizers[which].decoder)
        return load(f, path);
    change c = {.arena = f->arena, .base = read_data(f, path), .decoder = tokenizers[which].decoder};
    assert_ok(f, sbp_guard(f->arena, f->diag, change_decoder, &c));
    assert_ok(f, sbp_tokenizer_from_json(f->arena, f->diag, path, c.text.data, c.text.length, &t));
    return t;
}

/* ---- ids ---------------------------------------------------------------------------------------------- */

static uint64_t below(uint64_t *random, uint64_t most) {
    return io_random(random) % most;
}

/* Some characters of 1 to 4 bytes. */
static int64_t put_random_text(uint64_t *random, char *out, int64_t characters) {
    static const char *const some[] = {"e",
                                       " ",
                                       "a",
                                       "the ",
                                       "\n",
                                       "\xc3\xa9",
                                       "\xe6\xbc\xa2",
                                       "\xf0\x9f\x98\x80",
                                       "\xe2\x96\x81",
                                       "in",
                                       ".",
                                       "\xf0\x9f\x91\x8d",
                                       "n't"};
    int64_t n = 0;
    for (int64_t i = 0; i < characters; i++) {
        const char *piece = some[below(random, SBP_COUNT(some))];
        memcpy(out + n, piece, strlen(piece));
        n += (int64_t)strlen(piece);
    }
    return n;
}

/* Ids of the vocabulary and some above it; or those of a text, some of them replaced. */
static int64_t random_ids(io_fixture *f, const sbp_tokenizer *t, uint64_t *random, int32_t *ids) {
    int64_t n = 0;
    int32_t size = 0;
    while (sbp_tokenizer_token(t, size, NULL) || sbp_tokenizer_token(t, size + 1, NULL))
        size++;
    if (below(random, 2) == 0) {
        n = (int64_t)below(random, MOST_IDS);
        for (int64_t i = 0; i < n; i++)
            ids[i] = (int32_t)below(random, (uint64_t)size + 4);
        return n;
    }
    char text[200];
    sbp_encoding e;
    int64_t length = put_random_text(random, text, 1 + (int64_t)below(random, 30));
    assert_ok(f,
              sbp_tokenizer_encode(t, f->arena, f->diag, text, (size_t)length, SBP_ADD_SPECIAL_TOKENS, &e));
    bool damaged = below(random, 2) == 0;
    for (n = 0; n < e.count && n < MOST_IDS; n++)
        ids[n] = damaged && below(random, 8) == 0 ? (int32_t)below(random, (uint64_t)size) : e.ids[n];
    return n;
}

static sbp_text_stream *create(io_fixture *f, const sbp_tokenizer *t, const sbp_stopping *stopping) {
    sbp_text_stream *s;
    assert_ok(f, sbp_text_stream_create(t, f->diag, stopping, &s));
    return s;
}

/* Adds a piece, which is whole characters, to a text. */
static void add_piece(sbp_text *text, const sbp_text_piece *piece) {
    assert_true(strlen(piece->text) <= piece->length && piece->text[piece->length] == 0);
    if (!sbp_is_utf8(piece->text, (int64_t)piece->length))
        fail_msg("'%s' is no UTF-8", piece->text);
    sbp_text_add_n(text, piece->text, piece->length);
}

/* ---- pieces are the whole ----------------------------------------------------------------------------- */

typedef struct round {
    io_fixture *f;
    const sbp_tokenizer *t;
    int which;
    uint64_t *random;
    int64_t early, late; /* bytes that came before the end, and at it */
} round;

static sbp_status check_pieces(void *user) {
    round *r = user;
    io_fixture *f = r->f;
    int32_t ids[MOST_IDS];
    int64_t n = random_ids(f, r->t, r->random, ids);
    const char *whole;
    size_t length;
    assert_ok(f, sbp_tokenizer_decode(r->t, f->arena, f->diag, ids, n, true, &whole, &length));
    sbp_stopping nothing = {0};
    sbp_text_stream *s = create(f, r->t, &nothing);
    sbp_text_piece piece;
    sbp_text text;
    sbp_text_init(&text, f->arena);
    for (int64_t i = 0; i <= n; i++) {
        if (i < n)
            assert_ok(f, sbp_text_stream_push(s, f->diag, ids[i], &piece));
        else
            assert_ok(f, sbp_text_stream_flush(s, f->diag, &piece));
        *(i < n ? &r->early : &r->late) += (int64_t)piece.length;
        add_piece(&text, &piece);
        assert_int_equal(piece.finish, SBP_FINISH_NOT);
        if (text.length > length || memcmp(text.data, whole, text.length) != 0)
            fail_msg("%s (%d): after %lld ids '%s', of '%s'", tokenizers[r->which].path, r->which,
                     (long long)i + 1, text.data, whole);
    }
    if (text.length != length)
        fail_msg("%s (%d): '%s', expected '%s'", tokenizers[r->which].path, r->which, text.data, whole);
    assert_ok(f, sbp_text_stream_flush(s, f->diag, &piece));
    assert_int_equal(piece.length, 0);
    sbp_text_stream_destroy(s);
    return SBP_OK;
}

static void pieces_are_what_all_ids_decode_to(void **state) {
    io_fixture *f = *state;
    uint64_t random = 17;
    int64_t bytes = 0;
    for (int which = 0; which < SBP_COUNT(tokenizers); which++) {
        round r = {f, tokenizer_of(f, which), which, &random, 0, 0};
        for (int i = 0; i < 300; i++) {
            sbp_arena_mark mark = sbp_arena_begin(f->arena);
            assert_ok(f, sbp_guard(f->arena, f->diag, check_pieces, &r));
            sbp_arena_end(f->arena, mark);
        }
        if (tokenizers[which].whole ? r.early > 0 : r.late * 3 > r.early)
            fail_msg("%s (%d): %lld bytes before the end, %lld at it", tokenizers[which].path, which,
                     (long long)r.early, (long long)r.late);
        bytes += r.early + r.late;
        io_renew(f);
    }
    assert_true(bytes > 100000);
}

/* Nothing of ASCII text is held back. */
static void plain_text_comes_at_once(void **state) {
    io_fixture *f = *state;
    static const char text[] = "the cat in the house, and the end of it";
    for (int which = 0; which < SBP_COUNT(tokenizers); which++) {
        const sbp_tokenizer *t = tokenizer_of(f, which);
        sbp_stopping nothing = {0};
        sbp_text_stream *s = create(f, t, &nothing);
        sbp_text_piece piece;
        sbp_encoding e;
        size_t sum = 0, length, previous = 0;
        const char *whole;
        assert_ok(f, sbp_tokenizer_encode(t, f->arena, f->diag, text, strlen(text), 0, &e));
        assert_true(e.count > 5);
        for (int64_t i = 0; i < e.count && !tokenizers[which].whole; i++) {
            assert_ok(f, sbp_text_stream_push(s, f->diag, e.ids[i], &piece));
            assert_ok(f, sbp_tokenizer_decode(t, f->arena, f->diag, e.ids, i + 1, true, &whole, &length));
            sum += piece.length;
            if (sum != length && !(tokenizers[which].one_late && sum >= previous))
                fail_msg("%s (%d): %zu bytes of %lld ids, of %zu", tokenizers[which].path, which, sum,
                         (long long)i + 1, length);
            previous = length;
        }
        sbp_text_stream_destroy(s);
        io_renew(f);
    }
}

/* ---- stop strings ------------------------------------------------------------------------------------- */

/* Where the text is cut by a search in the whole: the string that ends first, of those the longest. */
static bool find_cut(const char *text, size_t length, const sbp_stopping *stopping, size_t *cut) {
    size_t best_end = SIZE_MAX;
    for (int32_t i = 0; i < stopping->string_count; i++) {
        size_t n = strlen(stopping->strings[i]);
        const char *at = memmem(text, length, stopping->strings[i], n);
        size_t end = at ? (size_t)(at - text) + n : SIZE_MAX;
        if (end < best_end || (at && end == best_end && end - n < *cut)) {
            best_end = end;
            *cut = end - n;
        }
    }
    return best_end != SIZE_MAX;
}

/* Bytes at the end that begin a stop string. */
static size_t held_back(const char *text, size_t length, const sbp_stopping *stopping) {
    size_t most = 0;
    for (int32_t i = 0; i < stopping->string_count; i++)
        for (size_t n = strlen(stopping->strings[i]) - 1; n > most; n--)
            if (n <= length && memcmp(text + length - n, stopping->strings[i], n) == 0)
                most = n;
    return most;
}

/* Parts of the text, some with a character more. */
static const char *random_string(round *r, const char *text, size_t length) {
    size_t begin = below(r->random, length), end = begin + 1 + below(r->random, 9);
    while (begin > 0 && ((unsigned char)text[begin] & 0xc0) == 0x80)
        begin--;
    end = end < length ? end : length;
    while (end < length && ((unsigned char)text[end] & 0xc0) == 0x80)
        end++;
    const char *string = sbp_arena_printf(r->f->arena, "%.*s%s", (int)(end - begin), text + begin,
                                          below(r->random, 3) == 0 ? "e" : "");
    return *string ? string : "e"; /* a NUL was there */
}

/* What is final after each id, by a stream without stop strings, says when the text must end and what may
 * have come until then. */
static sbp_status check_stops(void *user) {
    round *r = user;
    io_fixture *f = r->f;
    int32_t ids[MOST_IDS];
    int64_t n = random_ids(f, r->t, r->random, ids);
    const char *whole, *strings[MOST_STRINGS];
    size_t length, at = 0;
    assert_ok(f, sbp_tokenizer_decode(r->t, f->arena, f->diag, ids, n, true, &whole, &length));
    if (length == 0)
        return SBP_OK;
    sbp_stopping stopping = {.strings = strings, .string_count = 1 + (int32_t)below(r->random, MOST_STRINGS)},
                 nothing = {0};
    for (int32_t i = 0; i < stopping.string_count; i++)
        strings[i] = random_string(r, whole, length);
    sbp_text_stream *s = create(f, r->t, &stopping), *plain = create(f, r->t, &nothing);
    sbp_text_piece piece = {.text = ""}, next;
    sbp_text got, final;
    sbp_text_init(&got, f->arena);
    sbp_text_init(&final, f->arena);
    for (int64_t i = 0; i <= n && piece.finish == SBP_FINISH_NOT; i++) {
        if (i < n) {
            assert_ok(f, sbp_text_stream_push(s, f->diag, ids[i], &piece));
            assert_ok(f, sbp_text_stream_push(plain, f->diag, ids[i], &next));
        } else {
            assert_ok(f, sbp_text_stream_flush(s, f->diag, &piece));
            assert_ok(f, sbp_text_stream_flush(plain, f->diag, &next));
        }
        add_piece(&got, &piece);
        add_piece(&final, &next);
        bool stops = find_cut(final.data, final.length, &stopping, &at);
        size_t expected = stops    ? at
                          : i == n ? length
                                   : final.length - held_back(final.data, final.length, &stopping);
        if (piece.finish != (stops ? SBP_FINISH_STOP : SBP_FINISH_NOT) || got.length != expected ||
            memcmp(got.data, whole, got.length) != 0)
            fail_msg("%s (%d), id %lld of %lld: %s, '%s' of '%s', expected %s at %zu; strings '%s' ..",
                     tokenizers[r->which].path, r->which, (long long)i + 1, (long long)n,
                     piece.finish ? "stops" : "goes on", got.data, final.data, stops ? "a stop" : "none",
                     expected, strings[0]);
        r->early += stops && at > 0;
        r->late += i == n && !stops;
    }
    assert_true(find_cut(whole, length, &stopping, &at) == (piece.finish == SBP_FINISH_STOP));
    if (piece.finish == SBP_FINISH_STOP) {
        assert_true(got.length == at);
        assert_fails(f, SBP_INTERNAL, "behind the end", sbp_text_stream_push(s, f->diag, 1, &next));
    }
    sbp_text_stream_destroy(s);
    sbp_text_stream_destroy(plain);
    return SBP_OK;
}

static void stop_strings_are_found_as_in_the_whole_text(void **state) {
    io_fixture *f = *state;
    uint64_t random = 23;
    for (int which = 0; which < SBP_COUNT(tokenizers); which++) {
        round r = {f, tokenizer_of(f, which), which, &random, 0, 0};
        for (int i = 0; i < 300; i++) {
            sbp_arena_mark mark = sbp_arena_begin(f->arena);
            assert_ok(f, sbp_guard(f->arena, f->diag, check_stops, &r));
            sbp_arena_end(f->arena, mark);
        }
        assert_true(r.early > 40 && r.late > 0);
        io_renew(f);
    }
}

/* ---- ends --------------------------------------------------------------------------------------------- */

/* Ids of a text, each pushed; what came and why it ended after how many. */
static int64_t generate(io_fixture *f, const sbp_tokenizer *t, const sbp_stopping *stopping,
                        const int32_t *ids, int64_t n, char *out, sbp_finish *finish) {
    sbp_text_stream *s = create(f, t, stopping);
    sbp_text_piece piece = {.text = ""};
    int64_t i;
    *out = 0;
    for (i = 0; i < n && piece.finish == SBP_FINISH_NOT; i++) {
        assert_ok(f, sbp_text_stream_push(s, f->diag, ids[i], &piece));
        memcpy(out + strlen(out), piece.text, piece.length + 1);
    }
    *finish = piece.finish;
    assert_ok(f, sbp_text_stream_flush(s, f->diag, &piece));
    memcpy(out + strlen(out), piece.text, piece.length + 1);
    *finish = piece.finish ? piece.finish : *finish;
    sbp_text_stream_destroy(s);
    return i;
}

static void texts_end_for_a_reason(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *t = load(f, DATA "llama2.json");
    int32_t id[128];
    for (char c = 'a'; c <= 'z'; c++)
        id[(int)c] = sbp_tokenizer_id(t, &c, 1);
    int32_t high = sbp_tokenizer_id(t, "<0xC3>", 6), low = sbp_tokenizer_id(t, "<0xA9>", 6);
    int32_t eos = sbp_tokenizer_id(t, "</s>", 4), bos = sbp_tokenizer_id(t, "<s>", 3);
    assert_true(id['a'] > 0 && id['b'] > 0 && id['e'] > 0 && high > 0 && low > 0 && eos >= 0 && bos >= 0);
    const int32_t plain[] = {id['a'], bos, id['b'], id['e'], id['a'], id['b']};
    const int32_t ended[] = {id['a'], id['b'], eos, id['e']}, cut_off[] = {id['a'], high},
                  two[] = {high, low, eos};
    const int32_t run[] = {id['a'], high, low}, ends[] = {eos, id['e']}, none[] = {eos};
    const struct {
        const int32_t *ids;
        int64_t n;
        const char *stop;
        const int32_t *ends;
        int32_t end_count;
        int64_t most;
        const char *text;
        sbp_finish finish;
        int64_t taken;
    } cases[] = {
        {plain, 6, NULL, none, 1, 0, "abeab", SBP_FINISH_NOT, 6},
        {plain, 6, NULL, none, 1, 6, "abeab", SBP_FINISH_LENGTH, 6},
        {plain, 6, NULL, none, 1, 3, "ab", SBP_FINISH_LENGTH, 3}, /* special tokens count */
        {plain, 6, NULL, none, 1, 1, "a", SBP_FINISH_LENGTH, 1},
        {plain, 6, NULL, ends, 2, 0, "ab", SBP_FINISH_STOP, 4}, /* of no special token either is there text */
        {ended, 4, NULL, none, 1, 0, "ab", SBP_FINISH_STOP, 3},
        {ended, 4, NULL, none, 1, 3, "ab", SBP_FINISH_STOP, 3},
        {ended, 4, NULL, none, 1, 2, "ab", SBP_FINISH_LENGTH, 2},
        {ended, 4, NULL, NULL, 0, 0, "abe", SBP_FINISH_NOT,
         4}, /* which it is does not end a text by itself */
        {plain, 6, "b", none, 1, 0, "a", SBP_FINISH_STOP, 3},
        {plain, 6, "b", none, 1, 3, "a", SBP_FINISH_STOP, 3},
        {plain, 6, "bea", none, 1, 0, "a", SBP_FINISH_STOP, 5},
        {plain, 6, "bea", none, 1, 4, "abe", SBP_FINISH_LENGTH, 4}, /* what was held back comes */
        {plain, 6, "bee", none, 1, 0, "abeab", SBP_FINISH_NOT, 6},
        {ended, 4, "be", none, 1, 0, "ab", SBP_FINISH_STOP, 3},
        {cut_off, 2, NULL, none, 1, 0, "a\xef\xbf\xbd", SBP_FINISH_NOT, 2},
        {cut_off, 2, NULL, none, 1, 2, "a\xef\xbf\xbd", SBP_FINISH_LENGTH, 2},
        {two, 3, NULL, none, 1, 0, "\xc3\xa9", SBP_FINISH_STOP, 3},
        {run, 3, "\xc3\xa9", none, 1, 0, "a", SBP_FINISH_STOP, 3}, /* the end of the run shows it */
        {run, 3, "\xc3\xa9", none, 1, 3, "a", SBP_FINISH_STOP, 3},
        {run, 3, "\xc3\xa8", none, 1, 3, "a\xc3\xa9", SBP_FINISH_LENGTH, 3},
    };
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        char text[100];
        sbp_finish finish;
        sbp_stopping stopping = {.end_ids = cases[i].ends,
                                 .end_id_count = cases[i].end_count,
                                 .strings = &cases[i].stop,
                                 .string_count = cases[i].stop != NULL,
                                 .most_tokens = cases[i].most};
        int64_t taken = generate(f, t, &stopping, cases[i].ids, cases[i].n, text, &finish);
        if (strcmp(text, cases[i].text) != 0 || finish != cases[i].finish || taken != cases[i].taken)
            fail_msg("case %d: '%s', %d after %lld; expected '%s', %d after %lld", i, text, finish,
                     (long long)taken, cases[i].text, cases[i].finish, (long long)cases[i].taken);
    }
    assert_string_equal(sbp_finish_name(SBP_FINISH_STOP), "stop");
    assert_string_equal(sbp_finish_name(SBP_FINISH_LENGTH), "length");
    assert_null(sbp_finish_name(SBP_FINISH_NOT));
}

static void wrong_settings_and_lack_of_memory(void **state) {
    io_fixture *f = *state;
    const sbp_tokenizer *t = load(f, DATA "llama2.json");
    const char *strings[] = {"a", "", "\xc3"}, *stop = "abc";
    sbp_text_stream *s;
    sbp_text_piece piece;
    assert_fails(
        f, SBP_USAGE, "stop string 2 is empty",
        sbp_text_stream_create(t, f->diag, &(sbp_stopping){.strings = strings, .string_count = 2}, &s));
    strings[1] = "b";
    assert_fails(
        f, SBP_USAGE, "stop string 3 is no UTF-8",
        sbp_text_stream_create(t, f->diag, &(sbp_stopping){.strings = strings, .string_count = 3}, &s));
    assert_fails(f, SBP_USAGE, "a limit of -1 new tokens",
                 sbp_text_stream_create(t, f->diag, &(sbp_stopping){.most_tokens = -1}, &s));
    s = create(f, t, &(sbp_stopping){0});
    assert_fails(f, SBP_INPUT, "the id -1 at position 0", sbp_text_stream_push(s, f->diag, -1, &piece));
    sbp_text_stream_destroy(s);
    int failed = 0;
    for (int64_t n = 1;; n++) { /* each allocation fails in turn */
        sbp_test_fail_allocation(n);
        sbp_status status =
            sbp_text_stream_create(t, NULL, &(sbp_stopping){.strings = &stop, .string_count = 1}, &s);
        for (int32_t id = 5; status == SBP_OK && id < 300; id += 7)
            status = sbp_text_stream_push(s, NULL, id, &piece);
        if (status == SBP_OK)
            status = sbp_text_stream_flush(s, NULL, &piece);
        sbp_test_fail_allocation(0);
        sbp_text_stream_destroy(s);
        if (status == SBP_OK)
            break;
        assert_int_equal(status, SBP_MACHINE);
        failed++;
    }
    assert_true(failed >= 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pieces_are_what_all_ids_decode_to, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(plain_text_comes_at_once, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(stop_strings_are_found_as_in_the_whole_text, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(texts_end_for_a_reason, io_setup, io_teardown),
        cmocka_unit_test_setup_teardown(wrong_settings_and_lack_of_memory, io_setup, io_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
