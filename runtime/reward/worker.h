/* worker.h: a process that is asked by lines on its standard input and answers by lines on its standard
 * output. Neither side waits for the other to read: whatever can be read or written is, of all workers at
 * once.
 *
 * Threads: one at a time. */
#ifndef SBP_RUNTIME_REWARD_WORKER_H
#define SBP_RUNTIME_REWARD_WORKER_H

#include <sys/types.h>

#include "ir/base/base.h"

enum { SBP_WORKER_TAIL = 4096 };

typedef enum sbp_worker_news {
    SBP_WORKER_IDLE, /* not asked, or what it answered was taken: whoever takes it says so */
    SBP_WORKER_WAITING,
    SBP_WORKER_ANSWERED, /* `line` is there */
    SBP_WORKER_FAILED    /* it ended, or did not answer in time, or wrote too much: `failure` says so */
} sbp_worker_news;

typedef struct sbp_worker {
    const char *const *args; /* what runs; NULL at the end. args[0] is a path */
    const char *what;        /* "--reward 'a b'", for messages */
    int log;                 /* descriptor that its stderr is copied to; -1: none */

    pid_t pid;        /* 0: none runs */
    int in, out, err; /* its three streams; -1: closed */
    const char *request;
    size_t request_bytes, sent;
    char *answer; /* [answer_bytes] read so far, of capacity; the worker's, by sbp_malloc */
    size_t answer_bytes, capacity, taken;
    double begun, limit; /* seconds; limit 0: none */
    sbp_worker_news news;
    char *line; /* without its end */
    size_t line_bytes;
    char failure[200];
    char tail[SBP_WORKER_TAIL]; /* the last tail_bytes of its stderr */
    size_t tail_bytes;
} sbp_worker;

/* Starts it, in a process group of its own. SBP_MACHINE: it cannot be started. */
sbp_status sbp_worker_start(sbp_worker *worker, sbp_diag *diag) SBP_CHECKED;
/* Gives it a request of whole lines, which stays the caller's until there is news, and waits for a line; no
 * request: it comes by itself. seconds: most that this takes; 0: no limit. */
void sbp_worker_ask(sbp_worker *worker, const char *request, size_t bytes, double seconds);
/* Goes on until a worker is neither idle nor waiting. SBP_MACHINE: out of memory; else what interrupted
 * says. */
sbp_status sbp_workers_wait(sbp_worker *workers, int32_t count, sbp_diag *diag,
                            sbp_status (*interrupted)(void)) SBP_CHECKED;
/* Sends it the signal, for which it writes where it is to stderr, and reads that. */
void sbp_worker_look(sbp_worker *worker, int signal_number);
/* Several that are stopped gently need no more time than one where the input of all has ended before. */
void sbp_worker_end_input(sbp_worker *worker);
/* Ends it and its group and frees what it has; gently: its input ends first, and it has two seconds. */
void sbp_worker_stop(sbp_worker *worker, bool gently);

/* Adds the last lines that it wrote to stderr, each on a line behind two blanks. Below a guard. */
void sbp_worker_add_tail(const sbp_worker *worker, sbp_text *out);

#endif
