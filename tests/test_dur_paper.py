"""`DURSettings.paper()` beside algorithm 1 written down again, line by line, with torch.

The second writing shares no code with the package: only the numbers of the first head, the
order of the questions and the model are handed over. `script()` and `promptpg()` likewise;
the noise of their draws is handed over, or the draws are read off the prompts.
"""

import math
import random
from collections import Counter
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from ltrag_plugins.dur import DURSettings, Preset
from ltrag_plugins.llm.scripted import ScriptedLLM
from tests.dur_parts import Nonsense, asked, colour, house, houses, number, shots_of, trained

K, POOL = 5, 20
CANDIDATES = random.Random(1).sample(houses(1000, 30), 30)
VALIDATION = houses(1, 45)  # with batches of 20 the last one of an epoch has 5


def test_every_declared_preset_is_a_start_of_its_own():
    starts = [DURSettings.preset(name) for name in get_args(Preset)]
    assert starts[0] == DURSettings()
    assert all(one not in starts[:i] for i, one in enumerate(starts))


def words(text: str) -> list[str]:
    return text.lower().replace("?", "").split()


def bm25(query: str, texts: list[str], k1: float = 1.5, b: float = 0.75) -> list[int]:
    """Best first; equal ones as they stand."""
    documents = [Counter(words(t)) for t in texts]
    mean = sum(map(Counter.total, documents)) / len(documents)

    def score(document: Counter) -> float:
        total = 0.0
        for word in words(query):
            df = sum(word in d for d in documents)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            f = document[word]
            total += idf * f * (k1 + 1) / (f + k1 * (1 - b + b * document.total() / mean))
        return round(total, 9)

    scores = [score(d) for d in documents]
    return sorted(range(len(texts)), key=lambda i: -scores[i])


def vectors(texts: list[str]) -> torch.Tensor:
    return torch.tensor(Nonsense().encode(texts), dtype=torch.float64)


def prompt(shots, question) -> str:
    parts = [f"Question: {s.text}\nAnswer: The answer is {s.answers[0]}\n\n" for s in shots]
    return "".join(parts) + f"Question: {question.text}\nAnswer:"


def orders(seed: int, epochs: int, count: int) -> list[list[int]]:
    """Handed over: the order of the questions in each epoch."""
    return [np.random.default_rng([seed, 3, e]).permutation(count).tolist() for e in range(epochs)]


def first_head(settings: DURSettings) -> torch.nn.Linear:
    """Handed over: the numbers a run begins with."""
    head = trained(replace(settings, epochs=0), None, CANDIDATES, VALIDATION).ranker.head
    linear = torch.nn.Linear(12, settings.dim, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor(head.weight))
        linear.bias.copy_(torch.tensor(head.bias))
    return linear


def example(shot) -> str:
    """e = (x, y) of eq. 4."""
    return f"{shot.text}\n{shot.answers[0]}"


def algorithm_1(settings: DURSettings, model) -> tuple[list[tuple], torch.nn.Linear]:
    """(loss, shots, sigma) of each batch, and the head at the end."""
    h = first_head(settings)
    optimizer = torch.optim.Adam(h.parameters(), lr=settings.learning_rate)
    sigma = 0.0  # line 4
    told = []
    for order in orders(settings.seed, settings.epochs, len(VALIDATION)):
        for start in range(0, len(order), settings.batch_size):  # line 5
            batch = [VALIDATION[i] for i in order[start : start + settings.batch_size]]
            loss = sum(0 * p.sum() for p in h.parameters())  # line 6
            shots = 0
            for p in batch:  # line 7
                pool = [CANDIDATES[i] for i in bm25(p.text, [*map(example, CANDIDATES)])[:POOL]]
                s = torch.softmax(h(vectors([*map(example, pool)])) @ h(vectors([p.text]))[0], 0)
                k = min(K, int((s > sigma).sum()))  # line 9, eq. 6
                ranked = sorted(range(POOL), key=lambda i: -s[i].item())[:k]  # eq. 7
                rewards = []
                for j in range(k + 1):  # line 10
                    said = model(prompt([pool[i] for i in ranked[:j]], p))  # lines 11, 12
                    right = said.strip().removeprefix("The answer is ").rstrip(".") in p.answers
                    rewards.append(1 if right else -1)  # line 13
                    shots += j
                    if j == 0:
                        continue
                    loss = loss - rewards[j] * torch.log(s[ranked[j - 1]])  # line 14
                    if rewards[j] == -1 and rewards[j - 1] == 1:  # line 15
                        sigma = max(s[i].item() for i in ranked[j - 1 :])  # eq. 10, line 16
            loss = loss / len(batch)  # eq. 9
            optimizer.zero_grad()
            loss.backward()
            if loss.item():
                optimizer.step()  # line 20
            told.append((loss.item(), shots, sigma))
    return told, h


def unsteady(prompt: str) -> str:
    """Mostly turns: right, wrong, right, ... by the number of shots, with some exceptions."""
    right = (prompt.count("Question:") + number(asked(prompt))) % 2 == 0
    right ^= number(prompt) % 7 == 0
    return f" The answer is {colour(house(asked(prompt))) if right else 'grey'}."


def steady(prompt: str) -> str:
    """Rarely turns, so that sigma stays low and the ladders long."""
    right = number(asked(prompt)) % 3 > 0 or prompt.count("Question:") > 3
    right ^= number(prompt) % 40 == 0
    return f" The answer is {colour(house(asked(prompt))) if right else 'grey'}."


@pytest.mark.parametrize("model", [unsteady, steady])
@pytest.mark.parametrize("rate", [1e-4, 0.02])
def test_the_paper_preset_is_algorithm_1_batch_by_batch(model, rate):
    settings = DURSettings.paper(seed=3)
    assert (settings.learning_rate, settings.dim, settings.batch_size) == (1e-4, 128, 20)
    assert (settings.shots, settings.preselected, settings.epochs) == (K, POOL, 10)
    settings = replace(settings, learning_rate=rate, epochs=4)
    expected, h = algorithm_1(settings, model)
    result = trained(settings, ScriptedLLM(model), CANDIDATES, VALIDATION)
    assert [b.shots for b in result.history] == [shots for _, shots, _ in expected]
    assert [b.sigma for b in result.history] == pytest.approx([s for *_, s in expected], rel=1e-9)
    assert [b.loss for b in result.history] == pytest.approx([x for x, *_ in expected], rel=1e-8)
    assert result.ranker.head.weight == pytest.approx(h.weight.detach().numpy(), abs=1e-9)
    assert result.ranker.head.bias == pytest.approx(h.bias.detach().numpy(), abs=1e-9)
    assert expected[-1][2] > 1 / POOL  # sigma did move
    assert sum(shots for _, shots, _ in expected) > 20


def test_as_printed_the_last_turn_of_a_ladder_has_the_last_word_on_sigma():
    # right, wrong, right, wrong, right, wrong: turns at shots 1, 3 and 5; line 16 runs thrice
    def always(prompt: str) -> str:
        right = prompt.count("Question:") % 2
        return f" The answer is {colour(house(asked(prompt))) if right else 'grey'}."

    settings = replace(DURSettings.paper(), epochs=1)
    [batch] = trained(settings, ScriptedLLM(always), CANDIDATES, VALIDATION[:1]).history
    h = first_head(settings)
    pool = [CANDIDATES[i] for i in bm25(VALIDATION[0].text, [*map(example, CANDIDATES)])[:POOL]]
    s = torch.softmax(h(vectors([*map(example, pool)])) @ h(vectors([VALIDATION[0].text]))[0], 0)
    assert batch.sigma == pytest.approx(s.sort(descending=True).values[4].item())


def published_code(settings: DURSettings, model) -> tuple[list[tuple], torch.nn.Linear]:
    """(loss, shots, sigma) of each batch, and the head at the end, as the authors' code does it."""
    h = first_head(settings)
    optimizer = torch.optim.Adam(h.parameters(), lr=settings.learning_rate)
    sigma, told = 0.0, []
    for epoch, order in enumerate(orders(settings.seed, settings.epochs, len(VALIDATION))):
        for place, start in enumerate(range(0, len(order), settings.batch_size)):
            batch = [VALIDATION[i] for i in order[start : start + settings.batch_size]]
            noise = np.random.default_rng([settings.seed, 1, epoch, place])  # handed over
            loss, shots, sigmas = torch.zeros((), dtype=torch.float64), 0, []
            for p in batch:
                texts = [c.text for c in CANDIDATES]
                pool = [CANDIDATES[i] for i in bm25(p.text, texts)[:POOL]]
                score = h(vectors([c.text for c in pool])) @ h(vectors([p.text]))[0]
                s = torch.softmax(score, 0)
                shaken = score.detach().numpy() + noise.gumbel(size=POOL)
                drawn = sorted(range(POOL), key=lambda i: -shaken[i])[:K]
                drawn = [i for i in drawn if s[i] > sigma]
                rewards: list[int] = []
                for j in range(len(drawn) + 1):
                    said = model(prompt([pool[i] for i in reversed(drawn[:j])], p))
                    rewards.append(1 if f" {p.answers[0]} " in said.replace(",", " ") else -1)
                    shots += j
                    if j:
                        loss = loss - rewards[j] * torch.log(s[drawn[j - 1]])
                    if rewards[-2:] == [1, -1]:
                        sigmas.append(max(s[i].item() for i in drawn[j - 1 :]))
                        break
            loss = loss / len(batch)
            if loss.item():
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            sigma = sum(sigmas) / len(sigmas) if sigmas else sigma
            told.append((loss.item(), shots, sigma))
    return told, h


@pytest.mark.parametrize("model", [unsteady, steady])
def test_the_script_preset_is_the_authors_code_batch_by_batch(model):
    def chatty(prompt: str) -> str:  # right only for who looks for the answer in the reply
        return model(prompt).rstrip(".") + ", I think."

    settings = replace(DURSettings.script(seed=5), learning_rate=0.02, epochs=4)
    expected, h = published_code(settings, chatty)
    result = trained(settings, ScriptedLLM(chatty), CANDIDATES, VALIDATION)
    assert [b.shots for b in result.history] == [shots for _, shots, _ in expected]
    assert [b.sigma for b in result.history] == pytest.approx([s for *_, s in expected], rel=1e-9)
    assert [b.loss for b in result.history] == pytest.approx([x for x, *_ in expected], rel=1e-8)
    assert result.ranker.head.weight == pytest.approx(h.weight.detach().numpy(), abs=1e-9)
    assert expected[-1][2] > 1 / POOL  # sigma did move


@pytest.mark.parametrize("preselect", ["none", "bm25"])
def test_the_promptpg_preset_is_promptpg_batch_by_batch(preselect):
    """One reward for the set of shots that was drawn; the draws are read off the prompts."""
    settings = DURSettings.promptpg(preselect=preselect, seed=5)
    settings = replace(settings, learning_rate=0.02, epochs=2)
    llm = ScriptedLLM(unsteady)
    result = trained(settings, llm, CANDIDATES, VALIDATION)
    h = first_head(settings)
    optimizer = torch.optim.Adam(h.parameters(), lr=0.02)
    calls, losses, drawn = iter(llm.calls), [], set()
    for order in orders(5, 2, len(VALIDATION)):
        for start in range(0, len(order), 20):
            batch = [VALIDATION[i] for i in order[start : start + 20]]
            loss = torch.zeros((), dtype=torch.float64)
            for p, sent in zip(batch, next(calls), strict=True):
                assert asked(sent) == p.text
                picks = shots_of(sent)
                assert len(set(picks)) == K
                drawn.add(tuple(picks))
                pool = [c.text for c in CANDIDATES]
                if preselect == "bm25":
                    pool = [pool[i] for i in bm25(p.text, pool)[:POOL]]
                s = torch.log_softmax(h(vectors(pool)) @ h(vectors([p.text]))[0], 0)
                reward = 1 if unsteady(sent).strip(" .").endswith(p.answers[0]) else -1
                loss = loss - reward * sum(s[pool.index(t)] for t in picks)
            loss = loss / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert [b.loss for b in result.history] == pytest.approx(losses, rel=1e-8)
    assert result.ranker.head.weight == pytest.approx(h.weight.detach().numpy(), abs=1e-9)
    assert [b.shots for b in result.history] == [100, 100, 25] * 2
    assert [b.sigma for b in result.history] == [0.0] * 6
    assert len(drawn) > 80  # each draw is a new one
    assert [b.easy for b in result.history] == [None] * 6  # without shots it was never asked
