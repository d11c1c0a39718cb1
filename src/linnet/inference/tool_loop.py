"""A model that answers messages and may call tools while it does: the calls are run, and it goes on with the results.

from linnet.data.tools import load_tools
from linnet.inference.tool_loop import converse
tools = load_tools(["calculator"])
for message in converse(linnet.load("runs/chat"), [{"role": "user", "content": "12 * 31?"}], tools): ...
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from linnet.data.chat_template import ChatTemplate
from linnet.data.tools import CALCULATOR, MAX_ROUNDS, Tools
from linnet.inference.language_model import LanguageModel
from linnet.inference.prefill import room_behind
from linnet.inference.sampling import Sampling, following_seed, seeded
from linnet.stories.instructions.facts import TOOL

Message = dict[str, Any]


def announced(messages: Sequence[Mapping[str, Any]], tools: Tools | None) -> list[Message]:
    """The messages behind one that tells of the calculator, as the story world does.

    They are left as they are if the calculator is not among the tools, or if they begin with a system message.
    """
    has_system = bool(messages) and messages[0].get("role") == "system"
    if tools is None or CALCULATOR not in tools.functions or has_system:
        return [dict(message) for message in messages]
    return [{"role": "system", "content": TOOL}, *(dict(message) for message in messages)]


def render(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools | None,
    add_generation_prompt: bool = True,
) -> str:
    """The text of messages in a chat template, which may list the tools."""
    variables = {"tools": list(tools.described)} if tools is not None and tools.described else {}
    return template.render(messages, add_generation_prompt, **variables)


def converse(
    model: LanguageModel,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools,
    max_tokens: int = 512,
    sampling: Sampling | None = None,
    rounds: int = MAX_ROUNDS,
    show: Callable[[str], None] = lambda text: None,
) -> list[Message]:
    """The messages that follow: answers and results of tools, up to the first answer that calls none.

    After so many rounds of calls no further one is run, and the last message is a call. max_tokens: of each answer.
    sampling: None: greedy; each further answer has the next seed. show: gets each piece of text as it is written, and
    each result in a line of its own. Learned positions bound an answer; `UserError` where they leave no room for one.
    """
    model = model.parsing_special()
    asked, chosen = announced(messages, tools), seeded(sampling or Sampling(temperature=0))
    begun = len(asked)
    for left in range(rounds, -1, -1):
        pieces, prompt = list[str](), model.prompt_tokens(render(model.chat_template, asked, tools))
        room = room_behind(model.decoder, prompt, max_tokens)
        for piece in model.stream(prompt, room, chosen, stop=model.chat_template.stops):
            pieces.append(piece)
            show(piece)
        show("\n")
        answer = "".join(pieces)
        asked.append({"role": "assistant", "content": answer})
        results = tools.results(answer) if left else []
        if not results:
            break
        for result in results:
            show(f"[{result['name']}] {result['content']}\n")
        asked += results
        chosen = replace(chosen, seed=following_seed(chosen.seed))
    return asked[begun:]
