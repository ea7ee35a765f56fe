/* hub.h: models and data sets of the Hugging Face Hub by name, in its cache on this machine as
 * huggingface_hub lays it out: models--ORGANISATION--NAME with refs/REVISION (the commit's hash) and
 * snapshots/COMMIT, whose files are links to blobs. What is not there is fetched by huggingface_hub's own
 * program (hub_fetch.h). Below a guard.
 *
 * What is read is never a pickle and never Python, and no link is followed out of its repository.
 */
#ifndef SBP_FRONTENDS_FILES_HUB_H
#define SBP_FRONTENDS_FILES_HUB_H

#include "ir/base/base.h"

/* "ORGANISATION/NAME@REVISION", without which it is main. */
typedef struct sbp_hub_name {
    bool dataset;
    const char *id, *revision;
} sbp_hub_name;

/* Whether this could be "organisation/name", as the Hub allows. */
bool sbp_hub_is_id(const char *text);
/* Likewise with a revision behind it; false: it is no such name. */
bool sbp_hub_parse(sbp_arena *arena, const char *text, sbp_hub_name *out);

/* The directory of the cache: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, hub/ of HF_HOME, of XDG_CACHE_HOME .. */
const char *sbp_hub_cache(sbp_arena *arena);
/* The snapshot that the cache has of a revision, complete or not; NULL: none. */
const char *sbp_hub_snapshot(sbp_arena *arena, const sbp_hub_name *name);
/* Whether a snapshot has config.json and, if wished, all shards of its index, or those of an adapter. */
bool sbp_hub_is_complete(sbp_arena *arena, const char *snapshot, bool weights);

/* The snapshot of a model in the cache, where it has its config.json and no link leads out of its repository;
 * NULL: not so. */
const char *sbp_hub_find(sbp_arena *arena, const char *name);
/* The reverse: the id of a model that lies in a cache; NULL: it does not. */
const char *sbp_hub_id_of(sbp_arena *arena, const char *path);
/* The model that an adapter's directory is of, by the name in its adapter_config.json: an absolute path; else
 * beside the adapter (NULL: not there), in the current directory, in the cache. An adapter that lies in the
 * cache of the Hub names a model of the Hub, or a folder of its own repository. NULL: nowhere. */
const char *sbp_hub_base(sbp_arena *arena, const char *adapter, const char *name);

#endif
