"""Graphs in few bits: the products of all linear maps, the head's among them, and the embedding's look-up.

onnxruntime's `MatMulNBits`, in blocks of 32 or 128 numbers with a scale each, symmetric; activations are rounded to 8
bits as well (accuracy level 4). A tied head's matrix and the embedding's table are the same bytes.

Legend: `V` vocabulary, `D` width of the token vectors, `K` inputs and `N` outputs of a product.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from linnet.core.checksum import digest
from linnet.interop.onnx.edges import DOMAIN, drop_unread
from linnet.layers.contract import sublayers_of
from linnet.model.decoder import Decoder

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

BITS = {"int8": 8, "int4": 4}
BLOCK, WIDE_BLOCK = 32, 128
"""Numbers that share a scale. In 8 bits a model loses no more by wide blocks and is a quarter faster (`block_of`)."""
ACCURACY_LEVEL = 4

PRODUCT, LOOK_UP = "MatMulNBits", "GatherBlockQuantized"
TABLE = "decoder.embedding.tokens.weight"
"""The name of the embedding's matrix in a graph."""


def quantized(graph: "ModelProto", weights: str, decoder: Decoder) -> "ModelProto":
    """The graph with its weights as `int8` or `int4`; as it is with `float32`."""
    if weights == "float32":
        return graph
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer").setLevel(logging.ERROR)
    block = block_of(decoder, weights)
    config = DefaultWeightOnlyQuantConfig(block, is_symmetric=True, accuracy_level=ACCURACY_LEVEL, bits=BITS[weights])
    _turn_weights(graph.graph)
    known, matrices = _digests(graph.graph), set(_matrices(decoder))
    products = (node for node in graph.graph.node if node.op_type == "MatMul")
    kept = [node.name for node in products if known.get(node.input[1]) not in matrices]
    quantizer = MatMulNBitsQuantizer(graph, nodes_to_exclude=kept, algo_config=config)
    quantizer.process()
    small: ModelProto = quantizer.model.model
    _quantize_look_up(small.graph, config)
    drop_unread(small.graph)
    return small


def products_in_floats(graph: "ModelProto") -> list[str]:
    """The products with a matrix of weights, and look-ups in the embedding, that are in floats: of their weights."""
    matrices = {tensor.name for tensor in graph.graph.initializer if len(tensor.dims) == 2}
    products = (node for node in graph.graph.node if node.op_type in ("MatMul", "Gemm"))
    left = [name for node in products for name in node.input[1:2] if name in matrices]
    return left + [node.input[0] for node in graph.graph.node if node.op_type == "Gather" and node.input[0] == TABLE]


def block_of(decoder: Decoder, weights: str) -> int:
    """Wide where rounding is fine and no matrix would have to be filled up much, as a narrow one's single block is."""
    return WIDE_BLOCK if weights == "int8" and min(map(_inputs, _maps(decoder))) >= WIDE_BLOCK else BLOCK


def _inputs(module: nn.Module) -> int:
    assert isinstance(module.weight, Tensor)
    return module.weight.shape[1]


def _maps(decoder: Decoder) -> Iterator[nn.Module]:
    """Linear maps, but in the parts that stay precise, and the table."""
    parts = [part for sublayer in sublayers_of(decoder) for part in sublayer.skip_quantization()]
    precise = {id(module) for part in parts for module in part.modules()}
    for module in decoder.modules():
        if (isinstance(module, nn.Linear) and id(module) not in precise) or module is decoder.embedding.tokens:
            yield module


def _matrices(decoder: Decoder) -> Iterator[str]:
    """Of these: hashes of what products are made with.

    By their content, because the exporter gives names of its own to what it has turned.
    """
    for module in _maps(decoder):
        assert isinstance(module.weight, Tensor)
        yield digest(module.weight.detach().T.contiguous().numpy().tobytes())


def _digests(graph: "GraphProto") -> dict[str, str]:
    """Hashes of the constants that are matrices, by name."""
    from onnx import numpy_helper

    matrices = (tensor for tensor in graph.initializer if len(tensor.dims) == 2)
    return {tensor.name: digest(numpy_helper.to_array(tensor).tobytes()) for tensor in matrices}


def _turned(name: str) -> str:
    return f"{name}.turned"


def _turn_weights(graph: "GraphProto") -> None:
    """MuonParameter that are turned in the graph become constants that have been: `[N, K]` to `[K, N]`."""
    from onnx import helper, numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    known = set(weights)
    turns = {node.output[0]: node.input[0] for node in graph.node if _turns_a_matrix(node, weights)}
    for node in graph.node:
        if node.op_type == "Gemm" and _attribute(node, "transB") and node.input[1] in weights:
            turns[node.input[1]] = node.input[1]
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in turns:
            nodes.append(node)
            continue
        of = turns[node.input[1]]
        if _turned(of) not in known:
            known.add(_turned(of))
            graph.initializer.append(
                numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(weights[of]).T), _turned(of))
            )
        bias = list(node.input[2:3])
        out = f"{node.output[0]}.product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], _turned(of)], [out], name=node.name))
        if bias:
            nodes.append(helper.make_node("Add", [out, bias[0]], [node.output[0]], name=f"{node.name}.bias"))
    del graph.node[:]
    graph.node.extend(nodes)


def _turns_a_matrix(node: "NodeProto", weights: dict[str, "TensorProto"]) -> bool:
    return node.op_type == "Transpose" and node.input[0] in weights and len(weights[node.input[0]].dims) == 2


def _attribute(node: "NodeProto", name: str) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(found) for found in node.attribute if found.name == name), None)


def _quantize_look_up(graph: "GraphProto", config: Any) -> None:
    """The embedding's look-up reads rows in few bits, made as a product's: `[V, D]` has a row for each output."""
    from onnx import helper, numpy_helper
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantizer

    nodes = [node for node in graph.node if node.op_type == "Gather" and node.input[0] == TABLE]
    (table,) = [tensor for tensor in graph.initializer if tensor.name == TABLE]
    table_VD = numpy_helper.to_array(table)
    packed, scales, _ = DefaultWeightOnlyQuantizer(config).qbits_block_quant(np.ascontiguousarray(table_VD.T))
    columns = -(-table_VD.shape[1] * config.bits // 8)
    data = packed.reshape(len(table_VD), -1)[:, :columns]
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(data), f"{TABLE}.rows"))
    graph.initializer.append(numpy_helper.from_array(scales.reshape(len(table_VD), -1), f"{TABLE}.scales"))
    for node in nodes:
        look_up = helper.make_node(
            LOOK_UP,
            [f"{TABLE}.rows", node.input[1], f"{TABLE}.scales"],
            list(node.output),
            name=node.name,
            domain=DOMAIN,
            gather_axis=0,
            quantize_axis=1,
            block_size=config.block_size,
            bits=config.bits,
        )
        node.CopyFrom(look_up)
