"""What an import loads, and what happens where a package is missing; each in a fresh process."""

import pytest
from import_parts import LANGCHAIN, LLAMA_INDEX, LOCAL, loaded_by, python


def test_importing_the_package_loads_no_framework_and_no_model_library():
    heavy = {*LANGCHAIN, *LLAMA_INDEX, *LOCAL, "sklearn", "scipy", "numpy", "nltk", "openai"}
    assert loaded_by("import ltrag_plugins") & heavy == set()


def test_its_components_can_be_seen_without_loading_them():
    told = python("import ltrag_plugins; print(*dir(ltrag_plugins))")
    assert told == "DURReranker GECERouter SGICCalibrator"


@pytest.mark.parametrize("name", ["GECERouter", "SGICCalibrator"])
def test_some_at_the_top_level_are_langchains_and_are_loaded_when_touched(name):
    told = python(
        f"""
        import ltrag_plugins
        from ltrag_plugins.langchain import {name}
        assert ltrag_plugins.{name} is {name}
        print("llama_index" in sys.modules)
        """
    )
    assert told == "False"


def test_the_top_level_reranker_is_llama_indexs_and_is_loaded_when_touched():
    told = python(
        """
        import ltrag_plugins
        from ltrag_plugins.llama_index import DURReranker
        assert ltrag_plugins.DURReranker is DURReranker
        print("langchain_core" in sys.modules)
        """
    )
    assert told == "False"


def test_what_the_package_does_not_have_is_an_attribute_error():
    told = python(
        """
        import ltrag_plugins
        try:
            ltrag_plugins.GECERooter
        except AttributeError as error:
            print(error)
        """
    )
    assert "GECERooter" in told


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
    "dur": ("DURRanker, DURSettings, DURTrainer", LANGCHAIN + LLAMA_INDEX),
    "gece": ("GECEGate, GECESettings, Decision, routed", LANGCHAIN + LLAMA_INDEX),
    "sgic": ("calibrate, fit, SGICSettings, ScoreScale", LANGCHAIN + LLAMA_INDEX),
    "flow": ("run, arun, run_many, World, ask, fetch, embed, agree", LANGCHAIN + LLAMA_INDEX),
    "metrics": ("", LANGCHAIN + LLAMA_INDEX),
    "retrieval.bm25": ("", LANGCHAIN + LLAMA_INDEX),
    "llm.scripted": ("ScriptedLLM", LANGCHAIN + LLAMA_INDEX),
    "llm.cached": ("CachedLLM", LANGCHAIN + LLAMA_INDEX),
    "llm.openai": ("OpenAICompatibleLLM", LANGCHAIN + LLAMA_INDEX),
    "cli": ("app", LANGCHAIN + LLAMA_INDEX),
}


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_works_without_the_other_framework_and_without_torch(room):
    names, absent = ROOMS[room]
    statement = (
        f"from ltrag_plugins.{room} import {names}" if names else f"import ltrag_plugins.{room}"
    )
    python(statement, without=(*absent, *LOCAL))


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
