/* lora.h: low-rank adapters of a model, as PEFT 0.21 has them: which weights get one, what it is called and
 * where it begins; adapter_config.json, read and written.
 *
 * y = W x + B (s A x), A [r, in], B [out, r], s = alpha / r or alpha / sqrt(r). The weights of the model are
 * not trained then, but for modules that are saved whole. Names are those of adapter_model.safetensors:
 * base_model.model.<module>.lora_A.weight, .lora_B.weight, base_model.model.<module>.weight.
 *
 * A module is called as the tensor of its weight without ".weight". Where the graph reads a tensor in parts
 * (fused q, k, v), all parts share one A, and each has its rows of B.
 *
 * Experts have one for each, W_e x + B_e (s A_e x), by the name that transformers' class has for the tensor
 * of all of them (target_parameters), whatever files have: A is [experts r, in] there, B [out, r experts]
 * with the experts of a rank together. peft wraps the module of the experts once for each such tensor: what
 * it wraps first, gate_up_proj, is base_layer in names where down_proj has one, too. No dropout, as in peft.
 * Names of a module for each expert (gate_proj), which peft turns into tensors of twice the rank for files of
 * transformers 4, are none here. A router is a target by its tensor, mlp.gate.weight, alone; its adapter is
 * one of a linear layer.
 *
 * Not built: DoRA (use_dora), y = m / |W + s B A| (W x + B (s A x)) with a norm per row of the weights. As a
 * graph it is |W|^2 + 2 s <B, W A^T> + s^2 <B, B (A A^T)>, ops that there are; but row kernels and commands
 * run over rows of the batch, and a sum over the columns of a weight is none of them; it would be computed in
 * every chunk, since nothing in a loop is hoisted out; m begins as the norms of W, which no initial value of
 * a parameter is; what is merged has those norms as well; and with dropout PEFT has W see what was dropped.
 *
 * Private to frontends/. Everything lives in the arena of the loading.
 */
#ifndef SBP_FRONTENDS_LORA_LORA_H
#define SBP_FRONTENDS_LORA_LORA_H

#include "frontends/source/loading.h"

/* Changes the module of the model that was loaded: parameters, adapters, what is trained. SBP_USAGE where the
 * options fit no module, or ask for what is not built. *targets: what the options have become, for the
 * configuration. */
sbp_status sbp_lora_apply(sbp_loading *l, const sbp_lora_options *options,
                          sbp_lora_names *targets) SBP_CHECKED;

/* Whether a directory holds an adapter. */
bool sbp_lora_is_adapter(sbp_arena *arena, const char *directory);
/* Reads adapter_config.json of a directory. SBP_INPUT names a field with a value that is not built. *base: as
 * it is written there. */
sbp_status sbp_lora_read(sbp_arena *arena, sbp_diag *diag, const char *directory, sbp_lora_options *out,
                         const char **base) SBP_CHECKED;
/* The text of an adapter_config.json; targets: of sbp_lora_apply; base: an absolute path or the id of the
 * Hub; text_part: the model's, outside of which PEFT is to leave modules out, some of which targets may
 * name. */
const char *sbp_lora_config(sbp_arena *arena, const sbp_lora_options *options, const sbp_lora_names *targets,
                            const char *base, const char *text_part);
/* PEFT's exclude_modules for modules that do not begin with text_part. */
const char *sbp_lora_outside(sbp_arena *arena, const char *text_part);
/* Whether a tensor of an adapter belongs to such a module. */
bool sbp_lora_is_outside(const sbp_model *model, const char *tensor);

#endif
