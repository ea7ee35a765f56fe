/* spec.h: what --reward names: a Python function, or a program with its arguments. */
#ifndef SBP_RUNTIME_REWARD_SPEC_H
#define SBP_RUNTIME_REWARD_SPEC_H

#include "ir/base/args.h"

/* The words of a program's spec, as a POSIX shell cuts them: blanks part them, '..', ".." and a backslash
 * quote. SBP_USAGE: no word, a quote without its end, or what only a shell does: | & ; < > ( ) ` $ outside
 * quotes ('$' and '`' inside ".." too). Below a guard. */
sbp_status sbp_reward_words(sbp_arena *arena, sbp_diag *diag, const char *spec, sbp_args *out) SBP_CHECKED;

/* The file that runs for the word: itself where it has a '/', else the first of PATH. SBP_MACHINE: there is
 * none that can run; what: "--reward 'a b'", for the message. Below a guard. */
sbp_status sbp_reward_program(sbp_arena *arena, sbp_diag *diag, const char *what, const char *word,
                              const char **out) SBP_CHECKED;

/* The Python that runs: `wanted` by the rule above, or, where that is NULL, $VIRTUAL_ENV/bin/python, else
 * python3. Below a guard. */
sbp_status sbp_reward_python(sbp_arena *arena, sbp_diag *diag, const char *wanted,
                             const char **out) SBP_CHECKED;

#endif
