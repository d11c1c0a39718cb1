"""A model folder of ours as a folder of Transformers, and the tokenizer in it."""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from linnet.core.atomic import atomic_directory
from linnet.core.files import read_json, write_json
from linnet.core.tensor_file import write_tensors
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel, load
from linnet.interop.families.folder import TOKENIZER, WEIGHTS
from linnet.interop.families.linnet import Linnet, begins_with, end_token
from linnet.interop.parity import Parity, check_parity, check_same_ids, original
from linnet.interop.transformers.config import LinnetConfig, check_decoder
from linnet.interop.transformers.model import LinnetForCausalLM
from linnet.model.store import check_new_folder

TOKENIZER_CONFIG = "tokenizer_config.json"


def write_folder(source: str | Path, out: str | Path) -> Parity:
    """Write a model folder, or a run's, as one that Transformers reads once `linnet.interop.transformers` is imported.

    It appears once Transformers, by its `Auto` classes, has read it back and said the same: token ids, logits, 200
    greedy tokens (`parity`). `UserError` where it does not, where the model has an encoder, or `out` is there already.
    """
    check_new_folder(out)
    model = load(source, device="cpu")
    check_decoder(model.spec)
    with atomic_directory(out) as temporary:
        write_weights(model, temporary)
        generation_config(model).save_pretrained(temporary)
        write_tokenizer(model.tokenizer, temporary, model.spec.context_length)
        theirs, their_tokenizer = original(temporary)
        check_same_ids(model.tokenizer, their_tokenizer, str(out))
        return check_parity(model.decoder, theirs, str(out))


def write_weights(model: LanguageModel, folder: Path) -> None:
    """`config.json` and `model.safetensors`, as `save_pretrained` writes them."""
    config = LinnetConfig.of(model.spec)
    config.architectures, config.dtype = [LinnetForCausalLM.__name__], model.decoder.dtype
    config.save_pretrained(folder)
    write_tensors(folder / WEIGHTS, Linnet.theirs(model.decoder.state_dict(), model.spec), {"format": "pt"})


def generation_config(model: LanguageModel) -> GenerationConfig:
    """Texts begin and end with the end token; ids that the tokenizer does not have are never chosen."""
    end, unused = model.tokenizer.end_id, list(range(model.tokenizer.vocab_size, model.spec.vocab_size))
    ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    return GenerationConfig(**ends, suppress_tokens=unused or None)  # type: ignore[no-untyped-call]


def write_tokenizer(tokenizer: Tokenizer, folder: Path, context_length: int) -> None:
    """`tokenizer.json`, which puts the end token before every text where nothing else is said, and its settings."""
    tokenizer.save(folder / TOKENIZER)
    definition = read_json(folder / TOKENIZER)
    end = end_token(definition, tokenizer.end_id)
    if definition.get("post_processor") is None:
        write_json(folder / TOKENIZER, {**definition, "post_processor": begins_with(end, tokenizer.end_id)})
    write_json(folder / TOKENIZER_CONFIG, _settings(end, context_length))


def _settings(end: str, context_length: int) -> dict[str, Any]:
    """Names of special tokens in a text are ordinary text; batches are padded where generation wants it."""
    tokens = dict.fromkeys(("bos_token", "eos_token", "pad_token"), end)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokens,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "model_max_length": context_length,
        "model_input_names": ["input_ids", "attention_mask"],
    }
