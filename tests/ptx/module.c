/* Modules and entries as others see them: see ptx.h. */
#include "tests/ptx/parser.h"

#include <stdlib.h>
#include <string.h>

void sbp_ptx_module_unload(sbp_ptx_module *module) {
    if (!module) {
        return;
    }
    for (int i = 0; i < module->global_count; i++) {
        (void)sbp_ptx_memory_free(module->memory, module->globals[i]);
    }
    free(module->globals);
    free(module->constants);
    free(module->constant_index);
    for (ptx_chunk *c = module->chunks; c;) {
        ptx_chunk *next = c->next;
        free(c);
        c = next;
    }
    free(module);
}

const sbp_ptx_entry *sbp_ptx_module_entry(const sbp_ptx_module *module, const char *name) {
    for (int i = 0; i < module->entry_count; i++) {
        if (strcmp(module->entries[i]->name, name) == 0) {
            return module->entries[i];
        }
    }
    return NULL;
}

int sbp_ptx_module_entries(const sbp_ptx_module *module) {
    return module->entry_count;
}

const sbp_ptx_entry *sbp_ptx_module_entry_at(const sbp_ptx_module *module, int index) {
    return index >= 0 && index < module->entry_count ? module->entries[index] : NULL;
}

bool sbp_ptx_module_global(const sbp_ptx_module *module, const char *name, uint64_t *out_address,
                           uint64_t *out_bytes) {
    for (const ptx_symbol *s = module->symbols; s; s = s->next) {
        if (s->kind == PTX_SYM_VARIABLE && (s->space == PTX_GLOBAL || s->space == PTX_CONST) &&
            strcmp(s->name, name) == 0) {
            *out_address = s->address;
            *out_bytes = s->bytes;
            return true;
        }
    }
    return false;
}

const char *sbp_ptx_entry_name(const sbp_ptx_entry *entry) {
    return entry->name;
}

int sbp_ptx_entry_params(const sbp_ptx_entry *entry) {
    return entry->param_count;
}

sbp_ptx_param sbp_ptx_entry_param(const sbp_ptx_entry *entry, int index) {
    return index >= 0 && index < entry->param_count ? entry->params[index] : (sbp_ptx_param){0};
}

uint32_t sbp_ptx_entry_shared_bytes(const sbp_ptx_entry *entry) {
    return entry->shared_bytes;
}

uint32_t sbp_ptx_entry_max_threads(const sbp_ptx_entry *entry) {
    return entry->max_threads;
}
