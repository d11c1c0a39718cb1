"""A model as two ONNX graphs: one token with explicit states, and a prompt; nothing is left that fails the gate."""

from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_args

from linnet.core.atomic import atomic_directory
from linnet.core.checksum import write_file_checksums
from linnet.core.errors import UserError, note
from linnet.core.files import write_json
from linnet.inference.cache_policy import CachePolicies, layer_cache_policies
from linnet.inference.language_model import LanguageModel, load
from linnet.interop.onnx.engine import Graphs
from linnet.interop.onnx.files import EXTERNAL_ABOVE_BYTES, write_graphs
from linnet.interop.onnx.flatten import Flat, Step
from linnet.interop.onnx.fused import fuse_step
from linnet.interop.onnx.gate import GraphParity, gate
from linnet.interop.onnx.graphs import NoPromptGraphError, graph_of, onnx_modules, prompt_graph, reason
from linnet.interop.onnx.metadata import (
    DESCRIPTION,
    PROMPT,
    STEP,
    GraphDescription,
    PromptGraph,
    TokenizerFile,
    Weights,
    described,
    state_inputs,
)
from linnet.interop.onnx.quantize import quantized
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.model.store import RUN, TOKENIZER, check_new_folder

if TYPE_CHECKING:
    from onnx import ModelProto

EXAMPLE_PLACES = 101
"""Of the states that are traced: like no other size of a model, and room for a piece of a prompt."""


@dataclass(frozen=True)
class OnnxExport:
    """What was written, and what the gate measured.

    nodes: of the graph for one token, by operation; files: their bytes; prompt: None where prompts are read
    token by token; token_by_token: why they are.
    """

    parity: GraphParity
    nodes: dict[str, int]
    files: dict[str, int]
    prompt: PromptGraph | None
    token_by_token: str | None
    opset: dict[str, int]

    @property
    def figures(self) -> dict[str, Any]:
        """For a record."""
        return {**asdict(self), "prompt": None if self.prompt is None else self.prompt.model_dump()}


def export_onnx(
    model: str | Path | LanguageModel,
    out: str | Path,
    *,
    weights: str = "float32",
    cache_policy: CachePolicies = FULL,
    text: str | None = None,
    external_above_bytes: int = EXTERNAL_ABOVE_BYTES,
    origin: str | None = None,
    command: str | None = None,
) -> OnnxExport:
    """Write the folder `out`: graphs, `linnet.json`, the tokenizer; what the gate measured is returned.

    model: a folder, or a model that was loaded, which becomes float32. weights: `float32`, `int8` or `int4`.
    cache_policy:
    how TED layers keep the past; a bank without a length is made for the model's context. text: what the gate compares
    bits per byte on; None: what the model says. external_above_bytes: weights of larger graphs stand in a file beside
    them, once for both. origin, command: how it was made, for `run.json`; None: the folder, or the model's name. Raises
    `UserError` for a value that cannot be, a model that has no such graphs yet, and where graphs do not say what the
    model says, in floats before they are brought to few bits, and then again; then nothing is left.
    """
    if weights not in get_args(Weights):
        raise UserError(field="weights", value=weights, accepted=f"one of {', '.join(get_args(Weights))}")
    onnx_modules()
    check_new_folder(out)
    origin = origin or (model.spec.name if isinstance(model, LanguageModel) else str(model))
    source = model if isinstance(model, LanguageModel) else load(model, device="cpu")
    _check(source, origin)
    source.decoder.requires_grad_(False).float().eval()
    cache_policies = _with_lengths(source, layer_cache_policies(source.decoder, cache_policy))
    longest = _longest(source)
    places = EXAMPLE_PLACES if longest is None else min(EXAMPLE_PLACES, longest)
    step = Step(source.decoder, Flat.of(source.decoder, places, cache_policies))
    graphs, prompt, why = _graphs(step, origin)
    made = {"exported_from": origin, "command": command}
    write = partial(_write, source, step.flat, cache_policies, prompt, external_above_bytes, made)
    with atomic_directory(out) as temporary:
        if weights != "float32":
            _gate_floats(source, graphs, write, cache_policies, text)
            graphs = {name: quantized(graph, weights, source.decoder) for name, graph in graphs.items()}
            fuse_step(graphs[STEP])  # those graphs have onnxruntime's operators in any case
        description = write(temporary, graphs, weights)
        parity = gate(source, Graphs(temporary, as_written=True), cache_policies, weights, text)
        if weights == "float32":  # as they are run here
            gate(source, Graphs(temporary), cache_policies, weights, text)
        files = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
    nodes = dict(Counter(node.op_type for node in graphs[STEP].graph.node).most_common())
    return OnnxExport(parity, nodes, files, prompt, why, description.opset)


def _write(
    model: LanguageModel,
    flat: Flat,
    cache_policies: list[CachePolicy],
    prompt: PromptGraph | None,
    external_above_bytes: int,
    made: Mapping[str, Any],
    folder: Path,
    graphs: dict[str, "ModelProto"],
    weights: str,
) -> GraphDescription:
    """All files of the folder; of large graphs the weights are moved out."""
    description = _description(model, flat, cache_policies, weights, prompt, graphs[STEP])
    names = write_graphs(folder, graphs, description, external_above_bytes)
    write_json(folder / DESCRIPTION, description.model_dump())
    model.tokenizer.save(folder / TOKENIZER)
    write_json(folder / RUN, made)
    write_file_checksums(folder, [*names, DESCRIPTION, TOKENIZER, RUN])
    return description


def _gate_floats(
    model: LanguageModel,
    graphs: dict[str, "ModelProto"],
    write: Callable[[Path, dict[str, "ModelProto"], str], GraphDescription],
    cache_policies: list[CachePolicy],
    text: str | None,
) -> None:
    """What is wrong with graphs is seen here: few bits may lose so much that it would pass for rounding."""
    with TemporaryDirectory() as floats:
        write(Path(floats), deepcopy(graphs), "float32")
        gate(model, Graphs(Path(floats), as_written=True), cache_policies, "float32", text)


def _check(model: LanguageModel, origin: str) -> None:
    if model.decoder.encoder is not None:
        raise UserError(f"{origin}: a model with an encoder, which has no ONNX graphs; expected a decoder alone")
    if any(mixer.traits.calibrates for mixer in model.decoder.mixers):
        raise UserError(f"{origin}: its operator is inferred from each prompt: freeze it first (--freeze)")


def _longest(model: LanguageModel) -> int | None:
    """Positions that a stream may have; None for any number."""
    return None if model.decoder.embedding.positions is None else model.spec.context_length


def _with_lengths(model: LanguageModel, cache_policies: list[CachePolicy]) -> list[CachePolicy]:
    """A graph is made once, for streams of every length."""
    return [policy.for_length(model.spec.context_length) for policy in cache_policies]


def _graphs(step: Step, origin: str) -> tuple[dict[str, "ModelProto"], PromptGraph | None, str | None]:
    """By file name, and what the one for prompts takes; where there is none, why."""
    try:
        one = graph_of(step, 1)
    except Exception as error:  # of many kinds: whatever in a model no graph can say
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in step.decoder.spec.blocks))
        raise UserError(
            f"{origin}: a model of {kinds}: PyTorch's exporter cannot follow it ({reason(error)})"
        ) from error
    try:
        many, length = prompt_graph(step, one)
    except NoPromptGraphError as error:
        note(f"{origin}: prompt: token by token, because {error}")
        return {STEP: one}, None, str(error)
    return {STEP: one, PROMPT: many}, PromptGraph(length=length), None


def _description(
    model: LanguageModel,
    flat: Flat,
    cache_policies: list[CachePolicy],
    weights: str,
    prompt: PromptGraph | None,
    graph: "ModelProto",
) -> GraphDescription:
    tokenizer = model.tokenizer
    return GraphDescription(
        weights=weights,
        opset={domain.domain or "ai.onnx": domain.version for domain in graph.opset_import},
        prompt=prompt,
        states=state_inputs(flat),
        longest=_longest(model),
        cache_policies=described(cache_policies),
        tokenizer=TokenizerFile(hash=tokenizer.hash, end_id=tokenizer.end_id, vocab_size=tokenizer.vocab_size),
        model=model.spec,
    )
