"""The typed description of a decoder, or of an encoder with a decoder."""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveFloat, ValidationError, model_validator

from linnet.core.spec import Amount, Count, Extent, Spec, Vocabulary
from linnet.layers.contract import Place, SublayerSpec
from linnet.layers.cross_attention import CrossAttentionSpec
from linnet.layers.registry import (
    MIXERS,
    AnyFeedForward,
    AnyMixer,
    kinds_with_calibration,
    kinds_with_prefixes,
)
from linnet.model.folder import read_description
from linnet.nn.norms import BlockNormSpec, NormSpec


def _check_scale(value: Any) -> bool | float:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and 0 < value < math.inf:
        return float(value)
    raise ValueError("must be true, false or a number above 0")


Scale = Annotated[bool | float, BeforeValidator(_check_scale)]
"""A factor that is derived from `d_model` (true), absent (false), or a number."""


class EmbeddingSpec(Spec):
    """Token embedding: `scale` multiplies by `sqrt(d_model)` (true) or by a number; `positions: learned` adds a vector
    for each position.

    `positions: sinusoidal` adds sines and cosines of the position, without parameters or a largest position. `width`:
    of the token vectors; if it differs from the model's, a projection follows the embedding, and another precedes a
    tied head (OPT-350M). `skip`: the output is also mixed into the input of every layer, with two learned weights in
    each layer that start at 1 for the residual stream and 0 for the embedding.
    """

    width: Extent | None = None
    scale: Scale = False
    positions: Literal["none", "learned", "sinusoidal"] = "none"
    norm: NormSpec | None = None
    skip: bool = False

    def factor(self, d_model: int) -> float | None:
        """The factor of the token vectors; None for none."""
        return (d_model**0.5 if self.scale else None) if isinstance(self.scale, bool) else self.scale


class BlockSpec(Spec):
    """`repeat` equal layers: a mixer and a feed-forward, each on a residual branch with a normalization.

    `residual`: the feed-forward reads the stream after the mixer (`sequential`), or both read the same input and their
    outputs are added together (`parallel`, as in GPT-NeoX; requires `placement: pre`). `width`: of the block; a
    projection is added where the width changes. `share_weights`: the repeated layers share one set of weights.
    `cross_attention`: a branch between mixer and feed-forward that reads the output of the model's encoder.
    """

    repeat: Count = 1
    mixer: AnyMixer
    cross_attention: CrossAttentionSpec | None = None
    feed_forward: AnyFeedForward | None = None
    norm: BlockNormSpec = BlockNormSpec()
    residual: Literal["sequential", "parallel"] = "sequential"
    width: Extent | None = None
    share_weights: bool = False

    @model_validator(mode="after")
    def _check_parallel(self) -> Self:
        if self.residual == "parallel" and self.norm.placement != "pre":
            raise ValueError(f"residual: parallel: requires norm.placement: pre, not {self.norm.placement}")
        if self.residual == "parallel" and self.cross_attention is not None:
            raise ValueError("residual: parallel: excludes cross_attention, which reads the output of the mixer")
        return self

    @property
    def parts(self) -> dict[str, SublayerSpec]:
        """The specs of its sublayers, by field."""
        parts = {"mixer": self.mixer, "cross_attention": self.cross_attention, "feed_forward": self.feed_forward}
        return {name: part for name, part in parts.items() if part is not None}


class EncoderSpec(Spec):
    """The encoder of an encoder-decoder: blocks in which each token sees the whole input.

    It shares the decoder's embedding. The output of `blocks`, of width `d_model`, is normalized by `norm`, and read by
    the decoder's `cross_attention`.
    """

    blocks: list[BlockSpec] = Field(min_length=1)
    norm: NormSpec | None = None

    @property
    def layers(self) -> int:
        """The number of layers that a token of the input passes."""
        return sum(block.repeat for block in self.blocks)


class HeadSpec(Spec):
    """From the last layer to logits: an optional normalization, then the embedding's matrix (`tied`) or a separate one.

    scale: divide the input of the matrix by the root of `d_model` (true; as in T5, whose token vectors are not small)
        or by a number (Granite).
    soft_cap: the bound of the logits, `soft_cap tanh(logits / soft_cap)` (Gemma 2: 30); null for none.
    value: a vector beside the matrix that maps its input to one number, the value of the text so far (a reward model).
    """

    tied: bool = True
    bias: bool = False
    norm: NormSpec | None = None
    scale: Scale = False
    soft_cap: PositiveFloat | None = None
    value: bool = False

    def factor(self, d_model: int) -> float | None:
        """The factor of the matrix's input; None for none."""
        return (d_model**-0.5 if self.scale else None) if isinstance(self.scale, bool) else 1 / self.scale

    @model_validator(mode="after")
    def _check_bias(self) -> Self:
        if self.tied and self.bias:
            raise ValueError("bias: True: a tied head has no bias; use tied: false or bias: false")
        return self


class InitializationSpec(Spec):
    """Starting values. Biases are 0, norms 1; a mixer initializes its other parameters itself.

    linear: `normal` with `std`, or `xavier_uniform` (each map of a fused layer by its own shape). Projections
        between widths always use the latter, which preserves the scale of the residual stream.
    embedding_std: standard deviation of token and position embeddings.
    scale_residual: divide the std of each branch's last map by `sqrt(2 * layers)` (GPT-2).
    zero_outputs: each branch's last map and its bias at 0, so that every layer starts as the identity; it takes
        precedence over `scale_residual`.
    calibration: the source of the calibration of layers that store one: a name that their kind knows, or a file.
    """

    linear: Literal["normal", "xavier_uniform"] = "normal"
    std: PositiveFloat = 0.02
    embedding_std: PositiveFloat = 0.02
    scale_residual: bool = False
    zero_outputs: bool = False
    calibration: str = "identity"


class ModelSpec(Spec):
    """A whole decoder, or an encoder and a decoder.

    prefix: a stream may begin with a prefix whose tokens see all of one another: the input of a pair, in training and
    in generation. `calibration: text | NAME | FILE` is accepted too, for all layers that calibrate: on the text that
    they read, or stored, from a name that their kind knows or from a file.
    """

    name: str = "model"
    vocab_size: Vocabulary
    d_model: Extent
    context_length: Amount
    embedding: EmbeddingSpec = EmbeddingSpec()
    blocks: list[BlockSpec] = Field(min_length=1)
    encoder: EncoderSpec | None = None
    prefix: bool = False
    head: HeadSpec = HeadSpec()
    initialization: InitializationSpec = InitializationSpec()

    @model_validator(mode="before")
    @classmethod
    def _distribute_calibration(cls, data: Any) -> Any:
        """Move the field `calibration` of plain data to where it belongs: the mixers and the starting values."""
        if not isinstance(data, dict) or data.get("calibration") is None:
            return data
        data = copy.deepcopy(data)
        source = data.pop("calibration")
        if not isinstance(source, str):
            raise ValueError(f"calibration: {source!r}: must be text, a name that the kind of layer knows, or a file")
        where: Literal["text", "stored"] = "text" if source == "text" else "stored"
        blocks, calibrates = data.get("blocks"), False
        for block in blocks if isinstance(blocks, list) else []:
            mixer = block.get("mixer") if isinstance(block, dict) else None
            if not isinstance(mixer, dict) or mixer.get("kind") not in MIXERS:
                continue
            try:
                spec = MIXERS[mixer["kind"]].model_validate(mixer)
            except ValidationError:
                continue  # reported when the whole description is validated
            if spec.calibration != "none":
                block["mixer"], calibrates = spec.with_calibration(where).model_dump(), True
        if not calibrates:
            kinds = kinds_with_calibration()
            raise ValueError(f"calibration: {source}: requires {kinds} layers; the model has none")
        start = "identity" if where == "text" else source
        data["initialization"] = {**(data.get("initialization") or {}), "calibration": start}
        return data

    @model_validator(mode="after")
    def _check_sublayers(self) -> Self:
        """Each sublayer fits the width of its block, and the blocks of a stack fit each other."""
        for where, block in self._located_blocks():
            for name, part in block.parts.items():
                try:
                    part.check(block.width or self.d_model)
                except ValueError as error:
                    raise ValueError(f"{where}.{name}.{error}") from None
        check_together(self.blocks, self.d_model, self.embedding.skip)
        if self.encoder is not None:
            check_together(self.encoder.blocks, self.d_model, self.embedding.skip, "encoder.blocks")
        return self

    @model_validator(mode="after")
    def _check_encoder_and_prefix(self) -> Self:
        """The decoder reads the encoder if there is one, and mixers support the prefixes that they have to read."""
        readers = [where for where, block in self._located_blocks() if block.cross_attention is not None]
        if self.encoder is None and readers:
            raise ValueError(f"{readers[0]}.cross_attention: reads an encoder; the model has none (encoder)")
        if self.encoder is not None and not any(block.cross_attention for block in self.blocks):
            raise ValueError("encoder: no block reads it; expected cross_attention in blocks")
        if self.encoder is not None and any(where.startswith("encoder") for where in readers):
            raise ValueError(f"{readers[-1]}.cross_attention: is accepted in blocks of the decoder only")
        if self.prefix and self.encoder is not None:
            raise ValueError("prefix: True: excludes an encoder, which reads the input already")
        for where, block in self._located_blocks():
            if (self.prefix or where.startswith("encoder")) and not block.mixer.supports_prefix:
                conflict = block.mixer.prefix_conflict
                why = f"; here {conflict}" if conflict else ""
                raise ValueError(
                    f"{where}.mixer: {block.mixer.kind}: only sees earlier tokens; an encoder, or a model with"
                    f" prefix: true, needs {kinds_with_prefixes()} that sees both ways{why}"
                )
        return self

    @model_validator(mode="after")
    def _check_calibration(self) -> Self:
        source = self.initialization.calibration
        if source != "identity" and not any(block.mixer.calibration == "stored" for block in self.blocks):
            kinds = kinds_with_calibration()
            raise ValueError(
                f"initialization.calibration: {source}: expected a {kinds} block that stores a calibration"
            )
        return self

    def _located_blocks(self) -> list[tuple[str, BlockSpec]]:
        """All blocks, each with its location in the description."""
        decoder = [(f"blocks[{index}]", block) for index, block in enumerate(self.blocks)]
        encoder = [] if self.encoder is None else self.encoder.blocks
        return decoder + [(f"encoder.blocks[{index}]", block) for index, block in enumerate(encoder)]

    @property
    def layers(self) -> int:
        """The number of layers that a token passes."""
        return sum(block.repeat for block in self.blocks)

    @property
    def first_place(self) -> Place:
        """The place of the decoder's first layer, if its block has the width of the model."""
        memory_width = 0 if self.encoder is None else self.d_model
        return Place(self.d_model, self.context_length, layers=self.layers, memory_width=memory_width)

    @property
    def prefix_field(self) -> str | None:
        """The field that makes the model read the first part of a row, its prefix, as a whole; None if no field does.

        Such a model needs examples with prefixes (pairs), in training and in evaluation.
        """
        if self.encoder is not None:
            return "model.encoder"
        return "model.prefix: true" if self.prefix else None

    @property
    def layer_kinds(self) -> list[str]:
        """The kind of mixer of each layer."""
        return [block.mixer.kind for block in self.blocks for _ in range(block.repeat)]

    @classmethod
    def load(cls, source: str | Path) -> "ModelSpec":
        """A model's description from a preset's name, a YAML file, or a model folder."""
        return cls.parse(read_description(source), str(source))

    def replace(self, **changes: Any) -> "ModelSpec":
        """A validated copy with some fields changed."""
        return ModelSpec.parse({**self.model_dump(), **changes}, self.name)


def check_together(blocks: Sequence[BlockSpec], d_model: int, skip: bool, where: str = "blocks") -> None:
    """`ValueError`, naming the block, if blocks cannot be in one model.

    The shapes of values that they save for later layers must agree, and with `embedding.skip` their widths.
    """
    shapes: dict[str, tuple[int, tuple[int, ...]]] = {}
    for index, block in enumerate(blocks):
        width = block.width or d_model
        if skip and width != d_model:
            raise ValueError(
                f"{where}[{index}].width: {width}: must be {d_model}, that of the embedding, with embedding.skip"
            )
        for name, part in block.parts.items():
            for field, shape in part.cross_layer_values(width).items():
                first, expected = shapes.setdefault(field, (index, shape))
                if shape != expected:
                    own, other = (" x ".join(map(str, sizes)) for sizes in (shape, expected))
                    raise ValueError(
                        f"{where}[{index}].{name}.{field}: values of {own} (heads x width): must be of {other},"
                        f" as those of {where}[{first}]"
                    )


def calibration_file(source: str) -> Path | None:
    """The file that a source of calibrations names; None if it is a name that the kind of layer knows."""
    return Path(source) if Path(source).suffix else None
