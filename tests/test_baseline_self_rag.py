import math

import pytest
from method_parts import Library, flow_of, says, spelled, world

from ltrag_plugins.errors import InvalidLogProbability
from ltrag_plugins.flow import run
from ltrag_plugins.methods.self_rag import (
    _REFLECTION,
    SelfRAGSettings,
    _reflection_value,
)
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Generation, Passage, Token
from ltrag_plugins.uncertainty import yes_probability

QUESTION = "Who wrote Emma?"
EMMA = Passage("Emma is a novel by Jane Austen.", title="Emma")
ELIOT = Passage("George Eliot wrote Middlemarch.", title="George Eliot")
SHELF = {QUESTION: [ELIOT, EMMA]}
TRAINED = "### Instruction:\nWho wrote Emma?\n\n### Response:\n"
SEARCH = (
    "Question: Who wrote Emma?\nWould you have to look something up to be sure of the answer? "
    "Reply yes or no.\nReply:"
)


def yes(probability: float) -> Generation:
    return spelled(("Yes", {"Yes": probability, "No": 1 - probability}))


def test_by_yes_and_no_each_passage_answers_and_the_best_judged_answer_wins():
    llm = says(
        ("look something up", yes(0.9)),
        ("Answer: George Eliot\nDoes the text above say", yes(0.25)),
        ("Answer: George Eliot\nIs this a useful", yes(0.5)),
        ("Answer: Jane Austen\nDoes the text above say", yes(0.8)),
        ("Answer: Jane Austen\nIs this a useful", yes(0.7)),
        ("Middlemarch.\n\nQuestion", yes(0.4)),
        ("Austen.\n\nQuestion", yes(0.6)),
        ("Middlemarch.\n\nAnswer", spelled(("George Eliot", {"George Eliot": 0.5}))),
        ("Austen.\n\nAnswer", spelled(("Jane Austen", {"Jane Austen": 0.25}))),
    )
    library = Library(SHELF)
    answer = run(flow_of("self-rag", QUESTION), world(llm, library))
    assert library.queries == [QUESTION]
    assert answer.text == "Jane Austen"
    assert answer.passages == (EMMA,)
    assert answer.mode == "yes-no probabilities"
    assert len(answer.trace) == 1 + 2 + 6
    eliot, emma = answer.critiques
    assert eliot == pytest.approx((0.5, 0.4, 0.25, 2 * 0.5 - 1))
    assert emma == pytest.approx((0.25, 0.6, 0.8, 2 * 0.7 - 1))
    supports = "Does the text above say that this answer is right? Reply yes or no.\nReply:"
    useful = "Is this a useful answer to the question? Reply yes or no.\nReply:"
    helps = "Does the text above help to answer the question? Reply yes or no.\nReply:"
    first, second = "George Eliot: George Eliot wrote Middlemarch.", f"Emma: {EMMA.text}"
    asked = "Question: Who wrote Emma?\n"
    assert llm.calls == [
        (SEARCH,),
        (reading_prompt(QUESTION, [ELIOT]), reading_prompt(QUESTION, [EMMA])),
        (
            f"{first}\n\n{asked}{helps}",
            f"{first}\n\n{asked}Answer: George Eliot\n{supports}",
            f"{asked}Answer: George Eliot\n{useful}",
            f"{second}\n\n{asked}{helps}",
            f"{second}\n\n{asked}Answer: Jane Austen\n{supports}",
            f"{asked}Answer: Jane Austen\n{useful}",
        ),
    ]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Eliot: p 0, rel 1, sup 0, use -1; Austen: p 0.5, rel 0, sup 1, use 1; ties go to Eliot
        ("w_likelihood", "Jane Austen"),
        ("w_relevance", "George Eliot"),
        ("w_support", "Jane Austen"),
        ("w_usefulness", "Jane Austen"),
        (None, "George Eliot"),
    ],
)
def test_a_single_weight_decides_between_critiques(weight, expected):
    llm = says(
        ("look something up", "yes"),
        ("Answer: George Eliot", "no"),
        ("Answer: Jane Austen", "yes"),
        ("Middlemarch.\n\nQuestion", "yes"),
        ("Austen.\n\nQuestion", "no"),
        ("Middlemarch.\n\nAnswer", "George Eliot"),
        ("Austen.\n\nAnswer", spelled(("Jane Austen", {"Jane Austen": 0.5}))),
    )
    names = ("w_likelihood", "w_relevance", "w_support", "w_usefulness")
    weights = {name: float(name == weight) for name in names}
    answer = run(
        flow_of("self-rag", QUESTION, SelfRAGSettings(**weights)), world(llm, Library(SHELF))
    )
    assert answer.text == expected
    assert answer.mode == "yes-no texts"


def test_what_the_model_is_sure_to_know_is_answered_without_a_search():
    library = Library(SHELF)
    llm = says(("look something up", yes(0.15)), ("", "Jane Austen\n"))
    answer = run(flow_of("self-rag", QUESTION), world(llm, library))
    assert library.queries == []
    assert llm.prompts == [SEARCH, direct_prompt(QUESTION)]
    assert (answer.text, answer.passages, answer.critiques) == ("Jane Austen", (), ())


def test_where_nothing_is_found_the_question_is_asked_directly():
    llm = says(("look something up", "yes"), ("", "Jane Austen"))
    answer = run(flow_of("self-rag", QUESTION), world(llm, Library({})))
    assert llm.prompts == [SEARCH, direct_prompt(QUESTION)]
    assert (answer.text, answer.passages) == ("Jane Austen", ())


def test_a_blank_answer_is_the_last_to_be_chosen():
    llm = says(
        ("look something up", "yes"),
        ("Middlemarch.\n\nAnswer", "\n"),
        ("Austen.\n\nAnswer", "Jane Austen"),
        ("Answer: Jane Austen", "no"),
        ("Austen.\n\nQuestion", "no"),
        ("", "yes"),
    )
    answer = run(flow_of("self-rag", QUESTION), world(llm, Library(SHELF)))
    assert answer.text == "Jane Austen"


REFLECTING = SelfRAGSettings(reflection_tokens=True, max_tokens=100)


def test_by_reflection_tokens_the_probabilities_of_what_the_model_wrote_decide():
    ireland = spelled(
        ("[Relevant]", {"[Relevant]": 0.6, "[Irrelevant]": 0.2, "Ge": 0.1}),
        "George Eliot",
        ("[No support / Contradictory]", {
            "[No support / Contradictory]": 0.5, "[Fully supported]": 0.1,
            "[Partially supported]": 0.4,
        }),
        ("[Utility:5]", {"[Utility:5]": 0.5, "[Utility:1]": 0.5}),
    )  # fmt: skip
    austen = spelled(
        ("[Relevant]", {"[Relevant]": 0.9, "[Irrelevant]": 0.1}),
        "Jane Austen",
        ("[Fully supported]", {"[Fully supported]": 0.75, "[Partially supported]": 0.25}),
        ("[Utility:4]", {"[Utility:4]": 0.75, "[Utility:3]": 0.25}),
    )
    llm = says(
        ("Middlemarch.</paragraph>", ireland),
        ("Austen.</paragraph>", austen),
        ("Response:", spelled(("[Retrieval]", {"[Retrieval]": 0.6, "[No Retrieval]": 0.2}))),
    )
    answer = run(flow_of("self-rag", QUESTION, REFLECTING), world(llm, Library(SHELF)))
    assert answer.mode == "reflection tokens"
    assert (answer.text, answer.passages) == ("Jane Austen", (EMMA,))
    assert llm.calls == [
        (TRAINED,),
        (
            f"{TRAINED}[Retrieval]<paragraph>George Eliot\n{ELIOT.text}</paragraph>",
            f"{TRAINED}[Retrieval]<paragraph>Emma\n{EMMA.text}</paragraph>",
        ),
    ]
    first, second = answer.critiques
    assert first == pytest.approx(
        ((0.6 * 1 * 0.5 * 0.5) ** (1 / 4), 0.6 / 0.8, 0.1 + 0.5 * 0.4, 0.0)
    )
    assert second == pytest.approx(
        ((0.9 * 1 * 0.75 * 0.75) ** (1 / 4), 0.9, 0.75 + 0.5 * 0.25, 0.75 * 0.5)
    )


def test_by_reflection_tokens_it_reads_as_much_of_a_passage_as_other_methods():
    long = Passage(" ".join(f"w{i}" for i in range(250)), title="Long")
    llm = says(("</paragraph>", "Jane Austen"), ("Response:", "[Retrieval]"))
    run(flow_of("self-rag", QUESTION, REFLECTING), world(llm, Library({QUESTION: [long]})))
    read = " ".join(f"w{i}" for i in range(200))
    assert llm.prompts[1:] == [f"{TRAINED}[Retrieval]<paragraph>Long\n{read}</paragraph>"]


def test_a_trained_model_that_needs_no_search_answers_without_one():
    library = Library(SHELF)
    llm = says(
        ("[No Retrieval]", "Jane Austen[Utility:5]"),
        ("Response:", spelled(("[No Retrieval]", {"[No Retrieval]": 0.9, "[Retrieval]": 0.1}))),
    )
    answer = run(flow_of("self-rag", QUESTION, REFLECTING), world(llm, library))
    assert llm.prompts == [TRAINED, f"{TRAINED}[No Retrieval]"]
    assert (library.queries, answer.text, answer.passages) == ([], "Jane Austen", ())
    assert answer.mode == "reflection tokens"


def test_a_trained_model_without_passages_answers_as_if_it_needed_none():
    llm = says(("[No Retrieval]", "Jane Austen"), ("Response:", "[Retrieval]"))
    answer = run(flow_of("self-rag", QUESTION, REFLECTING), world(llm, Library({})))
    assert (answer.text, answer.mode) == ("Jane Austen", "reflection tokens")


def test_a_model_that_writes_no_reflection_tokens_is_judged_by_yes_and_no():
    llm = says(("### Response", "Jane Austen"), ("look something up", "no"), ("", "Jane Austen"))
    answer = run(flow_of("self-rag", QUESTION, REFLECTING), world(llm, Library(SHELF)))
    assert llm.prompts == [TRAINED, SEARCH, direct_prompt(QUESTION)]
    assert answer.mode == "yes-no texts"
    assert len(answer.trace) == 3


@pytest.mark.parametrize("reflecting", [False, True])
def test_no_reply_and_no_retriever_cost_more_calls_than_the_bound(reflecting):
    class Generous:
        def search(self, queries, k):
            return [[Passage(f"passage {i}") for i in range(100)] for _ in queries]

    llm = says(("", "yes"))
    settings = SelfRAGSettings(reflection_tokens=reflecting, k=4)
    run(flow_of("self-rag", QUESTION, settings), world(llm, Generous()))
    assert len(llm.prompts) == 1 + 4 * 4 + reflecting


def test_a_token_the_text_leaves_out_is_read_from_the_likeliest_alternative():
    hidden = spelled(
        ("", {"[Relevant]": 0.75, "[Irrelevant]": 0.25}),
        "Jane Austen",
        ("", {"[Fully supported]": 0.5, "[Partially supported]": 0.5}),
    )
    assert _reflection_value(hidden, "relevant") == pytest.approx(0.75)
    assert _reflection_value(hidden, "support") == pytest.approx(0.75)
    assert _reflection_value(hidden, "useful") is None


def test_at_the_start_a_token_need_not_be_the_one_that_was_written():
    drafted = spelled(("Jane", {"Jane": 0.5, "[Retrieval]": 0.1, "[No Retrieval]": 0.3}))
    assert _reflection_value(drafted, "retrieve") == pytest.approx(0.25)
    later = spelled("The", ("Jane", {"Jane": 0.5, "[Retrieval]": 0.1}))
    assert _reflection_value(later, "retrieve") is None


def test_what_was_hardly_an_alternative_at_the_start_is_no_verdict_on_the_answer():
    start = {"[Relevant]": 0.9, "[Irrelevant]": 0.09, "[Utility:1]": 1e-4}
    contradictory = {"[No support / Contradictory]": 1e-5}
    reply = spelled(
        ("[Relevant]", start | contradictory),
        "Jane Austen",
        ("[Fully supported]", {"[Fully supported]": 0.98, "[Partially supported]": 0.02}),
        ("[Utility:5]", {"[Utility:5]": 0.9, "[Utility:4]": 0.1}),
    )
    assert _reflection_value(reply, "relevant") == pytest.approx(0.9 / 0.99)
    assert _reflection_value(reply, "support") == pytest.approx(0.98 + 0.5 * 0.02)
    assert _reflection_value(reply, "useful") == pytest.approx(0.9 + 0.5 * 0.1)
    unjudged = spelled(("[Relevant]", start | contradictory), "Jane Austen")
    assert (_reflection_value(unjudged, "support"), _reflection_value(unjudged, "useful")) == (
        None,
        None,
    )


@pytest.mark.parametrize("group", ["retrieve", "relevant"])
def test_a_token_that_was_written_counts_before_alternatives_at_the_start(group):
    yes, no = _REFLECTION[group]
    begun = ("\n", {"\n": 0.9, no: 1e-4})
    assert _reflection_value(spelled(begun, (yes, {yes: 0.75, no: 0.25})), group) == pytest.approx(
        0.75
    )
    assert _reflection_value(spelled(begun, "Jane"), group) == 0.0


def test_without_probabilities_the_token_named_first_counts():
    reply = Generation("[Irrelevant]x[Partially supported]y[Fully supported][Utility:4]")
    assert _reflection_value(reply, "relevant") == 0.0
    assert _reflection_value(reply, "support") == 0.5
    assert _reflection_value(reply, "useful") == 0.5
    assert _reflection_value(reply, "retrieve") is None


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (
            "[Retrieval]<paragraph>Emma\nA novel.</paragraph>[Relevant]Jane  Austen[Utility:5]",
            "Jane Austen",
        ),
        ("Bath [1][Retrieval]<paragraph>cut off", "Bath [1]"),
    ],
)
def test_no_answer_holds_reflection_tokens_or_passages(said, answer):
    llm = says(("[No Retrieval]", said), ("Response:", "[No Retrieval]"))
    assert run(flow_of("self-rag", QUESTION, REFLECTING), world(llm, Library({}))).text == answer


@pytest.mark.parametrize(
    ("reply", "probability"),
    [
        (spelled(("Yes", {"Yes": 0.5, "No": 0.2, " no": 0.2, "yes": 0.1})), 0.6),
        (spelled("\n", (" No", {" No": 0.8, " Yes": 0.2})), 0.2),
        (spelled(("Maybe", {"Maybe": 0.9, "no.": 0.1})), 0.0),
        (Generation("Yes", (Token("Yes", math.log(0.7)),)), 1.0),
        (spelled(("I", {"I": 0.9, "You": 0.1}), " say", " no"), 0.0),
        (Generation("yes, no doubt"), 1.0),
        (Generation("NO."), 0.0),
        (Generation("I do not know."), 0.5),
        (Generation(""), 0.5),
        (Generation("", ()), 0.5),
    ],
)
def test_how_far_a_reply_says_yes(reply, probability):
    assert yes_probability(reply) == pytest.approx(probability)


def test_a_log_probability_above_zero_is_refused():
    with pytest.raises(InvalidLogProbability, match="at most 0"):
        yes_probability(Generation("Yes", (Token("Yes", 0.5),)))
