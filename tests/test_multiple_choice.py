"""Questions that offer options: every method shows them, and its reply is read as one of them."""

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from contracts.methods import LABELLED, Letters, Scoring, learned, likely

from ltrag_plugins.evaluate import Cell, evaluate
from ltrag_plugins.flow import Flow, World, embed, run
from ltrag_plugins.gece import GECEGate, GECESettings, score_questions
from ltrag_plugins.gece.decision import Decision
from ltrag_plugins.gece.labels import collect, labels_of, reply_is_right
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.direct import direct
from ltrag_plugins.methods.method import Method
from ltrag_plugins.methods.sgic import SGICMethodSettings
from ltrag_plugins.metrics.text import meteor
from ltrag_plugins.prompts.templates import render_question, searching_for
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import SGICSettings, read_run
from ltrag_plugins.types import Generation, Passage, Question

INDEX = Question("Find the index of <p> in S_5.", ("120",), "q0", options=("8", "2", "24", "120"))
PLAIN = replace(INDEX, options=())
SHELF = [Passage("The order of S_5 is 120; <p> has an index.", "p0")]


def asking(reply: str) -> World:
    return World(llm=Scoring(lambda _: reply), retriever=BM25Retriever(SHELF), encoder=Letters())


def answer(name: str, question: Question, reply: str) -> str:
    """Of a method that learned what it learns; a scripted model says the same to every prompt."""
    return run(METHODS[name].flow(question, None, learned(name)), asking(reply)).text


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("reply", ["D", "(D)", "120", "d.", "120, as 5! is"])
def test_every_method_picks_the_option_that_the_reply_names(name, reply):
    assert answer(name, INDEX, reply) == "120"


@pytest.mark.parametrize(
    "reply", ["B。", "Ｂ", "（B）", "【B】上海", "B、上海", "上海。", "上海是最大的城市"]
)
def test_an_option_is_read_in_chinese_too(reply):
    city = Question("哪个城市最大？", ("上海",), "q1", options=("北京", "上海", "广州"))
    assert answer("direct", city, reply) == "上海"


@pytest.mark.parametrize("name", METHODS)
def test_what_is_no_option_stays_as_it_is_and_so_does_every_answer_without_options(name):
    assert answer(name, INDEX, "E") == "E"
    assert answer(name, PLAIN, "D") == "D"


def test_an_answer_without_options_is_the_methods_own_to_the_character():
    alone = run(direct(PLAIN.text), asking(" The answer is D.\n"))
    assert run(METHODS["direct"].flow(PLAIN), asking(" The answer is D.\n")) == alone
    assert alone.text == "The answer is D."


def test_a_reply_is_read_once():
    """Read again, the option that "B" names would lose its beginning, and be the first."""
    odd = Question("Which sentence is longer?", options=("eight", "The answer is eight"))
    for name in METHODS:
        assert answer(name, odd, "B") == "The answer is eight", name


class Refusing:
    """A gate that never retrieves."""

    name = "refusing"

    def deciding(self, question: str) -> Flow[Decision]:
        return Decision(question, False, 0.0, 0.5, "text", "always", Generation("D"))
        yield


def recorded(tmp_path, *cells: Cell, reply: str = "D"):
    found = evaluate(
        [INDEX], cells, asking(reply), out=tmp_path, metrics=["accuracy"], labelled=LABELLED
    )
    return {name: (one.prediction, one.scores["accuracy"]) for name, [one] in found.items()}


def test_direct_and_shots_score_the_same_reply_alike(tmp_path):
    names = ("direct", "single", "random-shots", "bm25-shots", "k-samples")
    found = recorded(tmp_path, *(Cell(METHODS[name]) for name in names))
    assert found == dict.fromkeys(names, ("120", 1.0))


def test_of_options_that_read_alike_the_very_one_is_right(tmp_path):
    exact, cells = ("em", "contains", "accuracy"), [Cell(METHODS["direct"])]
    signed = replace(INDEX, answers=("2",), options=("2", "-2"))
    for reply, right in (("A", 1.0), ("-2", 0.0), ("-2, of course", 0.0), ("B", 0.0)):
        how = {"out": tmp_path / reply, "metrics": exact}
        [[one]] = evaluate([signed], cells, asking(reply), **how).values()
        assert one.scores == dict.fromkeys(exact, right), reply


def test_a_reply_that_is_no_option_is_scored_by_its_words(tmp_path):
    how = {"out": tmp_path, "metrics": ["em", "contains"]}
    [[one]] = evaluate([INDEX], [Cell(METHODS["direct"])], asking("It is 120"), **how).values()
    assert one.scores == {"em": 0.0, "contains": 1.0}


def test_the_draft_of_a_gate_is_read_as_the_answers_behind_it_are(tmp_path):
    cell = Cell(METHODS["single"], gate=Refusing(), gate_name="refusing")
    assert recorded(tmp_path, cell) == {"single+refusing": ("120", 1.0)}


def test_the_rounds_of_sgic_are_right_where_its_answer_is(tmp_path):
    loop = SGICSettings(rounds=1, certain_below=0, least_gain=None)
    cell = Cell(METHODS["sgic"], SGICMethodSettings(loop=loop))
    assert recorded(tmp_path, cell) == {"sgic": ("120", 1.0)}
    [kept] = read_run(tmp_path / "records" / "sgic.jsonl")
    assert kept.right == (True, True)


CITIES = [
    Question(f"Capital {i}?", (("London", "Paris")[i % 2],), f"c{i}", options=("London", "Paris"))
    for i in range(8)
]


class Parity:
    """One direction for even questions, one for odd ones."""

    name = "parity"

    def encode(self, texts):
        return np.array([[int(text[8]) % 2, 1] for text in texts], "float32")


@pytest.mark.parametrize("name", ["skr", "adaptive"])
@pytest.mark.parametrize("form", ["{}", "({})", "The answer is {}."])
def test_what_learns_from_its_replies_reads_them_as_it_does_at_work(name, form):
    """The model says A, which even questions take, and B where it reads, which odd ones take."""
    llm = Scoring(lambda prompt: form.format("AB"["gazetteer" in prompt]))
    shelf = BM25Retriever([Passage("Capital by capital, a gazetteer.")])
    world = World(llm=llm, retriever=shelf, encoder=Parity())
    learned = METHODS[name].taught(CITIES, METHODS[name].settings(), world)
    for i, question in enumerate(CITIES):
        found = run(METHODS[name].flow(question, None, learned), world)
        assert (found.text, len(found.passages)) == (question.answers[0], i % 2)


def test_an_option_that_holds_another_is_none_of_its_answers():
    options = ("mitosis and meiosis", "mitosis")
    both = Question("How do they divide?", ("mitosis",), "q2", options=options)
    for reply, right in (("A", False), ("B", True), ("mitosis, and no more", True)):
        assert reply_is_right(reply, both, "contains") is right
    rows = [(both, reply, False) for reply in "AB"]
    assert labels_of(rows, "contains") == [False, True]


@pytest.mark.parametrize("judge", [None, lambda *_: False])
def test_letters_and_options_agree_where_an_answer_with_retrieval_stands_in(judge):
    long = replace(INDEX, options=("8", "eight times as many as there are in " * 3))
    for question in (replace(INDEX, options=("8", "2")), long):
        for answer in ("B", "(B)", question.options[1]):
            known = replace(question, answers=(answer,))
            rows = [(known, draft, True) for draft in ("B.", question.options[1], "A", "8")]
            assert labels_of(rows, "contains", judge) == [True, True, False, False]


def test_a_gate_is_fitted_on_replies_as_they_are_read():
    """Of letters alone, half of which are right."""
    questions = [replace(CITIES[i % 2], text=f"Capital {i}?", id=f"{i}") for i in range(40)]
    gate = GECEGate.fit(
        questions,
        llm=ScriptedLLM(lambda prompt: likely(prompt, "A")),
        settings=GECESettings(scorer="product", folds=2),
        retrieved_answers=["(B) Paris"] * 40,
    )
    assert (gate.report.direct_accuracy, gate.report.retrieval_accuracy) == (0.5, 0.5)


def test_eq_2_reads_a_reply_as_the_fit_of_its_gate_does():
    questions = [replace(CITIES[i % 2], text=f"Capital {i}?", id=f"{i}") for i in range(4)]
    llm, settings = ScriptedLLM(lambda prompt: likely(prompt, "A")), GECESettings.paper()
    settings = replace(settings, semantics=False, gradients="never")
    scores = score_questions(questions, llm=llm, settings=settings)
    outcomes, *_ = collect(questions, World(llm=llm), settings)
    named = [meteor(question.options[0], question.answers) for question in questions]
    assert [score.meteor for score in scores] == [one.quality for one in outcomes] == named
    assert len({*named}) == 2  # the option is right for one city, and wrong for the other


class Unsearched(str):
    """A text in which nothing may be looked for."""

    def replace(self, *_):
        raise AssertionError(f"looked for questions in {self!r}")


def cut(questions: list[Question], *texts: str) -> list[str]:
    """What is encoded of these texts in a flow over these questions."""
    seen = list[str]()

    class Seen:
        name = "seen"

        def encode(self, texts):
            seen.extend(texts)
            return np.zeros((len(texts), 1), dtype=np.float32)

    run(searching_for(questions, embed(*texts)), World(encoder=Seen()))
    return seen


def test_of_spelled_out_questions_the_texts_are_left_wherever_they_stand():
    begins = replace(INDEX, options=("8", "2"))  # as INDEX does
    context = Question("Who came?", context="A man and a dog came.", options=("Ann", "Bob"))
    blank = Question("Who left?", context=" ")
    asked = [begins, INDEX, context, blank, PLAIN]
    whole = [render_question(one).strip() for one in asked]
    texts = [*whole, *(f"before\n{text}\nbehind" for text in whole), " and ".join(whole)]
    texts += ["Text: of something else", "Options: 8; 2", "no question"]
    wanted = texts
    for text, one in sorted(zip(whole, asked, strict=True), key=lambda pair: -len(pair[0])):
        wanted = [each.replace(text, one.text) for each in wanted]
    assert cut(asked, *texts) == wanted
    assert wanted[: len(asked)] == [one.text for one in asked]


def test_a_passage_that_holds_no_question_is_not_searched_for_all_of_them():
    asked = [replace(INDEX, text=f"Find the index of number {i}.") for i in range(9)]
    passages = [Unsearched("The order of S_5 is 120."), Unsearched("")]
    exact = Unsearched(render_question(asked[4]))
    assert cut(asked, *passages, exact) == [*passages, asked[4].text]


def test_random_questions_are_cut_as_by_a_plain_loop_over_all_of_them():
    rng = Random(0)

    def piece(*words):
        return " ".join(rng.choices(words, k=rng.randint(1, 2)))

    cut_ones = 0
    for _ in range(200):
        asked = [
            Question(
                piece("Who?", "a", "Text: a", "Options: a; b", "Who?\nOptions: a; b"),
                context=rng.choice(["", "", " ", piece("a", "b", "Options: a")]),
                options=rng.choice([(), ("a", "b"), ("a", "b b")]),
            )
            for _ in range(12)
        ]
        wholes = [render_question(one) for one in asked]
        parts = [*wholes, "a", "b", "Who?", "\n", "\nText: a", "\nOptions: a; b"]
        texts = ["".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(12)]
        by_whole = {w.strip(): q.text for w, q in zip(wholes, asked, strict=True) if w != q.text}
        wanted = []
        for text in texts:
            left = by_whole.get(text, text)
            for whole in sorted(by_whole, key=len, reverse=True) if text not in by_whole else ():
                left = left.replace(whole, by_whole[whole])
            wanted.append(left)
        assert cut(asked, *texts) == wanted
        cut_ones += wanted != texts
    assert cut_ones > 150


def test_of_many_questions_few_are_looked_for_in_a_text():
    looked = Counter()

    class Counted(str):
        def replace(self, *args):
            looked["replace"] += 1
            return Counted(super().replace(*args))

        def startswith(self, *args):
            looked["startswith"] += 1
            return super().startswith(*args)

    asked = [replace(INDEX, text=f"Find the index of number {i}.") for i in range(500)]
    texts = [f"{render_question(one)} draft answer" for one in asked]
    wanted = [f"{one.text} draft answer" for one in asked]
    assert cut(asked, *map(Counted, texts)) == wanted
    assert looked["replace"] == len(asked)
    assert looked["startswith"] <= 4 * len(asked)


def test_a_method_that_reads_its_replies_itself_is_left_to():
    row: Method = replace(METHODS["direct"], spells_out=True, answer=lambda q, *_: direct(q.text))
    assert run(row.flow(INDEX), asking("D")).text == "D"
