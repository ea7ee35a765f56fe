/* card.h: the card of a data set, README.md of its repository: which files its front matter (YAML between two
 * lines "---") has for a config and a split. A card is not trusted: what it names are patterns of files in
 * its own repository, none of which begins with '-'. Below a guard.
 */
#ifndef SBP_RUNTIME_DATA_SOURCE_CARD_H
#define SBP_RUNTIME_DATA_SOURCE_CARD_H

#include "ir/base/base.h"

typedef struct sbp_card_request {
    const char *id, *path; /* of the data set and of the card, for messages */
    const char *config;    /* NULL: the default one */
    const char *split;
} sbp_card_request;

/* text: the card; it ends at its first NUL. *count 0: the card names no configs. SBP_USAGE: it has others
 * than those that are asked for; SBP_INPUT: it names what is not read. */
sbp_status sbp_card_files(sbp_arena *arena, sbp_diag *diag, const sbp_card_request *request, const char *text,
                          const char ***patterns, int32_t *count) SBP_CHECKED;

#endif
