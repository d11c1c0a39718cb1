"""A folder as Transformers keeps models, written: the other way of `folder`."""

from pathlib import Path

from linnet.core.arrays import write_tensors
from linnet.core.files import write_json
from linnet.data.tokenizer import Tokenizer
from linnet.interop.families.family import Family
from linnet.interop.families.folder import CONFIG, WEIGHTS
from linnet.interop.families.tokenizer_files import write_tokenizer
from linnet.interop.rounding import dtype_name
from linnet.model.decoder import Decoder

GENERATION = "generation_config.json"
FORMAT = {"format": "pt"}
"""What Transformers asks of the metadata of a safetensors file."""


def write_published(folder: Path, family: Family, decoder: Decoder, tokenizer: Tokenizer) -> None:
    """Write description, weights and tokenizer of a member of a family, by Transformers' names.

    Ids that no token of the tokenizer has are never generated, here as there.
    """
    begin = write_tokenizer(folder, tokenizer, decoder.spec.context_length, family.begins_with_end)
    ends = {"bos_token_id": begin, "eos_token_id": tokenizer.end_id, "pad_token_id": tokenizer.end_id}
    write_json(folder / CONFIG, {**family.config(), **ends, "dtype": dtype_name(decoder)})
    unused = list(range(tokenizer.vocab_size, decoder.spec.vocab_size))
    write_json(folder / GENERATION, {**ends, **({"suppress_tokens": unused} if unused else {})})
    write_tensors(folder / WEIGHTS, family.maps.theirs(decoder.state_dict(), decoder.spec), FORMAT)
