/* pieces.h: buffers of an executor in files that several ranks write, each what it has; and read by any
 * number of ranks, each what it wants.
 *
 * DIR/optimizer-00001-of-0000N.safetensors, one of each rank, has tensors "NAME[FIRST:END]": these elements
 * of the buffer that the list calls so, as they are in memory, in one dimension. What ranks have shares of,
 * each writes its share of; of the rest each writes an equal part, so that all write as many bytes. DIR/
 * optimizer.safetensors.index.json says which file has which, as indices of Hugging Face do.
 *
 * Errors: SBP_IO where a file cannot be read or written; SBP_INPUT where files do not have every element of
 * every buffer once, have them in another type, or have what the list does not. Below a guard of the arena.
 */
#ifndef SBP_RUNTIME_TRAIN_PIECES_H
#define SBP_RUNTIME_TRAIN_PIECES_H

#include "runtime/run/executor.h"

typedef struct sbp_kept_buffer {
    const char *name;
    int32_t buffer;
} sbp_kept_buffer;

typedef struct sbp_pieces {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_executor *executor;
    const char *directory;
    const sbp_kept_buffer *list;
    int32_t count;
    struct sbp_weights *files; /* open ones */
    struct sbp_safetensors_writer *writer;
} sbp_pieces;

/* The file of a rank; rank 0 writes the index, too. *name: of the file, in the arena; NULL: there is nothing
 * to write. */
sbp_status sbp_pieces_save(sbp_pieces *pieces, int32_t rank, int32_t ranks, const char **name) SBP_CHECKED;
/* Whether a directory has such files. */
bool sbp_pieces_exist(sbp_arena *arena, const char *directory);
/* What this process has of all buffers. */
sbp_status sbp_pieces_load(sbp_pieces *pieces) SBP_CHECKED;
/* Closes what is open, after the guard. */
void sbp_pieces_close(sbp_pieces *pieces);

#endif
