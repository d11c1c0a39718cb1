"""Graphs on disk: small ones whole, the weights of large ones once for both, in a file beside them."""

from pathlib import Path
from typing import TYPE_CHECKING

from linnet.core.checksum import digest
from linnet.interop.onnx.metadata import DATA, KEY, GraphDescription

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

EXTERNAL_ABOVE_BYTES = 32 * 2**20
"""Weights of a graph from which on they stand beside it; a browser loads one file more easily than two."""

SMALLEST_EXTERNAL_BYTES = 1024
ALIGNMENT_BYTES = 4096
"""Of a tensor in the file: a page, so that runtimes can map it."""


def write_graphs(
    folder: Path,
    graphs: dict[str, "ModelProto"],
    description: GraphDescription,
    external_above_bytes: int = EXTERNAL_ABOVE_BYTES,
) -> list[str]:
    """Write graphs by file name, with their description inside; the names of all files that were written."""
    import onnx

    names = list(graphs)
    if any(weight_bytes(graph) > external_above_bytes for graph in graphs.values()):
        _move_weights(graphs, folder / DATA)
        names.append(DATA)
    for name, graph in graphs.items():
        onnx.helper.set_model_props(graph, {KEY: description.model_dump_json()})
        (folder / name).write_bytes(graph.SerializeToString())
    return names


def weight_bytes(graph: "ModelProto") -> int:
    """Of all constants that have a name."""
    return sum(len(tensor.raw_data) for tensor in graph.graph.initializer)


def _move_weights(graphs: dict[str, "ModelProto"], path: Path) -> None:
    """What is the same in several places is written once."""
    places: dict[str, int] = {}
    with path.open("wb") as file:
        for graph in graphs.values():
            for tensor in graph.graph.initializer:
                if len(tensor.raw_data) < SMALLEST_EXTERNAL_BYTES:
                    continue
                found = digest(tensor.raw_data)
                if found not in places:
                    file.seek(-(-file.tell() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
                    places[found] = file.tell()
                    file.write(tensor.raw_data)
                _point_to(tensor, path.name, places[found])


def _point_to(tensor: "TensorProto", file: str, offset: int) -> None:
    from onnx.external_data_helper import set_external_data

    length = len(tensor.raw_data)
    set_external_data(tensor, location=file, offset=offset, length=length)
    tensor.ClearField("raw_data")
