/* infer: checks every type from the operands up, before anything else looks at them.
 *
 * requires  a module from a frontend: @model and @objective
 * preserves everything
 * breaks    nothing
 */
#include "passes/lower/passes.h"

sbp_status sbp_pass_infer(const sbp_pass_input *in, const sbp_module *module) {
    static const char *const needed[] = {"model", "objective"};
    for (int i = 0; i < SBP_COUNT(needed); i++)
        if (!sbp_module_find_func(module, needed[i]))
            return sbp_fail(in->diag, SBP_INTERNAL, "infer: the module has no function @%s", needed[i]);
    return sbp_module_verify(module, in->diag);
}
