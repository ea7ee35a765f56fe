"""Hugging Face transformers, computing in float64 throughout.

A transformers model loaded in float64 still computes RMSNorm, rotary tables and the attention softmax in float32,
which leaves 4e-7 in the gradients. `Float64Patches` replaces those functions by their own source text with float32
spelled float64, so the mathematics stays transformers' own and nothing is written out a second time. No family is
named: the functions are those of the model's own module. `NoFloat32` watches every tensor operation of the forward and
of the backward, so a place that was forgotten is an error.
"""

import contextlib
import dataclasses
import importlib
import inspect
import math
import re
import textwrap

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Mistral4Config, Mistral4ForCausalLM, modeling_rope_utils

# which transformers looks for within Mistral 3 alone
AutoModelForCausalLM._model_mapping._extra_content[Mistral4Config] = Mistral4ForCausalLM


def in_float64(function, namespace):
    """The source of `function`, with every float32 spelled float64, compiled in `namespace`; None: there is none."""
    source = textwrap.dedent(inspect.getsource(function))
    changed = source.replace("torch.float32", "torch.float64")
    changed = re.sub(r"\btorch\.float\b", "torch.float64", changed)
    changed = changed.replace(".float()", ".double()")
    if changed == source:
        return None
    changed = re.sub(r"@auto_docstring(\([^@]*?\))?\n(?=@|\s*def )", "", changed)  # which wants a file of transformers
    scope = dict(namespace)
    exec(compile(changed, f"<float64 {function.__qualname__}>", "exec"), scope)
    return scope[function.__name__]


def auto_class(config):
    """What loads a model of this configuration: a text model, or a multimodal one."""
    return AutoModelForCausalLM if type(config) in AutoModelForCausalLM._model_mapping else AutoModelForImageTextToText


def module_of(config):
    return importlib.import_module(auto_class(config)._model_mapping[type(config)].__module__)


def modeling_module(directory):
    """transformers' module with the classes of the model in `directory`; of a multimodal one, of its text model."""
    config = AutoConfig.from_pretrained(directory)
    text = config.get_text_config()
    return module_of(text if type(text) in AutoModelForCausalLM._model_mapping else config)


class Float64Patches(contextlib.ExitStack):
    """While entered, what the model of a directory is made of computes in float64: the functions of its module (attention,
    recurrences), every forward of its classes, their rotary tables, and all rope types."""

    def __init__(self, directory):
        super().__init__()
        self.module = modeling_module(directory)

    def __enter__(self):
        super().__enter__()
        scope = vars(self.module)
        places = [  # before the forwards, which are compiled with what these are by then
            (self.module, name)
            for name, item in list(scope.items())
            if inspect.isfunction(item) and item.__module__ == self.module.__name__ and item.__name__ == name
        ]
        for item in list(scope.values()):
            if inspect.isclass(item) and item.__module__ == self.module.__name__:
                made = [name for name in vars(item) if name == "forward" or re.fullmatch("compute_.*_(rope_parameters|modalities)|_gaussian_topk", name)]
                places += [(item, name) for name in made]
        for owner, name in places:
            self._patch(owner, name, scope)
        table = modeling_rope_utils.ROPE_INIT_FUNCTIONS
        for name, function in list(table.items()):
            replacement = in_float64(function, vars(modeling_rope_utils))
            if not replacement:
                raise RuntimeError(f"{name}: no float32 found to replace; has transformers changed?")
            table[name] = replacement
            self.callback(table.__setitem__, name, function)
        return self

    def _patch(self, owner, name, scope):
        original = inspect.getattr_static(owner, name)
        replacement = in_float64(getattr(owner, name), scope)
        if replacement:
            setattr(owner, name, staticmethod(replacement) if isinstance(original, staticmethod) else replacement)
            self.callback(setattr, owner, name, original)


class NoFloat32(TorchDispatchMode):
    """Fails on the first operation, forward or backward, that reads or writes a lower precision than float64."""

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **(keywords or {}))
        for leaf in tree_leaves((arguments, keywords, result)):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
                raise RuntimeError(f"{operation}: a {leaf.dtype} tensor in the float64 reference")
        return result


CORRECTIONS = ("e_score_correction_bias", "expert_bias")  # of routers: kept in files, and trained by nobody


def trained(model):
    """name -> parameter with a gradient."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad and not name.endswith(CORRECTIONS)}


def untrained(model):
    """name -> numbers that files hold and nobody trains."""
    learnt = trained(model)
    fixed = {name: parameter for name, parameter in model.named_parameters() if name not in learnt}
    return {**dict(model.named_buffers()), **fixed}


def widen(model):
    """Routers are in float32 whatever is asked for."""
    for name, numbers in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(numbers, torch.nn.Parameter) or name.endswith(CORRECTIONS):
            numbers.data = numbers.data.double()


def in_double(function, *arguments):
    """What a function gives whose tensors are of torch's default type."""
    torch.set_default_dtype(torch.float64)
    try:
        return function(*arguments)
    finally:
        torch.set_default_dtype(torch.float32)


def load(directory, dtype, true_maths=True):
    """The model of `directory` in `dtype`. Inside Float64Patches its tables and scales are float64, too."""
    model = auto_class(AutoConfig.from_pretrained(directory)).from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    if dtype == torch.float64:
        widen(model)
    for module in model.modules():
        if dtype == torch.float64 and hasattr(module, "mup_vector"):  # numbers of config.json, made in float32
            module.mup_vector.copy_(in_double(vars(modeling_module(directory))["compute_mup_vector"], model.config))
    for embedding in [module for module in model.modules() if true_maths and isinstance(module, torch.nn.Embedding)]:
        # nn.Embedding(padding_idx) drops the input gradient of that row; the derivative of the loss does not.
        embedding.padding_idx = None
        if dtype == torch.float64 and hasattr(embedding, "embed_scale"):
            embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale, dtype=torch.float64)
    return model


def use_longest_document(model, rows):
    """`dynamic` and `longrope` read the length of the batch. A packed batch is as long as its longest document.

    transformers sees one document at a time here, so its own update is switched off and the tables of the longest
    document of the step stand for all of them."""
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is None or getattr(rotary, "rope_type", None) not in ("dynamic", "longrope"):
        return
    longest = max(len(row["input_ids"]) for row in rows)
    make = modeling_rope_utils.ROPE_INIT_FUNCTIONS[rotary.rope_type]
    inv_freq, scaling = make(model.config, torch.device("cpu"), seq_len=longest)
    rotary.inv_freq, rotary.attention_scaling = inv_freq, scaling
    rotary.rope_type = "default"  # what the update looks at; the tables are final


def balance_loss(model, rows):
    """router_aux_loss_coef times the loss that balances experts, of all documents as one micro-batch; None: there is
    none. transformers' own function; documents are run alone, and rows of one without a next token count."""
    config = model.config
    if not getattr(config, "output_router_logits", False) or not config.router_aux_loss_coef:
        return None
    documents = [
        model(input_ids=torch.tensor([row["input_ids"]]), use_cache=False, output_router_logits=True).router_logits
        for row in rows
    ]
    pooled = tuple(torch.cat(layer) for layer in zip(*documents, strict=True))
    function = importlib.import_module(type(model).__module__).load_balancing_loss_func
    return config.router_aux_loss_coef * function(pooled, model.num_experts, model.num_experts_per_tok)


@dataclasses.dataclass
class Step:
    loss: float
    metrics: dict
    logprobs: list  # per document: log p of every next token
    gradients: dict  # name -> tensor


def count_targets(rows):
    """Labels that name a next token: the first token of a document is never one."""
    return sum(label != -100 for row in rows for label in row["labels"][1:])


def document_loss(model, row, targets, loss_type):
    """(loss of one document with the step's denominator, log p of every next token, entropies, hits)."""
    ids = torch.tensor([row["input_ids"]])
    labels = torch.tensor(row["labels"])[1:]
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]  # [T - 1, V]
    logp = torch.log_softmax(logits, dim=-1)
    next_logp = logp.gather(1, ids[0, 1:, None])[:, 0]
    counted = labels != -100
    label_logp = logp.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    weight = counted.to(logp.dtype)
    if loss_type == "dft":
        weight = weight * label_logp.detach().exp()
    elif loss_type != "nll":
        raise ValueError(loss_type)
    loss = -(weight * label_logp).sum() / max(targets, 1)
    entropy = -(logp.exp() * logp).sum(-1)[counted]
    hits = (logits.argmax(-1) == labels)[counted]
    return loss, next_logp, entropy, hits


def run_step(model, rows, loss_type="nll"):
    """Loss and gradients of one optimizer step: documents one at a time, one denominator."""
    use_longest_document(model, rows)
    model.zero_grad(set_to_none=True)
    targets = count_targets(rows)
    loss, entropy, hits, nll, logprobs = 0.0, 0.0, 0, 0.0, []
    for row in rows:
        if len(row["input_ids"]) == 1:  # no next token
            logprobs.append([])
            continue
        part, next_logp, row_entropy, row_hits = document_loss(model, row, targets, loss_type)
        part.backward()
        loss += part.item()
        entropy += row_entropy.sum().item()
        hits += int(row_hits.sum())
        logprobs.append(next_logp.tolist())
        nll -= sum(p for p, label in zip(logprobs[-1], row["labels"][1:], strict=True) if label != -100)
    balance = balance_loss(model, rows)
    if balance is not None:
        balance.backward()
        loss += balance.item()
    gradients = {}
    for name, parameter in trained(model).items():  # a tied matrix appears once, as the input embedding
        gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
    metrics = {
        "num_target_tokens": targets,
        "nll": nll / max(targets, 1),
        "entropy": entropy / max(targets, 1),
        "mean_token_accuracy": hits / max(targets, 1),
    }
    if balance is not None:
        metrics["aux_loss"] = balance.item() / model.config.router_aux_loss_coef
    return Step(loss, metrics, logprobs, gradients)


@torch.no_grad()
def total_loss(model, rows, loss_type="nll"):
    targets = count_targets(rows)
    parts = [document_loss(model, row, targets, loss_type)[0] for row in rows if len(row["input_ids"]) > 1]
    balance = balance_loss(model, rows)
    return sum(part.item() for part in parts) + (0.0 if balance is None else balance.item())


def reference_step(directory, rows, loss_type="nll"):
    """(model, Step), all float64; checked operation by operation."""
    with Float64Patches(directory):
        model = load(directory, torch.float64)
        for name, buffer in model.named_buffers():
            tower = "vision_tower." in name or "visual." in name  # which rows of text do not reach
            if buffer.is_floating_point() and buffer.dtype != torch.float64 and not tower:
                raise RuntimeError(f"{name}: a {buffer.dtype} buffer in the float64 reference")
        with NoFloat32():  # quotients of whole numbers are of torch's default type
            return model, in_double(run_step, model, rows, loss_type)


def relative_error(got, want):
    """||got - want|| / ||want||; 0 when both are 0."""
    difference = (got.double() - want.double()).norm().item()
    size = want.double().norm().item()
    return difference / size if size else (math.inf if difference else 0.0)


def worst(got, want):
    """(largest relative error of any tensor, its name); the sets of names must be equal."""
    if got.keys() != want.keys():
        raise RuntimeError(f"tensor names differ: {sorted(got.keys() ^ want.keys())}")
    return max((relative_error(got[name], want[name]), name) for name in want)


def directional_error(directory, model, rows, gradients, loss_type="nll", step=3e-6):
    """Difference quotient of the loss along a direction against the gradients: their check from outside.

    The direction is, per tensor, half gradient and half noise: large enough to be measured, and no element is left out.
    `dft` has no such check: its weights are constants for the gradient, and not for the difference."""
    if loss_type != "nll":
        return None
    generator = torch.Generator().manual_seed(7)
    parameters = trained(model)
    start = {name: p.detach().clone() for name, p in parameters.items()}
    way = {}
    for name, p in parameters.items():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        way[name] = gradients[name] + noise * gradients[name].norm() / noise.norm()
    want = sum((way[name] * gradients[name]).sum().item() for name in parameters)

    def at(distance):
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(start[name] + distance * way[name])
        return in_double(total_loss, model, rows)

    with Float64Patches(directory):
        # Five points: the error is of fourth order in the step.
        got = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
        at(0.0)
    return abs(got - want) / abs(want)
