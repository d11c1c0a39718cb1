"""The files and folders that the examples speak of, tiny, under the names that the documentation gives them.

Each is made when the first example mentions it. A new name needs one line in `MAKERS`.
"""

import base64
import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file
from set_rows import ROWS
from small_originals import write as write_original

from linnet.cli.main import main
from linnet.core.checksum import write_file_checksums
from linnet.data.chat_template import CHAT_TEMPLATE
from linnet.interop.ted import END
from linnet.interop.tensor_names import PLDR, TED
from linnet.model.folder import CONFIG, RUN, TOKENIZER, WEIGHTS, model_folder, preset_names
from linnet.model.spec import ModelSpec
from linnet.stories import texts

ROOT = Path(__file__).resolve().parents[2]
STORIES, VOCABULARY, PIECES = 60, 300, 20


def small(preset: str, context_length: int = 64) -> dict[str, Any]:
    """A preset's architecture with one layer of width 16 in each block."""
    plain = ModelSpec.load(preset).model_dump(mode="json", exclude_unset=True)
    plain |= {"vocab_size": PIECES, "d_model": 16, "context_length": context_length, "name": f"small-{preset}"}
    for block in plain["blocks"]:
        block["repeat"], block["feed_forward"]["hidden"] = 1, 24
        if "heads" in block["mixer"]:
            block["mixer"]["heads"] = 2
        if "metric_hidden" in block["mixer"]:
            block["mixer"]["metric_hidden"] = 8
    return plain


def is_preset(name: str) -> bool:
    """Whether `--model NAME` and `--spec NAME` name one."""
    return name in preset_names()


class Workspace:
    """A folder that fills as examples need it; what has the name `runs/ted` lies in `runs%ted`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, Path] = {}
        """The runs and the prepared text there are, by what they were made of: a second of the same is a copy."""

    def needed(self, example: str) -> list[str]:
        """The names that an example mentions, the longest first."""
        return [name for name in sorted(MAKERS, key=len, reverse=True) if re.search(_mentioned(name), example)]

    def path(self, name: str) -> Path:
        """Where it lies; made if it is not there."""
        path = self.folder / name.replace("/", "%")
        if not path.exists():
            MAKERS[name](self, path)
            assert path.exists(), name
        return path

    def small_preset(self, preset: str) -> str:
        """A file that describes its small version; the preset itself where that is tiny."""
        if preset.startswith("tiny-"):
            return preset
        path = self.folder / f"small-{preset}.yaml"
        path.write_text(yaml.safe_dump(small(preset)))
        return str(path)


def _mentioned(name: str) -> str:
    return rf"(?<![\w./-]){re.escape(name)}(?![\w-]|\.\w|/\w)"


def linnet(*words: object) -> None:
    """One command, which has to work."""
    assert main([str(word) for word in words]) == 0, words


def stories(workspace: Workspace, path: Path) -> None:
    """Short stories, as text or as JSON lines."""
    found = list(texts(STORIES, seed=0, split="train"))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in found)
    path.write_text(lines if path.suffix == ".jsonl" else "<|endoftext|>".join(found))


def evaluation_text(workspace: Workspace, path: Path) -> None:
    """Other short stories, as JSON lines."""
    _write_lines(path, [{"text": text} for text in texts(3, seed=1, split="validation")])


def conversations(workspace: Workspace, path: Path) -> None:
    """Questions and answers as JSON lines."""
    _write_lines(path, [{"instruction": f"Who sang {n} times?", "output": "The bird."} for n in range(40)])


def preferences(workspace: Workspace, path: Path) -> None:
    """Two answers to a question as JSON lines."""
    _write_lines(path, [{"prompt": f"Sing {n} times?", "chosen": "Yes.", "rejected": "No!"} for n in range(40)])


def own_world(workspace: Workspace, path: Path) -> None:
    """A Python file that makes instructions."""
    path.write_text(
        "def examples(seed, split):\n"
        "    for number in range(600):\n"
        "        turns = [{'role': 'user', 'content': str(number)}, {'role': 'assistant', 'content': 'a bird'}]\n"
        "        yield {'messages': turns, 'checker': {'kind': 'exact', 'answer': 'bird'}}\n"
    )


def prompts(workspace: Workspace, path: Path) -> None:
    """Questions with their answers as JSON lines."""
    _write_lines(path, [{"prompt": f"What follows {n}?", "answer": str(n + 1)} for n in range(40)])


def reward_model(workspace: Workspace, path: Path) -> None:
    """A run that made a reward model."""
    settings = ("steps=2", "batch_size=1", "threads=1", "preference.kind=reward")
    changes = [word for setting in settings for word in ("--set", f"training.{setting}")]
    source = workspace.path("preferences.jsonl")
    linnet("train", "--from", workspace.path("runs/base"), "--preferences", source, "--out", path, *changes)


def run_with_chat_template(workspace: Workspace, path: Path) -> None:
    """A run whose model has a chat template."""
    run_of("tiny-attention")(workspace, path)
    workspace.made = {key: made for key, made in workspace.made.items() if made != path}  # others have no template
    (model_folder(path) / CHAT_TEMPLATE).write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}Answer:{% generation %}{{ m.content }}<|end|>"
        "{% endgeneration %}{% else %}Question:{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}Answer:{% endif %}"
    )


def pairs(workspace: Workspace, path: Path) -> None:
    """Inputs and targets as JSON lines."""
    words = ["one", "two", "three", "four", "five"]
    rows = [" ".join(words[(start + step) % 5] for step in range(length)) for start in range(5) for length in (2, 3, 4)]
    lines = ({"input": row, "target": " ".join(reversed(row.split()))} for row in rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run_of_pairs(workspace: Workspace, path: Path) -> None:
    """A run of an encoder-decoder that is tiny by itself."""
    settings = ("training.steps=2", "training.batch_size=1", "training.threads=1")
    changes = [word for setting in settings for word in ("--set", setting)]
    source = workspace.path("pairs.jsonl")
    linnet("train", "--model", "tiny-encoder-decoder", "--pairs", source, "--out", path, *changes)


def data(workspace: Workspace, path: Path) -> None:
    """Prepared text."""
    if "data" in workspace.made:
        shutil.copytree(workspace.made["data"], path)
        return
    linnet("prepare", workspace.path("stories.txt"), "--out", path, "--vocab-size", VOCABULARY)
    workspace.made["data"] = path


def run_of(preset: str) -> "Maker":
    """A run of a model that is tiny by itself."""
    return lambda workspace, path: train(workspace, path, preset)


def run_of_small(preset: str) -> "Maker":
    """A run of a small version of a model."""
    return lambda workspace, path: train(workspace, path, small(preset))


def train(workspace: Workspace, path: Path, model: str | dict[str, Any], steps: int = 2) -> None:
    """A run of few steps, with two evaluations."""
    key = json.dumps([model, steps])
    if key in workspace.made:
        shutil.copytree(workspace.made[key], path)
        return
    training = {"steps": steps, "batch_size": 1, "threads": 1, "evaluate": {"every": 1, "tokens": 256}}
    config = path.with_suffix(".yaml")
    config.write_text(yaml.safe_dump({"model": model, "training": training}))
    linnet("train", "--config", config, "--data", workspace.path("data/stories"), "--out", path)
    config.unlink()
    workspace.made[key] = path


def run_of_llama(workspace: Workspace, path: Path) -> None:
    """A run of a model that goes out as GGUF, in blocks of 32 numbers too."""
    plain = small("llama-110m") | {"d_model": 32}
    plain["blocks"][0]["feed_forward"]["hidden"] = 64
    train(workspace, path, plain)


def runs_of(layers: tuple[int, ...], steps: tuple[int, ...]) -> "Maker":
    """A folder of runs, of several sizes and lengths. So short a run learns nothing: the losses are those of a law."""

    def make(workspace: Workspace, path: Path) -> None:
        path.mkdir()
        for depth, length in product(layers, steps):
            plain = small("tiny-attention", 32)
            plain["blocks"][0]["repeat"] = depth
            folder = path / f"{depth}-{length}"
            train(workspace, folder, plain, length)
            record = folder / "model" / "run.json"
            told = json.loads(record.read_text())
            loss = 1.5 + 50 / told["parameters"] ** 0.5 + 5 / told["tokens"] ** 0.4
            told["validation"] |= {"nats_per_token": loss, "bits_per_byte": loss}
            record.write_text(json.dumps(told))
            write_file_checksums(record.parent, (CONFIG, WEIGHTS, TOKENIZER, RUN))
            (folder / "metrics.jsonl").write_text("")

    return make


def run_configuration(workspace: Workspace, path: Path) -> None:
    """`linnet train --config`."""
    workspace.path("data/stories")
    path.write_text("model: tiny-ted\ndata: data/stories\ntraining: {steps: 100}\n")


def comparison(workspace: Workspace, path: Path) -> None:
    """The project's own file of that name; its text and what its runs set are no fields that --set changes."""
    plain = yaml.safe_load((ROOT / path.name.replace("%", "/")).read_text())
    if "stories" in plain["text"]:
        plain["text"]["stories"] = 2 * STORIES
    plain["tokenizer"]["vocab_size"], plain["seeds"] = VOCABULARY, [0]
    for run in plain["runs"]:
        changed = run.get("set", {})
        changed |= {"training.steps": changed["training.steps"] // 100} if "training.steps" in changed else {}
    path.write_text(yaml.safe_dump(plain))


def protocol(workspace: Workspace, path: Path) -> None:
    """The project's own file of that name, with few tokens to generate."""
    plain = yaml.safe_load((ROOT / path.name.replace("%", "/")).read_text())
    for measure in plain["measures"].values():
        if "tokens" in measure:
            measure["tokens"] = 4
        for other in measure.get("against", []):
            other["config"] |= {"hidden_size": 24, "vocab_size": 99}
    path.write_text(yaml.safe_dump(plain))


def compared(workspace: Workspace, path: Path) -> None:
    """The folder of a comparison of two runs."""
    training = {"steps": 2, "batch_size": 1, "threads": 1, "evaluate": {"tokens": 64}}
    plain = {
        "name": "small", "text": {"stories": STORIES}, "tokenizer": {"kind": "bytes"}, "model": "tiny-attention",
        "training": training, "seeds": [0], "runs": [{"name": "one"}, {"name": "other"}],
    }  # fmt: skip
    config = path.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(plain))
    linnet("compare", config, "--out", path)


def points(workspace: Workspace, path: Path) -> None:
    """Ends of training runs, by a law."""
    sizes, tokens = [2**n * 10**6 for n in range(6)], [2**n * 10**8 for n in range(6)]
    rows = [(n, 6 * n * t, 1.8 + 480 / n**0.35 + 2000 / t**0.37) for n in sizes for t in tokens]
    _write_csv(path, ("parameters", "training_flops", "loss"), rows)


def own_file(workspace: Workspace, path: Path) -> None:
    """The project's file of that name."""
    path.write_bytes((ROOT / path.name.replace("%", "/")).read_bytes())


def trained(workspace: Workspace, path: Path) -> None:
    """Trained decoders, as `linnet design validate` reads them."""
    columns = ("n_layer", "d_model", "d_inner", "params_attention", "params_ffn", "params_total", "valid_ppl")
    rows = []
    for layers in range(2, 8):
        for width in range(64, 384, 64):
            attention, hidden = layers * 4 * width**2, layers * 4 * width**2
            inner = "|".join([str(2 * width)] * layers)
            total = attention + hidden + 1000 * width
            rows.append((layers, width, inner, attention, hidden, total, 60 - layers - width / 16))
    _write_csv(path, columns, rows)


def space(workspace: Workspace, path: Path) -> None:
    """The space that the page on design describes."""
    page = (ROOT / "docs" / "design.md").read_text()
    path.write_text(re.findall(r"```yaml\n(name: my-space\n.*?)```", page, flags=re.DOTALL)[0])


def pieces(workspace: Workspace, path: Path) -> None:
    """A SentencePiece model with the control pieces of a PLDR-LLM."""
    from sentencepiece import SentencePieceTrainer

    SentencePieceTrainer.train(
        sentence_iterator=iter(["a bird sang to a bee in a tree"] * 20), model_prefix=str(path.with_suffix("")),
        vocab_size=PIECES, pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece="[PAD]", unk_piece="[UNK]",
        bos_piece="[START]", eos_piece="[END]", minloglevel=2,
    )  # fmt: skip


def ranks(workspace: Workspace, path: Path) -> None:
    """Ranks of tiktoken: every byte, and a few words."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b" bi", b" bird"]
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))


def pldr_tensors(preset: str) -> dict[str, torch.Tensor]:
    """A checkpoint of a small version of a preset, with `PIECES` tokens, under its published names."""
    spec = ModelSpec.parse(small(preset), preset)
    return {name: 0.1 * torch.randn(shape) for name, shape in PLDR.shapes(spec).items()}


def pth(preset: str) -> "Maker":
    """A published `.pth` file."""
    return lambda workspace, path: torch.save({"model_state_dict": pldr_tensors(preset)}, path)


def pth_folder(preset: str) -> "Maker":
    """A folder with one .pth file and one SentencePiece model."""

    def make(workspace: Workspace, path: Path) -> None:
        path.mkdir()
        pth(preset)(workspace, path / "checkpoint.pth")
        pieces(workspace, path / "pieces.model")

    return make


def transformers_folder(operators: str | None) -> "Maker":
    """A PLDR-LLM as Transformers keeps it."""

    def make(workspace: Workspace, path: Path) -> None:
        path.mkdir()
        preset = "pldr-v51-110m-1" if operators is None else "pldr-v51g-106m-1"
        plain, named = small(preset), pldr_tensors(preset)
        config = {
            "model_type": "pldrllm", "vocab_size": PIECES, "hidden_size": 16, "intermediate_size": 24,
            "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8, "A_dff": 8,
            "max_position_embeddings": plain["context_length"], "custom_G_type": operators,
        }  # fmt: skip
        if operators:
            named["decoder.past_G_values"] = torch.randn(1, 3, 1, 2, 8, 8)
        (path / "config.json").write_text(json.dumps(config))
        save_file(named, path / "model.safetensors")
        pieces(workspace, path / "tokenizer.model")

    return make


def original(name: str) -> "Maker":
    """A model and its tokenizer as Transformers writes them."""
    return lambda workspace, path: write_original(path, name)


def peft_parts(workspace: Workspace, path: Path) -> None:
    """Low-rank parts of `SmolLM-135M` as PEFT writes them."""
    base, name = workspace.path("SmolLM-135M"), "model.layers.0.mlp.down_proj"
    outputs, inputs = load_file(base / WEIGHTS)[f"{name}.weight"].shape
    path.mkdir()
    parts = {"A": torch.randn(2, inputs), "B": torch.randn(outputs, 2)}
    named = {f"base_model.model.{name}.lora_{part}.weight": tensor for part, tensor in parts.items()}
    save_file(named, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(base)}
    (path / "adapter_config.json").write_text(json.dumps(config))


def published_ted(end: str) -> "Maker":
    """A TED model in the published layout."""

    def make(workspace: Workspace, path: Path) -> None:
        path.mkdir()
        characters = [*sorted(set("".join(texts(STORIES, seed=0, split="train"))) | {"\n"}), end]
        spec = ModelSpec.parse(small("ted-tinystories") | {"vocab_size": len(characters)}, "ted")
        sizes = {"num_layers": 1, "dim": 16, "hidden_dim": 24, "norm_eps": 1e-6, "vocab_size": len(characters)}
        vocabulary = {"int_to_char": characters, "char_to_int": {c: n for n, c in enumerate(characters)}}
        weights = {
            name: {"size": shape, "data": base64.b64encode((torch.randn(shape) / 4).numpy().tobytes()).decode()}
            for name, shape in TED.shapes(spec).items()
        }
        for name, content in (("model", sizes), ("vocab", vocabulary), ("weights", weights)):
            (path / f"{name}.json").write_text(json.dumps(content))

    return make


def operators(workspace: Workspace, path: Path) -> None:
    """Those of `runs/pldr`."""
    saved = path.with_suffix(".safetensors")
    linnet("inspect", "operator", workspace.path("runs/pldr"), "--save", saved)
    if path.suffix == ".npz":
        import numpy as np
        from safetensors.numpy import load_file

        np.savez(path, **load_file(saved))


def ngram(workspace: Workspace, path: Path) -> None:
    """An n-gram model."""
    linnet("ngram", "train", "--data", workspace.path("data/stories"), "--out", path, "--order", 3)


def vectors(workspace: Workspace, path: Path) -> None:
    """Static word vectors."""
    settings = ("--width", 4, "--min-count", 2, "--epochs", 1, "--method", "glove")
    linnet("vectors", "train", workspace.path("stories.txt"), "--out", path, *settings)


def state(workspace: Workspace, path: Path) -> None:
    """Where a story of `runs/stories` stopped."""
    linnet("generate", workspace.path("runs/stories"), "--prompt", "Once", "--max-tokens", 4, "--save-state", path)


def task_files(workspace: Workspace, path: Path) -> None:
    """A folder with the rows of every task of the suites, and the same as examples before them."""
    path.mkdir()
    for name, rows in ROWS.items():
        for file in (f"{name}.jsonl", f"{name}_train.jsonl"):
            _write_lines(path / file, rows)


def questions(workspace: Workspace, path: Path) -> None:
    """Multiple choice."""
    _write_lines(path, [{"context": f"{n} and {n} is", "choices": [f"{2 * n}", f"{n}"], "gold": 0} for n in range(4)])


def sentences(workspace: Workspace, path: Path) -> None:
    """Minimal pairs."""
    _write_lines(path, [{"sentence_good": f"Birds sing {n}.", "sentence_bad": f"Birds sings {n}."} for n in range(4)])


def cleaning_steps(workspace: Workspace, path: Path) -> None:
    """Steps of `linnet data clean` that short stories pass."""
    path.write_text("steps: [{kind: gopher_quality, min_doc_words: 3, min_stop_words: null}, {kind: pii}]")


def _write_lines(path: Path, rows: Sequence[object]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_csv(path: Path, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


Maker = Callable[[Workspace, Path], None]

MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("my.txt", "stories.txt", "web.jsonl", "tinystories_train.txt"), stories),
    **dict.fromkeys(("data/my", "data/stories", "data/tinystories", "data/web", "data/letters"), data),
    "runs/ted": run_of("tiny-ted"),
    "runs/pldr": run_of("tiny-pldr"),
    "runs/other": run_of("tiny-pldr"),
    "runs/teacher": run_of("tiny-attention"),
    "runs/experts": run_of("tiny-experts"),
    "test.jsonl": evaluation_text,
    "pairs.jsonl": pairs,
    "clean.yaml": cleaning_steps,
    "chat.jsonl": conversations,
    **dict.fromkeys(("runs/base", "runs/chat"), run_with_chat_template),
    "preferences.jsonl": preferences,
    "runs/reward": reward_model,
    "my_world.py": own_world,
    "prompts.jsonl": prompts,
    "runs/pairs": run_of_pairs,
    **dict.fromkeys(("runs/stories", "runs/best"), run_of("tiny-attention")),
    "runs/llama": run_of_llama,
    "runs/ngram": ngram,
    "vectors.txt": vectors,
    "data/tasks": task_files,
    "questions.jsonl": questions,
    "blimp.jsonl": sentences,
    "runs/ablation": compared,
    "demo/attention": run_of("tiny-attention"),
    "demo/pldr": run_of("tiny-pldr"),
    "demo/ted": run_of("tiny-ted"),
    "runs": runs_of((1, 2, 4), (2, 3, 4, 6)),
    "runs/study": runs_of((1, 2, 4), (2,)),
    "run.yaml": run_configuration,
    "experiments/ablations/pldr.yaml": comparison,
    "experiments/ablations/pldr-published.json": own_file,
    **dict.fromkeys(("experiments/scaling/ladder.yaml", "experiments/ablations.yaml"), comparison),
    **dict.fromkeys(("experiments/pldr-table.yaml", "experiments/caches.yaml"), protocol),
    "experiments/scaling/ladder.csv": own_file,
    **dict.fromkeys(("points.csv", "chinchilla_points.csv"), points),
    "trained.csv": trained,
    "story.safetensors": state,
    "space.yaml": space,
    "pieces.model": pieces,
    "cl100k_base.tiktoken": ranks,
    "checkpoint.pth": pth("pldr-v51-110m-1"),
    "v51g.pth": pth("pldr-v51g-106m-1"),
    "downloaded": pth_folder("pldr-v51-110m-1"),
    "v51g": pth_folder("pldr-v51g-106m-1"),
    "PLDR-LLM-v51-110M-3": transformers_folder(None),
    "PLDR-LLM-v51G-106M-1": transformers_folder("external"),
    "SmolLM-135M": original("llama"),
    "my-lora": peft_parts,
    "pythia-160m": original("gpt_neox"),
    "tiny_stories": published_ted(END),
    "my_ted": published_ted("|"),
    **dict.fromkeys(("operator.safetensors", "operator.npz", "G.safetensors"), operators),
}
