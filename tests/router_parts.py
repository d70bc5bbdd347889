"""A model that knows every other answer, and an engine that finds them all."""

import re

from llama_index.core.query_engine import CustomQueryEngine

from tests.llama_index_parts import FunctionLLM


def number(text: str) -> int:
    return int(re.findall(r"number (\d+)", text)[-1])


def knows_the_odd(prompt: str) -> str:
    """Knows the cities with odd numbers, and all that it is shown."""
    i = number(prompt)
    return f"City {i}" if "shown" in prompt or i % 2 else f"no idea {i}"


class Engine(CustomQueryEngine):
    llm: FunctionLLM
    asked: list[str]

    def custom_query(self, query_str: str) -> str:
        self.asked.append(query_str)
        if "fails" in query_str:
            raise ConnectionError("no index")
        return self.llm.complete(f"shown: {query_str}").text
