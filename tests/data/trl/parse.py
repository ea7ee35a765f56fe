#!/usr/bin/env python3
"""Has TRL's own parser read the configurations of yaml/, as `trl COMMAND --config` does.

    parse.py           needs trl 1.16.0 (tests/golden/requirements.txt)

Ends with status 1 where one is not read, or a key is left that is none of torchrun's or accelerate's.
"""

import pathlib
import sys

import trl
from trl.scripts import grpo, rloo
from trl.scripts.utils import DatasetMixtureConfig, TrlParser

ARGUMENTS = {"grpo": grpo.GRPOScriptArguments, "rloo": rloo.RLOOScriptArguments}
LAUNCHER = {"--nproc_per_node", "--num_processes", "--accelerate_config"}


def main():
    wrong = 0
    for path in sorted((pathlib.Path(__file__).resolve().parent / "yaml").glob("*.yaml")):
        command = path.name.split(".")[0]
        config = getattr(trl, {"reward": "RewardConfig"}.get(command, f"{command.upper()}Config"))
        parser = TrlParser((ARGUMENTS.get(command, trl.ScriptArguments), config, trl.ModelConfig, DatasetMixtureConfig))
        try:
            *parsed, left = parser.parse_args_and_config(
                ["--config", str(path), "--output_dir", "x", "--bf16", "false", "--use_cpu", "true",
                 *(["--deepspeed", ""] if "deepspeed" in path.name else [])], return_remaining_strings=True)
        except Exception as error:  # whatever it is, it was not read
            print(f"{path.name}: {type(error).__name__}: {error}")
            wrong += 1
            continue
        unknown = {word for word in left if word.startswith("--")} - LAUNCHER
        wrong += bool(unknown)
        script, training, model, mixture = parsed
        print(f"{path.name}: {model.model_name_or_path}, {script.dataset_name or [d.path for d in mixture.datasets]}, learning rate "
              f"{training.learning_rate:g}, max_length {getattr(training, 'max_length', None)}" + (f"; unknown {unknown}" if unknown else ""))
    return wrong > 0


sys.exit(main())
