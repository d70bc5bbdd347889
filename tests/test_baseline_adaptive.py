import numpy as np
import pytest
from method_parts import Planes, answer
from sklearn.dummy import DummyClassifier

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.adaptive import AdaptiveSettings
from ltrag_plugins.methods.iter_retgen import IterRetGenSettings
from ltrag_plugins.prompts.templates import direct_prompt, reading_prompt
from ltrag_plugins.types import Passage, Question

FIRST, SECOND = Passage("first shelf"), Passage("second shelf")


class Shelves:
    """The second shelf for queries that hold more than the question."""

    def __init__(self) -> None:
        self.asked = []

    def search(self, queries, k):
        self.asked.append((tuple(queries), k))
        return [[SECOND if " " in query else FIRST] for query in queries]


def reply(prompt: str) -> str:
    """Knows easy ones, reads middling ones, needs the second shelf for hard ones."""
    if "easy?" in prompt or ("middling?" in prompt and "shelf" in prompt):
        return "right"
    return "the answer is right" if "second" in prompt and "hard?" in prompt else "hm"


ROUTES = ("none", "one", "many")
LABELLED = [Question(f"{w}?", ("right",)) for w in ("easy", "middling", "hard", "hopeless")]
VECTORS = {"easy": (4, 0), "middling": (0, 4), "hard": (-4, -4), "hopeless": (-4, -3)}


def learn(questions, world, settings=None):
    return METHODS["adaptive"].taught(questions, settings or AdaptiveSettings(), world)


def test_learning_step_by_step():
    llm, shelves, encoder = ScriptedLLM(reply), Shelves(), Planes(**VECTORS)
    world = World(llm=llm, retriever=shelves, encoder=encoder)
    learned = learn(LABELLED, world, AdaptiveSettings(unsolved="many"))
    texts = [q.text for q in LABELLED]
    # all questions at once: direct answers; single and first iterated ones; second iterated ones
    assert [len(call) for call in llm.calls] == [4, 4, 4, 4]
    assert set(llm.calls[0]) == {direct_prompt(text) for text in texts}
    assert {reading_prompt(text, [FIRST]) for text in texts} in map(set, llm.calls)
    assert len(shelves.asked) == 2
    assert encoder.asked == [tuple(texts)]
    # easy: none; middling: one; hard: many; hopeless: many, the label of multi-hop data
    routes = learned.predict(np.array([VECTORS[text[:-1]] for text in texts]))
    assert [ROUTES[i] for i in routes] == ["none", "one", "many", "many"]


MANY = [reading_prompt("hard?", [s], IterRetGenSettings().template) for s in (FIRST, SECOND)]


@pytest.mark.parametrize(
    ("route", "searched", "prompts", "passages"),
    [
        ("none", 0, [direct_prompt("hard?")], ()),
        ("one", 1, [reading_prompt("hard?", [FIRST])], (FIRST,)),
        ("many", 2, MANY, (SECOND,)),
    ],
)
def test_each_route_asks_what_it_should(route, searched, prompts, passages):
    llm, shelves = ScriptedLLM(reply), Shelves()
    only = DummyClassifier().fit(np.zeros((1, 2)), [ROUTES.index(route)])
    found = answer("adaptive", "hard?", llm, shelves, learned=only, encoder=Planes(hard=(1, 1)))
    assert llm.prompts == prompts
    assert len(shelves.asked) == searched
    assert found.passages == passages
    assert found.text == ("right" if route == "many" else "hm")


@pytest.mark.parametrize(
    ("said", "label"),
    [
        (("yes", "yes", "yes"), "none"),
        (("no", "yes!", "yes"), "one"),
        (("no", "", "well, yes"), "many"),
        (("no", "no", "no"), "one"),
    ],
)
def test_the_cheapest_right_route_is_the_label(said, label):
    def reply(prompt: str) -> str:
        return said[0 if "shelf" not in prompt else 2 if "Thoughts:" in prompt else 1]

    world = World(llm=ScriptedLLM(reply), retriever=Shelves(), encoder=Planes(x=(1, 0)))
    learned = learn([Question("x?", ("yes",))], world)  # a single-hop question, if none is right
    assert [ROUTES[i] for i in learned.classes_] == [label]
    assert learned.predict([[9.0, -9.0]]) == learned.classes_  # and everyone's


def test_an_encoder_of_another_size_is_refused():
    llm, shelves = ScriptedLLM(reply), Shelves()
    learned = learn(LABELLED, World(llm, shelves, Planes(**VECTORS)))
    with pytest.raises(InvalidInput, match="embeddings of 2 numbers and got 3"):
        answer("adaptive", "hard?", llm, shelves, learned=learned, encoder=Planes(hard=(1, 1, 1)))
