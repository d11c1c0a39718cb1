"""Value residuals in all modes of a model."""

import pytest
import torch
from torch import Tensor, nn

from linnet.inference.decode import decode
from linnet.inference.prefill import new_state
from linnet.inference.sampling import Sampling
from linnet.layers.batch_layout import AuxiliaryOutputs
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec

OWN, FIRST = 0.9, 0.4


def decoder(learned: bool, blocks: list[dict[str, object]] | None = None) -> Decoder:
    torch.manual_seed(0)
    residual = {"own": OWN, "first": FIRST, "learned": learned}
    mixer = {"kind": "attention", "heads": 4, "kv_heads": 2, "value_residual": residual}
    plain = {"mixer": mixer, "feed_forward": {"kind": "mlp", "hidden": 8}}
    described = [{**plain, **block} for block in blocks or [{"repeat": 3}]]
    model = Decoder(
        ModelSpec.parse({"vocab_size": 11, "d_model": 16, "context_length": 32, "blocks": described}, "test")
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.5)
    return model


def values_read(model: Decoder, tokens_BT: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The own values of each layer, `[B, T, M K]`, and the values that it reads."""
    own: list[Tensor] = []
    read: list[Tensor] = []
    for layer in model.layers:
        mixer = layer.mixer
        mixer.query_key_value.register_forward_hook(lambda module, _, out: own.append(module.split(out)[2]))
        attend = mixer.attend

        def watched(q: Tensor, k: Tensor, v: Tensor, *rest: object, attend=attend) -> Tensor:
            read.append(v.transpose(1, 2).flatten(2))
            return attend(q, k, v, *rest)

        mixer.attend = watched
    model(tokens_BT)
    return own, read


@pytest.mark.parametrize("learned", [True, False])
def test_every_layer_reads_a_mixture_with_the_first_layers_values(learned: bool):
    own, read = values_read(decoder(learned), torch.randint(11, (2, 7)))
    assert len(read) == 3
    for mine, mixed in zip(own, read, strict=True):
        torch.testing.assert_close(mixed, OWN * mine + FIRST * own[0])


def test_the_first_layer_with_the_field_saves_its_values():
    blocks = [{"mixer": {"kind": "ted"}}, {"repeat": 2}]
    model = decoder(True, blocks)
    assert [len(list(layer.mixer.parameters())) for layer in model.layers] == [3, 3, 3]
    tokens_BT = torch.randint(11, (2, 7))
    record = AuxiliaryOutputs()
    model.hidden(tokens_BT, record=record)
    assert record.values["value_residual"].shape == (2, 7, 2, 4)


def test_shares_are_two_learned_numbers_without_weight_decay():
    model = decoder(True)
    model(torch.randint(11, (2, 7)), targets=torch.randint(11, (2, 7))).nats.backward()
    for layer in model.layers:
        shares = layer.mixer.value_residual.mix.shares
        assert shares.shape == (2,) and shares.grad.all()
        assert id(shares) in {id(parameter) for parameter in layer.mixer.no_weight_decay()}
    assert not any("shares" in name for name, _ in decoder(False).named_parameters())


def test_values_of_an_earlier_pass_are_not_used():
    """If passes share a record, as steps with auxiliary outputs do."""
    model = decoder(True).double()
    plain, watched = (
        list(decode(model, [[1, 2, 3]], 6, Sampling(0), state=new_state(model, [[1, 2, 3]], 6), record=record))
        for record in (None, AuxiliaryOutputs())
    )
    assert plain == watched
