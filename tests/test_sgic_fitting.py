"""Fitting: what pays is kept, what does not is said; every figure has a second way to it."""

import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from ltrag_plugins.errors import (
    CalibrationError,
    EmptyQuestion,
    InvalidInput,
    MissingReferences,
    NoTokenProbabilities,
)
from ltrag_plugins.flow import World, run_many
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.metrics.calibration import auroc, paired_bootstrap
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.sgic import Calibration, ScoreScale, SGICSettings, calibrate, fit, sampled
from ltrag_plugins.types import Generation, GenerationSettings, Passage, Question, Token
from tests.sgic_parts import (
    QUESTION,
    THREE,
    asked,
    documents_in,
    folds,
    number,
    rights,
    round_of,
    rounds_in,
    said,
    way,
)

TO_THE_END = SGICSettings(rounds=3, certain_below=0, least_gain=None)


def drawn(prompt: str) -> float:
    """A number in (0, 1) that depends on every letter of the prompt."""
    return (int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4]) + 1) / (2**32 + 1)


def fickle() -> ScriptedLLM:
    """Right or wrong, sure or not, by what stands in the prompt, scores included."""

    def write(prompt):
        logprobs = [np.log(drawn(prompt + part)) / 4 for part in "ab"]
        text = "right" if drawn(prompt + "right") < 0.4 else f"{drawn(prompt):.1f} right"
        tokens = tuple(Token(text, lp) for lp in logprobs)
        return Generation(text, tokens, prompt_tokens=len(prompt), completion_tokens=2)

    return ScriptedLLM(write)


def test_rounds_that_mend_are_kept_the_cheapest_number_of_them():
    # half are right at once; the second round mends the others, and is the surest
    llm = rights(lambda i, n: i % 2 or n >= 2, lambda i, n: 0.9 if i % 2 or n >= 2 else 0.4)
    calibration, report = fit(asked(), llm, settings=TO_THE_END)
    assert report.pays
    # those that are right at once say so twice, and stop there: cheaper than choosing by score
    assert (calibration.settings.rounds, report.kept) == (2, "2 rounds, repeated")
    assert way(report, "1 round, last").gain.value == 0
    assert way(report, "direct").em == 0.5
    assert way(report, "2 rounds, least uncertain").em == way(report, "3 rounds, last").em == 1
    assert report.unseen_gain is not None
    assert report.unseen_gain.value == 0.5
    assert "the last of 3 rounds mends 20 answers and spoils 0" in report.notes
    assert len(calibration.scale.means) == 3


def test_rounds_that_spoil_are_left_off_and_the_report_says_so():
    llm = rights(lambda i, n: n == 0 and i % 2, lambda i, n: 0.8 if n else 0.4 + 0.3 * (i % 2))
    calibration, report = fit(asked(), llm, settings=TO_THE_END)
    assert (report.kept, report.pays, calibration.settings.rounds) == ("direct", False, 0)
    assert way(report, "1 round, last").gain.value == -0.5
    assert "the rounds do not pay with this model: fine-tune it, or leave them off" in report.notes
    assert "the last of 3 rounds mends 0 answers and spoils 20" in report.notes
    assert calibration.scale.means == pytest.approx((0.45,))


def test_cutting_to_the_surest_documents_is_kept_where_that_helps():
    def write(prompt):
        i, n, many = number(prompt), round_of(prompt), documents_in(prompt)
        if n is None:
            return said("x", 0.9 if "fortress" in prompt else 0.5 if "coastal" in prompt else 0.1)
        good = i % 4 == 0 or (many == 2 and "fortress" in prompt and "coastal" in prompt)
        return said("right" if good else "wrong", 0.5 + 0.1 * n + (many == 2) * 0.3)

    calibration, report = fit(asked(), ScriptedLLM(write), settings=TO_THE_END)
    assert report.kept == "cut to 2, least uncertain"
    kept = calibration.settings
    assert (kept.cut_to, kept.rounds, kept.earlier, kept.documents) == (2, 1, "none", "none")
    assert way(report, report.kept).calls == 1 + 3 + 1
    assert "cut to 3, last" not in [row.name for row in report.variants]  # there are three


def test_of_what_pays_the_cheapest_is_kept():
    llm = rights(lambda i, n: i % 4 == 0 or (n == 1 and i % 4 == 1) or n == 3, lambda i, n: 0.5)
    _, report = fit(asked(), llm, settings=TO_THE_END, cut_to=())
    paying = [row for row in report.variants if row.pays and row.keepable]
    assert way(report, report.kept).calls == min(row.calls for row in paying)
    assert report.kept == "1 round, last"
    assert way(report, "3 rounds, repeated").em == 1 > way(report, report.kept).em


def test_a_gain_within_the_doubt_is_no_gain():
    llm = rights(lambda i, n: i % 2 or (n and i == 0))
    _, report = fit(asked(), llm, settings=TO_THE_END, cut_to=())
    assert way(report, "1 round, last").gain.value == pytest.approx(1 / 40)
    assert (way(report, "1 round, last").pays, report.kept) == (False, "direct")


def again(questions, llm, settings, scale, wrongness=None):
    flows = [calibrate(q.text, q.passages, settings, scale, wrongness=wrongness) for q in questions]
    return run_many(flows, World(llm=llm))


def figures(questions, answers):
    em = [normalized_exact_match(a.text, q.answers) for a, q in zip(answers, questions, strict=True)]  # noqa: E501  # fmt: skip
    overlap = [f1(a.text, q.answers) for a, q in zip(answers, questions, strict=True)]
    return em, overlap, [a.calls for a in answers], [a.tokens or 0 for a in answers]


def means(columns) -> tuple[float, ...]:
    return tuple(float(np.mean(column)) for column in columns)


SHOWN = [
    SGICSettings(rounds=3),
    SGICSettings(rounds=2, certain_below=60, least_gain=10),
    SGICSettings(
        rounds=2, documents="keys", score_documents="always", estimator="least_probability"
    ),
    SGICSettings(rounds=2, documents="none", earlier="text", certain_below=30),
    SGICSettings(rounds=1, cut_to=2, earlier="none", documents="none"),
    SGICSettings(rounds=3, max_calls=6),
]


@pytest.mark.parametrize("settings", SHOWN)
def test_every_row_is_what_calibrate_does_with_those_settings_and_the_scale(settings):
    questions = asked(25)
    _, report = fit(questions, fickle(), settings=settings, cut_to=(2,))
    scale = ScoreScale(settings.estimator, report.means)
    seen = set()
    before, *_ = figures(questions, again(questions, fickle(), replace(settings, rounds=0), scale))
    for k in range(1, settings.rounds + 1):
        for choose in ("least uncertain", "last", "repeated"):
            row = way(report, f"{k} round{'s' * (k > 1)}, {choose}")
            one = replace(settings, rounds=k, choose=choose)
            found = figures(questions, again(questions, fickle(), one, scale))
            assert (row.em, row.f1, row.calls, row.tokens) == pytest.approx(means(found))
            assert row.gain == paired_bootstrap(found[0], before, level=0.9)
            seen.add(row.calls)
    assert max(seen) > 1


def test_the_means_are_those_of_the_answers_that_the_fitted_scale_leads_to():
    questions, settings = asked(25), SGICSettings(rounds=3)
    _, report = fit(questions, fickle(), settings=settings, cut_to=())
    to_the_end = replace(settings, certain_below=0, least_gain=None)
    scale = ScoreScale("product", report.means)
    answers = again(questions, fickle(), to_the_end, scale)
    again_fitted = ScoreScale.of_rounds("product", [answer.trace for answer in answers])
    assert again_fitted.means == pytest.approx(report.means)


def test_the_rows_of_cutting_are_what_calibrate_does():
    # where all documents would be shown again, none is asked about
    questions = [*asked(25), *asked(9, THREE[:2]), *asked(5, THREE[:1])]
    settings = SGICSettings(rounds=1, cut_to=2, earlier="none", documents="none")
    _, report = fit(questions, fickle(), settings=SGICSettings(rounds=2), cut_to=(2,))
    to_the_end = replace(settings, certain_below=0, least_gain=None)
    answers = again(questions, fickle(), to_the_end, None)
    scale = ScoreScale.of_rounds("product", [answer.trace for answer in answers])
    for choose in ("least uncertain", "last"):
        answers = again(questions, fickle(), replace(settings, choose=choose), scale)
        row = way(report, f"cut to 2, {choose}")
        assert (row.em, row.f1, row.calls, row.tokens) == pytest.approx(
            means(figures(questions, answers))
        )


def test_what_is_fitted_answers_as_the_report_says_from_the_cache_alone(tmp_path):
    questions = asked(40)
    inner = rights(lambda i, n: i % 2 or n >= 2, lambda i, n: 0.9 if i % 2 or n >= 2 else 0.4)
    llm = CachedLLM(inner, tmp_path / "cache.sqlite")
    calibration, report = fit(questions, llm, settings=TO_THE_END)
    paid = len(inner.prompts)
    answers = again(questions, llm, calibration.settings, calibration.scale)
    em, _, calls, _ = figures(questions, answers)
    assert len(inner.prompts) == paid
    assert (np.mean(em), np.mean(calls)) == (
        way(report, report.kept).em,
        way(report, report.kept).calls,
    )


def test_the_milliseconds_are_those_that_the_cache_measured_for_the_prompts_of_a_row(tmp_path):
    llm, questions = CachedLLM(fickle(), tmp_path / "cache.sqlite"), asked(10)
    settings = SGICSettings(rounds=2, certain_below=60)
    _, report = fit(questions, llm, settings=settings, cut_to=(), samples=2)
    scale = ScoreScale("product", report.means)
    names = {"direct": 0, "1 round, least uncertain": 1, "2 rounds, least uncertain": 2}
    for name, rounds in names.items():
        counter = CostCounter()
        one = replace(settings, rounds=rounds)
        flows = [calibrate(q.text, q.passages, one, scale) for q in questions]
        run_many(flows, World(llm=llm), observers=[counter])
        assert way(report, name).milliseconds == pytest.approx(
            1000 * counter.cost.model_seconds / 10
        )
    counter = CostCounter()
    flows = [sampled(q.text, q.passages, 2, settings) for q in questions]
    drawn = run_many(flows, World(llm=llm), observers=[counter])
    row = way(report, "2 samples, least uncertain")
    assert row.milliseconds == pytest.approx(1000 * counter.cost.model_seconds / 10)
    assert row.tokens == np.mean([a.tokens or 0 for a in drawn])
    assert re.search(r" EM +F1 +calls +tokens +ms +gain", str(report))


def test_what_replies_do_not_say_of_their_cost_is_unknown():
    def write(prompt):
        return replace(said("right"), prompt_tokens=None if "fortress" in prompt else 3)

    _, report = fit(asked(5), ScriptedLLM(write), settings=SGICSettings(rounds=1))
    assert {(row.tokens, row.milliseconds) for row in report.variants} == {(None, None)}
    assert re.search(r" EM +F1 +calls +gain", str(report))


def test_a_fit_is_the_same_again():
    questions = asked(25)
    first, second = (fit(questions, fickle(), samples=3) for _ in range(2))
    assert first[1] == second[1]
    assert str(first[1]) == str(second[1])
    assert (first[0].settings, first[0].scale) == (second[0].settings, second[0].scale)


def test_the_report_counts_every_call_and_a_round_of_all_questions_is_one():
    llm = rights(lambda i, n: i % 2)
    _, report = fit(asked(10), llm, settings=TO_THE_END, samples=2)
    # 10 first answers, 30 documents, round 1 and two cuts, rounds 2 and 3, 2 samples
    assert [len(call) for call in llm.calls] == [10, 30, 30, 10, 10, 10, 10]
    assert report.calls == len(llm.prompts) == 110


def test_documents_are_not_asked_about_where_nothing_needs_their_scores():
    llm = rights(lambda i, n: i % 2)
    settings = replace(TO_THE_END, documents="none")
    _, report = fit(asked(10), llm, settings=settings, cut_to=())
    assert (report.calls, way(report, "3 rounds, last").calls) == (40, 4)


def test_estimators_read_the_recorded_answers_without_a_call():
    questions, settings = asked(25), SGICSettings(rounds=2)
    llm = fickle()
    _, report = fit(questions, llm, settings=settings, cut_to=())
    alone = len(fickle_prompts(questions, settings, report))
    assert report.calls == alone
    row = way(report, "2 rounds, least uncertain by least_probability")
    assert not row.keepable
    assert "by entropy" not in str(report)  # the model gives no alternatives


def fickle_prompts(questions, settings, report):
    """What the rounds of one estimator take, to the end, and nothing more."""
    llm, scale = fickle(), ScoreScale(settings.estimator, report.means)
    again(questions, llm, replace(settings, certain_below=0, least_gain=None), scale)
    return llm.prompts


def test_an_estimator_that_does_not_change_the_prompts_is_as_good_as_asked_for():
    questions = asked(25)
    settings = SGICSettings(rounds=2, documents="none", earlier="text")
    _, report = fit(questions, fickle(), settings=settings, cut_to=())
    own, own_report = fit(
        questions, fickle(), settings=replace(settings, estimator="mean_logprob"), cut_to=()
    )
    row = way(report, "2 rounds, least uncertain by mean_logprob")
    assert row.keepable
    assert row.gain == way(own_report, "2 rounds, least uncertain").gain
    assert row.calls == way(own_report, "2 rounds, least uncertain").calls
    assert own.settings.estimator == "mean_logprob"


def test_an_estimator_that_asks_once_is_charged_once_where_agreement_asked_thrice():
    questions = asked(10)
    settings = SGICSettings(
        rounds=1, documents="none", earlier="text", score_documents="always", samples=2,
        estimator="agreement", certain_below=0,
    )  # fmt: skip
    _, report = fit(questions, fickle(), settings=settings, cut_to=())
    own, other = (
        way(report, "1 round, least uncertain"),
        way(report, "1 round, least uncertain by product"),
    )
    once = again(questions, fickle(), replace(settings, estimator="product"), None)
    thrice = again(questions, fickle(), settings, None)
    assert (own.calls, own.tokens) == means(figures(questions, thrice)[2:])
    assert (other.calls, other.tokens) == means(figures(questions, once)[2:])


def test_the_auroc_of_an_estimator_is_that_of_the_direct_answers():
    questions = asked(25)
    _, report = fit(questions, fickle(), settings=SGICSettings(rounds=1))
    for estimator in ("product", "least_probability", "mean_probability"):
        settings = SGICSettings(rounds=0, estimator=estimator)
        answers = again(questions, fickle(), settings, None)
        wrong = [1 - normalized_exact_match(a.text, ("right",)) for a in answers]
        expected = auroc([a.uncertainty for a in answers], wrong)
        assert report.estimator_aurocs[estimator] == pytest.approx(expected)


def test_samples_are_compared_with_the_rest_and_never_kept():
    questions = asked(20)

    class Sampler:
        name = "sampler"
        prompts: list = []  # noqa: RUF012

        def generate(self, prompts, settings=GenerationSettings()):
            self.prompts += prompts
            good = settings.seed == 2
            return [said("right" if good else "wrong", 0.9 if good else 0.5) for _ in prompts]

    llm = Sampler()
    _, report = fit(questions, llm, settings=SGICSettings(rounds=0), cut_to=(), samples=3)
    assert [row.em for row in report.variants] == [0, 0, 0, 1]
    best = way(report, "3 samples, least uncertain")
    assert (best.pays, best.keepable, best.calls, report.kept) == (True, False, 3, "direct")
    flows = [sampled(q.text, q.passages, 3) for q in questions]
    assert [a.text for a in run_many(flows, World(llm=llm))] == ["right"] * 20


def test_samples_at_equal_calls_are_as_many_as_the_dearest_variant_takes():
    llm = rights(lambda i, n: i % 2)
    _, report = fit(asked(10), llm, settings=TO_THE_END, samples="equal")
    drawn = [row for row in report.variants if row.kind == "samples"]
    assert len(drawn) == max(row.calls for row in report.variants) == 1 + 3 + 3


def test_p_wrong_is_fitted_on_the_answers_that_are_kept():
    llm = rights(lambda i, n: i % 3, lambda i, n: 0.9 if i % 3 else 0.2 + 0.01 * (i % 7))
    questions = asked(60)
    calibration, report = fit(questions, llm, settings=SGICSettings(rounds=0), cut_to=())
    wrongness = calibration.wrongness
    assert wrongness is not None
    assert (wrongness.answers, wrongness.wrong) == (60, pytest.approx(1 / 3))
    assert (report.auroc, report.wrong) == (1.0, pytest.approx(1 / 3))
    assert report.ece == wrongness.ece
    assert wrongness.ece < 0.1
    answers = again(questions, llm, calibration.settings, calibration.scale, wrongness)
    by_truth = {a.text == "right": a.p_wrong or 0.0 for a in answers}
    assert by_truth[True] < 0.1 < 0.9 < by_truth[False]
    assert "only 20 wrong answers: the P(wrong) calibration is a guess" in report.notes


@pytest.mark.parametrize(("right", "few"), [(True, "0 wrong"), (False, "0 right")])
def test_all_right_or_all_wrong_leaves_p_wrong_out_with_a_note(right, few):
    calibration, report = fit(asked(12), rights(lambda i, n: right), settings=TO_THE_END)
    assert calibration.wrongness is None
    assert (report.auroc, report.ece, dict(report.estimator_aurocs)) == (None, None, {})
    assert any(note.startswith(f"only {few} answers: P(wrong) is not") for note in report.notes)


def test_the_metric_decides_what_has_to_rise():
    def write(prompt):
        n = round_of(prompt)
        return said("x") if n is None else said("right here" if n else "left", 0.5)

    llm = ScriptedLLM(write)
    _, by_em = fit(asked(), llm, settings=TO_THE_END)
    _, by_f1 = fit(asked(), llm, settings=TO_THE_END, metric="f1")
    assert (by_em.kept, by_f1.kept) == ("direct", "1 round, last")
    assert way(by_f1, "1 round, last").gain.value == pytest.approx(2 / 3)


def test_what_pays_here_and_loses_on_unseen_questions_is_not_kept():
    # round n is wrong on the fold n - 1 and right elsewhere (80 %), direct right on 70 % of each
    parts = [set(test.tolist()) for _, test in folds(200)]
    alone = {i: sorted(part).index(i) / len(part) < 0.7 for part in parts for i in part}

    def right(i, n):
        return alone[i] if n == 0 else i not in parts[n - 1]

    def write(prompt):
        i, n = number(prompt), len(rounds_in(prompt))
        return said(f"{'right' if right(i, n) else 'wrong'} {n}", 0.5 if n else 0.9)

    every = tuple(f"right {n}" for n in range(6))
    questions = [replace(q, answers=every) for q in asked(200)]
    settings = SGICSettings(
        rounds=5, documents="none", earlier="text", certain_below=0, least_gain=None
    )
    calibration, report = fit(questions, ScriptedLLM(write), settings=settings, cut_to=())
    assert way(report, "1 round, last").pays
    assert report.unseen_gain is not None
    assert report.unseen_gain.value == pytest.approx(-0.7)
    assert (report.kept, calibration.settings.rounds) == ("direct", 0)
    assert any("loses on other questions" in n for n in report.notes)


def test_luck_among_even_chances_is_seldom_kept_and_the_report_owns_up():
    kept = 0
    for salt in range(6):
        questions = [
            Question(f"{QUESTION} {salt} {i}", ("right",), passages=THREE) for i in range(30)
        ]
        _, report = fit(questions, fickle(), settings=SGICSettings(rounds=3, certain_below=0))
        assert report.unseen_gain is not None
        if report.pays:
            kept += 1
            assert report.unseen_gain.value >= 0
    assert kept <= 2


def test_a_failing_round_ends_the_rounds_of_its_questions_where_the_best_so_far_is_taken():
    def write(prompt):
        if round_of(prompt) == 2:
            raise ConnectionError("gone")
        return said("right" if round_of(prompt) else "wrong", 0.5)

    settings = replace(TO_THE_END, on_error="best")
    _, report = fit(asked(10), ScriptedLLM(write), settings=settings)
    assert len(report.means) == 2
    assert "10 of 10 questions did not get all 3 rounds: a limit or an error ended them" in (
        report.notes
    )


def test_a_question_whose_round_fails_ends_the_rounds_of_no_other():
    def write(prompt):
        if round_of(prompt) == 2 and number(prompt) == 3:
            raise ConnectionError("gone")
        return said("right" if round_of(prompt) else "wrong", 0.5)

    settings = replace(TO_THE_END, on_error="best")
    _, report = fit(asked(10), ScriptedLLM(write), settings=settings)
    assert len(report.means) == 4
    assert "1 of 10 questions did not get all 3 rounds: a limit or an error ended them" in (
        report.notes
    )


def test_agreement_is_fitted_without_token_probabilities():
    def write(prompt):
        n = round_of(prompt)
        return "x" if n is None else "right" if n or number(prompt) % 2 else "wrong"

    settings = SGICSettings(rounds=1, estimator="agreement", samples=2, certain_below=0)
    llm = ScriptedLLM(write)
    calibration, report = fit(asked(20), llm, settings=settings, cut_to=())
    assert report.kept.startswith("1 round")
    assert way(report, report.kept).calls == 3 * (1 + 3 + 1)
    assert calibration.scale.estimator == "agreement"
    assert report.calls == len(llm.prompts)


def test_the_calibration_is_saved_and_loaded(tmp_path):
    llm = rights(lambda i, n: i % 2 or n >= 1, lambda i, n: 0.5 + 0.4 * (n >= 1))
    calibration, _ = fit(asked(), llm, settings=TO_THE_END)
    calibration.save(tmp_path, llm=llm)
    loaded = Calibration.load(tmp_path, llm=llm)
    assert (loaded.settings, loaded.scale) == (calibration.settings, calibration.scale)


def test_the_report_reads_as_a_table_and_as_json():
    llm = rights(lambda i, n: i % 2 or n >= 2, lambda i, n: 0.9 if i % 2 or n >= 2 else 0.4)
    _, report = fit(asked(), llm, settings=TO_THE_END, samples=1)
    kept = [line for line in str(report).splitlines() if line.startswith("*")]
    assert len(kept) == 1
    assert "2 rounds, repeated" in kept[0]
    assert re.search(r"1\.000  1\.000     5\.5 +44  \+0\.500", kept[0])
    read = json.loads(json.dumps(report.as_dict()))
    assert (read["kept"], read["variants"][0]["name"]) == (report.kept, "direct")


WRONG = [
    ([], CalibrationError, "no questions"),
    ([Question("Why?", (), passages=THREE)], MissingReferences, "'Why\\?' has no accepted"),
    ([Question("Why?", ("a",), id="q9")], CalibrationError, "'q9' has no passages"),
    (["Why?"], InvalidInput, "are Question"),
    ([Question("?!", ("a",), passages=THREE)], EmptyQuestion, "no words"),
]


@pytest.mark.parametrize(("questions", "error", "match"), WRONG)
def test_questions_that_cannot_be_fitted_on_are_named_before_a_call(questions, error, match):
    llm = rights(lambda i, n: True)
    with pytest.raises(error, match=match):
        fit(questions, llm)
    assert llm.prompts == []


@pytest.mark.parametrize(
    "told",
    [
        {"metric": "bleu"},
        {"level": 1.0},
        {"cut_to": (0,)},
        {"samples": -1},
        {"samples": "many"},
        {"settings": SGICSettings(source="oracle")},
    ],
)
def test_arguments_out_of_range_are_refused_before_a_call(told):
    llm = rights(lambda i, n: True)
    with pytest.raises(InvalidInput):
        fit(asked(5), llm, **told)
    assert llm.prompts == []


def test_a_model_without_probabilities_is_refused_with_the_remedy():
    with pytest.raises(NoTokenProbabilities, match="estimator='agreement'"):
        fit(asked(5), ScriptedLLM(lambda p: "right"))


def test_a_relevance_function_scores_the_documents_of_a_fit():
    told = []

    def relevance(question, passages):
        told.append(question)
        return [float("fortress" in p.text) for p in passages]

    llm = rights(lambda i, n: i % 2)
    settings = replace(TO_THE_END, source="relevance", rounds=1)
    _, report = fit(asked(10), llm, settings=settings, cut_to=(1,), relevance=relevance)
    assert len(told) == 10
    assert report.calls == 30


def test_a_handful_of_questions_keeps_the_direct_answer():
    one = asked(1, (Passage("A castle."),))
    calibration, report = fit(one, rights(lambda i, n: True))
    assert (report.kept, report.unseen_gain, calibration.wrongness) == ("direct", None, None)
    mending = rights(lambda i, n: n > 0)
    kept = [fit(asked(n), mending, settings=TO_THE_END)[1] for n in (9, 10)]
    assert [report.pays for report in kept] == [False, True]
    assert "under 10 questions nothing but the direct answer is kept" in kept[0].notes
