"""The loss of pairs for each kind of decoder does not depend on the other rows of a batch."""

import pytest
import torch
from torch import Tensor

from linnet.model import example_loss as example_loss_module
from linnet.model.decoder import Decoder
from linnet.model.example_loss import (
    DecoderBatch,
    JoinedRows,
    example_logits,
    example_loss,
    example_nats,
    example_values,
    split_prefixes,
)
from linnet.model.spec import ModelSpec
from linnet.ops.cross_entropy import IGNORE_INDEX
from linnet.ops.distillation import SoftTargets

END = 0
ROWS = [([3, 4, 5], [6, 7]), ([8], [9, 3, 4, 5]), ([5, 6, 7, 8, 9], [3])]
UNEVEN_ROWS = [([3], [4]), ([5, 6, 7, 8, 9], [3, 4, 5]), ([8], [9, 3])]
LAYER = {"mixer": {"kind": "attention", "heads": 2}, "feed_forward": {"kind": "glu", "hidden": 24}}
KINDS = {
    "causal": {"blocks": [{**LAYER, "repeat": 2}]},
    "prefix": {"blocks": [{**LAYER, "repeat": 2}], "prefix": True},
    "encoder-decoder": {
        "blocks": [{**LAYER, "repeat": 2, "cross_attention": {"heads": 2}}],
        "encoder": {"blocks": [{**LAYER, "repeat": 2}], "norm": {}},
    },
}


def rows_of(pairs: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens, labels, and the lengths of the prefixes: an end token, the input, an end token."""
    whole = [[END, *given, END, *target, END] for given, target in pairs]
    longest = max(map(len, whole)) - 1
    tokens, targets = torch.full((len(pairs), longest), END), torch.full((len(pairs), longest), IGNORE_INDEX)
    for row, ((given, _), read) in enumerate(zip(pairs, whole, strict=True)):
        tokens[row, : len(read) - 1] = torch.tensor(read[:-1])
        targets[row, len(given) + 1 : len(read) - 1] = torch.tensor(read[len(given) + 2 :])
    return tokens, targets, [len(given) + 2 for given, _ in pairs]


@pytest.fixture(params=KINDS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    plain = {"vocab_size": 10, "d_model": 16, "context_length": 32, "head": {"value": True}, **KINDS[request.param]}
    torch.manual_seed(0)
    built = Decoder(ModelSpec.parse(plain, "test")).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def test_rows_are_split_at_the_end_token_between_input_and_target():
    rows = split_prefixes(*rows_of(ROWS))
    assert rows.inputs is not None and rows.inputs.padding == (2, 4, 0)
    assert [row[pad:].tolist() for row, pad in zip(rows.inputs.tokens_BS, rows.inputs.padding, strict=True)] == [
        [END, *given, END] for given, _ in ROWS
    ]
    for row, (_, target) in enumerate(ROWS):
        assert rows.tokens[row, : len(target) + 1].tolist() == [END, *target]
        assert rows.labels[row].tolist() == [*target, END] + [IGNORE_INDEX] * (4 - len(target))


@torch.no_grad()
def test_the_loss_of_a_batch_is_the_sum_over_its_pairs(decoder: Decoder):
    together = example_loss(decoder, *rows_of(ROWS))
    alone = [example_loss(decoder, *rows_of([pair])).nats for pair in ROWS]
    torch.testing.assert_close(together.nats, torch.stack(alone).sum())


@torch.no_grad()
def test_the_loss_is_that_of_the_targets_logits(decoder: Decoder):
    """The logits as in generation: the input first, then the target."""
    (given, target), end = ROWS[0], torch.tensor([[END]])
    whole, own = torch.tensor([[END, *given, END]]), torch.tensor([[END, *target]])
    if decoder.encoder is not None:
        logits = decoder(own, memory=decoder.encode(whole))
    else:
        prefixes = [whole.shape[1]] if decoder.spec.prefix else None
        logits = decoder(torch.cat([whole, own[:, 1:]], dim=1), prefixes=prefixes)[:, whole.shape[1] - 1 :]
    targets = torch.cat([own[:, 1:], end], dim=1)
    expected = torch.nn.functional.cross_entropy(logits[0], targets[0], reduction="sum")
    torch.testing.assert_close(example_loss(decoder, *rows_of(ROWS[:1])).nats, expected)


def test_the_nats_of_single_labels_add_up_to_the_loss_and_its_gradients(decoder: Decoder):
    tokens, labels, prefixes = rows_of(ROWS)
    nats_BU = example_nats(decoder, tokens, labels, prefixes)
    loss = example_loss(decoder, tokens, labels, prefixes).total
    assert [int((row > 0).sum()) for row in nats_BU] == [int((row != IGNORE_INDEX).sum()) for row in labels]
    torch.testing.assert_close(nats_BU.sum(), loss)
    parameters = list(decoder.parameters())
    found, expected = (torch.autograd.grad(each, parameters, allow_unused=True) for each in (nats_BU.sum(), loss))
    torch.testing.assert_close(found, expected)


def test_a_model_does_not_differ_from_itself_as_a_teacher(decoder: Decoder):
    """So the teacher's logits are those of the same tokens, in the same order."""
    targets = SoftTargets(example_logits(decoder, *rows_of(ROWS)), 1.0, 2.0)
    found = example_loss(decoder, *rows_of(ROWS), soft_targets=targets)
    assert found.divergence is not None and abs(found.divergence) < 1e-5 < found.nats


def test_every_token_of_a_pair_affects_its_loss(decoder: Decoder):
    seen = []
    hook = decoder.embedding.register_forward_hook(lambda _, __, out: seen.append(out.detach().requires_grad_()))
    replaced = decoder.embedding.register_forward_hook(lambda *_: seen[-1])
    example_loss(decoder, *rows_of(ROWS[:1])).nats.backward()
    hook.remove()
    replaced.remove()
    assert all((table.grad.abs().sum(-1) > 0).all() for table in seen)


def test_the_value_of_a_row_is_that_of_its_last_token_alone(decoder: Decoder):
    tokens, labels, prefixes = rows_of(ROWS)
    found = example_values(decoder, tokens, labels, prefixes)
    torch.testing.assert_close(found.nats, example_loss(decoder, tokens, labels, prefixes).nats)
    for row, (given, target) in enumerate(ROWS):
        before = [END, *given, END]
        if decoder.encoder is not None:
            memory = decoder.encode(torch.tensor([before]))
            hidden = decoder.hidden(torch.tensor([[END, *target]]), memory=memory)
        else:
            spans = [len(before)] if decoder.spec.prefix else None
            hidden = decoder.hidden(torch.tensor([[*before, *target]]), prefixes=spans)
        assert decoder.value is not None
        torch.testing.assert_close(found.values_B[row], hidden[0, -1] @ decoder.value)
    found.values_B.sum().backward()
    gradients = (parameter.grad for block in decoder.blocks for parameter in block.parameters())
    assert all(gradient is not None and gradient.any() for gradient in gradients)


def _found(decoder: Decoder, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Losses and values of rows, and the gradients of their sums."""
    weights = torch.linspace(0.5, 1.5, labels.numel(), dtype=torch.float64).view(labels.shape)
    found = {
        "sum": example_loss(decoder, tokens, labels, weights_BT=weights).total,
        "nats": example_nats(decoder, tokens, labels),
        "values": example_values(decoder, tokens, labels).values_B,
    }
    parameters = [each for each in decoder.parameters() if each.requires_grad]
    for name, value in list(found.items()):
        gradients = torch.autograd.grad(value.sum(), parameters, allow_unused=True, materialize_grads=True)
        found |= {f"{name} {number}": gradient for number, gradient in enumerate(gradients)}
    return found


def _with_mixer(mixer: dict, feed_forward: dict | None = None, **fields: object) -> Decoder:
    block = {"mixer": mixer, "feed_forward": feed_forward or LAYER["feed_forward"], "repeat": 2}
    plain = {
        "vocab_size": 10,
        "d_model": 16,
        "context_length": 32,
        "head": {"value": True},
        "blocks": [block],
        **fields,
    }
    torch.manual_seed(0)
    return Decoder(ModelSpec.parse(plain, "test")).double()


@pytest.mark.parametrize(
    ("mixer", "fields"),
    [
        ({"kind": "attention", "heads": 2}, {}),
        ({"kind": "attention", "heads": 2}, {"embedding": {"positions": "learned"}}),
        ({"kind": "gated_delta", "heads": 2}, {}),
    ],
    ids=["rotary", "learned positions", "recurrent"],
)
def test_rows_are_read_without_what_fills_them_up(mixer: dict, fields: dict, monkeypatch: pytest.MonkeyPatch):
    decoder, read = _with_mixer(mixer, **fields), list[tuple[int, ...]]()
    tokens, labels, _ = rows_of(UNEVEN_ROWS)
    tokens, labels = torch.cat([tokens, tokens[:1]]), torch.cat([labels, torch.full_like(labels[:1], IGNORE_INDEX)])
    tokens[0, 4:] = 9  # is behind the last label, and of no row
    hidden = Decoder.hidden

    def spied(self: Decoder, tokens_BT: Tensor, *arguments: object, **named: object) -> Tensor:
        read.append(tuple(tokens_BT.shape))
        return hidden(self, tokens_BT, *arguments, **named)

    monkeypatch.setattr(Decoder, "hidden", spied)
    joined = _found(decoder, tokens[:3], labels[:3]), example_nats(decoder, tokens, labels)
    assert read == 3 * [(1, 4 + 10 + 5)] + [(1, 4 + 10 + 5)]
    monkeypatch.setattr(example_loss_module, "SAVED", 1.0)
    padded = _found(decoder, tokens[:3], labels[:3]), example_nats(decoder, tokens, labels)
    assert read[4:] == 3 * [(3, 10)] + [(4, 10)]
    torch.testing.assert_close(joined, padded)
    assert not joined[1][3].any(), "a row without a label"


def test_rows_are_padded_where_a_layer_treats_tokens_in_training_by_all_of_a_batch():
    experts = {"kind": "experts", "experts": 4, "top_k": 2, "hidden": 8, "capacity": 1.0}
    decoder = _with_mixer(LAYER["mixer"], experts)
    batch = DecoderBatch(*rows_of(UNEVEN_ROWS)[:2])
    assert JoinedRows.of(decoder, batch) is None
    assert JoinedRows.of(decoder.eval(), batch) is not None
