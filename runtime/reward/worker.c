/* worker.c: starting, asking and ending a process over three pipes. */
#include "runtime/reward/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ir/base/machine.h"

enum {
    SLICE_MS = 100,     /* between looks at whether it has ended, or something has interrupted */
    GENTLE_SLICES = 20, /* two seconds */
    LOOK_MS = 1000,     /* until it begins to say where it is */
    SILENCE_MS = 200,   /* that end what it says */
    LOOKS = 200,
    READ_BYTES = 64 * 1024,
    READS = 16, /* of a stream before the others have their turn */
    TAIL_LINES = 10
};

static const size_t most_answer_bytes = (size_t)1 << 30;

/* ---- starting ---------------------------------------------------------------------------------------- */

static void close_end(int *end) {
    if (*end >= 0)
        close(*end);
    *end = -1;
}

/* Both ends above the three that every process has, closed in other programs. */
static bool open_pipe(int ends[2]) {
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ends[0] = ends[1] = -1;
        return false;
    }
    for (int i = 0; i < 2; i++)
        if (ends[i] <= STDERR_FILENO) {
            int above = fcntl(ends[i], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
            close(ends[i]);
            ends[i] = above;
        }
    return ends[0] >= 0 && ends[1] >= 0;
}

/* In the child, after fork. Where it fails, the reason goes into the pipe. */
static _Noreturn void become(const char *const *args, pid_t parent, const int streams[3], int reason_end) {
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    for (int i = 0; i < 3; i++)
        dup2(streams[i], i);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent) /* or it has ended already */
        execv(args[0], (char *const *)(uintptr_t)args);
    int reason = errno;
    (void)!write(reason_end, &reason, sizeof reason);
    _exit(127);
}

/* What execv said: 0 when it has become the program. */
static int reason_of(int end) {
    int reason = 0;
    ssize_t got;
    do
        got = read(end, &reason, sizeof reason);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof reason ? reason : 0;
}

static void reap(pid_t pid) {
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

sbp_status sbp_worker_start(sbp_worker *w, sbp_diag *diag) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, said[2] = {-1, -1}, reason = 0;
    pid_t parent = getpid(), pid = -1;
    w->in = w->out = w->err = -1;
    if (open_pipe(in) && open_pipe(out) && open_pipe(err) && open_pipe(said))
        pid = fork();
    if (pid == 0)
        become(w->args, parent, (const int[]){in[0], out[1], err[1]}, said[1]);
    if (pid < 0)
        reason = errno;
    close_end(&in[0]);
    close_end(&out[1]);
    close_end(&err[1]);
    close_end(&said[1]);
    if (pid > 0) {
        setpgid(pid, pid); /* whoever of both comes first */
        reason = reason_of(said[0]);
        if (reason)
            reap(pid);
    }
    close_end(&said[0]);
    w->in = in[1];
    w->out = out[0];
    w->err = err[0];
    w->pid = reason ? 0 : pid;
    w->answer_bytes = w->taken = w->tail_bytes = w->request_bytes = w->sent = 0;
    if (reason) {
        sbp_worker_stop(w, false);
        return sbp_fail(diag, SBP_MACHINE, "%s: cannot start '%s': %s", w->what, w->args[0],
                        strerror(reason));
    }
    const int ends[] = {w->in, w->out, w->err};
    for (int i = 0; i < 3; i++)
        (void)fcntl(ends[i], F_SETFL, O_NONBLOCK);
    return SBP_OK;
}

/* ---- its streams ------------------------------------------------------------------------------------- */

static void copy_to_log(int log, const char *bytes, size_t count) {
    while (log >= 0 && count > 0) {
        ssize_t done = write(log, bytes, count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return; /* a log that is full stops nothing */
        bytes += done;
        count -= (size_t)done;
    }
}

static void keep_tail(sbp_worker *w, const char *bytes, size_t count) {
    if (count > SBP_WORKER_TAIL) {
        bytes += count - SBP_WORKER_TAIL;
        count = SBP_WORKER_TAIL;
    }
    size_t old = w->tail_bytes + count > SBP_WORKER_TAIL ? SBP_WORKER_TAIL - count : w->tail_bytes;
    memmove(w->tail, w->tail + w->tail_bytes - old, old);
    memcpy(w->tail + old, bytes, count);
    w->tail_bytes = old + count;
}

static void read_err(sbp_worker *w) {
    char bytes[READ_BYTES];
    for (int i = 0; i < READS && w->err >= 0; i++) {
        ssize_t got = read(w->err, bytes, sizeof bytes);
        if (got > 0) {
            copy_to_log(w->log, bytes, (size_t)got);
            keep_tail(w, bytes, (size_t)got);
        } else if (got == 0) {
            close_end(&w->err);
        } else if (errno != EINTR) {
            return;
        }
    }
}

/* Room for another read; false: out of memory. */
static bool grow(sbp_worker *w) {
    if (w->capacity - w->answer_bytes >= READ_BYTES)
        return true;
    size_t more = 2 * w->capacity + 2 * READ_BYTES;
    char *grown = sbp_realloc(w->answer, more);
    if (!grown)
        return false;
    w->answer = grown;
    w->capacity = more;
    return true;
}

static void fail_worker(sbp_worker *w, const char *how) {
    w->news = SBP_WORKER_FAILED;
    snprintf(w->failure, sizeof w->failure, "%s", how);
}

/* Looks for the end of a line in what came from `from` on. */
static void find_line(sbp_worker *w, size_t from) {
    char *end = memchr(w->answer + from, '\n', w->answer_bytes - from);
    if (!end)
        return;
    w->line = w->answer + w->taken;
    w->line_bytes = (size_t)(end - w->line);
    w->taken += w->line_bytes + 1;
    w->news = SBP_WORKER_ANSWERED;
}

/* False: out of memory. */
static bool read_out(sbp_worker *w) {
    for (int i = 0; i < READS && w->out >= 0 && w->news == SBP_WORKER_WAITING; i++) {
        if (!grow(w))
            return false;
        ssize_t got = read(w->out, w->answer + w->answer_bytes, READ_BYTES);
        if (got > 0) {
            w->answer_bytes += (size_t)got;
            find_line(w, w->answer_bytes - (size_t)got);
            if (w->news == SBP_WORKER_WAITING && w->answer_bytes > most_answer_bytes)
                fail_worker(w, "wrote more than 1 GiB without the end of a line");
        } else if (got == 0) {
            close_end(&w->out);
        } else if (errno != EINTR) {
            return true;
        }
    }
    return true;
}

static void write_in(sbp_worker *w) {
    while (w->in >= 0 && w->sent < w->request_bytes) {
        ssize_t done = write(w->in, w->request + w->sent, w->request_bytes - w->sent);
        if (done > 0)
            w->sent += (size_t)done;
        else if (done < 0 && errno == EAGAIN)
            return;
        else if (done >= 0 || errno != EINTR)
            close_end(&w->in); /* it reads no more, and may answer even so */
    }
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

/* It stays to be waited for, and its number its own. how: why; 0: it runs. */
static bool has_ended(const sbp_worker *w, siginfo_t *how) {
    how->si_pid = 0;
    return waitid(P_PID, (id_t)w->pid, how, WEXITED | WNOHANG | WNOWAIT) == 0 && how->si_pid == w->pid;
}

void sbp_worker_ask(sbp_worker *w, const char *request, size_t bytes, double seconds) {
    const bool unread = w->sent < w->request_bytes;
    w->request = request;
    w->request_bytes = bytes;
    w->sent = 0;
    w->begun = sbp_seconds();
    w->limit = seconds;
    w->news = SBP_WORKER_WAITING;
    w->answer_bytes -= w->taken;
    if (w->answer_bytes > 0) { /* what it has said unasked is its answer, and will be a wrong one */
        memmove(w->answer, w->answer + w->taken, w->answer_bytes);
        w->taken = 0;
        find_line(w, 0);
    }
    w->taken = w->news == SBP_WORKER_ANSWERED ? w->taken : 0;
    if (unread || (bytes > 0 && w->in < 0))
        fail_worker(w,
                    unread ? "answered without reading the whole request" : "has closed its standard input");
}

static void say_end(sbp_worker *w, const siginfo_t *how) {
    char text[120];
    if (how->si_pid == 0)
        snprintf(text, sizeof text, "closed its standard %s", w->out < 0 ? "output" : "input");
    else if (how->si_code == CLD_EXITED)
        snprintf(text, sizeof text, "ended with status %d", how->si_status);
    else
        snprintf(text, sizeof text, "was ended by signal %d (%s)", how->si_status, strsignal(how->si_status));
    fail_worker(w, text);
}

/* Reads and writes what there is; *ready: what poll said of in, out and err. False: out of memory. */
static bool serve(sbp_worker *w, const struct pollfd *ready) {
    siginfo_t how;
    bool ended = has_ended(w, &how); /* before the last reads: nothing comes behind these */
    if (ready[0].revents)
        write_in(w);
    if (ended || ready[2].revents)
        read_err(w);
    if (!read_out(w))
        return false;
    if (w->news != SBP_WORKER_WAITING)
        return true;
    size_t before = w->answer_bytes;
    if (w->out < 0 || ended || (w->in < 0 && w->sent < w->request_bytes)) {
        while (w->out >= 0 && w->news == SBP_WORKER_WAITING) { /* in more than READS pieces */
            if (!read_out(w))
                return false;
            if (w->answer_bytes == before)
                break;
            before = w->answer_bytes;
        }
        for (int i = 0; !ended && i < 2; i++) { /* it closes its streams, then it ends */
            struct timespec slice = {0, SLICE_MS * 500000L};
            ended = has_ended(w, &how);
            if (!ended)
                nanosleep(&slice, NULL);
        }
        read_err(w);
        if (w->news == SBP_WORKER_WAITING)
            say_end(w, &how);
    } else if (w->limit > 0 && sbp_seconds() - w->begun > w->limit) {
        char text[120];
        snprintf(text, sizeof text, "gave no answer within %g s%s", w->limit,
                 w->sent < w->request_bytes ? ", and has not read all of the request" : "");
        fail_worker(w, text);
    }
    return true;
}

/* What poll shall look at of a worker, in three places. */
static void watch(const sbp_worker *w, struct pollfd *out) {
    bool on = w->news == SBP_WORKER_WAITING && w->pid;
    out[0] = (struct pollfd){.fd = on && w->sent < w->request_bytes ? w->in : -1, .events = POLLOUT};
    out[1] = (struct pollfd){.fd = on ? w->out : -1, .events = POLLIN};
    out[2] = (struct pollfd){.fd = w->pid ? w->err : -1, .events = POLLIN};
}

sbp_status sbp_workers_wait(sbp_worker *workers, int32_t count, sbp_diag *diag,
                            sbp_status (*interrupted)(void)) {
    struct pollfd *ready = sbp_malloc((size_t)count * 3 * sizeof *ready);
    sbp_status status = ready ? SBP_OK : SBP_MACHINE;
    for (bool news = false; status == SBP_OK && !news;) {
        status = interrupted ? interrupted() : SBP_OK;
        if (status != SBP_OK)
            break;
        double wait = SLICE_MS;
        for (int32_t i = 0; i < count; i++) {
            const sbp_worker *w = &workers[i];
            watch(w, ready + 3 * i);
            if (w->news > SBP_WORKER_WAITING)
                wait = 0; /* asked, and it had answered before */
            else if (w->news == SBP_WORKER_WAITING && w->limit > 0 &&
                     w->begun + w->limit - sbp_seconds() < wait / 1000)
                wait = 1000 * (w->begun + w->limit - sbp_seconds());
        }
        (void)poll(ready, (nfds_t)count * 3, wait > 0 ? (int)wait + 1 : 0);
        for (int32_t i = 0; i < count; i++) {
            sbp_worker *w = &workers[i];
            if (w->news == SBP_WORKER_WAITING && !serve(w, ready + 3 * i))
                status = SBP_MACHINE;
            else if (w->news != SBP_WORKER_WAITING)
                read_err(w);
            news |= w->news > SBP_WORKER_WAITING;
        }
    }
    free(ready);
    return status == SBP_MACHINE ? sbp_fail(diag, status, "out of memory for what reward functions answer")
                                 : status;
}

/* ---- ending ------------------------------------------------------------------------------------------ */

/* Whether it ends by itself; it is read meanwhile, so that it does not wait for that. */
static bool ends_gently(sbp_worker *w) {
    siginfo_t how;
    for (int i = 0; i < GENTLE_SLICES; i++) {
        struct pollfd ready[] = {{.fd = w->out, .events = POLLIN}, {.fd = w->err, .events = POLLIN}};
        if (has_ended(w, &how))
            return true;
        if (ready[0].fd < 0 && ready[1].fd < 0) {
            struct timespec slice = {0, SLICE_MS * 1000000L / 10};
            nanosleep(&slice, NULL);
        } else {
            (void)poll(ready, 2, SLICE_MS);
        }
        char nothing[4096];
        ssize_t got = w->out >= 0 ? read(w->out, nothing, sizeof nothing) : -1;
        if (got == 0)
            close_end(&w->out);
        read_err(w);
    }
    return has_ended(w, &how);
}

void sbp_worker_look(sbp_worker *w, int signal_number) {
    if (w->pid <= 0 || kill(w->pid, signal_number) != 0)
        return;
    for (int i = 0, wait = LOOK_MS; i < LOOKS && w->err >= 0; i++, wait = SILENCE_MS) {
        struct pollfd ready = {.fd = w->err, .events = POLLIN};
        if (poll(&ready, 1, wait) == 0)
            return;
        read_err(w);
    }
}

void sbp_worker_end_input(sbp_worker *w) {
    close_end(&w->in);
}

void sbp_worker_stop(sbp_worker *w, bool gently) {
    sbp_worker_end_input(w);
    if (w->pid > 0) {
        if (gently)
            (void)ends_gently(w);
        kill(-w->pid, SIGKILL); /* its number is the group's while it was not waited for */
        reap(w->pid);
        read_err(w);
    }
    w->pid = 0;
    close_end(&w->out);
    close_end(&w->err);
    free(w->answer);
    w->answer = w->line = NULL;
    w->answer_bytes = w->capacity = w->taken = 0;
}

void sbp_worker_add_tail(const sbp_worker *w, sbp_text *out) {
    size_t end = w->tail_bytes;
    while (end > 0 && strchr("\r\n", w->tail[end - 1]))
        end--;
    size_t from = end;
    for (int lines = 0; from > 0; from--)
        if (w->tail[from - 1] == '\n' && ++lines == TAIL_LINES)
            break;
    while (from < end) {
        const char *line = w->tail + from, *stop = memchr(line, '\n', end - from);
        size_t bytes = stop ? (size_t)(stop - line) : end - from;
        sbp_text_add(out, "\n  ");
        for (size_t i = 0; i < bytes; i++) /* of other programs: no controls of the terminal */
            sbp_text_add_n(out, (unsigned char)line[i] < ' ' ? " " : line + i, 1);
        from += bytes + 1;
    }
}
