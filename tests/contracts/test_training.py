"""What training asks of every sublayer: gradients, auxiliary losses, and which optimizer takes which parameter."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from examples import ALL, PLACE, examples_of, first_of_its_kind, in_turn, inputs, name_of, randomized
from shared_training import VOCABULARY, model_of
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linnet.layers.batch_layout import AuxiliaryOutputs, BatchLayout
from linnet.layers.contract import Sublayer, SublayerSpec, linear_maps
from linnet.layers.passes import run
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.training.lora import add_lora, merged_state_dict
from linnet.training.sections import LoraSpec
from on_device import DEVICE

FIRST = [*filter(first_of_its_kind, ALL)]


@pytest.mark.parametrize(("spec", "dtype"), [*in_turn(torch.float32), *in_turn(torch.float64, specs=FIRST)])
def test_outputs_are_the_same_without_gradients(sublayer: Sublayer, dtype: torch.dtype):
    """Forms that are chosen by whether gradients are enabled compute the same function, with and without a state."""
    sublayer.to(dtype)
    for length in (1, 14, 130):
        x_BTD, found = inputs(2, length, dtype), []
        for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with context():
                state = sublayer.initial_state(2, length + 2, DEVICE, dtype)
                out_BTD = run(sublayer, x_BTD, state, BatchLayout())
                steps_B2D = run(sublayer, x_BTD[:, :1].expand(-1, 2, -1), state, BatchLayout(length))
                found.append(torch.cat([sublayer(x_BTD), out_BTD, steps_B2D], dim=1).detach())
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9  # powers in the operator of PLGA amplify rounding
        for other in found[1:]:
            torch.testing.assert_close(other, found[0], rtol=tolerance, atol=tolerance)


def of_training(sublayer: Sublayer, x_BTD: Tensor, padding: tuple[int, ...] | None) -> AuxiliaryOutputs:
    """What a training pass with all penalties adds."""
    record = AuxiliaryOutputs(sublayer.penalties, outputs=[{}], training=True)
    run(sublayer, x_BTD, None, BatchLayout(0, padding, record=record))
    return record


def test_padding_changes_no_auxiliary_loss_or_output(sublayer: Sublayer):
    """Neither what stands there nor its length: losses are means over real tokens, outputs are those of each row."""
    x_BTD, padding = inputs(3, 14), (4, 4, 4)
    other_BTD = torch.cat([10 * inputs(3, 4), x_BTD[:, 4:]], dim=1)
    alone = of_training(sublayer, x_BTD[:, 4:], None)
    for record in (of_training(sublayer, x_BTD, padding), of_training(sublayer, other_BTD, padding)):
        assert [loss.name for loss in record.losses] == [loss.name for loss in alone.losses]
        for loss, expected in zip(record.losses, alone.losses, strict=True):
            torch.testing.assert_close(loss.value, expected.value, msg=lambda text, name=loss.name: name + text)
        assert record.outputs is not None and alone.outputs is not None
        assert record.outputs[0].keys() == alone.outputs[0].keys()
        for name, value in record.outputs[0].items():
            torch.testing.assert_close(value, alone.outputs[0][name], msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(("spec", "length"), [*in_turn(40), *in_turn(6, specs=FIRST)])
def test_gradients_are_those_of_finite_differences(sublayer: Sublayer, length: int):
    x_BTD = inputs(1, length).requires_grad_()
    assert torch.autograd.gradcheck(sublayer, (x_BTD,), fast_mode=True)
    names, parameters = zip(*sublayer.named_parameters(), strict=True)

    def of_parameters(*values: Tensor) -> Tensor:
        return torch.func.functional_call(sublayer, dict(zip(names, values, strict=True)), (x_BTD.detach(),))

    assert torch.autograd.gradcheck(of_parameters, parameters, fast_mode=True)


def constants(spec: SublayerSpec) -> set[str]:
    """The parameters that begin as one number wherever the examples of the kind have them."""
    constant: dict[str, bool] = {}
    for example in examples_of(type(spec)):
        for name, parameter in example.build(PLACE).named_parameters():
            equal = bool((parameter == parameter.flatten()[0]).all())
            constant[name] = constant.get(name, True) and equal
    return {name for name, equal in constant.items() if equal}


def test_gains_and_biases_are_neither_decayed_nor_orthogonalized(spec: SublayerSpec):
    """Of any shape: what is no map of a `Linear`, and begins as a constant or is called so, is no matrix."""
    sublayer = spec.build(PLACE)
    maps = {id(linear.weight) for linear in linear_maps(sublayer)}
    no_decay = {id(parameter) for parameter in sublayer.no_weight_decay()}
    orthogonalized = {id(matrix.parameter) for matrix in sublayer.muon_parameters()}
    for name, parameter in sublayer.named_parameters():
        if id(parameter) not in maps and (name in constants(spec) or name.endswith("bias")):
            assert id(parameter) in no_decay, f"{name} has weight decay"
            assert id(parameter) not in orthogonalized, f"Muon takes {name}"


class Cuts(TorchFunctionMode):
    """Finds outputs of a plain linear map that are cut into parts: the map is several matrices, one after another."""

    CUTS: ClassVar[dict[str, int]] = {
        "split": 2,
        "chunk": 2,
        "tensor_split": 2,
        "split_with_sizes": 2,
        "unbind": 1,
        "narrow": 1,
    }
    """Functions that cut a tensor, and the place of the dimension among their arguments."""

    def __init__(self, weights: dict[int, str]) -> None:
        super().__init__()
        self.weights, self.outputs, self.joint = weights, dict[int, tuple[Tensor, str, int]](), set[str]()

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out, name = function(*args, **kwargs), getattr(function, "__name__", "")
        if name == "linear" and id(args[1]) in self.weights:
            self.outputs[id(out)] = out, self.weights[id(args[1])], out.dim() - 1
        elif args and id(args[0]) in self.outputs:
            x, source, outer = self.outputs[id(args[0])]
            if name in ("view", "unflatten"):
                self.outputs[id(out)] = out, source, outer
            elif name in self.CUTS:
                place = self.CUTS[name]
                dim = kwargs.get("dim", args[place] if len(args) > place else 0)
                parts = [part for part in (out if isinstance(out, tuple | list) else [out]) if part.numel()]
                if dim % x.dim() == outer and (len(parts) > 1 or parts[0].numel() < x.numel()):
                    self.joint.add(source)
            elif name == "transpose":
                swapped = {args[1] % x.dim(): args[2] % x.dim(), args[2] % x.dim(): args[1] % x.dim()}
                self.outputs[id(out)] = out, source, swapped.get(outer, outer)
            elif name == "__getitem__" and out.dim() == x.dim() and out.shape[outer] < x.shape[outer]:
                self.joint.add(source)
        return out


def test_joint_maps_are_told_to_the_optimizer(sublayer: Sublayer):
    """A map whose output is cut into parts is a `FusedLinear`, or its `MuonParameter` has the rows of the parts."""
    plain = {id(m.weight): name for name, m in sublayer.named_modules() if isinstance(m, nn.Linear)}
    whole = {plain[id(each.parameter)] for each in sublayer.muon_parameters() if len(each.rows) == 1}
    with Cuts(plain) as cuts:
        sublayer(inputs(1, 14))
    assert not cuts.joint & whole, "make it a FusedLinear, or override muon_parameters"


def relative_error(rough: Tensor, exact: Tensor) -> Tensor:
    return (rough.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()


@torch.no_grad()
@pytest.mark.parametrize(("spec", "way"), in_turn("weights", "autocast"))
def test_bfloat16_is_within_the_error_bound(spec: SublayerSpec, way: str):
    """The error of the pass, not of the weights: the median, because PLGA's powers amplify rounding."""
    errors = []
    for _ in range(15):
        sublayer, x_BTD = randomized(spec.build(PLACE).double()).bfloat16(), inputs(2, 64, torch.bfloat16)
        if way == "weights":
            rough = sublayer(x_BTD)
        else:
            with torch.autocast(DEVICE.type, torch.bfloat16):
                rough = sublayer.float()(x_BTD.float())
        errors.append(relative_error(rough, sublayer.double()(x_BTD.double())))
    amplifies = any(True for _ in sublayer.low_lr_parameters())
    assert 0 < torch.stack(errors).median() < (0.05 if amplifies else 0.02)


@pytest.mark.parametrize("spec", FIRST, ids=name_of)
def test_low_rank_parts_begin_as_nothing_and_are_all_that_is_trained(
    spec: SublayerSpec, monkeypatch: pytest.MonkeyPatch
):
    decoder = randomized(Decoder(model_of(spec)).double())
    tokens_BT = torch.randint(VOCABULARY, (2, 12), device=DEVICE)
    before_BTV = decoder(tokens_BT).detach()
    add_lora(decoder, LoraSpec(rank=2), seed=0)
    torch.testing.assert_close(decoder(tokens_BT).detach(), before_BTV, rtol=1e-9, atol=1e-10)

    trained = {name: each for name, each in decoder.named_parameters() if each.requires_grad}
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(0.3 * torch.randn_like(parameter))
    adapted_BTV = decoder(tokens_BT)
    assert (adapted_BTV - before_BTV).abs().max() > 1e-3
    merged = decoder_with_weights(decoder.spec, merged_state_dict(decoder))
    torch.testing.assert_close(merged(tokens_BT), adapted_BTV, rtol=1e-9, atol=1e-9)

    decoder(tokens_BT, targets=tokens_BT.roll(-1, 1)).total.backward()
    with monkeypatch.context() as whole_sums:
        whole_sums.setattr("linnet.nn.linear.frozen_parts", lambda linear: None)
        loss = decoder(tokens_BT, targets=tokens_BT.roll(-1, 1)).total
        expected = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
    for name, parameter in trained.items():
        assert parameter.grad is not None and relative_error(parameter.grad, expected[name]) < 1e-6, name
    assert trained and all(parameter.grad is not None for parameter in trained.values())
    assert not [name for name, each in decoder.named_parameters() if name not in trained and each.grad is not None]


@pytest.mark.parametrize("spec", FIRST, ids=name_of)
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_low_rank_parts_beside_few_bits_are_those_beside_the_rounded_weights(spec: SublayerSpec, precision: str):
    few_bit = randomized(Decoder(model_of(spec)))
    add_lora(few_bit, LoraSpec(rank=2, precision=precision), seed=0)
    rounded = decoder_with_weights(few_bit.spec, merged_state_dict(few_bit))
    add_lora(rounded, LoraSpec(rank=2), seed=0)
    tokens_BT, found = torch.randint(VOCABULARY, (2, 12), device=DEVICE), []
    for decoder in (few_bit, rounded):
        trained = {name: each for name, each in decoder.named_parameters() if each.requires_grad}
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in trained.values():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(parameter))
        loss = decoder(tokens_BT, targets=tokens_BT.roll(-1, 1)).total
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in trained.values())])
    assert len(found[0]) == len(found[1]) > 2
    for one, other in zip(*found, strict=True):
        assert one is not None and torch.equal(one, other)
