"""The LangChain room as a package: what it imports, and what it says without LangChain."""

import ast
import subprocess
import sys
from pathlib import Path

import ltrag_plugins.langchain as room

ALLOWED = {"langchain_core", "ltrag_plugins", "numpy", "pydantic", "typing_extensions"}


def test_only_langchain_core_is_imported():
    for file in Path(room.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            agents = {"langchain"} if file.name == "middleware.py" else set()
            assert roots <= agents | ALLOWED | set(sys.stdlib_module_names), (file.name, roots)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_without_langchain_the_import_says_what_to_install():
    said = python(
        "import sys; sys.modules['langchain_core'] = None\n"
        "from ltrag_plugins.errors import MissingExtra\n"
        "try:\n"
        "    import ltrag_plugins.langchain\n"
        "except MissingExtra as error:\n"
        "    print(isinstance(error, ImportError), error)\n"
    )
    assert said.startswith("True")
    assert "pip install 'ltrag-plugins[langchain]'" in said


def test_the_room_works_where_nothing_but_langchain_core_is_installed():
    absent = ["llama_index", "torch", "transformers", "langchain", "langgraph", "openai"]
    said = python(
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        "import ltrag_plugins.langchain as room\n"
        "agents = [name for name in room.__all__ if name.endswith('Middleware')]\n"
        "print(all(getattr(room, name) for name in room.__all__ if name not in agents), agents)\n"
        "try:\n"
        "    room.GECEMiddleware\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert said.startswith("True ['GECEMiddleware', 'SGICMiddleware']")
    assert "pip install 'ltrag-plugins[agents]'" in said
