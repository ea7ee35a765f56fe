"""A program that gives rewards: an answer for each line, which repeats what it was sent."""
import json
import sys

for line in sys.stdin:
    request = json.loads(line)
    extra = {"line": [line] + [""] * (len(request["prompts"]) - 1)}
    rewards = [len(ids) for ids in request["completion_ids"]]
    print(json.dumps({"id": request["id"], "rewards": rewards, "extra": extra}), flush=True)
