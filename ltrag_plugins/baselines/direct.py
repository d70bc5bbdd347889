"""Direct: the model answers from what it knows; no retrieval.

References:
    The "w/o RAG" row of the papers; our wording.
"""

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import Flow, ask
from ltrag_plugins.types import Answer

PROMPT = "Answer the question in a few words, without explanation.\nQuestion: {question}\nAnswer:"
"""`{question}` is replaced; other braces are left alone."""


def direct_prompt(question: str, template: str = PROMPT) -> str:
    """The template with the question in its place.

    Raises:
        InvalidInput: the template has no place for it.
    """
    if "{question}" not in template:
        raise InvalidInput(f"the template must hold '{{question}}', got {template!r}")
    return template.replace("{question}", question)


def direct(question: str, *, template: str = PROMPT, max_tokens: int = 24) -> Flow[Answer]:
    """One model call, no search."""
    [reply] = yield from ask(direct_prompt(question, template), max_tokens=max_tokens, stop=("\n",))
    return Answer(reply.text.strip(), trace=(reply,))
