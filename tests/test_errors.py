"""The error tree, and the values that pass between rooms."""

import dataclasses
import pickle
import re
from contextlib import closing
from socket import create_server

import pytest
from client_parts import CLIENTS
from openai_server import answering

from ltrag_plugins import errors, types
from ltrag_plugins.errors import LtragError, ModelFailed, ModelUnavailable

ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, LtragError)]
VALUES = [t for t in vars(types).values() if dataclasses.is_dataclass(t)]


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_travels_between_processes(error):
    twin = pickle.loads(pickle.dumps(error("what came, what was wanted, the next step")))
    assert type(twin) is error
    assert "the next step" in str(twin)


@pytest.mark.parametrize("value", VALUES)
def test_values_are_frozen_and_hold_nothing_but_their_fields(value):
    assert value.__dataclass_params__.frozen
    assert not hasattr(value, "__dict__") or "__slots__" in vars(value)
    methods = [n for n, m in vars(value).items() if callable(m) and not n.startswith("__")]
    assert [name for name in methods if not name.startswith("_dataclass")] == []


@pytest.fixture(params=["langchain", "llama_index"])
def framework_client(request):
    return CLIENTS[request.param]


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, r"refused the API key; .* The model is not asked any more\."),
        (403, "refused the API key; set the model's key"),
        (404, "no such model or address; check the model's name and address"),
        (429, "a time-out or a rate limit passes"),
        (500, "try again or raise the client's retries"),
    ],
)
def test_a_frameworks_client_says_what_its_server_found_wrong(framework_client, status, remedy):
    raises = pytest.raises(ModelFailed, match=f"the model raised .*{remedy}")
    with answering(lambda _: (status, {"error": {"message": "no"}})) as server, raises as raised:
        framework_client(server.base_url).generate(["Who?"])
    assert isinstance(raised.value, ModelUnavailable) == (status == 401)


def test_a_frameworks_client_names_the_address_at_which_nobody_answers(framework_client):
    with closing(create_server(("127.0.0.1", 0))) as held:
        port = held.getsockname()[1]
    llm = framework_client(f"http://me:secret@127.0.0.1:{port}/v1")
    where = re.escape(f"http://127.0.0.1:{port}/v1/chat/completions")
    with pytest.raises(ModelFailed, match=f"nothing answers at {where}; see") as raised:
        llm.generate(["Who?"])
    assert "secret" not in str(raised.value)
    said = errors.provider_error("encoder", ConnectionRefusedError("refused"))
    assert "nothing answers at its address; see that the server runs, or" in str(said)
    for passing in (ConnectionResetError("reset by peer"), TimeoutError("60 s")):
        assert "a time-out or a rate limit" in str(errors.provider_error("model", passing))
