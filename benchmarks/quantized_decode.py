"""Decoding one stream in float32, bfloat16, int8 and int4: 1, 10, 110 and 350 M parameters, prompts of 8 to 8,192.

Llama's shape with random weights, by PyTorch; with `--onnx FOLDER` by onnxruntime as well, which reads the graphs in
`SIZE-WEIGHTS` there; with `--llama-bench PATH --gguf FOLDER` beside llama.cpp, which reads `SIZE-WEIGHTS.gguf` there
(`110m-int8.gguf` holds Q8_0, `-int4` Q4_0). What is missing there is made. All in turn, in each round. Ours choose each
token, llama.cpp's own benchmark does not. `python benchmarks/quantized_decode.py --sizes 110m`

With `--model FOLDER --text FILE --llama FOLDER --gguf FOLDER` instead: a trained model's loss of a held-out text
against its speed, beside llama.cpp's types of few bits (`quantized_loss.py`).
"""

import argparse
import copy
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from harness import RESULTS, gate, machine, report
from linnet.core.atomic import atomic_path
from linnet.data.tokenizer import Tokenizer
from linnet.inference.decode import decode
from linnet.inference.language_model import LanguageModel
from linnet.inference.sampling import Sampling
from linnet.inference.streams import Request, streams_of
from linnet.inference.weights import Precision, convert_weights, weights_nbytes
from linnet.interop.gguf.architecture import architecture_metadata, architecture_of
from linnet.interop.gguf.file import stored_tensors, write_gguf
from linnet.interop.onnx.engine import GraphReader, Graphs
from linnet.interop.onnx.export import ALLOWED, export_onnx
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.nn.linear import Linear
from linnet.nn.packed_linear import PackedLinear, QuantizedEmbedding
from quantized_loss import PARTS, measured_model

SHAPES = {
    "1m": {"vocab_size": 1024, "d_model": 128, "layers": 4, "heads": 4, "hidden": 352},
    "10m": {"vocab_size": 8192, "d_model": 256, "layers": 8, "heads": 8, "hidden": 704},
    "110m": {"vocab_size": 32000, "d_model": 896, "layers": 5, "heads": 14, "hidden": 2400},
    "350m": {"vocab_size": 32000, "d_model": 1024, "layers": 22, "heads": 16, "hidden": 2816},
}
PROMPTS = (8, 512, 8192)
ERRORS = {"float32": 0.0, "bfloat16": 0.05, "int8": 0.02, "int4": 0.02}
"""How far logits of one token may be from those of float32 with the same matrices: norm of the error over theirs."""

STORED = {"float32": "f32", "bfloat16": "bf16", "int8": "q8_0", "int4": "q4_0"}
"""What llama.cpp has of as many bits."""


def model(size: str) -> Decoder:
    """Of Llama's shape, untied, room for the longest prompt."""
    shape = SHAPES[size]
    block = {
        "repeat": shape["layers"],
        "mixer": {"kind": "attention", "heads": shape["heads"], "rotary": {"pairing": "halves"}},
        "feed_forward": {"kind": "glu", "hidden": shape["hidden"]},
        "norm": {"kind": "rms", "placement": "pre"},
    }
    torch.manual_seed(0)
    spec = ModelSpec.model_validate(
        {
            "name": size,
            "vocab_size": shape["vocab_size"],
            "d_model": shape["d_model"],
            "context_length": 2 * max(PROMPTS),
            "blocks": [block],
            "head": {"tied": False, "norm": {"kind": "rms"}},
        }
    )
    return Decoder(spec).eval().requires_grad_(False)


def with_matrices_of(decoder: Decoder, other: Decoder) -> Decoder:
    """A float32 copy of `decoder` that multiplies by the matrices that `other` stands for, its table too."""
    slow, found = copy.deepcopy(decoder), dict(other.named_modules())
    for name, module in slow.named_modules():
        if isinstance(module, Linear) and isinstance(packed := found[name], PackedLinear):
            module.weight.data = packed.weight.float()
    if isinstance(other.embedding.tokens, QuantizedEmbedding):
        slow.embedding.tokens.weight.data = other.embedding.tokens.weight
    return slow


@torch.inference_mode()
def check(name: str, decoder: Decoder, float32: Decoder) -> None:
    """The gate: a token behind eight gives the logits of float32 arithmetic with the same matrices."""
    tokens_1T = torch.arange(9)[None]
    logits = []
    for each in (decoder, with_matrices_of(float32, decoder)):
        state = each.initial_state(1, 9)
        each.hidden(tokens_1T[:, :8], state)
        logits.append(each(tokens_1T[:, 8:], state).float())
    error = ((logits[0] - logits[1]).norm() / logits[1].norm()).item()
    gate(name, error <= ERRORS[name], f"logits off by {error:.1e} of their size")


def taken_s(steps: Iterator[object], count: int) -> list[float]:
    """Seconds of each of so many steps."""
    found = []
    for _ in range(count):
        begun_s = time.perf_counter()
        next(steps)
        found.append(time.perf_counter() - begun_s)
    return found


Contestant = Callable[[], tuple[float, list[float]]]
"""A round: seconds of the prompt, and of each token behind it."""


def by_pytorch(decoder: Decoder, prompt: int, tokens: int) -> tuple[float, list[float]]:
    """A round of `decode`."""
    return timed(decode(decoder, [[1] * prompt], tokens + 2, Sampling(temperature=0.0)), tokens)


def by_onnxruntime(graphs: Graphs, prompt: int, tokens: int) -> tuple[float, list[float]]:
    """The same through `GraphReader`, as `linnet generate --engine onnx` does it."""
    reader = GraphReader(graphs, prompt + tokens + 2)

    def read(tokens_1T: Tensor) -> Tensor:
        return torch.from_numpy(reader.read(tokens_1T[0].tolist()))[None]

    request = Request([1] * prompt, tokens + 2, Sampling(temperature=0.0))
    (stream,) = streams_of([request], read, graphs.description.model.vocab_size, torch.tensor([request.prompt]))
    return timed(stream, tokens)


def timed(followed: Iterator[object], tokens: int) -> tuple[float, list[float]]:
    """The first step reads the prompt, the second traces the step or binds buffers, and counts for nothing."""
    first, _, *each = taken_s(followed, tokens + 2)
    return first, each


def by_llama_cpp(command: list[str], prompt: int, tokens: int) -> tuple[float, list[float]]:
    """llama.cpp's own benchmark: the prompt, and the mean of the tokens behind it."""
    prompt_s = llama_bench_s([*command, "-p", str(prompt), "-n", "0"])
    return prompt_s, [llama_bench_s([*command, "-p", "0", "-n", str(tokens), "-d", str(prompt)]) / tokens]


def llama_bench_s(command: list[str]) -> float:
    """Seconds of one test of llama.cpp, after a run that is not counted."""
    output = subprocess.run([*command, "-r", "1", "-o", "json"], capture_output=True, text=True, check=True).stdout
    (row,) = json.loads(output)
    return float(row["avg_ns"]) / 1e9


def in_turn(contestants: dict[str, Contestant], rounds: int) -> dict[str, dict[str, float]]:
    """Of each: the median of the prompt's seconds, and of a token's milliseconds behind it."""
    prompts: dict[str, list[float]] = {name: [] for name in contestants}
    each: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            prompt_s, token_s = run()
            prompts[name].append(prompt_s)
            each[name].append(statistics.median(token_s))
    return {
        name: {
            "prompt_s": round(statistics.median(prompts[name]), 3),
            "ms_per_token": round(statistics.median(each[name]) * 1e3, 3),
            "ms_lowest": round(min(each[name]) * 1e3, 3),
        }
        for name in contestants
    }


def graphs_of(folder: Path, float32: Decoder, weights: str, threads: int) -> Graphs:
    """Of a folder, made where it is missing."""
    if not folder.exists():
        model = LanguageModel(copy.deepcopy(float32), Tokenizer.train("bytes", ["a"]))
        export_onnx(model, folder, precision=weights)
    graphs = Graphs(folder, threads)
    tokens = list(range(9))
    with torch.inference_mode():
        expected_V = float32(torch.tensor([tokens]))[0, -1]
    error = float((torch.from_numpy(GraphReader(graphs).read(tokens)) - expected_V).norm() / expected_V.norm())
    gate(f"{weights} by onnxruntime", error <= ALLOWED[weights].error, f"logits off by {error:.1e} of float32's size")
    return graphs


def gguf_of(path: Path, float32: Decoder, weights: str) -> Path:
    """A file without a tokenizer, made where it is missing."""
    if not path.exists():
        spec, stored = float32.spec, STORED[weights]
        architecture = architecture_of(spec)
        metadata = {"tokenizer.ggml.model": "none", **architecture_metadata(spec)}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as written:
            write_gguf(written, architecture, stored, metadata, stored_tensors(float32.state_dict(), spec, stored))
    return path


def contestants_of(size: str, weights: str, decoder: Decoder, float32: Decoder, args: Any) -> dict[str, Any]:
    """By name, each to be called with the prompt's and the continuation's tokens."""
    found: dict[str, Any] = {"pytorch": partial(by_pytorch, decoder)}
    if args.onnx is not None and weights != "bfloat16":
        graphs = graphs_of(args.onnx / f"{size}-{weights}", float32, weights, args.threads)
        found["onnxruntime"] = partial(by_onnxruntime, graphs)
    if args.llama_bench is not None and args.gguf is not None:
        file = gguf_of(args.gguf / f"{size}-{weights}.gguf", float32, weights)
        command = [args.llama_bench, "-m", file, "-t", args.threads, "-ub", args.llama_ubatch]
        found["llama_cpp"] = partial(by_llama_cpp, list(map(str, command)))
    return found


def measured_size(size: str, args: argparse.Namespace) -> dict[str, Any]:
    """Check, then time, at each length of the prompt, one precision after the other."""
    float32, found = model(size), {"weights_bytes": {}, **{str(prompt): {} for prompt in args.prompts}}
    for name in args.weights:
        decoder = copy.deepcopy(float32)
        convert_weights(decoder, name, group=args.group)
        check(name, decoder, float32)
        found["weights_bytes"][name] = weights_nbytes(decoder)
        contestants = contestants_of(size, name, decoder, float32, args)
        for prompt in args.prompts:
            runs = {who: partial(run, prompt=prompt, tokens=args.tokens) for who, run in contestants.items()}
            row: dict[str, Any] = {**in_turn(runs, args.runs), "rounds": args.runs}
            found[str(prompt)][name] = row
            if "llama_cpp" in row:
                fastest = min(row[who]["ms_per_token"] for who in contestants if who != "llama_cpp")
                row["times_as_fast"] = round(row["llama_cpp"]["ms_per_token"] / fastest, 3)
    return found


def merged(results: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Results, and of those before what is of other sizes, prompts and weights."""
    both = {**before, **results}
    for name in before.keys() & results.keys():
        if isinstance(before[name], dict):
            both[name] = merged(results[name], before[name])
    return both


def recorded(name: str = "quantized_decode") -> dict[str, Any]:
    """The results of the record of this machine; `SystemExit` where it is of another, or of other code."""
    record = json.loads((RESULTS / f"{name}.json").read_text())
    recorded_machine = {key: value for key, value in record["machine"].items() if key != "date"}
    here = {key: value for key, value in machine().items() if key != "date"}
    if recorded_machine != here:
        raise SystemExit(f"--beside: the record is of {recorded_machine}, this is {here}")
    results: dict[str, Any] = record["results"]
    return results


def main() -> None:
    """Measure every size that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="rounds over all precisions")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--group", type=int, default=32, help="inputs that share a scale in int4")
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--prompts", nargs="+", type=int, default=list(PROMPTS))
    parser.add_argument("--weights", nargs="+", choices=get_args(Precision), default=list(get_args(Precision)))
    parser.add_argument("--onnx", type=Path, help="folder of SIZE-WEIGHTS graphs")
    parser.add_argument("--llama-bench", type=Path)
    text = "tokens that llama.cpp reads at once; its AMX products crash in some virtual machines, not those of 1 token"
    parser.add_argument("--llama-ubatch", type=int, default=512, help=text)
    parser.add_argument("--gguf", type=Path, help="folder of SIZE-WEIGHTS.gguf")
    text = "keep what the record has of other sizes, prompts and weights, if it is of this machine and this code"
    parser.add_argument("--beside", action="store_true", help=text)
    parser.add_argument("--model", type=Path, help="a trained model of Llama's architecture: its loss and speed")
    parser.add_argument("--text", type=Path, help="with --model: a held-out text")
    parser.add_argument("--llama", type=Path, help="with --model: folder of llama-quantize, -perplexity and -bench")
    parser.add_argument("--windows", type=int, default=40, help="with --model: of the text, of the context length")
    text = "with --model: speed needs a machine at rest, loss does not"
    parser.add_argument("--measure", nargs="+", choices=PARTS, default=list(PARTS), help=text)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.model is not None:
        if None in (args.text, args.llama, args.gguf):
            parser.error("--model needs --text, --llama and --gguf")
        measured_model(args, {"linnet": by_pytorch, "llama.cpp": by_llama_cpp}, in_turn)
        return
    before = recorded() if args.beside else {}
    shape = f"{args.tokens} tokens, batch 1, int4 in groups of {args.group}"
    results = {"shape": shape, **{size: measured_size(size, args) for size in args.sizes}}
    report("quantized_decode", merged(results, before))


if __name__ == "__main__":
    main()
