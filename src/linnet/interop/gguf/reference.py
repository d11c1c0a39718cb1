"""What a GGUF file computes, by its own metadata alone: the definition, in float32, without anything of our models.

After llama.cpp's `src/models/llama.cpp` and `qwen3.cpp`, and `ggml_rope_ext` for the angles.

Legend: `T` tokens, `D` model width, `N` query heads, `M` key-value heads, `G` query heads of a key-value head, `K` head
width, `V` vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from linnet.interop.gguf.file import GgufFile


@torch.no_grad()
def logits_of(file: GgufFile, tokens_T: Tensor) -> Tensor:
    """`[T] -> [T, V]`: of one text, from its beginning."""
    x_TD = file.tensors["token_embd.weight"][tokens_T]
    angles = _angles(file, len(tokens_T))
    for index in range(file.of_model("block_count")):
        x_TD = x_TD + _attended(file, f"blk.{index}.", x_TD, angles)
        h_TD = _normed(file, f"blk.{index}.ffn_norm", x_TD)
        gate = F.silu(_mapped(file, f"blk.{index}.ffn_gate", h_TD))
        x_TD = x_TD + _mapped(file, f"blk.{index}.ffn_down", gate * _mapped(file, f"blk.{index}.ffn_up", h_TD))
    head = "output" if "output.weight" in file.tensors else "token_embd"
    return _mapped(file, head, _normed(file, "output_norm", x_TD))


def _attended(file: GgufFile, layer: str, x_TD: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    heads, kv_heads = file.of_model("attention.head_count"), file.of_model("attention.head_count_kv")
    h_TD = _normed(file, f"{layer}attn_norm", x_TD)
    q_TNK = _mapped(file, f"{layer}attn_q", h_TD).view(len(x_TD), heads, -1)
    k_TMK, v_TMK = (_mapped(file, f"{layer}attn_{part}", h_TD).view(len(x_TD), kv_heads, -1) for part in "kv")
    if f"{layer}attn_q_norm.weight" in file.tensors:
        q_TNK, k_TMK = _normed(file, f"{layer}attn_q_norm", q_TNK), _normed(file, f"{layer}attn_k_norm", k_TMK)
    turn = {"llama": _turned_adjacent, "qwen3": _turned_halves}[file.architecture]
    q_TMGK = turn(q_TNK, angles).view(len(x_TD), kv_heads, heads // kv_heads, -1)
    scores = torch.einsum("tmgk,smk->mgts", q_TMGK, turn(k_TMK, angles)) / math.sqrt(q_TNK.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    shares = scores.masked_fill(future, -math.inf).softmax(-1)
    return _mapped(file, f"{layer}attn_output", torch.einsum("mgts,smk->tmgk", shares, v_TMK).flatten(1))


def _mapped(file: GgufFile, name: str, x: Tensor) -> Tensor:
    return F.linear(x, file.tensors[f"{name}.weight"], file.tensors.get(f"{name}.bias"))


def _normed(file: GgufFile, name: str, x: Tensor) -> Tensor:
    eps = file.of_model("attention.layer_norm_rms_epsilon")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * file.tensors[f"{name}.weight"]


def _angles(file: GgufFile, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[T, 1, K/2]`; computed in float64, as the truth."""
    width, base = file.of_model("rope.dimension_count"), file.of_model("rope.freq_base")
    kind, factor = file.of_model("rope.scaling.type", "none"), file.of_model("rope.scaling.factor", 1.0)
    as_trained = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    kept, gain = torch.zeros(width // 2, dtype=torch.float64), 1.0
    if kind == "yarn":
        kept = _kept(width, base, file.of_model("rope.scaling.original_context_length"))
        gain = file.of_model("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(factor))
    frequencies = as_trained / factor * (1 - kept) + as_trained * kept
    turns = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)[:, None]
    return (turns.cos() * gain).float(), (turns.sin() * gain).float()


def _kept(width: int, base: float, trained: int) -> Tensor:
    """YaRN's ramp, `[K/2]`: 1 for pairs that stay as they are, 0 for those that are divided; 32 turns and 1 turn."""
    low, high = (width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    first, last = max(0, math.floor(low)), min(width - 1, math.ceil(high))
    pairs = torch.arange(width // 2, dtype=torch.float64)
    return 1 - ((pairs - first) / max(0.001, last - first)).clamp(0, 1)


def _turned_adjacent(x_TNK: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    return torch.stack(_turned(x_TNK[..., 0::2], x_TNK[..., 1::2], angles), dim=-1).flatten(-2)


def _turned_halves(x_TNK: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x_TNK.chunk(2, dim=-1)
    return torch.cat(_turned(first, second, angles), dim=-1)


def _turned(first: Tensor, second: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = angles
    return first * cos - second * sin, first * sin + second * cos
