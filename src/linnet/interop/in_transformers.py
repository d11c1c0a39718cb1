"""The same gate with Transformers: its model of a folder, in float32 on the processor.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.core.errors import UserError
from linnet.interop.parity import (
    MOST_ERROR,
    Agreement,
    Expected,
    compared,
    expected_of,
    held_error,
    in_float32,
    random_tokens,
)
from linnet.model.decoder import Decoder
from linnet.present.progress import progress

NAME = "Transformers"


def transformers_module(field: str) -> Any:
    """The package; `UserError` that names the extra where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise UserError("needs transformers: pip install 'linnet[transformers]'", field=field) from None
    return transformers


def original(folder: Path, field: str = "check", origin: str | Path = "") -> tuple[Any, Any]:
    """Transformers' model of a folder, in float32, and its tokenizer; nothing is fetched, and no code of it is run.

    origin: what `UserError` calls the folder; if not given, by its name.
    """
    transformers = transformers_module(field)
    import linnet.interop.transformers  # noqa: F401 (registers our own models; it imports this module)

    here = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _without_bars(transformers):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **here)
            return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **here)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        said = str(error).strip().splitlines()[0]
        raise UserError(f"{origin or folder}: Transformers cannot read it ({said})") from error


@contextmanager
def _without_bars(transformers: Any) -> Iterator[None]:
    """Transformers draws bars of its own, also where nobody watches."""
    logging = transformers.utils.logging
    were_drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_drawn:
            logging.enable_progress_bar()


def encoder(theirs: Any) -> Callable[[str], list[int]]:
    """Ids without what stands before or behind a text; nothing is said of one that is longer than the context."""
    return lambda text: list(theirs(text, add_special_tokens=False, verbose=False)["input_ids"])


@torch.no_grad()
def check_in_transformers(decoder: Decoder, theirs: Any, origin: str) -> Agreement:
    """`UserError` unless both say the same: logits of random tokens in one pass, then greedy tokens one by one.

    As many tokens as the model has learned positions for, where it has such.
    """
    ours = in_float32(decoder)
    tokens_BT, expected = random_tokens(ours), expected_of(ours)
    error = held_error(ours(tokens_BT), theirs(tokens_BT).logits, MOST_ERROR, NAME, origin)
    found = compared(expected, _logits(theirs, expected), MOST_ERROR, NAME, origin)
    return replace(found, error=max(error, found.error))


def _logits(theirs: Any, expected: Expected) -> Tensor:
    """`[T, V]`: the prompt in one pass, then one token after the other with its cache."""
    prompt = len(expected.tokens) - expected.steps + 1
    cache, rows = None, list[Tensor]()
    with progress("as Transformers says", expected.steps, "tokens") as advance:
        for chunk_T in (expected.tokens[:prompt], *expected.tokens[prompt:, None]):
            out = theirs(chunk_T[None], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            rows.append(out.logits[0])
            advance(1)
    return torch.cat(rows)
