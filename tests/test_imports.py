"""What an import loads, and what happens where a package is missing; each in a fresh process."""

import pytest
from import_parts import LANGCHAIN, LLAMA_INDEX, LOCAL, loaded_by, python


def test_importing_the_package_loads_no_framework_and_no_model_library():
    heavy = {*LANGCHAIN, *LLAMA_INDEX, *LOCAL, "sklearn", "scipy", "numpy", "nltk", "openai"}
    assert loaded_by("import ltrag_plugins") & heavy == set()


@pytest.mark.parametrize(
    ("name", "room", "other"),
    [
        ("GECERouter", "langchain", "llama_index"),
        ("SGICCalibrator", "langchain", "llama_index"),
        ("DURReranker", "llama_index", "langchain_core"),
    ],
)
def test_a_component_at_the_top_level_is_one_rooms_and_loaded_when_touched(name, room, other):
    told = python(
        f"""
        import ltrag_plugins
        print(*dir(ltrag_plugins), "{room}" in sys.modules)
        from ltrag_plugins.{room} import {name}
        assert ltrag_plugins.{name} is {name}
        print("{other}" in sys.modules)
        try:
            ltrag_plugins.GECERooter
        except AttributeError as error:
            print("GECERooter" in str(error))
        """
    )
    assert told.split("\n") == ["DURReranker GECERouter SGICCalibrator False", "False", "True"]


BOTH = LANGCHAIN + LLAMA_INDEX
ROOMS = {
    "langchain": (
        "GECERouter, GECERetriever, gece_edge, LangChainLLM, LangChainRetriever, DURReranker, "
        "DURExampleSelector, SGICCalibrator",
        LLAMA_INDEX,
    ),
    "llama_index": (
        "GECERouter, GECERetriever, GECESelector, LlamaIndexLLM, LlamaIndexRetriever, DURReranker, "
        "SGICCalibrator, SGICEvaluator",
        LANGCHAIN,
    ),
    "dur": ("DURRanker, DURSettings, DURTrainer", BOTH),
    "gece": ("GECEGate, GECESettings, Decision, routed", BOTH),
    "sgic": ("calibrate, fit, SGICSettings, ScoreScale", BOTH),
    "flow": ("run, arun, run_many, World, ask, fetch, embed, agree", BOTH),
    "metrics": ("answer", BOTH),
    "retrieval.bm25": ("BM25Retriever", BOTH),
    "llm.scripted": ("ScriptedLLM", BOTH),
    "llm.cached": ("CachedLLM", BOTH),
    "llm.openai": ("OpenAICompatibleLLM", BOTH),
    "cli": ("app", BOTH),
}


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_works_without_the_other_framework_and_without_torch(room):
    names, absent = ROOMS[room]
    python(f"from ltrag_plugins.{room} import {names}", without=(*absent, *LOCAL))


def test_a_gate_decides_without_frameworks_and_torch():
    told = python(
        """
        from ltrag_plugins.flow import World, ask, run
        from ltrag_plugins.gece import Decision, routed
        from ltrag_plugins.llm.scripted import ScriptedLLM

        class Content:
            def deciding(self, question):
                [draft] = yield from ask(question)
                return Decision(question, False, 0.1, 0.2, "text", "it knows", draft)

        world = World(llm=ScriptedLLM(lambda prompt: "Jane Austen"))
        print(run(routed("who wrote Emma?", Content(), None), world).text)
        """,
        without=(*LANGCHAIN, *LLAMA_INDEX, *LOCAL),
    )
    assert told == "Jane Austen"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
        ("llm.openai", "openai", "openai"),
        ("llm.transformers", "torch", "local"),
        ("llm.transformers", "transformers", "local"),
        ("llm.encoders", "sentence_transformers", "local"),
        ("training.tuning", "peft", "train"),
        ("training.tuning", "trl", "train"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(module, package, extra):
    told = python(
        f"""
        from ltrag_plugins.errors import MissingExtra
        try:
            import ltrag_plugins.{module}
        except MissingExtra as error:
            assert isinstance(error.__cause__, ImportError)
            print(error)
        """,
        without=(package,),
    )
    assert told.endswith(f"pip install 'ltrag-plugins[{extra}]'")
    assert package.replace("_", "-") in told.replace("_", "-")
