"""SentencePiece's precompiled form of normalization rules, by SentencePiece: it is trained on some words with a file of rules."""
import pathlib
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2


def train(path, corpus, rules=None, **options):
    """A model file; rules: what becomes what, besides nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
        if rules:
            lines = [" ".join(f"{ord(c):x}" for c in a) + "\t" + " ".join(f"{ord(c):x}" for c in b) for a, b in rules.items()]
            (folder / "rules.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
            options["normalization_rule_tsv"] = str(folder / "rules.tsv")
        sentencepiece.SentencePieceTrainer.train(input=str(folder / "corpus.txt"), model_prefix=str(folder / "m"), minloglevel=2,
                                                 num_threads=1, hard_vocab_limit=False, **options)
        model = sentencepiece_model_pb2.ModelProto.FromString((folder / "m.model").read_bytes())
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    if path:
        pathlib.Path(path).write_bytes(model.SerializeToString())
    return model


def compile(rules):
    return train(None, ["one two three", "four five"] * 20, rules, vocab_size=20, model_type="char").normalizer_spec.precompiled_charsmap
