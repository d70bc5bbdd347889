import numpy as np
import pytest
from import_parts import python
from method_parts import Planes, answer
from sklearn.linear_model import LogisticRegression

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.flow import World
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.methods import METHODS
from ltrag_plugins.methods.adaptive import AdaptiveSettings
from ltrag_plugins.methods.adaptive import _Complexity as Complexity
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
    assert [learned.route(np.array(VECTORS[w[:-1]])) for w in texts] == [
        "none", "one", "many", "many",
    ]  # fmt: skip


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
    only = Complexity((route,), np.zeros((2, 1)), np.zeros(1))
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
    assert learned.routes == (label,)


@pytest.mark.parametrize(
    "kinds", [("none", "one", "many"), ("none", "many"), ("one", "many")], ids=str
)
def test_the_routes_are_scikit_learns_own_predictions(kinds):
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(90, 5))
    labels = [kinds[int(abs(v[0] * 2 + v[1]) % len(kinds))] for v in vectors]
    learned = Complexity.fit(vectors, labels, 0.7)
    model = LogisticRegression(C=0.7, max_iter=1000).fit(vectors, labels)
    fresh = rng.normal(size=(300, 5))
    assert [learned.route(v) for v in fresh] == model.predict(fresh).tolist()
    assert len({learned.route(v) for v in fresh}) == len(kinds)


def test_one_kind_of_label_is_everyones():
    learned = Complexity.fit(np.eye(3), ["one"] * 3, 1.0)
    assert learned.routes == ("one",)
    assert learned.route(np.array([9.0, -9.0, 0.0])) == "one"


def test_an_encoder_of_another_size_is_refused():
    with pytest.raises(InvalidInput, match="embeddings of 3 numbers and got 2"):
        Complexity.fit(np.eye(3), ["none", "one", "many"], 1.0).route(np.zeros(2))


def test_answering_loads_no_scikit_learn():
    told = python(
        """
        import numpy as np
        from ltrag_plugins.methods import METHODS
        from ltrag_plugins.methods.adaptive import _Complexity
        _Complexity(("one",), np.zeros((2, 1)), np.zeros(1)).route(np.zeros(2))
        print("sklearn" in sys.modules, "wordfreq" in sys.modules)
        """
    )
    assert told == "False False"
