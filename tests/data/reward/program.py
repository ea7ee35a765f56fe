"""A program that gives rewards: an answer for each line, which repeats what it was sent. With an argument it reads one only."""
import json
import os
import sys
import time

for line in sys.stdin:
    request = json.loads(line)
    extra = {"line": [line] + [""] * (len(request["prompts"]) - 1)}
    rewards = [len(ids) for ids in request["completion_ids"]]
    print(json.dumps({"id": request["id"], "rewards": rewards, "extra": extra}), flush=True)
    if sys.argv[1:]:
        os.close(0)
        time.sleep(1000)
