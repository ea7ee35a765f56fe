/* model_folder.c: the folder of the models that a test draws. */
#include "tests/common/model_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

char model_folder[] = "/tmp/sbp_model_XXXXXX", model_config[sizeof model_folder + 20];

int model_folder_make(void **state) {
    (void)state;
    if (!mkdtemp(model_folder))
        return -1;
    snprintf(model_config, sizeof model_config, "%s/config.json", model_folder);
    return 0;
}

int model_folder_remove(void **state) {
    (void)state;
    unlink(model_config);
    return rmdir(model_folder);
}
