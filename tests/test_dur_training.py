"""A training run beyond the paper: credits, calibration, bounds, and what is told about it."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from ltrag_plugins.data import digest_of
from ltrag_plugins.dur import DURRanker, DURSettings, DURTrainer
from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Passage
from tests.dur_parts import (
    CANDIDATES,
    VALIDATION,
    Nonsense,
    Scorer,
    asked,
    by_word,
    colour,
    house,
    houses,
    moody,
    moody_llm,
    number,
    numbers,
    shots_of,
    trained,
)

FREE = DURSettings(
    least_shots=None, budget=None, sigma="off", epochs=2, batch_size=5, shots=3, held_out=0.0
)


def chance(prompt: str, word: str) -> float:
    """The log-probability of a word after a prompt: nonsense, but always the same."""
    return -(number(prompt + word) % 1000) / 200


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("advantage", [True, False])
@pytest.mark.parametrize("credit", ["change", "outcome"])
@pytest.mark.parametrize("pull", [0.0, 0.3])
def test_every_form_of_the_loss_is_the_one_written_down_with_torch(
    replacement, advantage, credit, pull
):
    """Shots and log-probabilities are read off what the model was asked."""
    settings = replace(
        FREE, replacement=replacement, advantage=advantage, credit=credit, pull=pull,
        reward="log_p_gold", learning_rate=0.05,
    )  # fmt: skip
    llm = Scorer(by_word(chance))
    result = trained(settings, llm)
    first = trained(replace(settings, epochs=0), llm).ranker.head
    start = torch.tensor(first.weight), torch.tensor(first.bias)
    weight, bias = (t.clone().requires_grad_() for t in start)
    optimizer = torch.optim.Adam([weight, bias], lr=0.05)
    vectors = {q.text: torch.tensor(Nonsense().encode([q.text])[0]).double() for q in
               (*CANDIDATES, *VALIDATION)}  # fmt: skip
    pairs, losses = iter(llm.pairs), []
    for epoch in range(2):
        order = np.random.default_rng([0, 3, epoch]).permutation(12).tolist()
        for begin in range(0, 12, 5):
            batch = [VALIDATION[i] for i in order[begin : begin + 5]]
            credits, rungs, chances = [], [], []
            for question in batch:
                ladder = [next(pairs) for _ in range(4)]
                assert {asked(p) for p, _ in ladder} == {question.text}
                assert {c for _, c in ladder} == {f" The answer is {question.answers[0]}"}
                rewards = [chance(p, question.answers[0]) for p, _ in ladder]
                picks = shots_of(ladder[-1][0])
                assert [shots_of(p) for p, _ in ladder] == [picks[:j] for j in range(4)]
                credits += np.diff(rewards).tolist() if credit == "change" else rewards[1:]
                rungs += [1, 2, 3]
                asked_ = weight @ vectors[question.text] + bias
                scores = {c.text: (weight @ vectors[c.text] + bias) @ asked_ for c in CANDIDATES}
                for pick in picks:
                    everything = torch.stack([*scores.values()])
                    chances.append(scores[pick] - torch.logsumexp(everything, 0))
                    if not replacement:
                        del scores[pick]
            weights = np.array(credits)
            if advantage:
                for j in set(rungs):
                    here = np.array(rungs) == j
                    weights[here] -= weights[here].mean()
                weights /= weights.std()
            loss = -sum(w * c for w, c in zip(weights, chances, strict=True)) / len(batch)
            losses.append(loss.item())
            distance = ((weight - start[0]) ** 2).sum() + ((bias - start[1]) ** 2).sum()
            optimizer.zero_grad()
            (loss + pull / 2 * distance).backward()
            optimizer.step()
    assert [b.loss for b in result.history] == pytest.approx(losses, rel=1e-9)
    assert result.ranker.head.weight == pytest.approx(weight.detach().numpy(), abs=1e-9)
    assert result.ranker.head.bias == pytest.approx(bias.detach().numpy(), abs=1e-9)


def test_each_epoch_draws_anew():
    settings = replace(FREE, reward="match", epochs=6, learning_rate=1e-12)
    llm = moody_llm()
    trained(settings, llm, validation=VALIDATION[:1])
    drawn = {tuple(shots_of(p)) for p in llm.prompts if len(shots_of(p)) == 3}
    assert len(drawn) > 3


def test_equal_credits_teach_nothing():
    settings = replace(FREE, reward="match", epochs=1)
    always = ScriptedLLM(lambda p: f" The answer is {colour(house(asked(p)))}.", name="moody")
    result = trained(settings, always)
    assert numbers(result) == numbers(trained(replace(settings, epochs=0), always))
    assert [b.loss for b in result.history] == [0.0, 0.0, 0.0]


def test_the_default_settings_learn_which_shots_help():
    """A model that knows the answer once a shot of the question's own street was shown."""

    class Streets(Nonsense):
        def encode(self, texts):
            # the street is one small part of a vector that is mostly noise
            noise = Nonsense(8).encode(texts)
            named = [t.split(" in ")[1].split()[0] if " in " in t else "" for t in texts]
            return np.concatenate([noise, 0.5 * Nonsense(6).encode(named)], axis=1)

    def helped(prompt):
        street = asked(prompt).split(" in ")[1]
        right = any(street in shot for shot in shots_of(prompt))
        return f" The answer is {colour(house(asked(prompt))) if right else 'grey'}."

    candidates, questions = houses(100, 30), houses(200, 60)
    streets = {c.text.split(" in ")[1] for c in candidates}
    questions = [q for q in questions if q.text.split(" in ")[1] in streets]
    validation, held_out = questions[:40], questions[40:]
    settings = DURSettings(
        reward="match", preselect="none", epochs=15, learning_rate=0.02, batch_size=20
    )

    def right(**more):
        given = replace(settings, **more), ScriptedLLM(helped), candidates, validation
        ranker = trained(*given, encoder=Streets()).ranker
        best = [ranker.rank(q.text, candidates, top_n=1)[0].index for q in held_out]
        pairs = zip(held_out, best, strict=True)
        return np.mean([q.text.split(" in ")[1] in candidates[i].text for q, i in pairs])

    assert right() > right(epochs=0) + 0.1


def test_equal_arguments_give_equal_heads_and_another_seed_gives_another():
    one, two = trained(FREE), trained(FREE)
    assert (numbers(one), one.history) == (numbers(two), two.history)
    assert numbers(one) != numbers(trained(replace(FREE, seed=1)))


def test_what_a_batch_tells_adds_up():
    llm = moody_llm()
    seen = []
    settings = replace(FREE, reward="match", shots=4)
    result = trained(settings, llm, on_batch=seen.append)
    assert tuple(seen) == result.history
    assert [(b.epoch, b.number) for b in seen] == [(e, n) for e in (0, 1) for n in (0, 1, 2)]
    assert result.calls == len(llm.prompts) == sum(b.calls for b in seen)
    assert result.stopped is None
    prompts = iter(llm.prompts)
    for batch in seen:
        ladders = [[next(prompts) for _ in range(5)] for _ in range(batch.questions)]
        right = [
            [moody(p).endswith(f" {colour(house(asked(p)))}.") for p in ladder]
            for ladder in ladders
        ]
        assert batch.shots == sum(len(shots_of(p)) for ladder in ladders for p in ladder)
        assert batch.deepest == sum(len(shots_of(ladder[-1])) for ladder in ladders)
        assert batch.easy == sum(r[0] for r in right)
        assert batch.easy_right == sum(r[0] and r[-1] for r in right)
        assert batch.hard_right == sum(not r[0] and r[-1] for r in right)
        assert batch.turned_easy == sum(r[0] and not all(r) for r in right)
        assert batch.turned_hard == sum(not r[0] and any(r) for r in right)
        assert batch.reward == pytest.approx(np.mean([1 if r[-1] else -1 for r in right]))
        written = sum(len(moody(p).split()) for ladder in ladders for p in ladder)
        read = sum(len(p.split()) for ladder in ladders for p in ladder)
        assert batch.tokens == read + written
    assert sum(b.questions for b in seen) == 2 * len(VALIDATION)


def test_the_bounds_hold_in_every_batch():
    """The budget is a share of what K shots a question would cost."""
    settings = DURSettings(reward="match", batch_size=6, epochs=4, budget=0.5, least_shots=0.8)
    for batch in trained(settings).history:
        assert batch.shots <= 0.5 * 5 * 6
        assert batch.deepest >= 0.8 * 6
    for batch in trained(replace(settings, least_shots=None, sigma="off")).history:
        assert batch.shots > 0.5 * 5 * 6 - 5  # one more shot adds a rung of 5 at most


def test_a_turn_moves_sigma_to_the_largest_score_from_its_shot_on_though_shots_were_drawn():
    """Eq. 10: right with one shot, wrong from the second on; each question is a run of its own."""
    settings = replace(FREE, reward="match", sigma="batch", epochs=1, shots=5)
    later = 0
    for question in VALIDATION[:6]:
        answers = {True: question.answers[0], False: "grey"}
        llm = ScriptedLLM(lambda p, said=answers: f" The answer is {said[len(shots_of(p)) < 2]}.")
        [batch] = trained(settings, llm, validation=[question]).history
        start = trained(replace(settings, epochs=0), llm, validation=[question]).ranker
        places = start.rank(question.text, CANDIDATES)
        scores = {CANDIDATES[place.index].text: place.score for place in places}
        picks = [scores[text] for text in shots_of(llm.prompts[5])]
        assert batch.sigma == pytest.approx(max(picks[1:]))
        later += picks[1] < max(picks[1:])
    assert later > 1  # of shots that were drawn the largest need not be the second


def test_the_rest_of_a_ladder_is_not_asked_after_a_turn_if_so_set():
    settings = replace(FREE, reward="match", stop_at_turn=True, epochs=1, batch_size=12)
    llm = moody_llm()
    trained(settings, llm)
    for question in VALIDATION:
        ladder = sorted((p for p in llm.prompts if asked(p) == question.text), key=len)
        right = [moody(p).endswith(f" {question.answers[0]}.") for p in ladder]
        turned = [j for j in range(1, len(right)) if right[j - 1] and not right[j]]
        assert turned == [len(right) - 1] if turned else len(ladder) == 4
    assert len(llm.prompts) < 48


def test_a_merged_batch_asks_what_its_ladders_would_ask_alone():
    # one rung after the other, or all at once: the same prompts, so the same head
    together = trained(replace(FREE, reward="match"))
    alone = [trained(replace(FREE, reward="match", batch_size=1, epochs=1), validation=[q]) for q in
             VALIDATION[:3]]  # fmt: skip
    assert all(len(a.history) == 1 for a in alone)
    assert together.calls == 2 * 12 * 4


CHOICE = [replace(q, options=("red", "green", "blue", "yellow")) for q in houses(0, 60)]
CHOICE = [q for q in CHOICE if q.answers[0] in q.options]
BIASED = {"red": 0.0, "green": -2.0, "blue": -2.0, "yellow": -2.0}


def biased(prompt: str, option: str) -> float:
    """Likes red; beyond that it knows the answer, a little."""
    known = 0.5 * (option == colour(house(asked(prompt)))) if "house" in asked(prompt) else 0.0
    return BIASED[option] - 1.0 + known


@pytest.mark.parametrize("calibration", ["content-free", "batch"])
def test_calibrated_options_are_rewarded_for_what_the_model_knows(calibration):
    settings = replace(FREE, format="QO-A", reward="match", epochs=1, batch_size=len(CHOICE))
    given = Scorer(by_word(biased)), CHOICE[:10], CHOICE[10:]
    plain = trained(settings, *given)
    calibrated = trained(replace(settings, option_calibration=calibration), *given)
    share = np.mean([q.answers[0] == "red" for q in CHOICE[10:]])
    assert plain.history[0].reward == pytest.approx(2 * share - 1)
    assert calibrated.history[0].reward == 1.0


def test_questions_without_options_are_left_out_of_the_calibration_by_a_batch():
    bare = houses(100, 6)
    settings = replace(
        FREE, format="QO-A", reward="match", option_calibration="batch", epochs=1, batch_size=99
    )
    llm = Scorer(
        by_word(biased), says=lambda prompt: f" The answer is {colour(house(asked(prompt)))}."
    )
    result = trained(replace(settings, held_out=0.4), llm, CHOICE[:10], [*CHOICE[10:], *bare])
    assert result.history[0].reward == 1.0
    assert result.choice is not None


def test_options_that_differ_cannot_be_calibrated_by_a_batch_and_nothing_is_asked():
    llm, encoder = Scorer(by_word(biased)), Nonsense()
    other = replace(CHOICE[-1], options=CHOICE[-1].options[::-1])
    settings = replace(FREE, format="QO-A", option_calibration="batch")
    with pytest.raises(InvalidInput, match="all offer the same options; use 'content-free'"):
        trained(settings, llm, CHOICE[:10], [*CHOICE[10:], other], encoder=encoder)
    assert (llm.pairs, llm.prompts, encoder.texts) == ([], [], [])


def test_a_rung_that_one_question_reaches_is_calibrated_by_the_rung_before():
    few, more = (tuple(Passage(f"fact {i}", id=str(i)) for i in range(n)) for n in (1, 3))
    questions = [replace(q, passages=few) for q in CHOICE[:12]]
    i = next(i for i, q in enumerate(questions) if q.answers[0] != "red")
    questions[i] = replace(questions[i], passages=more)
    settings = replace(
        FREE, format="passages", reward="match", epochs=1, batch_size=12, option_calibration="batch"
    )
    result = trained(settings, Scorer(by_word(biased)), None, questions)
    assert result.history[0].deepest == 11 + 3
    assert result.history[0].reward == 1.0


def test_each_questions_own_passages_are_ranked_where_no_candidates_are_shared():
    def own(i):
        texts = (f"house {i} is {colour(i)}", f"house {i} has a door", f"house {i} is old")
        return tuple(Passage(text, id=str(n)) for n, text in enumerate(texts))

    questions = [replace(q, passages=own(house(q.text))) for q in VALIDATION]
    llm = ScriptedLLM(lambda p: f" {colour(house(asked(p)))}" if " is " in p else " grey")
    settings = replace(FREE, format="passages", reward="match", shots=5)
    result = trained(settings, llm, None, questions)
    assert result.history[0].deepest == 5 * 3  # all three, as there are no five
    for prompt in llm.prompts:
        i = house(asked(prompt))
        shown = prompt.split("\n\n")[:-1]
        assert {text.strip() for text in shown} <= {p.text for p in own(i)}


def test_a_training_without_one_right_reply_is_spoken_of(caplog):
    llm = ScriptedLLM(lambda prompt: f"It is {colour(house(asked(prompt)))}, they say")
    for reward, spoken in (("match", True), ("contains", False)):
        trained(replace(FREE, reward=reward), llm)
        assert ("every reward was -1" in caplog.text) is spoken
        assert ("reward='contains'" in caplog.text) is spoken
        caplog.clear()


def test_the_trained_head_serves_a_ranker_with_its_settings_and_threshold():
    settings = DURSettings(reward="auto", epochs=1, batch_size=6)
    result = trained(settings)
    assert result.ranker.settings == replace(settings, reward="match")
    assert result.ranker.sigma == result.history[-1].sigma
    scored = trained(settings, Scorer(by_word(chance)))
    assert scored.ranker.settings.reward == "log_p_gold"


def test_frozen_text_is_encoded_once():
    encoder = Nonsense()
    trained(replace(FREE, preselect="encoder"), encoder=encoder)
    assert sorted(encoder.texts) == sorted(q.text for q in (*CANDIDATES, *VALIDATION))


def test_without_a_preselection_all_questions_share_one_array_of_vectors():
    trainer = DURTrainer(Nonsense(), moody_llm(), settings=replace(FREE, preselect="none"))
    *cases, own = trainer._cases(CANDIDATES, [*VALIDATION, CANDIDATES[3]])
    assert all(np.shares_memory(case.vectors, cases[0].vectors) for case in cases)
    assert all(case.candidates == tuple(CANDIDATES) for case in cases)
    assert own.candidates == (*CANDIDATES[:3], *CANDIDATES[4:])
    assert np.array_equal(own.vectors, np.delete(cases[0].vectors, 3, axis=0))


def test_nothing_that_was_handed_in_is_changed():
    candidates, validation = list(CANDIDATES), list(VALIDATION)
    trained(FREE, None, candidates, validation)
    assert (candidates, validation) == (CANDIDATES, VALIDATION)


MORE = houses(1, 40)
CHOOSING = replace(FREE, reward="match", epochs=1, held_out=0.25)


def held_out_of(result, llm) -> set[str]:
    """Questions that no batch asked."""
    spent = sum(batch.calls for batch in result.history)
    return {q.text for q in MORE} - {asked(p) for p in llm.prompts[:spent]}


def test_head_and_number_of_shots_are_chosen_on_questions_that_were_not_trained_on():
    def model(prompt: str) -> str:
        # right with two shots, wrong with any other number
        question = next(q for q in MORE if q.text == asked(prompt))
        known = len(shots_of(prompt)) == 2
        return f" The answer is {question.answers[0] if known else 'grey'}."

    llm = ScriptedLLM(model)
    result = trained(CHOOSING, llm, validation=MORE)
    assert result.choice is not None
    assert result.choice.questions == len(held_out_of(result, llm)) == 10
    assert sum(batch.questions for batch in result.history) == 30
    assert result.choice.trained == result.choice.start == (-1.0, -1.0, 1.0, -1.0)
    assert result.choice.calls == 40 * 4  # no shot changed more than others: one head, not two
    assert result.choice.everywhere == result.choice.trained
    assert result.calls == len(llm.prompts)
    assert (result.choice.head, result.ranker.shots) == ("trained", 2)
    plain = trained(replace(CHOOSING, held_out=0.0), llm, validation=MORE)
    assert (plain.choice, plain.ranker.shots) == (None, 3)
    few = trained(CHOOSING, llm, validation=MORE[:36])  # 9 would be held out
    assert (few.choice, few.ranker.shots) == (None, 3)


def test_all_questions_choose_the_number_of_shots_not_the_held_out_alone():
    result = trained(CHOOSING, moody_llm(), validation=MORE)
    held_out, everywhere = (0.0, 0.1, 0.9), (0.0, 0.8, 0.2)
    choice = replace(result.choice, trained=held_out, start=(0.0,) * 3, everywhere=everywhere)
    assert (choice.head, choice.shots) == ("trained", 1)


def test_one_hopeless_question_does_not_choose_the_number_of_shots():
    """With one shot all are likely but one; with two all are as likely as not."""

    def chances(prompt: str, _: str) -> float:
        hopeless = asked(prompt) == MORE[0].text
        return {0: -9.0, 1: -25.0 if hopeless else -0.1}.get(len(shots_of(prompt)), -0.7)

    settings = replace(CHOOSING, reward="log_p_gold")
    result = trained(settings, Scorer(by_word(chances)), validation=MORE)
    assert result.choice is not None
    one, two = (39 * math.exp(-0.1) + math.exp(-25)) / 40, math.exp(-0.7)
    wanted = (math.exp(-9), one, two, two)
    assert result.choice.everywhere == pytest.approx(wanted)
    assert result.ranker.shots == 1
    # a mean of logarithms would have chosen two
    assert (39 * -0.1 - 25) / 40 < -0.7


@pytest.mark.parametrize(
    ("by_start", "by_trained", "kept"),
    [(6, 0, "start"), (0, 1, "trained"), (2, 1, "trained"), (3, 0, "start"), (0, 0, "trained")],
)
def test_a_head_that_does_clearly_worse_on_held_out_questions_than_before_is_not_kept(
    by_start, by_trained, kept
):
    """So many of the ten are right where the first shot is the favourite of either head, and for
    the head before with two shots or more."""
    settings = replace(CHOOSING, learning_rate=0.5, epochs=2)
    before = trained(replace(settings, epochs=0), validation=MORE).ranker.head
    llm = moody_llm()
    probe = trained(settings, llm, validation=MORE)
    spent = sum(batch.calls for batch in probe.history)
    unseen = sorted(held_out_of(probe, llm))
    vectors = Nonsense().encode([c.text for c in CANDIDATES]).astype(float)
    prompts = []

    def favourite(question: str) -> str:
        [asking] = Nonsense().encode([question]).astype(float)
        return CANDIDATES[int(np.argmax(before.scores(asking, vectors)))].text

    def model(prompt: str) -> str:
        prompts.append(prompt)
        if len(prompts) <= spent:  # still training, as the probe did
            return moody(prompt)
        shots, question = shots_of(prompt), asked(prompt)
        of_start = bool(shots) and shots[0] == favourite(question)
        if question not in unseen:
            return " The answer is grey."
        place = unseen.index(question)
        known = place < by_start * (len(shots) > 1) if of_start else place >= 10 - by_trained
        return f" The answer is {colour(house(question)) if shots and known else 'grey'}."

    result = trained(settings, ScriptedLLM(model), validation=MORE)
    assert result.choice is not None
    assert max(result.choice.start[1:]) == pytest.approx(2 * by_start / 10 - 1)
    differences = [2] * by_start + [-2] * by_trained + [0] * (10 - by_start - by_trained)
    assert result.choice.error == pytest.approx(statistics.stdev(differences) / math.sqrt(10))
    assert result.choice.head == kept
    assert result.ranker.shots == (2 if kept == "start" else 1)
    assert np.array_equal(result.ranker.head.weight, before.weight) == (kept == "start")


def test_the_choice_is_saved_with_the_head_and_with_the_run(tmp_path):
    first = trained(CHOOSING, validation=MORE, checkpoint=tmp_path / "run")
    first.ranker.save(tmp_path / "head")
    loaded = DURRanker.load(tmp_path / "head", encoder=Nonsense())
    assert loaded.shots == first.ranker.shots
    assert loaded.data == first.ranker.data
    assert digest_of(MORE) in loaded.data
    llm = moody_llm()
    again = trained(CHOOSING, llm, validation=MORE, checkpoint=tmp_path / "run")
    assert (again.choice, again.ranker.shots, llm.prompts) == (first.choice, first.ranker.shots, [])
    assert numbers(again) == numbers(first)
    longer = replace(CHOOSING, epochs=2)
    more = trained(longer, llm, validation=MORE, checkpoint=tmp_path / "run")
    assert len(more.history) == 2 * len(first.history)
    whole = trained(longer, validation=MORE)
    assert numbers(more) == numbers(whole)
    assert more.choice == whole.choice is not None


def test_the_bound_holds_for_the_choice_of_shots_too():
    llm, settings = moody_llm(), DURSettings(epochs=1, shots=2, held_out=0.5)
    free = trained(settings, validation=MORE)
    assert free.choice is not None
    spent = sum(batch.calls for batch in free.history)
    bound = trained(settings, llm, validation=MORE, max_calls=spent + 1)
    assert len(llm.prompts) <= spent + 1
    assert bound.choice is None
    assert "would choose the number of shots" in (bound.stopped or "")
    assert bound.history == free.history


def test_a_run_that_goes_on_and_learned_nothing_asks_the_held_out_questions_once(tmp_path):
    settings = replace(CHOOSING, reward=lambda said, question: 1.0)
    whole, llm = trained(settings, validation=MORE), moody_llm()
    spent = sum(batch.calls for batch in whole.history)
    told = {"validation": MORE, "checkpoint": tmp_path}
    assert trained(settings, llm, **told, max_calls=spent).choice is None
    rest = trained(settings, llm, **told)
    assert rest.choice == whole.choice
    assert len(llm.prompts) == spent + rest.choice.calls
