"""The model of Transformers says what ours says, for every kind that the registry knows."""

import copy

import pytest
import torch
from linnet_models import KINDS, VOCABULARY, few_fast, greedy, model_of, settles, spec_of, tokens
from transformers import AutoModelForCausalLM, DynamicCache

from linnet.core.errors import UserError
from linnet.data.loader import Batch
from linnet.interop.transformers import LinnetConfig, LinnetForCausalLM
from linnet.model.decoder import Decoder
from linnet.model.folder import read_description
from linnet.training.objectives.language_modelling import next_token_loss

NEW = 6


@pytest.fixture(params=KINDS)
def model(request):
    return model_of(request.param)


@torch.no_grad()
def test_logits_are_ours(model):
    tokens_BT = tokens(2, 9)
    expected = model.decoder(tokens_BT)
    torch.testing.assert_close(model(tokens_BT).logits, expected)
    torch.testing.assert_close(model(tokens_BT, use_cache=False).logits, expected)


def test_greedy_tokens_of_a_padded_batch_are_those_of_our_engine_for_each_row_alone(model):
    prompts = [tokens(7), tokens(4, seed=1)]
    rows_BT = torch.stack([prompts[0], torch.cat([torch.zeros(3, dtype=torch.int64), prompts[1]])])
    mask_BT = torch.tensor([[1] * 7, [0] * 3 + [1] * 4])
    said_BT = model.generate(rows_BT, attention_mask=mask_BT, max_new_tokens=NEW, do_sample=False)[:, 7:]
    assert said_BT.tolist() == [greedy(model.decoder, prompt_T, NEW) for prompt_T in prompts]


@torch.no_grad()
@few_fast()
def test_padding_may_be_anywhere_and_the_cache_continues_behind_it(kind):
    model = model_of(kind)
    mask_BT = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 1, 0, 1, 1]])
    rows_BT, next_B1 = tokens(2, 7), tokens(2, 1, seed=1)
    first = model(rows_BT, attention_mask=mask_BT, use_cache=True)
    longer_BT = torch.cat([mask_BT, torch.ones(2, 1, dtype=torch.int64)], dim=1)
    then = model(next_B1, attention_mask=longer_BT, past_key_values=first.past_key_values)
    for row, real_T in enumerate(mask_BT.bool()):
        state = model.decoder.initial_state(1, 8)
        alone_T = rows_BT[row, real_T][None]
        torch.testing.assert_close(first.logits[row, real_T], model.decoder(alone_T, state)[0])
        torch.testing.assert_close(then.logits[row], model.decoder(next_B1[row : row + 1], state)[0])


@torch.no_grad()
@few_fast()
def test_a_second_call_continues_the_cache_and_a_copy_is_independent(kind):
    model = model_of(kind)
    tokens_BT = tokens(2, 9)
    cache = model(tokens_BT[:, :5], use_cache=True).past_key_values
    twin = copy.deepcopy(cache)
    expected_BTV = model(tokens_BT[:, 5:], past_key_values=cache).logits
    torch.testing.assert_close(model(tokens_BT[:, 5:], past_key_values=twin).logits, expected_BTV)
    assert cache.get_seq_length() == twin.get_seq_length() == 9
    if not settles(model.decoder):
        torch.testing.assert_close(expected_BTV, model.decoder(tokens_BT)[:, 5:])


@pytest.mark.parametrize("kind", ["attention", "plga", "mlstm"])
def test_loss_and_gradients_are_those_of_our_training(kind):
    model, tokens_BT = model_of(kind).train(), tokens(2, 9)
    labels_BT = tokens_BT.clone()
    labels_BT[1, 6:] = -100
    model(tokens_BT, labels=labels_BT).loss.backward()
    ours = copy.deepcopy(model.decoder)
    ours.zero_grad()
    shifted_BT = torch.cat([labels_BT[:, 1:], torch.full((2, 1), -100)], dim=1)
    loss = next_token_loss(ours, Batch.from_labels(tokens_BT, shifted_BT))
    (loss.total / 13).backward()
    torch.testing.assert_close(model(tokens_BT, labels=labels_BT).loss.double(), loss.total / 13, atol=1e-5, rtol=0)
    for theirs, own in zip(model.decoder.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, own.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("items", [None, 40])
def test_losses_that_layers_add_count_once_for_each_label(items):
    model, tokens_BT = model_of("experts").train(), tokens(2, 9)
    ours = next_token_loss(model.decoder, Batch(tokens_BT[:, :-1], tokens_BT[:, 1:]))
    assert ours.terms, "an example with a loss of its own"
    theirs = model(tokens_BT, labels=tokens_BT, num_items_in_batch=items).loss
    torch.testing.assert_close(theirs.double(), ours.total / (items or 16), atol=2e-3, rtol=0)


def test_padding_counts_in_no_loss_that_layers_add():
    """Neither behind a row nor before it."""
    model, rows_BT, mask_BT = model_of("experts").train(), tokens(2, 9), torch.ones(2, 9, dtype=torch.int64)
    mask_BT[1, 6:] = 0
    before = {"input_ids": rows_BT, "attention_mask": mask_BT}
    before["labels"] = rows_BT.masked_fill(mask_BT == 0, -100)
    behind = {name: torch.stack([column[0], column[1].roll(3)]) for name, column in before.items()}
    behind["labels"][1, 3] = -100  # nothing is before it
    torch.testing.assert_close(model(**before).loss, model(**behind).loss, atol=1e-6, rtol=0)


@torch.no_grad()
def test_rows_padded_behind_are_read_as_they_are():
    """Right padding, as a `Trainer` makes it: what follows a token is none of its business."""
    model, rows_BT = model_of("ted"), tokens(2, 7)
    mask_BT = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    logits_BTV = model(rows_BT, attention_mask=mask_BT, use_cache=False).logits
    torch.testing.assert_close(logits_BTV[1, :4], model.decoder(rows_BT[1:, :4])[0])


@torch.no_grad()
def test_logits_of_some_places():
    model, tokens_BT = model_of("attention"), tokens(2, 7)
    whole_BTV = model(tokens_BT).logits
    torch.testing.assert_close(model(tokens_BT, logits_to_keep=2).logits, whole_BTV[:, -2:])
    torch.testing.assert_close(model(tokens_BT, logits_to_keep=torch.tensor([1, 3])).logits, whole_BTV[:, [1, 3]])


@few_fast()
def test_a_saved_and_loaded_model_computes_the_same(kind, tmp_path):
    model = model_of(kind)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LinnetForCausalLM and loaded.dtype == torch.float64
    assert loaded.config.description == model.config.description
    with torch.no_grad():
        # not bit for bit: where tensors lie in memory decides the order of sums on some processors
        torch.testing.assert_close(loaded(tokens(2, 5)).logits, model(tokens(2, 5)).logits, rtol=1e-10, atol=1e-12)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).decoder.dtype == torch.bfloat16


def test_a_configuration_has_the_token_ids_that_tools_read(tmp_path):
    """As those of Transformers have them; null unless they are given."""
    config = LinnetConfig.of(spec_of("attention"))
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, None, None)
    config.eos_token_id = [2, 5]
    config.save_pretrained(tmp_path)
    assert LinnetConfig.from_pretrained(tmp_path).eos_token_id == [2, 5]


@torch.no_grad()
def test_generation_without_a_prompt_begins_with_the_given_token():
    model = model_of("attention")
    model.config.bos_token_id = model.generation_config.bos_token_id = 3
    made = model.generate(max_new_tokens=NEW, do_sample=False)
    assert made.tolist() == [[3, *greedy(model.decoder, torch.tensor([3]), NEW)]]


def test_fresh_weights_are_those_of_our_own_decoder():
    torch.manual_seed(3)
    fresh = AutoModelForCausalLM.from_config(LinnetConfig.of(spec_of("gated_delta")))
    torch.manual_seed(3)
    ours = Decoder(spec_of("gated_delta")).state_dict()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in fresh.decoder.state_dict().items())


def test_a_missing_tensor_is_named(tmp_path):
    from safetensors.torch import load_file, save_file

    model_of("attention").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if "mixer" in name)
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=f"tensor {name} is missing"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_an_encoder_is_refused():
    plain = read_description("tiny-encoder-decoder")
    with pytest.raises(UserError, match=r"encoder: .*expected a decoder alone"):
        LinnetConfig(description=plain)


def test_what_our_models_do_not_know_is_refused():
    model, tokens_BT = model_of("attention"), tokens(1, 5)
    for given in ({"cache_position": torch.arange(5)}, {"output_hidden_states": True}):
        with pytest.raises(UserError, match="models of linnet do not support it"):
            model(tokens_BT, **given)
    with pytest.raises(UserError, match="assistant_early_exit: the model has no output after fewer layers"):
        model.generate(tokens_BT, max_new_tokens=2, assistant_early_exit=1)
    with pytest.raises(UserError, match="generate_batch: layers of linnet keep states"):
        model.generate_batch([[1, 2, 3]])
    with pytest.raises(UserError, match="DynamicCache: expected a StateCache"):
        model(tokens_BT, past_key_values=DynamicCache())
    with pytest.raises(UserError, match="attention_mask: of shape"):
        model(tokens_BT, attention_mask=torch.ones(1, 1, 5, 5))
    with pytest.raises(UserError, match="cache_implementation: static"):
        model.generate(tokens_BT, max_new_tokens=2, cache_implementation="static")
    with pytest.raises(UserError, match="prefill_chunk_size"):
        model_of("plga").generate(tokens_BT, max_new_tokens=2, prefill_chunk_size=2)
    with pytest.raises(UserError, match=f"new_num_tokens: 40: expected {VOCABULARY}"):
        model.resize_token_embeddings(40)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["attention", "mamba"])
def test_positions_are_accepted_if_they_count_the_tokens(kind):
    """As native models of Transformers hand them on to their draft."""
    model, tokens_BT = model_of(kind), tokens(2, 7)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    whole = model(tokens_BT, attention_mask=mask, position_ids=positions).logits
    assert torch.equal(whole, model(tokens_BT, attention_mask=mask).logits)
    first = model(tokens_BT[:, :4], attention_mask=mask[:, :4], position_ids=positions[:, :4])
    settings = {"attention_mask": mask, "past_key_values": first.past_key_values}
    for wrong in (positions[:, 4:] + 1, positions[:, 3:], torch.arange(4, 7)[None]):
        with pytest.raises(UserError, match="position_ids: other positions; expected the number of tokens before each"):
            model(tokens_BT[:, 4:], position_ids=wrong, **settings)
    rest = model(tokens_BT[:, 4:], position_ids=positions[:, 4:], **settings).logits
    torch.testing.assert_close(rest, whole[:, 4:])


def test_learned_positions_have_an_end():
    model = model_of("attention", embedding={"positions": "learned"}, context_length=8)
    with pytest.raises(UserError, match="9 tokens: the model's learned positions end at 8"):
        model.generate(tokens(1, 6), max_new_tokens=4)
