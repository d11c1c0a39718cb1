"""Tensor names of published models as tables, conversion from and to them, and reading of pickled weights.

A table has a line for each tensor of linnet, or for all tensors of a module (`.weight`, `.bias`): the published tensors
that it joins, in order. Because the conversion only renames, joins and splits, gradients and shapes convert the same
way as weights. In names of linnet `#` stands for a number; in published names `{0}` is the index of the layer over all
blocks, `{1}` the next number, and so on.
"""

import pickle
import re
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.layers.mixers.attention import AttentionSpec
from linnet.model.decoder import meta_decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import shapes_of
from linnet.nn.linear import FusedLinear

NameTable = dict[str, str]

_LAYER = "blocks.#.layers.#."
_UNIT = "mha1.reslayerAs.{1}.denseAs.{2}"
FIXED_OPERATOR = "mixer.operator.g"
"""Suffix of the name of a fixed operator, which has no published name."""
OPT_OFFSET = 2
"""Leading rows of OPT's position table, which only padding uses."""


def _of_layers(layer: str, table: NameTable) -> NameTable:
    """Return the lines of a layer's tensors; `layer`: prefix of the published names."""
    return {_LAYER + mine: " ".join(layer + name for name in theirs.split()) for mine, theirs in table.items()}


def _attention_layers(layer: str, mixer: tuple[str, str, str], feed_forward: tuple[str, str, str]) -> NameTable:
    """Return the lines of an attention layer; mixer: norm, joint and output map; feed_forward: norm, up, down."""
    ours = ("mixer_norm", "mixer.query_key_value", "mixer.out", "feed_forward_norm", "feed_forward.up")
    return _of_layers(layer, dict(zip((*ours, "feed_forward.down"), mixer + feed_forward, strict=True)))


PLDR = {
    "embedding.tokens": "decoder.embedding",
    "embedding.norm": "decoder.layernorm1",
    "head": "final_layer",
    **_of_layers(
        "decoder.dec_layers.{0}.",
        {
            "mixer_norm": "layernorm1",
            "mixer.query_key_value": "mha1.wq mha1.wk mha1.wv",
            "mixer.out": "mha1.dense",
            "mixer.operator.norm": "mha1.layernorm1",
            "mixer.operator.metric_net.#.norm": "mha1.reslayerAs.{1}.layernormA",
            "mixer.operator.metric_net.#.gated.#.up": f"{_UNIT}.gluw1 {_UNIT}.gluw2",
            "mixer.operator.metric_net.#.gated.#.down": f"{_UNIT}.gluw3",
            "mixer.operator.metric_weight": "mha1.plgatt_layer.Wlst",
            "mixer.operator.metric_bias": "mha1.plgatt_layer.blst",
            "mixer.operator.power": "mha1.plgatt_layer.pwlst",
            "mixer.operator.curvature_weight": "mha1.plgatt_layer.alst",
            "mixer.operator.curvature_bias": "mha1.plgatt_layer.balst",
            "feed_forward_norm": "layernorm2",
            "feed_forward.up": "ffn.gluw1 ffn.gluw2",
            "feed_forward.down": "ffn.gluw3",
        },
    ),
}
"""The published PLDR-LLM code (arXiv 2502.13502), which has no name for a fixed operator."""

TED = {
    "embedding.tokens": "out_proj",
    "norm": "out_proj_norm",
    **_of_layers(
        "layers.{0}.",
        {
            "mixer_norm": "decay_norm",
            "mixer.quantity_gate": "decay.quantity_matrix decay.gate_matrix",
            "mixer.rate_weight": "decay.lambda_matrix.weight",
            "mixer.out": "decay.output_matrix",
            "feed_forward_norm": "ffn_norm",
            "feed_forward.up": "ffn.to_hidden_gate ffn.to_hidden",
            "feed_forward.down": "ffn.to_dim",
        },
    ),
}
"""The published TED code (github.com/biuq/ted)."""

LLAMA = {
    "embedding.tokens": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    **_attention_layers(
        "model.layers.{0}.",
        ("input_layernorm", "self_attn.q_proj self_attn.k_proj self_attn.v_proj", "self_attn.o_proj"),
        ("post_attention_layernorm", "mlp.gate_proj mlp.up_proj", "mlp.down_proj"),
    ),
    **_of_layers(
        "model.layers.{0}.self_attn.", {f"mixer.query_key_norm.{x}": f"{x[0]}_norm" for x in ("query", "key")}
    ),
}
"""Transformers' `LlamaForCausalLM`, `Qwen2ForCausalLM`, and `Qwen3ForCausalLM` (with `query_key_norm`)."""

GGUF = {
    "embedding.tokens": "token_embd",
    "norm": "output_norm",
    "head": "output",
    **_attention_layers(
        "blk.{0}.",
        ("attn_norm", "attn_q attn_k attn_v", "attn_output"),
        ("ffn_norm", "ffn_gate ffn_up", "ffn_down"),
    ),
    **_of_layers("blk.{0}.", {f"mixer.query_key_norm.{x}": f"attn_{x[0]}_norm" for x in ("query", "key")}),
}
"""llama.cpp's `llama` and `qwen3`."""

OPT = {
    "embedding.tokens": "embed_tokens",
    "embedding.positions": "embed_positions",
    "embedding.project": "project_in",
    "norm": "final_layer_norm",
    "head_project": "project_out",
    **_attention_layers(
        "layers.{0}.",
        ("self_attn_layer_norm", "self_attn.q_proj self_attn.k_proj self_attn.v_proj", "self_attn.out_proj"),
        ("final_layer_norm", "fc1", "fc2"),
    ),
}

GPT_NEOX = {
    "embedding.tokens": "embed_in",
    "norm": "final_layer_norm",
    "head": "embed_out",
    **_attention_layers(
        "layers.{0}.",
        ("input_layernorm", "attention.query_key_value", "attention.dense"),
        ("post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    ),
}

_GPT = {"embedding.tokens": "wte", "embedding.positions": "wpe", "norm": "ln_f", "head": "lm_head"}
_GPT_FEED_FORWARD = ("ln_2", "mlp.c_fc", "mlp.c_proj")
GPT2 = _GPT | _attention_layers("h.{0}.", ("ln_1", "attn.c_attn", "attn.c_proj"), _GPT_FEED_FORWARD)
_NEO_JOINT = "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj"
GPT_NEO = _GPT | _attention_layers("h.{0}.", ("ln_1", _NEO_JOINT, "attn.attention.out_proj"), _GPT_FEED_FORWARD)


def from_published(named: Mapping[str, Tensor], spec: ModelSpec, table: NameTable) -> dict[str, Tensor]:
    """Convert published tensors to the tensors of a model of this description."""
    pairs = _pairs(shapes_of(meta_decoder(spec)), spec, table)
    parts = {mine: [named[name] for name in theirs] for mine, theirs in pairs.items()}
    return {mine: torch.cat(several) if len(several) > 1 else several[0] for mine, several in parts.items()}


def to_published(tensors: Mapping[str, Tensor], spec: ModelSpec, table: NameTable) -> dict[str, Tensor]:
    """Invert `from_published`; joint tensors become views of their parts."""
    decoder, named = meta_decoder(spec), dict[str, Tensor]()
    for mine, theirs in _pairs(tensors, spec, table).items():
        owner, joint = decoder.get_submodule(mine.rpartition(".")[0]), tensors[mine]
        if len(theirs) > 1 and isinstance(owner, FusedLinear):
            parts: Sequence[Tensor] = torch.split(joint, list(owner.parts))
        else:
            parts = torch.chunk(joint, len(theirs))
        named |= dict(zip(theirs, parts, strict=True))
    return named


def published_shapes(spec: ModelSpec, table: NameTable) -> dict[str, tuple[int, ...]]:
    """Return the published names and shapes of a model of this description."""
    return {name: tuple(t.shape) for name, t in to_published(meta_decoder(spec).state_dict(), spec, table).items()}


def _pairs(names: Iterable[str], spec: ModelSpec, table: NameTable) -> dict[str, list[str]]:
    """Return the published names of each tensor, without fixed operators.

    `UserError` if another tensor has no published name: published models of that kind have no such part.
    """
    firsts = [sum(block.repeat for block in spec.blocks[:index]) for index in range(len(spec.blocks))]
    pairs = {}
    for name in names:
        numbers, pattern = [int(number) for number in re.findall(r"\d+", name)], re.sub(r"\d+", "#", name)
        module, _, end = pattern.rpartition(".")
        theirs = table.get(pattern) or " ".join(f"{each}.{end}" for each in table.get(module, "").split())
        if numbers:
            numbers = [firsts[numbers[0]] + numbers[1], *numbers[2:]]
        if theirs:
            pairs[name] = theirs.format(*numbers).split()
        elif not name.endswith(FIXED_OPERATOR):
            raise UserError(f"{spec.name}: {name}: published models of its kind have no such tensor")
    return pairs


def from_opt(named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Convert from Transformers' `OPTForCausalLM`, without the position rows that only padding reads."""
    body = _without_prefix("model.decoder.", named)
    positions = "embed_positions.weight"
    return from_published({**body, positions: body[positions][OPT_OFFSET:]}, spec, OPT)


def from_gpt_neox(named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Convert from Transformers' `GPTNeoXForCausalLM` (Pythia).

    Its joint projection is ordered head by head, linnet's by queries, keys and values. The head is named `lm_head` in
    Transformers 5, `embed_out` in earlier versions and in published files.
    """
    body = _without_prefix("gpt_neox.", named)
    body = {name.replace("lm_head", "embed_out"): tensor for name, tensor in body.items()}
    return from_published(_regrouped(body, (_heads(spec), 3)), spec, GPT_NEOX)


def to_gpt_neox(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Invert `from_gpt_neox`, with the names of published files."""
    return _with_prefix("gpt_neox.", _regrouped(to_published(tensors, spec, GPT_NEOX), (3, _heads(spec))))


def _heads(spec: ModelSpec) -> int:
    mixer = spec.blocks[0].mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer.heads


def _regrouped(named: Mapping[str, Tensor], groups: tuple[int, int]) -> dict[str, Tensor]:
    """Swap the two levels of grouping in the rows of joint projections; `groups`: their sizes."""

    def regrouped(joint: Tensor) -> Tensor:
        return joint.reshape(*groups, -1, *joint.shape[1:]).transpose(0, 1).reshape(joint.shape)

    return {name: regrouped(t) if "query_key_value" in name else t for name, t in named.items()}


def from_gpt_neo(named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Convert from Transformers' `GPTNeoForCausalLM`."""
    return from_published(_without_prefix("transformer.", named), spec, GPT_NEO)


def from_gpt2(named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Convert from Transformers' `GPT2LMHeadModel`, whose linear maps are stored transposed."""
    return from_published(_transposed(_without_prefix("transformer.", named)), spec, GPT2)


def to_gpt2(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Invert `from_gpt2`."""
    return _with_prefix("transformer.", _transposed(to_published(tensors, spec, GPT2)))


def _transposed(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.T if ".c_" in name and tensor.ndim == 2 else tensor for name, tensor in named.items()}


def _with_prefix(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    heads = ("lm_head", "embed_out")  # the head lies outside the prefixed body
    return {name if name.startswith(heads) else prefix + name: tensor for name, tensor in named.items()}


def _without_prefix(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in named.items()}


@dataclass(frozen=True)
class TensorMaps:
    """Both directions of a conversion: from published tensors (`ours`), and back (`theirs`)."""

    ours: Callable[[Mapping[str, Tensor], ModelSpec], dict[str, Tensor]]
    theirs: Callable[[Mapping[str, Tensor], ModelSpec], dict[str, Tensor]]


LLAMA_MAPS = TensorMaps(partial(from_published, table=LLAMA), partial(to_published, table=LLAMA))
GPT2_MAPS = TensorMaps(from_gpt2, to_gpt2)
GPT_NEOX_MAPS = TensorMaps(from_gpt_neox, to_gpt_neox)

_UNREADABLE = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, EOFError, ArithmeticError, AssertionError),
    *(ValueError, LookupError, AttributeError, TypeError),
)
"""Exceptions of PyTorch's unpickler for files that are truncated, damaged or request anything but tensors."""


def read_pth(path: Path, key: str | None = None) -> dict[str, Tensor]:
    """Read the named tensors of a pickled file, or of its entry `key`, without running anything in it.

    `torch.load(weights_only=True)` builds tensors and plain containers and refuses everything else. `UserError` names
    the file and what it contains instead.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file; expected a .pth file")
    open_file(path).close()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about kinds of pickles that are refused below or read like any other
            content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        # The library's own message would tell how to run what the file contains.
        raise UserError(
            f"{path}: not a file of tensors alone ({type(error).__name__}); nothing of it was run"
        ) from None
    named = content if key is None else content.get(key) if isinstance(content, dict) else None
    if not isinstance(named, dict):
        keys = ", ".join(sorted(map(str, content))[:5]) if isinstance(content, dict) else None
        found = type(content).__name__ if keys is None else f"the keys {keys or '(none)'}"
        raise UserError(f"{path}: expected a dictionary {f'with {key}' if key else 'of tensors'}, found {found}")
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            place = f"{path}: {key}" if key else str(path)
            raise UserError(f"{place}: {name!r} is of {type(value).__name__}, expected a tensor")
    return dict(named)


def check_one_precision(named: dict[str, Tensor], path: Path) -> None:
    """Raise `UserError` for tensors of mixed precisions."""
    found = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in named.values()})
    if len(found) > 1:
        raise UserError(f"{path}: tensors of {' and '.join(found)}: expected one precision")
