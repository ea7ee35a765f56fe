/* hub_fetch.h: names of the Hub to directories: what the cache lacks is fetched by huggingface_hub's program
 * `hf`, which shows its progress and has its own ways with tokens, mirrors and what was begun; no token is
 * read here, and there is no shell. Large files are compared with the hash that they are named by, once: that
 * they were is kept in $XDG_CACHE_HOME/streambp/hub. Below a guard.
 */
#ifndef SBP_FRONTENDS_FILES_HUB_FETCH_H
#define SBP_FRONTENDS_FILES_HUB_FETCH_H

#include "frontends/formats/files/hub.h"
#include "ir/base/args.h"

/* The directory of the model `text`: itself where there is such a path, else the snapshot of that name, which
 * is fetched if need be: all that a model is read from, or with `weights` false what describes it. SBP_IO: it
 * is neither; the reason says what to do. */
sbp_status sbp_hub_model(sbp_arena *arena, sbp_diag *diag, const char *text, bool weights,
                         const char **out) SBP_CHECKED;

/* Likewise where config.json is all that is read: nothing else is fetched. */
sbp_status sbp_hub_config(sbp_arena *arena, sbp_diag *diag, const char *text, const char **out) SBP_CHECKED;

/* Fetches the files of a repository that match (patterns end with NULL); the snapshot that this made. */
sbp_status sbp_hub_fetch(sbp_arena *arena, sbp_diag *diag, const sbp_hub_name *name,
                         const char *const *patterns, const char **out) SBP_CHECKED;
/* A file of a snapshot before it is read: its links lead nowhere out of its repository, and where it is named
 * by its hash, that is its hash. SBP_INPUT: it is not so. */
sbp_status sbp_hub_check_file(sbp_arena *arena, sbp_diag *diag, const char *snapshot,
                              const char *path) SBP_CHECKED;

/* HF_HUB_OFFLINE: nothing is fetched or sent. */
bool sbp_hub_is_offline(void);
/* Whether there is `hf`. */
bool sbp_hub_is_installed(sbp_arena *arena);
/* SBP_MACHINE, with `what` cannot be done without it: there is no `hf`. */
sbp_status sbp_hub_has_program(sbp_arena *arena, sbp_diag *diag, const char *what) SBP_CHECKED;
/* Runs `hf ARGS`, its standard output going to standard error, and waits. SBP_MACHINE: there is no
 * such program; what: what is not done without it. SBP_IO: it failed, and has said why. */
sbp_status sbp_hub_run(sbp_arena *arena, sbp_diag *diag, const char *what, const sbp_args *args) SBP_CHECKED;

#endif
