"""The two integrations as packages: what they import, and what they do without."""

import ast
import sys
from pathlib import Path

import pytest

import ltrag_plugins
from tests.import_parts import LANGCHAIN, LLAMA_INDEX, LOCAL, python

PACKAGE = Path(ltrag_plugins.__file__).parent
OURS = {"ltrag_plugins", "numpy", "pydantic", "typing_extensions", *sys.stdlib_module_names}


@pytest.mark.parametrize(
    ("room", "allowed"),
    [
        ("langchain", ("langchain_core",)),
        ("llama_index", ("llama_index.core", "llama_index_instrumentation")),
    ],
)
def test_only_the_frameworks_core_is_imported(room, allowed):
    files = [*(PACKAGE / room).glob("*.py")]
    assert files
    for file in files:
        agents = ("langchain.agents",) if file.name == "middleware.py" else ()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            theirs = [name for name in names if name.split(".")[0] not in OURS]
            assert all(name.startswith(allowed + agents) for name in theirs), (file.name, theirs)


def test_langchains_works_where_nothing_but_langchain_core_is_installed():
    absent = ("langchain", "langgraph", "openai", *LLAMA_INDEX, *LOCAL)
    said = python(
        """
        import ltrag_plugins.langchain as room
        agents = [name for name in room.__all__ if name.endswith("Middleware")]
        print(all(getattr(room, name) for name in room.__all__ if name not in agents), agents)
        try:
            room.GECEMiddleware
        except ImportError as error:
            print(error)
        """,
        without=absent,
    )
    assert said.startswith("True ['GECEMiddleware', 'SGICMiddleware']")
    assert "pip install 'ltrag-plugins[agents]'" in said


def test_llama_indexs_answers_without_langchain_without_torch_and_without_a_network():
    said = python(
        """
        import socket
        def refuse(*args, **kwargs):
            raise OSError("no network")
        socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
        from ltrag_plugins.flow import World
        from ltrag_plugins.llama_index import GECERouter, LtragLLM, PassageRetriever
        from ltrag_plugins.llm.scripted import ScriptedLLM
        from ltrag_plugins.retrieval.bm25 import BM25Retriever
        from ltrag_plugins.types import Passage
        from llama_index.core.query_engine import RetrieverQueryEngine
        from tests.gates import RuleGate, always
        llm = ScriptedLLM(lambda prompt: "Austen" if "novel" in prompt else "?")
        found = PassageRetriever(BM25Retriever([Passage("Emma is a novel by Jane Austen.")]))
        engine = RetrieverQueryEngine.from_args(found, llm=LtragLLM(llm))
        print(GECERouter(RuleGate(World(llm=llm), always), engine).query("Who wrote Emma?"))
        """,
        without=(*LANGCHAIN, *LOCAL),
    )
    assert said == "Austen"
