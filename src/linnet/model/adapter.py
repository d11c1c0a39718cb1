"""Low-rank parts as a model: what is added to the weights of another model, its base, when they are read.

The folder is a model folder without weights. `adapter.safetensors` has `MAP.up` `[O, R]` and `MAP.down` `[R, I]` for
each adapted map, and tensors that were trained as a whole; `adapter.json` (`AdapterInfo`) names the base and the hash
of its weights, so that parts are never added to other weights than those that they were trained on.

Legend: `I` inputs, `O` outputs, `R` rank.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from linnet.core.arrays import read_tensors
from linnet.core.checksum import check_files
from linnet.core.errors import UserError
from linnet.core.files import read_json, sha256_of
from linnet.core.spec import Spec
from linnet.model.folder import ADAPTER, ADAPTER_WEIGHTS, find_model_folder, weights_file
from linnet.nn.low_rank import round_to_few_bits
from linnet.ops.low_rank import LowRankParts, dense, low_rank_sum

UP, DOWN = "up", "down"
"""The ends of the names of a map's parts."""


class AdapterInfo(Spec):
    """What `adapter.json` says: the base, the hash of its weights, and the settings of the parts.

    base: a model folder, or a run's, as it was named in training. sha256: of `model.folder.weights_file` of the base;
    null: not checked. parts: which sublayers were adapted (`training.lora`). precision: what the weights of the maps
    `rounded` were rounded to before the parts were added. whole: the names of tensors that were trained as they are.
    """

    base: Path
    sha256: str | None
    rank: PositiveInt
    alpha: PositiveFloat
    parts: str
    precision: Literal["float32", "int8", "int4"] = "float32"
    rounded: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> "AdapterInfo":
        """Read `adapter.json` of a folder; `UserError` if it is missing, changed or wrong."""
        check_files(folder, (ADAPTER,))
        return cls.parse(read_json(folder / ADAPTER), str(folder / ADAPTER))


def base_folder(folder: Path, info: AdapterInfo) -> Path:
    """The model folder of the base of an adapter in `folder`, whose weights are those that the parts were trained on.

    A relative path is looked for in the working folder, then in each folder around the adapter, so that both can move
    together. `UserError`, which names the file, if there is none, or its weights are others.
    """
    around = () if info.base.is_absolute() else folder.resolve().parents
    places = (info.base, *(parent / info.base for parent in around))
    base = next(filter(None, map(find_model_folder, places)), None)
    if base is None:
        raise UserError(
            f"{folder / ADAPTER}: base: {info.base}: not a model folder; expected the model that the parts belong to"
        )
    file = weights_file(base)
    if info.sha256 is not None and (found := sha256_of(file)) != info.sha256:
        problem = f"other weights (SHA-256 {found[:12]}) than those that {folder} was trained on"
        raise UserError(f"{file}: {problem}; expected {info.sha256[:12]}, as {ADAPTER} there says")
    return base


def add_parts(weights: Mapping[str, Tensor], folder: Path, info: AdapterInfo) -> dict[str, Tensor]:
    """The weights of a base with the parts in `folder` added, in the precision of the parts.

    `UserError`, which names file and tensor, for a part that fits no weight.
    """
    path = folder / ADAPTER_WEIGHTS
    check_files(folder, (ADAPTER_WEIGHTS,))
    parts = read_tensors(path)
    dtype = next((part.dtype for part in parts.values()), None)
    merged = {name: tensor.to(dtype) for name, tensor in weights.items()}
    for name in info.rounded:
        if info.precision == "float32" or f"{name}.weight" not in merged:
            raise UserError(f"{folder / ADAPTER}: rounded: {name}: {info.base} has no such map of {info.precision}")
        merged[f"{name}.weight"] = dense(round_to_few_bits(merged[f"{name}.weight"], info.precision))
    for name, part in parts.items():
        owner, _, kind = name.rpartition(".")
        if name in info.whole:
            merged[name] = part
        elif kind != DOWN:
            problem = f"{path}: tensor {name}, of shape {list(part.shape)}: fits no weight of {info.base}"
            down_RI, weight_OI = parts.get(f"{owner}.{DOWN}"), merged.get(f"{owner}.weight")
            if kind != UP or down_RI is None or weight_OI is None:
                raise UserError(problem)
            if weight_OI.shape != (len(part), down_RI.shape[-1]) or part.shape[-1] != len(down_RI):
                raise UserError(problem)
            parts_of_map = LowRankParts(weight_OI, part, down_RI, info.alpha / info.rank)
            merged[f"{owner}.weight"] = low_rank_sum(parts_of_map)
    return merged
