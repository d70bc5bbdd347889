"""The room as a whole: what it imports, what it needs, and what it does without."""

import ast
import subprocess
import sys
from pathlib import Path

import ltrag_plugins

ROOM = Path(ltrag_plugins.__file__).parent / "llama_index"


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )


def test_without_llama_index_the_error_names_the_pip_command():
    ran = python(
        "import sys\n"
        "sys.modules['llama_index'] = None\n"
        "sys.modules['llama_index.core'] = None\n"
        "from ltrag_plugins.errors import MissingExtra\n"
        "try:\n"
        "    import ltrag_plugins.llama_index\n"
        "except MissingExtra as error:\n"
        "    assert isinstance(error, ImportError)\n"
        "    print(error)\n"
    )
    assert "pip install 'ltrag-plugins[llama-index]'" in ran.stdout, ran.stderr


def test_the_room_answers_without_langchain_without_torch_and_without_a_network():
    ran = python(
        "import socket, sys\n"
        "for absent in ('langchain_core', 'torch', 'transformers'):\n"
        "    sys.modules[absent] = None\n"
        "def refuse(*args, **kwargs):\n"
        "    raise OSError('no network')\n"
        "socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse\n"
        "from ltrag_plugins.flow import World\n"
        "from ltrag_plugins.llama_index import GECERouter, LtragLLM, PassageRetriever\n"
        "from ltrag_plugins.llm.scripted import ScriptedLLM\n"
        "from ltrag_plugins.retrieval.bm25 import BM25Retriever\n"
        "from ltrag_plugins.types import Passage\n"
        "from llama_index.core.query_engine import RetrieverQueryEngine\n"
        "from tests.gates import RuleGate, always\n"
        "llm = ScriptedLLM(lambda prompt: 'Austen' if 'novel' in prompt else '?')\n"
        "found = PassageRetriever(BM25Retriever([Passage('Emma is a novel by Jane Austen.')]))\n"
        "engine = RetrieverQueryEngine.from_args(found, llm=LtragLLM(llm))\n"
        "print(GECERouter(RuleGate(World(llm=llm), always), engine).query('Who wrote Emma?'))\n"
    )
    assert ran.stdout.strip() == "Austen", ran.stderr


def test_only_llama_index_core_is_imported_from_llama_index():
    imported = set()
    for file in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
    theirs = {name for name in imported if name.startswith("llama_index")}
    assert theirs
    allowed = ("llama_index.core", "llama_index_instrumentation")
    assert {name for name in theirs if not name.startswith(allowed)} == set()
