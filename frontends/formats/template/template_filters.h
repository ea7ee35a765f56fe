/* template_filters.h: how filters are written, and those of template_sequences.c. */
#ifndef SBP_FRONTENDS_TEMPLATE_TEMPLATE_FILTERS_H
#define SBP_FRONTENDS_TEMPLATE_TEMPLATE_FILTERS_H

#include "frontends/formats/template/template_internal.h"

#define TPL_PARAMETERS                                                                                       \
    tpl_eval *e, const tpl_value *self, const tpl_value *values, tpl_args *rest, tpl_value *out
#define TPL_WORK(name) static sbp_status name(TPL_PARAMETERS)
#define TPL_UNUSED (void)e, (void)self, (void)values, (void)rest

sbp_status sbp_tpl_filter_batch(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_dictsort(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_first(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_items(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_join(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_last(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_length(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_list(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_map(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_max(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_min(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_reject(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_rejectattr(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_reverse(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_select(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_selectattr(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_slice(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_sort(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_sum(TPL_PARAMETERS) SBP_CHECKED;
sbp_status sbp_tpl_filter_unique(TPL_PARAMETERS) SBP_CHECKED;

#endif
