"""What an environment can do: run with a folder of saved things and the names of some `THINGS`, it
tries these and prints what came of each, "works" or the extra that a `MissingExtra` names, as JSON.

It imports nothing but the package itself; `save` fills the folder, elsewhere, with the same models.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from math import log
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ltrag_plugins.errors import MissingExtra, ModelUnavailable
from ltrag_plugins.llm.scripted import ScriptedLLM
from ltrag_plugins.types import Generation, GradientAgreement, Passage, Question, Token

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "pink")
QUESTIONS = [
    Question(f"What colour is house {i}?", (COLOURS[i % 8],), f"{i}", (Passage("All are pink."),))
    for i in range(40)
]


def writes(prompt: str) -> Generation:
    """Knows the houses of even number, and is surer of them."""
    house = int(re.findall(r"house (\d+)\?", prompt)[-1])
    text, chance = (COLOURS[house % 8], 0.9) if house % 2 == 0 else ("grey", 0.4)
    known, other = log(chance - house / 1000), log((1 - chance) / 2)
    ranked = sorted([(text, known), ("x", other)], key=lambda pair: -pair[1])
    return Generation(text, (Token(text, known, alternatives=tuple(ranked)),), 7, 1)


def model() -> ScriptedLLM:
    return ScriptedLLM(writes, name="writes")


def talker() -> ScriptedLLM:
    return ScriptedLLM(lambda prompt: writes(prompt).text, name="talks")


class Weights:
    """The same model with gradients, of eight weights."""

    name = "weights"

    def generate(self, *given):
        return model().generate(*given)

    def score(self, prompts, continuations):
        return [Generation(text, (Token(text, -0.5),)) for text in continuations]

    def mean_gradient(self, prompts, continuations, **_):
        return {"w": np.mean([self._gradient(text) for text in continuations], axis=0)}

    def gradient_agreement(self, prompts, continuations, *, along, **_):
        dots = [float(self._gradient(text) @ along["w"]) for text in continuations]
        return [GradientAgreement(dot, dot / 9) for dot in dots]

    def _gradient(self, text: str) -> np.ndarray:
        return np.array([text.count(c) for c in "abdeglnr"], dtype=np.float32) - np.float32(0.4)


class Letters:
    """An encoder that counts letters."""

    name = "letters"

    def encode(self, texts):
        counts = [[text.lower().count(c) + 0.1 for c in "abcdefghik"] for text in texts]
        return np.array(counts, dtype=np.float32).reshape(len(texts), 10)


GATES = {"text": (talker, None), "probabilities": (model, Letters), "gradients": (Weights, None)}


def fitted_gate(tier: str):
    from ltrag_plugins.gece import GECEGate, GECESettings

    llm, encoder = GATES[tier]
    settings = GECESettings(gradients="always" if tier == "gradients" else "never")
    parts = {"settings": settings, "encoder": encoder and encoder()}
    return GECEGate.fit(QUESTIONS, llm=llm(), target_rate=0.5, **parts)


def fitted_calibrator():
    from ltrag_plugins.sgic import Calibrator, SGICSettings

    return Calibrator.fit(QUESTIONS, llm=model(), settings=SGICSettings(rounds=1))


def save(folder: Path) -> None:
    """Gates of all tiers, a head, and a calibration with P(wrong)."""
    from ltrag_plugins.dur import DURRanker

    for tier in GATES:
        fitted_gate(tier).save(folder / tier)
    DURRanker.untrained(Letters()).save(folder / "head")
    fitted_calibrator().save(folder / "calibration")


FOLDER = Path(sys.argv[1]) if __name__ == "__main__" else Path()
ASKED, READ = QUESTIONS[3].text, [Passage("House 3 is yellow."), Passage("Nobody lives in it.")]


def refuses(prompt: str) -> str:
    """Asked, it ends everything: what comes to it has found no package missing."""
    raise ModelUnavailable("asked")


never = ScriptedLLM(refuses)


def gate(tier: str = "probabilities"):
    from ltrag_plugins.gece import GECEGate

    llm, encoder = GATES[tier]
    return GECEGate.load(FOLDER / tier, llm=llm(), encoder=encoder and encoder())


def gates_decide() -> None:
    for tier in GATES:
        found = gate(tier).decide(ASKED)
        assert found.retrieve, found
        assert found.tier == tier


def a_head_ranks() -> None:
    from ltrag_plugins.dur import DURRanker

    assert len(DURRanker.load(FOLDER / "head", encoder=Letters()).rank(ASKED, READ)) == 2


def a_calibrator_answers() -> None:
    from ltrag_plugins.sgic import Calibrator

    found = Calibrator.load(FOLDER / "calibration", llm=model()).answer(ASKED, READ)
    assert found.p_wrong is not None
    assert found.p_wrong > 0.5


def bm25_searches() -> None:
    from ltrag_plugins.retrieval.bm25 import BM25Retriever

    assert BM25Retriever(READ).search([ASKED], 1)[0][0].text == READ[0].text


def short_answers_are_compared() -> None:
    from ltrag_plugins.evaluate import cell_of, evaluate
    from ltrag_plugins.flow import World

    with tempfile.TemporaryDirectory() as out:
        evaluate(QUESTIONS[:2], [cell_of("direct")], World(model()), out=out, metrics=["em", "f1"])


def in_langchain() -> None:
    import_module("ltrag_plugins.langchain")
    from langchain_core.documents import Document
    from langchain_core.runnables import RunnableLambda

    from ltrag_plugins.langchain import DURReranker, GECERouter, SGICCalibrator

    router = GECERouter(gate(), RunnableLambda(lambda asked: f"looked up: {asked}"))
    assert router.invoke(ASKED) == f"looked up: {ASKED}"
    assert router.invoke(QUESTIONS[4].text) == "white"
    reranker = DURReranker.from_pretrained(FOLDER / "head", encoder=Letters(), top_n=1)
    documents = [Document(passage.text) for passage in READ]
    assert len(reranker.compress_documents(documents, ASKED)) == 1
    calibrator = SGICCalibrator.from_pretrained(
        FOLDER / "calibration", llm=model(), refuse_p_wrong_above=0.5
    )
    assert calibrator.invoke({"question": ASKED, "documents": documents})["refused"]


def in_llama_index() -> None:
    import_module("ltrag_plugins.llama_index")
    from llama_index.core.query_engine import CustomQueryEngine
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    from ltrag_plugins.llama_index import DURReranker, GECERouter, SGICCalibrator
    from ltrag_plugins.sgic import Calibration

    class Engine(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return f"looked up: {query_str}"

    router = GECERouter(gate(), Engine())
    assert str(router.query(ASKED)) == f"looked up: {ASKED}"
    assert str(router.query(QUESTIONS[4].text)) == "white"
    reranker = DURReranker.from_pretrained(FOLDER / "head", encoder=Letters(), top_n=1)
    nodes = [NodeWithScore(node=TextNode(text=passage.text)) for passage in READ]
    assert len(reranker.postprocess_nodes(nodes, QueryBundle(ASKED))) == 1
    calibration = Calibration.load(FOLDER / "calibration", llm=model())
    calibrator = SGICCalibrator(model(), calibration=calibration, refuse_p_wrong_above=0.5)
    assert calibrator.synthesize(ASKED, nodes).metadata["sgic"]["refused"]


def a_router_is_fitted_in_langchain() -> None:
    import_module("ltrag_plugins.langchain")
    from langchain_core.runnables import RunnableLambda

    from ltrag_plugins.langchain import GECERouter

    asked = list[str]()
    chain = RunnableLambda(lambda question: asked.append(question) or "grey")
    try:
        GECERouter.fit(chain, llm=model(), questions=[one.text for one in QUESTIONS])
    except MissingExtra:
        assert not asked
        raise


def a_router_learns_in_llama_index() -> None:
    import_module("ltrag_plugins.llama_index")
    from llama_index.core.query_engine import CustomQueryEngine

    from ltrag_plugins.llama_index import GECERouter

    class Engine(CustomQueryEngine):
        def custom_query(self, query_str: str) -> str:
            return "grey"

    with tempfile.TemporaryDirectory() as folder:
        GECERouter.learning(Engine(), llm=model(), store=Path(folder) / "store.sqlite")


def a_calibrator_is_fitted() -> None:
    assert fitted_calibrator().calibration.wrongness is not None


def audits() -> None:
    from ltrag_plugins.gece.monitor import Watch

    Watch(gate(), audit_rate=0.5)


def a_monitor_is_read() -> None:
    from ltrag_plugins.gece.monitor import Watch

    Watch(gate()).monitor()


def all_three_are_fitted() -> None:
    from ltrag_plugins.evaluate import LongTailRAG
    from ltrag_plugins.retrieval.bm25 import BM25Retriever

    LongTailRAG.fit(QUESTIONS, llm=never, retriever=BM25Retriever(READ))


def adaptive_learns() -> None:
    from ltrag_plugins.flow import World
    from ltrag_plugins.methods import method_named

    row = method_named("adaptive")
    row.taught(QUESTIONS, row.settings(), World(never, SimpleNamespace(), Letters()))


def options_are_compared() -> None:
    from ltrag_plugins.metrics.answer import macro_f1

    assert macro_f1(["a"], [Question("a or b?", ("a",), options=("a", "b"))]) == 0.5


def texts_are_compared() -> None:
    from ltrag_plugins.metrics import text

    for metric in (text.meteor, text.rouge_l, text.bleu, text.chrf):
        assert metric("the cat sat on the mat", ["the cat sat on the mat"]) > 0.9


def an_evaluation_begins() -> None:
    from ltrag_plugins.evaluate import cell_of, evaluate
    from ltrag_plugins.flow import World

    with tempfile.TemporaryDirectory() as out:
        evaluate(QUESTIONS[:2], [cell_of("direct")], World(never), out=out)


def a_head_is_trained_by_rouge() -> None:
    from ltrag_plugins.dur import DURSettings, DURTrainer

    DURTrainer(Letters(), never, settings=DURSettings(reward="rouge_l"))


def words_are_counted() -> None:
    from ltrag_plugins.gece import WordFrequencies

    assert WordFrequencies().of_word("the") > 0.01


def the_formula_scores() -> None:
    from ltrag_plugins.gece import score_questions

    score_questions(QUESTIONS[:2], llm=never)


def the_formula_is_fitted() -> None:
    from ltrag_plugins.gece import GECEGate, GECESettings

    settings = GECESettings(scorer="gece", semantics=False)
    GECEGate.fit(QUESTIONS, llm=never, settings=settings)


def the_command_line_runs() -> None:
    command = [sys.executable, "-m", "ltrag_plugins", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        assert done.returncode == 1
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        raise MissingExtra(line)
    assert re.fullmatch(r"ltrag \d+\.\d+\.\d+\S*\n", done.stdout)
    subprocess.run([*command[:3], "methods"], capture_output=True, check=True)


def large_pools_are_searched() -> None:
    from ltrag_plugins.retrieval.bm25 import BM25Retriever

    BM25Retriever(READ, engine="bm25s").search([ASKED], 1)


def a_report_is_written() -> None:
    import_module("ltrag_plugins.report.page")
    from ltrag_plugins.report import write_report

    with tempfile.TemporaryDirectory() as folder:
        write_report(FOLDER / "run", Path(folder) / "page.html")


def imports(module: str, name: str = "") -> Callable[[], None]:
    def imported() -> None:
        found = import_module(f"ltrag_plugins.{module}")
        if name:
            getattr(found, name)

    imported.__qualname__ = f"imports {module} {name}"
    return imported


NEEDS: dict[Callable[[], None], tuple[str, ...]] = {
    gates_decide: (),
    a_head_ranks: (),
    a_calibrator_answers: (),
    bm25_searches: (),
    short_answers_are_compared: (),
    in_langchain: ("langchain",),
    in_llama_index: ("llama-index",),
    a_router_is_fitted_in_langchain: ("langchain", "fit"),
    a_router_learns_in_llama_index: ("llama-index", "fit"),
    a_calibrator_is_fitted: ("fit",),
    audits: ("fit",),
    a_monitor_is_read: ("fit",),
    all_three_are_fitted: ("fit",),
    adaptive_learns: ("fit",),
    options_are_compared: ("fit",),
    texts_are_compared: ("evaluate",),
    an_evaluation_begins: ("evaluate",),
    a_head_is_trained_by_rouge: ("evaluate",),
    words_are_counted: ("frequency",),
    the_formula_scores: ("evaluate", "frequency"),
    the_formula_is_fitted: ("fit", "evaluate", "frequency"),
    the_command_line_runs: ("cli",),
    large_pools_are_searched: ("fast",),
    imports("langchain", "GECEMiddleware"): ("langchain", "agents"),
    imports("llm.openai"): ("openai",),
    imports("llm.transformers"): ("local",),
    imports("llm.encoders"): ("local",),
    imports("training.tuning"): ("local", "train"),
    imports("batch"): ("ray",),
    imports("report.plots"): ("plots",),
    a_report_is_written: ("report",),
}
THINGS = {thing.__qualname__: (thing, needs) for thing, needs in NEEDS.items()}
"""By name, with the extras that each needs; `MissingExtra` names one that is not there."""


def tried(thing: Callable[[], None]) -> str:
    try:
        thing()
    except ModelUnavailable:
        return "works"
    except MissingExtra as error:
        [extra] = re.findall(r"pip install 'ltrag-plugins\[(\S+)\]'$", str(error))
        return extra
    return "works"


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: tried(THINGS[name][0]) for name in sys.argv[2:]}))
