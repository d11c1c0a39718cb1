"""Decoding one stream in float32, bfloat16, int8 and int4: 1, 10, 110 and 350 M parameters, prompts of 512 and 8,192.

Llama's shape with random weights. `python benchmarks/quantised_decode.py`; with `--llama-bench PATH --gguf FOLDER`
beside llama.cpp, which reads `SIZE-WEIGHTS.gguf` there (`110m-int8.gguf` holds Q8_0, `-int4` Q4_0).
"""

import argparse
import copy
import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch

from harness import gate, report
from linnet.inference.engine import decode
from linnet.inference.sampling import Sampling
from linnet.inference.weights import Weights, convert_weights, weights_nbytes
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.nn.linear import Linear
from linnet.nn.packed_linear import PackedLinear, RoundedEmbedding

SHAPES = {
    "1m": {"vocab_size": 1024, "d_model": 128, "layers": 4, "heads": 4, "hidden": 352},
    "10m": {"vocab_size": 8192, "d_model": 256, "layers": 8, "heads": 8, "hidden": 704},
    "110m": {"vocab_size": 32000, "d_model": 896, "layers": 5, "heads": 14, "hidden": 2400},
    "350m": {"vocab_size": 32000, "d_model": 1024, "layers": 22, "heads": 16, "hidden": 2816},
}
PROMPTS = (512, 8192)
ERRORS = {"float32": 0.0, "bfloat16": 0.05, "int8": 0.02, "int4": 0.02}
"""How far logits of one token may be from those of float32 with the same matrices: norm of the error over theirs."""


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
    if isinstance(other.embedding.tokens, RoundedEmbedding):
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


def measure(decoders: dict[str, Decoder], prompt: int, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Of each precision in turn: the prompt's seconds, and the median of a token's milliseconds behind it."""
    of_prompt: dict[str, list[float]] = {name: [] for name in decoders}
    of_token: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(rounds):
        for name, decoder in decoders.items():
            steps = decode(decoder, [[1] * prompt], tokens + 2, Sampling(temperature=0.0))
            of_prompt[name] += taken_s(steps, 1)
            of_token[name] += taken_s(steps, tokens + 1)[1:]  # the first makes the row steps
    return {
        name: {
            "prompt_s": round(statistics.median(of_prompt[name]), 3),
            "ms_per_token": round(statistics.median(of_token[name]) * 1e3, 3),
            "ms_lowest": round(min(of_token[name]) * 1e3, 3),
        }
        for name in decoders
    }


def llama_bench(program: Path, file: Path, prompt: int, tokens: int, threads: int) -> dict[str, float]:
    """Milliseconds of a token behind the prompt, and seconds of the prompt, by llama.cpp's own benchmark."""
    command = [program, "-m", file, "-t", threads, "-p", prompt, "-n", tokens, "-d", f"0,{prompt}", "-o", "json"]
    told = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
    rows = {(row["n_prompt"], row["n_gen"], row.get("n_depth", 0)): row["avg_ns"] / 1e9 for row in json.loads(told)}
    return {
        "prompt_s": round(rows[prompt, 0, 0], 3),
        "ms_per_token": round(rows[0, tokens, prompt] / tokens * 1e3, 3),
    }


def measured_size(size: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Check, then time, at each length of the prompt."""
    float32, decoders = model(size), {}
    for name in get_args(Weights):
        decoders[name] = copy.deepcopy(float32)
        convert_weights(decoders[name], name, group=asked.group)
        check(name, decoders[name], float32)
    found: dict[str, Any] = {"weights_bytes": {name: weights_nbytes(each) for name, each in decoders.items()}}
    for prompt in asked.prompts:
        found[str(prompt)] = rows = measure(decoders, prompt, asked.tokens, asked.runs)
        for name, row in rows.items():
            file = None if asked.gguf is None else asked.gguf / f"{size}-{name}.gguf"
            if asked.llama_bench is not None and file is not None and file.is_file():
                row["llama_cpp"] = llama_bench(asked.llama_bench, file, prompt, asked.tokens, asked.threads)
                row["times_as_fast"] = round(row["llama_cpp"]["ms_per_token"] / row["ms_per_token"], 3)
    return found


def main() -> None:
    """Every size that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="rounds over all precisions")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--group", type=int, default=32, help="inputs that share a scale in int4")
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--prompts", nargs="+", type=int, default=list(PROMPTS))
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("--gguf", type=Path, help="folder of SIZE-WEIGHTS.gguf")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    results = {size: measured_size(size, asked) for size in asked.sizes}
    report("quantised_decode", {"shape": f"{asked.tokens} tokens, batch 1, int4 in groups of {asked.group}", **results})


if __name__ == "__main__":
    main()
