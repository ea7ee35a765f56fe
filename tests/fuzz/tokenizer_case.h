/* tokenizer_case.h: what is asked of a tokenizer.json from anywhere, by two targets. */
#ifndef SBP_TESTS_FUZZ_TOKENIZER_CASE_H
#define SBP_TESTS_FUZZ_TOKENIZER_CASE_H

#include "frontends/formats/tokenizer/tokenizer.h"

/* Reads it, encodes a text of all sorts and another one (NULL: none), decodes what comes; and the tokenizer
 * that it makes, written out, is read again and gives the same ids. Aborts where that is not so. */
void fuzz_tokenizer_case(sbp_arena *arena, const char *json, size_t length, const char *text,
                         size_t text_length);

#endif
