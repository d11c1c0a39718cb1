"""Beam search is that of Transformers on the same weights: T5, and a Llama that was exported."""

from typing import Any

import pytest
import torch

from linnet.data.tokenizer import Tokenizer
from linnet.inference.beams import BeamSearch, Hypothesis, beam_search
from linnet.inference.language_model import LanguageModel
from linnet.inference.prefill import EMPTY, PrefillContext, prefill_inputs
from linnet.inference.sampling import Sampling
from linnet.interop.transformers_convert import export_transformers
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

pytest.importorskip("transformers")

import transformers

from same_weights.t5 import Shape, twins

MOST = 12
SEARCHES = [
    {"beams": 1},
    {"beams": 3},
    {"beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"beams": 4, "length_penalty": -1.0, "early_stopping": True},
    {"beams": 3, "length_penalty": 0.0, "early_stopping": "never"},
    {"beams": 5, "early_stopping": True},
    {"beams": 3, "repetition_penalty": 1.7},
]
every_search = pytest.mark.parametrize("search", SEARCHES, ids=lambda search: "-".join(map(str, search.values())))


def assert_same(reference: Any, given: dict[str, Any], found: list[Hypothesis], ends: list[int], search: Any) -> None:
    """All beams of both, tokens and scores."""
    settings = {"num_beams" if name == "beams" else name: value for name, value in search.items()}
    theirs = reference.generate(
        **given,
        **settings,
        max_new_tokens=MOST,
        eos_token_id=ends or -1,
        pad_token_id=0,
        do_sample=False,
        num_return_sequences=search["beams"],
        output_scores=True,
        return_dict_in_generate=True,
    )
    start = 1 if reference.config.is_encoder_decoder else given["input_ids"].shape[1]
    rows = theirs.sequences[:, start:].tolist()
    assert len(found) == len(rows)
    for ours, row in zip(found, rows, strict=True):
        length = next((place for place, token in enumerate(row) if token in ends), MOST)
        assert ours.tokens == row[:length]
        assert ours.finish_reason == ("stop" if length < MOST else "length")
    if search["beams"] > 1:
        torch.testing.assert_close(
            torch.tensor([one.score for one in found]), theirs.sequences_scores, atol=1e-4, rtol=1e-4
        )


def searched(
    decoder: Decoder, prompt: list[int], ends: list[int], search: Any, context: PrefillContext = EMPTY
) -> list[Hypothesis]:
    fields = {name: value for name, value in search.items() if name != "repetition_penalty"}
    sampling = Sampling(0, repetition_penalty=search.get("repetition_penalty", 1.0))
    return beam_search(decoder, prompt, MOST, BeamSearch(**fields), ends, context=context, sampling=sampling)


@torch.no_grad()
@every_search
def test_an_encoder_decoder_finds_the_texts_of_t5(search: dict[str, Any]):
    pair = twins(Shape(12, width=24, heads=3, head_dim=6, hidden=32, layers=1, buckets=8, furthest=12, context=64))
    torch.manual_seed(2)
    stopped = 0
    for length in (9, 5, 7):
        row = torch.randint(2, 12, (length,)).tolist()
        first = prefill_inputs(pair.ours, [[0]], [row])
        found = searched(pair.ours, first.prompts[0], [1, 4], search, first.context(pair.ours))
        assert_same(pair.theirs, {"input_ids": torch.tensor([row])}, found, [1, 4], search)
        stopped += sum(one.finish_reason == "stop" for one in found)
    assert stopped > 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Any]:
    """A small Llama and the model that Transformers reads from its export."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.train("bytes", [])
    block = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}
    fields = {"vocab_size": tokenizer.vocab_size, "d_model": 16, "context_length": 64, "blocks": [block]}
    decoder = Decoder(ModelSpec.parse({"name": "small", **fields, "head": {"norm": {}}}, "test"))
    for parameter in decoder.parameters():
        parameter.data.add_(0.4 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("llama") / "exported"
    export_transformers(LanguageModel(decoder, tokenizer), folder)
    return decoder, transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@torch.no_grad()
@every_search
def test_an_exported_llama_finds_the_texts_that_it_finds_in_transformers(llama, search: dict[str, Any]):
    decoder, theirs = llama
    prompt = [5, 17, 90, 5]
    likely = decoder(torch.tensor([prompt]))[0, -1].topk(6).indices.tolist()
    for ends in ([], likely[2:3], likely[3:6]):  # tokens with which some beam ends soon
        found = searched(decoder, prompt, ends, search)
        assert_same(theirs, {"input_ids": torch.tensor([prompt])}, found, ends, search)


@torch.no_grad()
def test_each_rule_for_the_end_of_a_search_is_theirs(llama):
    decoder, theirs = llama
    prompt, found = [30, 194, 131, 23], {}
    ends = decoder(torch.tensor([prompt]))[0, -1].topk(2).indices.tolist()[1:]
    for early_stopping in (True, False, "never"):
        search = {"beams": 3, "early_stopping": early_stopping}
        found[early_stopping] = searched(decoder, prompt, ends, search)
        assert_same(theirs, {"input_ids": torch.tensor([prompt])}, found[early_stopping], ends, search)
    assert found[True] != found[False] != found["never"]
