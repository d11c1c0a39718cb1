"""A whole model folder: description, weights, tokenizer, and how it was made."""

from pathlib import Path
from typing import Any

from linnet.core.errors import UserError
from linnet.core.files import atomic_directory, write_json
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.folder import RUN, TOKENIZER, save_decoder


def write_model_folder(folder: str | Path, decoder: Decoder, tokenizer: Tokenizer, made: dict[str, Any]) -> None:
    """Write it whole or not at all, in the place of one that is there; `made` becomes `run.json`."""
    with atomic_directory(folder) as temporary:
        save_decoder(decoder, temporary)
        tokenizer.save(temporary / TOKENIZER)
        write_json(temporary / RUN, made)


def check_new_folder(out: str | Path) -> None:
    """`UserError` where something is in the place of a folder that is to be made."""
    path = Path(out)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"--out {out}: exists already; expected a new folder")
