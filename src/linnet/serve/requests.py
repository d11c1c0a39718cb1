"""The bodies of requests, with the names and defaults of OpenAI's interface; further fields are linnet's own.

A field that is not known is refused, as OpenAI does: what a request asks for and is not done is said. Fields that have
no influence on an answer, such as `user`, are accepted.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator

from linnet.core.spec import Seed, Spec

MAX_STOPS, MAX_CHOICES, MAX_TOP_LOGPROBS = 16, 128, 20
"""Limits per request. OpenAI's are 4 stop texts, 128 choices and 20 log-probabilities."""

MAX_TOKENS_WITHOUT_LIMIT = 1024
"""Tokens of an answer if a chat request does not limit them and the model has no learned positions that do."""


class RequestBody(Spec):
    """The base of all bodies: values have the type of their field, as in OpenAI's interface (`"yes"` is not true)."""

    model_config = Spec.model_config | {"strict": True}


TokenIds = list[NonNegativeInt]

TokenIdKey = Annotated[NonNegativeInt, Field(strict=False)]
"""A token id as a key of a JSON object, where it is text."""


def _stops(value: Any) -> Any:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if len(texts) > MAX_STOPS or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"expected a text or a list of at most {MAX_STOPS} texts, none of them empty")
    return value


StopTexts = Annotated[str | list[str] | None, BeforeValidator(_stops)]


def _kind_of_text(value: Any) -> str:
    """What a value stands for in a prompt."""
    if isinstance(value, str):
        return "a text"
    is_list = isinstance(value, list)
    ids = value if is_list else [value]
    if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
        return "neither a text nor " + ("a list of token ids" if is_list else "a token id")
    return "a list of token ids" if is_list else "a token id"


def _of_one_kind(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    kinds = [_kind_of_text(item) for item in items]
    accepted = "expected a text, a list of token ids, or a list of texts or of lists of token ids"
    if not isinstance(value, list) and kinds != ["a text"]:
        raise ValueError(accepted)
    for index, kind in enumerate(kinds):
        if kind != kinds[0] or kind.startswith("neither"):
            beside = f", but [0] is {kinds[0]}" if index else ""
            raise ValueError(f"[{index}] is {kind}{beside}; {accepted}")
    return value


TextOrTokens = Annotated[str | TokenIds | list[str] | list[TokenIds], BeforeValidator(_of_one_kind)]
"""One or several texts, each of them text or token ids."""


class StreamOptions(RequestBody):
    """include_usage: the last chunk of a stream has no choices, but the usage."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class SamplingFields(RequestBody):
    """How tokens are chosen; those after `seed` are linnet's own, named as in `inference.sampling.Sampling`."""

    model: str = ""
    temperature: float | None = Field(1.0, ge=0, le=1e3)
    top_p: float | None = Field(1.0, ge=0, le=1)
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    logit_bias: dict[TokenIdKey, float] | None = None
    seed: Seed | None = None
    stop: StopTexts = None
    n: PositiveInt | None = Field(1, le=MAX_CHOICES)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    top_k: int = Field(0, ge=-1)
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    regex: str | None = None
    choices: list[str] | None = None
    cache_policy: str | None = None

    @model_validator(mode="after")
    def _usage_needs_a_stream(self) -> "SamplingFields":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: set; accepted only with stream: true")
        return self

    @property
    def stops(self) -> list[str]:
        """The stop texts as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def sampling_settings(self) -> dict[str, Any]:
        """The fields of `Sampling`; a field that is null has OpenAI's default."""
        given: Mapping[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "logit_bias": self.logit_bias,
            "seed": self.seed,
        }
        own = {"top_k": max(self.top_k, 0), "min_p": self.min_p, "typical_p": self.typical_p}
        defaults = {"temperature": 1.0}
        return (
            defaults
            | {name: value for name, value in given.items() if value is not None}
            | own
            | {"repetition_penalty": self.repetition_penalty}
        )


class CompletionRequest(SamplingFields):
    """`POST /v1/completions`: https://platform.openai.com/docs/api-reference/completions/create.

    from_state, return_state: the session that the prompt continues, and whether the one behind the answer is kept.
    observe: chunks of a stream that continues a session also say what the layers hold.
    """

    prompt: TextOrTokens = ""
    max_tokens: NonNegativeInt | None = 16
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = False
    suffix: None = None
    best_of: PositiveInt | None = None
    parse_special: bool = False
    json_schema: dict[str, Any] | None = None
    return_state: bool = False
    from_state: str | None = None
    observe: bool = False

    @model_validator(mode="after")
    def _what_is_not_done(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(f"best_of: {self.best_of}; accepted only if equal to n: answers are not ranked")
        if self.prompt == []:
            raise ValueError("prompt: []; expected a text, token ids, or a list with at least one of them")
        if self.observe and not (self.stream and (self.return_state or self.from_state is not None)):
            raise ValueError("observe: true; accepted only with stream: true, and from_state or return_state")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: 0; accepted only with echo: true")
        return self


def each_text(texts: str | TokenIds | list[str] | list[TokenIds]) -> list[str] | list[list[int]]:
    """The texts of a prompt or an input, each of them text or token ids."""
    if isinstance(texts, str):
        return [texts]
    if texts and isinstance(texts[0], int):
        return cast("list[list[int]]", [texts])
    return cast("list[str] | list[list[int]]", texts)


class ChatMessage(RequestBody):
    """One message; what else a template reads is passed through."""

    model_config = RequestBody.model_config | {"extra": "allow"}

    role: str
    content: str | list[dict[str, Any]] | None = None

    @classmethod
    def _keys(cls) -> Any:
        return cls.model_fields

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_key(cls, data: Any) -> Any:
        return data

    @model_validator(mode="after")
    def _text_alone(self) -> "ChatMessage":
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if part.get("type") not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
                raise ValueError(f"content[{index}].type: {part.get('type')!r}; accepted: text; models read text alone")
        return self

    def plain(self) -> dict[str, Any]:
        """The message as templates read it: its content is one text."""
        fields = self.model_dump(exclude_none=True)
        if isinstance(self.content, list):
            fields["content"] = "".join(str(part["text"]) for part in self.content)
        return fields | {"content": fields.get("content", "")}


class JsonSchema(RequestBody):
    """A named schema of `response_format`; strict: always so here."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None

    @classmethod
    def _keys(cls) -> Any:
        return ("name", "description", "schema", "strict")

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_key(cls, data: Any) -> Any:
        return data


class ResponseFormat(RequestBody):
    """`text`, any JSON object, or JSON that a schema describes."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_named(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema: given exactly if type is json_schema")
        return self

    @property
    def schema_or_none(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; None for text."""
        if self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class ChatRequest(SamplingFields):
    """`POST /v1/chat/completions`: https://platform.openai.com/docs/api-reference/chat/create.

    tools: passed to the template, which may list them; calls of tools are not parsed. chat_template_kwargs: further
    variables of the template.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    store: bool | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> "ChatRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError(f"top_logprobs: {self.top_logprobs}; accepted only with logprobs: true")
        return self

    @model_validator(mode="after")
    def _variables_of_their_own(self) -> "ChatRequest":
        if taken := {"self", "messages", "add_generation_prompt"} & self.chat_template_kwargs.keys():
            raise ValueError(f"chat_template_kwargs: {min(taken)}; accepted: variables that the server does not set")
        return self


class TextFormat(RequestBody):
    """The `text` field of a request for a response."""

    format: dict[str, Any] = Field(default_factory=lambda: {"type": "text"})


class ResponseRequest(RequestBody):
    """`POST /v1/responses`: https://platform.openai.com/docs/api-reference/responses/create."""

    model: str = ""
    input: str | list[ChatMessage]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: PositiveInt | None = None
    temperature: float | None = Field(1.0, ge=0, le=1e3)
    top_p: float | None = Field(1.0, ge=0, le=1)
    stream: bool | None = False
    store: bool | None = True
    seed: Seed | None = None
    text: TextFormat | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None


class EmbeddingRequest(RequestBody):
    """`POST /v1/embeddings`: https://platform.openai.com/docs/api-reference/embeddings/create."""

    model: str = ""
    input: TextOrTokens
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: None = None
    user: str | None = None


class TokenizeRequest(RequestBody):
    """`POST /tokenize`: the tokens of a text, or of a conversation as the template renders it."""

    model: str = ""
    text: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special: bool = True
    parse_special: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> "TokenizeRequest":
        if (self.text is None) == (self.messages is None):
            raise ValueError("text: expected either text or messages")
        return self


class DetokenizeRequest(RequestBody):
    """`POST /detokenize`: the text of token ids."""

    model: str = ""
    tokens: TokenIds


class SessionRequest(RequestBody):
    """`POST /v1/sessions`: a new stream, one from a file that the server saved, or one with a text to begin with.

    from_state: a session whose tokens the new one reads anew, under the cache policy of this request.
    """

    model: str = ""
    text: str = ""
    from_state: str | None = None
    name: str | None = None
    cache_policy: str | None = None


class SessionStep(RequestBody):
    """What is done with a session: `feed` a text, `rewind` the last tokens, `save` under a name.

    model: may name the session's own, as clients do that name it in each request.
    """

    model: str = ""
    text: str | None = None
    tokens: PositiveInt | None = None
    name: str | None = None
