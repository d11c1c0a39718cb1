"""Loss against speed of a trained model in few bits, ours and llama.cpp's: `quantized_decode.py --model`.

llama.cpp's files are made by its own `llama-quantize` from our export in float32, without an importance matrix. The
loss of both is that of the second half of windows of the model's context length, each of which begins with the token
that llama.cpp puts in front of a text, as `llama-perplexity` computes it; bits per byte are of the tokens that count.
The gate: in float32 both have the same loss. Speed is that of one stream, in turn, and may be measured later
(`--measure`). A plot shows both.
"""

import argparse
import copy
import math
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from harness import RESULTS, gate, machine, record_of, write_record
from linnet.core.atomic import atomic_path
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.weights import Precision, convert_weights, weights_nbytes
from linnet.interop.gguf.export import export_gguf
from linnet.model.decoder import Decoder
from linnet.present.plot import Axis, Panel, Plot, Series

NAME = "quantized_loss"
TYPES = ("F32", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_0", "Q4_K_M", "Q3_K_M", "Q2_K")
"""What `llama-quantize` calls its types, in the order of their bits."""

MAX_DIFFERENCE = 1e-3
"""Between the two losses in float32, in bits per byte."""

PARTS = ("loss", "speed")


@dataclass(frozen=True)
class Windows:
    """The tokens that both read. tokens_NT: N windows. counted: the first place whose token counts. text: of them."""

    tokens_NT: Tensor
    counted: int
    nbytes: int
    text: Path

    @classmethod
    def of(cls, model: LanguageModel, text: Path, count: int) -> "Windows":
        """The first windows of a text, of the model's context length."""
        length, tokenizer = model.spec.context_length, model.tokenizer
        whole = text.read_bytes()[: 16 * length * count].decode(errors="ignore")
        ids = torch.tensor([tokenizer.end_id, *tokenizer.encode(whole)])[: length * count]
        tokens_NT = ids.view(-1, length).clone()
        tokens_NT[:, 0] = tokenizer.end_id
        counted = length // 2 + 1
        nbytes = int(torch.from_numpy(tokenizer.token_bytes())[tokens_NT[:, counted:]].sum())
        return cls(tokens_NT, counted, nbytes, text)

    def bits_per_byte(self, mean_nats: float) -> float:
        """From the mean of the tokens that count."""
        return mean_nats * self.tokens_NT[:, self.counted :].numel() / math.log(2) / self.nbytes

    @torch.inference_mode()
    def loss_of(self, decoder: Decoder) -> float:
        """Our loss in bits per byte."""
        sums = [
            torch.nn.functional.cross_entropy(
                decoder(tokens_1T)[0, self.counted - 1 : -1].float(), tokens_1T[0, self.counted :], reduction="sum"
            )
            for tokens_1T in self.tokens_NT.split(1)
        ]
        return self.bits_per_byte(float(sum(sums)) / self.tokens_NT[:, self.counted :].numel())

    def loss_by_llama_cpp(self, program: Path, file: Path, threads: int) -> float:
        """llama.cpp's loss of the same tokens, keys and values in float32."""
        count, length = self.tokens_NT.shape
        command = [program, "-m", file, "-f", self.text, "-c", length, "--chunks", count, "-t", threads]
        command += ["-fa", "off", "-ctk", "f32", "-ctv", "f32", "-ngl", 0]
        run = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        found = re.search(r"Final estimate: PPL = ([0-9.]+)", run.stdout + run.stderr)
        if found is None:
            raise SystemExit(f"{program.name} {file}: {(run.stdout + run.stderr).strip().splitlines()[-1]}")
        return self.bits_per_byte(math.log(float(found[1])))


def files_of(model: LanguageModel, folder: Path, programs: Path) -> Iterator[tuple[str, Path]]:
    """The file of each type, made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "F32.gguf"
    if not whole.exists():
        export_gguf(model, whole)
    for name in TYPES:
        file = folder / f"{name}.gguf"
        if not file.exists():
            with atomic_path(file) as path:
                command = [programs / "llama-quantize", whole, path, name]
                subprocess.run([*map(str, command)], check=True, capture_output=True)
        yield name, file


def converted(model: LanguageModel, precision: str) -> Decoder:
    """A copy of the decoder in a precision."""
    decoder = copy.deepcopy(model.decoder)
    convert_weights(decoder, precision)
    return decoder


def measured_model(args: argparse.Namespace, contestants: dict[str, Any], in_turn: Any) -> None:
    """Loss, then speed, of every precision and type; written after each part.

    contestants: how a decoder and a file are timed (`quantized_decode`); in_turn: its rounds.
    """
    model, found = load(args.model, "cpu"), record_of(NAME)
    decoders = {precision: converted(model, precision) for precision in get_args(Precision)}
    files = dict(files_of(model, args.gguf, args.llama))
    windows = Windows.of(model, args.text, args.windows)
    for name, decoder in decoders.items():
        found.setdefault(f"linnet {name}", {})["weights_bytes"] = weights_nbytes(decoder)
    for name, file in files.items():
        found.setdefault(f"llama.cpp {name}", {})["weights_bytes"] = file.stat().st_size
    if "loss" in args.measure:
        for name, decoder in decoders.items():
            found[f"linnet {name}"]["bits_per_byte"] = round(windows.loss_of(decoder), 5)
        for name, file in files.items():
            loss = windows.loss_by_llama_cpp(args.llama / "llama-perplexity", file, args.threads)
            found[f"llama.cpp {name}"]["bits_per_byte"] = round(loss, 5)
            if name == "F32":
                difference = abs(loss - found["linnet float32"]["bits_per_byte"])
                gate("float32", difference <= MAX_DIFFERENCE, f"losses differ by {difference:.1e} bits per byte")
        write(found, args, windows)
    if "speed" in args.measure:
        own = {f"linnet {name}": partial(contestants["linnet"], decoder) for name, decoder in decoders.items()}
        command = [args.llama / "llama-bench", "-t", args.threads, "-ub", args.llama_ubatch, "-m"]
        theirs = {
            f"llama.cpp {name}": partial(contestants["llama.cpp"], [*map(str, command), str(file)])
            for name, file in files.items()
        }
        runs = {name: partial(run, prompt=8, tokens=args.tokens) for name, run in {**own, **theirs}.items()}
        for name, times in in_turn(runs, args.runs).items():
            found[name] |= {"ms_per_token": times["ms_per_token"], "ms_lowest": times["ms_lowest"]}
        write(found, args, windows)


def write(found: dict[str, Any], args: argparse.Namespace, windows: Windows) -> None:
    """The record, its lines on the screen, and the plot if both parts are there."""
    count, length = windows.tokens_NT.shape
    shape = f"{count} windows of {length} tokens of {windows.text.name}; tokens behind 8, {args.threads} thread(s)"
    write_record(NAME, {"shape": shape, "commit_of_call": machine()["commit"], "cells": found})
    for name, cell in found.items():
        print(name, *(f"{field} {value}" for field, value in cell.items()))
    if all({"bits_per_byte", "ms_per_token"} <= cell.keys() for cell in found.values()):
        plot(found).write(RESULTS / f"{NAME}.png")


def plot(found: dict[str, Any]) -> Plot:
    """Loss against tokens a second, and against the bytes of the weights."""
    by_speed, by_size = [], []
    for number, program in enumerate(("linnet", "llama.cpp")):
        cells = {name.split()[1]: cell for name, cell in found.items() if name.startswith(program)}
        loss, names = [cell["bits_per_byte"] for cell in cells.values()], list(cells)
        speed = [1e3 / cell["ms_per_token"] for cell in cells.values()]
        size = [cell["weights_bytes"] / 2**20 for cell in cells.values()]
        by_speed.append(Series(speed, loss, program, "os"[number], number, labels=names))
        by_size.append(Series(size, loss, program, "os"[number], number, labels=names))
    return Plot(
        [
            Panel(Axis("tokens a second"), Axis("bits per byte"), by_speed),
            Panel(Axis("MiB of weights", "log2"), Axis("bits per byte"), by_size),
        ],
        columns=2,
        size=(6.5, 4.6),
        shared="y",
    )
