"""All three at once: what is kept is what enumeration says, of worlds in which that is known."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ltrag_plugins import training
from ltrag_plugins.data import read_questions
from ltrag_plugins.dur import DURRanker, DURTrainer
from ltrag_plugins.errors import (
    ArtifactMismatch,
    CalibrationError,
    EmptyQuestion,
    InvalidInput,
    UnreadableArtifact,
)
from ltrag_plugins.evaluate import LongTailRAG, LongTailSettings, cell_of, evaluate
from ltrag_plugins.evaluate.choice import ALWAYS, Goal, Trials, Way
from ltrag_plugins.evaluate.records import Record
from ltrag_plugins.flow import World, run
from ltrag_plugins.gece import GECEGate, GECESettings
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.prompts.templates import NOT_TEXT
from ltrag_plugins.retrieval.bm25 import BM25Retriever
from ltrag_plugins.sgic import Calibration, ScoreScale, SGICSettings
from ltrag_plugins.sgic.calibrator import Calibrator
from ltrag_plugins.types import Generation, Passage, Question, Token
from tests.pipeline_parts import COLOURS, House, Letters, fitted, houses, settings, unlabelled


def test_a_gate_that_saves_searches_and_loses_nothing_is_kept():
    rag = fitted(House())
    report = rag.report
    assert report.kept == "always+gate"
    assert (rag.retrieves, rag.ranker) == ("gated", None)
    rows = {row.name: row for row in report.rows}
    # the model knows every second house, and reads the others' colours from the passage
    assert rows["never"].right.value == pytest.approx(0.5, abs=0.05)
    assert rows["always"].right.value == rows["always+gate"].right.value == 1
    assert rows["always+gate"].searches == pytest.approx(0.5, abs=0.1)
    assert rows["always+gate"].tokens < rows["always"].tokens
    [gate, reranker, calibrator] = report.verdicts
    assert (gate.part, gate.kept) == ("gate", True)
    assert not reranker.kept
    assert "no encoder" in reranker.why
    assert not calibrator.kept


def test_where_nothing_pays_it_always_retrieves_and_says_so():
    rag = fitted(House(knows=lambda house: False))
    assert rag.report.kept == "always"
    assert (rag.gate, rag.ranker, rag.retrieves) == (None, None, "always")
    assert "nothing of ours pays" in str(rag.report)
    [gate, *_] = rag.report.verdicts
    assert "wrong on (nearly) all" in gate.why


def test_where_retrieval_adds_nothing_it_never_retrieves():
    rag = fitted(House(reads=lambda house: house % 2 == 0))
    assert rag.report.kept == "never"
    searched = rag.world.retriever.searched
    before = len(searched)
    assert rag.answer("What is the colour of house 4?").text == "white"
    assert len(searched) == before


def test_without_accepted_answers_agreement_takes_their_place():
    rag = fitted(House(), questions=unlabelled())
    report = rag.report
    assert report.agreement == 1
    assert report.kept == "always+gate"
    rows = {row.name: row for row in report.rows}
    assert rows["always"].right.value == 1  # it agrees with itself
    assert "agreement with always retrieving" in str(report)
    for verdict in report.verdicts[1:]:
        assert not verdict.kept
    assert "accepted answers" in report.verdicts[2].why
    assert not rag.knows_p_wrong  # nobody says which answers from passages are right


def test_some_questions_may_have_accepted_answers_and_others_not():
    rag = fitted(House(), questions=[*houses(40), *unlabelled(80)[40:]])
    assert 0.3 < rag.report.agreement < 0.7
    assert rag.report.kept == "always+gate"


def test_a_reranker_that_finds_the_passage_is_kept_and_asks_for_it():
    house = House(place=5)  # the passage that tells is the sixth that is found
    rag = fitted(house, encoder=Letters(), target_accuracy=0.9)
    assert rag.ranker is not None
    assert "reranked" in rag.report.kept
    assert rag.answer("What is the colour of house 3?").text == "yellow"


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_target_is_met_by_the_cheapest_way_that_reaches_it(share):
    report = fitted(House(), target_accuracy=share).report
    rows = {row.name: row for row in report.rows}
    reaching = [row for row in rows.values() if row.right.value >= share]
    cheapest = min(reaching, key=lambda row: row.tokens)
    assert report.met
    assert rows[report.kept].tokens == pytest.approx(cheapest.tokens, rel=0.02)


def test_a_target_out_of_reach_is_said_and_the_most_accurate_way_kept():
    rag = fitted(House(reads=lambda house: house % 4 < 3), target_accuracy=1.0)
    assert not rag.report.met
    assert "no way meets the target" in str(rag.report)
    best = max(row.right.value for row in rag.report.rows)
    assert rag.report[rag.report.kept].right.value == best


def test_a_budget_bounds_the_cost_and_the_most_accurate_way_within_it_is_kept():
    rag = fitted(House(), budget=0.9)
    rows = {row.name: row for row in rag.report.rows}
    assert rows[rag.report.kept].tokens <= 0.9 * rows["always"].tokens
    assert rag.report.kept == "always+gate"


def trials(seed: int, goal: Goal, questions: int = 30, alike: float | None = None) -> Trials:
    """Random ways to answer; what is right (or all ways `alike`) and what it costs are drawn."""
    rng, records = np.random.default_rng(seed), {}
    ways = [Way("never"), *(Way(*w) for w in product(["always", "gated"], [False, True], [False]))]
    for way in ways:
        right, cost = rng.random() * 0.6 + 0.2, int(rng.integers(10, 200))
        right = right if alike is None else alike
        records[way] = [
            Record(str(i), "", (), "", {"right": float(rng.random() < right)}, prompt_tokens=cost)
            for i in range(questions)
        ]
    return Trials(records, rng.random(questions) < 0.5, goal, seed)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "goal", [Goal(), Goal(0.4), Goal(0.95), Goal(budget=1.0), Goal(budget=0.2)], ids=str
)
def test_the_kept_way_is_what_enumeration_says(seed, goal):
    made = trials(seed, goal)
    right = {w: np.mean([r.scores["right"] for r in some]) for w, some in made.records.items()}
    spent = {w: np.mean([r.tokens for r in some]) for w, some in made.records.items()}
    if goal.budget is not None:
        fits = [w for w in right if spent[w] <= goal.budget * spent[ALWAYS]]
        best = max((right[w] for w in fits), default=None)
        good = {w for w in fits if right[w] == best} or {min(spent, key=lambda w: spent[w])}
    else:
        wanted = goal.target_accuracy or right[ALWAYS] - 0.05 * made.stands_in.mean()
        fits = [w for w in right if right[w] >= wanted - 1e-12]
        least = min((spent[w] for w in fits), default=None)
        good = {w for w in fits if spent[w] <= 1.02 * least}
        fewest = min((w.parts for w in good), default=0)
        good = {w for w in good if w.parts == fewest}
        good = good or {w for w in right if right[w] == max(right.values())}
    kept, met = made.choice()
    assert kept in good
    assert met == bool(fits)


def test_the_choice_is_judged_where_it_was_not_made():
    luck = []
    for seed in range(10):
        made, gains = trials(seed, Goal(budget=100.0), alike=0.5), []
        order = np.random.default_rng(seed).permutation(30)
        for test in np.array_split(order, 5):
            others = np.array([i for i in range(30) if i not in test])
            part = {w: [some[i] for i in others] for w, some in made.records.items()}
            way, _ = Trials(part, made.stands_in[others], made.goal).choice()
            gains += [made.right[way][i] - made.right[ALWAYS][i] for i in test]
        assert made.unseen().value == pytest.approx(np.mean(gains))
        kept, _ = made.choice()
        luck.append(np.mean(made.right[kept] - made.right[ALWAYS]) - np.mean(gains))
    assert np.mean(luck) > 0  # on its own questions a choice looks better than it is


def test_a_saved_pipeline_answers_as_before(tmp_path):
    house = House(place=5)
    rag = fitted(house, encoder=Letters(), target_accuracy=0.9)
    rag.save(tmp_path)
    parts = {"llm": house.llm(), "retriever": house, "encoder": Letters()}
    again = LongTailRAG.load(tmp_path, **parts)
    asked = [f"What is the colour of house {house}?" for house in range(200, 220)]
    assert again.answer_many(asked) == rag.answer_many(asked)
    assert again.report == rag.report
    assert str(again.report) == str(rag.report)
    assert again.data == rag.data != ""


async def test_sync_async_and_many_give_equal_answers():
    rag, question = fitted(House()), "What is the colour of house 7?"
    one = rag.answer(question)
    assert await rag.aanswer(question) == one == rag.answer_many([question, question])[1]
    assert one.text == "pink"
    assert one.decision.retrieve
    assert one.passages[0].id == "house-7"


def test_a_calibrator_that_was_kept_has_the_encoder_that_it_cuts_by(tmp_path):
    class Easily(House):
        """Confused by a second passage; of many it finds none, so that no reranker is trained."""

        def write(self, prompt: str) -> Generation:
            shown = prompt.count("stands in a long street")
            own = replace(self, reads=lambda house: shown == 1 or house % 5 == 0)
            return House.write(own, prompt)

        def _found(self, house: int, k: int) -> list[Passage]:
            return super()._found(house, k) if k <= 3 else []

    house = Easily(knows=lambda house: False, place=2)
    rag = fitted(house, encoder=Letters(), target_accuracy=0.7)
    assert (rag.gate, rag.ranker) == (None, None)
    assert rag.calibration.settings.source == "encoder"
    asked = [question.text for question in houses(8)]
    answers = rag.answer_many(asked)
    rag.save(tmp_path)
    parts = {"llm": house.llm(), "retriever": house, "encoder": Letters()}
    assert LongTailRAG.load(tmp_path, **parts).answer_many(asked) == answers


def longest(answer: str, question: Question) -> float:
    return float(len(answer))


@pytest.mark.parametrize(("reward", "read"), [("f1", "f1"), ("auto", "auto"), (longest, "match")])
def test_a_saved_pipeline_keeps_every_setting_but_a_function(reward, read, tmp_path):
    house, plain = House(), LongTailSettings()
    told = replace(plain, ranking=replace(plain.ranking, reward=reward))
    LongTailRAG(World(house.llm(), house), told).save(tmp_path)
    again = LongTailRAG.load(tmp_path, llm=house.llm(), retriever=house).settings
    assert again == replace(told, ranking=replace(told.ranking, reward=read))


def test_an_answer_carries_the_probability_that_it_is_wrong_and_may_be_refused():
    rag = fitted(House(reads=lambda house: house % 4 < 3))
    assert rag.knows_p_wrong
    sure = rag.answer("What is the colour of house 200?")
    unsure = rag.answer("What is the colour of house 203?")
    assert sure.p_wrong < unsure.p_wrong
    strict = rag.refusing((sure.p_wrong + unsure.p_wrong) / 2, "I do not know.")
    assert strict.answer("What is the colour of house 200?") == sure
    refused = strict.answer("What is the colour of house 203?")
    assert (refused.refused, refused.text) == (True, "I do not know.")
    assert refused.calibrated.text == unsure.text  # what was kept back is still there
    assert not unsure.refused
    # another limit keeps the words
    assert strict.refusing(0.0).refusal == replace(strict.refusal, refuse_p_wrong_above=0.0)


def test_a_model_without_token_probabilities_has_no_p_wrong_but_a_gate():
    rag = fitted(House(says_how_sure=False))
    assert rag.calibration is None
    assert not rag.knows_p_wrong
    with pytest.raises(InvalidInput, match="does not know P"):
        rag.refusing(0.5)
    assert rag.answer("What is the colour of house 7?").text == "pink"


def test_samples_that_agree_stand_in_for_token_probabilities_where_they_are_asked_for():
    house = House(reads=lambda house: house % 4 < 3, says_how_sure=False)
    reading = SGICSettings(rounds=0, estimator="agreement", samples=2)
    rag = fitted(house, settings=replace(settings(), reading=reading), target_accuracy=0.7)
    assert rag.knows_p_wrong
    assert rag.report["always"].calls == 3  # the answer and two samples
    assert 0 < rag.answer("What is the colour of house 203?").p_wrong < 1


def test_a_follow_up_is_made_to_stand_alone_first():
    rag = fitted(House())
    history = [("human", "Tell me about house 7.")]
    answer = run(rag.answering("What is its colour?", history=history), rag.world)
    assert answer.text == "pink"


class Lengths(Letters):
    """As letters, and how long a text is."""

    def encode(self, texts):
        return np.c_[super().encode(texts), [len(text) / 100 for text in texts]].astype("float32")


@pytest.mark.parametrize("encoder", [None, Lengths()])
def test_what_is_fitted_sees_options_and_context_and_encodes_the_text_alone(encoder):
    house, plain = House(place=1), House(place=1)
    questions = [replace(one, options=COLOURS, context="A street.") for one in houses()]
    own = settings(ranking=replace(settings().ranking, epochs=1))
    rag = fitted(house, questions=questions, encoder=encoder, settings=own)
    assert {prompt.count("Options: red; ") for prompt in house.model.prompts} == {1}
    assert len(house.model.prompts) == len({*house.model.prompts})
    assert {*house.searched} == {one.text for one in questions}
    # this model does not mind what else stands in a prompt
    other = fitted(plain, encoder=encoder, settings=own)
    rights = [[row.right for row in one.report.rows] for one in (rag, other)]
    assert rights[0] == rights[1]
    if encoder is not None:
        assert rag.ranker.encoder is encoder
        np.testing.assert_array_equal(rag.ranker.head.weight, other.ranker.head.weight)


def test_a_gate_is_judged_on_the_whole_question_that_it_was_fitted_on():
    """The context alone tells which houses the model knows."""
    stages, encoded = list[str](), list[tuple[str, list[str]]]()

    class Contexts:
        name = "contexts"

        def encode(self, texts):
            encoded.append((stages[-1], [*texts]))
            rows = [("is old." in text, "is new." in text, 1, len(text) / 100) for text in texts]
            return np.array(rows, dtype=np.float32)

    contexts = "It is old.", "It is new."
    asked = [replace(q, answers=(), context=contexts[i % 2]) for i, q in enumerate(houses())]
    own = replace(settings(), gate=GECESettings(folds=3))  # the fitted scorer reads vectors
    house = House(says_how_sure=False)
    told = {"questions": asked, "encoder": Contexts(), "settings": own}
    rag = fitted(house, **told, on_stage=stages.append)
    [judged] = [texts for stage, texts in encoded if stage == "judging all ways"]
    questions, drafts = judged[::2], judged[1::2]
    assert {text.partition("\nText: ")[2] for text in questions} == {*contexts}
    assert {*drafts} <= {*COLOURS}
    assert rag.report.kept == "always+gate"


@pytest.mark.parametrize("retrieves", ["always", "gated", "never"])
def test_of_a_question_with_a_picture_the_words_are_read(retrieves):
    house = House()
    rag = replace(fitted(house), retrieves=retrieves)
    for number in (4, 7):  # known, and to be looked up
        text = f"What is the colour of house {number}?"
        plain = rag.answer(text)
        seen = len(house.model.prompts), len(house.searched)
        for asked in (f"{NOT_TEXT}{text}", f"{text}\n{NOT_TEXT}"):
            answer = rag.answer(asked)
            assert answer.question == text
            if retrieves == "gated":  # before a picture no gate says that nothing is needed
                assert (answer.text, answer.decision.retrieve) == (COLOURS[number], True)
            else:
                assert answer == plain
        history = [("human", "Tell me about house 7.")]
        follow_up = run(rag.answering(asked, history=history), rag.world)
        assert follow_up.question == "What is the colour of house 7?"
        sent = [*house.model.prompts[seen[0] :], *house.searched[seen[1] :]]
        assert NOT_TEXT not in "".join(sent)


HELLO = Generation("Hello.", (Token("Hello.", -0.1),))


@pytest.mark.parametrize("retrieves", ["always", "gated", "never"])
def test_a_turn_without_a_word_is_not_made_a_question(retrieves):
    rag, model = replace(fitted(House()), retrieves=retrieves), ScriptedLLM(lambda _: HELLO)
    pool = BM25Retriever([Passage("House 7 is painted pink.")])
    world = replace(rag.world, llm=model, retriever=pool)
    for history in ([], [("human", "Tell me about house 7.")]):
        if retrieves == "never":  # no draft is made of it
            with pytest.raises(EmptyQuestion):
                run(rag.answering("🙂", history=history), world)
        else:
            answer = run(rag.answering("🙂", history=history), world)
            assert (answer.question, answer.text) == ("🙂", "Hello.")
    assert not any("house 7" in prompt.lower() for prompt in model.prompts)


def test_a_fit_asks_nothing_twice(tmp_path):
    house = House()
    model = house.llm()
    kept = CachedLLM(model, tmp_path / "answers.sqlite")
    rag = fitted(house, llm=kept)
    assert len(model.prompts) == len({*model.prompts})
    asked = len(model.prompts)
    assert fitted(house, llm=kept).report.kept == rag.report.kept
    assert len(model.prompts) == asked
    assert rag.world.llm is kept


@pytest.mark.parametrize("by", ["function", "model"])
def test_a_fit_asks_its_judge_nothing_twice(by):
    asked, long = Counter(), " which is a colour that a house may well have, as some say"

    class Talkative(House):
        def _said(self, text, chance, prompt):
            painted = " as the passage says" if "painted" in prompt else " as everybody knows"
            return super()._said(text + long + painted, chance, prompt)

    def judge(question: str, answer: str, reference: str) -> bool:
        asked[question, answer, reference] += 1
        return answer.split()[0] == reference.split()[0]

    def write(prompt: str) -> str:
        asked[prompt] += 1
        return "yes"

    known = [replace(q, answers=(f"{q.answers[0]}{long} who lived there",)) for q in houses()]
    judges = {"function": judge, "model": ScriptedLLM(write, name="judge")}
    fitted(Talkative(), questions=known, correct=judges[by])
    assert len(asked) >= 80
    assert {*asked.values()} == {1}


def test_questions_on_which_the_model_fails_are_left_out_and_named(caplog):
    house = House()

    def failing(prompt: str) -> Generation:
        if "house 11?" in prompt:
            raise RuntimeError("out of order")
        return house.write(prompt)

    rag = fitted(house, llm=ScriptedLLM(failing, name="failing"))
    assert rag.report.fitted + rag.report.judged == 79
    assert "1 of 80 questions" in caplog.text
    with pytest.raises(CalibrationError, match="see that model and retriever"):
        fitted(house, llm=ScriptedLLM(lambda _: 1 / 0, name="broken"))


def test_wrong_inputs_are_named_before_anything_is_asked():
    house, unknown = House(), LongTailSettings(gate=GECESettings(scorer="produkt"))
    for error, name, given in (
        (CalibrationError, "20", {"questions": houses(5)}),
        (InvalidInput, "one string", {"questions": "who wrote Emma?"}),
        (EmptyQuestion, r"questions\[80\]", {"questions": [*houses(), Question("?!", ("x",))]}),
        (InvalidInput, "not both", {"target_accuracy": 0.5, "budget": 0.5}),
        (InvalidInput, "budget", {"budget": -1}),
        (InvalidInput, "target_accuracy", {"target_accuracy": 2}),
        (InvalidInput, "retriever", {"retriever": object()}),
        (InvalidInput, "llm", {"llm": object()}),
        (InvalidInput, "above 0.025, or give more", {"settings": settings(held_out=0.01)}),
        (InvalidInput, "settings must be LongTailSettings", {"settings": {"k": 3}}),
        (InvalidInput, "no scorer 'produkt'; did you mean product", {"settings": unknown}),
    ):
        with pytest.raises(error, match=name):
            fitted(house, **given)
    assert house.model is None or house.model.prompts == []
    with pytest.raises(InvalidInput, match="held_out"):
        LongTailSettings(held_out=1.0)


def test_a_place_that_is_no_path_is_refused_in_words():
    house = House()
    rag = fitted(house)
    calibration = Calibration(SGICSettings(), ScoreScale("product"))
    parts = {"llm": house.llm(), "retriever": house, "encoder": Letters()}
    example = [{"messages": [{"role": r, "content": r} for r in ("user", "assistant")]}]
    for saved in (
        rag.save,
        rag.gate.save,
        DURRanker.untrained(Letters()).save,
        lambda place: calibration.save(place, llm=house.llm()),
        lambda place: LongTailRAG.load(place, **parts),
        lambda place: evaluate(houses(1), [cell_of("direct")], rag.world, out=place),
        lambda place: training.keep(example, out=place),
        training.load,
        lambda place: GECEGate.load(place, llm=house.llm()),
        lambda place: DURRanker.load(place, encoder=Letters()),
        lambda place: Calibration.load(place, llm=house.llm()),
        lambda place: DURTrainer(Letters(), house.llm()).fit(
            [Passage("a house")], houses(1), checkpoint=place or 3
        ),
        read_questions,
    ):
        for place in (None, 3, b"folder"):
            with pytest.raises(InvalidInput, match=r"must be a path, .* got (None|int|bytes)"):
                saved(place)


def test_what_is_no_list_is_refused_in_words(tmp_path):
    house = House()
    rag, llm = fitted(house), house.llm()
    calibrator, trainer = Calibrator(llm), DURTrainer(Letters(), llm)
    for called in (
        rag.gate.decide_many,
        rag.answer_many,
        calibrator.answer_many,
        lambda given: Calibrator.fit(given, llm=llm),
        lambda given: training.build(given, llm, out=tmp_path),
        lambda given: trainer.fit([Passage("a house")], given),
        lambda given: DURRanker.untrained(Letters()).rank("which house?", given),
        lambda given: evaluate(given, [cell_of("direct")], rag.world, out=tmp_path),
        lambda given: evaluate(houses(1), given, rag.world, out=tmp_path),
        lambda given: GECEGate.fit(houses(), llm=llm, retrieved_answers=given or 3),
    ):
        with pytest.raises(InvalidInput, match="came as one string, 'which house"):
            called("which house?")
        with pytest.raises(InvalidInput, match=r"must be a list of .*, got (NoneType None|int 3)"):
            called(None)
    assert llm.prompts == []
    with pytest.raises(InvalidInput, match="questions are Question"):
        calibrator.answer_many(["which house?"])
    with pytest.raises(InvalidInput, match="a question must be a string, got NoneType"):
        rag.answer(None)


def test_too_few_questions_for_a_gate_are_told_before_and_an_empty_search_by_its_name(caplog):
    class Nothing:
        def search(self, queries, k):
            assert "18 of 30 questions are left to fit a gate on, which needs 20" in caplog.text
            return [[] for _ in queries]

    report = fitted(House(), questions=houses(30), retriever=Nothing()).report
    assert report is not None
    told = str(report)
    assert "calibrator  left out: the retriever finds something for 0 questions only" in told
    assert "gate        left out: 18 calibration questions" in told


def test_a_folder_that_does_not_fit_is_refused(tmp_path):
    house = House(place=5)
    rag = fitted(house, encoder=Letters(), target_accuracy=0.9)
    rag.save(tmp_path)
    parts = {"llm": house.llm(), "retriever": house, "encoder": Letters()}
    with pytest.raises(ArtifactMismatch, match="other"):
        LongTailRAG.load(tmp_path, **parts | {"llm": replace(house, name="other").llm()})
    with pytest.raises(InvalidInput, match="retriever"):
        LongTailRAG.load(tmp_path, llm=house.llm(), encoder=Letters())
    with pytest.raises(InvalidInput, match="encoder"):
        LongTailRAG.load(tmp_path, llm=house.llm(), retriever=house)
    Calibration(SGICSettings(), ScoreScale("product")).save(
        tmp_path / "calibration", llm=house.llm()
    )
    with pytest.raises(UnreadableArtifact, match="calibration/ is not the one of this fit"):
        LongTailRAG.load(tmp_path, **parts)
    looks = Calibration(SGICSettings(rounds=1, cut_to=1, source="encoder"), ScoreScale("product"))
    replace(rag, ranker=None, gate=None, retrieves="always", calibration=looks).save(tmp_path)
    assert json.loads((tmp_path / "longtail.json").read_text())["encoder"] == Letters().name
    with pytest.raises(InvalidInput, match="'encoder' needs encoder="):
        LongTailRAG.load(tmp_path, llm=house.llm(), retriever=house)
    assert LongTailRAG.load(tmp_path, **parts).calibration == looks
    other = Letters()
    other.name = "another"
    with pytest.raises(ArtifactMismatch, match="the encoder 'houses and gardens', not 'another"):
        LongTailRAG.load(tmp_path, **parts | {"encoder": other})
    file = tmp_path / "longtail.json"
    file.write_text(file.read_text().replace('"retrieves": "', '"retrieves": "x'))
    with pytest.raises(UnreadableArtifact, match="no readable pipeline"):
        LongTailRAG.load(tmp_path, **parts)
