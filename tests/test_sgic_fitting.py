"""Fitting: what pays is kept, what does not is said; every figure has a second way to it."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from ltrag_plugins.calibration import CalibrationMethod
from ltrag_plugins.errors import (
    CalibrationError,
    EmptyQuestion,
    InvalidInput,
    MissingReferences,
    ModelFailed,
)
from ltrag_plugins.flow import World, run, run_many
from ltrag_plugins.llm.cached import CachedLLM
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.metrics.answer import f1, normalized_exact_match
from ltrag_plugins.metrics.calibration import auroc, expected_calibration_error, paired_bootstrap
from ltrag_plugins.metrics.cost import CostCounter
from ltrag_plugins.sgic import Calibrator, ScoreScale, SGICSettings, calibrate, fit, sampled
from ltrag_plugins.types import GenerationSettings, Passage, Question
from tests.dur_parts import Nonsense
from tests.sgic_parts import (
    QUESTION,
    THREE,
    Sampler,
    asked,
    by_document,
    documents_in,
    drawn,
    fickle,
    folds,
    gone,
    number,
    rights,
    round_of,
    said,
    scripted,
    way,
)

TO_THE_END = SGICSettings(rounds=3, certain_below=0, least_gain=None)
ONE_ROUND = replace(TO_THE_END, rounds=1, documents="none")
NO_SCORES = SGICSettings(rounds=2, documents="none", earlier="text")
ONE_LOOK = SGICSettings(rounds=1)


def late() -> ScriptedLLM:
    """Half are right at once; the second round mends the others, and is the surest."""
    return rights(lambda i, n: i % 2 or n >= 2, lambda i, n: 0.9 if i % 2 or n >= 2 else 0.4)


def halves() -> ScriptedLLM:
    return rights(lambda i, n: i % 2)


# --- what is kept


def test_rounds_that_mend_are_kept_the_cheapest_number_of_them():
    calibration, report = fit(asked(), late(), settings=TO_THE_END, samples=1)
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
    # the same as a table and as JSON
    first, *lines = str(report).splitlines()
    assert "2 rounds, repeated" in first
    worth, cost = [line.split()[4:6] for line in lines if line.startswith("* 2 rounds, repeated")]
    assert (worth, cost) == (["1.000", "1.000"], ["5.5", "44"])
    read = json.loads(json.dumps(report.as_dict()))
    assert (read["kept"], read["variants"][0]["name"]) == (report.kept, "direct")


def test_the_text_of_a_report_has_the_verdict_first_and_of_the_ways_the_best_few():
    spoils = rights(lambda i, n: n == 0 and i % 2)
    for llm, shown in ((late(), range(4, 8)), (spoils, [1])):
        _, report = fit(asked(), llm, settings=TO_THE_END, samples=2)
        first, *lines = str(report).splitlines()
        assert report.kept in first
        assert max(len(line) for line in lines if not line.startswith("note")) <= 80
        ways = [way.name for way in report.variants if any(way.name in line for line in lines)]
        assert len(ways) in shown
        assert {"direct", report.kept} <= {*ways}
        assert f"{len(report.variants) - len(ways)} other ways" in str(report)


def test_rounds_that_pay_are_not_said_not_to_where_a_cheaper_way_is_kept():
    def write(prompt):
        i, n, many = number(prompt), round_of(prompt), documents_in(prompt)
        if n is None:
            return by_document(prompt)
        good = i % 4 == 0 or n or many == 2
        return said("right" if good else "wrong", 0.9 if good else 0.4)

    settings = replace(TO_THE_END, rounds=1)
    _, report = fit(asked(), ScriptedLLM(write), settings=settings, cut_to=(2,))
    kinds = {row.kind for row in report.variants if row.pays}
    assert kinds >= {"rounds", "cut"}
    assert not any("rounds do not pay" in note for note in report.notes)


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
            return by_document(prompt)
        good = i % 4 == 0 or (many == 2 and "fortress" in prompt and "coastal" in prompt)
        return said("right" if good else "wrong", 0.5 + 0.1 * n + (many == 2) * 0.3)

    calibration, report = fit(asked(), ScriptedLLM(write), settings=TO_THE_END)
    assert report.kept == "cut to 2, least uncertain"
    kept = calibration.settings
    assert (kept.cut_to, kept.rounds, kept.earlier, kept.documents) == (2, 1, "none", "none")
    assert way(report, report.kept).calls == 1 + 3 + 1
    assert "cut to 3, last" not in [row.name for row in report.variants]  # there are three


def test_of_what_pays_the_cheapest_is_kept():
    llm = rights(lambda i, n: i % 4 == 0 or (n == 1 and i % 4 == 1) or n == 3)
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


@pytest.mark.parametrize(("level", "kept"), [(0.5, "1 round, last"), (0.9, "direct")])
def test_a_fit_keeps_at_the_level_that_was_asked_for(level, kept):
    """Of 40 answers 4 mended and 1 spoiled: the mean of a resample is not above 0 in a tenth.

    So the lower end of an interval of 50 % is above 0, and of 90 % it is not.
    """
    before, after = np.repeat([1.0, 0.0], 20), np.repeat([1.0, 0.0], 20)
    after[:1], after[20:24] = 0, 1
    resampled = np.random.default_rng(1).integers(0, 40, size=(4000, 40))
    share = ((after - before)[resampled].mean(axis=1) <= 0).mean()
    assert 0.05 < share < 0.25
    llm = rights(lambda i, n: (after if n else before)[i])
    _, report = fit(asked(), llm, settings=ONE_ROUND, cut_to=(), level=level)
    assert way(report, "1 round, last").pays == (kept != "direct")
    assert (report.kept, report.level) == (kept, level)


@pytest.mark.parametrize("count", [40, 400])
@pytest.mark.parametrize(
    ("metric", "spoiled", "enough"), [("em", 0, 5), ("em", 1, 7), ("contains", 2, 9), ("f1", 0, 5)]
)
def test_so_few_mended_answers_as_coins_would_give_do_not_pay(metric, spoiled, enough, count):
    for mended in (enough - 1, enough):
        changed = spoiled + mended
        by_chance = binomtest(mended, changed, alternative="greater").pvalue
        assert (by_chance <= 0.05) == (mended == enough)
        answers = np.array([[i < spoiled or i >= changed, i >= spoiled] for i in range(count)])
        llm = rights(lambda i, n, right=answers: right[i, min(n, 1)])
        _, report = fit(asked(count), llm, settings=ONE_ROUND, cut_to=(), metric=metric)
        row = way(report, "1 round, last")
        assert row.gain.low > 0
        assert row.pays == (mended == enough)
        told = f"1 round, last makes {mended} answers better and {spoiled} worse, too few"
        assert any(told in note for note in report.notes) != row.pays


@pytest.mark.parametrize(("metric", "kept"), [("em", "direct"), ("f1", "1 round, last")])
def test_the_metric_decides_what_has_to_rise(metric, kept):
    llm = scripted(lambda i, n: "right here" if n else "left")
    _, report = fit(asked(), llm, settings=TO_THE_END, metric=metric)
    assert report.kept == kept
    assert way(report, "1 round, last").gain.value == pytest.approx(2 / 3 if metric == "f1" else 0)


def test_what_pays_here_and_loses_on_unseen_questions_is_not_kept():
    # round n is wrong on the fold n - 1 and right elsewhere (80 %), direct right on 70 % of each
    parts = [set(test.tolist()) for _, test in folds(200)]
    alone = {i: sorted(part).index(i) / len(part) < 0.7 for part in parts for i in part}

    def text(i, n):
        right = alone[i] if n == 0 else i not in parts[n - 1]
        return f"{'right' if right else 'wrong'} {n}"

    questions = asked(200, answers=tuple(f"right {n}" for n in range(6)))
    settings = replace(TO_THE_END, rounds=5, documents="none", earlier="text")
    llm = scripted(text, lambda i, n: 0.5 if n else 0.9)
    calibration, report = fit(questions, llm, settings=settings, cut_to=())
    assert way(report, "1 round, last").pays
    assert report.unseen_gain is not None
    assert report.unseen_gain.value == pytest.approx(-0.7)
    assert (report.kept, calibration.settings.rounds) == ("direct", 0)
    assert any("loses on other questions" in n for n in report.notes)


def test_a_handful_of_questions_keeps_the_direct_answer():
    one = asked(1, (Passage("A castle."),))
    calibration, report = fit(one, ScriptedLLM(lambda _: said("right")))
    assert (report.kept, report.unseen_gain, calibration.wrongness) == ("direct", None, None)
    mending = rights(lambda i, n: n > 0)
    kept = [fit(asked(n), mending, settings=TO_THE_END)[1] for n in (9, 10)]
    assert [report.pays for report in kept] == [False, True]
    assert "under 10 questions nothing but the direct answer is kept" in kept[0].notes


# --- every row is what `calibrate` does


class Words:
    """Vectors that depend on every letter, and on little else."""

    name = "words"

    def encode(self, texts):
        return np.array([[drawn(f"{text}{i}") for i in range(4)] for text in texts], np.float32)


def again(questions, llm, settings, scale=None, wrongness=None):
    flows = [calibrate(q.text, q.passages, settings, scale, wrongness=wrongness) for q in questions]
    return run_many(flows, World(llm=llm))


def figures(questions, answers):
    pairs = [(a.text, q.answers) for a, q in zip(answers, questions, strict=True)]
    em, overlap = ([metric(*pair) for pair in pairs] for metric in (normalized_exact_match, f1))
    return em, overlap, [a.calls for a in answers], [a.tokens or 0 for a in answers]


def means(columns) -> tuple[float, ...]:
    return tuple(float(np.mean(column)) for column in columns)


def shown(row) -> tuple[float, ...]:
    return row.em, row.f1, row.calls, row.tokens


KEYS = SGICSettings(rounds=2, documents="keys", score_documents="always")


@pytest.mark.parametrize("settings", [
    SGICSettings(rounds=3),
    SGICSettings(rounds=2, certain_below=60, least_gain=10),
    replace(KEYS, estimator="least_probability"),
    replace(NO_SCORES, certain_below=30),
    SGICSettings(rounds=1, cut_to=2, earlier="none", documents="none"),
    SGICSettings(rounds=3, max_calls=6),
    SGICSettings(rounds=3, means=1),
])  # fmt: skip
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
            assert shown(row) == pytest.approx(means(found))
            assert row.gain == paired_bootstrap(found[0], before, level=0.9)
            seen.add(row.calls)
    assert max(seen) > 1


def scale_of(questions, settings, scale=None):
    """Of what these settings make of all rounds."""
    to_the_end = replace(settings, certain_below=0, least_gain=None)
    answers = again(questions, fickle(), to_the_end, scale)
    return ScoreScale.of_rounds("product", [answer.trace for answer in answers])


def test_the_means_are_those_of_the_answers_that_the_fitted_scale_leads_to():
    questions, settings = asked(25), SGICSettings(rounds=3)
    _, report = fit(questions, fickle(), settings=settings, cut_to=())
    found = scale_of(questions, settings, ScoreScale("product", report.means))
    assert found.means == pytest.approx(report.means)


def test_with_one_mean_it_is_that_of_the_first_answers_in_the_fit_and_in_what_is_kept():
    questions, settings = asked(25), SGICSettings.paper()
    kept, report = fit(questions, fickle(), settings=settings, cut_to=())
    first = again(questions, fickle(), replace(settings, rounds=0))
    wanted = pytest.approx([np.mean([answer.uncertainty for answer in first])])
    assert report.means == wanted
    assert kept.scale.means == wanted


def test_the_rows_of_cutting_are_what_calibrate_does():
    # where all documents would be shown again, none is asked about
    questions = [*asked(25), *asked(9, THREE[:2]), *asked(5, THREE[:1])]
    settings = SGICSettings(rounds=1, cut_to=2, earlier="none", documents="none")
    _, report = fit(questions, fickle(), settings=SGICSettings(rounds=2), cut_to=(2,))
    scale = scale_of(questions, settings)
    for choose in ("least uncertain", "last"):
        answers = again(questions, fickle(), replace(settings, choose=choose), scale)
        row = way(report, f"cut to 2, {choose}")
        assert shown(row) == pytest.approx(means(figures(questions, answers)))


def test_with_an_encoder_documents_are_also_cut_by_it_for_one_call_more():
    questions, settings = [*asked(25), *asked(9, THREE[:1])], SGICSettings(rounds=2)
    encoder = Words()
    _, report = fit(questions, fickle(), settings=settings, cut_to=(1, 2), encoder=encoder)
    assert report == fit(questions, fickle(), settings=settings, cut_to=(1, 2), encoder=encoder)[1]
    bare = SGICSettings(rounds=1, source="encoder", earlier="none", documents="none", cut_to=1)
    for m in (1, 2):
        cut = replace(bare, cut_to=m, certain_below=0, least_gain=None)
        flows = [calibrate(q.text, q.passages, cut) for q in questions]
        seen = run_many(flows, World(llm=fickle(), encoder=encoder))
        scale = ScoreScale.of_rounds("product", [answer.trace for answer in seen])
        for choose in ("least uncertain", "last"):
            one = replace(bare, cut_to=m, choose=choose)
            flows = [calibrate(q.text, q.passages, one, scale) for q in questions]
            answers = run_many(flows, World(llm=fickle(), encoder=encoder))
            row = way(report, f"cut to {m} by encoder, {choose}")
            assert shown(row) == pytest.approx(means(figures(questions, answers)))
            assert row.calls < 2 < way(report, f"cut to {m}, {choose}").calls
    without = fit(questions, fickle(), settings=settings, cut_to=(1, 2))[1]
    others = [row for row in report.variants if "by encoder" not in row.name]
    assert others == [*without.variants]


def test_a_function_that_judges_passages_is_tried_as_an_encoder_is():
    def relevance(_, passages):
        return [float("coastal" in p.text) for p in passages]

    def write(prompt):
        good = number(prompt) % 4 == 0 or (documents_in(prompt) == 1 and "coastal" in prompt)
        return said("right" if good else "wrong", 0.9 if good else 0.4)

    calibration, report = fit(asked(), ScriptedLLM(write), relevance=relevance)
    assert report.kept == "cut to 1 by relevance, least uncertain"
    assert (calibration.settings.source, calibration.settings.cut_to) == ("relevance", 1)
    assert way(report, report.kept).calls == pytest.approx(1 + 0.75)
    made = Calibrator.fit(asked(), llm=ScriptedLLM(write), relevance=relevance)
    assert run(made.answering("Which? 1", THREE), made.world).text == "right"


def test_what_is_fitted_answers_as_the_report_says_from_the_cache_alone(tmp_path):
    questions, inner = asked(40), late()
    llm = CachedLLM(inner, tmp_path / "cache.sqlite")
    calibration, report = fit(questions, llm, settings=TO_THE_END)
    paid = len(inner.prompts)
    answers = again(questions, llm, calibration.settings, calibration.scale)
    assert len(inner.prompts) == paid
    assert shown(way(report, report.kept)) == means(figures(questions, answers))
    assert fit(questions, late(), settings=TO_THE_END)[1] == report  # the same again


# --- what it costs


def test_the_milliseconds_are_those_that_the_cache_measured_for_the_prompts_of_a_row(tmp_path):
    llm, questions = CachedLLM(fickle(), tmp_path / "cache.sqlite"), asked(10)
    settings = SGICSettings(rounds=2, certain_below=60)
    _, report = fit(questions, llm, settings=settings, cut_to=(), samples=2)
    scale = ScoreScale("product", report.means)

    def check(name: str, flow) -> list:
        counter = CostCounter()
        answers = run_many(map(flow, questions), World(llm=llm), observers=[counter])
        spent = pytest.approx(1000 * counter.cost.seconds / 10)
        assert way(report, name).milliseconds == spent
        return answers

    for rounds, name in enumerate(("direct", "1 round, least uncertain")):
        one = replace(settings, rounds=rounds)
        check(name, lambda q, one=one: calibrate(q.text, q.passages, one, scale))
    check("2 rounds, least uncertain", lambda q: calibrate(q.text, q.passages, settings, scale))
    name = "2 samples, least uncertain"
    answers = check(name, lambda q: sampled(q.text, q.passages, 2, settings))
    assert way(report, name).tokens == np.mean([a.tokens or 0 for a in answers])
    assert re.search(r" calls +tokens +ms$", str(report), re.MULTILINE)


def test_what_replies_do_not_say_of_their_cost_is_unknown():
    def write(prompt):
        return replace(said("right"), prompt_tokens=None if "fortress" in prompt else 3)

    _, report = fit(asked(5), ScriptedLLM(write), settings=ONE_LOOK)
    assert {(row.tokens, row.milliseconds) for row in report.variants} == {(None, None)}
    assert re.search(r" calls$", str(report), re.MULTILINE)


def test_the_report_counts_every_call_and_a_round_of_all_questions_is_one():
    llm = halves()
    _, report = fit(asked(10), llm, settings=TO_THE_END, samples=2)
    # 10 first answers, 30 documents, round 1 and two cuts, rounds 2 and 3, 2 samples
    assert [len(call) for call in llm.calls] == [10, 30, 30, 10, 10, 10, 10]
    assert report.calls == len(llm.prompts) == 110
    # documents are not asked about where nothing needs their scores, nor where others judge them
    bare = replace(TO_THE_END, documents="none")
    _, report = fit(asked(10), halves(), settings=bare, cut_to=())
    assert (report.calls, way(report, "3 rounds, last").calls) == (40, 4)
    told = []

    def relevance(question, passages):
        told.append(question)
        return [float("fortress" in p.text) for p in passages]

    judged = replace(TO_THE_END, source="relevance", rounds=1)
    _, report = fit(asked(10), halves(), settings=judged, cut_to=(1,), relevance=relevance)
    assert (len(told), report.calls) == (10, 30)


# --- estimators and samples


def test_estimators_read_the_recorded_answers_without_a_call():
    questions, settings, llm = asked(25), SGICSettings(rounds=2), fickle()
    _, report = fit(questions, fickle(), settings=settings, cut_to=())
    scale_of_one = ScoreScale(settings.estimator, report.means)
    again(questions, llm, replace(settings, certain_below=0, least_gain=None), scale_of_one)
    assert report.calls == len(llm.prompts)  # what one estimator takes, to the end
    assert not way(report, "2 rounds, least uncertain by least_probability").keepable
    names = [row.name for row in report.variants]
    assert not any("by entropy" in name for name in names)  # the model gives no alternatives
    for estimator in ("product", "least_probability", "mean_probability"):
        answers = again(questions, fickle(), SGICSettings(rounds=0, estimator=estimator))
        wrong = [1 - normalized_exact_match(a.text, ("right",)) for a in answers]
        expected = auroc([a.uncertainty for a in answers], wrong)
        assert report.estimator_aurocs[estimator] == pytest.approx(expected)


def test_an_estimator_that_does_not_change_the_prompts_is_as_good_as_asked_for():
    questions, other = asked(25), replace(NO_SCORES, estimator="mean_logprob")
    _, report = fit(questions, fickle(), settings=NO_SCORES, cut_to=())
    own, own_report = fit(questions, fickle(), settings=other, cut_to=())
    row = way(report, "2 rounds, least uncertain by mean_logprob")
    same = way(own_report, "2 rounds, least uncertain")
    assert row.keepable
    assert (row.gain, row.calls) == (same.gain, same.calls)
    assert own.settings.estimator == "mean_logprob"


def test_an_estimator_that_asks_once_is_charged_once_where_agreement_asked_thrice():
    questions, how = asked(10), {"score_documents": "always", "samples": 2, "certain_below": 0}
    settings = replace(NO_SCORES, rounds=1, estimator="agreement", **how)
    _, report = fit(questions, fickle(), settings=settings, cut_to=())
    for by, estimator in (("", "agreement"), (" by product", "product")):
        answers = again(questions, fickle(), replace(settings, estimator=estimator))
        row = way(report, f"1 round, least uncertain{by}")
        assert (row.calls, row.tokens) == means(figures(questions, answers)[2:])


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


def test_samples_are_compared_with_the_rest_and_never_kept():
    wrong = dict.fromkeys([None, 0, 1], said("wrong", 0.5))
    llm = Sampler(wrong | {2: said("right", 0.9)})
    _, report = fit(asked(20), llm, settings=SGICSettings(rounds=0), cut_to=(), samples=3)
    assert [row.em for row in report.variants] == [0, 0, 0, 1]
    best = way(report, "3 samples, least uncertain")
    assert (best.pays, best.keepable, best.calls, report.kept) == (True, False, 3, "direct")


def test_samples_at_equal_calls_are_as_many_as_the_dearest_variant_takes():
    _, report = fit(asked(10), halves(), settings=TO_THE_END, samples="equal")
    drawn = [row for row in report.variants if row.kind == "samples"]
    assert len(drawn) == max(row.calls for row in report.variants) == 1 + 3 + 3


# --- P(wrong), and the level it is held to, beside eq. 2 by hand and scikit-learn

COUNT = 40
RNG = np.random.default_rng(3)
# question i is right at once where i is even, in round 1 where it is odd, and 3, 9, ... never;
# right answers are the surer ones, with exceptions
EVEN, NEVER = np.arange(COUNT) % 2 == 0, np.arange(COUNT) % 6 == 3
RIGHT = np.array([EVEN, ~EVEN & ~NEVER])
DOUBT = np.where(RIGHT, 0.05, 0.3) + RNG.uniform(0, 0.65, size=RIGHT.shape) ** 2
Fitted = Callable[[np.ndarray], np.ndarray]


def scores_by_hand(rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Score of each answer on the means of the other folds' questions, and whether it is wrong."""
    scores, wrong = np.empty(COUNT), np.empty(COUNT)
    for train, test in folds(COUNT):
        means = DOUBT[:, train].mean(axis=1)[: rounds + 1]
        found = np.array([np.interp(doubt[test], [0, mean, 1], [0, 50, 100])
                          for doubt, mean in zip(DOUBT, means, strict=False)])  # fmt: skip
        best = found.argmin(axis=0)
        scores[test], wrong[test] = found.min(axis=0), ~RIGHT[best, test]
    return scores, wrong


def platt(scores: np.ndarray, wrong: np.ndarray) -> Fitted:
    mean, deviation = scores.mean(), scores.std()
    found = LogisticRegression(C=100.0).fit(((scores - mean) / deviation)[:, None], wrong)
    return lambda new: found.predict_proba(((new - mean) / deviation)[:, None])[:, 1]


def isotonic(scores: np.ndarray, wrong: np.ndarray) -> Fitted:
    return IsotonicRegression(out_of_bounds="clip").fit(scores, wrong).predict


@pytest.mark.parametrize(("method", "fitted"), [("platt", platt), ("isotonic", isotonic)])
@pytest.mark.parametrize(("rounds", "kept"), [(0, "direct"), (1, "1 round, least uncertain")])
def test_p_wrong_is_fitted_and_judged_on_answers_that_scale_and_curve_have_not_seen(
    rounds: int, kept: str, method: CalibrationMethod, fitted
):
    llm = rights(lambda i, n: RIGHT[n, i], lambda i, n: 1 - DOUBT[n, i])
    settings = replace(ONE_ROUND, rounds=rounds)
    calibration, report = fit(asked(COUNT), llm, settings=settings, cut_to=(), method=method)
    found = calibration.wrongness
    assert report.kept == kept
    assert found is not None
    scores, wrong = scores_by_hand(rounds)
    assert (found.answers, found.wrong) == (COUNT, pytest.approx(wrong.mean()))
    assert report.auroc == found.auroc == pytest.approx(roc_auc_score(wrong, scores))

    new, curve = np.linspace(0, 100, 21), fitted(scores, wrong)
    assert [found.probability(s) for s in new] == pytest.approx(curve(new), abs=1e-4)
    # the scale that goes out is of all questions
    assert calibration.scale.means == pytest.approx(DOUBT.mean(axis=1)[: rounds + 1])

    unseen = np.empty(COUNT)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(scores, wrong):
        unseen[test] = fitted(scores[train], wrong[train])(scores[test])
    assert (
        report.ece
        == found.ece
        == pytest.approx(expected_calibration_error(unseen, wrong), abs=1e-4)
    )
    seen = expected_calibration_error(curve(scores), wrong)
    assert abs(seen - found.ece) > 5e-4  # which is another figure


def test_p_wrong_is_that_of_the_answers_that_are_kept():
    llm = rights(lambda i, n: i % 3, lambda i, n: 0.9 if i % 3 else 0.2 + 0.01 * (i % 7))
    questions = asked(60)
    fitted, report = fit(questions, llm, settings=SGICSettings(rounds=0), cut_to=())
    assert (report.auroc, report.wrong) == (1.0, pytest.approx(1 / 3))
    answers = again(questions, llm, fitted.settings, fitted.scale, fitted.wrongness)
    by_truth = {a.text == "right": a.p_wrong or 0.0 for a in answers}
    assert by_truth[True] < 0.1 < 0.9 < by_truth[False]
    assert "only 20 wrong answers: the P(wrong) calibration is a guess" in report.notes


@pytest.mark.parametrize(("metric", "wrong"), [("em", 0.5), ("f1", 0.25)])
def test_what_p_wrong_calls_wrong_is_what_the_metric_does(metric, wrong):
    """Half a name is no match, and has a word F1 of 2/3."""
    names = ("right answer", "right answer", "answer", "other")
    llm = scripted(lambda i, n: names[i % 4], lambda i, n: 0.9 - 0.2 * (i % 4))
    told = {"settings": SGICSettings(rounds=0), "cut_to": (), "metric": metric}
    calibration, report = fit(asked(answers=("right answer",)), llm, **told)
    assert calibration.wrongness is not None
    assert report.wrong == calibration.wrongness.wrong == wrong
    # uncertainties of 0.1, 0.3, 0.5, 0.7: the third kind of answer, of mean 0.4, is a 58
    assert (calibration.wrongness.probability(58) > 0.5) == (metric == "em")


@pytest.mark.parametrize(("right", "few"), [(True, "0 wrong"), (False, "0 right")])
def test_all_right_or_all_wrong_leaves_p_wrong_out_with_a_note(right, few):
    calibration, report = fit(asked(12), rights(lambda i, n: right), settings=TO_THE_END)
    assert calibration.wrongness is None
    assert (report.auroc, report.ece, dict(report.estimator_aurocs)) == (None, None, {})
    assert any(note.startswith(f"only {few} answers: P(wrong) is not") for note in report.notes)


def test_a_reply_that_names_an_option_is_judged_as_that_option():
    letters, words = (rights_as(*said) for said in (("B", "(A) wrong"), ("right", "wrong")))
    questions = [replace(one, options=("wrong", "right")) for one in asked(40)]
    ours, told = fit(questions, letters)
    theirs, known = fit(asked(40), words)
    figures_of = [[(row.em, row.f1) for row in report.variants] for report in (told, known)]
    assert figures_of[0] == figures_of[1]
    assert (ours.wrongness, told.kept) == (theirs.wrongness, known.kept)


def test_answers_in_sentences_are_judged_by_what_they_contain():
    """As bare ones are by exact match, which calls a sentence wrong, and says so."""

    def sentences(prompt):
        reply = bare.generate([prompt])[0]
        return replace(reply, text=reply.text.replace("right", "It is right there"))

    bare, llm = late(), ScriptedLLM(sentences)
    told = {"settings": replace(TO_THE_END, choose="last", certain_below=0), "cut_to": ()}
    found, report = fit(asked(), llm, metric="contains", **told)
    theirs, known = fit(asked(), bare, **told)
    last = [[way(one, f"{n} rounds, last") for n in (2, 3)] for one in (report, known)]
    assert [one.gain for one in last[0]] == [one.gain for one in last[1]]
    assert [one.contains for one in last[0]] == [one.em for one in last[1]] == [1, 1]
    assert [one.em for one in last[0]] == [0, 0]
    assert (found.wrongness, report.wrong) == (theirs.wrongness, known.wrong)
    assert re.search(r" EM +contains +gain in contains \(90%\)", str(report))
    _, blind = fit(asked(), llm, **told)
    assert any("20 direct answers hold an accepted one" in note for note in blind.notes)
    assert not any("hold an accepted one" in note for note in [*report.notes, *known.notes])


def test_a_question_is_asked_whole_and_searched_for_by_its_text_alone():
    """Beside its bare text, which is what the encoder sees of both."""
    rest = "\nText: A castle by the sea.\nOptions: wrong 0; right"
    own = {"context": "A castle by the sea.", "options": ("wrong 0", "right")}
    told = {"settings": replace(ONE_ROUND, source="encoder", cut_to=2), "cut_to": (1,)}
    whole, bare = ((halves(), Nonsense()) for _ in range(2))
    fitted = [
        fit([replace(one, **more) for one in asked(12)], llm, encoder=vectors, samples=2, **told)
        for (llm, vectors), more in ((whole, own), (bare, {}))
    ]
    assert fitted[0][1].variants == fitted[1][1].variants
    assert all(prompt.count(rest) == 1 for prompt in whole[0].prompts)
    assert [prompt.replace(rest, "") for prompt in whole[0].prompts] == bare[0].prompts
    assert whole[1].texts == bare[1].texts
    assert {one.text for one in asked(12)} < {*bare[1].texts}
    once = [replace(asked(1)[0], text=f" {QUESTION} 0", **own)]
    settings = replace(told["settings"], certain_below=0)
    answering = Calibrator(whole[0], settings=settings, encoder=(vectors := Nonsense()))
    [answer] = answering.answer_many(once)
    assert (len(answer.trace), vectors.texts[0]) == (2, f" {QUESTION} 0")
    assert all(rest in prompt for prompt in whole[0].prompts[-2:])


def rights_as(right, wrong):
    return scripted(lambda i, n: right if i % 2 or n else wrong, lambda i, n: 0.4 + 0.5 * (i % 2))


# --- what goes wrong


@pytest.mark.parametrize(("which", "rounds", "ended"), [(range(10), 2, 10), ([3], 4, 1)])
def test_a_failing_round_ends_the_rounds_of_its_questions_alone(which, rounds, ended):
    llm = gone(rights(lambda i, n: n), lambda p: round_of(p) == 2 and number(p) in which)
    _, report = fit(asked(10), llm, settings=replace(TO_THE_END, on_error="best"))
    assert len(report.means) == rounds
    note = "questions did not get all 3 rounds: a limit or an error ended them"
    assert f"{ended} of 10 {note}" in report.notes


@pytest.mark.parametrize(("fails_at", "sampled", "warning"), [
    (0, [], "the samples are left out of the comparison: the model raised ConnectionError: gone"),
    (1, [1, 2 - 3 / 12], "the model failed at a sample of 3 questions"),
])  # fmt: skip
def test_a_failing_sample_does_not_undo_the_fit(fails_at, sampled, warning, caplog):
    class Broken:
        name = "broken"

        def generate(self, prompts, settings=GenerationSettings()):
            fails = settings.temperature and settings.seed == fails_at
            if fails and any(number(prompt) < 3 for prompt in prompts):
                raise ConnectionError("gone")
            return halves().generate(prompts, settings)

    told = {"settings": replace(ONE_ROUND, on_error="best"), "samples": 2, "batch": 1}
    _, report = fit(asked(12), Broken(), **told)
    assert [row.calls for row in report.variants if row.kind == "samples"] == sampled
    assert warning in caplog.text
    assert report.variants[0] == fit(asked(12), halves(), **told)[1].variants[0]
    with pytest.raises(ModelFailed, match="gone"):
        fit(asked(12), Broken(), **told | {"settings": ONE_ROUND})


@pytest.mark.parametrize(("told", "error", "match"), [
    ({"questions": []}, CalibrationError, "no questions"),
    ({"questions": [Question("Why?", (), passages=THREE)]}, MissingReferences, r"'Why\?' has no"),
    ({"questions": [Question("Why?", ("a",), id="q9")]}, CalibrationError, "'q9' has no passages"),
    ({"questions": ["Why?"]}, InvalidInput, "are Question"),
    ({"questions": [Question(" ", ("a",), passages=THREE)]}, EmptyQuestion, "question is empty"),
    ({"metric": "bleu"}, InvalidInput, "metric"),
    ({"level": 1.0}, InvalidInput, "level"),
    ({"cut_to": (0,)}, InvalidInput, "cut_to"),
    ({"cut_to": 2}, InvalidInput, "cut_to must be a list of whole numbers, got int 2"),
    ({"samples": -1}, InvalidInput, "samples"),
    ({"samples": "many"}, InvalidInput, "samples"),
    ({"settings": {"rounds": 1}}, InvalidInput, "must be SGICSettings.*got dict"),
    ({"settings": SGICSettings(rounds=5, source="oracle")}, InvalidInput, "oracle"),
    ({"settings": SGICSettings(rounds=1, source="encoder")}, InvalidInput, "needs encoder="),
    ({"settings": SGICSettings(rounds=1, source="relevance")}, InvalidInput, "needs relevance="),
])  # fmt: skip
def test_what_cannot_be_fitted_on_is_named_before_a_call(told, error, match):
    llm = halves()
    with pytest.raises(error, match=match):
        fit(**{"questions": asked(5), "llm": llm} | told)
    assert llm.prompts == []
