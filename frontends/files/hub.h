/* hub.h: models by name: bases of adapters, and the local cache of the Hugging Face Hub. Nothing is
 * downloaded. Below a guard. */
#ifndef SBP_FRONTENDS_FILES_HUB_H
#define SBP_FRONTENDS_FILES_HUB_H

#include "ir/base/base.h"

/* Whether this could be "organisation/name". */
bool sbp_hub_is_id(const char *text);
/* The directory of a model, where the cache has its config.json; NULL: it has not. */
const char *sbp_hub_find(sbp_arena *arena, const char *id);
/* The reverse: the id of a model that lies in a cache; NULL: it does not. */
const char *sbp_hub_id_of(sbp_arena *arena, const char *path);
/* The model that an adapter's directory is of, by the name in its adapter_config.json: an absolute path; else
 * beside the adapter (NULL: not there), in the current directory, in the cache. NULL: nowhere. */
const char *sbp_hub_base(sbp_arena *arena, const char *adapter, const char *name);

#endif
