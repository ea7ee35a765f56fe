/* profile.c: profiles by name or from files. */
#include "runtime/cli/sbpc/profile.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backends.h"
#include "backends/target.h"
#include "ir/base/file.h"
#include "ir/base/machine.h"

static const struct {
    const char *name, *text;
} profiles[] = {
#define PROFILE(name, text) {name, text},
#include "runtime/cli/sbpc/profiles.def"
#undef PROFILE
};

typedef enum value_kind { BYTES, ROWS } value_kind;

/* Where a value goes, and what it may be. */
typedef struct key {
    const char *name;
    void *to;
    value_kind kind;
    bool optional, given;
} key;

static sbp_status read_value(sbp_diag *diag, const char *from, key *k, const char *word) {
    int64_t whole;
    char *end;
    double number = strtod(word, &end);
    if (k->kind == BYTES && sbp_parse_bytes(NULL, word, &whole) == SBP_OK) {
        *(int64_t *)k->to = whole;
    } else if (k->kind == ROWS && *end == 0 && number >= 1 && number <= 1e9) {
        *(int64_t *)k->to = (int64_t)number;
    } else {
        return sbp_fail(diag, SBP_INPUT, "%s: %s: '%s' is not a %s", from, k->name, word,
                        k->kind == BYTES ? "size like 80GiB" : "positive number");
    }
    k->given = true;
    return SBP_OK;
}

/* What kernels need and how fast those are that no library has is the backend's to say, of an architecture of
 * its own; memory, throughput and the process are the profile's. */
static sbp_status describe_backend(sbp_diag *diag, const char *from, const char *backend,
                                   sbp_target_info *out) {
    char name[32];
    const char *arch = strchr(backend, ':');
    snprintf(name, sizeof name, "%.*s", (int)(arch ? arch - backend : (ptrdiff_t)strlen(backend)), backend);
    const sbp_target *target = sbp_target_find(name);
    if (!target)
        return sbp_fail(diag, SBP_INPUT, "%s: backend: there is no '%s' in this build; leave the key out",
                        from, name);
    SBP_TRY(target->describe(arch ? arch + 1 : NULL, diag, out));
    out->name = from;
    out->footprint = NULL;
    out->throughput = (sbp_throughput){0};
    out->max_allocation_bytes = out->chunk_most = 0;
    return SBP_OK;
}

static sbp_status parse(sbp_arena *arena, sbp_diag *diag, const char *from, const char *text,
                        sbp_profile *out) {
    sbp_target_info *i = &out->info;
    *out = (sbp_profile){.name = from};
    *i = (sbp_target_info){
        .name = from, .alignment_bytes = 256, .has_copy_queue = true, .default_compute = SBP_BF16};
    i->supports[SBP_BF16] = i->supports[SBP_F32] = true;
    for (const char *at = text, *word; (word = sbp_throughput_word(arena, &at)) != NULL;)
        if (strcmp(word, "backend") == 0 && (word = sbp_throughput_word(arena, &at)) != NULL)
            SBP_TRY(describe_backend(diag, from, word, i));
    key keys[] = {{"memory", &out->memory_bytes, BYTES, false, false},
                  {"host_memory", &out->host_memory_bytes, BYTES, true, false},
                  {"process", &i->runtime_bytes, BYTES, false, false},
                  {"allocation", &i->max_allocation_bytes, BYTES, true, false},
                  {"chunk", &i->chunk, ROWS, false, false},
                  {"head_chunk", &i->head_chunk, ROWS, false, false},
                  {"chunk_most", &i->chunk_most, ROWS, true, false}};
    for (const char *at = text, *word; (word = sbp_throughput_word(arena, &at)) != NULL;) {
        const char *value = sbp_throughput_word(arena, &at);
        key *open = NULL;
        for (int k = 0; k < SBP_COUNT(keys); k++)
            if (strcmp(keys[k].name, word) == 0)
                open = &keys[k];
        char *end = NULL;
        double number = value ? strtod(value, &end) : 0;
        if (open)
            SBP_TRY(read_value(diag, from, open, value ? value : ""));
        else if (strcmp(word, "backend") == 0 && value)
            continue;
        else if (!sbp_throughput_set(&i->throughput, word, number))
            return sbp_fail(diag, SBP_INPUT, "%s: unknown key '%s' of a device profile", from, word);
        else if (!value || *end || !(number > 0 && number < 1e30))
            return sbp_fail(diag, SBP_INPUT, "%s: %s: '%s' is not a positive number", from, word,
                            value ? value : "");
    }
    const char *missing = sbp_throughput_missing(&i->throughput);
    for (int k = 0; k < SBP_COUNT(keys) && !missing; k++)
        if (!keys[k].given && !keys[k].optional)
            missing = keys[k].name;
    return missing ? sbp_fail(diag, SBP_INPUT, "%s: a device profile needs '%s'", from, missing) : SBP_OK;
}

/* The host's processor by its table, with as much memory as there is here: what an estimate for another
 * machine is compared with. */
static sbp_status describe_host(sbp_diag *diag, sbp_profile *out) {
    *out = (sbp_profile){.name = sbp_backend_of_host()->name, .memory_bytes = sbp_machine_memory()};
    return sbp_target_find(out->name)->describe(NULL, diag, &out->info);
}

const char *sbp_profile_at(int32_t index) {
    return index < SBP_COUNT(profiles) ? profiles[index].name : NULL;
}

/* The letters and digits of a word, small: "RTX 4090" is "rtx4090". */
static void simplify(const char *word, char *out, size_t size) {
    size_t n = 0;
    for (; *word && n + 1 < size; word++)
        if (isalnum((unsigned char)*word))
            out[n++] = (char)tolower((unsigned char)*word);
    out[n] = 0;
}

/* The one that is called so but for its memory ("4090", "L4"), else whose name has all of the word in it
 * ("A100 40GB"); -1: none or several. */
static int find_like(const char *name) {
    char wanted[64], known[64], part[64];
    int found = -1, called = -1, count = 0, named = 0;
    simplify(name, wanted, sizeof wanted);
    for (int p = 0; p < SBP_COUNT(profiles) && strlen(wanted) >= 2; p++) {
        snprintf(part, sizeof part, "%.*s", (int)strcspn(profiles[p].name, "-"), profiles[p].name);
        simplify(profiles[p].name, known, sizeof known);
        if (strcmp(part, wanted) == 0 || (strncmp(part, "rtx", 3) == 0 && strcmp(part + 3, wanted) == 0)) {
            called = p;
            named++;
        }
        if (strstr(known, wanted)) {
            found = p;
            count++;
        }
    }
    return named == 1 ? called : count == 1 ? found : -1;
}

/* "24GiB": a card of that memory, else as the one with the least memory that has as much. */
static sbp_status find_by_size(sbp_arena *arena, sbp_diag *diag, const char *name, int64_t bytes,
                               sbp_profile *out) {
    int best = -1;
    int64_t least = INT64_MAX;
    sbp_profile card;
    for (int p = 0; p < SBP_COUNT(profiles); p++) {
        SBP_TRY(parse(arena, diag, profiles[p].name, profiles[p].text, &card));
        if (card.memory_bytes >= bytes && card.memory_bytes < least) {
            best = p;
            least = card.memory_bytes;
        }
    }
    if (best < 0)
        return sbp_fail(diag, SBP_USAGE, "%s: no card that is known here has as much memory", name);
    SBP_TRY(parse(arena, diag, name, profiles[best].text, out));
    out->memory_bytes = bytes;
    sbp_note(diag, "%s: as fast as %s is taken to be", name, profiles[best].name);
    return SBP_OK;
}

sbp_status sbp_profile_find(sbp_arena *arena, sbp_diag *diag, const char *option, const char *name,
                            sbp_profile *out) {
    int64_t bytes;
    for (int p = 0; p < SBP_COUNT(profiles); p++)
        if (strcmp(profiles[p].name, name) == 0)
            return parse(arena, diag, name, profiles[p].text, out);
    if (sbp_backend_is_a(name, SBP_BACKEND_HOST))
        return describe_host(diag, out);
    int like = sbp_file_exists(name) ? -1 : find_like(name);
    if (like >= 0)
        return parse(arena, diag, profiles[like].name, profiles[like].text, out);
    if (!sbp_file_exists(name) && strpbrk(name, "gGmMtT") && sbp_parse_bytes(NULL, name, &bytes) == SBP_OK)
        return find_by_size(arena, diag, name, bytes, out);
    if (!sbp_file_exists(name)) {
        sbp_text names;
        sbp_text_init(&names, arena);
        for (int p = 0; p < SBP_COUNT(profiles); p++)
            sbp_text_add(&names, " %s", profiles[p].name);
        return sbp_fail(
            diag, SBP_USAGE,
            "--%s %s: it is neither a file, nor a size such as 24GiB, nor one of%s %s (GPUs of compute "
            "capability below 8.0, as T4 and V100, are not planned for)",
            option, name, names.data, sbp_backend_of_host()->name);
    }
    const char *text;
    size_t length;
    SBP_TRY(sbp_file_read(arena, diag, name, &text, &length));
    return parse(arena, diag, name, text, out);
}
