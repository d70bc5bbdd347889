import math

import pytest
from method_parts import Library, says, spelled
from method_parts import answer as ask

from ltrag_plugins.errors import InvalidLogProbability
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.self_rag import SelfRAGSettings, _reflection_value
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


REFLECTING = {"reflection_tokens": True, "max_tokens": 100}


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
    answer = ask("self-rag", QUESTION, llm, library)
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
    answer = ask("self-rag", QUESTION, llm, SHELF, **weights)
    assert answer.text == expected
    assert answer.mode == "yes-no texts"


LONG = {"w_likelihood": 0.0, "w_usefulness": 0.0, "segments": 3}
GEORGE, JANE_WROTE = "George wrote it.", "Jane wrote it."


def storyteller() -> ScriptedLLM:
    """Two passages; what it writes after each, and how far it is relevant and supported."""
    return says(
        ("so far: Jane wrote it. In 1815.\nWould you", "no"),
        ("look something up", "yes"),
        (f"Answer: {GEORGE}\nDoes", yes(0.9)),
        (f"Answer: {JANE_WROTE}\nDoes", yes(0.7)),
        ("Answer: In 1815.\nDoes", yes(0.99)),
        ("Answer: Perhaps not.\nDoes", yes(0.1)),
        ("Is this a useful", "yes"),
        ("Middlemarch.\n\nQuestion: Who wrote Emma?\nDoes", yes(0.6)),
        ("Austen.\n\nQuestion: Who wrote Emma?\nDoes", yes(0.5)),
        (f"Answer: {GEORGE}", "Perhaps not. More of this."),
        (f"Answer: {JANE_WROTE} In 1815.", "In 1815."),
        (f"Answer: {JANE_WROTE}", "In 1815. And so on"),
        ("Middlemarch.\n\nAnswer", f"{GEORGE} He did."),
        ("Austen.\n\nAnswer", JANE_WROTE),
    )


@pytest.mark.parametrize(
    ("beam", "text", "passages"),
    [
        # George 0.6 + 0.9, Jane 0.5 + 0.7; then 0.6 + 0.1 more for George, 0.6 + 0.99 for Jane
        (1, f"{GEORGE} Perhaps not.", (ELIOT,)),
        (2, f"{JANE_WROTE} In 1815.", (EMMA, ELIOT)),
    ],
)
def test_an_answer_of_several_segments_is_the_best_of_a_beam_by_its_segments_mean(
    beam, text, passages
):
    asked = {QUESTION: [ELIOT, EMMA]}
    asked |= {f"{QUESTION} {one}": [ELIOT, EMMA] for one in (GEORGE, JANE_WROTE, "Perhaps not.")}
    library = Library(asked)
    answer = ask("self-rag", QUESTION, storyteller(), library, beam=beam, **LONG)
    assert (answer.text, answer.passages) == (text, passages)
    values = [relevant + support for _, relevant, support, _ in answer.critiques]
    assert values == pytest.approx([0.6 + 0.9, 0.6 + 0.1] if beam == 1 else [0.5 + 0.7, 0.6 + 0.99])
    assert library.queries[:2] == [QUESTION, f"{QUESTION} {GEORGE}"]
    most = METHODS["self-rag"].most_calls(SelfRAGSettings(k=2, beam=beam, **LONG))
    assert len(answer.trace) <= most


def test_of_passages_that_give_one_answer_the_best_stands_and_another_answer_keeps_its_place():
    letter = Passage("Jane wrote a letter.", title="A letter")
    llm = says(
        ("so far", "no"),
        ("look something up", "yes"),
        ("letter.\n\nQuestion: Who wrote Emma?\nAnswer: Jane", yes(0.3)),
        ("Austen.\n\nQuestion: Who wrote Emma?\nAnswer: Jane", yes(0.9)),
        (f"Answer: {GEORGE}\nDoes", yes(0.2)),
        ("Is this a useful", "yes"),
        ("\n\nQuestion: Who wrote Emma?\nDoes", yes(0.5)),
        (f"Answer: {GEORGE}", GEORGE),
        (f"Answer: {JANE_WROTE}", JANE_WROTE),
        ("Middlemarch.\n\nAnswer", GEORGE),
        ("\n\nAnswer", JANE_WROTE),
    )
    shelf = {QUESTION: [letter, EMMA, ELIOT]}
    answer = ask("self-rag", QUESTION, llm, shelf, beam=2, **LONG)
    assert (answer.text, answer.passages) == (JANE_WROTE, (EMMA,))
    [(_, relevant, support, _)] = answer.critiques
    assert (relevant, support) == pytest.approx((0.5, 0.9))
    gone_on = [p for p in llm.prompts if "Answer so far" in p]
    assert [GEORGE in prompt for prompt in gone_on] == [False, True]


def test_what_is_no_whole_sentence_or_nothing_new_ends_an_answer():
    llm = says(("look something up", "no"), ("Answer: Jane wrote it.", "Jane wrote it."),
               ("Answer:", "Jane wrote it. And"))  # fmt: skip
    told = {"segments": 9}
    answer = ask("self-rag", QUESTION, llm, SHELF, **told)
    direct, so_far = direct_prompt(QUESTION), f"{QUESTION}\nAnswer so far: Jane wrote it."
    assert answer.text == "Jane wrote it."
    assert llm.prompts == [
        SEARCH,
        direct,
        SEARCH.replace(QUESTION, so_far),
        f"{direct} {answer.text}",
    ]
    short = says(("look something up", "no"), ("Answer:", "Jane Austen"))
    assert ask("self-rag", QUESTION, short, SHELF, **told).text == "Jane Austen"
    assert len(short.prompts) == 2


def test_by_reflection_tokens_a_segment_ends_where_the_next_begins_and_usefulness_ends_all():
    first = f"{TRAINED}[Retrieval]<paragraph>Emma\n{EMMA.text}</paragraph>"
    wrote = "[Relevant]Jane wrote it.[Fully supported]"
    llm = says(
        (f"{wrote}[No Retrieval]", "In 1815.[Utility:5]"),
        (wrote, "[No Retrieval]"),
        ("</paragraph>", f"{wrote}[Continue to Use Evidence] In 1815."),
        ("Response:", "[Retrieval]"),
    )
    answer = ask("self-rag", QUESTION, llm, {QUESTION: [EMMA]}, segments=5, **REFLECTING)
    assert (answer.text, answer.passages) == ("Jane wrote it. In 1815.", (EMMA,))
    assert answer.mode == "reflection tokens"
    after = f"{first}{wrote}"
    assert llm.prompts == [TRAINED, first, after, f"{after}[No Retrieval]"]


def test_what_the_model_is_sure_to_know_is_answered_without_a_search():
    library = Library(SHELF)
    llm = says(("look something up", yes(0.15)), ("", "Jane Austen\n"))
    answer = ask("self-rag", QUESTION, llm, library)
    assert library.queries == []
    assert llm.prompts == [SEARCH, direct_prompt(QUESTION)]
    assert (answer.text, answer.passages, answer.critiques) == ("Jane Austen", (), ())


def test_a_blank_answer_is_the_last_to_be_chosen():
    llm = says(
        ("look something up", "yes"),
        ("Middlemarch.\n\nAnswer", "\n"),
        ("Austen.\n\nAnswer", "Jane Austen"),
        ("Answer: Jane Austen", "no"),
        ("Austen.\n\nQuestion", "no"),
        ("", "yes"),
    )
    answer = ask("self-rag", QUESTION, llm, SHELF)
    assert answer.text == "Jane Austen"


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
    answer = ask("self-rag", QUESTION, llm, SHELF, **REFLECTING)
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
    ask("self-rag", QUESTION, llm, {QUESTION: [long]}, **REFLECTING)
    read = " ".join(f"w{i}" for i in range(200))
    assert llm.prompts[1:] == [f"{TRAINED}[Retrieval]<paragraph>Long\n{read}</paragraph>"]


def test_a_trained_model_that_needs_no_search_answers_without_one():
    library = Library(SHELF)
    llm = says(
        ("[No Retrieval]", "Jane Austen[Utility:5]"),
        ("Response:", spelled(("[No Retrieval]", {"[No Retrieval]": 0.9, "[Retrieval]": 0.1}))),
    )
    answer = ask("self-rag", QUESTION, llm, library, **REFLECTING)
    assert llm.prompts == [TRAINED, f"{TRAINED}[No Retrieval]"]
    assert (library.queries, answer.text, answer.passages) == ([], "Jane Austen", ())
    assert answer.mode == "reflection tokens"


def test_a_model_that_writes_no_reflection_tokens_is_judged_by_yes_and_no():
    llm = says(("### Response", "Jane Austen"), ("look something up", "no"), ("", "Jane Austen"))
    answer = ask("self-rag", QUESTION, llm, SHELF, **REFLECTING)
    assert llm.prompts == [TRAINED, SEARCH, direct_prompt(QUESTION)]
    assert answer.mode == "yes-no texts"
    assert len(answer.trace) == 3


JANE = {"Jane": 0.5, "[Retrieval]": 0.1}
RETRIEVAL = "[Retrieval]", "[No Retrieval]"
RELEVANT, SUPPORTED = ("[Relevant]", "[Irrelevant]"), ("[Fully supported]", "[Partially supported]")
# hardly an alternative at the start, so no verdict on the answer
START = {"[Relevant]": 0.9, "[Irrelevant]": 0.09, "[Utility:1]": 1e-4}
START |= {"[No support / Contradictory]": 1e-5}


@pytest.mark.parametrize(
    ("reply", "values"),
    [
        # a token that the text leaves out is read from the likeliest alternative
        (spelled(("", dict(zip(RELEVANT, (0.75, 0.25), strict=True))), "Jane Austen",
                 ("", dict(zip(SUPPORTED, (0.5, 0.5), strict=True)))),
         {"relevant": 0.75, "support": 0.75, "useful": None}),
        # at the start a token need not be the one that was written; later it must
        (spelled(("Jane", JANE | {"[No Retrieval]": 0.3})), {"retrieve": 0.25}),
        (spelled("The", ("Jane", JANE)), {"retrieve": None}),
        (spelled(("[Relevant]", START), "Jane Austen",
                 ("[Fully supported]", dict(zip(SUPPORTED, (0.98, 0.02), strict=True))),
                 ("[Utility:5]", {"[Utility:5]": 0.9, "[Utility:4]": 0.1})),
         {"relevant": 0.9 / 0.99, "support": 0.98 + 0.5 * 0.02, "useful": 0.9 + 0.5 * 0.1}),
        (spelled(("[Relevant]", START), "Jane Austen"), {"support": None, "useful": None}),
        # what was written counts before alternatives at the start
        *((spelled(("\n", {"\n": 0.9, no: 1e-4}), last), {group: value})
          for group, yes, no in [("retrieve", *RETRIEVAL), ("relevant", *RELEVANT)]
          for last, value in [((yes, {yes: 0.75, no: 0.25}), 0.75), ("Jane", 0.0)]),
        # without probabilities the token named first counts
        (Generation("[Irrelevant]x[Partially supported]y[Fully supported][Utility:4]"),
         {"relevant": 0.0, "support": 0.5, "useful": 0.5, "retrieve": None}),
    ],
)  # fmt: skip
def test_what_reflection_tokens_say(reply, values):
    for group, value in values.items():
        assert _reflection_value(reply, group) == pytest.approx(value)


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
    assert ask("self-rag", QUESTION, llm, {}, **REFLECTING).text == answer


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
    with pytest.raises(InvalidLogProbability, match="at most 0"):
        yes_probability(Generation("Yes", (Token("Yes", 0.5),)))
