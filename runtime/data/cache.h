/* cache.h: tokenized data on disk, so that the next start does not tokenize again.
 *
 * A cache is a directory of its own, ROOT/KEY, with the arrays of a dataset as they are in memory (arrays.h)
 * and meta.json: what the files were (path, size, times, number of the inode), counts, a sum of every MiB of
 * each array, and what was said while they were read, which is said again. KEY is a hash of everything that
 * decides what tokens come out: options, tokenizer, template, version, paths. It is used only when every file
 * is as it was; a file that was changed gives a new cache in the place of the old one.
 *
 * It is made under another name and renamed when it is complete; of two processes that make the same one, the
 * last wins, and both have what they read. What a process that was killed leaves is removed by the next one
 * that begins, and so are caches that were not used for 30 days, then the ones not used for longest until all
 * of a directory have at most a quarter of its disk. Damage is noticed by the sums: of everything up to 4
 * GiB, beyond that of all but tokens and labels, of which 64 MiB all over the files are looked at.
 *
 * Errors: SBP_IO, SBP_MACHINE where there is no space. That a cache cannot be read is no error: it is not
 * there.
 */
#ifndef SBP_RUNTIME_DATA_CACHE_H
#define SBP_RUNTIME_DATA_CACHE_H

#include "runtime/data/dataset.h"

typedef struct sbp_cache sbp_cache;

typedef struct sbp_cache_message {
    sbp_severity severity;
    const char *text;
} sbp_cache_message;

typedef struct sbp_cache_messages {
    sbp_cache_message *items;
    int32_t count, capacity;
} sbp_cache_messages;

/* Looks at the files. *out: NULL where they cannot be known again (standard input, pipes). In the arena;
 * below a guard. */
void sbp_cache_open(sbp_arena *arena, const sbp_dataset_options *options, sbp_cache **out);
/* Maps what is there into `data`; *found: all of it is there and as it was. */
sbp_status sbp_cache_load(sbp_cache *cache, sbp_diag *diag, sbp_dataset *data, bool *found) SBP_CHECKED;
/* Begins a new one: *directory is for sbp_arrays_init. */
sbp_status sbp_cache_create(sbp_cache *cache, sbp_diag *diag, int *directory) SBP_CHECKED;
/* Ends the arrays of `data`, which are mapped for reading then, and puts the cache into its place. Not when a
 * file has changed since open: then the data are used, and the cache is gone with the process. */
sbp_status sbp_cache_commit(sbp_cache *cache, sbp_diag *diag, sbp_dataset *data,
                            const sbp_cache_messages *messages) SBP_CHECKED;
/* Removes one that was not committed; closes. NULL is allowed. */
void sbp_cache_close(sbp_cache *cache);
/* Its directory, for messages. */
const char *sbp_cache_directory(const sbp_cache *cache);

/* Removes the caches in `root` that were not used for unused_seconds, then those not used for longest until
 * the others have at most most_bytes together; returns how many went. What is no cache stays.
 * sbp_cache_create does this by itself. */
int32_t sbp_cache_clear(const char *root, int64_t most_bytes, int64_t unused_seconds);

#endif
