"""Import of and export to Transformers: models of `families`, such as Llama, as exactly these models.

Any other decoder of linnet becomes a folder that Transformers reads after `import linnet.interop.transformers`. Both
directions are checked against Transformers' own model of the folder, in float32 on the CPU.

Legend: `B` batch, `T` tokens, `V` vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError, first_line, note
from linnet.core.files import sha256_of
from linnet.inference.language_model import LanguageModel
from linnet.interop import optional_package
from linnet.interop.exporters import ExportResult
from linnet.interop.families.family import Family, Linnet
from linnet.interop.families.matching import match_family
from linnet.interop.parity import (
    MAX_ERROR,
    SAMPLES,
    Agreement,
    check_logits,
    check_same_ids,
    compare,
    expected_of,
    in_float32,
    random_tokens,
    round_weights,
    sample_stories,
)
from linnet.interop.peft import PEFT_CONFIG, PeftParts
from linnet.interop.transformers_folder import (
    CONFIG,
    WEIGHTS,
    files_to_keep,
    note_other_ids,
    published_family,
    published_folder,
    read_family,
    read_tokenizer,
    read_weights,
    write_chat_template,
    write_folder,
)
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder, write_model
from linnet.present.progress import progress

NAME = "Transformers"
CACHES = ("cache", "past_key_values", "cache_params", "state")
"""Names in Transformers of what a model keeps of earlier tokens; later versions answer to older names too."""
STORIES = 20
"""Stories whose ids are compared in addition to `SAMPLES`: about 2,000 words."""


def import_transformers(
    source: str | Path, out: str | Path, command: str | None = None, check: bool = False, end: Sequence[str] = ()
) -> tuple[Decoder, Agreement | None]:
    """Make the model folder `out` from a model folder of Transformers, which need not be installed.

    check: also run the original with Transformers; ids, logits and greedy tokens must be the same (`parity`), or
    nothing is written. end: names of the end tokens, that between documents first; none: those that the folder names
    (`ends_beside`). `UserError` names the file and the field or tensor that linnet does not support. The tensors keep
    their precision. Nothing in the folder is executed. A folder of PEFT becomes its base with the parts added.
    """
    check_new_folder(out)
    folder = Path(source)
    if not folder.is_dir():
        raise UserError(f"{source}: no such folder; expected a model folder of Transformers")
    name, parts = folder.resolve().name, None
    if (folder / PEFT_CONFIG).is_file():
        if check:
            problem = "Transformers would run the base without the parts; leave it out"
            raise UserError(f"{folder}: {problem}", field="check", value=check)
        parts = PeftParts.read(folder)
        folder = parts.base
    family = read_family(folder)
    model = family.model(name, str(folder / CONFIG))
    tokenizer = read_tokenizer(folder, family, model, end)
    note_other_ids(folder, tokenizer)
    model, tensors, files = read_weights(folder, family, model, parts)
    decoder = decoder_with_weights(model, tensors)
    parity = None
    if check:
        theirs, their_tokenizer = load_original(folder)
        check_same_ids(tokenizer, encoder(their_tokenizer), NAME, str(folder), SAMPLES, special=False)
        parity = check_with_transformers(decoder, theirs, str(folder))
    for message in family.notes():
        note(f"{folder / CONFIG}: {message}")
    hashes = {path.name: sha256_of(path) for path in files}
    made: dict[str, Any] = {"imported_from": str(source), "sha256": hashes, "command": command}
    made = made if parity is None else {**made, "parity": parity.figures}
    write_model(out, decoder, tokenizer, made, files_to_keep(folder))
    return decoder, parity


def export_transformers(model: LanguageModel, out: Path, precision: str | None = None) -> ExportResult:
    """Write the folder `out` for Transformers, without any code in it.

    A model of no family (`families.matching`) becomes one for `linnet.interop.transformers`. precision: of the stored
    weights, a `StoredType`; None keeps the precision. The folder gets its name only after Transformers has read it: ids
    and texts, logits and greedy tokens must be those of the model with the stored weights (`parity`). `UserError` for a
    model with an encoder, and for any difference; then nothing is left.
    """
    optional_package("transformers", "to")
    published = published_folder(model.folder)
    own = None if published is None else published_family(published, model.decoder)
    family, messages = _family_of(model.spec) if own is None else (own, [f"of the family {own.model_type}"])
    decoder, loss = model.decoder, None
    if precision is not None and precision != str(decoder.dtype).removeprefix("torch."):
        decoder, loss = round_weights(decoder, precision)
    with atomic_directory(out) as temporary:
        write_folder(temporary, family, decoder, model.tokenizer, published, own is not None)
        write_chat_template(temporary, model.folder)
        theirs, their_tokenizer = load_original(temporary, "to", out)
        texts = [*SAMPLES, *sample_stories(STORIES)]
        check_same_ids(model.tokenizer, encoder(their_tokenizer), NAME, str(out), texts)
        found = theirs.generation_config.eos_token_id
        found = {*(found if isinstance(found, list) else [found]), their_tokenizer.eos_token_id} - {None}
        if found != set(model.tokenizer.end_ids):
            here, there = (", ".join(map(str, sorted(ids))) for ids in (model.tokenizer.end_ids, found))
            raise UserError(f"{out}: ends a text at {here} here, {there} in Transformers")
        for ids in map(model.tokenizer.encode, texts):
            ours = model.tokenizer.decode(ids)
            others = their_tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if ours != others:
                raise UserError(f"{out}: {ours!r} here, {others!r} in Transformers: expected the same text")
        parity = check_with_transformers(decoder, theirs, str(out))
    figures: dict[str, Any] = {
        "model_type": family.model_type,
        "dtype": str(decoder.dtype).removeprefix("torch."),
        **parity.figures,
    }
    messages = [*messages, str(parity)]
    if loss is not None:
        figures, messages = {**figures, **loss.figures}, [*messages, str(loss)]
    return ExportResult.of(out, decoder, out / WEIGHTS, figures=figures, messages=tuple(messages))


def _family_of(spec: ModelSpec) -> tuple[Family, list[str]]:
    """Return the family's model that equals this one, or linnet's own family, and messages about it."""
    try:
        member = match_family(spec)
    except UserError as refusal:
        from linnet.interop.transformers.model import check_decoder

        check_decoder(spec)
        return Linnet.of(spec), [str(refusal), "so its readers need `import linnet.interop.transformers` before"]
    return member, [f"of the family {member.model_type}"]


def load_original(folder: Path, field: str = "check", origin: str | Path = "") -> tuple[Any, Any]:
    """Load Transformers' model of a folder, in float32, and its tokenizer; nothing is downloaded or executed from it.

    origin: the name of the folder in `UserError`; its own name if empty.
    """
    transformers = optional_package("transformers", field)
    import linnet.interop.transformers  # noqa: F401 (registers linnet's own models)

    here = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _no_progress_bars(transformers):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **here)
            return model.eval(), transformers.AutoTokenizer.from_pretrained(folder, **here)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = first_line(error)
        raise UserError(f"{origin or folder}: Transformers cannot read it ({reason})") from error


@contextmanager
def _no_progress_bars(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    were_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_enabled:
            logging.enable_progress_bar()


def encoder(theirs: Any) -> Callable[[str], list[int]]:
    """Return a function that encodes without special tokens, whose names are text, and warnings about long texts."""
    plain = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    return lambda text: list(theirs(text, **plain)["input_ids"])


@torch.no_grad()
def check_with_transformers(decoder: Decoder, theirs: Any, origin: str) -> Agreement:
    """Raise `UserError` unless logits agree: of random tokens in one pass, then of greedy tokens one by one.

    With learned positions, as many tokens as there are positions.
    """
    ours = in_float32(decoder)
    tokens_BT, expected = random_tokens(ours), expected_of(ours)
    error = check_logits(ours(tokens_BT), theirs(tokens_BT).logits, MAX_ERROR, NAME, origin)
    prompt = len(expected.tokens) - expected.steps + 1
    rows, cache = list[torch.Tensor](), dict[str, Any]()
    with progress("comparing with Transformers", expected.steps, "tokens") as advance:
        for chunk_T in (expected.tokens[:prompt], *expected.tokens[prompt:, None]):  # the prompt, then single tokens
            out = theirs(chunk_T[None], use_cache=True, **cache)
            name = next(name for name in CACHES if name in out)
            cache = {name: out[name]}
            rows.append(out.logits[0])
            advance(1)
    agreement = compare(expected, torch.cat(rows), MAX_ERROR, NAME, origin)
    return replace(agreement, error=max(error, agreement.error))
