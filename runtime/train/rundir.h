/* rundir.h: the directory of a run (--out): who may write in it, what lies there, and how things go.
 *
 * One process writes at a time: it holds a lock (fcntl) on the file `.lock`, which ends with the process,
 * however that ends, and with the child that dir->lock was left open in (runtime/cli/sbprun/child.h). Who is
 * refused has written nothing. What a process leaves that is killed has a name that sbp_rundir_is_leftover
 * knows, and goes when the next one begins.
 *
 * Nothing is deleted or replaced through a symbolic link: names are resolved in the open directory, a link is
 * removed as what it is, and no directory is entered by one. (The directory itself may be given as a link.)
 * And nothing that this program did not make: a directory goes only with the file in it that shows that.
 *
 * Errors: SBP_IO, with the path. Threads: one at a time.
 */
#ifndef SBP_RUNTIME_TRAIN_RUNDIR_H
#define SBP_RUNTIME_TRAIN_RUNDIR_H

#include "ir/base/base.h"

#define SBP_RUNDIR_TEMPORARY                                                                                 \
    ".checkpoint-" /* directories that are becoming checkpoints, or ceasing to be                            \
                    */

#define SBP_RUNDIR_CHECKPOINT "trainer_state.json" /* is in every checkpoint */
#define SBP_RUNDIR_FOREIGN (-1) /* in place of an errno: it is there and not of this program */

typedef struct sbp_rundir {
    const char *path;   /* as given; not copied */
    const char *option; /* that gave it, for messages; NULL: --out */
    int fd;             /* of the directory; -1: not open */
    int lock;           /* -1: not held */
    bool created;       /* by this process */
    bool begun;         /* the run writes; set by sbp_rundir_begin */
} sbp_rundir;

/* What a directory holds. */
typedef struct sbp_rundir_contents {
    bool run;          /* run.json of this program: the rest is of a run, or was put there later */
    bool model;        /* weights, named as a run's */
    int64_t newest;    /* step of the newest checkpoint, -1: none */
    char stranger[60]; /* something that no run writes, "" when there is none */
    char result[60];   /* something that is only there after run.json, "" when there is none */
} sbp_rundir_contents;

typedef enum sbp_rundir_mode {
    SBP_RUNDIR_LOOK,   /* only look: neither creates nor locks, but fails where another process writes */
    SBP_RUNDIR_READ,   /* likewise, of a directory that a process writes for this one */
    SBP_RUNDIR_EXISTS, /* lock it if it is there */
    SBP_RUNDIR_CREATE  /* with its parents if need be */
} sbp_rundir_mode;

/* Without CREATE, a path where nothing is leaves dir->fd -1. Fails where another process has the lock, naming
 * it, and keeps it for a second more. A dir that is open already stays as it is. Begins as {.option = ..,
 * .fd = -1, .lock = -1}. */
sbp_status sbp_rundir_open(sbp_rundir *dir, sbp_diag *diag, const char *path,
                           sbp_rundir_mode mode) SBP_CHECKED;
sbp_status sbp_rundir_look(const sbp_rundir *dir, sbp_diag *diag, sbp_rundir_contents *out) SBP_CHECKED;
/* From here on the process writes: removes what dead ones left. What cannot be removed is a warning. */
void sbp_rundir_begin(sbp_rundir *dir, sbp_diag *diag);
/* Removes checkpoints and weights of the run before (--overwrite). What cannot be removed is a warning. */
void sbp_rundir_remove_results(const sbp_rundir *dir, sbp_diag *diag);
/* Gives the lock back; removes the directory if this process created it and never began. */
void sbp_rundir_close(sbp_rundir *dir);

/* Step of a name "checkpoint-STEP", -1 of any other. */
int64_t sbp_rundir_step(const char *name);
/* The newest checkpoint older than `below`, -1: none. */
int64_t sbp_rundir_newest(const sbp_rundir *dir, int64_t below);
/* Removes checkpoint-STEP, if it is there, renaming it first, so that what has its name is always whole. 0,
 * SBP_RUNDIR_FOREIGN, or the errno of what went wrong. */
int sbp_rundir_discard(const sbp_rundir *dir, int64_t step);
/* The same of any name: a link, or a directory with a file `mark`. */
int sbp_rundir_discard_name(const sbp_rundir *dir, const char *name, const char *mark);
/* Whether there is nothing of this name, or something that may be discarded. */
bool sbp_rundir_is_own(const sbp_rundir *dir, const char *name, const char *mark);
/* Renames within the directory; never over something: EEXIST. 0 or an errno. */
int sbp_rundir_rename(const sbp_rundir *dir, const char *from, const char *to);
/* What an error of these functions means. */
const char *sbp_rundir_error(int error);
/* Removes a file, a link or a directory with all that is in it: 0 or an errno. */
int sbp_rundir_remove(const sbp_rundir *dir, const char *name);

/* Whether a name is one that only an interrupted process leaves. */
bool sbp_rundir_is_leftover(const char *name);

/* Whether the path still leads to the open directory; where not, `now` says where that is, "" where it was
 * removed. What cannot be found out counts as yes. */
bool sbp_rundir_is_in_place(const sbp_rundir *dir, char *now, size_t size);
/* Whether the file of the lock that is held is still there: where not, somebody removes what the run
 * writes. */
bool sbp_rundir_has_lock(const sbp_rundir *dir);

#endif
