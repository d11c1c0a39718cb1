"""The held-out text that a run is measured on: the same tokens each time."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from linnet.data.labels import rows_of
from linnet.data.loader import validation_windows
from linnet.data.pairs import validation_pairs
from linnet.data.shards import TokenData
from linnet.data.windows import document_windows
from linnet.evaluation.frozen import calibration_tokens
from linnet.evaluation.likelihood import Evaluation
from linnet.evaluation.measure import evaluate_windows
from linnet.model.decoder import Decoder
from linnet.training.distributed import Batch, Processes
from linnet.training.spec import TrainingSpec


class HeldOut:
    """The validation set of a resolved run."""

    def __init__(self, data: TokenData, spec: TrainingSpec, token_bytes_V: Tensor) -> None:
        """token_bytes_V: bytes of each token's text, on the device of the model."""
        assert spec.context_length is not None, "an unresolved run"
        self._spec, self._end_id, self._token_bytes_V = spec, data.tokenizer.end_id, token_bytes_V
        self._tokens = data.split("validation")
        self._pairs = rows_of(data, "validation") if data.holds_rows else None
        self._windows = document_windows(self._tokens, self._end_id, spec.context_length)
        self._calibration_1T = calibration_tokens(data, spec.evaluate.calibrate_on, spec.context_length)

    def measure(
        self, decoder: Decoder, processes: Processes, part: Callable[[Iterable[Batch]], Iterator[Batch]]
    ) -> Evaluation:
        """In the precision of the weights. `part` hands out the batches that this process measures."""
        spec = self._spec
        amount = spec.batch_size, spec.evaluate.tokens
        if self._pairs is not None:
            batches = validation_pairs(self._pairs, *amount)
        else:
            batches = validation_windows(self._tokens, self._windows, self._end_id, *amount)
        assert spec.context_length is not None, "an unresolved run"
        reading = self._token_bytes_V, spec.context_length, self._calibration_1T
        return evaluate_windows(decoder, part(batches), *reading, total=processes.total)
