"""A model that knows every other answer, and an engine that finds them all."""

import re

from llama_index.core.query_engine import CustomQueryEngine

from tests.llama_index_parts import FunctionLLM

VILLAGE = {
    "Who keeps the bees of Dirleton?": "Nora Baird keeps the bees of Dirleton.",
    "When does the Dirleton bakery open?": "The Dirleton bakery opens at six in the morning.",
    "Who founded the Dirleton choir?": "The Dirleton choir was founded by Ewan Laird.",
    "How many boats are in Dirleton harbour?": "There are fourteen boats in Dirleton harbour.",
    "Who repairs clocks in Dirleton?": "Clocks in Dirleton are repaired by Mhairi Stott.",
    "Who painted the Dirleton mill?": "The Dirleton mill was painted by Olaf Berg.",
    "Where is the Dirleton fair held?": "The Dirleton fair is held in Quarry Field.",
    "What does the Dirleton ferry cost?": "The Dirleton ferry costs three pounds.",
    "Which bird nests on the Dirleton tower?": "A kestrel nests on the Dirleton tower.",
    "What is the cat of the Dirleton inn called?": "The cat of the Dirleton inn is Pepper.",
}
CAPITALS = {
    f"What is the capital of {country}?": f"{city} is the capital of {country}."
    for country, city in {
        "France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid",
        "Germany": "Berlin", "Egypt": "Cairo", "Greece": "Athens", "China": "Beijing",
        "Austria": "Vienna", "Peru": "Lima",
    }.items()
}  # fmt: skip
"""What a model knows, and, in `VILLAGE`, what it cannot."""


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
