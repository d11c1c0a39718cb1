"""Attention of one token as one operation computes what the dozen nodes before it do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_decoders import NARROW, block, decoder_with_weights

from linnet.inference.captured_step import PassFunction, StateTensors
from linnet.interop.onnx import fusion
from linnet.interop.onnx.folder import state_inputs
from linnet.interop.onnx.fusion import ATTENTION, DOMAIN, HEAD_WIDTH_MULTIPLE, fuse_attention
from linnet.layers.cache_policy import FULL
from linnet.layers.mixers.attention import AttentionSpec

onnx = pytest.importorskip("onnx")
PLACES = 20


def steps_of(graph: Any, states: dict[str, Any], tokens: list[int]) -> tuple[list[Any], list[Any]]:
    """Logits behind each token, and the states behind the last; no buffer is shared."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found, after = [], list(states.values())
    for position, token in enumerate(tokens):
        of_token = {"tokens": np.array([[token]]), "position": np.array([position])}
        logits, *after = session.run(None, of_token | dict(zip(states, after, strict=True)))
        found.append(logits)
    return found, after


def same_when_fused(graph: Any, states: dict[str, Any], layers: int) -> None:
    fused = onnx.ModelProto.FromString(graph.SerializeToString())
    assert fuse_attention(fused.graph) == layers
    fused.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    assert [node.op_type for node in fused.graph.node].count(ATTENTION) == layers
    assert len(fused.graph.node) <= len(graph.graph.node) - 8 * layers
    tokens = list(range(40, 40 + PLACES))
    for expected, found in zip(steps_of(graph, states, tokens), steps_of(fused, states, tokens), strict=True):
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=3e-5)  # float32's rounding, up to 19 layers deep
    _, behind = steps_of(fused, states, tokens[:3])
    assert all(np.isfinite(state).all() for state in behind), "places that are yet to be filled are read, times 0"


def test_a_layer_of_an_export(exported: tuple[Path, Any]):
    from linnet.interop.onnx.folder import GraphDescription

    states = GraphDescription.read(exported[0]).states
    same_when_fused(onnx.load(exported[0] / "model.onnx"), {s.input: s.initial(PLACES) for s in states}, layers=1)


@pytest.mark.parametrize(
    ("mixer", "width"), [({"heads": 2}, 24), ({"heads": 4, "kv_heads": 2, "window": 8}, 32)], ids=["width", "window"]
)
def test_what_the_operation_refuses_or_does_not_know_stays_as_it_is(mixer: dict[str, int], width: int):
    """Heads of another width than a multiple of 8, and a window, whose places are used again."""
    from linnet.interop.onnx.trace import graph_of

    decoder = decoder_with_weights([block({"kind": "attention", **mixer})], d_model=width)
    graph = graph_of(PassFunction(decoder, StateTensors.of(decoder, PLACES, FULL)), 1)
    assert fuse_attention(graph.graph) == 0
    assert ATTENTION not in {node.op_type for node in graph.graph.node}


def test_operators_and_every_rotation():
    """Power-law graph attention with its published positions, by halves, with none; attention with those of PLDR."""
    from linnet.interop.onnx.trace import graph_of

    fixed, halves = {"kind": "plga", "heads": 2, "operator": "fixed"}, {"pairing": "halves"}
    neighbors = {"kind": "attention", "heads": 2, "rotary": {"pairing": "adjacent"}}
    mixers = [fixed, {**fixed, "rotary": halves}, {**fixed, "rotary": None}, neighbors]
    decoder = decoder_with_weights([block(mixer) for mixer in mixers])
    for mixer in decoder.mixers[:-1]:
        for tensor in mixer.calibration().values():
            torch.nn.init.normal_(tensor, std=0.3)
    step = PassFunction(decoder, StateTensors.of(decoder, PLACES, FULL))
    states = {state.input: state.initial(PLACES) for state in state_inputs(step.flat)}
    graph = graph_of(step, 1)
    same_when_fused(graph, states, layers=len(mixers))
    fuse_attention(graph.graph)
    rotations = [node for node in graph.graph.node if node.op_type == fusion.ROTARY]
    assert [one.attribute[0].i for one in rotations] == [1, 0, 1]


@pytest.mark.slow
def test_groups_and_norms_are_fused_and_nothing_else():
    """Of all examples, those without window, sinks, gate, soft cap and positions by distance, with heads of 8 or 16."""
    from linnet.interop.onnx.trace import graph_of

    examples = AttentionSpec.examples()
    parts = ("window", "positions", "gate", "soft_cap")
    plain = [one for one in examples if not one.sinks and all(getattr(one, part) is None for part in parts)]
    fused = [one for one in plain if (one.head_dim or NARROW // one.heads) % HEAD_WIDTH_MULTIPLE == 0]
    decoder = decoder_with_weights([block(one.model_dump()) for one in examples])
    step = PassFunction(decoder, StateTensors.of(decoder, PLACES, FULL))
    states = {state.input: state.initial(PLACES) for state in state_inputs(step.flat)}
    same_when_fused(graph_of(step, 1), states, layers=len(fused))
