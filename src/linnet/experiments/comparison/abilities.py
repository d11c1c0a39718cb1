"""Comparisons of models that are trained on one ability: its rows as the text, and what is measured of each model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnet.data.loader import validation_batches
from linnet.data.prepare import Row, prepare_rows
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_training import KINDS
from linnet.evaluation.abilities.contract import Ability, Question, SymbolEncoder
from linnet.evaluation.abilities.measure import TOKENS_AT_ONCE, final_answer_counts, final_answer_figures, score
from linnet.evaluation.models import model_on_data
from linnet.evaluation.tasks.scorer import StateFactory
from linnet.experiments.comparison.spec import ComparisonSpec, TextSpec, TokenizerSpec
from linnet.experiments.text import validation_stories
from linnet.model.cost import model_cost
from linnet.present.progress import progress

SEED = 0


def prepare_ability(spec: ComparisonSpec, folders: Sequence[Path], name: str) -> None:
    """A folder for each part: rows to train on, and as many held-out ones as of stories; they share no question.

    All have one tokenizer, which has seen every form.
    """
    abilities = [spec.text.ability_of(part) for part in range(1, len(folders) + 1)]
    tokenizer = _tokenizer(abilities, spec.tokenizer)
    for ability, folder in zip(abilities, folders, strict=True):
        _write(ability, spec.text.items, tokenizer, folder, name)


def _write(ability: Ability, count: int, tokenizer: Tokenizer, folder: Path, name: str) -> None:
    speech, held_out = SymbolEncoder(tokenizer), validation_stories(count)
    with progress("writing items", count + held_out, "items") as advance:

        def row(item: Any) -> Row:
            advance(1)
            written: Row = item.row(speech)
            return written

        train = map(row, ability.items(count, SEED, "train"))
        prepare_rows(train, map(row, ability.items(held_out, SEED, "validation")), folder, tokenizer, name)


SAMPLE = 2000
"""Items of text that a tokenizer is trained on."""


def _tokenizer(abilities: Sequence[Ability], wanted: TokenizerSpec) -> Tokenizer:
    """Of symbols each is a token; of text it is what the description says."""
    if abilities[0].alphabet:
        return Tokenizer.train("char", [abilities[0].alphabet])
    if wanted.kind not in KINDS:
        return Tokenizer.load(wanted.kind)
    items = [item for ability in abilities for item in ability.items(SAMPLE, SEED, "train")]
    texts = [item.prompt + item.answer for item in items if isinstance(item, Question)]
    return Tokenizer.train(wanted.kind, texts, wanted.vocab_size)


def ability_figures(text: TextSpec, part: int, model: Path, data: Path) -> dict[str, Any]:
    """What is measured beside the likelihood: whole answers against chance, bytes of state behind a row of all tokens.

    Of answers in sentences the final ones as well, whatever steps a model writes before. The state is that of one
    stream in float32, with room for the longest held-out row.
    """
    found, ability = model_on_data(model, data), text.ability_of(part)
    sequence = found.sequence
    rows = found.data.spans(sequence, found.context_length)
    longest = int(rows.lengths_N.max())
    batches = validation_batches(sequence, rows, max(1, TOKENS_AT_ONCE // longest))
    whole = score(found.decoder, batches, found.calibration())
    asked = list(ability.items(len(rows), SEED, "validation"))
    streams = StateFactory(found.decoder, found.calibration())
    final = final_answer_counts(streams, found.data.tokenizer, ability, asked, whole)
    measured = whole.to_dict(ability.chance) | final_answer_figures(ability, final)
    return {"ability": measured, "state_bytes": model_cost(found.decoder.spec).state_bytes(longest)}
