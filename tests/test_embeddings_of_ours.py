"""Our encoders inside the frameworks' vector stores, beside cosine by hand."""

import numpy as np
import pytest
from contracts.methods import PASSAGES, Letters
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from ltrag_plugins.errors import InvalidInput
from ltrag_plugins.langchain import LangChainEncoder, LtragEmbeddings
from ltrag_plugins.llama_index import LlamaIndexEncoder, LtragEmbedding

TEXTS = [passage.text for passage in PASSAGES]
ASKED = "Who wrote Middlemarch?"


def by_hand() -> list[str]:
    vectors = Letters().encode([ASKED, *TEXTS])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return [TEXTS[i] for i in np.argsort(-(unit[1:] @ unit[0]), kind="stable")]


async def test_a_store_of_either_framework_finds_what_is_nearest():
    store = InMemoryVectorStore.from_texts(TEXTS, LtragEmbeddings(Letters()))
    for found in store.similarity_search(ASKED, k=4), await store.asimilarity_search(ASKED, k=4):
        assert [document.page_content for document in found] == by_hand()
    nodes = [TextNode(text=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=LtragEmbedding(Letters()))
    retriever = index.as_retriever(similarity_top_k=4)
    for found in retriever.retrieve(ASKED), await retriever.aretrieve(ASKED):
        assert [node.text for node in found] == by_hand()


@pytest.mark.parametrize("there_and_back", [
    lambda e: LangChainEncoder(LtragEmbeddings(e)), lambda e: LlamaIndexEncoder(LtragEmbedding(e)),
])  # fmt: skip
def test_there_and_back_the_vectors_are_the_same(there_and_back):
    encoder = there_and_back(Letters())
    assert np.array_equal(encoder.encode(TEXTS), Letters().encode(TEXTS))
    assert len(encoder.encode([])) == 0
    assert "letters" in encoder.name


def test_an_embedding_that_became_a_dictionary_is_the_same_again():
    embedding = LtragEmbedding(Letters(), embed_batch_size=3)
    again = LtragEmbedding.from_dict(embedding.to_dict(), encoder=Letters())
    assert again.to_dict() == embedding.to_dict()
    assert again.get_query_embedding(ASKED) == embedding.get_query_embedding(ASKED)


@pytest.mark.parametrize("kind", [LtragEmbeddings, LtragEmbedding])
def test_what_is_no_encoder_is_refused(kind):
    with pytest.raises(InvalidInput, match="Encoder"):
        kind("all-MiniLM-L6-v2")
