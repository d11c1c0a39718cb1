"""The page in a real browser, from a real server: it says what Python says, alone and on any screen."""

import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from small_decoders import block, decoder_with_weights, written
from small_sentencepieces import trained

from browser import PROBE
from devtools import Page, browser_page
from linnet.core.errors import UserError
from linnet.inference.cache_policy import CachePolicies, cache_policy_state
from linnet.inference.decode import decode
from linnet.inference.language_model import LanguageModel, load
from linnet.inference.sampling import Sampling
from linnet.inference.session import Session
from linnet.inference.state import with_room
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece
from linnet.interop.ted import END, import_ted
from linnet.interop.web import runtime
from linnet.interop.web.export import _list_files
from linnet.layers.cache_policy import FULL
from linnet.layers.mixers.ted import EvictionCache
from linnet.model.state import DecoderState
from linnet.model.store import write_model

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[3] / "golden" / "ted_small.safetensors"
PROMPT, COUNT = "once upon a time", 100
POLICY = EvictionCache(top_k=8, threshold=1e-4, min_tokens_to_keep=2)
SLIDERS = {"top_k": 7, "threshold": 17, "minimum": 2}
"""Where they stand for that policy."""

ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}


@dataclass(frozen=True)
class Made:
    """Folders of models by name, and the folder of the page that has them all."""

    models: dict[str, Path]
    site: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """TED of one head and of several with keys, attention, and a model in TED's published layout; float32."""
    from linnet.interop.web.export import export_web

    try:
        runtime._packed()
    except UserError as error:
        pytest.skip(str(error))
    root = tmp_path_factory.mktemp("web")
    keyed = {"kind": "ted", "heads": 2, "rate_bias": True, "key_width": 3, "conv": 3}
    models = {
        "ted": written(root / "ted", decoder_with_weights([block({"kind": "ted"}), block(keyed)])),
        "attention": written(root / "attention", decoder_with_weights([block({"kind": "attention", "heads": 2})])),
        "published": root / "published",
    }
    write_published(root / "original")
    import_ted(root / "original", models["published"])
    export_web(list(models.values()), root / "site", precision="float32")
    return Made(models, root / "site")


def write_published(folder: Path) -> None:
    """The golden model as TED's code would have saved it."""
    folder.mkdir()
    with safe_open(GOLDEN, "pt") as file:
        config = json.loads(file.metadata()["config"])
        state = {name: file.get_tensor(name) for name in file.keys() if name.startswith("state_dict.")}  # noqa: SIM118
    names = ("num_layers", "dim", "hidden_dim", "norm_eps", "vocab_size")
    (folder / "model.json").write_text(json.dumps({name: config[name] for name in names}))
    characters = ["\n", " ", *"abcdefghijklmnopqrstuvwxyz", END]
    ids = {character: n for n, character in enumerate(characters)}
    (folder / "vocab.json").write_text(json.dumps({"int_to_char": characters, "char_to_int": ids}))
    torch.save({name.removeprefix("state_dict."): tensor for name, tensor in state.items()}, folder / "weights.pth")


@contextmanager
def served(folder: Path, headers: dict[str, str] | None = None) -> Iterator[http.server.ThreadingHTTPServer]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def end_headers(self) -> None:
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            super().end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def page(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    with served(made.site) as server, browser_page(folder) as page:
        page.resize(1400)
        page.download_to(folder)
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.until("document.getElementById('write').disabled === false")
        yield page
        assert page.errors == []


def set_to(page: Page, **values: float) -> None:
    for name, value in values.items():
        page.value(f"{{ const one = document.getElementById({name!r}); one.value = {value};"
                   " one.dispatchEvent(new Event('input')); }")  # fmt: skip


def write(page: Page, prompt: str = PROMPT, tokens: int = COUNT, button: str = "write", temperature: int = 0) -> None:
    """Until all models have written; greedily, if `temperature`, the place of its slider, does not say otherwise."""
    set_to(page, temperature=temperature, tokens=tokens)
    page.value(f"document.getElementById('prompt').value = {prompt!r}; document.getElementById({button!r}).click()")
    page.until("document.getElementById('write').disabled === false")


@contextmanager
def filled(page: Page, **texts: str) -> Iterator[None]:
    """With these texts in its fields."""
    for name, text in texts.items():
        page.value(f"document.getElementById({name!r}).value = {json.dumps(text)}")
    yield
    for name in texts:
        page.value(f"document.getElementById({name!r}).value = ''")


def tokens_on(page: Page, number: int) -> list[int]:
    """All of a model's text, the end token that begins it and the prompt among them."""
    card = f"document.querySelectorAll('.card')[{number}]"
    found: list[int] = page.value(f"[...{card}.querySelectorAll('.text span')].map(span => Number(span.dataset.token))")
    return found


def prompt_of(source: LanguageModel) -> list[int]:
    return [source.tokenizer.end_id, *source.tokenizer.encode(PROMPT)]


def greedily(source: LanguageModel, cache_policy: CachePolicies = FULL) -> list[int]:
    """What Python says, the prompt included."""
    state = cache_policy_state(source.decoder, 1, 4 * COUNT, cache_policy)
    return [*prompt_of(source), *following(source, prompt_of(source), state)]


def following(source: LanguageModel, pending: list[int], state: DecoderState) -> list[int]:
    """Greedily chosen behind what is pending; the end token is the last if it comes."""
    end = source.tokenizer.end_id
    steps = decode(source.decoder, [pending], COUNT, Sampling(0), state=state, vocab_size=source.tokenizer.vocab_size)
    said = [token for (token,) in steps if token is not None]
    return said[: said.index(end) + 1] if end in said else said


def test_the_same_tokens_as_python_and_how_fast(page: Page, made: Made):
    write(page)
    for number, model in enumerate(made.models.values()):
        assert tokens_on(page, number) == greedily(load(model, device="cpu"))
    figures = page.value("[...document.querySelectorAll('.figures')].map(one => one.innerText)")
    assert all("tokens/s" in one and "–" not in one for one in figures)
    assert "1 thread (more need the headers of cross-origin isolation" in page.value(
        "document.getElementById('note').innerText"
    )


def test_a_long_prompt_is_read_at_once(page: Page, made: Made):
    """As many pieces as it takes; TED's tokens one by one, since a policy may evict after each."""
    prompt = " ".join([PROMPT] * 20)
    write(page, prompt=prompt, tokens=20)
    for number, model in enumerate(made.models.values()):
        source = load(model, device="cpu")
        begun = [source.tokenizer.end_id, *source.tokenizer.encode(prompt)]
        state = cache_policy_state(source.decoder, 1, len(begun) + COUNT, FULL)
        assert tokens_on(page, number) == [*begun, *following(source, begun, state)][: len(begun) + 20]
    assert (made.site / "models" / "attention" / "prompt.onnx").is_file()
    assert not (made.site / "models" / "ted" / "prompt.onnx").exists()


def test_a_policy_is_python_s(page: Page, made: Made):
    set_to(page, **SLIDERS)
    write(page)
    for number, name in ((0, "ted"), (2, "published")):
        source = load(made.models[name], device="cpu")
        assert tokens_on(page, number) == greedily(source, POLICY) != greedily(source)
    assert tokens_on(page, 1) == greedily(load(made.models["attention"], device="cpu"))
    set_to(page, top_k=0, threshold=9, minimum=1)


def saved_by(page: Page, number: int, folder: Path) -> Path:
    """The file that a model's button gives."""
    page.download_to(folder)
    page.value(f"document.querySelectorAll('.save')[{number}].click()")
    for _ in range(500):
        found = list(folder.glob("*.safetensors"))
        if found:
            return found[0]
        page.value("new Promise(resume => setTimeout(resume, 20))")
    raise AssertionError("nothing was saved")


def load_on(page: Page, number: int, file: Path) -> None:
    page.value(f"document.querySelectorAll('input[type=file]')[{number}].id = 'file'")
    page.give_file("#file", file)
    page.value("document.getElementById('file').removeAttribute('id')")
    page.value("new Promise(resume => setTimeout(resume, 300))")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_state_of_the_page_continues_in_python_and_on_the_page(number: int, page: Page, made: Made, tmp_path: Path):
    source = load(list(made.models.values())[number], device="cpu")
    cache_policy = POLICY if number != 1 else FULL
    set_to(page, **SLIDERS)
    write(page, tokens=30)
    begun = tokens_on(page, number)
    file = saved_by(page, number, tmp_path)
    session = Session.load(source, file)
    assert session._pending == begun[-1:] and session.tokens == len(begun)
    followed = following(source, session._pending, with_room(session._state, session.tokens + COUNT))
    assert [*begun, *followed] == greedily_more(source, begun, cache_policy)
    write(page, prompt="another text")
    set_to(page, top_k=0, threshold=9, minimum=1)
    load_on(page, number, file)
    assert tokens_on(page, number) == begun
    if number != 1:
        assert page.value("document.getElementById('top_k').nextElementSibling.innerText") == "8 tokens"
    set_to(page, **SLIDERS)
    write(page, button="more")
    assert tokens_on(page, number) == [*begun, *followed]
    set_to(page, top_k=0, threshold=9, minimum=1)


def greedily_more(source: LanguageModel, begun: list[int], cache_policy: CachePolicies) -> list[int]:
    """The same, with Python alone from the beginning."""
    state = cache_policy_state(source.decoder, 1, 4 * COUNT, cache_policy)
    return [*begun, *following(source, begun, state)]


@pytest.mark.parametrize("cache_policy", [FULL, POLICY])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_state_of_python_continues_on_the_page(number: int, cache_policy, page: Page, made: Made, tmp_path: Path):
    source = load(list(made.models.values())[number], device="cpu")
    session = Session(source, FULL if number == 1 else cache_policy)
    session.feed(PROMPT)
    session.generate(30, temperature=0, ignore_eos=True)
    session.save(tmp_path / "python.safetensors")
    load_on(page, number, tmp_path / "python.safetensors")
    assert page.value(f"document.querySelectorAll('.problem')[{number}].innerText") == ""
    pending, position = list(session._pending), session.tokens
    write(page, button="more")
    followed = following(source, pending, with_room(session._state, session.tokens + COUNT))
    assert tokens_on(page, number)[position:] == followed
    set_to(page, top_k=0, threshold=9, minimum=1)


def test_a_state_of_another_model_is_refused_in_one_line(page: Page, made: Made, tmp_path: Path):
    write(page, tokens=3)
    before = tokens_on(page, 1)
    load_on(page, 1, saved_by(page, 0, tmp_path))
    problem = page.value("document.querySelectorAll('.problem')[1].innerText")
    assert problem == "ted.safetensors: a stream of another model"
    assert tokens_on(page, 1) == before


def test_stop_ends_a_text_and_more_continues_it(page: Page, made: Made):
    set_to(page, temperature=20, tokens=100_000)
    page.value("document.getElementById('write').click()")
    page.until("document.querySelectorAll('.text span').length > 60")
    page.value("document.getElementById('stop').click()")
    page.until("document.getElementById('write').disabled === false")
    before = len(tokens_on(page, 1))
    write(page, button="more", tokens=5)
    assert before < len(tokens_on(page, 1)) <= before + 5  # fewer where the text ends


SEED, SLIDER = 2**40 + 7, 20
"""A seed of more than 32 bits, and the place of the slider for a temperature of 1."""


def problems_of(page: Page) -> list[str]:
    found: list[str] = page.value("[...document.querySelectorAll('.problem')].map(one => one.innerText)")
    return found


def warmly(source: LanguageModel, tokens: int) -> Session:
    """A session of Python that has generated behind the prompt with the seed."""
    session = Session(source)
    session.feed(PROMPT)
    session.generate(tokens, temperature=1.0, seed=SEED)
    return session


def test_a_seed_gives_the_tokens_of_python_and_goes_on(page: Page, made: Made):
    """Each model has the numbers from the first one on, and continues them whatever then stands in the field."""
    with filled(page, seed=str(SEED)):
        write(page, tokens=40, temperature=SLIDER)
    begun = [tokens_on(page, number) for number in range(3)]
    with filled(page, seed="3"):
        write(page, tokens=40, temperature=SLIDER, button="more")
    for number, model in enumerate(made.models.values()):
        session = warmly(load(model, device="cpu"), 40)
        assert begun[number] == session.token_ids
        session.generate(40, temperature=1.0)
        assert tokens_on(page, number) == session.token_ids != begun[number]
    figures = page.value("[...document.querySelectorAll('.figures')].map(one => one.innerText)")
    assert all(one.endswith(f" · seed\N{NO-BREAK SPACE}{SEED}") for one in figures)


def test_without_a_seed_texts_differ_and_can_be_repeated(page: Page):
    write(page, tokens=40, temperature=SLIDER)
    first, said = tokens_on(page, 1), page.value("document.querySelector('.figures').innerText")
    write(page, tokens=40, temperature=SLIDER)
    assert tokens_on(page, 1) != first
    with filled(page, seed=said.partition(" · seed\N{NO-BREAK SPACE}")[2]):
        write(page, tokens=40, temperature=SLIDER)
    assert tokens_on(page, 1) == first


@pytest.mark.parametrize("number", [0, 1])
def test_random_numbers_continue_in_a_state_of_the_page(number: int, page: Page, made: Made, tmp_path: Path):
    """Behind greedy tokens, which use none, in Python and on the page; a rewind takes back those of the page."""
    source = load(list(made.models.values())[number], device="cpu")
    with filled(page, seed=str(SEED)):
        write(page, tokens=10, temperature=SLIDER)
        write(page, tokens=5, button="more")
        write(page, tokens=10, temperature=SLIDER, button="more")
    begun, file = tokens_on(page, number), saved_by(page, number, tmp_path)
    session = Session.load(source, file)
    assert (session.seed, session._drawn) == (SEED, 20)
    load_on(page, number, file)
    write(page, tokens=20, temperature=SLIDER, button="more")
    session.generate(20, temperature=1.0)
    assert tokens_on(page, number) == session.token_ids != begun
    session.rewind(35)
    assert (session.seed, session._drawn) == (SEED, 10)
    session.generate(5, temperature=0)
    session.generate(30, temperature=1.0)
    assert tokens_on(page, number) == session.token_ids


def test_random_numbers_continue_in_a_state_of_python(page: Page, made: Made, tmp_path: Path):
    session = warmly(load(made.models["attention"], device="cpu"), 20)
    session.save(tmp_path / "python.safetensors")
    load_on(page, 1, tmp_path / "python.safetensors")
    write(page, tokens=20, temperature=SLIDER, button="more")
    session.generate(20, temperature=1.0)
    assert tokens_on(page, 1) == session.token_ids


def shown_on(page: Page, number: int) -> str:
    """What a model has generated, as it is seen."""
    card = f"document.querySelectorAll('.card')[{number}]"
    found: str = page.value(
        f"[...{card}.querySelectorAll('.text span:not(.given)')].map(one => one.textContent).join('')"
    )
    return found


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stop_text_ends_a_text_as_in_python(number: int, page: Page, made: Made):
    """It is not seen, but its tokens are part of the stream; what only may be its beginning is shown at the end."""
    source = load(list(made.models.values())[number], device="cpu")
    whole = source.generate(PROMPT, 60, temperature=0.0)
    assert len(whole) > 40
    stop = [whole[20:23], whole[:2] + "~"]
    session = Session(source)
    session.feed(PROMPT)
    said = session.generate(60, temperature=0, stop=stop)
    assert session.has_stopped and whole.startswith(said) and stop[0] not in said
    written = "\n".join(text.replace("\\", "\\\\").replace("\n", "\\n") for text in stop)
    with filled(page, stops=written):
        write(page, tokens=60)
    assert tokens_on(page, number) == session.token_ids
    assert shown_on(page, number) == said
    write(page, tokens=10, button="more")
    assert shown_on(page, number) == said + session.generate(10, temperature=0)
    with filled(page, stops=whole[:6] + "~"):  # held back, until the number of tokens is reached
        write(page, tokens=6)
    begun = Session(source)
    begun.feed(PROMPT)
    assert shown_on(page, number) == begun.generate(6, temperature=0) != ""


def test_what_is_no_seed_or_stop_text_is_refused_in_one_line(page: Page):
    write(page, tokens=3)
    before = tokens_on(page, 0)
    for field, text, problem in (
        ("seed", "-1", "seed -1: expected a whole number from 0 to 2^63 - 1"),
        ("stops", "a\\q", "stop text a\\q: \\q: expected \\n, \\r, \\t or \\\\"),
    ):
        for button in ("write", "more"):
            with filled(page, **{field: text}):
                write(page, button=button)
            assert problems_of(page) == [problem] * 3
            assert tokens_on(page, 0) == before
    write(page, tokens=3, button="more")
    assert problems_of(page) == [""] * 3


@pytest.mark.parametrize(("width", "dark"), [(400, False), (400, True), (1400, False)])
def test_nothing_is_cut_off(width: int, dark: bool, page: Page):
    page.resize(width, dark=dark)
    write(page, tokens=60)
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value(f"(() => {{ {PROBE}; return cut(document); }})()") == []
    page.resize(1400)


def test_colors_tell_lives_and_what_is_forgotten_has_none(page: Page):
    set_to(page, top_k=1, threshold=0)
    write(page, tokens=20)
    spans = "[...document.querySelectorAll('.text')[0].children]"
    stripes = page.value(f"{spans}.map(one => one.style.getPropertyValue('--life'))")
    titles = page.value(f"{spans}.map(one => one.title.split('\\n'))")
    read = len(stripes) - 1
    assert titles[-1] == ["layer 0: not read yet", "layer 1: not read yet"]
    for layer in range(2):  # of each layer one token is left
        said = [lines[layer].partition(": ")[2] for lines in titles[:-1]]
        assert sorted(said) == ["for ever", *["forgotten"] * (read - 1)]
    assert sum(one.count("transparent") for one in stripes) == 2 * (read - 1)
    set_to(page, top_k=0, threshold=9)


def test_threads_where_the_host_allows(made: Made, tmp_path: Path):
    with served(made.site, ISOLATED) as server, browser_page(tmp_path) as page:
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.until("document.getElementById('write').disabled === false")
        threads = page.value("Math.min(4, navigator.hardwareConcurrency)")
        assert f"{threads} thread" in page.value("document.getElementById('note').innerText")
        write(page, tokens=20)
        assert tokens_on(page, 0) == greedily(load(made.models["ted"], device="cpu"))[: len(tokens_on(page, 0))]
        assert page.errors == []


def test_the_page_works_without_a_network(made: Made, tmp_path: Path):
    with browser_page(tmp_path) as page:
        with served(made.site) as server:
            address = f"http://127.0.0.1:{server.server_port}/"
            page.open(address)
            page.until("document.getElementById('write').disabled === false")
        assert page.value(f"fetch({address!r}, {{ cache: 'no-store' }}).then(() => 'there', () => 'gone')") == "gone"
        page.errors.clear()  # of that request
        write(page)
        for number, model in enumerate(made.models.values()):
            assert tokens_on(page, number) == greedily(load(model, device="cpu"))
        assert page.errors == []


def opened_and_kept(page: Page, address: str) -> None:
    page.open(address)
    page.until("document.getElementById('note').innerText.includes('opens without one.')")


def test_the_page_opens_again_without_a_network(made: Made, tmp_path: Path):
    with browser_page(tmp_path) as page:
        with served(made.site, ISOLATED) as server:
            address = f"http://127.0.0.1:{server.server_port}/"
            opened_and_kept(page, address)
        for again in (address, f"{address}index.html?query#part"):
            opened_and_kept(page, again)
            assert page.value("crossOriginIsolated") is True
        write(page)
        for number, model in enumerate(made.models.values()):
            assert tokens_on(page, number) == greedily(load(model, device="cpu"))
        assert page.value(f"fetch('{address}none').then(() => 'there', () => 'gone')") == "gone"


def test_a_rebuilt_site_is_shown_as_a_whole_from_the_next_visit(made: Made, tmp_path: Path):
    site = tmp_path / "site"
    shutil.copytree(made.site, site)
    with served(site) as server, browser_page(tmp_path / "browser") as page:
        address = f"http://127.0.0.1:{server.server_port}/"
        opened_and_kept(page, address)
        titled = (site / "index.html").read_text().replace("<title>linnet", "<title>another")
        (site / "index.html").write_text(titled)
        (site / "files.js").unlink()
        _list_files(site)
        opened_and_kept(page, address)
        assert page.value("document.title") == "linnet"
        page.open("about:blank")
        for _ in range(40):
            opened_and_kept(page, address)
            if page.value("document.title") == "another":
                break
            page.value("new Promise(resume => setTimeout(resume, 2500))")  # the browser looks for it behind a visit
            page.open("about:blank")
        assert page.value("document.title") == "another"
        assert len(page.value("caches.keys()")) == 1


def test_files_of_other_sites_are_not_cached(made: Made, tmp_path: Path):
    site = tmp_path / "site"
    shutil.copytree(made.site, site)
    with (site / "style.css").open("a") as file:
        file.write("\n")
    with served(site) as server, browser_page(tmp_path / "browser") as page:
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.until("document.getElementById('note').innerText.includes('does not open without one')")
        write(page, tokens=3)


def test_few_bits_speak_too(made: Made, tmp_path: Path):
    from linnet.interop.web.export import export_web

    model = made.models["attention"]
    export_web(model, tmp_path / "site")
    with served(tmp_path / "site") as server, browser_page(tmp_path / "browser") as page:
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.until("document.getElementById('write').disabled === false")
        assert "int8" in page.value("document.querySelector('.about').innerText")
        write(page)
        assert len(tokens_on(page, 0)) == len(prompt_of(load(model, device="cpu"))) + COUNT
        assert page.errors == []


def test_a_model_with_a_sentencepiece_tokenizer(made: Made, tmp_path: Path):
    """Its tokens, the text with the spaces between its words, and a state that knows whether a text has begun."""
    from linnet.interop.web.export import export_web

    (tmp_path / "any.model").write_bytes(trained(byte_fallback=True))
    tokenizer = tokenizer_from_sentencepiece(tmp_path / "any.model")
    decoder = decoder_with_weights([block({"kind": "attention", "heads": 2})], vocab_size=tokenizer.vocab_size)
    write_model(tmp_path / "model", decoder, tokenizer, {})
    export_web(tmp_path / "model", tmp_path / "site", precision="float32")
    source, prompt = load(tmp_path / "model", device="cpu"), " naïve  Lily, ﬁrst"
    begun = [tokenizer.end_id, *tokenizer.encode(prompt)]
    state = cache_policy_state(source.decoder, 1, 4 * COUNT, FULL)
    with served(tmp_path / "site") as server, browser_page(tmp_path / "browser") as page:
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.until("document.getElementById('write').disabled === false")
        write(page, prompt)
        expected = [*begun, *following(source, begun, state)]
        assert tokens_on(page, 0) == expected
        shown = page.value("document.querySelector('.text').textContent")
        assert shown == tokenizer.decode(expected).rstrip("\N{REPLACEMENT CHARACTER}")
        session = Session.load(source, saved_by(page, 0, tmp_path))
        assert session._text.state_dict()["opening"] is False
        assert page.errors == []
