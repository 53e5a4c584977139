"""What may be said about an endpoint instead of what is known, and addresses that are made of variables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.every import every

from holdfast import models
from holdfast.errors import InvalidArgument
from holdfast.messages import ModelRequest, Text, UserMessage
from holdfast.models.dialect import NO_STREAM
from holdfast.models.endpoints import DIALECTS, ENDPOINTS, resolve_endpoint
from holdfast.models.registry import load_dialect

QUESTION = ModelRequest(messages=(UserMessage("m1", (Text("Hello?"),)),))
PLACE = {"GOOGLE_CLOUD_PROJECT": "shop-1", "GOOGLE_CLOUD_LOCATION": "europe-west4"}


# ---- Vertex AI -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("europe-west4", "europe-west4-aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
    ],
)
def test_the_address_of_vertex_is_made_of_the_project_and_the_location(location: str, host: str) -> None:
    found = resolve_endpoint("vertex", environ=PLACE | {"GOOGLE_CLOUD_LOCATION": location})
    assert found.base_url == f"https://{host}/v1/projects/shop-1/locations/{location}/publishers/google"


def test_the_model_follows_the_publisher_in_the_path_of_vertex() -> None:
    place = resolve_endpoint("vertex", environ=PLACE)
    wire = load_dialect(place.dialect).encode_request(place, "gemini-3-pro", QUESTION)
    assert wire.path == "/models/gemini-3-pro:streamGenerateContent?alt=sse"


def test_vertex_takes_a_bearer_token() -> None:
    assert resolve_endpoint("vertex", environ=PLACE).auth == "bearer"


@pytest.mark.parametrize("missing", PLACE)
def test_a_variable_of_vertex_that_is_not_set_is_named(missing: str) -> None:
    with pytest.raises(InvalidArgument, match=missing):
        resolve_endpoint("vertex", environ={name: value for name, value in PLACE.items() if name != missing})


@every("variable", PLACE)
@every("value", ["evil.example/", "a@evil.example", "a/../b", "A", "a?b", "a#b", "..", "a b", "a\n"])
def test_a_variable_can_not_lead_the_token_to_another_host(variable: str, value: str) -> None:
    if value == "a\n":
        assert resolve_endpoint("vertex", environ=PLACE | {variable: value}).base_url.isprintable()
        return
    with pytest.raises(InvalidArgument, match=variable):
        resolve_endpoint("vertex", environ=PLACE | {variable: value})


def test_an_address_that_is_given_goes_before_the_variables_of_vertex() -> None:
    assert resolve_endpoint("vertex", base_url="http://proxy/google", environ={}).base_url == "http://proxy/google"


# ---- flags and dialects ----------------------------------------------------------------------------------------------


@every("name", sorted(ENDPOINTS))
def test_every_flag_of_a_known_endpoint_is_one_of_its_dialect(name: str) -> None:
    found = ENDPOINTS[name]
    assert found.flags <= set(load_dialect(found.dialect).flags)


def _read_by(spoken: str) -> set[str]:
    """The flags that the code of a dialect looks at."""
    code = (Path(models.__file__).parent / f"{spoken}.py").read_text(encoding="utf-8")
    named = {NO_STREAM} if re.search(r"NO_STREAM (?:not )?in", code) else set[str]()
    return named | set(re.findall(r'"(\w+)" (?:not )?in (?:\w+\.)?_?flags', code))


@pytest.mark.parametrize("spoken", DIALECTS)
def test_every_flag_that_a_dialect_looks_at_is_explained(spoken: str) -> None:
    assert _read_by(spoken) <= set(load_dialect(spoken).flags)
    assert all(load_dialect(spoken).flags.values())


@pytest.mark.parametrize("spoken", sorted(set(DIALECTS) - {"chat"}))  # which looks up those of reasoning in a table
def test_every_flag_that_is_explained_is_looked_at(spoken: str) -> None:
    assert set(load_dialect(spoken).flags) == _read_by(spoken)


def test_the_flags_of_one_dialect_do_not_count_in_another() -> None:
    assert ENDPOINTS["openrouter"].flags
    assert not resolve_endpoint("openrouter", dialect="anthropic").flags


@pytest.mark.parametrize(
    ("spoken", "auth"),
    [("anthropic", "x-api-key"), ("google", "x-goog-api-key"), ("chat", "none"), ("responses", "none")],
)
def test_an_endpoint_of_ones_own_takes_a_key_where_its_dialect_puts_it(spoken: str, auth: str) -> None:
    assert resolve_endpoint("mine", base_url="http://there/v1", dialect=spoken).auth == auth


# ---- headers ---------------------------------------------------------------------------------------------------------


def test_headers_are_known_by_their_names_in_lower_case() -> None:
    assert resolve_endpoint("groq", headers={"X-Team": "blue"}).headers == {"x-team": "blue"}


@every(
    "headers",
    [
        *({"": "x"}, {"a b": "x"}, {"a:": "x"}, {"a\n": "x"}, {7: "x"}, {"é": "x"}),
        *({"a": "x\r\ny: z"}, {"a": 7}, {"a": None}, {"a": "é"}, {"a": b"x"}),
        *({"Host": "x"}, {"content-length": "1"}, {"Transfer-Encoding": "chunked"}, {"Content-Type": "text/plain"}),
        *(7, "a: b", [("a", "b")]),
    ],
)
def test_a_header_that_can_not_be_sent_is_refused(headers: Any) -> None:
    with pytest.raises(InvalidArgument):
        resolve_endpoint("groq", headers=headers)


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "X-Goog-Api-Key", "api-key"])
def test_a_key_among_the_headers_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(InvalidArgument, match="api_key") as caught:
        resolve_endpoint("groq", headers={name: "hidden-77aa"})
    assert "hidden" not in str(caught.value)


def test_the_value_of_a_header_is_not_repeated_in_an_error() -> None:
    with pytest.raises(InvalidArgument) as caught:
        resolve_endpoint("groq", headers={"x-team": "hidden\n"})
    assert "hidden" not in str(caught.value)
