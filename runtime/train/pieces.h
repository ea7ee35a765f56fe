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

#include "frontends/formats/weights/weights.h"
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
    const char *checkpoint; /* text for the metadata of each file, NULL: none */
    const sbp_kept_buffer *list;
    int32_t count;
    sbp_weights *files; /* open ones */
    struct sbp_safetensors_writer *writer;
} sbp_pieces;

/* The file of a rank; rank 0 writes the index, too. *name: of the file, in the arena; NULL: there is nothing
 * to write. */
sbp_status sbp_pieces_save(sbp_pieces *pieces, int32_t rank, int32_t ranks, const char **name) SBP_CHECKED;
/* Whether a directory has such files. */
bool sbp_pieces_exist(sbp_arena *arena, const char *directory);
/* Opens them: `files`. */
sbp_status sbp_pieces_open(sbp_pieces *pieces) SBP_CHECKED;
/* What this process has of all buffers, of files that are open. */
sbp_status sbp_pieces_load(sbp_pieces *pieces) SBP_CHECKED;
/* Values that are loaded into a state of this name: finite, and of squares ("_sq") or of the largest of a
 * block ("_absmax") not negative. Another would make a later loss NaN, or keep its weight where it is, for
 * which the data are not to blame: SBP_INPUT, naming the tensor. */
sbp_status sbp_state_check(sbp_diag *diag, const sbp_weight *weight, const char *name, sbp_dtype dtype,
                           const void *values, int64_t count) SBP_CHECKED;
/* Closes what is open, after the guard. */
void sbp_pieces_close(sbp_pieces *pieces);

#endif
