"""Export of low-rank parts in the format of PEFT (https://huggingface.co/docs/peft), for models of Transformers.

A published model has the rows of some of our maps as maps of their own (queries, keys, values). The parts of such a map
are `W + s U D`, so that each published map has its rows of `U` and all of `D`: `lora_B` and `lora_A` of PEFT.

Legend: `O` outputs, `I` inputs, `R` rank.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.atomic import atomic_directory
from linnet.core.errors import UserError
from linnet.core.files import read_json, sha256_of, write_json
from linnet.core.spec import Spec
from linnet.interop.families.matching import match_family
from linnet.model.folder import CONFIG, WEIGHTS, find_model_folder
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder
from linnet.training.lora import ADAPTER, ADAPTER_WEIGHTS
from linnet.training.metrics import ADAPTER_FOLDER

PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."


class AdapterInfo(Spec):
    """What `adapter.json` says: the model folder of the base, the hash of its weights, and the settings of the parts.

    whole: the names of other tensors that were trained.
    """

    base: Path
    sha256: str | None
    rank: PositiveInt
    alpha: PositiveFloat
    parts: str
    whole: tuple[str, ...] = ()


def export_peft(source: str | Path, out: str | Path) -> dict[str, Any]:
    """Write the low-rank parts of a run (`RUN`, or `RUN/adapter`) into the folder `out`, as PEFT reads them.

    Returns the content of `adapter_config.json`. `UserError` if there are none, the base is not the one that they were
    trained on, other tensors were trained as well, or the model is of no family of Transformers.
    """
    folder, out = _adapter_folder(Path(source)), Path(out)
    check_new_folder(out, "a new folder")
    info = AdapterInfo.parse(read_json(folder / ADAPTER), str(folder / ADAPTER))
    if info.whole:
        names = ", ".join(info.whole)
        raise UserError(
            f"{folder}: {names}: trained as well, as the vocabulary has grown; expected low-rank parts alone"
        )
    spec = _base_of(info, folder)
    named = peft_tensors(read_tensors(folder / ADAPTER_WEIGHTS), spec)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(info.base),
        "r": info.rank,
        "lora_alpha": info.alpha,
        "target_modules": sorted({name.split(".")[-3] for name in named}),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with atomic_directory(out) as made:
        write_tensors(made / PEFT_WEIGHTS, named, {"format": "pt"})
        write_json(made / PEFT_CONFIG, config)
    return config


def peft_tensors(parts: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """The parts (`MAP.up` `[O, R]`, `MAP.down` `[R, I]`) by PEFT's names; `UserError` for a model of no family."""
    table = match_family(spec).tensors
    if table.transposed:
        raise UserError(f"{spec.name}: its family stores maps as [inputs, outputs]; expected a model such as a Llama")
    ups = {f"{name.removesuffix('.up')}.weight": part for name, part in parts.items() if name.endswith(".up")}
    named = dict[str, Tensor]()
    for published, up_OR in table.to_published(ups, spec).items():
        named[f"{_PREFIX}{published.removesuffix('.weight')}.lora_B.weight"] = up_OR.contiguous()
    for ours in ups:
        for published in table.names([ours], spec):
            down_RI = parts[f"{ours.removesuffix('.weight')}.down"]
            named[f"{_PREFIX}{published.removesuffix('.weight')}.lora_A.weight"] = down_RI.clone()
    return named


def _adapter_folder(source: Path) -> Path:
    folder = next((each for each in (source, source / ADAPTER_FOLDER) if (each / ADAPTER).is_file()), None)
    if folder is None:
        accepted = f"the folder of a run with training.lora, which has {ADAPTER_FOLDER}/{ADAPTER}"
        raise UserError(field="model", value=source, accepted=accepted)
    return folder


def _base_of(info: AdapterInfo, folder: Path) -> ModelSpec:
    """The description of the model that the parts belong to."""
    base = find_model_folder(info.base)
    if base is None:
        raise UserError(f"{folder / ADAPTER}: base: {info.base}: not a model folder; expected where it is now")
    if info.sha256 is not None and sha256_of(base / WEIGHTS) != info.sha256:
        raise UserError(
            f"{folder / ADAPTER}: base: {info.base}: other weights than those that the parts were trained on"
        )
    return ModelSpec.load(base / CONFIG)
