"""Text before training: deduplication, `prepare` with BPE, the loader, and opening ten gigabytes of tokens.

`python benchmarks/data.py [--only CELL...] [--documents N] [--runs N] [--megabytes 10 100]`; other cells stay as they
were recorded. `memory`, which is measured if it is named, takes half an hour for `--megabytes 10 100 1000`.

Deduplication on one core: signatures against datatrove's, records from text to decisions, and the whole command.
Documents of 400 words are drawn from a vocabulary of 20,000; a tenth are near copies of others. Rates are of the
process's own processor time, which other programs disturb less than the clock. Needs `pip install 'linnet[data]'`.

The filters of FineWeb on one core, from a file of stories to files of those that stay, against datatrove's filters in
a chain, which must leave the same documents.

`prepare` with a BPE of 8,192 tokens reads stories, divides and checks them, holds some out and writes shards; the bare
`tokenizers` library, with the same cores, reads the file, encodes the same documents and writes their ids.

`memory` runs `linnet data clean`, `data dedup` and `prepare` with two workers on texts of growing size, and adds up the
resident memory of all their processes, shared pages as often as they are mapped.

The loader makes batches of 8 windows of 1,024 tokens, on data of which every block was read before, and on ten
gigabytes of which none was: what reading one takes, as a share of a step of 200,000 tokens a second, and how long such
a step, which computes on one core, waits for one that is read while the step before is taken, as in training.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import tokenizers
import torch

from harness import RESULTS, contest, gate, report
from linnet.data.clean import clean
from linnet.data.cleaning_steps import CleaningSpec, simple_tokenizer
from linnet.data.comparison import DeduplicationSpec, decide, describe
from linnet.data.corpus_tokenizer import train_tokenizer
from linnet.data.loader import Batches
from linnet.data.minhash import hash_shingles, hash_words, minhash
from linnet.data.prepare import prepare, prepare_texts
from linnet.data.shards import BLOCK_BYTES, SHARD_TOKENS, BlockHashes, ShardInfo, write_manifest
from linnet.data.sources import DEFAULT_SEPARATOR
from linnet.data.token_data import TokenData, read_manifest
from linnet.data.workers import ReadAhead, batched_texts
from linnet.stories import story

NEAR_LIMIT, EXACT_LIMIT = 2_000, 50_000
"""Documents a second on one core."""

FILTERS_LIMIT = 0.1
"""What cleaning may take more than datatrove alone."""

PREPARE_LIMIT, LOADER_LIMIT, OPENING_LIMIT_S = 0.8, 0.01, 2.0
"""Of the bare library's speed; of a step's time; seconds from the import to the first batch."""

STEP_TOKENS_PER_S, BATCH_SIZE, CONTEXT_LENGTH, STEPS = 200_000, 8, 1024, 100
STEP_S = BATCH_SIZE * CONTEXT_LENGTH / STEP_TOKENS_PER_S
STORIES_MB, LOADER_STORIES, BPE_TOKENS, SPARSE_BYTES, DOCUMENT_TOKENS = 40, 10_000, 8192, 10_000_000_000, 250

WORDS, VOCABULARY, VALUES, COMPARED, FILTERED_MB = 400, 20_000, 112, 200, 10

MEMORY_LIMIT_MB, SENTENCES, SAMPLE_S = 2_000, 20_000, 0.1
"""The most memory of all processes; sentences that texts are made of; seconds between two looks at the memory."""

MEMORY_STEPS = """
steps: [{kind: c4}, {kind: fineweb_quality}, {kind: exact_duplicates}, {kind: pii}]
"""
"""Quick filters, and a comparison between them, so that text and records are written and read again."""

COMMAND = r"""
import json, re, sys, time
from pathlib import Path
from linnet.data.deduplicate import deduplicate
begun_s = time.process_time()
found = deduplicate([sys.argv[1]], sys.argv[2], workers=1)
peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps([found.read.documents, found.kept.documents, time.process_time() - begun_s, peak]))
"""

OPENING = r"""
import json, re, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[5])
from data import waited_s
from linnet.data.loader import Batches, document_windows
from linnet.data.token_data import TokenData
begun_s = time.perf_counter()
sequence = TokenData.open(sys.argv[1]).split("train")
length = int(sys.argv[3])
spans = document_windows(sequence, length) if sys.argv[4] == "documents" else None
batches = Batches(sequence, int(sys.argv[2]), length, 0, spans)
batches.batch(0)
opened_s = time.perf_counter() - begun_s
begun_s = time.perf_counter()
for number in range(1, 201):
    batches.batch(number)
read_s = (time.perf_counter() - begun_s) / 200
peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps([opened_s, read_s, waited_s(batches.batch, 201), peak, len(sequence)]))
"""


def made_texts(count: int) -> list[str]:
    """Texts of which every tenth differs from an earlier one in one word."""
    source = random.Random(0)
    vocabulary = ["".join(source.choices("etaoinshrdlucmfwypvbgk", k=source.randint(2, 9))) for _ in range(VOCABULARY)]
    texts = [" ".join(source.choices(vocabulary, k=WORDS)) for _ in range(count)]
    for number in range(10, count, 10):
        words = texts[number - 5].split()
        words[source.randrange(WORDS)] = source.choice(vocabulary)
        texts[number] = " ".join(words)
    return texts


def processor_s(run: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start_s = time.process_time()
    run()
    return time.process_time() - start_s


def rate(texts: list[str], spec: DeduplicationSpec, runs: int, limit: int) -> dict[str, Any]:
    """Documents a processor second, from their text to the decision which of them stay."""

    def whole() -> int:
        records = np.concatenate([describe(batch, spec) for batch in batched_texts(texts)])
        return int(np.count_nonzero(decide(records, 0, spec).reasons))

    removed, copies = whole(), 0 if spec.near is None else (len(texts) - 1) // 10
    gate(
        "near" if spec.near else "exact", abs(removed - copies) <= 0.01 * copies, f"{removed} of {copies} copies found"
    )
    seconds = [processor_s(whole) for _ in range(runs)]
    found = len(texts) / statistics.median(seconds)
    return {
        "documents_per_processor_s": round(found),
        "lowest": round(len(texts) / max(seconds)),
        "highest": round(len(texts) / min(seconds)),
        "limit": limit,
        "within_limit": found >= limit,
    }


def against_datatrove(texts: list[str], runs: int) -> dict[str, Any]:
    """Signatures of word 5-grams from text, 14 x 8 values in both.

    datatrove gets its words by `str.split`, which is faster than spaCy, and its hash from bytes: it does not know that
    xxhash 4 takes no strings.
    """
    import xxhash
    from datatrove.pipeline.dedup import minhash as module

    class Words:
        """Faster than the tokenizers that datatrove has."""

        word_tokenize = staticmethod(str.split)

    hash_bytes = xxhash.xxh64_intdigest
    module.load_word_tokenizer = lambda language: Words()
    with TemporaryDirectory() as folder:
        theirs = module.MinhashDedupSignature(folder)
        theirs._hash_func = lambda text: hash_bytes(text.encode())

        def ours() -> Any:
            return minhash(*hash_shingles(*hash_words(texts), 5), VALUES)

        def other() -> Any:
            found = [theirs.get_signature(theirs.get_shingles(text)) for text in texts]
            return np.array(found, dtype=np.uint64).reshape(len(texts), VALUES)

        copies = np.arange(10, len(texts), 10)
        estimates = [(found[copies] == found[copies - 5]).mean() for found in (ours(), other())]
        close = abs(estimates[0] - estimates[1]) < 0.02
        gate("datatrove", close, "estimated similarity of near copies {:.3f} and {:.3f}".format(*estimates))
        return {"documents": len(texts), **contest(ours, other, runs, warm_up=0).summary()}


def filtered(runs: int, folder: Path) -> dict[str, Any]:
    """FineWeb's filters from a file to files, on one core: the whole of `clean`, and datatrove's filters in a chain.

    datatrove gets linnet's words and sentences, because its own for English need spaCy, and Python's json.
    """
    from datatrove.data import Document
    from datatrove.pipeline import filters

    file, number, written = folder / "stories.jsonl", 0, 0
    with file.open("w") as handle:
        while written < 1_000_000 * FILTERED_MB:
            text = "\n".join(story(0, 4 * number + place).text for place in range(4))
            written += handle.write(json.dumps({"text": text}) + "\n")
            number += 1
    kinds = ("gopher_repetition", "gopher_quality", "c4", "fineweb_quality")
    spec = CleaningSpec.parse({"steps": [{"kind": kind} for kind in kinds]}, "steps")
    words = {"language": simple_tokenizer()}
    chain = (filters.GopherRepetitionFilter, filters.GopherQualityFilter, filters.C4QualityFilter,
             filters.FineWebQualityFilter)  # fmt: skip

    def ours() -> None:
        clean([str(file)], folder / "ours", spec, workers=1, overwrite=True)

    def other() -> None:
        with file.open() as lines, (folder / "theirs.jsonl").open("w") as out:
            documents = (Document(json.loads(line)["text"], str(place)) for place, line in enumerate(lines))
            for each in chain:
                documents = each(**words).run(documents)
            for document in documents:
                out.write(json.dumps({"text": document.text}) + "\n")

    ours(), other()
    found = [[json.loads(line)["text"] for part in parts for line in part.read_text().splitlines()]
             for parts in (sorted((folder / "ours").glob("part-*")), [folder / "theirs.jsonl"])]  # fmt: skip
    gate("filters", found[0] == found[1], f"{len(found[0]):,} of {number:,} documents stay in both")
    seconds = [(processor_s(ours), processor_s(other)) for _ in range(runs)]
    overhead = statistics.median(mine / theirs for mine, theirs in seconds) - 1
    return {
        "megabytes": FILTERED_MB,
        "documents_per_processor_s": round(number / statistics.median(mine for mine, _ in seconds)),
        "over_datatrove": round(overhead, 3),
        "limit": FILTERS_LIMIT,
        "within_limit": overhead <= FILTERS_LIMIT,
    }


def command(texts: list[str], megabytes: int) -> dict[str, Any]:
    """The whole command in a process of its own, reading and writing included."""
    with TemporaryDirectory() as name:
        path, written, number = Path(name) / "text.jsonl", 0, 0
        with path.open("w") as file:
            while written < 1_000_000 * megabytes:
                words = texts[number % len(texts)].split()
                random.Random(number).shuffle(words)
                written += file.write(json.dumps({"text": " ".join(words)}) + "\n")
                number += 1
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, str(path), str(Path(name) / "out")],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    read, kept, seconds, peak = json.loads(done.stdout)
    gate(f"{megabytes} MB", read == number and kept == number, f"{read} read, {kept} kept of {number} different texts")
    return {
        "megabytes": megabytes,
        "documents": read,
        "documents_per_processor_s": round(read / seconds),
        "peak_memory_mb": round(peak / 1e6),
    }


def write_prose(path: Path, size_bytes: int) -> int:
    """Write documents of 25 sentences each, all different, as JSON lines; the number of documents."""
    source, written, number = random.Random(1), 0, 0
    words = ["".join(source.choices("etaoinshrdlucmfwypvbgk", k=source.randint(2, 9))) for _ in range(VOCABULARY)]
    words += ["the", "of", "and", "to", "with"] * (VOCABULARY // 20)  # the words that prose is known by
    sentences = [" ".join(source.choices(words, k=source.randint(8, 24))).capitalize() + "." for _ in range(SENTENCES)]
    with path.open("w") as file:
        while written < size_bytes:
            text = " ".join(source.choices(sentences, k=25))
            written += file.write(json.dumps({"text": text}) + "\n")
            number += 1
    return number


def run_and_watch(command: list[str]) -> tuple[int, float]:
    """Run a command; the highest sum of the resident memory of its processes in bytes, and the seconds it took."""
    begun_s, peak = time.perf_counter(), 0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        total = 0
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        peak = max(peak, total)
        time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)}: {process.stderr.read().decode()}")
    return peak, time.perf_counter() - begun_s


def memory(megabytes: int) -> dict[str, Any]:
    """The peak memory of each verb on a text of some size."""
    found: dict[str, Any] = {"megabytes": megabytes, "limit_mb": MEMORY_LIMIT_MB}
    with TemporaryDirectory() as name:
        folder = Path(name)
        found["documents"] = write_prose(folder / "text.jsonl", 1_000_000 * megabytes)
        linnet, text = [sys.executable, "-m", "linnet"], str(folder / "text.jsonl")
        (folder / "clean.yaml").write_text(MEMORY_STEPS)
        verbs = {
            "clean": [*linnet, "data", "clean", text, "--config", str(folder / "clean.yaml"), "--workers", "2"],
            "dedup": [*linnet, "data", "dedup", text, "--workers", "2"],
            "prepare": [*linnet, "prepare", text, "--tokenizer", "bytes"],
        }
        for verb, command in verbs.items():
            peak, seconds = run_and_watch([*command, "--out", str(folder / verb)])
            if verb != "prepare":
                kept = json.loads((folder / verb / "report.json").read_text())["kept"]["documents"]
                gate(f"{verb} of {megabytes} MB", kept >= 0.99 * found["documents"], f"{kept:,} documents kept")
            found[verb] = {"peak_memory_mb": round(peak / 1e6), "seconds": round(seconds)}
            shutil.rmtree(folder / verb)
            print(f"{verb}, {megabytes} MB: {peak / 1e6:.0f} MB in {seconds:.0f} s", flush=True)
    found["within_limit"] = all(found[verb]["peak_memory_mb"] <= MEMORY_LIMIT_MB for verb in verbs)
    return found


def prepared(runs: int, folder: Path) -> dict[str, Any]:
    """`prepare` from a file of stories to a data folder, and the bare library from it to a file of ids."""
    file, tokenizer, written, texts = folder / "stories.txt", folder / "tokenizer.json", 0, list[str]()
    while written < 1_000_000 * STORIES_MB:
        texts.append(story(0, len(texts)).text)
        written += len(texts[-1].encode())
    file.write_text(DEFAULT_SEPARATOR.join(texts))
    train_tokenizer([str(file)], "bpe", BPE_TOKENS).save(tokenizer)

    def bare() -> int:
        library, tokens = tokenizers.Tokenizer.from_file(str(tokenizer)), 0
        end, documents = library.token_to_id("<|end|>"), file.read_text().split(DEFAULT_SEPARATOR)
        with (folder / "bare.bin").open("wb") as handle:
            for first in range(0, len(documents), 1000):
                for found in library.encode_batch_fast(documents[first : first + 1000], add_special_tokens=False):
                    handle.write(np.array([end, *found.ids], dtype=np.uint16).tobytes())
                    tokens += 1 + len(found)
        return tokens

    def ours() -> int:
        manifest = prepare([str(file)], folder / "data", str(tokenizer), overwrite=True)
        return sum(split.tokens for split in manifest.splits.values())

    found, expected = ours(), bare() + 2  # an end token closes each split
    gate("prepare", found == expected, f"{found:,} tokens of {expected:,}")
    timed = contest(ours, bare, runs, warm_up=0).summary()
    # Other programs disturb the processor time less; what one thread does beside another counts in full here.
    timed["times_as_fast_by_processor_time"] = round(
        statistics.median(processor_s(bare) / processor_s(ours) for _ in range(runs)), 3
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"megabytes": STORIES_MB, "documents": len(texts), "cores": cores, **timed, "limit": PREPARE_LIMIT,
            "within_limit": timed["times_as_fast"] >= PREPARE_LIMIT}  # fmt: skip


def waited_s(read: Callable[[int], object], first: int) -> float:
    """The mean time that a step waits for its batch, over `STEPS` steps that compute on one core."""
    torch.set_num_threads(1)
    matrix, waits, ahead = torch.randn(256, 256), list[float](), ReadAhead(read)
    with closing(ahead):
        ahead.take(first, first + 1)
        for number in range(first + 1, first + 1 + STEPS):
            end_s = time.perf_counter() + STEP_S
            while time.perf_counter() < end_s:
                matrix @ matrix
            begun_s = time.perf_counter()
            ahead.take(number, number + 1)
            waits.append(time.perf_counter() - begun_s)
    return statistics.fmean(waits)


def loader(folder: Path) -> dict[str, Any]:
    """The shares of a step's time that reading a batch takes, and waiting for it, all blocks having been read."""
    prepare_texts([story(0, number).text for number in range(LOADER_STORIES)], ["a story"], folder / "bytes", "bytes")
    sequence = TokenData.open(folder / "bytes").split("train")
    batches = Batches(sequence, BATCH_SIZE, CONTEXT_LENGTH, 0, None, document_starts=True)
    count = batches.examples_per_epoch // BATCH_SIZE
    tokens = np.concatenate([batches.batch(number).tokens.numpy().ravel() for number in range(count)])
    gate("loader", len(tokens) >= 0.9 * len(sequence) - 1e5, f"an epoch reads {len(tokens):,} of {len(sequence):,}")
    seconds = []
    for number in range(count, 3 * count):
        begun_s = time.perf_counter()
        batches.batch(number)
        seconds.append(time.perf_counter() - begun_s)
    read_s = statistics.fmean(seconds)
    return {"batch_ms": round(1e3 * read_s, 3), **waiting(read_s, waited_s(batches.batch, 3 * count))}


def waiting(read_s: float, waits_s: float) -> dict[str, Any]:
    """Shares of a step's time: to read its batch, and to wait for it, which has the limit."""
    share = waits_s / STEP_S
    return {"share_of_step": round(read_s / STEP_S, 5), "waiting_share": round(share, 5), "limit": LOADER_LIMIT,
            "within_limit": share < LOADER_LIMIT}  # fmt: skip


def write_sparse(folder: Path) -> int:
    """A data folder of `SPARSE_BYTES` of tokens, files with holes that take no room; returns its tokens."""
    prepare_texts(["a" * 3000], ["b" * 3000], folder, "bytes")
    manifest, tokens = read_manifest(folder), SPARSE_BYTES // 2
    zeros, starts, shards = BlockHashes(), np.arange(0, SHARD_TOKENS, DOCUMENT_TOKENS, dtype="<u4"), list[ShardInfo]()
    zeros.add(bytes(BLOCK_BYTES))
    places, rest = BlockHashes(), BlockHashes()
    places.add(starts.tobytes())
    rest.add(bytes(2 * SHARD_TOKENS % BLOCK_BYTES))
    blocks = {"tokens": zeros.all() * (2 * SHARD_TOKENS // BLOCK_BYTES) + rest.all(), "starts": places.all()}
    for number in range(tokens // SHARD_TOKENS):
        shard = ShardInfo(
            file=f"train-{number:05d}.bin", tokens=SHARD_TOKENS, documents=len(starts), blocks=dict(blocks)
        )
        with shard.path(folder, "tokens").open("wb") as handle:
            handle.truncate(2 * SHARD_TOKENS)
        shard.path(folder, "starts").write_bytes(starts.tobytes())
        shards.append(shard)
    total, documents = SHARD_TOKENS * len(shards), len(starts) * len(shards)
    split = manifest.splits["train"].model_copy(
        update={"tokens": total, "targets": total - 1, "documents": documents, "bytes": total, "shards": shards}
    )
    write_manifest(folder, manifest.model_copy(update={"splits": {**manifest.splits, "train": split}}))
    return total


def opening(runs: int) -> dict[str, Any]:
    """From a folder of ten gigabytes to the first batch, in a process of its own, imports not counted."""
    found: dict[str, Any] = {"gigabytes": SPARSE_BYTES / 1e9, "limit_s": OPENING_LIMIT_S}
    here = str(Path(__file__).parent)
    with TemporaryDirectory() as name:
        tokens = write_sparse(Path(name))
        for windows in ("stream", "documents"):
            command = [sys.executable, "-c", OPENING, name, str(BATCH_SIZE), str(CONTEXT_LENGTH), windows, here]
            made = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                    for _ in range(runs)]  # fmt: skip
            gate(windows, all(each[4] == tokens for each in made), f"{made[0][4]:,} tokens of {tokens:,}")
            opened_s, read_s, waits_s, peak = (statistics.median(each[place] for each in made) for place in range(4))
            found[windows] = {
                "first_batch_s": round(opened_s, 3),
                "within_limit": opened_s < OPENING_LIMIT_S,
                "peak_memory_mb": round(peak / 1e6),
                "unread": waiting(read_s, waits_s),
            }
    return found


def main() -> None:
    """Check, then time."""
    timed = ("minhash", "exact", "datatrove", "filters", "command", "prepare", "loader", "opening")
    cells = (*timed, "memory")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=cells, default=timed, help="the cells to measure")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100], help="of text for the whole command")
    args = parser.parse_args()
    torch.set_num_threads(1)
    record = RESULTS / "data.json"
    results = json.loads(record.read_text())["results"] if record.is_file() and args.only != timed else {}
    if {"minhash", "exact", "datatrove", "command"} & set(args.only):
        texts = made_texts(args.documents)
        size = sum(map(len, texts)) / len(texts)
        results["texts"] = f"{args.documents:,} of {WORDS} words, {size:,.0f} bytes each"
    with TemporaryDirectory() as name:
        folder = Path(name)
        measures: dict[str, Callable[[], Any]] = {
            "minhash": lambda: rate(texts, DeduplicationSpec(), args.runs, NEAR_LIMIT),
            "exact": lambda: rate(texts, DeduplicationSpec(near=None), args.runs, EXACT_LIMIT),
            "datatrove": lambda: against_datatrove(texts[:COMPARED], args.runs),
            "filters": lambda: filtered(args.runs, folder),
            "command": lambda: [command(texts, megabytes) for megabytes in args.megabytes],
            "prepare": lambda: prepared(args.runs, folder),
            "loader": lambda: loader(folder),
            "opening": lambda: opening(args.runs),
            "memory": lambda: [memory(megabytes) for megabytes in args.megabytes],
        }
        for cell in cells:  # in this order
            if cell in args.only:
                results[cell] = measures[cell]()
    report("data", results)


if __name__ == "__main__":
    main()
