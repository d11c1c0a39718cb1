"""Reference implementation of a GGUF file from its metadata alone: the model in float32, and its tokenizer.

The model follows llama.cpp's `src/models/llama.cpp` and `qwen3.cpp`, with `ggml_rope_ext` for the angles; the tokenizer
follows `src/llama-vocab.cpp` in the slow, obvious form. llama.cpp's queue of pairs is equivalent to this rule: the best
existing pair merges, the leftmost of equals, until there is none.

Legend: `T` tokens, `D` model width, `N` query heads, `M` key-value heads, `G` query heads of a key-value head, `K` head
width, `V` vocabulary.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, pre_tokenizers
from torch import Tensor

from linnet.data.pieces import BYTE_LEVEL
from linnet.data.sentencepiece import SPACE
from linnet.interop.gguf.architecture import Metadata
from linnet.interop.gguf.file import GgufFile
from linnet.interop.gguf.vocabulary import NORMAL, PRE_TOKENIZERS, USER_DEFINED


@torch.no_grad()
def logits_of(file: GgufFile, tokens_T: Tensor) -> Tensor:
    """Return the logits of a text from its beginning: `[T] -> [T, V]`."""
    x_TD = file.tensors["token_embd.weight"][tokens_T]
    angles = _angles(file, len(tokens_T))
    for index in range(file.of_model("block_count")):
        x_TD = x_TD + _attention(file, f"blk.{index}.", x_TD, angles)
        h_TD = _norm(file, f"blk.{index}.ffn_norm", x_TD)
        gate = F.silu(_linear(file, f"blk.{index}.ffn_gate", h_TD))
        x_TD = x_TD + _linear(file, f"blk.{index}.ffn_down", gate * _linear(file, f"blk.{index}.ffn_up", h_TD))
    head = "output" if "output.weight" in file.tensors else "token_embd"
    return _linear(file, head, _norm(file, "output_norm", x_TD))


def _attention(file: GgufFile, layer: str, x_TD: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    heads, kv_heads = file.of_model("attention.head_count"), file.of_model("attention.head_count_kv")
    h_TD = _norm(file, f"{layer}attn_norm", x_TD)
    q_TNK = _linear(file, f"{layer}attn_q", h_TD).view(len(x_TD), heads, -1)
    k_TMK, v_TMK = (_linear(file, f"{layer}attn_{part}", h_TD).view(len(x_TD), kv_heads, -1) for part in "kv")
    if f"{layer}attn_q_norm.weight" in file.tensors:
        q_TNK, k_TMK = _norm(file, f"{layer}attn_q_norm", q_TNK), _norm(file, f"{layer}attn_k_norm", k_TMK)
    adjacent = {"llama": True, "qwen3": False}[file.architecture]
    q_TMGK = _rotate(q_TNK, angles, adjacent).view(len(x_TD), kv_heads, heads // kv_heads, -1)
    scores = torch.einsum("tmgk,smk->mgts", q_TMGK, _rotate(k_TMK, angles, adjacent)) / math.sqrt(q_TNK.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    shares = scores.masked_fill(future, -math.inf).softmax(-1)
    return _linear(file, f"{layer}attn_output", torch.einsum("mgts,smk->tmgk", shares, v_TMK).flatten(1))


def _linear(file: GgufFile, name: str, x: Tensor) -> Tensor:
    return F.linear(x, file.tensors[f"{name}.weight"], file.tensors.get(f"{name}.bias"))


def _norm(file: GgufFile, name: str, x: Tensor) -> Tensor:
    eps = file.of_model("attention.layer_norm_rms_epsilon")
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * file.tensors[f"{name}.weight"]


def _angles(file: GgufFile, length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines `[T, 1, K/2]`, computed in float64."""
    width, base = file.of_model("rope.dimension_count"), file.of_model("rope.freq_base")
    kind, factor = file.of_model("rope.scaling.type", "none"), file.of_model("rope.scaling.factor", 1.0)
    as_trained = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    unscaled, gain = torch.zeros(width // 2, dtype=torch.float64), 1.0
    if kind == "yarn":
        # YaRN's ramp, `[K/2]`, between 32 turns and 1 turn: 1 for unscaled pairs, 0 for divided ones.
        trained = file.of_model("rope.scaling.original_context_length")
        low, high = (width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
        first, last = max(0, math.floor(low)), min(width - 1, math.ceil(high))
        pairs = torch.arange(width // 2, dtype=torch.float64)
        unscaled = 1 - ((pairs - first) / max(0.001, last - first)).clamp(0, 1)
        gain = file.of_model("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(factor))
    frequencies = as_trained / factor * (1 - unscaled) + as_trained * unscaled
    if file.architecture == "llama":  # the only graph that reads the factors
        frequencies = frequencies / file.tensors.get("rope_freqs.weight", torch.ones(width // 2)).double()
    turns = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)[:, None]
    return (turns.cos() * gain).float(), (turns.sin() * gain).float()


def _rotate(x_TNK: Tensor, angles: tuple[Tensor, Tensor], adjacent: bool) -> Tensor:
    cos, sin = angles
    first, second = (x_TNK[..., 0::2], x_TNK[..., 1::2]) if adjacent else x_TNK.chunk(2, dim=-1)
    rotated = first * cos - second * sin, first * sin + second * cos
    return torch.stack(rotated, dim=-1).flatten(-2) if adjacent else torch.cat(rotated, dim=-1)


Price = Callable[[str, str], float | None]
"""Cost of merging two pieces; the lowest merges first, and None means that they never merge."""

_SPELLING = {byte: character for character, byte in BYTE_LEVEL.items()}


class GgufTokenizer:
    """The tokenizer of a file's metadata; names of control tokens in a text are ordinary text."""

    def __init__(self, metadata: Metadata) -> None:
        fields: dict[str, Any] = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
        tokens = fields["tokens"]
        self._ids: dict[str, int] = {name: token for token, name in enumerate(tokens)}
        whole = [name for name, kind in zip(tokens, fields["token_type"], strict=True) if kind == USER_DEFINED]
        longest_first = sorted(whole, key=lambda name: -len(name.encode()))
        self._whole = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if whole else None
        self._unigrams = UnigramTokenizer(fields) if fields["model"] == "t5" else None
        self._is_byte_level = fields["model"] == "gpt2"
        self._space_first: bool = fields["add_space_prefix"]
        if self._is_byte_level:
            cuts, self._whole_words = PRE_TOKENIZERS[fields["pre"]]
            self._split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cut), "isolated") for cut in cuts])
            self._ranks = {tuple(merge.split(" ")): float(rank) for rank, merge in enumerate(fields["merges"])}
        else:
            self._prices = {name: -score for name, score in zip(tokens, fields["scores"], strict=True)}

    def encode(self, text: str) -> list[int]:
        """Return token ids without added special tokens."""
        if self._unigrams is not None:
            return self._unigrams.encode(text)
        parts = [text] if self._whole is None else self._whole.split(text)
        ids: list[int] = []
        for place, part in enumerate(parts):
            if place % 2:  # a user-defined token
                ids.append(self._ids[part])
            elif part:
                ids += self._byte_level(part) if self._is_byte_level else self._sentencepiece(part)
        return ids

    def _byte_level(self, text: str) -> Iterator[int]:
        for piece, _ in self._split.pre_tokenize_str(text):
            word = "".join(_SPELLING[byte] for byte in piece.encode())
            if self._whole_words and word in self._ids:
                yield self._ids[word]
            else:
                yield from (self._ids[part] for part in _merged(word, lambda *pair: self._ranks.get(pair)))

    def _sentencepiece(self, text: str) -> Iterator[int]:
        # A part between user-defined tokens, or the first part, begins with a space if the file says so.
        marked = (" " * self._space_first + text).replace(" ", SPACE)
        for part in _merged(marked, lambda left, right: self._prices.get(left + right)):
            if part in self._ids:
                yield self._ids[part]
            else:
                yield from (self._ids[f"<0x{byte:02X}>"] for byte in part.encode())


def _merged(text: str, price: Price) -> list[str]:
    parts = list(text)
    while True:
        offers = [(cost, place) for place, pair in enumerate(pairwise(parts)) if (cost := price(*pair)) is not None]
        if not offers:
            return parts
        _, place = min(offers)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


UNKNOWN_PENALTY = 10.0
"""Score of a character without a piece, below the worst piece."""


class UnigramTokenizer:
    """The tokenizer of a file whose `tokenizer.ggml.model` is `t5`, after `llm_tokenizer_ugm` of llama.cpp.

    fields: the metadata without the prefix of its keys.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        listed = enumerate(zip(fields["tokens"], fields["token_type"], fields["scores"], strict=True))
        self._pieces = {name: (token, score) for token, (name, kind, score) in listed if kind == NORMAL}
        self._longest = max(map(len, self._pieces))
        worst = min(score for _, score in self._pieces.values())
        self._unknown = fields["unknown_token_id"], worst - UNKNOWN_PENALTY
        self._space_first, self._one_space = fields["add_space_prefix"], fields["remove_extra_whitespaces"]
        rules = fields.get("precompiled_charsmap")
        self._rules = None if rules is None else Charsmap(bytes(rules))

    def encode(self, text: str) -> list[int]:
        """Return the pieces with the largest sum of scores; consecutive unknown characters are one unknown token."""
        text = text if self._rules is None else self._rules.apply(text)
        if self._one_space:  # one mark before each word, including the first
            marked = "".join(SPACE + word for word in text.split(" ") if word)
        else:
            marked = (" " * (self._space_first and bool(text.strip(" "))) + text).replace(" ", SPACE)
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)] + [(-math.inf, 0, 0)] * len(marked)
        for start in range(len(marked)):
            for end in range(start + 1, min(len(marked), start + self._longest) + 1):
                piece = self._pieces.get(marked[start:end], self._unknown if end == start + 1 else None)
                if piece is not None and best[start][0] + piece[1] > best[end][0]:
                    best[end] = best[start][0] + piece[1], start, piece[0]
        ids, end = list[int](), len(marked)
        while end > 0:
            _, start, token = best[end]
            if token != self._unknown[0] or ids[-1:] != [token]:
                ids.append(token)
            end = start
        return ids[::-1]


class Charsmap:
    """SentencePiece's normalization rules: at each place the longest prefix with a replacement is replaced.

    They are a trie of bytes packed into integers (Kanda 2018, XOR-compressed double array), followed by the
    replacements.
    """

    def __init__(self, packed: bytes) -> None:
        size = int.from_bytes(packed[:4], "little")
        self._nodes: list[int] = np.frombuffer(packed[4 : 4 + size], "<u4").tolist()
        self._texts = packed[4 + size :]

    def apply(self, text: str) -> str:
        source, out, place = text.encode(), bytearray(), 0
        while place < len(source):
            end, replacement = self._longest(source, place)
            if replacement is None:
                end = place + len(source[place : place + 4].decode(errors="ignore")[0].encode())
                replacement = source[place:end]
            out += replacement
            place = end
        return out.decode()

    def _longest(self, text: bytes, start: int) -> tuple[int, bytes | None]:
        end, replacement, node = start, None, self._base(0)
        for place in range(start, len(text)):
            node ^= text[place]
            if text[place] == 0 or self._nodes[node] & (1 << 31 | 0xFF) != text[place]:
                break
            is_end = self._nodes[node] >> 8 & 1
            node ^= self._base(node)
            if is_end:
                at = self._nodes[node] & (1 << 31) - 1
                end, replacement = place + 1, self._texts[at : self._texts.index(0, at)]
        return end, replacement

    def _base(self, node: int) -> int:
        packed = self._nodes[node]
        return packed >> 10 << ((packed & 1 << 9) >> 6)
