"""From a text to a model that answers, with five mixers of ten million parameters: all stages, and a page about them.

    python experiments/answers.py run --texts TEXTS --out runs/answers
    python experiments/answers.py page --out runs/answers

TEXTS holds tinystories_train.txt, c4_demo.jsonl and fineweb_sample.txt. The first command prepares a mixture of them
and of the built-in stories, and trains each model on it, then on conversations, on pairs of answers, and by rewards
(hours on 2 cores; stopped, the same command goes on). The second writes docs/answers.md from what the first has left.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from linnet.core.files import write_text
from linnet.data.tools import load_tools
from linnet.inference.language_model import load
from linnet.inference.tool_loop import converse
from linnet.model.cost import model_cost
from linnet.model.spec import ModelSpec
from linnet.present import numbers
from linnet.present.table import Table, table_markdown
from linnet.stories.corpus import texts

PAGE, TEMPLATE = Path(__file__).parents[1] / "docs" / "answers.md", Path(__file__).with_name("answers.md")

NORM = {"kind": "rms", "eps": 1.0e-6}
ATTENTION: dict[str, Any] = {"kind": "attention", "heads": 4}
DELTA: dict[str, Any] = {"kind": "gated_delta", "heads": 4}
MIXERS: dict[str, list[tuple[int, dict[str, Any], int]]] = {
    "attention": [(9, ATTENTION, 1024)],
    "PLDR": [
        (9, {"kind": "plga", "heads": 4, "metric_hidden": 87, "residual_units": 2, "start": "identity",
             "density": {"scope": "prefix"}}, 820)
    ],
    "TED with keys": [
        (9, {"kind": "ted", "heads": 8, "rate_bias": True, "key_width": 32, "conv": 4, "chunk": 64}, 950)
    ],
    "RWKV-7": [
        (9, {"kind": "rwkv7", "heads": 4, "decay_rank": 32, "rate_rank": 32, "value_rank": 16, "gate_rank": 64}, 940)
    ],
    "gated delta with attention": 3 * [(2, DELTA, 920), (1, ATTENTION, 1024)],
}  # fmt: skip
"""Layers, mixer and hidden width of the feed-forward of each model's blocks: within 2 % of 9.97 M parameters."""

STAGES = ("base", "chat", "dpo", "grpo")
ASKED = [
    "Once upon a time, there was a kind girl named Mia. She had a red kite. One day, Mia took the kite to the hill. "
    "Her friend Tom came too. Mia gave the kite to Tom.\nWho has the kite now?",
    "Lily and Ben went to the park. They saw a small dog.\nWhat is the name of the dog?",
    "Tom has 4 apples. Mia gives Tom 3 more. How many apples does Tom have? Answer with the number only.",
]
"""What the last model of each mixer is asked for the page."""


def spec(name: str) -> dict[str, Any]:
    """The description of a model."""
    blocks = [
        {"repeat": repeat, "mixer": mixer, "feed_forward": {"kind": "glu", "hidden": hidden}, "norm": NORM}
        for repeat, mixer, hidden in MIXERS[name]
    ]
    sizes = {"vocab_size": 2048, "d_model": 256, "context_length": 512}
    initialization = {"embedding_std": 0.1}
    head = {"tied": True, "norm": NORM}
    return {"name": name, **sizes, "blocks": blocks, "head": head, "initialization": initialization}


def linnet(*words: object) -> str:
    """Run a command; its standard output."""
    command = [sys.executable, "-m", "linnet", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def prepare(inputs: Path, out: Path) -> None:
    """Write the stories, the mixture, its tokens, conversations, pairs and prompts, unless they are there."""
    if (out / "data" / "manifest.json").exists():
        return
    lines = (json.dumps({"text": text}) for text in islice(texts(6000), 6000))
    write_text(out / "stories.jsonl", "".join(f"{line}\n" for line in lines))
    weights = {"stories": 0.3, "tinystories": 0.5, "c4": 0.1, "fineweb": 0.1}
    files = {"tinystories": "tinystories_train.txt", "c4": "c4_demo.jsonl", "fineweb": "fineweb_sample.txt"}
    paths = {"stories": out / "stories.jsonl", **{name: inputs / file for name, file in files.items()}}
    sources = {name: {"inputs": [str(paths[name].resolve())], "weight": weights[name]} for name in weights}
    write_text(out / "mixture.yaml", yaml.safe_dump({"sources": sources}))
    linnet("data", "synthesise", "--count", 12000, "--out", out / "chat.jsonl")
    linnet("data", "synthesise", "--count", 1500, "--seed", 1, "--pairs", "--out", out / "pairs.jsonl")
    linnet("data", "synthesise", "--count", 1200, "--seed", 2, "--out", out / "prompts.jsonl")
    linnet("prepare", out / "mixture.yaml", "--vocab-size", 2048, "--out", out / "data")


def stages(name: str, out: Path, base: int, chat: int) -> Iterator[list[object]]:
    """The commands that train a model; base, chat: steps of the first two stages."""
    runs = {stage: out / f"{slug(name)}-{stage}" for stage in STAGES}
    model = out / f"{slug(name)}.yaml"
    write_text(model, yaml.safe_dump(spec(name), sort_keys=False))
    mixture = ["--data", out / "data", "--set", f"training.mixture={out / 'mixture.yaml'}"]
    packed = ["--set", "training.windows=packed", "--set", "training.document_mask=true"]
    replay = ["--set", f"training.replay.data={out / 'data'}"]
    auto, rows = ["--recipe", "auto", "--batch-size", 8], ["--set", "training.precision=bfloat16"]
    yield ["--out", runs["base"], "--model", model, *mixture, *auto, "--steps", base, *rows]
    started = ["--from", runs["base"], "--chat", out / "chat.jsonl"]
    yield ["--out", runs["chat"], *started, *auto, "--steps", chat, *packed, *replay, *rows]
    started = ["--from", runs["chat"], "--preferences", out / "pairs.jsonl"]
    yield ["--out", runs["dpo"], *started, "--steps", 48, "--batch-size", 8, "--lr", 1e-5, *rows]
    started = ["--from", runs["dpo"], "--prompts", out / "prompts.jsonl", "--set", "training.grpo.held_out=48"]
    yield ["--out", runs["grpo"], *started, "--steps", 20, "--batch-size", 6, "--lr", 2e-5, *rows]


def run(names: Sequence[str], inputs: Path, out: Path, base: int, chat: int) -> None:
    """Train the models, and let each stage follow the instructions of the held-out prompts."""
    prepare(inputs, out)
    for name in names:
        commands = list(stages(name, out, base, chat))
        for words in commands:
            linnet("train", *words)
        asked = ["--suite", "instructions", "--limit", 10, "--data", out / "data", "--limit-tokens", 30000, "--json"]
        figures = linnet("evaluate", *(words[1] for words in commands), *asked)
        write_text(out / f"{slug(name)}.json", figures)


def slug(name: str) -> str:
    """The name of a model in names of files."""
    return name.replace(" ", "-")


def followed(group: dict[str, Any]) -> str:
    """A share in per cent, with its standard error."""
    return f"{100 * group['followed']:.1f} ± {100 * (group['standard_error'] or 0):.1f}"


def stages_table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """What share of all prompts each stage's model follows, and its bits per byte of the base text."""
    rows = []
    for name, models in figures.items():
        cost = model_cost(ModelSpec.parse(spec(name), name))
        bits = " / ".join(f"{one['bits_per_byte']['value']:.3f}" for one in models)
        rows.append(
            [name, *(followed(one["groups"]["all"]) for one in models), bits, numbers.binary(cost.state_bytes(512))]
        )
    columns = ["mixer", *STAGES, "bits per byte of the base text", "state behind 512 tokens"]
    return table_markdown(Table("", columns, rows))


def types_table(figures: dict[str, list[dict[str, Any]]]) -> str:
    """The share of each type of prompt that the last model follows, in per cent."""
    types = list(next(iter(figures.values()))[-1]["groups"])
    rows = [
        [kind, *(f"{100 * models[-1]['groups'][kind]['followed']:.0f}" for models in figures.values())]
        for kind in types
    ]
    return table_markdown(Table("", ["", *figures], rows))


def transcripts(names: Sequence[str], out: Path) -> str:
    """What the last models answer."""
    parts = [f"> {text.replace(chr(10), chr(10) + '> ')}" for text in ASKED]
    answers: dict[str, list[str]] = {name: [] for name in names}
    for name in names:
        model = load(out / f"{slug(name)}-grpo")
        for text in ASKED:
            messages = converse(model, [{"role": "user", "content": text}], load_tools([]), max_tokens=60)
            answers[name].append(str(messages[-1]["content"]).strip())
    return "\n\n".join(
        "\n\n".join([part, *(f"- {name}: {answers[name][number]}" for name in names)])
        for number, part in enumerate(parts)
    )


def write_page(out: Path) -> None:
    """Write `docs/answers.md` about the models that have been through all stages."""
    files = {name: out / f"{slug(name)}.json" for name in MIXERS}
    figures = {name: json.loads(file.read_text())["models"] for name, file in files.items() if file.exists()}
    if not figures:
        raise SystemExit(f"{out}: no model has been through all stages")
    rest = [name for name in MIXERS if name not in figures]
    left = f"Not trained yet: {', '.join(rest)}.\n\n" if rest else ""
    text = TEMPLATE.read_text().format(
        stages=stages_table(figures), types=types_table(figures), said=transcripts(list(figures), out), left=left
    )
    write_text(PAGE, text)


def main() -> None:
    """Run the stages, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("--texts", type=Path, default=Path())
    parser.add_argument("--out", type=Path, default=Path("runs/answers"))
    parser.add_argument("--only", action="append", choices=list(MIXERS))
    parser.add_argument("--base-steps", type=int, default=220)
    parser.add_argument("--chat-steps", type=int, default=280)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.what == "run":
        run(asked.only or list(MIXERS), asked.texts, asked.out, asked.base_steps, asked.chat_steps)
    else:
        write_page(asked.out)


if __name__ == "__main__":
    main()
