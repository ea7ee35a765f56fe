/* options_pages.c: what --help of sbprun says beside the table. */
#include "runtime/options/options.h"

const char sbp_gguf_server[] = "llama-server";

const char sbp_help_of_sbprun[] =
    "usage: sbprun MODEL --data FILE --out DIR [options]   compile for this machine, then train\n"
    "       sbprun PLAN --data FILE [options]              train by a plan that sbpc compiled\n"
    "       sbprun sft --config FILE.yaml                  as TRL has it; dpo, orpo, kto, cpo, grpo ..\n"
    "       sbprun generate MODEL --prompt TEXT            what does it say now? or: sbprun chat MODEL\n"
    "       sbprun tokenize MODEL|PLAN                     texts and rows to token ids\n"
    "       sbprun export RESULT -o FILE.gguf              for llama.cpp, Ollama\n"
    "       sbprun check MODEL|PLAN [--data FILE]          are gradients right on this machine?\n"
    "       sbprun doctor                                  what this machine has and lacks\n\n"
    "For example:\n\n"
    "  sbprun Qwen/Qwen3-0.6B --data train.jsonl --lora --lr 2e-4 --epochs 1 --out my-model\n"
    "  sbprun Qwen3-0.6B --data pairs.jsonl --objective dpo --memory 24GiB --out my-model\n"
    "  sbprun my-model/plan.bin --data test.jsonl --score scores.jsonl\n\n"
    "MODEL, and data: paths, or names on the Hub. Names of TRL work too (learning_rate, max_steps ..).\n"
    "Exit status: 0 done, 1 input at fault, 2 wrong usage, 3 the machine lacks something, 4 a file could\n"
    "not be read or written, 5 loss or gradient not finite, 70 an error of sbprun itself, 130 or 143\n"
    "interrupted.\n";

const char sbp_help_of_check[] =
    "usage: sbprun check MODEL|PLAN [--data FILE] [options of the run]\n\n"
    "Checks whether the plan computes right gradients on this device, with its types, widths and weights,\n"
    "on some rows of the data (random tokens without --data), in a minute or two. Nothing is trained.\n\n"
    "  finite    all gradients are finite\n"
    "  twice     gradients of the same rows have the same bits (they need not with --deterministic off)\n"
    "  loss along gradient\n"
    "            weights of each kind are moved along their own gradients: the loss changes as these say,\n"
    "            within the error that two lengths of steps, and rounding, allow\n"
    "  commands  samples of the results of each command of a step, in every function of the plan and in\n"
    "            the optimizer, are those of plain loops in double precision over the same operands,\n"
    "            within a few times of what rounding does to these\n"
    "  memory    no more memory is taken than was planned\n"
    "  schedule  gradients of the plan are those of --backward standard (of checkpoint, where that does\n"
    "            not fit), within a few times of what rounding does: flipped last bits of weights\n\n"
    "'unseen': the difference is smaller than rounding, or hidden by steps in which rows choose other\n"
    "experts.\n"
    "Exit status: 0 right; 1 something is wrong: do not train with this plan here; 3 something cannot be\n"
    "checked here, which is named: several ranks; the loss along gradients of dft, cispo and vespo, which\n"
    "are not its derivatives; the schedule, without the model that the plan was compiled from, or where\n"
    "no other one fits. Other statuses are those of sbprun (2 with --resume, --score, --merge, --publish,\n"
    "--dump-gradients, --dry-run).\n"
    "--json: {\"verdict\", \"seconds\", \"findings\": [{\"part\", \"what\", \"verdict\", \"found\", "
    "\"allowed\", \"text\"}]}.\n"
    "`sbprun .. --check` does this before the first step of a run, which it lets begin after 0 and 3.\n";

const char sbp_help_of_rows[] =
    "Rows are JSON objects, one a line (or columns of CSV, Parquet, Arrow; --columns TO=FROM renames):\n\n"
    "  {\"text\"}                             all tokens are trained on\n"
    "  {\"prompt\", \"completion\"}             the completion is trained; kto: with \"label\", true or "
    "false\n"
    "  {\"messages\": [{\"role\", \"content\"}]}  a conversation (--loss-on assistant: its answers alone);\n"
    "                                       a message with \"train\": false is not trained, \"weight\": 0.5\n"
    "                                       counts it half (the mean divides by the trained tokens)\n"
    "  {\"prompt\", \"chosen\", \"rejected\"}     pairs, for dpo, orpo, simpo\n"
    "  {\"prompt\", \"completion\", \"reward\"}   answers of a sampler, for grpo and ppo; or \"advantage\";\n"
    "                                       neighbours with one prompt, or one \"group\", are a group\n"
    "  {\"input_ids\", \"labels\"}              as long as each other, -100 is not trained on\n\n"
    "Token ids in place of texts: prompt_ids, completion_ids, chosen_ids, rejected_ids.\n"
    "With answers of a sampler, a number for each token of the completion, after its temperature:\n"
    "  logprobs (or sampling_per_token_logps)   of the sampler itself, such as vLLM: the difference is\n"
    "                                       corrected for (--loss vllm_importance_sampling_mode=..)\n"
    "  old_per_token_logps                  of the weights that the answers are from\n"
    "  ref_per_token_logps                  of the reference\n"
    "Sums that are known: ref_chosen_logps, ref_rejected_logps (dpo); ref_logps, ref_KL_logps (kto).\n";

const char sbp_help_of_export[] =
    "usage: sbprun export RESULT -o FILE.gguf [--type f32|f16|bf16|q8_0] [options]\n\n"
    "Writes a GGUF file for llama.cpp and Ollama: weights, tokenizer, chat template and metadata, as\n"
    "llama.cpp's own converter writes them. RESULT: a directory that sbprun wrote, or any model's; an\n"
    "adapter becomes a GGUF adapter, or with --merge a model of its base and itself.\n"
    "Smaller types than q8_0 are llama.cpp's: llama-quantize FILE.gguf OUT.gguf Q4_K_M\n"
    "What serves it, and how: examples/serve.md\n\n";
