"""The cases of dense families that differ from Llama in fields of the decoder, as cases.py has the others."""

from case import Case, D
from configs_dense import ministral3

DENSE = {
    "ministral3_plain": Case(
        "queries scaled by how often the position holds the original length, five times in the longest document",
        ministral3(),
        D,
        differs_from=(
            {"rope_parameters": {**ministral3()["rope_parameters"], "llama_4_scaling_beta": 0.29}},
            {"rope_parameters": {**ministral3()["rope_parameters"], "original_max_position_embeddings": 7}},
            {"rope_parameters": {**ministral3()["rope_parameters"], "mscale": 0.5}},
        ),
    ),
}
