"""The same gate with llama.cpp itself, where its Python binding is installed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.interop.parity import Agreement, Expected, compared

MOST_ERRORS = {"f32": 1e-3, "f16": 1e-2, "bf16": 0.1, "q8_0": 0.3, "q4_0": 0.3}
"""Of a logit, in units of the standard deviation of all of them: llama.cpp rounds what a stored matrix is multiplied
with as well, to the precision of the matrix, or to blocks of 8 bits.
"""
NAME = "llama.cpp"


def is_installed() -> bool:
    """Whether the binding is installed; it is not asked for otherwise."""
    return find_spec("llama_cpp") is not None


@contextmanager
def loaded_model(path: Path, origin: str) -> Iterator[Any]:
    """llama.cpp's model of a file, on the processor, keys and values in float32; `UserError` if it takes none such."""
    import llama_cpp

    precise = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False}
    try:
        model = llama_cpp.Llama(str(path), n_ctx=512, logits_all=True, verbose=False, n_gpu_layers=0, **precise)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{origin}: llama.cpp cannot read it ({str(error).strip().splitlines()[0]})") from error
    try:
        yield model
    finally:
        model.close()


def encoder(model: Any) -> Callable[[str], list[int]]:
    """Token ids by llama.cpp, none added; names of control tokens are ordinary text."""
    return lambda text: list(model.tokenize(text.encode(), add_bos=False, special=False))


def check_in_llama_cpp(model: Any, expected: Expected, weights: str, origin: str) -> Agreement:
    """`UserError` unless llama.cpp says what the model here says, token by token with its cache."""
    return compared(expected, _logits(model, expected), MOST_ERRORS[weights], NAME, origin)


def _logits(model: Any, expected: Expected) -> Tensor:
    """`[T, V]`: the prompt in one pass, then one token after the other."""
    tokens, prompt = expected.tokens.tolist(), len(expected.tokens) - expected.steps + 1
    model.reset()
    model.eval(tokens[:prompt])
    for token in tokens[prompt:]:
        model.eval([token])
    return torch.from_numpy(model.scores[: len(tokens)].copy())
