"""The KV-cache and the G-cache, on and off: the same text wherever it must be, and the work that each of them saves."""

import pytest
import torch
from small_models import EXAMPLES, UNLIKE, small_decoder, speaker

from linnet.core.errors import UserError
from linnet.inference.decode import decode
from linnet.inference.prefill import new_state
from linnet.inference.readers import Caches
from linnet.inference.sampling import Sampling
from linnet.layers.cache_policy import RecalibratingCache
from linnet.layers.contract import MixerSpec
from linnet.layers.mixers.plga import PlgaState
from linnet.layers.mixers.plga.files import save_operators
from linnet.layers.mixers.plga.operator import PowerLawOperator
from linnet.model.decoder import Decoder

GREEDY = Sampling(temperature=0)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [8]]
LEARNED = next(mixer for mixer in EXAMPLES if mixer.kind == "plga")
CAUSAL = next(mixer for mixer in EXAMPLES if mixer.kind == "plga" and mixer.density.scope == "prefix")
every_mixer = pytest.mark.parametrize("mixer", UNLIKE)


def rows(
    decoder: Decoder, caches: Caches, prompts: list[list[int]] = PROMPTS, count: int = 8
) -> list[list[int | None]]:
    return [list(row) for row in zip(*decode(decoder, prompts, count, GREEDY, caches=caches), strict=True)]


@every_mixer
def test_reading_all_again_gives_the_same_tokens_in_a_padded_batch(mixer: MixerSpec):
    decoder = small_decoder(mixer)
    assert rows(decoder, Caches(kv=False)) == rows(decoder, Caches())


def test_recalibration_on_the_kept_prompt_gives_the_same_operator():
    decoder = small_decoder(LEARNED)
    assert rows(decoder, Caches(calibration=False)) == rows(decoder, Caches())


def test_without_caches_the_operator_is_that_of_all_the_text_so_far():
    decoder, prompt = small_decoder(LEARNED), PROMPTS[1]
    text = list(prompt)
    with torch.no_grad():
        for _ in range(8):
            text.append(int(decoder(torch.tensor([text]))[0, -1].argmax()))
    assert rows(decoder, Caches(False, False), [prompt]) == [text[len(prompt) :]]
    assert rows(decoder, Caches(), [prompt]) != [text[len(prompt) :]], "the model is too tame to tell"


def test_without_caches_a_row_of_a_padded_batch_is_what_it_is_alone():
    decoder, caches = small_decoder(LEARNED), Caches(False, False)
    assert rows(decoder, caches) == [rows(decoder, caches, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("caches", "nets", "deduced"),
    [(Caches(), 1, 1), (Caches(kv=False), 1, 1), (Caches(calibration=False), 1, 6), (Caches(False, False), 6, 6)],
    ids=str,
)
def test_the_work_behind_the_operator_that_each_setting_does_for_six_tokens(caches: Caches, nets: int, deduced: int):
    decoder, calls = small_decoder(LEARNED), {"net": 0, "operator": 0}
    for module in decoder.modules():
        if isinstance(module, PowerLawOperator):
            module.metric_net.register_forward_hook(lambda *_: calls.update(net=calls["net"] + 1))
            module.register_forward_hook(lambda *_: calls.update(operator=calls["operator"] + 1))
    rows(decoder, caches, count=6)
    layers = decoder.spec.layers
    assert calls == {"net": nets * layers, "operator": deduced * layers}


def test_without_the_g_cache_the_state_has_a_and_no_operator():
    decoder = small_decoder(LEARNED)
    state = new_state(decoder, PROMPTS, 4, "recalibrate")
    list(decode(decoder, PROMPTS, 4, GREEDY, state=state))
    for layer in state.fork().layers:
        assert isinstance(layer, PlgaState)
        assert layer.operator is None
        assert layer.a is not None
        assert layer.recalibrate and layer.cache_policy == RecalibratingCache()


def test_a_state_is_refused_without_the_kv_cache():
    decoder = small_decoder(LEARNED)
    with pytest.raises(ValueError, match="none can be given"):
        decode(decoder, PROMPTS, 4, GREEDY, state=new_state(decoder, PROMPTS, 4), caches=Caches(kv=False))


@pytest.mark.parametrize("mixer", [m for m in EXAMPLES if getattr(m, "operator", None) != "learned"], ids=str)
def test_recalibration_is_refused_for_models_without_calibration(mixer: MixerSpec):
    with pytest.raises(UserError, match="cache_policy: recalibrate: the model has no plga layer that calibrates"):
        decode(small_decoder(mixer), PROMPTS, 4, GREEDY, caches=Caches(calibration=False))


@every_mixer
@pytest.mark.parametrize("calibration", [True, False])
@torch.no_grad()
def test_without_a_kv_cache_only_the_bytes_of_operators_are_kept(mixer: MixerSpec, calibration: bool):
    decoder = small_decoder(mixer)
    state = decoder.initial_state(1, 3)
    decoder(torch.tensor([[1, 2]]), state)
    kept = [layer.operator for layer in state.layers if isinstance(layer, PlgaState) and layer.operator is not None]
    expected = sum(operator.nbytes for operator in kept) if calibration else 0
    assert Caches(kv=False, calibration=calibration).calibrated_bytes(decoder) == expected


def test_other_operators_change_the_text_and_the_models_own_do_not(tmp_path):
    model = speaker(CAUSAL)
    with torch.no_grad():
        state = model.decoder.initial_state(1, 9)
        model.decoder(torch.tensor([model.prompt_tokens("Once")]), state)
    path = tmp_path / "G.safetensors"
    save_operators([{"G": layer.operator[0]} for layer in state.layers], path)
    own = model.generate("Once", 20, temperature=0.0)
    assert model.with_calibration(str(path)).generate("Once", 20, temperature=0.0) == own
    assert model.with_calibration("identity").generate("Once", 20, temperature=0.0) != own
    random = [model.with_calibration("random", seed).generate("Once", 20, temperature=0.0) for seed in (1, 1, 2)]
    assert random[0] == random[1] != random[2]
    assert model.generate("Once", 20, temperature=0.0) == own


@pytest.mark.parametrize("policy", ["full", "recalibrate"])
def test_a_state_continues_with_its_own_cache_policy(policy: str):
    decoder = small_decoder(LEARNED)
    state, other = (new_state(decoder, [[1, 2]], 9, policy) for _ in range(2))
    together = list(decode(decoder, [[1, 2]], 4, GREEDY, state=other))
    for prompt, expected in (([1, 2], together[:2]), ([together[1][0]], together[2:])):
        assert list(decode(decoder, [prompt], 2, GREEDY, state=state)) == expected
    assert {layer.cache_policy.name for layer in state.layers} == {policy}
