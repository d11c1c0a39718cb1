"""Gemma 1 to 3: gains of one plus a parameter, scaled token vectors, and from version 2 on norms around each branch."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import PositiveFloat, PositiveInt, model_validator

from linnet.core.spec import Spec
from linnet.interop.families.family import ActivationName, Rope
from linnet.interop.families.llama import LlamaLike
from linnet.interop.tensor_names import GEMMA2


class Gemma(LlamaLike):
    """Gemma 1, and what the later versions share with it."""

    architecture, exported = "GemmaForCausalLM", False
    constants: ClassVar[Mapping[str, Any]] = {
        **LlamaLike.constants,
        "block.norm.unit_offset": True,
        "embedding.scale": True,
        "head.norm.unit_offset": True,
    }
    table: ClassVar[Mapping[str, str]] = {**LlamaLike.table, "attention_bias": "block.mixer.bias"}

    model_type: str = "gemma"
    vocab_size: PositiveInt = 256_000
    hidden_size: PositiveInt = 3072
    intermediate_size: PositiveInt = 24_576
    num_hidden_layers: PositiveInt = 28
    num_attention_heads: PositiveInt = 16
    num_key_value_heads: PositiveInt | None = 16
    head_dim: PositiveInt = 256
    hidden_act: ActivationName = "gelu_pytorch_tanh"
    max_position_embeddings: PositiveInt = 8192
    tie_word_embeddings: bool = True
    attention_bias: bool = False
    use_bidirectional_attention: Literal[False] | None = None

    def computed(self) -> dict[str, Any]:
        # The first files have `gelu`, and Transformers reads it as its approximation.
        old = "hidden_act" in self.table and self.hidden_act == "gelu"
        return {**super().computed(), **({"block.feed_forward.activation": "gelu_tanh"} if old else {})}


class Gemma2(Gemma):
    """Gemma 2, and what Gemma 3 shares with it: norms around each branch, bounds of scores, windows in some layers.

    sliding_window_pattern: every so many layers one has no window.
    """

    tensors, architecture = GEMMA2, "Gemma2ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {**Gemma.constants, "block.norm.placement": "sandwich"}
    table: ClassVar[Mapping[str, str]] = {
        **{name: paths for name, paths in Gemma.table.items() if name != "hidden_act"},
        "hidden_activation": "block.feed_forward.activation",
        "attn_logit_softcapping": "block.mixer.soft_cap",
        "final_logit_softcapping": "head.soft_cap",
    }

    model_type: str = "gemma2"
    hidden_size: PositiveInt = 2304
    intermediate_size: PositiveInt = 9216
    num_hidden_layers: PositiveInt = 26
    num_attention_heads: PositiveInt = 8
    num_key_value_heads: PositiveInt | None = 4
    hidden_activation: ActivationName = "gelu_pytorch_tanh"
    query_pre_attn_scalar: PositiveFloat = 256
    sliding_window: PositiveInt = 4096
    sliding_window_pattern: PositiveInt = 2
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    final_logit_softcapping: PositiveFloat | None = 30.0
    attn_logit_softcapping: PositiveFloat | None = 50.0

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if len(self.kinds()) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types: {len(self.kinds())} layers: must be num_hidden_layers, {self.num_hidden_layers}"
            )
        return self

    def kinds(self) -> list[Literal["full_attention", "sliding_attention"]]:
        """Return the kind of attention of each layer."""
        if self.layer_types is not None:
            return self.layer_types
        numbers = range(1, self.num_hidden_layers + 1)
        return ["sliding_attention" if number % self.sliding_window_pattern else "full_attention" for number in numbers]

    def computed(self) -> dict[str, Any]:
        return {**super().computed(), "block.mixer.scale": self.query_pre_attn_scalar**-0.5}

    def layers(self) -> list[dict[str, Any]]:
        return [{"mixer.window": self.sliding_window if kind == "sliding_attention" else None} for kind in self.kinds()]


class LayerRopes(Spec):
    """Rotary positions of the two kinds of layers."""

    full_attention: Rope | None = None
    sliding_attention: Rope | None = None


class Gemma3(Gemma2):
    """Gemma 3 for texts: norms of queries and keys, other rotary positions in layers with a window."""

    architecture = "Gemma3ForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {
        **Gemma2.constants,
        "block.mixer.query_key_norm.kind": "rms",
        "block.mixer.query_key_norm.unit_offset": True,
    }
    table: ClassVar[Mapping[str, str]] = {
        **Gemma2.table,
        "rms_norm_eps": "block.norm.eps head.norm.eps block.mixer.query_key_norm.eps",
    }

    model_type: str = "gemma3_text"
    vocab_size: PositiveInt = 262_208
    max_position_embeddings: PositiveInt = 131_072
    sliding_window_pattern: PositiveInt = 6
    final_logit_softcapping: PositiveFloat | None = None
    attn_logit_softcapping: Literal[None] = None  # which Transformers does not apply to Gemma 3
    rope_theta: PositiveFloat = 1e6
    rope_local_base_freq: PositiveFloat = 1e4
    rope_parameters: LayerRopes | None = None  # type: ignore[assignment]

    def ropes(self) -> dict[str, tuple[Rope, float]]:
        """Return the rotary positions of each kind of layer, and their base where they name none."""
        ropes = self.rope_parameters or LayerRopes()
        full = self.rope_scaling or ropes.full_attention or Rope()
        sliding = ropes.sliding_attention or Rope()
        return {"full_attention": (full, self.rope_theta), "sliding_attention": (sliding, self.rope_local_base_freq)}

    def computed(self) -> dict[str, Any]:
        return {"block.mixer.scale": self.query_pre_attn_scalar**-0.5}

    def layers(self) -> list[dict[str, Any]]:
        rotary = {
            kind: {"base": rope.rope_theta or base, "scaling": rope.scaling(self.max_position_embeddings)}
            for kind, (rope, base) in self.ropes().items()
        }
        windows = super().layers()
        return [{**window, "mixer.rotary": rotary[kind]} for kind, window in zip(self.kinds(), windows, strict=True)]

    def notes(self) -> list[str]:
        return [note for rope, _ in self.ropes().values() for note in rope.notes(self.max_position_embeddings)]
