"""Export of a model as two ONNX graphs: one token with explicit states, and a prompt; nothing is left if a check fails.

The check compares logits token by token and of a whole prompt, and bits per byte of a text: one that the model
generates, unless another is given.

Legend: `T` tokens, `V` vocabulary.
"""

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from linnet.core.atomic import atomic_directory
from linnet.core.checksum import write_file_checksums
from linnet.core.errors import UserError, first_line, note
from linnet.core.files import write_json
from linnet.evaluation.evaluator import check_chooses
from linnet.inference.cache_policy import CachePolicies, cache_policy_state, layer_cache_policies
from linnet.inference.captured_step import PassFunction, StateTensors
from linnet.inference.decode import decode
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.sampling import Sampling
from linnet.interop.exporters import ExportResult
from linnet.interop.onnx.engine import GraphReader, Graphs
from linnet.interop.onnx.folder import (
    DESCRIPTION,
    EXTERNAL_ABOVE_BYTES,
    PROMPT,
    STEP,
    GraphDescription,
    Precision,
    PromptGraph,
    TokenizerFile,
    state_inputs,
    write_graphs,
)
from linnet.interop.onnx.fusion import fuse_step
from linnet.interop.onnx.quantize import quantized
from linnet.interop.onnx.trace import NoPromptGraphError, graph_of, onnx_modules, prompt_graph, reason
from linnet.interop.parity import STEPS, bits_per_byte, in_float32, largest_error, logits_within
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.registry import PLAIN_MIXER, cache_policy_of
from linnet.model.decoder import Decoder
from linnet.model.folder import RUN, TOKENIZER
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder

if TYPE_CHECKING:
    from onnx import ModelProto

EXAMPLE_PLACES = 101
"""Room of the traced states: unlike any other size of a model, and enough for a piece of a prompt."""

PROMPT_TOKENS = 150
"""More than two pieces, but no whole number of them, so that both pieces and single tokens are read."""


@dataclass(frozen=True)
class Allowed:
    """Accepted difference between graphs and their model.

    error: root mean square of logit differences, in standard deviations. bits: relative difference of bits per byte.
    """

    error: float
    bits: float


ALLOWED = {"float32": Allowed(1e-4, 1e-4), "int8": Allowed(0.1, 0.005), "int4": Allowed(0.6, 0.2)}
"""About twice the loss of small models of attention and TED that were trained on stories (`docs/onnx.md`)."""


LEAST_BITS = 0.5
"""Bits per byte whose shares are allowed where a model predicts its own text with fewer."""


@dataclass(frozen=True)
class GraphParity:
    """Result of the check.

    error, largest_error: root mean square and maximum of logit differences, in standard deviations. greedy: share of
    tokens where both have the same likeliest token. bits_per_byte, graph_bits_per_byte: of the model and of its graphs.
    """

    error: float
    largest_error: float
    greedy: float
    tokens: int
    bits_per_byte: float
    graph_bits_per_byte: float


@dataclass(frozen=True)
class OnnxExport:
    """The written files and the result of the check.

    nodes: number of each operation in the graph for one token. files: bytes by name. prompt: None if prompts are read
    token by token; token_by_token: the reason.
    """

    parity: GraphParity
    nodes: dict[str, int]
    files: dict[str, int]
    prompt: PromptGraph | None
    token_by_token: str | None
    opset: dict[str, int]

    @property
    def figures(self) -> dict[str, Any]:
        return {**asdict(self), "prompt": None if self.prompt is None else self.prompt.model_dump()}


def export_folder(
    model: LanguageModel,
    out: Path,
    precision: str = "float32",
    cache_policy: str | None = None,
    origin: str | None = None,
    command: str | None = None,
) -> ExportResult:
    """Write the folder `out` for `linnet export`; see `export_onnx`. cache_policy: as text."""
    policy = FULL if cache_policy is None else cache_policy_of(cache_policy).for_length(model.spec.context_length)
    if policy != FULL:
        check_chooses(model.decoder, "cache_policy")
    made = export_onnx(model, out, precision=precision, cache_policy=policy, origin=origin, command=command)
    parity = made.parity
    logits = f"{logits_within(parity.error)} (root mean square; largest {parity.largest_error:.1e})"
    products = [f"{count} {name}" for name, count in made.nodes.items() if name.startswith(("MatMul", "Gemm"))]
    if made.prompt is None:
        prompt = f"prompts token by token ({made.token_by_token})"
    elif made.prompt.length is not None:
        prompt = f"prompts in pieces of {made.prompt.length} tokens"
    else:
        prompt = "prompts of any length at once"
    messages = (
        f"{parity.tokens} tokens: {logits}, {parity.greedy:.1%} of the likeliest tokens the same",
        f"{parity.graph_bits_per_byte:.4f} bits per byte of its own text ({parity.bits_per_byte:.4f} in PyTorch)",
        ", ".join(products),
        prompt,
    )
    files = [out / name for name in made.files if name.startswith(STEP)]
    return ExportResult.of(out, model.decoder, *files, figures=made.figures, messages=messages)


def export_onnx(
    model: str | Path | LanguageModel,
    out: str | Path,
    *,
    precision: str = "float32",
    cache_policy: CachePolicies = FULL,
    text: str | None = None,
    external_above_bytes: int = EXTERNAL_ABOVE_BYTES,
    origin: str | None = None,
    command: str | None = None,
) -> OnnxExport:
    """Write the folder `out`: graphs, `linnet.json`, the tokenizer; return the result of the check.

    model: a folder, or a loaded model, which stays as it is; the graphs are those of a copy in float32. precision:
    `float32`, `int8` or `int4`. cache_policy: of the state; a bank without a length gets the model's context length.
    text: for bits per byte; None: a generated text. external_above_bytes: larger weights are stored in a separate file,
    once for both graphs. origin, command: recorded in `run.json`; by default the folder or the model's name. Raises
    `UserError` for an invalid option, a model without such graphs, and graphs that differ from the model, before and
    after quantization; then nothing is left.
    """
    check_precision(precision)
    check_new_folder(out)
    origin = origin or (model.spec.name if isinstance(model, LanguageModel) else str(model))
    source = model if isinstance(model, LanguageModel) else load(model, device="cpu")
    with atomic_directory(out) as temporary:
        made = write_checked(source, temporary, precision, cache_policy, text, external_above_bytes, origin)
        source.tokenizer.save(temporary / TOKENIZER)
        write_json(temporary / RUN, {"exported_from": origin, "command": command})
        write_file_checksums(temporary, [*made.files, TOKENIZER, RUN])
        return replace(made, files={path.name: path.stat().st_size for path in sorted(temporary.iterdir())})


def check_precision(precision: str) -> None:
    """Raise `UserError` for a precision that graphs do not have, or without the packages for graphs."""
    if precision not in get_args(Precision):
        raise UserError(field="precision", value=precision, accepted=f"one of {', '.join(get_args(Precision))}")
    onnx_modules()


def write_checked(
    model: LanguageModel,
    folder: Path,
    precision: str,
    cache_policy: CachePolicies,
    text: str | None,
    external_above_bytes: int,
    origin: str,
) -> OnnxExport:
    """Write graphs and their description into a folder and check them; the arguments are those of `export_onnx`."""
    if model.decoder.encoder is not None:
        raise UserError(f"{origin}: a model with an encoder, which has no ONNX graphs; expected a decoder alone")
    if any(mixer.traits.calibrates for mixer in model.decoder.mixers):
        raise UserError(f"{origin}: its operator is inferred from each prompt: freeze it first (--freeze)")
    source = LanguageModel(in_float32(model.decoder).requires_grad_(False), model.tokenizer, model.folder)
    decoder, spec = source.decoder, source.spec
    # A graph is made once, for streams of every length.
    policies = [policy.for_length(spec.context_length) for policy in layer_cache_policies(decoder, cache_policy)]
    longest = None if decoder.embedding.positions is None else spec.context_length
    flat = StateTensors.of(decoder, EXAMPLE_PLACES if longest is None else min(EXAMPLE_PLACES, longest), policies)
    graphs, prompt, why = _graphs(PassFunction(decoder, flat), origin)
    written = _Written(source, flat, policies, prompt, longest, text, external_above_bytes)
    if precision != "float32":
        # Faults of graphs are found in floats first: quantization may lose so much that they would pass for rounding.
        with TemporaryDirectory() as floats:
            described, _ = written.write(Path(floats), deepcopy(graphs), "float32")
            written.check(Path(floats), described)
        graphs = {name: quantized(graph, precision, decoder) for name, graph in graphs.items()}
        fuse_step(graphs[STEP])  # quantized graphs contain onnxruntime's operators in any case
    description, names = written.write(folder, graphs, precision)
    parity = written.check(folder, description)
    if precision == "float32":  # also as the engine runs them
        written.check(folder, description, as_written=False)
    files = {name: (folder / name).stat().st_size for name in names}
    nodes = dict(Counter(node.op_type for node in graphs[STEP].graph.node).most_common())
    return OnnxExport(parity, nodes, files, prompt, why, description.opset)


@dataclass(frozen=True)
class _Written:
    """What the graphs of a model have in common in all precisions."""

    source: LanguageModel
    flat: StateTensors
    policies: list[CachePolicy]
    prompt: PromptGraph | None
    longest: int | None
    text: str | None
    external_above_bytes: int

    def write(
        self, folder: Path, graphs: dict[str, "ModelProto"], precision: str
    ) -> tuple[GraphDescription, list[str]]:
        """Write graphs and their description; return it and the names of the files."""
        tokenizer, opset = self.source.tokenizer, graphs[STEP].opset_import
        description = GraphDescription(
            weights=precision,
            opset={domain.domain or "ai.onnx": domain.version for domain in opset},
            prompt=self.prompt,
            states=state_inputs(self.flat),
            longest=self.longest,
            cache_policies=[policy.to_dict() for policy in self.policies],
            tokenizer=TokenizerFile(
                hash=tokenizer.hash,
                end_id=tokenizer.end_id,
                vocab_size=tokenizer.vocab_size,
                end_ids=list(tokenizer.end_ids) if len(tokenizer.end_ids) > 1 else None,
            ),
            model=self.source.spec,
        )
        names = write_graphs(folder, graphs, description, self.external_above_bytes)
        write_json(folder / DESCRIPTION, description.model_dump())
        return description, [*names, DESCRIPTION]

    def check(self, folder: Path, description: GraphDescription, as_written: bool = True) -> GraphParity:
        """Compare the graphs with the model (`check_graphs`)."""
        graphs = Graphs(folder, as_written=as_written, description=description)
        return check_graphs(self.source, graphs, self.policies, description.weights, self.text)


def _graphs(step: PassFunction, origin: str) -> tuple[dict[str, "ModelProto"], PromptGraph | None, str | None]:
    """Return the graphs by file name, the description of the one for prompts, and the reason if there is none."""
    try:
        one = graph_of(step, 1)
    except Exception as error:  # many kinds, for whatever a graph cannot express
        raise UserError(f"{origin}: {_unsupported(step.decoder.spec)} ({reason(error)})") from error
    try:
        many, length = prompt_graph(step, one)
    except NoPromptGraphError as error:
        note(f"{origin}: prompt: token by token, because {error}")
        return {STEP: one}, None, str(error)
    return {STEP: one, PROMPT: many}, PromptGraph(length=length), None


def _unsupported(spec: ModelSpec) -> str:
    """Say which layers PyTorch's exporter cannot follow: those whose graph cannot be made without the others either."""
    failed = []
    plain: dict[str, dict[str, Any]] = {"mixer": {"feed_forward": None}, "feed_forward": {"mixer": PLAIN_MIXER}}
    for index, block in enumerate(spec.blocks):
        for field, others in plain.items():
            if field not in block.parts:
                continue
            one = {**block.model_dump(), "repeat": 1, "share_weights": False, **others}
            try:
                alone = Decoder(spec.replace(blocks=[one])).requires_grad_(False).eval()
                graph_of(PassFunction(alone, StateTensors.of(alone, min(EXAMPLE_PLACES, spec.context_length), FULL)), 1)
            except Exception:  # many kinds
                failed.append(f"blocks[{index}].{field}: {block.parts[field].kind}")
    return f"{', '.join(failed) or 'the model'}: PyTorch's exporter cannot follow it"


def check_graphs(
    model: LanguageModel, graphs: Graphs, policies: Sequence[CachePolicy], precision: str, text: str | None = None
) -> GraphParity:
    """Raise `UserError` unless graphs and model agree within what is `ALLOWED` for the precision."""
    tokens = _tokens(model, graphs, policies, text)
    prompt = min(PROMPT_TOKENS, max(1, len(tokens) // 2))
    chunks = [tokens[:prompt], *([token] for token in tokens[prompt:])]  # the prompt in one pass, then token by token
    state = cache_policy_state(model.decoder, 1, len(tokens), list(policies))
    with torch.inference_mode():
        ours_TV = torch.cat([model.decoder(torch.tensor([chunk]), state)[0] for chunk in chunks])
    try:
        reader = GraphReader(graphs)
        theirs_TV = torch.from_numpy(np.concatenate([reader.read_all(chunk) for chunk in chunks]))
    except Exception as error:  # onnxruntime raises many kinds, none of them public
        problem = first_line(error)
        raise UserError(f"export: {precision}: onnxruntime cannot run the graphs ({problem})") from error
    bits = [bits_per_byte(x_TV[:-1], torch.tensor(tokens), model.tokenizer) for x_TV in (ours_TV, theirs_TV)]
    parity = GraphParity(
        error=float((ours_TV - theirs_TV).square().mean().sqrt() / ours_TV.std()),
        largest_error=largest_error(ours_TV, theirs_TV),
        greedy=float((ours_TV.argmax(1) == theirs_TV.argmax(1)).float().mean()),
        tokens=len(tokens),
        bits_per_byte=bits[0],
        graph_bits_per_byte=bits[1],
    )
    allowed = ALLOWED[precision]
    if not parity.error <= allowed.error:  # also for NaN
        problem = f"logits differ by {parity.error:.1e} of their spread"
        raise UserError(f"export: {precision}: {problem}: expected at most {allowed.error:g}")
    most = allowed.bits * max(parity.bits_per_byte, LEAST_BITS)
    if not abs(parity.graph_bits_per_byte - parity.bits_per_byte) <= most:
        raise UserError(
            f"export: {precision}: {parity.graph_bits_per_byte:.4f} bits per byte, the model has "
            f"{parity.bits_per_byte:.4f}: expected the same within {most:.2g}"
        )
    return parity


def _tokens(model: LanguageModel, graphs: Graphs, policies: Sequence[CachePolicy], text: str | None) -> list[int]:
    """Return the end token and the compared tokens after it: of the text, or generated by the model."""
    count, longest = PROMPT_TOKENS + STEPS, graphs.description.longest
    count = count if longest is None else min(count, longest)
    if text is not None:
        tokens = model.prompt_tokens(text)[:count]
        if len(tokens) < count:
            raise UserError(field="text", value=f"{len(tokens)} tokens", accepted=f"at least {count}")
        return tokens
    begin, vocab_size = [model.tokenizer.end_id], model.tokenizer.vocab_size
    state = cache_policy_state(model.decoder, 1, count, list(policies))
    generated = decode(model.decoder, [begin], count - 1, Sampling(1.0, seed=0), state=state, vocab_size=vocab_size)
    return [*begin, *(token for (token,) in generated if token is not None)]
