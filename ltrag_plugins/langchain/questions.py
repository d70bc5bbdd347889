"""Find the question in what LangChain and LangGraph pass along."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue

from ltrag_plugins.errors import InvalidInput


def question_of(value: Any, key: str = "question") -> str:
    """The question in a string, a message, a prompt, or a mapping or state that holds one.

    A mapping or state gives its entry `key`, else the last human message of its `messages`.

    Raises:
        InvalidInput: there is no question where it is looked for.
    """
    match value:
        case str():
            return value
        case BaseMessage():
            return str(value.text)
        case PromptValue():
            return _last_human(value.to_messages())
        case Mapping():
            return _in_entries(value, value, key)
        case Sequence():
            return _last_human(value)
        case _:
            return _in_entries(getattr(value, "__dict__", {}), value, key)


def _in_entries(entries: Mapping[str, Any], value: Any, key: str) -> str:
    if key in entries:
        return question_of(entries[key], key)
    if "messages" in entries:
        return _last_human(entries["messages"])
    raise InvalidInput(
        f"there is no {key!r} (and no 'messages') in {value!r:.80}. "
        "Pass a string, or name the key that holds the question with question_key."
    )


def _last_human(messages: Sequence[Any]) -> str:
    try:
        read = convert_to_messages(messages)
    except (ValueError, TypeError, NotImplementedError, KeyError) as error:
        raise InvalidInput(f"these are no messages: {messages!r:.80} ({error})") from error
    for message in reversed(read):
        if isinstance(message, HumanMessage):
            return str(message.text)
    raise InvalidInput(f"there is no human message in {messages!r:.80} to take as the question.")
