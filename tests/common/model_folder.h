/* model_folder.h: a folder of a test's own with a config.json that its draws write: fixtures of a group of
 * tests, which pass model_folder_make and model_folder_remove to cmocka_run_group_tests. */
#ifndef SBP_TESTS_COMMON_MODEL_FOLDER_H
#define SBP_TESTS_COMMON_MODEL_FOLDER_H

extern char model_folder[], model_config[]; /* paths; the second is of config.json there */

int model_folder_make(void **state);
int model_folder_remove(void **state);

#endif
