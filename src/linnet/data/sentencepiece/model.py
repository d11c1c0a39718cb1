"""Text to tokens by the `sentencepiece` package, from a model that is built in memory as its description tells."""

from functools import cached_property
from typing import Any

from linnet.core.errors import UserError
from linnet.data.sentencepiece.description import SentencePieceDefinition


class SentencePiece:
    """A SentencePiece model at work; it is built when the first text comes, and only then the package is needed."""

    def __init__(self, description: SentencePieceDefinition, origin: str) -> None:
        self._description = description
        self._origin = origin

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, on all cores. `UserError` where the package is missing, or refuses the model."""
        ids: list[list[int]] = self._processor.encode(texts)
        return ids

    @cached_property
    def _processor(self) -> Any:
        model = _model(self._description, protobuf_classes(self._origin))
        return load_processor(model.SerializeToString(), self._origin)


def protobuf_classes(origin: str) -> Any:
    """The module with the classes of the format, `ModelProto` above all; they are made as it is imported."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception as error:  # a protobuf that does not fit has errors of its own
        raise UserError(f"{origin}: needs sentencepiece: pip install 'linnet[sentencepiece]' ({error})") from None
    return sentencepiece_model_pb2


def load_processor(model: bytes, origin: str) -> Any:
    """The package's `SentencePieceProcessor` of a serialized model, which it checks; `UserError` for one it refuses."""
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise UserError(f"{origin}: not a SentencePiece model ({str(error).strip().splitlines()[0]})") from None


def _model(told: SentencePieceDefinition, classes: Any) -> Any:
    """The protocol buffer with all that decides how a text is encoded.

    Scores differ from the original's where only their order matters (of byte-pair encoding), or nothing (of pieces that
    SentencePiece scores by a rule of its own, or never takes).
    """
    pieces = zip(told.pieces, told.scores, _types(told), strict=True)
    return classes.ModelProto(
        pieces=[{"piece": piece, "score": score, "type": kind} for piece, score, kind in pieces],
        trainer_spec={"model_type": told.kind.upper(), "byte_fallback": told.byte_fallback},
        normalizer_spec={
            "precompiled_charsmap": told.charsmap or b"",
            "add_dummy_prefix": told.dummy_prefix,
            "remove_extra_whitespaces": told.collapse,
        },
    )


def _types(told: SentencePieceDefinition) -> list[str]:
    """What each piece is, by the names of the format."""
    types = dict.fromkeys(range(len(told.pieces)), "NORMAL")
    types |= {token: "BYTE" if told.is_byte(token) else "CONTROL" for token in told.reserved}
    types |= dict.fromkeys(told.user_defined, "USER_DEFINED") | dict.fromkeys(told.unused, "UNUSED")
    types[told.unknown] = "UNKNOWN"
    return list(types.values())
