/* named_path.h: paths that a file names, as those of shards in an index or of rows in a data set's card.
 * Files are not trusted: what they name lies in their own folder, and in the Hub's cache in their own
 * repository, whose snapshots are links to its blobs, or to those that the whole cache shares. Links in other
 * folders are followed, as the user's own. Below a guard.
 */
#ifndef SBP_FRONTENDS_FILES_NAMED_PATH_H
#define SBP_FRONTENDS_FILES_NAMED_PATH_H

#include "ir/base/base.h"

/* Whether a path or a pattern, joined to a folder, stays below that: neither empty nor absolute, without
 * "..", and without a part as ".*" that could match that. */
bool sbp_named_path_stays(const char *name);

/* The path of what `by` (for messages: a file and a field) names in `folder`. SBP_INPUT: it leaves that, or,
 * in the cache of the Hub, its repository by a link. */
sbp_status sbp_named_path(sbp_arena *arena, sbp_diag *diag, const char *by, const char *folder,
                          const char *name, const char **out) SBP_CHECKED;

/* The repository that a folder is a snapshot of, or lies in: an absolute path without links,
 * ".../models--ORGANISATION--NAME"; NULL: it is no such folder. */
const char *sbp_named_repository(sbp_arena *arena, const char *folder);
/* Whether a path's links end in the repository that `folder` lies in; SBP_INPUT: not so. SBP_OK for a folder
 * of no repository. */
sbp_status sbp_named_links(sbp_arena *arena, sbp_diag *diag, const char *folder,
                           const char *path) SBP_CHECKED;
/* Names of the files of a model that are read from its snapshot, those in additional_chat_templates/ with
 * that in front: one behind the other with a NUL each, and another at the end. SBP_INPUT: a link as above. */
sbp_status sbp_named_snapshot(sbp_arena *arena, sbp_diag *diag, const char *snapshot,
                              const char **names) SBP_CHECKED;

#endif
