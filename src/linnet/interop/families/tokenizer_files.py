"""A tokenizer as Transformers keeps it: what is in `tokenizer.json` for linnet, and what stands before a text.

linnet begins every text with the end token by itself; Transformers where a rule in the file says so. So a tokenizer of
linnet's own gets that rule on its way out, and loses it on its way in. One from elsewhere keeps the rule that it has.
"""

from pathlib import Path
from typing import Any

import tokenizers

from linnet.core.files import read_json, write_json
from linnet.data.tokenizer import TOKENIZER, Tokenizer
from linnet.data.tokenizer_training import END

TOKENIZER_CONFIG = "tokenizer_config.json"
_RULE = "post_processor"


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context_length: int, begins_with_end: bool) -> int:
    """Write `tokenizer.json`, and beside it what else Transformers asks; give the id that begins a text.

    begins_with_end: whether one from elsewhere gets the rule as well, where it has none.
    """
    path, end = folder / TOKENIZER, tokenizer.describe_token(tokenizer.end_id)
    tokenizer.save(path)
    definition = read_json(path)
    if (begins_with_end or end == END) and definition.get(_RULE) is None:
        write_json(path, {**definition, _RULE: _end_first(tokenizer)})
    before = tokenizers.Tokenizer.from_file(str(path)).encode("").ids
    begin = before[0] if before else tokenizer.end_id
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # their names in a text are ordinary text
        "bos_token": tokenizer.describe_token(begin),
        "eos_token": end,
        "pad_token": end,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    write_json(folder / TOKENIZER_CONFIG, config)
    return begin


def read_tokenizer_file(path: Path, begins_with_end: bool) -> Tokenizer:
    """The tokenizer of such a folder, as linnet would have made it."""
    tokenizer = Tokenizer.load(path)
    definition, own = read_json(path), begins_with_end or tokenizer.describe_token(tokenizer.end_id) == END
    if own and definition.get(_RULE) == _end_first(tokenizer):
        return Tokenizer({**definition, _RULE: None}, str(path))
    return tokenizer


def _end_first(tokenizer: Tokenizer) -> dict[str, Any]:
    """The rule by which the end token stands before each text, in the words of the tokenizers library."""
    name = tokenizer.describe_token(tokenizer.end_id)
    end, text, second = ({"SpecialToken": {"id": name, "type_id": 0}}, _text("A"), _text("B"))
    return {
        "type": "TemplateProcessing",
        "single": [end, text],
        "pair": [end, text, end, second],
        "special_tokens": {name: {"id": name, "ids": [tokenizer.end_id], "tokens": [name]}},
    }


def _text(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}
