import numpy as np
import pytest
from method_parts import Planes, Shelf, answer
from sklearn.neighbors import NearestNeighbors

from ltrag_plugins.errors import CalibrationError, InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.skr import SKRSettings
from ltrag_plugins.methods.skr import _SelfKnowledge as SelfKnowledge
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Passage, Question

BOOKS = {"Emma": "Austen", "Walden": "Thoreau", "Dune": "Herbert", "It": "King"}
SHELF = Passage("A shelf of books.")


def model(direct: set[str], reading: set[str]) -> ScriptedLLM:
    """Answers rightly on these books only."""

    def reply(prompt: str) -> str:
        book = next(b for b in BOOKS if f"{b}?" in prompt)
        return BOOKS[book] if book in (reading if "shelf" in prompt else direct) else "nobody"

    return ScriptedLLM(reply)


LABELLED = [Question(f"{book}?", (writer,)) for book, writer in BOOKS.items()]
VECTORS = {"Emma": (3, 0), "Walden": (0, 2), "Dune": (1, 1), "It": (-1, 0)}


def test_labels_are_learned_step_by_step():
    # Emma right both ways, Walden directly only, Dune with retrieval only, It never
    llm, shelf = model({"Emma", "Walden"}, {"Emma", "Dune"}), Shelf(SHELF)
    encoder = Planes(**VECTORS)
    there = World(llm=llm, retriever=shelf, encoder=encoder)
    learned = METHODS["skr"].taught(LABELLED, SKRSettings(k=1), there)
    texts = [q.text for q in LABELLED]
    assert llm.calls == [
        tuple(direct_prompt(text) for text in texts),
        tuple(reading_prompt(text, [SHELF]) for text in texts),
    ]
    assert shelf.asked == [(tuple(texts), 1)]
    assert encoder.asked == [("Emma?", "Walden?", "Dune?")]
    assert learned.known.tolist() == [True, True, False]
    half = np.sqrt(0.5)
    np.testing.assert_allclose(learned.vectors, [(1, 0), (0, 1), (half, half)], rtol=1e-6)


@pytest.mark.parametrize(
    ("vector", "prompt", "searched", "passages"),
    [
        ((1, 0.1), direct_prompt("new?"), [], ()),  # nearest: Emma
        ((1, 0.8), reading_prompt("new?", [SHELF]), [(("new?",), 2)], (SHELF,)),  # Dune
    ],
)
def test_a_question_is_routed_by_its_nearest_neighbour(vector, prompt, searched, passages):
    vectors = np.array([(1, 0), (0, 1), (0.7071, 0.7071)])
    knowledge = SelfKnowledge(vectors, np.array([True, True, False]))
    llm, shelf = ScriptedLLM(lambda _: " x \n"), Shelf(SHELF)
    more = {"learned": knowledge, "encoder": Planes(new=vector), "neighbours": 1, "k": 2}
    found = answer("skr", "new?", llm, shelf, **more)
    assert (found.text, found.passages) == ("x", passages)
    assert (llm.prompts, shelf.asked) == ([prompt], searched)


def test_the_rule_is_the_papers_inequality():
    # all on one spot: the k nearest are the first k
    for flags in ([1, 0, 1, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 1, 0, 0]):
        known = np.array(flags, dtype=bool)
        knowledge = SelfKnowledge(np.ones((8, 1)), known)
        m, n = known.sum(), (~known).sum()
        for k in (2, 3, 5, 8):
            for ratio in (0.25, 1.0, 3.0):
                near = known[:k].sum()
                left = np.inf if near == k else near / (k - near)
                assert knowledge.knows(np.ones(1), k, ratio) == (left >= ratio * m / n)


def test_where_all_or_none_of_the_questions_were_known():
    vectors, at = np.eye(3), np.ones(3)
    assert SelfKnowledge(vectors, np.array([True] * 3)).knows(at, 2, 1.0)
    assert not SelfKnowledge(vectors, np.array([False] * 3)).knows(at, 2, 1.0)
    # more neighbours than questions are all of them; no direction is near the first
    assert SelfKnowledge(np.eye(2), np.array([False, True])).knows(np.array([1, 0.1]), 9, 0.0)
    assert SelfKnowledge(np.eye(2), np.array([True, False])).knows(np.zeros(2), 1, 1.0)


def test_the_neighbours_are_scikit_learns():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 6))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    alone = [SelfKnowledge(units, np.arange(40) == i) for i in range(40)]
    other = NearestNeighbors(n_neighbors=7, metric="cosine", algorithm="brute").fit(vectors)
    for query in rng.normal(size=(10, 6)) * 5:
        [found] = other.kneighbors(query[None], return_distance=False)
        # where one question alone was known, only its neighbours are, whatever the ratio
        near = [i for i in range(40) if alone[i].knows(query, 7, ratio=0.0)]
        assert near == sorted(found.tolist())


def test_questions_that_teach_nothing_are_named():
    world = World(llm=model(set(), set()), retriever=Shelf(SHELF), encoder=Planes(**VECTORS))
    with pytest.raises(CalibrationError, match="none of the 4 labelled questions"):
        METHODS["skr"].taught(LABELLED, SKRSettings(), world)


def test_an_encoder_of_another_size_is_refused():
    with pytest.raises(InvalidInput, match="embeddings of 2 numbers and got 3"):
        SelfKnowledge(np.eye(2), np.ones(2, dtype=bool)).knows(np.ones(3), 1, 1.0)
