"""Small models of every family for tests/gguf/check.py: configs of the goldens, random weights, and tokenizers
that are trained here, cut as the family's are."""

import json
import pathlib
import shutil

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
SHARED = ROOT.parent / "shared"
STORIES = SHARED / "models" / "stories260K"
ROWS = 512  # of every embedding

TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {
    "llama-bpe": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL,
}
PATTERNS["lfm2"] = PATTERNS["glm4"] = PATTERNS["llama-bpe"]
PATTERNS["qwen35"] = (
    CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[gMASK]", "<|user|>", "<|observation|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# What llama.cpp has no choice about, and goldens choose otherwise.
FIXED = {
    "gemma3": {"query_pre_attn_scalar": 8},
    "gemma3, tokenizer.model": {"query_pre_attn_scalar": 8},
    "phi3": {"sliding_window": None},
    "ernie4_5": {"use_bias": False},
    "exaone4, windows": {"num_hidden_layers": 64, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16},
    "granite_swa": {"layer_rope_theta": [300.0, 300.0, 300.0, 0.0]},
    "granitemoe_swa": {"layer_rope_theta": [300.0, 0.0]},
    "hunyuan_v1_dense": {"rope_parameters.rope_theta": 1e4, "max_position_embeddings": 32768},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 3, "sliding_window_pattern": None},
    "gpt_oss": {"swiglu_limit": 7.0, "rope_parameters.truncate": True},
    "lfm2": {"conv_bias": False},
    "qwen3_moe": {"mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True},
    "olmoe": {"norm_topk_prob": False},
    "qwen3_next": {"linear_value_head_dim": 6, "rms_norm_eps": 1e-6},  # lengths of keys have it too
    "qwen3_5": {"linear_value_head_dim": "linear_key_head_dim", "rms_norm_eps": 1e-6},
    "qwen3_5_moe": {"linear_value_head_dim": "linear_key_head_dim", "rms_norm_eps": 1e-6},
    "deepseek_v3": {"rms_norm_eps": 1e-6},  # that of latent norms, whatever the others have
    "deepseek_v3, groups": {"rms_norm_eps": 1e-6},
    "glm4_moe_lite": {"rms_norm_eps": 1e-6},
    "glm": {"head_dim": 6, "rope_parameters.partial_rotary_factor": 1.0},
    "gpt_neox": {"rope_parameters.partial_rotary_factor": 0.5},
    "granitemoehybrid, groups": {"time_step_limit": (0.0, float("inf")), "mamba_proj_bias": False},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "mlp"],
        "num_hidden_layers": 4, "mamba_num_heads": 4, "mamba_head_dim": 16, "time_step_min": 1e-9,
    },
    "nemotron_h, experts": {
        "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "moe"],
        "num_hidden_layers": 4, "mamba_num_heads": 4, "mamba_head_dim": 16, "time_step_min": 1e-9,
    },
    "nemotron_h, latent": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
        "num_hidden_layers": 5, "mamba_num_heads": 4, "mamba_head_dim": 16, "time_step_min": 1e-9,
    },
    "glm4_moe": {"num_nextn_predict_layers": 0},
}

# Tokenizers of characters, not bytes: of stories260K; of a tokenizer.model that is trained here.
CHARACTERS = ("spm", "gemma", "gemma4", "model", "gemma model")

# family: the golden whose config it has, and its tokenizer: SentencePiece's, or a name of llama.cpp
FAMILIES = {
    "llama": ("llama_plain", "spm"),
    "llama, tokenizer.model": ("llama_plain", "model"),
    "llama, biases": ("llama_bias", "llama-bpe"),
    "llama, llama3": ("llama_rope_llama3", "llama-bpe"),
    "llama, linear": ("llama_rope_linear_type", "spm"),
    "llama, yarn": ("llama_rope_yarn", "spm"),
    "mistral": ("mistral_no_window", "spm"),
    "mixtral": ("mixtral_v", "spm"),
    "qwen2": ("qwen2_plain", "qwen2"),
    "qwen2, tied": ("qwen2_tied", "qwen2"),
    "seed_oss": ("seed_oss_v", "gpt-2"),
    "qwen3": ("qwen3_qknorm_v", "qwen2"),
    "qwen3_moe": ("qwen3_moe_norm_v", "qwen2"),
    "qwen3_next": ("qwen3_next_moe_v", "qwen2"),
    "qwen3_5": ("qwen3_5_dense_v", "qwen35"),
    "qwen3_5_moe": ("qwen3_5_moe_v", "qwen35"),
    "gemma3": ("gemma3_legacy", "gemma"),
    "gemma3, tokenizer.model": ("gemma3_legacy", "gemma model"),
    "gemma4": ("gemma4_31b_v", "gemma4"),
    "gemma4, per layer": ("gemma4_e2b_v", "gemma4"),
    "gemma4, experts": ("gemma4_26b_a4b_v", "gemma4"),
    "olmo2": ("olmo2_plain", "olmo"),
    "olmo3": ("olmo3_released", "olmo"),
    "olmoe": ("olmoe_v", "olmo"),
    "exaone4": ("exaone4_windows", "gpt-2"),
    "exaone4, windows": ("exaone4_windows", "gpt-2"),
    "ministral3": ("ministral3_plain", "spm"),
    "qwen2_5_vl": ("qwen2_5_vl_v", "qwen2"),
    "qwen3_vl": ("qwen3_vl_v", "qwen2"),
    "cohere2": ("cohere2_released", "gpt-2"),
    "hunyuan_v1_dense": ("hunyuan_v1_dense_alpha", "gpt-2"),
    "smollm3": ("smollm3_v", "llama-bpe"),
    "ernie4_5": ("ernie4_5_bias", "model"),
    "glm": ("glm_plain", "glm4"),
    "glm4": ("glm4_defaults", "glm4"),
    "glm4_moe": ("glm4_moe_v", "glm4"),
    "glm4_moe_lite": ("glm4_moe_lite_v", "glm4"),
    "deepseek_v3": ("deepseek_v3_v", "qwen2"),
    "deepseek_v3, groups": ("deepseek_v3_groups", "qwen2"),
    "phi3": ("phi3_plain", "spm"),
    "phi3, longrope": ("phi3_longrope_short", "spm"),
    "gpt_oss": ("gpt_oss_v", "gpt-2"),
    "gpt_oss, mxfp4": ("gpt_oss_mxfp4_v", "gpt-2"),
    "gpt_neox": ("gpt_neox_plain", "gpt-2"),
    "granite": ("granite_plain", "refact"),
    "granite_swa": ("granite_swa_thetas", "refact"),
    "granitemoe_swa": ("granitemoe_swa_v", "refact"),
    "granitemoehybrid": ("granite_hybrid_v", "gpt-2"),
    "granitemoehybrid, groups": ("granite_hybrid_groups", "gpt-2"),
    "nemotron_h": ("nemotron_h_v", "gpt-2"),
    "nemotron_h, experts": ("nemotron_h_v", "gpt-2"),
    "nemotron_h, latent": ("nemotron_h_latent", "gpt-2"),
    "lfm2": ("lfm2_v", "lfm2"),
    "lfm2_moe": ("lfm2_moe_v", "lfm2"),
    "minimax_m2": ("minimax_m2_v", "gpt-2"),
    "hy_v3": ("hy_v3_v", "gpt-2"),
    "ernie4_5_moe": ("ernie4_5_moe_v", "model"),
    "qwen3_vl_moe": ("qwen3_vl_moe_v", "qwen2"),
}


def golden(name):
    for folder in (GOLDEN, SHARED / "golden"):
        for path in (folder / name / "model", folder / name):
            if (path / "config.json").is_file():
                return path
    return None


def texts():
    """Rows of real text; and what tokenizers get wrong."""
    rows = [json.loads(line)["question"] for line in (SHARED / "data" / "gsm8k-test.jsonl").read_text().splitlines()[:6]]
    odd = [
        "Hello  world\n\n  two  spaces ",
        "It's 12345 o'clock, we'LL see: 3.14159!",
        "\u00dcbergr\u00f6\u00dfe \u4f60\u597d \U0001f999 na\u00efve",
        "<|im_start|>user\nhi<|im_end|>\n",
        "tabs\tand\r\nlines",
        " leading",
        "<tool>call</tool>",
        "x",
    ]
    return rows, odd


def byte_level(kind):
    t = Tokenizer(models.BPE(ignore_merges=kind in ("llama-bpe", "lfm2")))
    cut = [pre_tokenizers.Digits(individual_digits=True)] if kind == "refact" else []
    if kind in PATTERNS:
        cut += [
            pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    else:
        cut += [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    t.pre_tokenizer = pre_tokenizers.Sequence(cut)
    if kind in ("qwen2", "qwen35"):
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    text = (SHARED / "data" / "tinyshakespeare.txt").read_text()[:200000]
    t.train_from_iterator(
        text.splitlines(),
        trainers.BpeTrainer(vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    t.add_special_tokens(SPECIAL)
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind in ("llama-bpe", "lfm2"):
        t.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))]
                ),
            ]
        )
    return t


def characters(kind):
    """SentencePiece's BPE of stories260K; for Gemma without a space before the text."""
    data = json.loads((STORIES / "tokenizer.json").read_text())
    if kind != "spm":
        data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        data["decoder"]["decoders"] = [d for d in data["decoder"]["decoders"] if d["type"] != "Strip"]
    if kind == "gemma4":
        data["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return Tokenizer.from_str(json.dumps(data))


def sentencepiece(kind, out):
    """tokenizer.model, and what transformers makes of it."""
    import sentencepiece as spm

    spm.SentencePieceTrainer.train(
        input=str(SHARED / "data" / "tinyshakespeare.txt"), model_prefix=str(out / "tokenizer"), vocab_size=500,
        model_type="bpe", byte_fallback=True, input_sentence_size=5000, split_digits=True, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=kind == "model",
        pad_id=-1, user_defined_symbols=["<tool>"],
    )
    (out / "tokenizer.vocab").unlink()
    p = spm.SentencePieceProcessor(str(out / "tokenizer.model"))
    pieces = [p.id_to_piece(i) for i in range(p.vocab_size())]
    ids = {x: i for i, x in enumerate(pieces)}
    merges = sorted(
        ((x[:k], x[k:]) for x in pieces for k in range(1, len(x)) if x[:k] in ids and x[k:] in ids),
        key=lambda m: (ids[m[0] + m[1]], ids[m[0]], ids[m[1]]),
    )
    merges = [m for m in merges if not (p.is_control(ids[m[0] + m[1]]) or m[0] + m[1] == "<tool>")]
    data = json.loads((STORIES / "tokenizer.json").read_text())
    data["model"]["vocab"], data["model"]["merges"] = ids, [list(m) for m in merges]
    t = Tokenizer.from_str(json.dumps(data))
    t.add_tokens([AddedToken("<tool>", normalized=False)])
    return t


def write_tokenizer(kind, out):
    t = sentencepiece(kind, out) if "model" in kind else characters(kind) if kind in CHARACTERS else byte_level(kind)
    if kind == "gemma model":
        data = json.loads(t.to_str())
        data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        data["decoder"]["decoders"] = [d for d in data["decoder"]["decoders"] if d["type"] != "Strip"]
        t = Tokenizer.from_str(json.dumps(data))
    t.save(str(out / "tokenizer.json"))
    spm = kind in CHARACTERS
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "model_max_length": 128}
    config |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} if spm else {
        "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config))


def resize(config):
    for c in (config, getattr(config, "text_config", None)):
        if c is None:
            continue
        for key in ("vocab_size", "vocab_size_per_layer_input"):
            if hasattr(c, key):
                setattr(c, key, ROWS)
        for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(c, key, None)


def randomize(model):
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if p.dim() <= 1:
                p.copy_(p.mean().round() + 0.2 * noise if "A_log" not in name else 0.3 + 0.2 * noise)
            elif "embed" in name or "wte" in name:
                p.copy_(noise)
            else:
                p.copy_(noise * p.shape[-1] ** -0.5)
        for name, b in model.named_buffers():
            if "e_score_correction_bias" in name:
                b.copy_(0.1 * torch.randn(b.shape, generator=g))


def copy_released(source, out):
    """A model in codes, with as many rows of its embedding as tokenizers have."""
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    g = torch.Generator().manual_seed(7)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        shape = (ROWS, tensors[name].shape[1])
        tensors[name] = (torch.randn(shape, generator=g) * (1 if "embed" in name else shape[1] ** -0.5)).to(tensors[name].dtype)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config |= {"vocab_size": ROWS, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "swiglu_limit": 7.0}
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope["truncate"] = True
    (out / "config.json").write_text(json.dumps(config))


def make(family, out, dtype=torch.float32):
    """A directory of a model as transformers saves it, with a tokenizer. False: its golden is not here."""
    source, kind = FAMILIES[family]
    source = golden(source)
    if source is None:
        return False
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    if "mxfp4" in family:
        copy_released(source, out)
        write_tokenizer(kind, out)
        return True
    config = AutoConfig.from_pretrained(source)
    resize(config)
    for key, value in FIXED.get(family, {}).items():
        if key.startswith("rope_parameters."):
            config.rope_parameters[key.split(".")[1]] = value
        else:
            setattr(config, key, getattr(config, value) if isinstance(value, str) else value)
    torch.manual_seed(7)
    auto = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    randomize(model)
    model.to(dtype).save_pretrained(out)
    write_tokenizer(kind, out)
    return True


# family: the modules that get an adapter
ADAPTERS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
    "qwen3": ["q_proj", "v_proj", "up_proj"],
    "phi3": ["qkv_proj", "gate_up_proj"],
    "qwen3_5": ["in_proj_qkv", "out_proj", "q_proj", "down_proj"],
    "gpt_neox": ["query_key_value", "dense_4h_to_h"],
}


def make_adapter(family, model, out):
    """An adapter of PEFT, as it saves one."""
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=6, target_modules=ADAPTERS[family], task_type="CAUSAL_LM")
    tuned = get_peft_model(base, config)
    g = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, p in tuned.named_parameters():
            if "lora_" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=g))
    tuned.save_pretrained(out)
    file = out / "adapter_config.json"
    saved = json.loads(file.read_text())
    saved["base_model_name_or_path"] = str(model.resolve())
    file.write_text(json.dumps(saved))
    return tuned
