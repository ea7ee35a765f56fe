#!/usr/bin/env python3
"""Converts models of goldens into GGUF files by llama.cpp's own converter: gguf/, and larger sets to look at.

make_gguf.py LLAMA_CPP OUT [NAME ...]

LLAMA_CPP is a tree of llama.cpp that has conversion/ and gguf-py/ (the source package of llama-cpp-python on PyPI holds
one in vendor/llama.cpp). OUT gets NAME.gguf and cases.json: of each file the golden it was made of, and fields of its
config.json that are to be set so that the directory says what the file can say. Needs torch, transformers and what
gguf-py needs. Those of FRESH are made of new models, NAME.model, by the code of make_goldens.py.

The models have no tokenizer: they get one whose tokens are "t0", "t1" and so on.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile

import configs
import configs_states

HERE = pathlib.Path(__file__).resolve().parent
NULL = "null"


@dataclasses.dataclass
class Case:
    """set: what both sides are told; only_file, drop: what the converter alone is told, and tensors that it is not
    given, by the ends of their names; pattern: a number of layers, the last of which has no window: llama.cpp reads it as
    a key that the converter does not write."""

    golden: str
    set: dict = dataclasses.field(default_factory=dict)
    only_file: dict = dataclasses.field(default_factory=dict)
    drop: tuple = ()
    flags: tuple = ()
    fresh: dict | None = None
    pattern: int = 0


NO_NEXTN = ("--no-nextn",)
UNBALANCED = {"router_aux_loss_coef": 0.0}

CASES = {
    "llama": Case("llama_plain"),
    "llama_bias": Case("llama_bias"),
    "llama3": Case("llama_rope_llama3"),
    "llama_linear": Case("llama_rope_linear_type"),
    "llama_yarn": Case("llama_rope_yarn"),
    "llama_f16": Case("llama_plain", flags=("--outtype", "f16")),
    "mistral": Case("mistral_no_window"),
    "mixtral": Case("mixtral_v", UNBALANCED),
    "qwen2": Case("qwen2_plain"),
    "seed_oss": Case("seed_oss_v"),
    "qwen3": Case("qwen3_plain"),
    "qwen3moe": Case("qwen3_moe_balanced", {**UNBALANCED, "num_hidden_layers": 1, "mlp_only_layers": []}),
    "qwen3next": Case("qwen3_next_moe_v", UNBALANCED, flags=NO_NEXTN),
    "qwen35": Case("qwen3_5_dense_v", flags=NO_NEXTN),
    "qwen35moe": Case("qwen3_5_moe_released_v", {"text_config.router_aux_loss_coef": 0.0}, flags=NO_NEXTN),
    "gemma3": Case("gemma3_layer_types", {"query_pre_attn_scalar": 8, "layer_types": ["sliding_attention"] * 4}),
    "apertus": Case("apertus_plain", {"pad_token_id": 3}),
    "gemma3n": Case("gemma3n_outside", only_file={"vocab_size": 40}),  # as long as the table of each layer's inputs
    "gemma4": Case("gemma4_31b_v"),
    "gemma4_experts": Case("gemma4_26b_a4b_v"),
    "gemma4_shared": Case("gemma4_e2b_released_v"),
    "olmo2": Case("olmo2_plain"),
    "olmo3": Case("olmo3_released"),
    "olmoe": Case("olmoe_v", {**UNBALANCED, "rms_norm_eps": 1e-5}),
    "exaone4": Case("exaone4_windows"),
    "mistral3": Case("ministral3_plain", {"pad_token_id": 11}),
    "mistral3_wrapper": Case("mistral3_v"),
    "qwen2vl": Case("qwen2_5_vl_v"),
    "qwen3vl": Case("qwen3_vl_v"),
    "cohere2": Case("cohere2_released", {"pad_token_id": 0}, pattern=3),
    "hunyuan-dense": Case(
        "hunyuan_v1_dense_alpha",
        {"rope_theta": 160000.0, "rope_scaling": None, "max_position_embeddings": 32768},
        {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "dynamic", "alpha": 8.0}},
    ),
    "smollm3": Case("smollm3_interval", {"no_rope_layer_interval": 4}),
    "ernie4_5": Case("ernie4_5_bias", {"pad_token_id": 0, "use_bias": False}, drop=(".bias",)),
    "chatglm": Case(
        "glm_plain",
        {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "max_position_embeddings": 24},
        {"partial_rotary_factor": 1.0},
    ),
    "glm4": Case("glm4_defaults"),
    "glm4moe": Case("glm4_moe_norms", UNBALANCED),
    "deepseek2": Case("deepseek_v3_groups", {"norm_topk_prob": True}, {"scoring_func": "sigmoid"}),
    "deepseek2_yarn": Case(
        "deepseek_v3_yarn",
        {"norm_topk_prob": True, "rope_scaling.mscale": 0.8, "rope_interleave": True},
        {"scoring_func": "sigmoid"},
    ),
    "phi3": Case("phi3_plain"),
    "phi3_longrope": Case("phi3_longrope_short"),
    "gpt-oss": Case("gpt_oss_v", {**UNBALANCED, "swiglu_limit": 7.0}),
    "gpt-oss_mxfp4": Case(
        "gpt_oss_mxfp4_v", {**UNBALANCED, "swiglu_limit": 7.0, "quantization_config": None}, {"quantization_config": NULL}
    ),
    "gptneox": Case("gpt_neox_plain", {"rotary_pct": 0.5, "rotary_emb_base": 10000}),
    "granite": Case("granite_plain"),
    "granite_bias": Case("granite_bias_tied"),
    "granite_swa": Case(
        "granite_swa_thetas", {"layer_rope_theta": [300.0, 300.0, 300.0, 0]}, {"no_rope_layers": [1, 1, 1, 0]}
    ),
    "granitehybrid": Case("granite_hybrid_groups", {"position_embedding_type": "nope", "time_step_limit": None}),
    "granitehybrid_experts": Case("granite_hybrid_v", UNBALANCED),
    "nemotron_h_moe": Case("nemotron_h_latent", {"time_step_min": 0.001}, {"mamba_d_head": 6}),
    "lfm2": Case("lfm2_v", {"conv_bias": False}, drop=("conv.bias", "conv.in_proj.bias", "conv.out_proj.bias")),
    "lfm2moe": Case("lfm2_moe_plain", {"routed_scaling_factor": 1.0}),
    "minimax-m2": Case("minimax_m2_balanced", UNBALANCED),
    "qwen3vlmoe": Case("qwen3_vl_moe_v", {"text_config.router_aux_loss_coef": 0.0}),
    "deepseek2_kimi": Case("kimi_k2_v"),
    "ernie4_5-moe": Case("ernie4_5_moe_balanced", {**UNBALANCED, "moe_norm_min": 1e-12}),
    "hunyuan-moe": Case(
        "hunyuan_v1_moe_lists",
        {"moe_topk": [2, 2], "rope_theta": 160000.0, "rope_scaling": None},
        {"moe_intermediate_size": [7, 7], "num_shared_expert": [1, 1]},
    ),
    "mimo2": Case(
        "mimo_v2_flash_values",
        {"routed_scaling_factor": 1.0},
        {"swa_head_dim": 12, "swa_num_attention_heads": 4, "swa_v_head_dim": 7, "swa_num_key_value_heads": 2,
         "topk_method": "noaux_tc", "hybrid_layer_pattern": [0, 1], "layernorm_epsilon": 0.01,
         "scoring_func": "sigmoid", "rope_parameters.partial_rotary_factor": 0.334},
        flags=("--no-mtp",),
    ),
    "mistral4": Case("mistral4_v", {"text_config.rope_parameters.llama_4_scaling_beta": 0.0}),
    "step35": Case("gguf/step35", flags=("--no-mtp",)),
    "llama4": Case("llama4_v", {"text_config.attention_chunk_size": 8192, "text_config.floor_scale": 8192, "text_config.attn_scale": 0.1, "text_config.no_rope_layers": [],
         "text_config.rope_scaling": {"factor": 4.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                                      "original_max_position_embeddings": 16, "rope_type": "llama3"}}),
    "laguna": Case("laguna_capped", {**UNBALANCED, "moe_router_logit_softcapping": 0.0}, {"mlp_layer_types": ["dense", "sparse", "sparse"]}),
    "hy_v3": Case("hy_v3_shared"),
    "granite_swa_experts": Case("granitemoe_swa_balanced", UNBALANCED, {"no_rope_layers": [1, 0], "rope_theta": 300.0}),
    "falcon-h1": Case(
        "falcon_h1_plain",
        {"embedding_multiplier": 1.0, "lm_head_multiplier": 1.0, "attention_in_multiplier": 1.0,
         "attention_out_multiplier": 1.0, "key_multiplier": 1.0, "ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0,
         "ssm_multipliers": None, "mlp_multipliers": [1.0] * 2},
        {"ssm_multipliers": [1.0] * 5},
    ),
        # new models
    "llama_q8_0": Case(
        "",
        fresh=configs.llama(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=8,
                            num_attention_heads=4, num_key_value_heads=2),
        flags=("--outtype", "q8_0"),
    ),

        "qwen35_heads": Case(
        "", fresh=configs.qwen3_5(linear_num_key_heads=2, linear_num_value_heads=6), flags=NO_NEXTN
    ),
    "gemma3_six": Case("", fresh=configs.gemma3(num_hidden_layers=7, query_pre_attn_scalar=8)),
    "granitemoe": Case(
        "",
        fresh=configs_states.granite_hybrid(
            layer_types=["attention"] * 3, num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.0
        ),
        set=UNBALANCED,
    ),
    "granite_4": Case("", fresh=configs_states.granite_hybrid(layer_types=["attention"] * 3)),
    "nemotron_h": Case(
        "",
        fresh={
            k: v
            for k, v in configs_states.nemotron_h(layers_block_type=["linear_attention", "mlp", "full_attention"]).items()
            if not k.startswith(("n_routed", "num_experts", "moe", "routed"))
        },
        only_file={"mamba_d_head": 6},
    ),
    "deepseek2_lite": Case(
        "", fresh=configs.deepseek_v3(architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", norm_topk_prob=True,
                                      mlp_layer_types=["dense", "sparse"]),
    ),
    "qwen2_tied": Case("qwen2_tied"),
    "qwen3_tied": Case("qwen3_tied"),
    "qwen3_yarn": Case("qwen3_yarn"),
    "llama_mqa": Case("llama_mqa"),
}


def load(tree):
    sys.path[:0] = [str(tree), str(tree / "gguf-py")]
    import convert_hf_to_gguf

    return convert_hf_to_gguf


def write_vocabulary(model):
    """In place of a class's set_vocab."""
    size = model.hparams["vocab_size"]
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(size)])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["t 0"])
    if isinstance(model.hparams.get("pad_token_id"), int):
        writer.add_pad_token_id(model.hparams["pad_token_id"])


def with_streams(original, base):
    """The converter of Gemma 3n knows four streams only; nothing in it depends on that."""
    import torch

    def init(self, *args, **more):
        found = base.load_hparams
        base.load_hparams = staticmethod(lambda *a: {**found(*a), "altup_num_inputs": 4})
        original(self, *args, **more)
        base.load_hparams = staticmethod(found)
        self.hparams["altup_num_inputs"] = found(self.dir_model, False)["altup_num_inputs"]
        count = self.hparams["altup_num_inputs"] - 1
        self._altup_proj, self._altup_unembd = [torch.Tensor()] * count, [torch.Tensor()] * count

    return init


def change(config, changes):
    for path, value in changes.items():
        *objects, last = path.split(".")
        at = config
        for name in objects:
            at = at[name]
        at[last] = value
        if value == NULL:
            del at[last]


def prepare(case, source, directory):
    """A copy of the model as the converter is to see it, with what it asks of a tokenizer's file."""
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text())
    change(config, {**case.set, **case.only_file})
    (directory / "config.json").write_text(json.dumps(config))
    layers = config.get("num_hidden_layers", 10**6)
    for file in source.glob("*.safetensors"):
        tensors = {
            name: value
            for name, value in load_file(file).items()
            if not name.endswith(case.drop or ("\0",)) and not is_behind(name, layers)
        }
        save_file(tensors, directory / file.name, {"format": "pt"})
    for file in source.glob("*.index.json"):
        shutil.copyfile(file, directory / file.name)
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size", 0))
    (directory / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {f"t{i}": i for i in range(size)}}, "added_tokens": []})
    )


def is_behind(name, layers):
    parts = name.split(".layers.")
    return len(parts) == 2 and int(parts[1].split(".")[0]) >= layers


def make_fresh(name, case, out):
    import cases
    import make_goldens

    target = out / f"{name}.model"
    if target.exists():
        shutil.rmtree(target)
    make_goldens.write_model(target, name, cases.Case("a file of GGUF", case.fresh, cases.A))
    return target


def make_step35(target):
    """Step 3.5 as the converter wants it, half of each head turning in full attention: the golden's heads, wider."""
    import torch
    from safetensors.torch import load_file, save_file

    source = HERE / "step3p5_released/model"
    config = json.loads((source / "config.json").read_text())
    config["head_dim"] = config["attention_other_setting"]["head_dim"] = 8
    config["attention_other_setting"]["true_head_dim"] = 8
    config["partial_rotary_factors"] = [0.5] + [1.0] * 3
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    generator, tensors = torch.Generator().manual_seed(5), {}
    for name, value in load_file(source / "model.safetensors").items():
        shape = list(value.shape)
        for axis, end in ((0, ("q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight", "k_norm.weight")),
                          (1, ("o_proj.weight",))):
            if name.endswith(end):
                shape[axis] = shape[axis] // 6 * 8
        tensors[name] = 0.3 * torch.randn(shape, generator=generator)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


def convert(name, case, out, converter):
    source = make_fresh(name, case, out) if case.fresh else HERE / case.golden / "model"
    if name == "step35" and not source.exists():
        make_step35(source)
    flags = case.flags if "--outtype" in case.flags else ("--outtype", "f32", *case.flags)
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch) / "model"
        directory.mkdir()
        prepare(case, source, directory)
        sys.argv = ["convert_hf_to_gguf.py", str(directory), "--outfile", str(out / f"{name}.gguf"), *flags]
        with contextlib.redirect_stdout(sys.stderr):
            converter.main()


def main():
    tree, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    names = sys.argv[3:] or list(CASES)
    out.mkdir(parents=True, exist_ok=True)
    converter = load(tree)
    original = converter.get_model_class

    def without_tokenizer(name, mmproj=False):
        found = original(name, mmproj)
        found.set_vocab = write_vocabulary
        if hasattr(found, "_altup_proj"):
            found.__init__ = with_streams(found.__init__, base)
        if hasattr(found, "Ministral3Model"):  # which stands behind that of multimodal models
            found.Ministral3Model.set_vocab = found.Mistral4Model.set_vocab = write_vocabulary
        found.no_mtp = False
        return found

    write_tensors = converter.ModelBase.prepare_tensors

    def with_pattern(self):
        if case.pattern:
            layers = range(self.hparams["num_hidden_layers"])
            self.gguf_writer.add_sliding_window_pattern([(i + 1) % case.pattern != 0 for i in layers])
        write_tensors(self)

    converter.ModelBase.prepare_tensors = with_pattern
    converter.get_model_class = without_tokenizer
    base = converter.ModelBase
    parse = base.load_hparams

    def with_all_fields(directory, is_mistral_format):  # transformers 5 drops fields that the converter asks for
        return {**json.loads((pathlib.Path(directory) / "config.json").read_text()), **parse(directory, is_mistral_format)}

    base.load_hparams = staticmethod(with_all_fields)
    listed, balance = {}, ("router_aux_loss_coef", "text_config.router_aux_loss_coef")
    for name in names:
        case = CASES[name]
        try:
            convert(name, case, out, converter)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}")
            continue
        if case.golden:
            listed[name] = {
                "golden": case.golden,
                "set": [f"{key}={json.dumps(value)}" for key, value in case.set.items()],
                "file_set": ["router_aux_loss_coef=0.0"] if any(key in balance for key in case.set) else [],
            }
        print(f"{name}.gguf")
    (out / "cases.json").write_text(json.dumps(listed, indent=1) + "\n")


if __name__ == "__main__":
    main()
