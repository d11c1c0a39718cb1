"""Models of ours as folders of Transformers: a Llama, Qwen 2 or 3, GPT-2 or GPT-NeoX becomes exactly that, any other
one that Transformers reads once `linnet.interop.transformers` is imported.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.inference.language_model import LanguageModel
from linnet.interop.exported import ExportResult
from linnet.interop.families.family import Family
from linnet.interop.families.folder import WEIGHTS
from linnet.interop.families.linnet import Linnet
from linnet.interop.families.member import member_of
from linnet.interop.families.written import write_published
from linnet.interop.in_transformers import NAME, check_in_transformers, encoder, original, transformers_module
from linnet.interop.parity import SAMPLES, Agreement, check_same_ids, stories
from linnet.interop.rounding import dtype_name, rounded
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

STORIES = 20
"""Of linnet's corpus, whose ids are compared beside `SAMPLES`: some 2,000 words."""


def export_transformers(model: LanguageModel, out: Path, dtype: str | None = None) -> ExportResult:
    """Make the folder `out` as Transformers keeps models, with no code in it.

    A model of no family of its own (`families.member`) is one for `linnet.interop.transformers`. dtype: of the stored
    weights, a `StoredType`; if not given, as they are. Transformers reads what was written before the folder gets its
    name: ids and texts, logits, and greedy tokens have to be those of the model with the stored weights (`parity`).
    `UserError` for a model with an encoder, and where anything differs; nothing is left then.
    """
    transformers_module("to")
    family, said = _family_of(model.spec)
    decoder, loss = model.decoder, None
    if dtype is not None and dtype != dtype_name(decoder):
        decoder, loss = rounded(decoder, dtype)
    with atomic_directory(out) as temporary:
        write_published(temporary, family, decoder, model.tokenizer)
        found = _checked(temporary, decoder, model.tokenizer, str(out))
    figures: dict[str, Any] = {"model_type": family.model_type, "dtype": dtype_name(decoder), **found.figures}
    said = [*said, str(found)]
    if loss is not None:
        figures, said = {**figures, **loss.figures}, [*said, str(loss)]
    return ExportResult.of(out, decoder, out / WEIGHTS, figures=figures, messages=tuple(said))


def _family_of(spec: ModelSpec) -> tuple[Family, list[str]]:
    """The family whose member the model is, or linnet's own, and what is to be said of it."""
    try:
        member = member_of(spec)
    except UserError as refusal:
        from linnet.interop.transformers.config import check_decoder

        check_decoder(spec)
        return Linnet.of(spec), [str(refusal), "so its readers need `import linnet.interop.transformers` before"]
    return member, [f"of the family {member.model_type}"]


def _checked(folder: Path, decoder: Decoder, tokenizer: Tokenizer, origin: str) -> Agreement:
    theirs, their_tokenizer = original(folder, "to", origin)
    texts = [*SAMPLES, *stories(STORIES)]
    check_same_ids(tokenizer, encoder(their_tokenizer), NAME, origin, texts)
    _check_same_texts(tokenizer, their_tokenizer, origin, texts)
    return check_in_transformers(decoder, theirs, origin)


def _check_same_texts(tokenizer: Tokenizer, theirs: Any, origin: str, texts: Sequence[str]) -> None:
    """`UserError` unless both print the same for the ids of each text, and end a text at the same token."""
    if theirs.eos_token_id != tokenizer.end_id:
        raise UserError(f"{origin}: ends a text at {tokenizer.end_id} here, {theirs.eos_token_id} in Transformers")
    for ids in map(tokenizer.encode, texts):
        ours, others = tokenizer.decode(ids), theirs.decode(ids, skip_special_tokens=True)
        if ours != others:
            raise UserError(f"{origin}: {ours!r} here, {others!r} in Transformers: expected the same text")
