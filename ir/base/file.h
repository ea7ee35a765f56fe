/* file.h: whole files in, and files written so that a crash leaves the old or the new one, never half.
 *
 * Errors. Everything that goes wrong with a file is SBP_IO, with the path and the system's reason.
 * Threads. Different objects may be used by different threads at the same time.
 */
#ifndef SBP_IR_BASE_FILE_H
#define SBP_IR_BASE_FILE_H

#include "ir/base/base.h"

/* Reads all of `path` into the arena: *length bytes, and a NUL after them that is not counted. Needs no
 * guard by the caller; SBP_MACHINE when memory ran out. */
sbp_status sbp_file_read(sbp_arena *arena, sbp_diag *diag, const char *path, const char **data,
                         size_t *length) SBP_CHECKED;

/* Opens a regular file for reading; anything else (a pipe would block) is SBP_IO. The caller closes *fd. */
sbp_status sbp_file_open_regular(sbp_diag *diag, const char *path, int *fd) SBP_CHECKED;
bool sbp_file_exists(const char *path);
bool sbp_directory_exists(const char *path);
/* Whether both are there and are one file or directory, by whatever names. */
bool sbp_same_file(const char *a, const char *b);
/* "directory/name" in the arena (below a guard). */
char *sbp_file_join(sbp_arena *arena, const char *directory, const char *name);

/* Reads exactly `length` bytes at `offset`; SBP_IO with `path` in the message, also when the file ends
 * before. Thread safe: the file position is not used. */
sbp_status sbp_file_pread(sbp_diag *diag, int fd, const char *path, void *out, int64_t length,
                          int64_t offset) SBP_CHECKED;

/* A file being written beside `path` under a temporary name, which commit renames into place after
 * fsync (the directory is synced as well). What processes that were killed left of the same path goes first.
 * A path that exists and is no regular file (/dev/stdout, a pipe) is written directly. Owned by the caller
 * until commit or abort, both of which free it. */
typedef struct sbp_file_out sbp_file_out;

sbp_status sbp_file_out_open(sbp_diag *diag, const char *path, sbp_file_out **out) SBP_CHECKED;
/* Appends. */
sbp_status sbp_file_out_write(sbp_file_out *out, sbp_diag *diag, const void *data,
                              int64_t length) SBP_CHECKED;
/* Writes at an offset, without moving the position of sbp_file_out_write. */
sbp_status sbp_file_out_write_at(sbp_file_out *out, sbp_diag *diag, const void *data, int64_t length,
                                 int64_t offset) SBP_CHECKED;
/* Syncs and closes the file early, so that many finished ones hold no descriptors; only commit or abort
 * may follow. */
sbp_status sbp_file_out_finish(sbp_file_out *out, sbp_diag *diag) SBP_CHECKED;
/* Frees `out` in any case; on failure the temporary file is gone and the old one untouched. */
sbp_status sbp_file_out_commit(sbp_file_out *out, sbp_diag *diag) SBP_CHECKED;
/* Frees `out` and removes the temporary file. NULL is allowed. */
void sbp_file_out_abort(sbp_file_out *out);

/* Whether a name (without directory) is one of a temporary file as above, which a process that was killed
 * leaves. */
bool sbp_file_is_temporary(const char *name);

/* All of the above for text that is in memory. */
sbp_status sbp_file_write(sbp_diag *diag, const char *path, const void *data, size_t length) SBP_CHECKED;

#endif
