/* limits.c: sizes that no kernel of the CPU backend has room for. */
#include "backends/cpu/limits.h"
#include "ir/program/traits.h"

#include <stdio.h>

bool sbp_cpu_beyond_limits(const sbp_command *command, int64_t chosen, char text[SBP_CPU_LIMIT_TEXT]) {
    const sbp_attention_attrs *a = &command->u.attention;
    const sbp_delta_attrs *d = &command->u.delta;
    const char *name = sbp_command_name(command->kind);
    int length = 0;
#define BEYOND(...) length = snprintf(text, SBP_CPU_LIMIT_TEXT, __VA_ARGS__)
    switch (sbp_command_traits_of(command->kind)->items) {
    case SBP_ITEMS_QUERIES:
        if (a->d_qk > SBP_CPU_MOST_HEAD || a->d_v > SBP_CPU_MOST_HEAD)
            BEYOND("%s with heads of %lld and %lld columns (head_dim): at most %d are computed there", name,
                   (long long)a->d_qk, (long long)a->d_v, SBP_CPU_MOST_HEAD);
        else if (a->heads / a->kv_heads > SBP_CPU_MOST_GROUP)
            BEYOND("%s with %lld query heads for each head of keys and values (num_attention_heads, "
                   "num_key_value_heads): at most %d are computed there",
                   name, (long long)(a->heads / a->kv_heads), SBP_CPU_MOST_GROUP);
        break;
    case SBP_ITEMS_STATES:
        if (d->d_k > SBP_CPU_MOST_STATE || d->d_v > SBP_CPU_MOST_STATE)
            BEYOND("%s with states of %lld x %lld a head: at most %d x %d are computed there", name,
                   (long long)d->d_k, (long long)d->d_v, SBP_CPU_MOST_STATE, SBP_CPU_MOST_STATE);
        break;
    case SBP_ITEMS_CHOICES:
        if (chosen > SBP_CPU_MOST_CHOSEN)
            BEYOND("%lld experts for each row (num_experts_per_tok): at most %d are chosen there",
                   (long long)chosen, SBP_CPU_MOST_CHOSEN);
        break;
    default:
        break;
    }
#undef BEYOND
    return length > 0;
}
