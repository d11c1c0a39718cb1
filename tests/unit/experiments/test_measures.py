"""Measuring: the story is what `generate` gives, the speed a median of runs in turn."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.experiments import measures as measure
from linnet.experiments.demo import check_prompt
from linnet.experiments.measures import InstructionMeasure, MemoryFigures, decode_speeds, write_text
from linnet.inference.language_model import LanguageModel
from linnet.inference.readers import CachedReader
from linnet.inference.sampling import Sampling
from linnet.layers.mixers.ted import BankCache
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

CONTEXT = 48


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A random model over bytes."""
    tokenizer = Tokenizer.train("bytes", [])
    block = {"mixer": {"kind": "ted"}, "feed_forward": {"kind": "glu", "hidden": 24}}
    description = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": CONTEXT, "blocks": [block]}
    torch.manual_seed(0)
    return LanguageModel(Decoder(ModelSpec.parse({**description, "head": {"tied": False}}, "test")), tokenizer)


def test_a_story_is_what_the_model_generates_with_that_seed(model: LanguageModel):
    story = write_text(model, "Once", Sampling(0.7, top_p=0.9, seed=4))
    assert story.prompt == "Once"
    assert story.text == model.generate("Once", CONTEXT - 5, temperature=0.7, top_p=0.9, seed=4)


@pytest.mark.parametrize(("end_bias", "complete"), [(50.0, True), (-50.0, False)])
def test_a_story_is_complete_when_the_model_ends_it(end_bias: float, complete: bool, model: LanguageModel):
    decoder = model.decoder
    biased = decoder.head.bias is not None
    assert not biased
    decoder.head.bias = torch.nn.Parameter(torch.zeros(decoder.spec.vocab_size))
    with torch.no_grad():
        decoder.head.bias[model.tokenizer.end_id] = end_bias
    try:
        story = write_text(model, "Once", Sampling(seed=0))
    finally:
        decoder.head.bias = None
    assert story.complete is complete
    assert (story.text == "") is complete


def test_speeds_are_medians_and_the_models_take_turns(monkeypatch: pytest.MonkeyPatch):
    models = [SimpleNamespace(decoder="a"), SimpleNamespace(decoder="b")]
    measured = {"a": [0.0, 0.0, 5.0, 1.0, 3.0, 2.0, 4.0], "b": [0.0, 0.0, 50.0, 10.0, 30.0, 20.0, 40.0]}
    asked: list[object] = []

    def fake(model: SimpleNamespace, prompt: str, sampling: Sampling, tokens: int) -> float:
        asked.append((model.decoder, tokens))
        return measured[model.decoder].pop(0)

    monkeypatch.setattr(measure, "_tokens_per_s", fake)
    monkeypatch.setattr(measure, "finish_captured_steps", asked.append)
    assert decode_speeds(models, "Once", Sampling(seed=0)) == [3.0, 30.0]
    warm_up = [step for name in "ab" for step in ((name, measure.WARM_UP_TOKENS), name, (name, measure.WARM_UP_TOKENS))]
    assert asked == warm_up + [("a", measure.DECODE_TOKENS), ("b", measure.DECODE_TOKENS)] * measure.DECODE_RUNS


def test_a_speed_counts_passes_over_one_token_and_not_the_prompt(model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    passes, logits, logits_behind = [], CachedReader.logits, CachedReader.logits_behind

    def counted(reader: CachedReader, tokens: torch.Tensor) -> torch.Tensor:
        passes.extend([tokens.shape[1]] if tokens.shape[1] > 1 else [])
        return logits(reader, tokens)

    def counted_behind(reader: CachedReader, tokens: Sequence[int]) -> torch.Tensor:
        passes.append(1)
        return logits_behind(reader, tokens)

    monkeypatch.setattr(CachedReader, "logits", counted)
    monkeypatch.setattr(CachedReader, "logits_behind", counted_behind)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: sum(0.5 if length == 1 else 100.0 for length in passes))
    assert measure._tokens_per_s(model, "Once", Sampling(seed=0), 8) == 2.0
    assert passes == [5] + [1] * 8


def test_a_prompt_leaves_half_of_the_context_to_the_story(model: LanguageModel):
    check_prompt("x" * (CONTEXT // 2), model.tokenizer, CONTEXT)
    with pytest.raises(UserError) as refused:
        check_prompt("x" * 50, model.tokenizer, CONTEXT)
    assert str(refused.value) == f"prompt: '{'x' * 40}…': 50 tokens; expected at most {CONTEXT // 2}"


def test_a_bank_needs_hardly_more_memory_for_a_long_text():
    """Policies are those of the model's own layers; attention brings none."""
    attention, ted = (ModelSpec.load(name) for name in ("tiny-attention", "tiny-ted"))
    assert MemoryFigures.from_spec(attention).policy_state_bytes == {}
    figures = MemoryFigures.from_spec(ted, (1024, 65536))
    (sizes,) = figures.policy_state_bytes.values()
    assert sizes[65536] < 1.3 * sizes[1024] and figures.state_bytes[65536] > 60 * figures.state_bytes[1024]
    assert sizes[1024] == Decoder(ted).initial_state(1, 1024, BankCache(1024)).nbytes
    assert MemoryFigures.from_dict(figures.to_dict()) == figures
    old = {name: value for name, value in figures.to_dict().items() if name != "policy_state_bytes"}
    assert MemoryFigures.from_dict(old).policy_state_bytes == {}


def test_instructions_may_be_of_some_types():
    asked = InstructionMeasure.parse({"items": 2, "types": ["order", "steps"]}, "test").load()
    assert sorted(Counter(prompt.type for prompt in asked).items()) == [("order", 6), ("steps", 6)]
    with pytest.raises(UserError, match="types: did you mean order"):
        InstructionMeasure.parse({"types": ["ordr"]}, "test")
    with pytest.raises(UserError, match="types: order: are of the stories; leave out files"):
        InstructionMeasure.parse({"types": ["order"], "files": ["p.jsonl"]}, "test")
