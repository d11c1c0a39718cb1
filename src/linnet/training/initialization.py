"""The initial weights of a run (random, with word vectors, or from another model) and the files that determine them."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError
from linnet.core.spec import flatten
from linnet.data.prepare_conversations import ADDED_TOKENS
from linnet.data.token_data import TokenData
from linnet.data.word_vectors import token_vectors
from linnet.model.decoder import Decoder, meta_decoder
from linnet.model.folder import CONFIG, TOKENIZER, find_model_folder, model_folder, weights_file
from linnet.model.initialize import without_calibration_file
from linnet.model.spec import ModelSpec, calibration_file
from linnet.model.store import read_weights, shapes_of
from linnet.training.distributed import Processes
from linnet.training.rewards import reward_file
from linnet.training.spec import RunSpec

CALIBRATION, START_FROM, EMBEDDING_FROM = "model.initialization.calibration", "start_from", "training.embedding_from"
TEACHER, REWARD = "training.distillation.teacher", "training.grpo.reward"
REPLAY = "training.replay.data"
"""The fields that may name a file, or a folder with one; they are compared by content."""

SHOWN_DIFFERENCES = 3


def initial_decoder(run: RunSpec, data: TokenData) -> Decoder:
    """A decoder with the weights that a run begins with; `UserError` if another model's weights do not fit."""
    if run.start_from is None:
        return _random_decoder(run, run.model)
    folder = model_folder(run.start_from)
    added = data.added_tokens(folder / TOKENIZER)
    decoder, own = uninitialized_decoder(run), dict[str, torch.Tensor]()
    stored = decoder
    if added:
        stored = meta_decoder(run.model.replace(vocab_size=ModelSpec.load(folder / CONFIG).vocab_size))
    if decoder.value is not None and not ModelSpec.load(folder / CONFIG).head.value:
        own["value"] = decoder.value.detach()  # a reward model that begins with a model without a value
    expected = {name: shape for name, shape in shapes_of(stored).items() if name not in own}
    try:
        weights = read_weights(folder, expected, "the run's model")
    except UserError as error:
        # Name the first fields in which the two descriptions differ.
        descriptions = (ModelSpec.load(folder / CONFIG), run.model)
        there, here = (
            flatten(spec.model_dump(mode="json", exclude={"name", "initialization"})) for spec in descriptions
        )
        fields = [field for field in dict.fromkeys([*there, *here]) if there.get(field) != here.get(field)]
        differences = [f"model.{field}: {here.get(field)}, not the {there.get(field)} of {folder}" for field in fields]
        raise UserError("; ".join([*differences[:SHOWN_DIFFERENCES], str(error)])) from None
    if added:
        weights = with_mean_rows(weights, run.model, data.tokenizer.vocab_size - len(added))
    decoder.load_state_dict({**weights, **own})
    return decoder


def vocabulary_tensors(spec: ModelSpec) -> list[str]:
    """The names of the tensors with a row for each token: the embedding, and the head that is not tied to it."""
    shapes, larger = (shapes_of(meta_decoder(each)) for each in (spec, spec.replace(vocab_size=spec.vocab_size + 1)))
    return [name for name, shape in shapes.items() if shape != larger[name]]


def grown_tensors(run: RunSpec, data: TokenData) -> list[str]:
    """The names of the tensors that got rows for control tokens that conversations need; none if none were added."""
    return vocabulary_tensors(run.model) if ADDED_TOKENS in data.manifest.settings else []


def with_mean_rows(weights: Mapping[str, Tensor], spec: ModelSpec, known: int) -> dict[str, Tensor]:
    """The weights for the vocabulary of `spec`, of which the tokens from `known` on are new.

    Their rows are the mean of those of the known tokens, so that each begins as likely as the mean token (Hewitt,
    https://nlp.stanford.edu/~johnhew/vocab-expansion.html).
    """
    grown = dict(weights)
    for name in vocabulary_tensors(spec):
        known_rows = weights[name][:known]
        mean = known_rows.double().mean(0, keepdim=True).to(known_rows.dtype)
        grown[name] = torch.cat([known_rows, mean.expand(spec.vocab_size - known, *mean.shape[1:])])
    return grown


def uninitialized_decoder(run: RunSpec) -> Decoder:
    """A decoder for a run whose weights are in a checkpoint; its initial files are not needed."""
    decoder = _random_decoder(run, without_calibration_file(run.model))
    decoder.spec = run.model
    return decoder


def _random_decoder(run: RunSpec, model: ModelSpec) -> Decoder:
    """A decoder with weights from the run's seed; the caller's random numbers are not affected."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.training.seed)
        return Decoder(model)


@torch.no_grad()
def load_word_vectors(decoder: Decoder, run: RunSpec, data: TokenData, processes: Processes) -> int | None:
    """Replace the embeddings of the tokens that are in the run's file of word vectors; returns their number.

    The vectors are scaled by one number, so that their root mean square is that of the embeddings that they replace.
    None: the run names no file. Rank 0 reads it for all processes. `UserError` as from `token_vectors`.
    """
    path = run.training.embedding_from
    if path is None:
        return None
    table = decoder.embedding.tokens
    assert isinstance(table, nn.Embedding), "weights that are trained"
    found = processes.broadcast_from_rank0(lambda: token_vectors(path, data.tokenizer, table.embedding_dim))
    weight_VE = table.weight
    tokens_F = torch.from_numpy(found.tokens_F).to(weight_VE.device)
    vectors_FE = torch.from_numpy(found.vectors_FE).to(weight_VE.device, torch.float64)
    scale = weight_VE[tokens_F].double().square().mean().sqrt() / vectors_FE.square().mean().sqrt()
    weight_VE[tokens_F] = (scale * vectors_FE).to(weight_VE.dtype)
    return len(found.tokens_F)


def initial_files(
    calibration: str,
    start_from: str | Path | None,
    embedding_from: str | Path | None = None,
    teacher: str | Path | None = None,
    reward: str | None = None,
    replay: str | Path | None = None,
) -> dict[str, Path]:
    """By field, the files that determine the first weights of a run, its teacher, its reward and the text that it
    replays; those that do not exist are left out.
    """
    start, taught = (None if each is None else find_model_folder(Path(each)) for each in (start_from, teacher))
    vectors = None if embedding_from is None else Path(embedding_from)
    found = {
        CALIBRATION: calibration_file(calibration), START_FROM: start and weights_file(start), EMBEDDING_FROM: vectors,
        TEACHER: taught and weights_file(taught), REWARD: reward_file(reward),
        REPLAY: None if replay is None else Path(replay) / MANIFEST,
    }  # fmt: skip
    return {field: file for field, file in found.items() if file is not None and file.is_file()}
