/* diag.c: diagnostics. */
#include "ir/base/diag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct message {
    struct message *next;
    sbp_severity severity;
    char text[];
} message;

struct sbp_diag {
    message *first, **last;
    int counts[3];
    sbp_diag_sink sink;
    void *sink_user;
    bool quiet;
    char *joined; /* the text of the latest sbp_diag_text */
    /* The beginning of the first message for which there was no memory: what has run out of memory can say
     * so. */
    char kept[500];
    sbp_severity kept_severity;
    bool keeps;
    char line[512]; /* the same for sbp_diag_text, where there is no memory for all messages */
};

static const char *const prefixes[] = {"note: ", "warning: ", "error: "};

sbp_diag *sbp_diag_create(void) {
    sbp_diag *diag = sbp_malloc(sizeof *diag);
    if (!diag)
        return NULL;
    memset(diag, 0, sizeof *diag);
    diag->last = &diag->first;
    return diag;
}

void sbp_diag_clear(sbp_diag *diag) {
    for (message *m = diag->first; m;) {
        message *next = m->next;
        free(m);
        m = next;
    }
    free(diag->joined);
    diag->joined = NULL;
    diag->first = NULL;
    diag->last = &diag->first;
    diag->keeps = false;
    memset(diag->counts, 0, sizeof diag->counts);
}

void sbp_diag_destroy(sbp_diag *diag) {
    if (!diag)
        return;
    sbp_diag_clear(diag);
    free(diag);
}

void sbp_diag_set_sink(sbp_diag *diag, sbp_diag_sink sink, void *user) {
    diag->sink = sink;
    diag->sink_user = user;
}

void sbp_diag_set_quiet(sbp_diag *diag) {
    diag->quiet = true;
}

/* The first error, or what there is until one comes. */
static void keep_beginning(sbp_diag *diag, sbp_severity severity, const char *text) {
    if (diag->keeps && diag->kept_severity >= severity)
        return;
    diag->keeps = true;
    diag->kept_severity = severity;
    snprintf(diag->kept, sizeof diag->kept, "%s", text);
}

static void diag_add(sbp_diag *diag, sbp_severity severity, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    sbp_diag_sink sink = diag->quiet && severity == SBP_NOTE ? NULL : diag->sink;
    message *m = length < 0 ? NULL : sbp_malloc(sizeof *m + (size_t)length + 1);
    if (m) {
        vsnprintf(m->text, (size_t)length + 1, format, again);
        m->next = NULL;
        m->severity = severity;
        *diag->last = m;
        diag->last = &m->next;
        if (sink)
            sink(diag->sink_user, severity, m->text);
    } else {
        char beginning[sizeof diag->kept];
        vsnprintf(beginning, sizeof beginning, format, again);
        keep_beginning(diag, severity, beginning);
        if (sink)
            sink(diag->sink_user, severity, beginning);
    }
    diag->counts[severity]++;
    va_end(again);
}

static sbp_status fail_v(sbp_diag *diag, sbp_status status, const char *format, va_list args) {
    if (diag)
        diag_add(diag, SBP_ERROR, format, args);
    return status;
}

sbp_status(sbp_fail)(sbp_diag *diag, sbp_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fail_v(diag, status, format, args);
    va_end(args);
    return status;
}

void sbp_warn(sbp_diag *diag, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (diag)
        diag_add(diag, SBP_WARNING, format, args);
    va_end(args);
}

void sbp_note(sbp_diag *diag, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (diag)
        diag_add(diag, SBP_NOTE, format, args);
    va_end(args);
}

int sbp_diag_count(const sbp_diag *diag, sbp_severity severity) {
    return diag->counts[severity];
}

const char *sbp_diag_text(sbp_diag *diag, sbp_severity least) {
    size_t length = 1 + sizeof diag->line;
    for (const message *m = diag->first; m; m = m->next)
        length += strlen(m->text) + 12;
    free(diag->joined);
    diag->joined = sbp_malloc(length);
    for (const message *m = diag->first; m && !diag->joined; m = m->next)
        keep_beginning(diag, m->severity, m->text);
    bool kept = diag->keeps && diag->kept_severity >= least;
    if (kept)
        snprintf(diag->line, sizeof diag->line, "%s%s\n", prefixes[diag->kept_severity], diag->kept);
    if (!diag->joined)
        return kept ? diag->line : "";
    char *at = diag->joined;
    *at = 0;
    for (const message *m = diag->first; m; m = m->next)
        if (m->severity >= least)
            at += sprintf(at, "%s%s\n", prefixes[m->severity], m->text);
    if (kept)
        memcpy(at, diag->line, strlen(diag->line) + 1); /* counted in length */
    return diag->joined;
}

void sbp_diag_each(const sbp_diag *diag, sbp_diag_sink sink, void *user) {
    for (const message *m = diag->first; m; m = m->next)
        sink(user, m->severity, m->text);
    if (diag->keeps)
        sink(user, diag->kept_severity, diag->kept);
}
