"""Comparisons of models that are trained on one ability: its rows as the text, and what is measured of each model."""

from pathlib import Path
from typing import Any

from linnet.data.labels import LabelledRow, prepare_labels, rows_of
from linnet.data.pairs import validation_pairs
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_training import KINDS
from linnet.evaluation.abilities.ability import Ability
from linnet.evaluation.abilities.item import Question, Speech
from linnet.evaluation.abilities.measure import TOKENS_AT_ONCE, score
from linnet.evaluation.folder import model_on_data
from linnet.experiments.comparison.spec import ComparisonSpec, TokenizerSpec
from linnet.experiments.text import validation_stories
from linnet.model.cost import model_cost
from linnet.present.progress import progress

SEED = 0


def prepare_ability(spec: ComparisonSpec, folder: Path, name: str) -> None:
    """Rows to train on, and as many held-out ones as of stories; they share no question."""
    ability, count = spec.text.ability, spec.text.items
    assert ability is not None
    tokenizer = _tokenizer(ability, spec.tokenizer)
    speech, held_out = Speech(tokenizer), validation_stories(count)
    with progress("writing items", count + held_out, "items") as advance:

        def row(item: Any) -> LabelledRow:
            advance(1)
            written: LabelledRow = item.row(speech)
            return written

        train = map(row, ability.items(count, SEED, "train"))
        prepare_labels(train, map(row, ability.items(held_out, SEED, "validation")), folder, tokenizer, name)


SAMPLE = 2000
"""Items of text that a tokenizer is trained on."""


def _tokenizer(ability: Ability, wanted: TokenizerSpec) -> Tokenizer:
    """Of symbols each is a token; of text it is what the description says."""
    if ability.alphabet:
        return Tokenizer.train("char", [ability.alphabet])
    if wanted.kind not in KINDS:
        return Tokenizer.load(wanted.kind)
    items = ability.items(SAMPLE, SEED, "train")
    texts = [item.prompt + item.answer for item in items if isinstance(item, Question)]
    return Tokenizer.train(wanted.kind, texts, wanted.vocab_size)


def ability_figures(ability: Ability, model: Path, data: Path) -> dict[str, Any]:
    """What is measured beside the likelihood: whole answers against chance, bytes of state behind a row of all tokens.

    The state is that of one stream in float32, with room for the longest held-out row.
    """
    found = model_on_data(model, data)
    rows = rows_of(found.data, "validation")
    longest = int((rows.input_lengths + rows.target_lengths).max())
    batches = validation_pairs(rows, max(1, TOKENS_AT_ONCE // longest))
    measured = score(found.decoder, batches, found.calibration()).figures(ability.chance)
    return {"ability": measured, "state_bytes": model_cost(found.decoder.spec).state_bytes(longest)}
