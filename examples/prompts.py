"""Prompts that a 135M model answers best: completions of two worked examples.

A larger, instruction-tuned model needs none of this: the defaults of the library do.
"""

from ltrag_plugins.sgic import PromptTemplates

EXAMPLES = (
    (
        "Emma (novel)",
        "Emma is a novel by the English author Jane Austen. It was published in December 1815.",
        "who wrote the novel emma",
        "Jane Austen",
    ),
    (
        "Eiffel Tower",
        "The Eiffel Tower is a tower on the Champ de Mars in Paris. "
        "It was built from 1887 to 1889.",
        "when was the eiffel tower finished",
        "1889",
    ),
)
DIRECT = (
    "Answer the question in a few words, without explanation.\n"
    + "".join(f"Question: {asked}\nAnswer: {answer}\n" for _, _, asked, answer in EXAMPLES)
    + "Question: {question}\nAnswer:"
)
"""Without passages: `{question}`."""
READING = (
    "".join(
        f"title: {title}\n\n{text}\n\nQuestion: {asked}\nAnswer: {answer}\n\n"
        for title, text, asked, answer in EXAMPLES
    )
    + "{context}\n\nQuestion: {question}\nAnswer:"
)
"""From passages: `{context}`, `{question}`."""
CALIBRATING = PromptTemplates(
    layout="{instruction}\n\n"
    + "".join(
        f"Document [1]: {title}: {text}\n\nQuestion: {asked}\nAnswer: {answer}\n\n"
        for title, text, asked, answer in EXAMPLES
    )
    + "{documents}\n\nQuestion: {question}\n{earlier}Answer:",
    bare=DIRECT,
)
"""For the calibrator, which puts documents, scores and earlier answers in."""
