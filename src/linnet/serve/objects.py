"""The objects of answers, as the published description has them: their fields, and which may be absent or null.

Reference: https://platform.openai.com/docs/api-reference. Fields that OpenAI's interface does not have are marked in
docs/serving.md.
"""

from typing import Any, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

REF = "#/components/schemas/{model}"


class CachedTokens(TypedDict):
    """How many tokens of the prompt were not read again."""

    cached_tokens: int


class Usage(TypedDict):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: NotRequired[int]
    prompt_tokens_details: NotRequired[CachedTokens]


class LayerContents(TypedDict):
    """What a part of one layer (mixer, feed_forward, cross_attention) of some kind holds of the past.

    has_choice: it knows policies other than its own, which `cache_policy` of a session may name for it.
    """

    layer: int
    sublayer: str
    kind: str
    has_choice: bool
    cache_policy: str
    entries: int
    bytes: int


class CompletionLogprobs(TypedDict):
    """Log-probabilities of tokens; null for the first token of a prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionObject(TypedDict):
    """The answer of `/v1/completions`; state: the session with the text, if it was asked for."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: None
    usage: Usage
    state: NotRequired[str]


class ChatToken(TypedDict):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenWithTop(ChatToken):
    """The same with the likeliest tokens at its place."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a message."""

    content: list[ChatTokenWithTop]
    refusal: None


class ChatMessageAnswer(TypedDict):
    """The message of the model."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One message."""

    index: int
    message: ChatMessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class ChatCompletion(TypedDict):
    """The answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    system_fingerprint: None
    usage: Usage


class ResponseObject(TypedDict):
    """The answer of `/v1/responses`; it has all fields of OpenAI's object, of which these change."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    previous_response_id: str | None
    store: bool
    usage: dict[str, Any]


class EmbeddingObject(TypedDict):
    """One vector: numbers, or float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(TypedDict):
    """The answer of `/v1/embeddings`; pooling: how the vectors of tokens become one."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: Usage
    pooling: Literal["mean"]


class Tokens(TypedDict):
    """The answer of `/tokenize`."""

    tokens: list[int]
    count: int
    texts: list[str]


class DecodedText(TypedDict):
    """The answer of `/detokenize`."""

    text: str


class SessionObject(TypedDict):
    """A session: tokens and bytes of its state. Of one session also texts and what its layers hold.

    beginning: how many of the tokens stand before the text.
    """

    id: str
    object: Literal["session"]
    model: str
    tokens: int
    bytes: int
    beginning: NotRequired[int]
    token_texts: NotRequired[list[str]]
    layers: NotRequired[list[LayerContents]]
    held: NotRequired[list[float]]
    stopped: NotRequired[int]


class SessionList(TypedDict):
    """The sessions of a client."""

    object: Literal["list"]
    data: list[SessionObject]


class Deleted(TypedDict):
    """A session was forgotten."""

    deleted: Literal[True]


class ModelMeta(TypedDict):
    """What a loaded model is."""

    layers: list[str]
    context_length: int
    vocab_size: int
    weights_bytes: int
    chat_template: str


class ModelObject(TypedDict):
    """A model; `meta` when it is loaded."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: NotRequired[ModelMeta]


class ModelList(TypedDict):
    """The models of a server."""

    object: Literal["list"]
    data: list[ModelObject]


def schema_of(kind: Any, schemas: dict[str, Any]) -> dict[str, str]:
    """A reference to the schema of an object, which is added to `schemas` with those of its parts.

    No object but `ResponseObject` has fields beside those that are described.
    """
    schema = TypeAdapter(kind).json_schema(ref_template=REF)
    found = schema.pop("$defs", {}) | {kind.__name__: schema}
    for name, of_name in found.items():
        if "properties" in of_name and name != ResponseObject.__name__:
            of_name["additionalProperties"] = False
    schemas |= found
    return {"$ref": REF.format(model=kind.__name__)}
