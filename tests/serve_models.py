"""Model folders with random weights, and processes that serve them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

CHATML = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny(
    folder: Path,
    mixer: dict,
    seed: int = 0,
    template: str | None = None,
    context_length: int = 256,
    positions: str = "none",
) -> Path:
    """A model folder with random weights, far enough from the start that its texts vary."""
    tokenizer = Tokenizer.train("bytes", [])
    spec = ModelSpec.parse(
        {
            "name": folder.name,
            "vocab_size": tokenizer.vocab_size,
            "d_model": 16,
            "context_length": context_length,
            "embedding": {"positions": positions},
            "blocks": [{"repeat": 2, "mixer": mixer, "feed_forward": {"kind": "mlp", "hidden": 32}}],
        },
        "spec",
    )
    torch.manual_seed(seed)
    decoder = Decoder(spec)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    published = {}
    if template is not None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        (source := folder.parent / f"{folder.name}.jinja").write_text(template)
        published = {"chat_template.jinja": source}
    write_model(folder, decoder.eval(), tokenizer, {}, published)
    return folder


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """`linnet serve` as a process, and its address."""
    command = [sys.executable, "-m", "linnet", "serve", str(folder), "--port", "0", "--threads", "1", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), process.stderr.read()
        yield process, url
    finally:
        process.kill()
        process.wait()
