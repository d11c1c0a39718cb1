"""Tensor names of published models as tables, conversion from and to them, and reading of pickled weights.

A table has a line for each tensor of linnet, or for all tensors of a module (`.weight`, `.bias`): the published tensors
that it joins, in order. In names of linnet `#` stands for a number; in published names `{0}` is the index of the layer
over all blocks, `{1}` the next number, and so on. `name[{1}]` is the part of this number of a tensor of several,
`name[0/2]` the first half of the rows of each attention head; `name*3` holds three parts of a map of linnet.
`mixer(kind)` is the mixer of layers of one kind alone.
"""

import pickle
import re
import struct
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import open_file
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.gated_delta import GatedDeltaSpec
from linnet.model.decoder import meta_decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import shapes_of
from linnet.nn.linear import FusedLinear

NameTable = dict[str, str]

FIXED_OPERATOR = "mixer.operator.g"
"""Suffix of the name of a fixed operator, which has no published name."""
HEADS = ("lm_head", "embed_out", "head.")
"""Published names of heads, which never have a prefix."""
JOINT = ("query_key_value", "c_attn", "qkv_proj")
"""Published names of joint projections."""
OF_KEY_HEADS = ("in_proj_qkvz", "in_proj_ba")
"""Published names of maps of gated delta nets that hold the rows of a key head and its value heads together."""


Joint = Literal["parts", "heads", "quarters"]
"""The order of the rows of a joint query, key and value matrix."""


@dataclass(frozen=True)
class PublishedTensors:
    """Names of the tensors of published models, and how they are stored.

    The conversion only renames, joins, splits and reorders, so that gradients convert the same way as weights.

    table: see the module; None: the names of linnet. prefix: of all names except the head's. transposed: linear maps
    (`.c_`) are stored as `[inputs, outputs]`. joint: the order of the rows of the joint projection: `parts` (queries,
    keys, values), `heads` (these three of each head), or `quarters` (queries, values, keys of each quarter of the
    heads). padding_positions: leading rows of the position table that only padding uses. fixed: values of tensors that
    the models do not have, by the end of their names.
    """

    table: NameTable | None
    prefix: str = ""
    transposed: bool = False
    joint: Joint = "parts"
    padding_positions: int = 0
    fixed: Mapping[str, float] = field(default_factory=dict)

    def from_published(self, named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
        """Convert published tensors to the tensors of a model of this description."""
        tensors: dict[str, Tensor] = {}
        shapes = shapes_of(meta_decoder(spec))
        for ours, theirs in self._pairs(shapes, spec).items():
            parts = [self._reordered(name, _part_of(named, name, spec), spec, to_published=False) for name in theirs]
            tensors[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]
        like = next(iter(named.values()))
        for ours, shape in shapes.items():
            value = self._fixed_value(ours)
            if value is not None:
                tensors[ours] = like.new_full(tuple(shape), value)
        if self.padding_positions:
            tensors["embedding.positions.weight"] = tensors["embedding.positions.weight"][self.padding_positions :]
        return tensors

    def to_published(self, tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
        """Invert `from_published`, except for padding positions; joint tensors become views of their parts."""
        decoder, named = meta_decoder(spec), dict[str, Tensor]()
        for ours, theirs in self._pairs(tensors, spec).items():
            owner, joint = decoder.get_submodule(ours.rpartition(".")[0]), tensors[ours]
            if len(theirs) > 1 and isinstance(owner, FusedLinear):
                rows = iter(owner.parts)
                sizes = [sum(islice(rows, int(of[1]) if (of := _SEVERAL.search(name)) else 1)) for name in theirs]
                parts: Sequence[Tensor] = torch.split(joint, sizes)
            else:
                parts = torch.chunk(joint, len(theirs))
            for name, part in zip(theirs, parts, strict=True):
                named[_SEVERAL.sub("", name)] = self._reordered(name, part, spec, to_published=True)
        return _joined(named, spec)

    def names(self, ours: Iterable[str], spec: ModelSpec) -> list[str]:
        """Return the published names of tensors of linnet."""
        return [name for names in self._pairs(ours, spec).values() for name in names]

    def shapes(self, spec: ModelSpec) -> dict[str, tuple[int, ...]]:
        """Return the published names and shapes of a model of this description."""
        decoder = meta_decoder(spec)
        tensors = self.to_published(decoder.state_dict(), spec)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if self.padding_positions:
            (name,) = self.names(["embedding.positions.weight"], spec)
            shapes[name] = (shapes[name][0] + self.padding_positions, *shapes[name][1:])
        return shapes

    def _pairs(self, names: Iterable[str], spec: ModelSpec) -> dict[str, list[str]]:
        """Return the published names of each tensor, without fixed operators.

        `UserError` if another tensor has no published name: published models of that kind have no such part.
        """
        if self.table is None:
            return {name: [self.prefix + name] for name in names}
        firsts = [sum(block.repeat for block in spec.blocks[:index]) for index in range(len(spec.blocks))]
        pairs: dict[str, list[str]] = {}
        for name in names:
            numbers, pattern = [int(number) for number in re.findall(r"\d+", name)], re.sub(r"\d+", "#", name)
            theirs = self._line(pattern)
            if ".mixer." in pattern:
                kind = spec.blocks[numbers[0]].mixer.kind
                theirs = self._line(pattern.replace(".mixer.", f".mixer({kind}).")) or theirs
            if numbers:
                numbers = [firsts[numbers[0]] + numbers[1], *numbers[2:]]
            if self._fixed_value(name) is not None:
                continue
            if theirs:
                published = theirs.format(*numbers).split()
                pairs[name] = [each if each.startswith(HEADS) else self.prefix + each for each in published]
            elif not name.endswith(FIXED_OPERATOR):
                raise UserError(f"{spec.name}: {name}: published models of its kind have no such tensor")
        return pairs

    def _line(self, pattern: str) -> str:
        """Return the published names of a tensor, by the line of it or of its module; empty if there is none."""
        assert self.table is not None
        module, _, end = pattern.rpartition(".")
        return self.table.get(pattern) or " ".join(f"{each}.{end}" for each in self.table.get(module, "").split())

    def _fixed_value(self, name: str) -> float | None:
        return next((value for end, value in self.fixed.items() if name.endswith(end)), None)

    def _reordered(self, name: str, tensor: Tensor, spec: ModelSpec, to_published: bool) -> Tensor:
        """Return a published tensor in linnet's order, or the other way round."""
        if self.transposed and ".c_" in name and tensor.ndim == 2:
            return tensor.T
        if name.rsplit(".", 2)[-2] in OF_KEY_HEADS:
            return _of_key_heads(name, tensor, spec, to_published)
        if self.joint != "parts" and name.rsplit(".", 2)[-2] in JOINT:
            mixer = spec.blocks[0].mixer
            assert isinstance(mixer, AttentionSpec)
            if mixer.kv_heads == 1 and mixer.heads > 1:  # a single key and value have no order by heads
                return tensor
            groups = mixer.heads if self.joint == "heads" else 4
            order = slice(None) if self.joint == "heads" else [0, 2, 1]
            if to_published:
                return tensor.reshape(3, groups, -1, *tensor.shape[1:])[order].transpose(0, 1).reshape(tensor.shape)
            return tensor.reshape(groups, 3, -1, *tensor.shape[1:]).transpose(0, 1)[order].reshape(tensor.shape)
        return tensor


def _of_key_heads(name: str, tensor: Tensor, spec: ModelSpec, to_published: bool) -> Tensor:
    """Return the rows of a map of gated delta nets ordered by key heads instead of by parts, or the other way round.

    The parts are queries, keys, values and gates, or shares and decays.
    """
    mixer = next(block.mixer for block in spec.blocks if isinstance(block.mixer, GatedDeltaSpec))
    keys, values, _ = mixer.totals(spec.d_model)
    sizes = [keys, keys, values, values] if "qkvz" in name else [mixer.heads, mixer.heads]
    key_heads = mixer.key_heads or mixer.heads
    if to_published:
        parts = [part.reshape(key_heads, -1, *part.shape[1:]) for part in torch.split(tensor, sizes)]
        return torch.cat(parts, dim=1).flatten(0, 1)
    by_head = tensor.reshape(key_heads, -1, *tensor.shape[1:])
    by_part = torch.split(by_head, [size // key_heads for size in sizes], dim=1)
    return torch.cat([part.flatten(0, 1) for part in by_part])


_SEVERAL = re.compile(r"\*(\d+)")
_PART = re.compile(r"\[(\d+)(?:/(\d+))?\]")


def _part_of(named: Mapping[str, Tensor], name: str, spec: ModelSpec) -> Tensor:
    """Return the published tensor of a name, or the part of it that the name says."""
    part, name = _PART.search(name), _SEVERAL.sub("", name)
    if part is None:
        return named[name]
    tensor, number = named[_PART.sub("", name)], int(part[1])
    return tensor[number] if part[2] is None else _by_head(tensor, spec, int(part[2]))[:, number].flatten(0, 1)


def _joined(named: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """Join the parts of tensors."""
    joined, parts = dict[str, Tensor](), dict[str, list[Tensor]]()
    of_heads = set[str]()
    for name, tensor in named.items():  # parts come in the order of their numbers
        whole, part = _PART.sub("", name), _PART.search(name)
        if part is None:
            joined[name] = tensor
            continue
        parts.setdefault(whole, []).append(tensor if part[2] is None else _by_head(tensor, spec, 1))
        if part[2] is not None:
            of_heads.add(whole)
    for name, tensors in parts.items():
        joined[name] = torch.cat(tensors, dim=1).flatten(0, 2) if name in of_heads else torch.stack(tensors)
    return joined


def _by_head(tensor: Tensor, spec: ModelSpec, parts: int) -> Tensor:
    """Return rows of attention heads as `[N, parts, K, ...]`."""
    heads = next(block.mixer.heads for block in spec.blocks if isinstance(block.mixer, AttentionSpec))
    return tensor.view(heads, parts, -1, *tensor.shape[1:])


def _of_layers(layer: str, table: NameTable) -> NameTable:
    """Return the lines of a layer's tensors; `layer`: prefix of the published names."""
    return {
        f"blocks.#.layers.#.{ours}": " ".join(layer + name for name in theirs.split()) for ours, theirs in table.items()
    }


def _attention_layers(layer: str, mixer: tuple[str, str, str], feed_forward: tuple[str, str, str]) -> NameTable:
    """Return the lines of an attention layer; mixer: norm, joint and output map; feed_forward: norm, up, down."""
    ours = ("mixer_norm", "mixer.query_key_value", "mixer.out", "feed_forward_norm", "feed_forward.up")
    return _of_layers(layer, dict(zip((*ours, "feed_forward.down"), mixer + feed_forward, strict=True)))


_UNIT = "mha1.reslayerAs.{1}.denseAs.{2}"

PLDR = PublishedTensors(
    {
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
)
"""The published PLDR-LLM code (arXiv 2502.13502), which has no name for a fixed operator."""

TED = PublishedTensors(
    {
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
)
"""The published TED code (github.com/biuq/ted)."""

_LLAMA = {"embedding.tokens": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_LLAMA_ATTENTION = ("input_layernorm", "self_attn.q_proj self_attn.k_proj self_attn.v_proj", "self_attn.o_proj")
_LLAMA |= _attention_layers(
    "model.layers.{0}.",
    _LLAMA_ATTENTION,
    ("post_attention_layernorm", "mlp.gate_proj mlp.up_proj", "mlp.down_proj"),
)
_LLAMA |= _of_layers(
    "model.layers.{0}.self_attn.", {f"mixer.query_key_norm.{x}": f"{x[0]}_norm" for x in ("query", "key")}
)
LLAMA = PublishedTensors(_LLAMA)
"""Transformers' `LlamaForCausalLM`, `Qwen2ForCausalLM`, and `Qwen3ForCausalLM` (with `query_key_norm`)."""

PHI3 = PublishedTensors(
    _LLAMA
    | _of_layers(
        "model.layers.{0}.", {"mixer.query_key_value": "self_attn.qkv_proj", "feed_forward.up": "mlp.gate_up_proj"}
    )
)

OLMO2 = PublishedTensors(
    _LLAMA
    | _of_layers(
        "model.layers.{0}.",
        {"mixer_norm": "post_attention_layernorm", "feed_forward_norm": "post_feedforward_layernorm"},
    )
)

GEMMA2 = PublishedTensors(
    _LLAMA
    | _of_layers(
        "model.layers.{0}.",
        {
            "output_norms.mixer": "post_attention_layernorm",
            "feed_forward_norm": "pre_feedforward_layernorm",
            "output_norms.feed_forward": "post_feedforward_layernorm",
        },
    )
)
"""Gemma 2 and 3."""

_EXPERTS = {
    "feed_forward.router.map": "gate",
    "feed_forward.experts.#.up": "experts.{1}.gate_proj experts.{1}.up_proj",
    "feed_forward.experts.#.down": "experts.{1}.down_proj",
}
_SHARED_EXPERT = {
    "feed_forward.shared.up": "shared_expert.gate_proj shared_expert.up_proj",
    "feed_forward.shared.down": "shared_expert.down_proj",
    "feed_forward.shared_gate": "shared_expert_gate",
}
SMALL_EXPERTS = PublishedTensors(_LLAMA | _of_layers("model.layers.{0}.mlp.", _EXPERTS))
"""OLMoE."""

MIXTRAL = PublishedTensors(
    _LLAMA
    | _of_layers(
        "model.layers.{0}.block_sparse_moe.",
        {
            "feed_forward.router.map": "gate",
            "feed_forward.experts.#.up": "experts.{1}.w1 experts.{1}.w3",
            "feed_forward.experts.#.down": "experts.{1}.w2",
        },
    )
)

GRANITE_EXPERTS = PublishedTensors(
    _LLAMA
    | _of_layers(
        "model.layers.{0}.block_sparse_moe.",
        {
            "feed_forward.router.map": "router.layer",
            "feed_forward.experts.#.up": "input_linear[{1}]",
            "feed_forward.experts.#.down": "output_linear[{1}]",
        },
    )
)
"""Granite 3 with experts, all experts of a layer in one tensor."""

OLMO = PublishedTensors(_LLAMA, fixed={"norm.weight": 1.0, "norm.bias": 0.0})
"""OLMo 1, whose norms have no parameters."""

COHERE = PublishedTensors(
    {**_LLAMA, "blocks.#.layers.#.feed_forward_norm": "model.layers.{0}.input_layernorm"}, fixed={"norm.bias": 0.0}
)
"""Cohere, whose branches read one norm without a bias, which becomes two equal ones."""

STARCODER2 = PublishedTensors(
    _LLAMA | _of_layers("model.layers.{0}.", {"feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"})
)

PHI = PublishedTensors(
    {"embedding.tokens": "model.embed_tokens", "norm": "model.final_layernorm", "head": "lm_head"}
    | _attention_layers(
        "model.layers.{0}.", (*_LLAMA_ATTENTION[:2], "self_attn.dense"), ("input_layernorm", "mlp.fc1", "mlp.fc2")
    )
)
"""Phi 1 and 2, whose branches read one norm, which becomes two equal ones."""

_MAMBA = {"embedding.tokens": "backbone.embeddings", "norm": "backbone.norm_f", "head": "lm_head"}
_MAMBA |= _of_layers("backbone.layers.{0}.", {"mixer_norm": "norm", "mixer.conv#d": "mixer.conv1d"})
_MAMBA_MIXER = ("in_proj", "A_log", "D", "out_proj")
MAMBA, MAMBA2 = (
    PublishedTensors(_MAMBA | _of_layers("backbone.layers.{0}.", {f"mixer.{x}": f"mixer.{x}" for x in names}))
    for names in ((*_MAMBA_MIXER, "x_proj", "dt_proj"), (*_MAMBA_MIXER, "dt_bias", "norm"))
)

_HYBRID = {f"mixer.{x}": f"mamba.{x}" for x in (*_MAMBA_MIXER, "dt_bias", "norm")} | {"mixer.conv#d": "mamba.conv1d"}
_HYBRID |= {"feed_forward.up": "shared_mlp.input_linear", "feed_forward.down": "shared_mlp.output_linear"}
GRANITE_HYBRID = PublishedTensors(_LLAMA | _of_layers("model.layers.{0}.", _HYBRID))

_GATED_DELTA = {
    "mixer(gated_delta).query_key_value_gate": "in_proj_qkv*3 in_proj_z",
    "mixer(gated_delta).share_decay": "in_proj_b in_proj_a",
    "mixer(gated_delta).out": "out_proj",
    **{f"mixer(gated_delta).{x}": x for x in ("A_log", "dt_bias", "norm")},
    "mixer(gated_delta).conv#d": "conv1d",
}
_BY_KEY_HEAD = {
    f"mixer(gated_delta).{x}": y for x, y in zip(("query_key_value_gate", "share_decay"), OF_KEY_HEADS, strict=True)
}
_DELTA_HYBRID = _LLAMA | _of_layers(
    "model.layers.{0}.self_attn.",
    {"mixer(attention).query_key_value": "q_proj[0/2] k_proj v_proj", "mixer.gate.to_gates": "q_proj[1/2]"},
)

QWEN35 = PublishedTensors(_DELTA_HYBRID | _of_layers("model.layers.{0}.linear_attn.", _GATED_DELTA))
"""The text model of Qwen 3.5: gated delta nets, and attention whose map of queries holds the gates of each head."""

QWEN3_NEXT = PublishedTensors(
    _DELTA_HYBRID
    | _of_layers("model.layers.{0}.linear_attn.", _GATED_DELTA | _BY_KEY_HEAD)
    | _of_layers("model.layers.{0}.mlp.", _EXPERTS | _SHARED_EXPERT)
)
"""Qwen3-Next: as Qwen 3.5, with experts, and maps of gated delta nets ordered by key heads."""

_RWKV4_MIXES = ("time_mix_key", "time_mix_value", "time_mix_receptance", "key", "value", "receptance", "output")
RWKV4 = PublishedTensors(
    {
        "embedding.tokens": "rwkv.embeddings",
        "embedding.norm": "rwkv.blocks.0.pre_ln",
        "norm": "rwkv.ln_out",
        "head": "head",
        **_of_layers(
            "rwkv.blocks.{0}.",
            {
                "mixer_norm": "ln1",
                "feed_forward_norm": "ln2",
                **{f"mixer.{x}": f"attention.{x}" for x in ("time_decay", "time_first", *_RWKV4_MIXES)},
                **{f"feed_forward.{x}": f"feed_forward.{x}" for x in _RWKV4_MIXES},
            },
        ),
    }
)

GGUF = PublishedTensors(
    {
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
)
"""llama.cpp's `llama` and `qwen3`."""

OPT = PublishedTensors(
    {
        "embedding.tokens": "embed_tokens",
        "embedding.positions": "embed_positions",
        "embedding.project": "project_in",
        "norm": "final_layer_norm",
        "head": "lm_head",
        "head_project": "project_out",
        **_attention_layers(
            "layers.{0}.",
            ("self_attn_layer_norm", "self_attn.q_proj self_attn.k_proj self_attn.v_proj", "self_attn.out_proj"),
            ("final_layer_norm", "fc1", "fc2"),
        ),
    },
    prefix="model.decoder.",
    padding_positions=2,
)

_NEOX_FEED_FORWARD = ("post_attention_layernorm", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
GPT_NEOX = PublishedTensors(
    {
        "embedding.tokens": "embed_in",
        "norm": "final_layer_norm",
        "head": "embed_out",
        **_attention_layers(
            "layers.{0}.",
            ("input_layernorm", "attention.query_key_value", "attention.dense"),
            _NEOX_FEED_FORWARD,
        ),
    },
    prefix="gpt_neox.",
    joint="heads",
)
"""GPT-NeoX and Pythia, with the head's name in published files."""

FALCON = PublishedTensors(
    {
        "embedding.tokens": "word_embeddings",
        "norm": "ln_f",
        "head": "lm_head",
        **_attention_layers(
            "h.{0}.",
            ("input_layernorm", "self_attention.query_key_value", "self_attention.dense"),
            ("input_layernorm", *_NEOX_FEED_FORWARD[1:]),
        ),
    },
    prefix="transformer.",
    joint="heads",
)
"""Falcon, whose branches read one norm, which becomes two equal ones."""

BLOOM = PublishedTensors(
    {
        "embedding.tokens": "word_embeddings",
        "embedding.norm": "word_embeddings_layernorm",
        "norm": "ln_f",
        "head": "lm_head",
        **_attention_layers(
            "h.{0}.",
            ("input_layernorm", "self_attention.query_key_value", "self_attention.dense"),
            _NEOX_FEED_FORWARD,
        ),
    },
    prefix="transformer.",
    joint="heads",
)

_GPT = {"embedding.tokens": "wte", "embedding.positions": "wpe", "norm": "ln_f", "head": "lm_head"}
_GPT_FEED_FORWARD = ("ln_2", "mlp.c_fc", "mlp.c_proj")
GPT2 = PublishedTensors(
    _GPT | _attention_layers("h.{0}.", ("ln_1", "attn.c_attn", "attn.c_proj"), _GPT_FEED_FORWARD),
    prefix="transformer.",
    transposed=True,
)
GPT_BIGCODE = PublishedTensors(GPT2.table, prefix="transformer.", joint="heads")
"""StarCoder; with one key and value for all heads, rows are ordered as ours."""

_GPT_J_FEED_FORWARD = ("ln_1", "mlp.fc_in", "mlp.fc_out")
_GPT_J_JOINTS: tuple[tuple[str, Joint], ...] = (
    ("attn.q_proj attn.k_proj attn.v_proj", "parts"),
    ("attn.qkv_proj", "quarters"),
)
GPT_J, CODEGEN = (
    PublishedTensors(
        _GPT | _attention_layers("h.{0}.", ("ln_1", joint, "attn.out_proj"), _GPT_J_FEED_FORWARD),
        prefix="transformer.",
        joint=order,
    )
    for joint, order in _GPT_J_JOINTS
)
"""GPT-J and CodeGen, whose branches read one norm, which becomes two equal ones."""

_NEO_JOINT = "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj"
GPT_NEO = PublishedTensors(
    _GPT | _attention_layers("h.{0}.", ("ln_1", _NEO_JOINT, "attn.attention.out_proj"), _GPT_FEED_FORWARD),
    prefix="transformer.",
)

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
        actual = type(content).__name__ if keys is None else f"the keys {keys or '(none)'}"
        raise UserError(f"{path}: expected a dictionary {f'with {key}' if key else 'of tensors'}, found {actual}")
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            place = f"{path}: {key}" if key else str(path)
            raise UserError(f"{place}: {name!r} is of {type(value).__name__}, expected a tensor")
    return dict(named)


def check_one_precision(named: dict[str, Tensor], path: Path) -> None:
    """Raise `UserError` for tensors of mixed precisions."""
    precisions = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in named.values()})
    if len(precisions) > 1:
        raise UserError(f"{path}: tensors of {' and '.join(precisions)}: expected one precision")
