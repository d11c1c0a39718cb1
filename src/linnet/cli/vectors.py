"""`linnet vectors`: train static word vectors; nearest words and analogies in a file of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from linnet.cli.options import AsJson, option
from linnet.present.show import write, write_json, write_parts

if TYPE_CHECKING:
    from linnet.data.nearest_words import Neighbor, WordVectors

SHOWN_WORDS = 8
"""Words whose nearest are shown after training."""

SHOWN_AMONG = (20, 400)
"""They are drawn evenly from words of these ranks: the most frequent ones are grammar."""

vectors = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Static word vectors: train them on text, look up nearest words and analogies.

    A model begins with such a file by `linnet train --set training.embedding_from=FILE`.

    Example: linnet vectors train stories.txt --out vectors.txt
    """,
)

VectorFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="Vectors in word2vec's or GloVe's format, perhaps compressed (.gz).")
]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="Words to show.")]
MostWords = Annotated[int | None, typer.Option(min=1, metavar="N", help="Read the first N words alone. Default: all.")]


@vectors.command()
def train(
    files: Annotated[
        list[str],
        typer.Argument(metavar="INPUT", help="Files, folders or patterns of text, as `linnet prepare` reads them."),
    ],
    *,
    out: Annotated[Path, option("FILE", "The file to write, in word2vec's text format; compressed if it ends in .gz.")],
    method: Annotated[
        Literal["skipgram", "glove"],
        typer.Option(help="Skip-gram with negative samples (by gensim), or GloVe."),
    ] = "skipgram",
    width: Annotated[int, typer.Option(min=1, metavar="N", help="Numbers in a vector.")] = 100,
    window: Annotated[int, typer.Option(min=1, metavar="N", help="Words to either side that are context.")] = 5,
    min_count: Annotated[int, typer.Option(min=1, metavar="N", help="Words that occur less often are left out.")] = 5,
    negatives: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of skip-gram: random words for each true one.")
    ] = 5,
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Passes over the text. Default: 5; 25 for GloVe.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        option("PATH", "Train vectors of this tokenizer's tokens, not of words: a tokenizer.json or its folder."),
    ] = None,
    keep_case: Annotated[
        bool, typer.Option("--keep-case", help="Keep capitals; without it words are in lower case.")
    ] = False,
    field: Annotated[str | None, typer.Option(help="Field or column with the text. Default: text.")] = None,
    separator: Annotated[
        str | None, typer.Option("--document-separator", help="The separator between documents in a text file.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Threads of skip-gram; with more than one, the result varies.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Decides the vectors if there is one worker.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train static word vectors, and show the words nearest to some frequent ones.

    Example: linnet vectors train stories.txt --width 128 --out vectors.txt

    Example: linnet vectors train stories.txt --method glove --out glove.txt

    A model of that width starts from them: `linnet train --set training.embedding_from=vectors.txt`. With the model's
    own --tokenizer every token that is text has a vector.
    """
    from linnet.core.errors import UserError
    from linnet.data.tokenizer import Tokenizer
    from linnet.data.word_vector_training import VectorSettings, WordReader, train_vectors, write_vectors

    if out.exists() and not overwrite:
        raise UserError("exists already; --overwrite replaces it", field="out", value=str(out))
    if tokenizer is not None and keep_case:
        raise UserError(
            "--keep-case is of words; a tokenizer's tokens keep their case", field="tokenizer", value=tokenizer
        )
    if method == "glove" and workers > 1:
        raise UserError("GloVe has one worker; leave it out", field="workers", value=workers)
    settings = VectorSettings(
        method=method,
        width=width,
        window=window,
        min_count=min_count,
        negatives=negatives,
        epochs=epochs or (5 if method == "skipgram" else 25),
        seed=seed,
        workers=workers,
    )
    reader = WordReader(files, field, separator, keep_case, None if tokenizer is None else Tokenizer.load(tokenizer))
    trained = train_vectors(reader, settings)
    write_vectors(out, trained.table)
    shown = {word: trained.table.nearest(word, 5) for word in _frequent_words(trained.table)}
    if as_json:
        counts = {"words": len(trained.table.words), "text_words": trained.text_words}
        write_json(
            {
                "file": str(out),
                **counts,
                **settings.model_dump(),
                "nearest": {word: _plain(found) for word, found in shown.items()},
            }
        )
        return
    share = trained.counts_V.sum() / trained.text_words
    _write_neighbors(shown)
    write(f"{len(trained.table.words):,} words have a vector, {share:.1%} of the {trained.text_words:,} in the text\n")
    write(f"written to {out}\n")
    write(
        f"linnet train with --set training.embedding_from={out} --set model.embedding.width={width} begins with them\n"
    )


def _frequent_words(table: "WordVectors") -> list[str]:
    """Words of letters, evenly from the ranks `SHOWN_AMONG`, or from all if there are fewer."""
    words = [word for word in table.words if word.isalpha()]
    first, last = SHOWN_AMONG
    among = words[first:last] if len(words) >= first + SHOWN_WORDS else words
    return among[:: max(1, len(among) // SHOWN_WORDS)][:SHOWN_WORDS]


def _plain(found: "list[Neighbor]") -> list[dict[str, str | float]]:
    return [{"word": neighbor.word, "cosine": neighbor.cosine} for neighbor in found]


def _write_neighbors(shown: "dict[str, list[Neighbor]]") -> None:
    from linnet.present.table import Table

    rows = [
        (word, ", ".join(f"{neighbor.word} {neighbor.cosine:.2f}" for neighbor in found))
        for word, found in shown.items()
    ]
    write_parts(Table("", ("word", "nearest words (cosine similarity)"), rows, text=True))


@vectors.command()
def nearest(
    file: VectorFile,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Words of the file.")],
    count: Count = 10,
    most_words: MostWords = None,
    as_json: AsJson = False,
) -> None:
    """Show the words nearest to each WORD, by cosine similarity.

    Example: linnet vectors nearest vectors.txt happy house
    """
    from linnet.data.nearest_words import WordVectors

    table = WordVectors.read(file, most_words)
    shown = {word: table.nearest(word, count) for word in words}
    if as_json:
        write_json({word: _plain(found) for word, found in shown.items()})
    else:
        _write_neighbors(shown)


@vectors.command()
def analogy(
    file: VectorFile,
    a: Annotated[str, typer.Argument(metavar="A", help="The first word of the known pair: man.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The second: king.")],
    c: Annotated[str, typer.Argument(metavar="C", help="The first word of the pair to complete: woman.")],
    count: Count = 5,
    most_words: MostWords = None,
    as_json: AsJson = False,
) -> None:
    """Show words that are to C as B is to A: the nearest to B - A + C, without these three.

    Example: linnet vectors analogy vectors.txt boy he girl
    """
    from linnet.data.nearest_words import WordVectors

    found = WordVectors.read(file, most_words).analogy(a, b, c, count)
    if as_json:
        write_json({"a": a, "b": b, "c": c, "nearest": _plain(found)})
    else:
        _write_neighbors({f"{b} - {a} + {c}": found})
