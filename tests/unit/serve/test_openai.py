"""OpenAI's own client against a real server; every answer is compared with what Python gives."""

import base64
import json
from types import SimpleNamespace

import numpy as np
import openai
import pytest
import torch

import linnet
from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.tokenizer import Tokenizer
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import write_model
from linnet.serve import conformance
from linnet.serve.app import Settings
from linnet.serve.host import Limits
from linnet.serve.openai import chat_prompt
from serve_models import CHATML, write_tiny

from .conftest import Running

PROMPT = "Once upon a time"


@pytest.fixture(scope="session")
def client(running):
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session", params=["tiny", "recurrent"])
def model(request, folders):
    return request.param, linnet.load(folders[request.param])


def test_the_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny", "recurrent"]
    assert client.models.retrieve("tiny").owned_by == "linnet"


def test_a_completion_is_what_python_generates(client, model):
    name, own = model
    for settings in (
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 1.0, "seed": 3, "top_p": 0.5},
    ):
        expected = own.generate(PROMPT, 20, **settings)
        answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=20, **settings)
        assert answer.choices[0].text == expected
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        pieces = client.completions.create(model=name, prompt=PROMPT, max_tokens=20, stream=True, **settings)
        assert "".join(piece.choices[0].text for piece in pieces) == expected


def test_penalties_and_bias_reach_the_sampler(client, model):
    name, own = model
    settings = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "temperature": 0.0}
    expected = own.generate(PROMPT, 20, **settings, logit_bias={65: 3.0})
    answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=20, **settings, logit_bias={"65": 3.0})
    assert answer.choices[0].text == expected
    own_fields = {"top_k": 5, "min_p": 0.05, "typical_p": 0.9, "repetition_penalty": 1.3}
    expected = own.generate(PROMPT, 20, seed=4, temperature=1.0, **own_fields)
    answer = client.completions.create(
        model=name, prompt=PROMPT, max_tokens=20, seed=4, temperature=1.0, extra_body=own_fields
    )
    assert answer.choices[0].text == expected


def test_several_prompts_and_answers_are_those_of_their_seeds(client, model):
    name, own = model
    answer = client.completions.create(model=name, prompt=[PROMPT, "And"], n=2, max_tokens=9, seed=5, temperature=1.0)
    texts = [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]
    expected = [own.generate(prompt, 9, seed=seed, temperature=1.0) for prompt in (PROMPT, "And") for seed in (5, 6)]
    assert texts == expected


def test_an_echo_has_the_log_probabilities_of_the_prompt(client, model):
    name, own = model
    ids = own.prompt_tokens(PROMPT)
    answer = client.completions.create(model=name, prompt=ids, max_tokens=1, echo=True, logprobs=2, temperature=0)
    (choice,) = answer.choices
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs.token_logprobs[0] is None
    logprobs_TV = own.decoder.logits(own.decoder.hidden(_batch(ids)))[0].log_softmax(-1).tolist()
    expected = [logprobs_TV[place][token] for place, token in enumerate(ids[1:])]
    assert choice.logprobs.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=1e-4)
    assert len(choice.logprobs.tokens) == len(choice.logprobs.text_offset) == len(ids) + 1
    assert all(len(top) <= 2 for top in choice.logprobs.top_logprobs[1:])
    only = client.completions.create(model=name, prompt=ids, max_tokens=0, echo=True, logprobs=0)
    assert only.choices[0].text == PROMPT and only.usage.completion_tokens == 0


def test_prompts_alone_are_streamed_as_answers_are(client):
    asked = {"model": "tiny", "prompt": [PROMPT, "And"], "n": 2, "max_tokens": 0, "echo": True, "logprobs": 1}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    pieces = [piece for chunk in chunks for piece in chunk.choices]
    texts = [choice.text for choice in whole.choices]
    assert [(piece.index, piece.text) for piece in pieces if piece.finish_reason is None] == list(enumerate(texts))
    assert [piece.logprobs for piece in pieces[::2]] == [choice.logprobs for choice in whole.choices]
    assert [(piece.index, piece.text) for piece in pieces if piece.finish_reason == "length"] == [
        (index, "") for index in range(4)
    ]
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    lines = list(conformance.Client(str(client.base_url), "tiny").lines("/v1/completions", **asked))
    assert [line for line in lines if line][-1] == b"data: [DONE]" and b"usage" not in b"".join(lines)


def _batch(ids):
    return torch.tensor([ids])


def test_a_chat_renders_the_template_of_the_model(client, folders):
    own = linnet.load(folders["tiny"]).parsing_special()
    messages = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Hello"}]
    expected = own.generate("<|system|>Brief.\n<|user|>Hello\n<|assistant|>", 12, temperature=0.0)
    answer = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.choices[0].message.content == expected
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content).decode(errors="replace") == expected
    assert all(token.top_logprobs[0].logprob == pytest.approx(token.logprob) for token in content)
    parts = [{"role": "system", "content": "Brief."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    stream = client.chat.completions.create(
        model="tiny", messages=parts, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == expected
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_a_response_goes_on_with_the_one_before(client):
    first = client.responses.create(model="tiny", input="Hello", max_output_tokens=6, temperature=0)
    second = client.responses.create(
        model="tiny", input="Again", previous_response_id=first.id, max_output_tokens=6, temperature=0
    )
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Again"},
    ]
    chat = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, temperature=0)
    assert second.output_text == chat.choices[0].message.content
    assert second.usage.input_tokens_details.cached_tokens > 0
    with client.responses.stream(model="tiny", input="Hello", max_output_tokens=6, temperature=0) as stream:
        events = list(stream)
    assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == first.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == first.output_text
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="tiny", input="x", previous_response_id="resp-unknown")


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A client of a server with a model of learned positions for 64 tokens, and two that follow from an input."""
    attention, folder = {"kind": "attention", "heads": 2}, tmp_path_factory.mktemp("bounded") / "learned"
    folders = {"learned": str(write_tiny(folder, attention, 1, CHATML, 64, positions="learned"))}
    for name in ("tiny-encoder-decoder", "tiny-prefix"):
        tokenizer, spec = Tokenizer.train("bytes", []), ModelSpec.load(name)
        write_model(folder.parent / name, Decoder(spec).eval(), tokenizer, {})
        folders[name] = str(folder.parent / name)
    server = Running(folders, Limits(), Settings())
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    server.close()


def test_an_answer_without_a_limit_ends_where_learned_positions_do(bounded):
    asked, endless = [{"role": "user", "content": "Hello"}], {"ignore_eos": True}
    chat = bounded.chat.completions.create(model="learned", messages=asked, temperature=0, extra_body=endless)
    assert (chat.choices[0].finish_reason, chat.usage.total_tokens) == ("length", 64)
    response = bounded.responses.create(model="learned", input="Hello", temperature=0)
    assert response.usage.input_tokens < response.usage.total_tokens <= 64
    plain = {"model": "learned", "max_tokens": None, "temperature": 0}
    several = bounded.completions.create(prompt=["a", "a longer one"], extra_body=endless, **plain)
    assert several.usage.completion_tokens == 2 * (64 - len("_a longer one"))
    first = {"return_state": True, "ignore_eos": True}
    kept = bounded.completions.create(model="learned", prompt="Once", max_tokens=9, temperature=0, extra_body=first)
    further = {"from_state": kept.state, "ignore_eos": True}
    rest = bounded.completions.create(prompt=" and", extra_body=further, **plain)
    assert rest.usage.completion_tokens == 64 - len("_Once") - 9 - len(" and")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [{"role": "user", "content": "x" * 64}]}, "the context of 64 tokens is full"),
        ({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 60}, "learned positions end at 64"),
    ],
    ids=["no-room-for-an-answer", "more-tokens-than-positions"],
)
def test_what_learned_positions_do_not_hold_is_refused(bounded, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        bounded.chat.completions.create(model="learned", **fields)


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/embeddings", {"input": ["a", "PROMPT"]}, "input"),
        ("/completions", {"prompt": "PROMPT", "echo": True, "logprobs": 0}, "prompt"),
        ("/completions", {"prompt": "PROMPT", "echo": True, "logprobs": 0, "max_tokens": 0, "stream": True}, "prompt"),
    ],
)
@pytest.mark.parametrize(
    ("model", "prompt", "message"),
    [
        ("learned", "x" * 64, "{}: 65 tokens: expected at most 64 tokens, where the model's learned positions end"),
        ("tiny-encoder-decoder", "x", "{}: the model follows from an input; expected a model of text alone"),
        ("tiny-prefix", "x", "{}: the model follows from an input; expected a model of text alone"),
    ],
    ids=["learned-positions", "encoder", "prefix"],
)
def test_what_a_model_cannot_read_in_one_pass_is_refused(bounded, path, fields, field, model, prompt, message):
    body = json.loads(json.dumps({"model": model, **fields}).replace("PROMPT", prompt))
    with pytest.raises(openai.BadRequestError) as error:
        bounded.post(path, body=body, cast_to=object)
    assert (error.value.body["message"], error.value.param) == (message.format(field), field)


def test_a_context_that_a_prompt_fills_is_read_in_one_pass(bounded):
    text, logprobs = "x" * 63, {"echo": True, "logprobs": 0}
    assert len(bounded.embeddings.create(model="learned", input=text).data) == 1
    answer = bounded.completions.create(model="learned", prompt=text, max_tokens=0, **logprobs)
    assert len(answer.choices[0].logprobs.tokens) == 64


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
TURNS += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def _rendered(content, last, **further):
    """What is read of a question and a last message by a template that prints this for the content."""
    template = ChatTemplate(TURNS.replace("CONTENT", content), "the template", {})
    host = SimpleNamespace(template=template, special_model=SimpleNamespace(prompt_tokens=lambda text: text))
    question = {"role": "user", "content": "Which?"}
    return chat_prompt(host, [question, {"role": "assistant", "content": last, **further}])


ASKED = "<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("last", ["Once", "<", "|", "im", "end", "im_end", "user", "Which?", "", " \n", "a\n b \n"])
@pytest.mark.parametrize("content", ["m.content", "m.content | trim"])
def test_an_answer_that_was_begun_is_continued_at_its_end(content, last):
    assert _rendered(content, last) == ASKED + last.rstrip()


def test_an_answer_that_was_begun_is_continued_as_the_template_prints_it():
    thinking = "m.content.split('</think>')[-1]"
    assert _rendered(thinking, "<think>long</think>Once") == ASKED + "Once"
    assert _rendered("m.content | upper | e", "a < b") == ASKED.replace("Which", "WHICH") + "A &lt; B"
    assert _rendered("m.reason ~ m.content", "", reason="Since").endswith("assistant\nSince")
    assert _rendered("m.content ~ m.content", "ab").endswith("assistant\nabab")


@pytest.mark.parametrize(
    ("content", "further", "message"),
    [
        (
            "'hidden'",
            {},
            "^messages: the template does not print the end of the last one, which is of the assistant; e",
        ),
        ("m.content", {"tool_calls": [{"id": "a"}]}, "^messages: the last one is of the assistant and has tool_calls"),
    ],
)
def test_an_answer_whose_end_is_not_printed_is_not_continued(content, further, message):
    with pytest.raises(UserError, match=message) as error:
        _rendered(content, "Once", **further)
    assert error.value.field == "messages"


@pytest.mark.parametrize("content", ["", None, "  ", []])
def test_an_empty_answer_is_written_from_its_beginning(client, content):
    question = {"role": "user", "content": "Hello"}
    settings = {"model": "tiny", "max_tokens": 5, "temperature": 0}
    alone = client.chat.completions.create(messages=[question], **settings)
    empty = [question, {"role": "assistant", "content": content}]
    begun = client.chat.completions.create(messages=empty, **settings)
    assert (begun.choices, begun.usage.prompt_tokens) == (alone.choices, alone.usage.prompt_tokens)
    bodies = [{"model": "tiny", "messages": each} for each in ([question], empty)]
    read = [client.post("/../tokenize", body=body, cast_to=object) for body in bodies]
    assert read[0] == read[1]
    response = client.responses.create(model="tiny", input=empty, max_output_tokens=5, temperature=0)
    assert response.output_text == alone.choices[0].message.content


def test_embeddings_are_the_mean_of_the_last_hidden_states(client, model):
    name, own = model
    floats = client.embeddings.create(model=name, input=[PROMPT, "And then"], encoding_format="float")
    for text, item in zip([PROMPT, "And then"], floats.data, strict=True):
        assert item.embedding == pytest.approx(own.embed(text).tolist(), abs=1e-5)
    coded = client.embeddings.create(model=name, input=PROMPT)  # the client asks for base64
    assert coded.data[0].embedding == pytest.approx(floats.data[0].embedding)
    assert np.frombuffer(base64.b64decode(base64.b64encode(b"\0" * 8)), np.float32).shape == (2,)


def test_json_follows_its_schema(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "tags": {"type": "array", "maxItems": 1}},
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "x"}],
        max_tokens=300,
        seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}},
    )
    if answer.choices[0].finish_reason == "stop":
        assert set(json.loads(answer.choices[0].message.content)) == {"name", "tags"}


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"temperature": "hot"}, 400, "temperature"),
        ({"n": 0}, 400, "n: 0"),
        ({"suffix": "x"}, 400, "suffix"),
        ({"maximum_tokens": 4}, 400, "did you mean max_tokens"),
        ({"model": "tinny"}, 404, "did you mean tiny"),
        ({"best_of": 4}, 400, "best_of: 4"),
        ({"logit_bias": {"99999": 1.0}}, 400, "logit_bias"),
        ({"prompt": [[1, 99999]]}, 400, "99999"),
        ({"regex": "("}, 400, "regex"),
        ({"stop": [""]}, 400, "stop"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(client, fields, status, message):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4} | fields
    with pytest.raises(openai.APIStatusError) as error:
        client.post("/completions", body=body, cast_to=object)
    assert error.value.status_code == status
    assert message in error.value.body["message"] and "\n" not in error.value.body["message"]


@pytest.mark.parametrize("name", ["tiny", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_the_server_passes_its_conformance_suite(running, name):
    outcomes = list(conformance.run(conformance.Client(running.url, name), []))
    assert len(outcomes) == len(conformance.CASES) >= 18
    assert [outcome for outcome in outcomes if outcome.result != "passed"] == []


@pytest.mark.parametrize(
    ("name", "path", "wrong"),
    [
        ("usage counts", ("usage", "prompt_tokens_details", "cached_tokens"), 0),
        ("without text", ("choices", 0, "text"), "x"),
        ("an array", ("choices", 0, "message", "content"), '{"names": []}'),
        ("an array", ("choices", 0, "message", "content"), '{"names": ["a"'),
        ("same prompt", ("choices", 0, "logprobs"), {"content": [{"logprob": -1.0}]}),
        ("JSON by", ("choices", 0, "message", "content"), '{"names":' + " \n" * 17 + '["\\"     "], "age": 1}'),
        ("seeds", ("choices", 0, "text"), "x"),
    ],
)
def test_the_conformance_suite_sees_a_wrong_answer(running, name, path, wrong):
    class Tampering(conformance.Client):
        """Changes every second answer, so that two that should be equal differ."""

        answers = 0

        def post(self, path_of_request, **body):
            answer = super().post(path_of_request, **body)
            self.answers += 1
            if self.answers % 2 == 0 or name in ("an array", "JSON by"):
                part = answer
                for key in path[:-1]:
                    part = part[key]
                part[path[-1]] = wrong
                answer["choices"][0]["finish_reason"] = "stop"
            return answer

    outcomes = list(conformance.run(Tampering(running.url, "tiny"), [name]))
    assert [outcome.result for outcome in outcomes] == ["failed"]
