from pathlib import Path

import pytest

from linnet.core.errors import UserError
from linnet.data.data_folder import TokenRow, prepare_rows
from linnet.data.loader import document_rows
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.ops.cross_entropy import IGNORE_INDEX

NO = IGNORE_INDEX
TOKEN_ROWS = [
    TokenRow([256, 1, 2, 3], [NO, NO, 7, 2]),
    TokenRow([256, 4], [NO, 5]),
    TokenRow([256, 9, 9, 9, 9, 9], [6, NO, NO, NO, NO, 8]),
]


def test_rows_of_tokens_are_read_back(tmp_path: Path):
    tokenizer = Tokenizer.train("bytes", [])
    manifest = prepare_rows(TOKEN_ROWS, TOKEN_ROWS[:1], tmp_path / "data", tokenizer, "rows")
    data = TokenData.open(tmp_path / "data")
    sequence = data.split("train")
    rows = document_rows(sequence)
    assert data.is_rows and len(rows) == 3 and rows.counts_N.tolist() == [2, 1, 2]
    batch = rows.read(sequence, [1, 0])
    assert batch.tokens.tolist() == [[256, 4, 256, 256], [256, 1, 2, 3]]
    assert batch.labels.tolist() == [[NO, 5, NO, NO], [NO, NO, 7, 2]]
    assert rows.read(sequence, [2]).labels.tolist() == [TOKEN_ROWS[2].targets]
    info = manifest.splits["train"]
    assert (info.documents, info.tokens, info.targets, info.bytes) == (3, 4 + 2 + 6 + 1, 5, 3 + 1 + 5)
    assert manifest.sources[0].file == "rows" and manifest.sources[0].documents == 4
    with pytest.raises(UserError, match="reads pairs"):
        data.check_prefixes("model.prefix: true")
