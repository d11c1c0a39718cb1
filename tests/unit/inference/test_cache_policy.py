"""How TED layers keep the past is the caller's choice: for all alike, per layer, in generation, and on disk."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import small_decoder, small_spec, speaker
from torch import Tensor

from linnet.core.errors import UserError
from linnet.inference.cache_policy import (
    CachePolicies,
    LayerSize,
    SublayerContents,
    cache_policy_state,
    layer_cache_policies,
    layer_sizes,
    observe,
)
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.inference.state import load_state, save_state
from linnet.layers.cache_policy import FULL, CachePolicy
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.attention import AttentionSpec
from linnet.layers.mixers.rglru import RglruSpec
from linnet.layers.mixers.ted import BankCache, EvictionCache, TedSpec
from linnet.model.decoder import Decoder
from linnet.model.state import DecoderState

TED, POLICY = TedSpec(heads=2), EvictionCache(top_k=3, threshold=1e-3)
CONTEXTS: dict[str, CachePolicies] = {
    "policy": POLICY,
    "bank": BankCache(64),
    "per layer": [POLICY, BankCache(128)],
}
contexts = pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
GREEDY = Sampling(temperature=0.0)


def mixed_decoder() -> Decoder:
    spec = small_spec(TED)
    other = spec.blocks[0].model_copy(update={"mixer": AttentionSpec(heads=2), "repeat": 1})
    return Decoder(spec.replace(blocks=[spec.blocks[0], other])).double()


def policies_of(state: DecoderState) -> list[CachePolicy]:
    return [layer.cache_policy for layer in state.layers]


def run(decoder: Decoder, state: DecoderState, tokens_BT: Tensor, padding: tuple[int, ...] | None = None) -> Tensor:
    with torch.no_grad():
        return decoder(tokens_BT, state, padding=padding)


@contexts
def test_a_saved_state_continues_exactly(context: CachePolicies, tmp_path: Path):
    decoder, path = small_decoder(TED), tmp_path / "state.safetensors"
    state = cache_policy_state(decoder, 2, 40, context)
    run(decoder, state, torch.arange(20).reshape(2, 10), (0, 4))
    save_state(state, path)
    loaded = load_state(decoder, path)
    assert policies_of(loaded) == policies_of(state) and loaded.nbytes == state.nbytes
    more = torch.tensor([[3, 4, 5], [6, 7, 8]])
    torch.testing.assert_close(run(decoder, loaded, more), run(decoder, state, more), rtol=0, atol=0)


def test_a_file_whose_tensors_do_not_fit_is_refused(tmp_path: Path):
    decoder, path = small_decoder(TED), tmp_path / "state.safetensors"
    state = cache_policy_state(decoder, 1, 40, POLICY)
    run(decoder, state, torch.arange(10)[None])
    save_state(state, path)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = {"contexts": file.metadata()["contexts"]}  # without the checksum
    save_file({**tensors, "layer.1.entries": tensors["layer.1.entries"][:, :1]}, path, metadata)
    with pytest.raises(UserError, match=re.escape(f"{path}: tensor layer.1.")):
        load_state(decoder, path)
    save_file(tensors, path, {"contexts": json.dumps([{"kind": "melted"}] * 2)})
    with pytest.raises(UserError, match=re.escape(f"{path}: metadata contexts")):
        load_state(decoder, path)
    save_file(tensors, path, {"contexts": json.dumps([{"kind": "full"}])})
    with pytest.raises(UserError, match=re.escape(f"{path}: cache_policy: 1 of them")):
        load_state(decoder, path)


def test_only_ted_layers_have_a_choice():
    decoder = mixed_decoder()
    state = cache_policy_state(decoder, 1, 8, POLICY)
    assert policies_of(state) == [POLICY, POLICY, FULL]
    for wrong, words in (([POLICY], "1 of them"), ([FULL, FULL, POLICY], "layer 2: .* the layer is attention")):
        with pytest.raises(UserError, match=words):
            cache_policy_state(decoder, 1, 8, wrong)
    with pytest.raises(UserError, match=r"no layer of the model \(attention\) has it"):
        cache_policy_state(small_decoder(AttentionSpec(heads=2)), 1, 8, POLICY)


def test_a_model_generates_the_same_with_a_bank_and_with_a_policy_that_keeps_all():
    model = speaker(TED)
    full = model.generate("Once", max_tokens=30, temperature=0.0)
    assert full == model.generate("Once", max_tokens=30, temperature=0.0, cache_policy=EvictionCache(0, -1.0))
    assert full == model.generate("Once", max_tokens=30, temperature=0.0, cache_policy=BankCache())
    assert full != model.generate("Once", max_tokens=30, temperature=0.0, cache_policy=EvictionCache(1))


def test_a_batch_with_a_policy_gives_what_each_prompt_gives_alone():
    model, prompts = speaker(TED), ["Once upon a time", "x", "The end"]
    alone = [model.generate(prompt, max_tokens=12, temperature=0.0, cache_policy=POLICY) for prompt in prompts]
    assert model.generate(prompts, max_tokens=12, temperature=0.0, cache_policy=POLICY) == alone


def test_the_figures_tell_the_bytes_that_are_really_held():
    stream = speaker(TED).stream("Once upon a time", 20, GREEDY, cache_policy=POLICY)
    list(stream)
    assert stream.state is not None and stream.figures.state_bytes == stream.state.nbytes
    per_token = 8 * (16 + 2 + 2 + 1)
    assert stream.figures.state_bytes == 2 * (3 * per_token + 2 * 8)


def test_policies_are_refused_without_the_kv_cache():
    with pytest.raises(UserError, match="kv_cache: False: nothing is kept"):
        speaker(TED).stream("Once", 4, GREEDY, caches=Caches(kv=False), cache_policy=POLICY)


def test_sizes_are_those_of_ted_layers_now_and_on_average():
    decoder, tokens_BT = mixed_decoder(), torch.arange(12)[None]
    state = cache_policy_state(decoder, 1, 12, [EvictionCache(3, -1.0), FULL, FULL])
    assert layer_sizes(state) == [LayerSize(0, EvictionCache(3, -1.0), 0, 0.0), LayerSize(1, FULL, 0, 0.0)]
    run(decoder, state, tokens_BT)
    kept = LayerSize(0, EvictionCache(3, -1.0), 3, (1 + 2 + 10 * 3) / 12)
    assert layer_sizes(state) == [kept, LayerSize(1, FULL, 12, 6.5)]


@contexts
def test_a_row_behind_padding_has_the_average_that_it_has_alone(context: CachePolicies):
    decoder, tokens_BT = small_decoder(TED), torch.arange(20).reshape(2, 10)
    together = cache_policy_state(decoder, 2, 10, context)
    run(decoder, together, tokens_BT, (0, 4))
    alone = cache_policy_state(decoder, 1, 10, context)
    run(decoder, alone, tokens_BT[1:, 4:])
    assert [layer.mean_size for layer in layer_sizes(together, 1)] == [layer.mean_size for layer in layer_sizes(alone)]
    assert layer_sizes(together, 0) != layer_sizes(together, 1)


@pytest.mark.parametrize("wrong", [None, "bang", BankCache, [FULL, None]])
def test_what_is_no_context_is_refused(wrong: object):
    with pytest.raises(UserError, match=r"cache_policy: .*: expected"):
        cache_policy_state(small_decoder(TED), 1, 8, wrong)  # type: ignore[arg-type]


def test_a_stream_longer_than_any_memory():
    with pytest.raises(UserError, match="no memory for the state"):
        speaker(TED).generate("Once", max_tokens=10**30)
    state = cache_policy_state(small_decoder(TED), 1, 10**30, BankCache())
    assert state.nbytes < 200_000


def test_policies_as_text():
    decoder, keeps_all = mixed_decoder(), EvictionCache(0, -1.0)
    for text, expected in (
        ("bank", [BankCache(), BankCache(), FULL]),
        ("top_k=3,threshold=1e-3", [POLICY, POLICY, FULL]),
        ("eviction:top_k=3,threshold=1e-3/bank:length=7", [POLICY, BankCache(7), FULL]),
        ("eviction", [EvictionCache(), EvictionCache(), FULL]),
        ("min_tokens_to_keep=1", [keeps_all, keeps_all, FULL]),
        ("full", [FULL] * 3),
    ):
        assert layer_cache_policies(decoder, text) == expected
    for wrong, words in (
        ("bank/bank/bank", "3 policies; expected one, or 2"),
        ("top_k=many", "top_k: 'many': expected a whole number"),
        ("top_k=-3", "at least 0"),
        ("top_k=3,,", "expected full"),
        ("length=0", "expected 1 to"),
        ("recalibrate", "no layer of the model"),
    ):
        with pytest.raises(UserError, match=f"cache_policy: {wrong}: .*{words}"):
            layer_cache_policies(decoder, wrong)


@torch.no_grad()
def observed(mixer: MixerSpec, tokens: int, cache_policy: CachePolicies = FULL) -> list[SublayerContents]:
    decoder = small_decoder(mixer)
    state = cache_policy_state(decoder, 1, 16, cache_policy)
    decoder(torch.arange(tokens)[None], state)
    held = observe(state)
    assert sum(one.contents.nbytes for one in held) == state.nbytes
    assert sum(one.contents.held_nbytes for one in held) == state.held_nbytes(tokens)
    assert [(one.layer, one.sublayer) for one in held] == [(0, "mixer"), (1, "mixer")]
    return held


def test_each_kind_of_state_tells_the_ages_of_its_tokens():
    window = observed(AttentionSpec(heads=2, window=3, sink_tokens=1), 7)[1].contents
    assert window.ages == (6, 2, 1, 0) and window.entries == 4 and window.relevance is None
    assert observed(AttentionSpec(heads=2), 3)[0].contents.ages == (2, 1, 0)
    sums = observed(RglruSpec(heads=2), 7)[0].contents
    assert sums.ages == () and sums.entries == 1 and sums.nbytes == sums.held_nbytes


def test_a_ted_layer_tells_what_is_left_of_its_tokens():
    every, some = (observed(TED, 9, policy)[0] for policy in (FULL, POLICY))
    assert every.contents.ages == tuple(range(8, -1, -1)) and some.cache_policy == POLICY
    left = dict(zip(every.contents.ages, every.contents.relevance or (), strict=True))
    assert some.contents.entries == 3 and some.contents.relevance is not None
    for age, relevance in zip(some.contents.ages, some.contents.relevance, strict=True):
        assert relevance == pytest.approx(left[age]) and relevance > POLICY.threshold
    bank = observed(TED, 9, BankCache(64))[0].contents
    near = len(bank.ages)
    assert 0 < near <= 9 and bank.ages == tuple(range(near - 1, -1, -1)) and bank.entries > near
