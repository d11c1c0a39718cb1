"""Text generation from a folder of ONNX graphs with onnxruntime: the prompt in pieces, then token by token.

The step runs with onnxruntime's own operators for attention and norms, which are inserted when a float32 file is
loaded. Tensors with a place for each token are one buffer that goes in and comes out, so that a step writes one place
and copies nothing; it doubles when it is full. All other states have two buffers that swap at each step.

Legend: `T` tokens of a pass, `V` vocabulary.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.core.checksum import check_files
from linnet.core.errors import UserError, first_line
from linnet.data.tokenizer import Tokenizer
from linnet.inference.constrained import Constraint, Grammar
from linnet.inference.continuation import Continuation
from linnet.inference.sampling import Sampling
from linnet.inference.streams import Request, streams_of
from linnet.inference.text_events import TextEvents
from linnet.interop.onnx.folder import DATA, GraphDescription
from linnet.interop.onnx.fusion import fuse_step
from linnet.interop.onnx.trace import onnx_modules

Array = np.ndarray[Any, Any]

MIN_PLACES = 64
MAX_PIECE = 256
"""Tokens of a prompt that are read at once; all of their logits are in memory."""


class Graphs:
    """The loaded graphs of a folder."""

    def __init__(
        self,
        folder: Path,
        threads: int | None = None,
        as_written: bool = False,
        description: GraphDescription | None = None,
    ) -> None:
        """Load the graphs; `UserError` if the folder has none, or a file was changed after writing.

        threads: per graph. as_written: use only the operators in the files. description: of graphs that were just
        written, whose files are not checked.
        """
        self.description = GraphDescription.read(folder) if description is None else description
        prompt = self.description.prompt
        if description is None:
            files = [self.description.step, *([] if prompt is None else [prompt.file]), self.description.tokenizer.file]
            check_files(folder, [*files, *([DATA] if (folder / DATA).exists() else [])])
        fuse = not as_written and self.description.weights == "float32"  # quantized graphs are stored fused
        self.step = _session(folder / self.description.step, threads, fuse)
        self.prompt = None if prompt is None else _session(folder / prompt.file, threads, spin=False)


def _session(path: Path, threads: int | None, fuse: bool = False, spin: bool = True) -> Any:
    """Load a graph. spin: idle threads keep the processor; otherwise they leave it to the other session's."""
    onnx, onnxruntime = onnx_modules("engine")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        model: str | bytes = str(path)
        if fuse:
            graph = onnx.load(path, load_external_data=False)
            fuse_step(graph)
            model = graph.SerializeToString()
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many kinds, none of them public
        raise UserError(f"{path}: onnxruntime cannot read it ({first_line(error)})") from error


class GraphReader:
    """One stream: reads tokens and keeps the states between them."""

    def __init__(self, graphs: Graphs, places: int = MIN_PLACES) -> None:
        """`places`: initial room in tokens."""
        self._graphs, self._description, self._places = graphs, graphs.description, places
        self.position = 0
        self._states = {state.input: state.initial(places) for state in self._description.states}
        self._token, self._at = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
        self._logits = np.zeros((1, 1, self._description.model.vocab_size), np.float32)
        self._bound: list[Any] | None = None
        self._sides: list[dict[str, Array]] = []

    @property
    def nbytes(self) -> int:
        """Allocated bytes of the states."""
        return sum(state.nbytes for state in self._states.values())

    def read(self, tokens: list[int]) -> Array:
        """Read any number of tokens; return `[V]`, the logits after the last, valid until more are read."""
        self._make_room(len(tokens))
        for piece in self._pieces(tokens):
            logits_TV = self._read_piece(piece)
        logits_V: Array = logits_TV[-1]
        return logits_V

    def read_all(self, tokens: list[int]) -> Array:
        """Read any number of tokens; return a copy of the logits after each, `[T, V]`."""
        self._make_room(len(tokens))
        return np.concatenate([self._read_piece(piece).copy() for piece in self._pieces(tokens)])

    def _make_room(self, tokens: int) -> None:
        longest, end = self._description.longest, self.position + tokens
        if longest is not None and end > longest:
            raise UserError(f"{end} tokens: the model's learned positions end at {longest}")
        if end <= self._places:
            return
        self._places, self._bound = 1 << (end - 1).bit_length(), None
        for state in self._description.states:
            if state.grows == "places":
                before, larger = self._states[state.input], state.initial(self._places)
                larger[tuple(map(slice, before.shape))] = before
                self._states[state.input] = larger

    def _pieces(self, tokens: list[int]) -> Iterator[list[int]]:
        """Yield pieces as long as the graph for prompts takes them, then single tokens."""
        start, prompt = 0, self._description.prompt
        while start < len(tokens):
            left = len(tokens) - start
            if prompt is None:
                count = 1
            elif prompt.length is None:
                count = min(left, MAX_PIECE)
            else:
                count = prompt.length if prompt.length <= left and self.position % prompt.length == 0 else 1
            yield tokens[start : start + count]
            start += count

    def _read_piece(self, tokens: list[int]) -> Array:
        if len(tokens) > 1:
            logits = self._run(self._graphs.prompt, np.array([tokens], np.int64))
        elif any(state.grows == "held" for state in self._description.states):
            logits = self._run(self._graphs.step, np.array([tokens], np.int64))
        else:
            logits = self._step(tokens[0])
        self.position += len(tokens)
        return logits

    def _run(self, session: Any, tokens: Array) -> Array:
        """Run a pass whose states are new tensors."""
        inputs = {self._description.tokens: tokens, self._description.position: np.array([self.position], np.int64)}
        names = [state.output for state in self._description.states]
        logits, *after = session.run([self._description.logits, *names], {**inputs, **self._states})
        self._states = dict(zip(self._states, after, strict=True))
        self._bound = None
        return np.asarray(logits[0])

    def _step(self, token: int) -> Array:
        """Run a pass over one token with all buffers bound; the next pass overwrites the logits."""
        if self._bound is None:
            other = {
                state.input: own if state.grows == "places" else np.empty_like(own)
                for state in self._description.states
                for own in [self._states[state.input]]
            }
            self._sides = [self._states, other]
            self._bound = [self._binding(*self._sides), self._binding(*reversed(self._sides))]
        self._token[0, 0], self._at[0] = token, self.position
        self._graphs.step.run_with_iobinding(self._bound[0])
        self._bound.reverse()
        self._sides.reverse()
        self._states = self._sides[0]
        logits_1V: Array = self._logits[0]
        return logits_1V

    def _binding(self, before: dict[str, Array], after: dict[str, Array]) -> Any:
        binding = self._graphs.step.io_binding()
        inputs = {self._description.tokens: self._token, self._description.position: self._at, **before}
        outputs = {state.output: after[state.input] for state in self._description.states}
        outputs[self._description.logits] = self._logits
        _, onnxruntime = onnx_modules("engine")
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        return binding


class OnnxLanguageModel:
    """Graphs and their tokenizer: text in, text out."""

    def __init__(self, folder: str | Path, threads: int | None = None) -> None:
        """Load a folder; `UserError` as from `Graphs`."""
        self.graphs = Graphs(Path(folder), threads)
        self.tokenizer = Tokenizer.load(Path(folder) / self.graphs.description.tokenizer.file)
        if self.tokenizer.hash != self.graphs.description.tokenizer.hash:
            raise UserError(f"{folder}: {self.graphs.description.tokenizer.file} is not the tokenizer of these graphs")

    def stream(
        self,
        prompt: str,
        max_tokens: int,
        sampling: Sampling,
        ignore_eos: bool = False,
        stop: Sequence[str] = (),
        *,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
    ) -> Continuation:
        """Continue one prompt, piece by piece, like `LanguageModel.stream`."""
        if max_tokens < 1:
            raise UserError(field="max_tokens", value=max_tokens, accepted="at least 1")
        tokens = self.tokenizer.encode_document(prompt)
        longest = self.graphs.description.longest
        if longest is not None and len(tokens) + max_tokens > longest:
            raise UserError(
                f"{len(tokens)} tokens of prompt and {max_tokens} new ones (`max_tokens`) are "
                f"{len(tokens) + max_tokens}: the model's learned positions end at {longest}"
            )
        reader = GraphReader(self.graphs)

        def next_logits(tokens_1T: Tensor) -> Tensor:
            return torch.from_numpy(reader.read(tokens_1T[0].tolist()))[None]

        stop_ids = () if ignore_eos else self.tokenizer.end_ids
        grammar = None if constraint is None else Grammar(self.tokenizer, constraint, tokens)
        request = Request(tokens, max_tokens, sampling, stop_ids, grammar=grammar, logprobs=logprobs)
        (stream,) = streams_of([request], next_logits, self.tokenizer.vocab_size, torch.tensor([tokens]))
        return Continuation(stream, TextEvents(self.tokenizer, tokens, stop), len(tokens), lambda _: reader.nbytes)
