"""A chat template of a few characters, and models of conversations that write a few letters, for tests of training."""

from dataclasses import replace
from pathlib import Path

import torch

from linnet.data.chat_template import CHAT_TEMPLATE
from linnet.data.conversations import ChatTurn
from linnet.data.prompts import ChatPrompt
from linnet.data.tokenizer import Tokenizer
from linnet.data.tools import CALCULATOR_ALONE, Tools
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}U:{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
"""What trains the stop token of every answer; it is that of a tokenizer of bytes."""

TOOL_STARTS = "b"
"""What an answer begins with that counts as a call of a tool, for `continued`."""

HEAD = {"tied": False, "bias": True, "norm": {"kind": "rms"}}
"""Of a model that `write_chat_model` can let write a few letters."""


def write_chat_model(folder: Path, spec: ModelSpec, letters: bytes = b"abcd", others: float = -9.0) -> None:
    """Write a model with random weights and `TEMPLATE`, which writes one of the letters, or ends.

    spec: with a bias of the head, unless it is a reward model, whose values are random then. others: the bias of all
    other tokens.
    """
    torch.manual_seed(0)
    tokenizer, decoder = Tokenizer.train("bytes", []), Decoder(spec)
    with torch.no_grad():
        if decoder.value is not None:
            decoder.value.normal_()
        else:
            decoder.head.bias.fill_(others)
            decoder.head.bias[[*letters, tokenizer.end_id]] = 0.0
    write_model(folder, decoder, tokenizer, {})
    (folder / CHAT_TEMPLATE).write_text(TEMPLATE)


def continued(prompt: ChatPrompt, answer: str, tools: Tools = CALCULATOR_ALONE) -> ChatPrompt | None:
    """In place of `ChatPrompt.continued`: a model of a few letters calls a tool, which says 36."""
    if not prompt.tool_rounds or not answer.startswith(TOOL_STARTS):
        return None
    turns = (*prompt.messages, ChatTurn("assistant", answer), ChatTurn("tool", "36"))
    return replace(prompt, messages=turns, tool_rounds=prompt.tool_rounds - 1)
