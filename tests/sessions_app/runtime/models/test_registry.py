"""Names find their adapters, and nothing is loaded before it is asked."""

import subprocess
import sys

import pytest

from sessions_app.runtime.models import ModelRequest, Models
from tests.sessions_app.runtime.models.asking import HELLO
from tests.support.model_replies import hear
from tests.support.model_servers import ModelServer


@pytest.mark.parametrize(
    ("name", "path", "model"),
    [
        ("gpt-5", "/v1/responses", "gpt-5"),
        ("openai:gpt-5", "/v1/responses", "gpt-5"),
        ("openai-responses:org/gpt:free", "/v1/responses", "org/gpt:free"),
        ("openai-chat:gpt-5", "/v1/chat/completions", "gpt-5"),
        ("anthropic:claude-x", "/v1/messages", "claude-x"),
        ("ollama:llama3:8b", "/v1/chat/completions", "llama3:8b"),
    ],
)
async def test_a_name_finds_its_adapter(
    server: ModelServer, models: Models, name: str, path: str, model: str
) -> None:
    await hear(models.resolve(name), ModelRequest(items=[HELLO]))
    asked = server.requests[-1]
    assert (asked.path, asked.body["model"]) == (path, model)


@pytest.mark.parametrize(
    ("default", "path"), [("openai-chat", "/v1/chat/completions"), ("anthropic", "/v1/messages")]
)
async def test_a_bare_name_is_of_the_default_provider(server: ModelServer, default: str, path: str) -> None:
    models = Models(default)
    model = models.resolve("some-model")
    assert model.name == f"{default}:some-model"
    await hear(model, ModelRequest(items=[HELLO]))
    await models.aclose()
    assert server.requests[-1].path == path


async def test_closed_models_can_be_asked_again(server: ModelServer, models: Models, dialect: str) -> None:
    await hear(models.resolve(dialect), ModelRequest(items=[HELLO]))
    await models.aclose()
    await hear(models.resolve(dialect), ModelRequest(items=[HELLO]))
    assert len({asked.connection for asked in server.requests}) == 2


def test_no_sdk_and_no_django_is_loaded_before_it_is_needed() -> None:
    program = (
        "import sys; from sessions_app.runtime.models import Models\n"
        "m = Models('openai'); [m.resolve(n) for n in ('gpt', 'anthropic:x', 'groq:y', 'demo:z')]\n"
        "heavy = {'openai', 'anthropic', 'pydantic_ai', 'pydantic', 'httpx', 'httpx2', 'django'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
