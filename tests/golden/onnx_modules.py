"""Language models as people write them by hand, for check_onnx_modules.py: each function returns a torch module that takes
input_ids [1, T] and returns logits [1, T, 61]. What is worth exporting is how they are spelled; sizes are tiny."""
import math

import torch
from torch import nn
from torch.nn import functional as F

V, D, H, N, LAYERS, LONGEST = 61, 48, 4, 12, 2, 64  # vocabulary, width, heads, of each, layers, longest sequence

MODULES, REFUSED = {}, {}
# What the legacy exporter writes wrong, and what we say then: the length that it was traced with, as a constant.
LEGACY_WRONG = {"torch_layers": "[5,4,12] does not keep one row per token"}


def module(function):
    MODULES[function.__name__] = function
    return function


def refused(why):
    """why: what the error must say."""
    def mark(function):
        REFUSED[function.__name__] = why
        return module(function)
    return mark


def causal(t):
    return torch.tril(torch.ones(t, t, dtype=torch.bool))


class RMSNorm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Decoder(nn.Module):
    """Embedding, blocks, norm, head; what differs is given."""

    def __init__(self, block, norm=lambda: nn.LayerNorm(D), tied=False, positions=False, layers=LAYERS):
        super().__init__()
        self.wte = nn.Embedding(V, D)
        self.wpe = nn.Embedding(LONGEST, D) if positions else None
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.norm = norm()
        self.head = nn.Linear(D, V, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, input_ids):
        x = self.wte(input_ids)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(0, input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Block(nn.Module):
    def __init__(self, attention, mlp, norm=lambda: nn.LayerNorm(D)):
        super().__init__()
        self.ln_1, self.ln_2, self.attn, self.mlp = norm(), norm(), attention(), mlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MLP(nn.Module):
    def __init__(self, act, bias=True):
        super().__init__()
        self.c_fc, self.c_proj, self.act = nn.Linear(D, 80, bias=bias), nn.Linear(80, D, bias=bias), act

    def forward(self, x):
        return self.c_proj(self.act(self.c_fc(x)))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(D, 80, bias=False), nn.Linear(80, D, bias=False), nn.Linear(D, 80, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class FusedSwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.w12, self.w3 = nn.Linear(D, 160, bias=False), nn.Linear(80, D, bias=False)

    def forward(self, x):
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * up)


class FusedAttention(nn.Module):
    """q, k and v in one product; a tril buffer for the mask, or what `core` does."""

    def __init__(self, bias=True, core=None, split="split", flat=True):
        super().__init__()
        self.c_attn, self.c_proj, self.core, self.split_by = nn.Linear(D, 3 * D, bias=bias), nn.Linear(D, D, bias=bias), core, split
        self.register_buffer("bias", torch.tril(torch.ones(LONGEST, LONGEST)).view(1, 1, LONGEST, LONGEST), persistent=flat)

    def forward(self, x):
        b, t, c = x.size()
        if self.split_by == "split":
            q, k, v = self.c_attn(x).split(c, dim=2)
            q, k, v = (z.view(b, t, H, N).transpose(1, 2) for z in (q, k, v))
        elif self.split_by == "unbind":
            q, k, v = self.c_attn(x).reshape(b, t, 3, H, N).permute(2, 0, 3, 1, 4).unbind(0)
        else:  # of each head side by side
            q, k, v = self.c_attn(x).view(b, t, H, 3 * N).transpose(1, 2).chunk(3, dim=-1)
        if self.core:
            y = self.core(q, k, v)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


def flash(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def new_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@module
def nano_gpt():
    return Decoder(lambda: Block(FusedAttention, lambda: MLP(nn.GELU())), tied=True, positions=True)


@module
def nano_gpt_flash():
    return Decoder(lambda: Block(lambda: FusedAttention(bias=False, core=flash), lambda: MLP(new_gelu, bias=False)), positions=True)


@module
def unbind_erf():
    def gelu(x):
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
    return Decoder(lambda: Block(lambda: FusedAttention(split="unbind"), lambda: MLP(gelu)), positions=True)


@module
def interleaved_qkv_quick_gelu():
    def act(x):
        return x * torch.sigmoid(1.702 * x)
    return Decoder(lambda: Block(lambda: FusedAttention(split="heads", core=flash), lambda: MLP(act)), positions=True)


class Lecture(nn.Module):
    """One head after the other, as in a well-known lecture."""

    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.ModuleList(nn.Linear(D, N, bias=False) for _ in range(H)) for _ in range(3))
        self.proj = nn.Linear(D, D)
        self.register_buffer("tril", torch.tril(torch.ones(LONGEST, LONGEST)))

    def forward(self, x):
        t, out = x.shape[1], []
        for key, query, value in zip(self.key, self.query, self.value):
            k, q = key(x), query(x)
            wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
            wei = wei.masked_fill(self.tril[:t, :t] == 0, float("-inf"))
            out.append(F.softmax(wei, dim=-1) @ value(x))
        return self.proj(torch.cat(out, dim=-1))


@module
def lecture():
    return Decoder(lambda: Block(Lecture, lambda: MLP(nn.ReLU())), positions=True)


def angles(n=N, base=10000.0):
    return torch.outer(torch.arange(LONGEST).float(), 1.0 / base**(torch.arange(0, n, 2).float() / n))


def rotate_half(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat((-b, a), dim=-1)


class Separate(nn.Module):
    """q, k and v in products of their own, kv heads for groups; `turn(x, t)` before, `core` for the scores."""

    def __init__(self, kv=2, turn=None, core=flash, norm=None, repeat="expand", bias=False, value_scale=1.0):
        super().__init__()
        self.wq, self.wk, self.wv = nn.Linear(D, D, bias=bias), nn.Linear(D, kv * N, bias=bias), nn.Linear(D, kv * N, bias=bias)
        self.wo = nn.Linear(D, D, bias=bias)
        self.kv, self.turn, self.core, self.repeat = kv, turn, core, repeat
        self.q_norm, self.k_norm = (norm(), norm()) if norm else (None, None)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.wq(x).view(b, t, H, N), self.wk(x).view(b, t, self.kv, N), self.wv(x).view(b, t, self.kv, N)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        group = H // self.kv
        if group > 1 and self.repeat == "expand":
            k, v = (z[:, :, None].expand(b, self.kv, group, t, N).reshape(b, H, t, N) for z in (k, v))
        elif group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        return self.wo(self.core(q, k, v).transpose(1, 2).reshape(b, t, D))


class Buffers(nn.Module):
    """Rotation by tables kept as buffers, halves as Hugging Face has them."""

    def __init__(self, rotary=N):
        super().__init__()
        emb = torch.cat((angles(rotary), angles(rotary)), dim=-1)
        self.rotary = rotary
        self.register_buffer("cos", emb.cos(), persistent=False)
        self.register_buffer("sin", emb.sin(), persistent=False)

    def forward(self, x):
        t = x.shape[-2]
        cos, sin = self.cos[:t][None, None], self.sin[:t][None, None]
        if self.rotary == N:
            return x * cos + rotate_half(x) * sin
        part, rest = x[..., : self.rotary], x[..., self.rotary:]
        return torch.cat((part * cos + rotate_half(part) * sin, rest), dim=-1)


class Narrow(nn.Module):
    """Tables of half a head; halves taken by chunk."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cos", angles().cos())
        self.register_buffer("sin", angles().sin())

    def forward(self, x):
        t = x.shape[-2]
        cos, sin = self.cos[:t], self.sin[:t]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Pairs(nn.Module):
    """Neighbours turn: the real and imaginary parts of llama2.c."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cos", angles().cos())
        self.register_buffer("sin", angles().sin())

    def forward(self, x):
        t = x.shape[-2]
        cos, sin = self.cos[:t].view(1, 1, t, N // 2), self.sin[:t].view(1, 1, t, N // 2)
        a, b = x.float().reshape(x.shape[:-1] + (-1, 2)).unbind(-1) if x.dtype == torch.float32 else x.reshape(x.shape[:-1] + (-1, 2)).unbind(-1)
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).reshape(x.shape)


class Strided(nn.Module):
    """Neighbours turn, as GPT-J spells it."""

    def forward(self, x):
        t = x.shape[-2]
        inverse = 1.0 / (10000**(torch.arange(0, N, 2, device=x.device).to(x.dtype) / N))
        angle = torch.einsum("i,j->ij", torch.arange(t, device=x.device).to(x.dtype), inverse)
        cos, sin = (torch.repeat_interleave(z, 2, dim=-1)[None, None] for z in (angle.cos(), angle.sin()))
        a, b = x[..., ::2], x[..., 1::2]
        return x * cos + torch.stack((-b, a), dim=4).reshape(x.shape) * sin


class Computed(nn.Module):
    """Angles computed where they are used, as positions times frequencies."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inverse", 1.0 / (10000.0**(torch.arange(0, N, 2).float() / N)), persistent=False)

    def forward(self, x):
        t = torch.arange(x.shape[-2], device=x.device).type_as(self.inverse)
        f = torch.outer(t, self.inverse)
        emb = torch.cat((f, f), dim=-1)
        return x * emb.cos() + rotate_half(x) * emb.sin()


@module
def llama_buffers():
    return Decoder(lambda: Block(lambda: Separate(turn=Buffers()), SwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D))


@module
def llama_narrow_interleave():
    return Decoder(lambda: Block(lambda: Separate(turn=Narrow(), repeat="interleave"), SwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D), tied=True)


@module
def llama2c():
    def core(q, k, v):
        t = q.shape[-2]
        mask = torch.triu(torch.full((1, 1, t, t), float("-inf")), diagonal=1).to(q.dtype)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(N)
        return torch.matmul(F.softmax((scores + mask).float() if q.dtype == torch.float32 else scores + mask, dim=-1).type_as(q), v)
    return Decoder(lambda: Block(lambda: Separate(turn=Pairs(), core=core), SwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D), tied=True)


class Parallel(nn.Module):
    def __init__(self, attention, mlp, one_norm):
        super().__init__()
        self.ln_1, self.ln_2, self.attn, self.mlp = nn.LayerNorm(D), None if one_norm else nn.LayerNorm(D), attention(), mlp()

    def forward(self, x):
        a = self.ln_1(x)
        return x + self.attn(a) + self.mlp(a if self.ln_2 is None else self.ln_2(x))


@module
def gptj_parallel():
    return Decoder(lambda: Parallel(lambda: Separate(kv=H, turn=Strided()), lambda: MLP(new_gelu), True))


@module
def neox_partial_rotary():
    return Decoder(lambda: Parallel(lambda: Separate(kv=H, turn=Buffers(8), bias=True), lambda: MLP(nn.GELU()), False))


@module
def window_mqa():
    def core(q, k, v):
        t = q.shape[-2]
        i, j = torch.arange(t)[:, None], torch.arange(t)[None, :]
        mask = (j <= i) & (i - j < 7)
        scores = (q @ k.transpose(-1, -2)) * N**-0.5
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) @ v
    return Decoder(lambda: Block(lambda: Separate(kv=1, turn=Computed(), core=core, norm=lambda: RMSNorm(N)), FusedSwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D))


class PlusOne(RMSNorm):
    def __init__(self, n):
        super().__init__(n)
        self.weight.data.zero_()

    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Capped(Decoder):
    def forward(self, input_ids):
        x = self.wte(input_ids) * math.sqrt(D)
        for block in self.blocks:
            x = block(x)
        return 30.0 * torch.tanh(self.head(self.norm(x)) / 30.0)


@module
def softcaps():
    def core(q, k, v):
        t = q.shape[-2]
        scores = 20.0 * torch.tanh(q @ k.transpose(-1, -2) * 0.25 / 20.0)
        return torch.softmax(scores + torch.where(causal(t), 0.0, -1e9).to(scores.dtype), -1) @ v
    return Capped(lambda: Block(lambda: Separate(turn=Computed(), core=core), lambda: MLP(nn.GELU(approximate="tanh"), False), lambda: PlusOne(D)), lambda: PlusOne(D), tied=True)


class Bare(nn.Module):
    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), eps=1e-6)


class Squared(Decoder):
    def forward(self, input_ids):
        x = F.rms_norm(self.wte(input_ids), (D,), eps=1e-6)
        for block in self.blocks:
            x = block(x)
        return 15.0 * torch.sigmoid(self.head(self.norm(x)) / 7.5)


@module
def speedrun():
    def act(x):
        return F.relu(x).square()
    return Squared(lambda: Block(lambda: Separate(kv=H, turn=Narrow(), norm=Bare), lambda: MLP(act, False), Bare), Bare)


class Standard(nn.Module):
    """x - mean over the deviation (of n - 1) plus eps."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return self.a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b


class Sinusoids(Decoder):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        pe = torch.zeros(LONGEST, D)
        pe[:, 0::2], pe[:, 1::2] = angles(D).sin(), angles(D).cos()
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, input_ids):
        x = self.wte(input_ids) * math.sqrt(D) + self.pe[:, : input_ids.size(1)].requires_grad_(False)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@module
def annotated():
    def core(q, k, v):
        t = q.shape[-2]
        mask = (torch.triu(torch.ones(1, t, t), diagonal=1).type(torch.uint8) == 0).unsqueeze(1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        return torch.matmul(scores.masked_fill(mask == 0, -1e9).softmax(dim=-1), v)
    return Sinusoids(lambda: Block(lambda: Separate(kv=H, core=core, bias=True), lambda: MLP(nn.ReLU()), Standard), Standard)


class HandNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = ((x - mean)**2).mean(dim=-1, keepdim=True)
        return self.weight * ((x - mean) / torch.sqrt(var + 1e-5)) + self.bias


class VarNorm(HandNorm):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * self.weight + self.bias


@module
def hand_norms():
    def core(q, k, v):
        t = q.shape[-2]
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * N**-0.5
        scores = torch.where(causal(t), scores, torch.tensor(-1e10, dtype=scores.dtype))
        return torch.einsum("bhqk,bhkd->bhqd", F.softmax(scores, dim=-1), v)
    return Decoder(lambda: Block(lambda: Separate(kv=2, core=core, bias=True, repeat="interleave"), lambda: MLP(F.silu), HandNorm), VarNorm, positions=True)


class Post(nn.Module):
    """Norms behind the branches."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp, self.n1, self.n2 = FusedAttention(core=flash), MLP(F.leaky_relu), nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x):
        x = self.n1(x + self.attn(x))
        return self.n2(x + self.mlp(x))


@module
def post_norm_leaky():
    return Decoder(Post, nn.Identity, positions=True)


class Encoder(nn.Module):
    """torch's own layers with a causal mask."""

    def __init__(self, norm_first=True):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(LONGEST, D)
        layer = nn.TransformerEncoderLayer(D, H, 80, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(D, V)

    def forward(self, input_ids):
        t = input_ids.shape[1]
        x = self.wte(input_ids) + self.wpe(torch.arange(t, device=input_ids.device)[None])
        mask = nn.Transformer.generate_square_subsequent_mask(t, dtype=x.dtype)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


@module
def torch_layers():
    return Encoder()


class Activations(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(D, 40), nn.Linear(40, D), act

    def forward(self, x):
        return self.down(self.act(self.up(x)))


@module
def many_activations():
    acts = [nn.Softplus(), nn.Mish(), nn.Hardswish(), nn.ELU(), nn.ReLU6(), nn.SELU(), nn.LogSigmoid(), nn.Softsign(), nn.Hardtanh(), nn.CELU(1.5)]
    it = iter(acts)
    return Decoder(lambda: Block(lambda: FusedAttention(core=flash), lambda: Activations(next(it))), positions=True, layers=len(acts))


@module
def cosine_attention():
    class Cosine(nn.Module):
        def forward(self, x):
            return F.normalize(x, dim=-1) * 3.0
    return Decoder(lambda: Block(lambda: Separate(kv=2, norm=Cosine, turn=Computed()), SwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D))


class Gated(nn.Module):
    """A gate on what attention gives, and a learned scale of each branch."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp, self.gate = Separate(kv=2, turn=Buffers()), SwiGLU(), nn.Linear(D, D)
        self.n1, self.n2, self.s1, self.s2 = RMSNorm(D), RMSNorm(D), nn.Parameter(torch.ones(D)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        a = self.n1(x)
        x = x + self.s1 * self.attn(a) * torch.sigmoid(self.gate(a))
        return x + self.s2 * self.mlp(self.n2(x))


@module
def gated_branches():
    return Decoder(Gated, lambda: RMSNorm(D))


# ---- what must be refused ---------------------------------------------------------------------------------------


@refused("ALiBi")
def alibi():
    def core(q, k, v):
        t = q.shape[-2]
        slope = 2.0**(-8.0 * torch.arange(1, H + 1, dtype=q.dtype) / H)
        distance = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        scores = q @ k.transpose(-1, -2) * N**-0.5 + slope[None, :, None, None] * distance.to(q.dtype)
        return scores.masked_fill(~causal(t), float("-inf")).softmax(-1) @ v
    return Decoder(lambda: Block(lambda: Separate(kv=H, core=core), SwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D))


@refused("mask")
def both_ways():
    def core(q, k, v):
        return F.softmax(q @ k.transpose(-1, -2) * N**-0.5, -1) @ v
    return Decoder(lambda: Block(lambda: Separate(kv=H, core=core), SwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D))


class Last(Decoder):
    def forward(self, input_ids):
        x = self.wte(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, [-1], :])


@refused("logits")
def last_row_only():
    return Last(lambda: Block(lambda: Separate(kv=H), SwiGLU, lambda: RMSNorm(D)), lambda: RMSNorm(D))


class Shifted(nn.Module):
    """Half of each token's vector from the one before."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp, self.n = Separate(kv=H), SwiGLU(), RMSNorm(D)

    def forward(self, x):
        x = x + self.attn(self.n(x))
        past = F.pad(x, (0, 0, 1, -1))
        return x + self.mlp(self.n(torch.cat((x[..., : D // 2], past[..., D // 2:]), -1)))


@refused("node")
def token_shift():
    return Decoder(Shifted, lambda: RMSNorm(D))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(D, 4, bias=False), nn.ModuleList(SwiGLU() for _ in range(4))

    def forward(self, x):
        weight, index = torch.topk(self.router(x).softmax(-1), 2)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out = out + expert(x) * (weight * (index == e)).sum(-1, keepdim=True)
        return out


@refused("node")
def experts():
    return Decoder(lambda: Block(lambda: Separate(kv=H), Experts, lambda: RMSNorm(D)), lambda: RMSNorm(D))
