"""Models of Transformers on disk as model folders: Llama, Qwen 2 and 3, GPT-2, GPT-NeoX (Pythia), and our own."""

from pathlib import Path

from linnet.core.errors import UserError, note
from linnet.core.files import sha256_of
from linnet.interop.families.folder import end_tokens, read_family, read_published, read_tokenizer
from linnet.interop.in_transformers import NAME, check_in_transformers, encoder, original
from linnet.interop.parity import SAMPLES, Agreement, check_same_ids
from linnet.model.decoder import Decoder
from linnet.model.skip_init import decoder_with_weights
from linnet.model.store import check_new_folder, write_model


def import_transformers(
    source: str | Path, out: str | Path, command: str | None = None, check: bool = False
) -> tuple[Decoder, Agreement | None]:
    """Make the model folder `out` from a folder as Transformers keeps models, which need not be installed.

    check: the original is run as well, by Transformers: ids, logits and greedy tokens must be the same (`parity`), or
    nothing is written. `UserError` names the file, and the field or tensor that linnet cannot take. The tensors keep
    their precision. Nothing in the folder is run.
    """
    check_new_folder(out)
    folder = Path(source)
    if not folder.is_dir():
        raise UserError(f"{source}: no such folder; expected one as Transformers keeps models")
    family = read_family(folder)
    model = family.model(folder.resolve().name, str(folder / "config.json"))
    tokenizer = read_tokenizer(folder, family, model)
    tensors, files = read_published(folder, family, model)
    decoder = decoder_with_weights(model, tensors)
    found = None
    if check:
        theirs, their_tokenizer = original(folder)
        check_same_ids(tokenizer, encoder(their_tokenizer), NAME, str(folder), SAMPLES)
        found = check_in_transformers(decoder, theirs, str(folder))
    ends = end_tokens(folder)
    if ends and tokenizer.end_id not in ends:
        said = ", ".join(map(tokenizer.describe_token, ends))
        note(f"{folder}: Transformers ends a text at {said}; linnet at {tokenizer.describe_token(tokenizer.end_id)}")
    hashes = {path.name: sha256_of(path) for path in files}
    made = {"imported_from": str(folder), "sha256": hashes, "command": command}
    write_model(out, decoder, tokenizer, made if found is None else {**made, "parity": found.figures})
    return decoder, found
