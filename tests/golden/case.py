"""What a case of cases.py says of itself."""

import dataclasses

ABSENT = object()  # in differs_from: without this key


@dataclasses.dataclass
class Case:
    about: str
    config: dict
    lengths: list  # of the documents
    save: bool = False  # let transformers write config.json
    loss_type: str = "nll"
    shards: str = ""  # max_shard_size
    favour: tuple = ()  # token ids that must be frequent among the inputs (the padding token)
    seed: int = 0  # another one where float32 rounding happens to be large in some tensor
    embedding: float = 0.4  # size of the elements of embeddings
    gain: float = 1.15  # of linear maps
    fp8: tuple = ()  # rows and columns that share a scale: what linear layers have is stored so, and computed with as it says
    fused: bool = False  # with fp8: experts in one tensor for a layer
    centres: tuple = ()  # (end of a name, what the elements are near to), where they start at random
    # Changes of config.json, each of which must change the gradients visibly: what the case is there to tell apart.
    differs_from: tuple = ()


# Every list has documents of 1 and of 2 tokens and one fully masked; no total is a multiple of 7, 8 or 64.
A = [29, 2, 17, 34, 1, 11]  # 94
B = [2, 37, 1, 15, 10, 18]  # 83
C = [1, 26, 5, 41, 2, 12, 13]  # 100
D = [13, 1, 2, 31, 8]  # 55
E = [9, 33, 2, 1, 14, 20]  # 79
F = [70, 2, 13, 1, 13]  # 99, longer than a block of rows of a state
