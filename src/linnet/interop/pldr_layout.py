"""What the published PLDR-LLM code (arXiv 2502.13502) names its tensors, and which models it can hold."""

from pathlib import Path

from linnet.core.errors import UserError
from linnet.layers.feed_forwards.glu import GatedSpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.model.spec import BlockSpec, ModelSpec

LEARNED, FIXED = "pldr-v51-110m-1", "pldr-v51g-106m-1"
"""The presets from which the others differ by sizes and operators."""

Shapes = dict[str, tuple[int, ...]]


def published_shapes(spec: ModelSpec) -> Shapes:
    """The names of the published code and the shapes that a model of this description has there.

    A model with fixed operators has no net behind them, and no tensor that holds them.
    """
    (block,) = spec.blocks
    mixer, hidden = block.mixer, block.feed_forward
    assert isinstance(mixer, PlgaSpec) and isinstance(hidden, GatedSpec)
    width = spec.d_model
    shapes: Shapes = {
        "decoder.embedding.weight": (spec.vocab_size, width),
        **_norm("decoder.layernorm1", width),
        **_linear("final_layer", width, spec.vocab_size),
    }
    for index in range(block.repeat):
        layer = f"decoder.dec_layers.{index}."
        shapes |= _norm(f"{layer}layernorm1", width) | _norm(f"{layer}layernorm2", width)
        shapes |= _gated(f"{layer}ffn", width, hidden.hidden)
        for part in ("wq", "wk", "wv", "dense"):
            shapes |= _linear(f"{layer}mha1.{part}", width, width)
        if mixer.operator == "learned":
            shapes |= _operator(f"{layer}mha1.", mixer, width // mixer.heads)
    return shapes


def _operator(mha: str, mixer: PlgaSpec, head_dim: int) -> Shapes:
    """The net behind a layer's operator."""
    shapes = _norm(f"{mha}layernorm1", head_dim)
    for unit in (f"{mha}reslayerAs.{r}" for r in range(mixer.residual_units)):
        shapes |= _norm(f"{unit}.layernormA", head_dim)
        for u in range(mixer.gated_units):
            shapes |= _gated(f"{unit}.denseAs.{u}", head_dim, mixer.metric_hidden)
    for tensor in ("Wlst", "blst", "pwlst", "alst", "balst"):
        shapes[f"{mha}plgatt_layer.{tensor}"] = (mixer.heads, head_dim, head_dim)
    return shapes


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _gated(name: str, width: int, hidden: int) -> Shapes:
    up = _linear(f"{name}.gluw1", width, hidden) | _linear(f"{name}.gluw2", width, hidden)
    return up | _linear(f"{name}.gluw3", hidden, width)


def published_mixer(model: ModelSpec, spec: str | Path) -> PlgaSpec:
    """The mixer of a description that a published checkpoint can be of: the presets' but for sizes and operators."""
    block, mixer = model.blocks[0], model.blocks[0].mixer
    if isinstance(mixer, PlgaSpec) and _same_but_sizes(model, block, mixer):
        return mixer
    raise UserError(
        f"not the architecture of a published PLDR-LLM, as presets {LEARNED} and {FIXED}", field="spec", value=spec
    )


def _same_but_sizes(model: ModelSpec, block: BlockSpec, mixer: PlgaSpec) -> bool:
    preset = ModelSpec.load(LEARNED if mixer.operator == "learned" else FIXED).model_dump()
    plain = model.model_dump()
    if len(plain["blocks"]) != 1 or not isinstance(block.feed_forward, GatedSpec):
        return False
    for name in ("name", "vocab_size", "d_model", "context_length", "initialisation"):
        preset[name] = plain[name]
    ours, theirs = plain["blocks"][0], preset["blocks"][0]
    theirs["repeat"], theirs["feed_forward"]["hidden"] = ours["repeat"], ours["feed_forward"]["hidden"]
    for name in ("heads", "metric_hidden", "residual_units", "gated_units", "start"):
        theirs["mixer"][name] = ours["mixer"][name]
    return plain == preset
