"""`linnet serve` beside llama-server and `transformers serve`: tokens a second and the time to the first token.

`llama-110m` with random weights in four precisions, `ted-110m`, 1, 8 and 32 clients at the same time; a conversation of
50 turns; 32 clients with one long prompt. Answers are compared before anything is timed. Each cell is written when it
is measured, and is not measured again on the same machine and commit.

`python benchmarks/serve.py --prepare ...` makes models, exports and compiled steps before the machine is quiet;
`python benchmarks/serve.py --llama-server PATH --transformers PYTHON` measures; `--quick` tries the script.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness import RESULTS, gate, machine
from linnet.core.files import write_text
from linnet.inference.language_model import load
from serve_clients import Reply, complete, figures, stream, together
from serve_servers import SMALL, Programs, RunningServer, Sizes, model_folder, spec_of, words

ROUNDS = 3
CHECKED_TOKENS = 24
PRECISIONS = ("float32", "int8", "bfloat16", "int4")
"""In the order of importance."""


class Record:
    """The cells that were measured on this machine and commit; a file is written after each."""

    def __init__(self, path: Path) -> None:
        self.path, self.machine, self.cells = path, machine(), dict[str, Any]()
        if path.exists():
            before = json.loads(path.read_text())
            if _without_date(before["machine"]) == _without_date(self.machine):
                self.cells = before["results"]

    def measure(self, name: str, cell: Callable[[], dict[str, Any]]) -> None:
        """Measure a cell that is missing, and write it."""
        if name not in self.cells:
            self.cells[name] = cell()
            record = {"benchmark": "serve", "machine": self.machine, "results": self.cells}
            write_text(self.path, json.dumps(record, indent=2) + "\n")
            print(f"{name}: {json.dumps(self.cells[name])}", flush=True)


def _without_date(of: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in of.items() if key != "date"}


def check(servers: Sequence[RunningServer], folder: Path, precision: str, sizes: Sizes) -> dict[str, Any]:
    """The gate: ours answers as in Python, alone and among others; in float32 the other servers answer the same.

    Of other precisions, which round elsewhere, the share of the text that agrees is returned.
    """
    prompts = [words(sizes.prompt_words, seed) for seed in range(3)]
    model = load(folder, "cpu", precision)
    expected = [model.generate(prompt, CHECKED_TOKENS, temperature=0.0) for prompt in prompts]
    found = {
        server.name: [asyncio.run(complete(server, each, CHECKED_TOKENS)).text for each in prompts]
        for server in servers
    }
    crowd, _ = asyncio.run(together(servers[0], [[prompt] for prompt in prompts * 3], CHECKED_TOKENS))
    found["linnet among others"] = [reply.text for reply in crowd]
    agree = {name: round(_agreement(texts, expected), 3) for name, texts in found.items()}
    exact = [name for name in agree if precision == "float32" or name == "linnet"]
    holds = all(agree[name] == 1.0 for name in exact)
    gate(f"{folder.name} {precision}", holds, f"share of the text that is that of Python: {agree}")
    return agree


def _agreement(texts: Sequence[str], expected: Sequence[str]) -> float:
    """The share of characters before the first difference."""
    same = total = 0
    for index, text in enumerate(texts):
        known = expected[index % len(expected)]
        total += len(known)
        equal = (at for at, (one, other) in enumerate(zip(text, known, strict=False)) if one != other)
        same += next(equal, min(len(text), len(known)))
    return same / total


def at_once(
    servers: Sequence[RunningServer],
    clients: int,
    requests: int,
    rounds: int,
    sizes: Sizes,
    agree: dict[str, float],
) -> dict[str, Any]:
    """So many clients of each server in turn, each with prompts that no other request has. agree: of `check`."""
    rates: dict[str, list[float]] = {server.name: [] for server in servers}
    replies: dict[str, list[Reply]] = {server.name: [] for server in servers}
    for turn in range(rounds):
        for server in servers:
            if turn >= (server.rounds or rounds):
                continue
            count = 1 if server.rounds == 1 else requests
            seed = 1000 * (clients + 100 * turn)
            prompts = [[words(sizes.prompt_words, seed + 10 * c + r) for r in range(count)] for c in range(clients)]
            each, elapsed_s = asyncio.run(together(server, prompts, sizes.answer))
            rates[server.name].append(figures(each, elapsed_s)["tokens_per_s"])
            replies[server.name] += each
    found: dict[str, Any] = {"agree": agree}
    for name, each in replies.items():
        found[name] = {**figures(each, 1.0), "tokens_per_s": statistics.median(rates[name]), "all": rates[name]}
    for name in rates.keys() - {"linnet"}:
        ratios = [ours / theirs for ours, theirs in zip(rates["linnet"], rates[name], strict=False)]
        found[name]["ours_times_as_fast"] = round(statistics.median(ratios), 3)
    return found


def conversation(server: RunningServer, sizes: Sizes) -> dict[str, Any]:
    """Turns of one conversation: seconds of the first and the last ones, and how much of each was read again."""
    messages: list[dict[str, str]] = []
    turns_s, first_ms, read = [], [], []
    for turn in range(sizes.turns):
        messages.append({"role": "user", "content": words(sizes.turn_words, turn)})
        body = {"messages": messages, "max_tokens": sizes.turn_answer, "temperature": 0}
        reply = asyncio.run(stream(server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}))
        messages.append({"role": "assistant", "content": reply.text})
        turns_s.append(reply.all_s)
        first_ms.append(reply.first_s * 1e3)
        read.append(reply.usage["prompt_tokens"] - reply.usage["prompt_tokens_details"]["cached_tokens"])
    few = max(2, sizes.turns // 5)
    early, late = statistics.median(turns_s[1 : 1 + few]), statistics.median(turns_s[-few:])
    return {
        "turns": sizes.turns,
        "tokens": reply.usage["total_tokens"],
        "early_s": round(early, 4),
        "late_s": round(late, 4),
        "late_over_early": round(late / early, 3),
        "first_token_ms": [round(statistics.median(each), 1) for each in (first_ms[1 : 1 + few], first_ms[-few:])],
        "most_tokens_read_again": max(read[1:]),
    }


def session_bytes(server: RunningServer, sizes: Sizes, policy: str | None) -> dict[str, Any]:
    """The same conversation as a session: bytes of its state after a fifth of the turns and after all."""
    state = server.post("/v1/sessions", text=words(1, 0), cache_policy=policy)["id"]
    sizes_bytes = []
    for turn in range(sizes.turns):
        body = {"prompt": " " + words(sizes.turn_words, turn), "max_tokens": sizes.turn_answer, "temperature": 0}
        state = server.post("/v1/completions", **body, from_state=state, return_state=True)["state"]
        about = json.loads(server.get(f"/v1/sessions/{state}"))
        sizes_bytes.append(sum(part["bytes"] for part in about["layers"]))
    few = max(1, sizes.turns // 5)
    return {"cache_policy": policy or "full", "bytes_early": sizes_bytes[few - 1], "bytes_late": sizes_bytes[-1]}


def shared_prompt(server: RunningServer, clients: int, sizes: Sizes) -> dict[str, Any]:
    """Clients at the same time that ask with one long prompt: how many tokens of prompts were read in all."""
    before = prompt_tokens_read(server)
    prompt = words(sizes.long_words, 77)
    replies, elapsed_s = asyncio.run(together(server, [[prompt]] * clients, 8))
    length, read = replies[0].usage["prompt_tokens"], prompt_tokens_read(server) - before
    same = len({reply.text for reply in replies}) == 1
    gate("one long prompt", same, "the texts of all clients are the same")
    counted = {"clients": clients, "prompt_tokens": length, "tokens_read": int(read)}
    return counted | {"times_read": round(read / length, 3), "seconds": round(elapsed_s, 2)}


def prompt_tokens_read(server: RunningServer) -> float:
    """Tokens of prompts that the server has read, by its metrics."""
    totals = {"linnet_prompt_tokens_total": 1.0, "linnet_cached_prompt_tokens_total": -1.0}
    lines = (line.rpartition(" ") for line in server.get("/metrics").splitlines())
    return sum(totals.get(name.partition("{")[0], 0.0) * float(value) for name, _, value in lines if "{" in name)


def prepare(programs: Programs, folders: dict[str, Path], sizes: Sizes) -> None:
    """Exports of all servers, and compiled steps for one stream and for several."""
    cells = [("attention", precision) for precision in PRECISIONS]
    for name, precision in [*cells, *((mixer, "float32") for mixer in sizes.mixers)]:
        only_ours = programs if name == "attention" else Programs(programs.threads)
        with only_ours.all_of(folders[name], precision) as servers:
            warm_up(servers[0], sizes)
            print(f"{name} {precision}: {', '.join(server.name for server in servers)} answer", flush=True)


def warm_up(server: RunningServer, sizes: Sizes) -> None:
    """Decode until the server has begun to compile its steps, for one stream and for several, and wait for them."""
    for clients in (1, 4):
        for turn in range(2):
            prompts = [[words(8, 9000 + clients + client + turn)] for client in range(clients)]
            asyncio.run(together(server, prompts, 4 * sizes.answer))
            server.wait_for_builds()


def measure(record: Record, programs: Programs, folders: dict[str, Path], sizes: Sizes, rounds: int) -> None:
    """All cells, the most important first."""
    for precision in PRECISIONS:
        names = {clients: f"llama-110m {precision}, {clients} clients" for clients, _ in sizes.requests}
        if all(name in record.cells for name in names.values()):
            continue
        with programs.all_of(folders["attention"], precision) as servers:
            agree = check(servers, folders["attention"], precision, sizes)
            warm_up(servers[0], sizes)
            for clients, requests in sizes.requests:
                cell = partial(at_once, servers, clients, requests, rounds, sizes, agree)
                record.measure(names[clients], cell)
    most = sizes.requests[-1][0]
    for mixer, folder in folders.items():
        with Programs(programs.threads).ours(folder) as server:
            warm_up(server, sizes)
            if mixer == "ted":
                agree = check([server], folder, "float32", sizes)
                for clients, requests in sizes.requests:
                    name = f"ted-110m float32, {clients} clients"
                    record.measure(name, partial(at_once, [server], clients, requests, rounds, sizes, agree))
            record.measure(f"{mixer}: a conversation", partial(conversation, server, sizes))
            policy = sizes.bounded_policy if mixer == "ted" else None
            record.measure(f"{mixer}: a session", partial(session_bytes, server, sizes, policy))
            record.measure(f"{mixer}: one long prompt", partial(shared_prompt, server, most, sizes))


def main() -> None:
    """Measure, or prepare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of each server")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--work", type=Path, default=Path("/tmp/linnet-serve"), help="folder of models and exports")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--llama-ubatch", type=int, default=512, help="see quantized_decode.py")
    parser.add_argument("--transformers", type=Path, help="a Python with transformers[serving]")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve.json")
    parser.add_argument("--prepare", action="store_true", help="make models, exports and compiled steps; time nothing")
    parser.add_argument("--quick", action="store_true", help="a tiny model and short texts; needs --out")
    args = parser.parse_args()
    if args.quick and args.out == RESULTS / "serve.json":
        parser.error("--quick measures nothing; expected --out with another file than the record")
    torch.set_num_threads(args.threads)
    sizes = SMALL if args.quick else Sizes()
    programs = Programs(args.threads, args.llama_server, args.llama_ubatch, args.transformers)
    specs = {"attention": spec_of(sizes.preset)} | {name: spec_of(sizes.preset, m) for name, m in sizes.mixers.items()}
    folders = {name: model_folder(args.work / sizes.preset / spec.name, spec) for name, spec in specs.items()}
    if args.prepare:
        prepare(programs, folders, sizes)
    else:
        measure(Record(args.out), programs, folders, sizes, args.rounds)


if __name__ == "__main__":
    sys.exit(main())
