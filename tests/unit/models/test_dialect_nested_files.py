"""Files that a tool returns inside of other values: the model reads a label in their place, and sees them beside it."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from tests.every import every

from holdfast.media import FILES_DEPTH
from holdfast.messages import Attachment, ModelRequest, ToolMessage, ToolResult
from holdfast.models.attachments import split_result
from holdfast.models.dialect import Endpoint
from holdfast.models.registry import load_dialect

DIALECTS = ("anthropic", "chat", "google", "responses")
PICTURE = b"\x89PNG and so on"
CODED = base64.b64encode(PICTURE).decode()
PNG = Attachment("d-png", "image/png", len(PICTURE), "p.png")
ZIP = Attachment("d-zip", "application/zip", 3, "z.zip")
FILES = {"d-png": PICTURE, "d-zip": b"zip"}


def recorded(file: Attachment) -> dict[str, Any]:
    return msgspec.to_builtins(file)


def sent(name: str, content: Any, *digests: str, state: Any = "ok", model: str = "m") -> dict[str, Any]:
    result = ToolResult("c1", "shoot", content, state, files=digests)
    endpoint = Endpoint(provider="here", dialect=name, base_url="https://here")
    request = ModelRequest(messages=(ToolMessage("t", (result,)),), files=FILES)
    return json.loads(load_dialect(name).encode_request(endpoint, model, request).body)


def words(name: str, body: dict[str, Any]) -> Any:
    """What of a result is read."""
    match name:
        case "anthropic":
            return json.loads(body["messages"][0]["content"][0]["content"][0]["text"])
        case "chat":
            return json.loads(body["messages"][0]["content"])
        case "google":
            return body["contents"][0]["parts"][0]["functionResponse"]["response"]["output"]
        case _:
            return json.loads(body["input"][0]["output"][0]["text"])


LABELS = {
    "anthropic": f"[p.png (image/png, {len(PICTURE)} bytes)]",
    "chat": "See the file p.png.",
    "google": "[attachment: p.png]",
    "responses": f"[p.png (image/png, {len(PICTURE)} bytes)]",
}


@every("name", DIALECTS)
@every(
    "content",
    [
        {"caption": "here", "picture": recorded(PNG)},
        {"pictures": [1, recorded(PNG)]},
        [{"picture": recorded(PNG)}],
        ["words", {"a": {"b": [recorded(PNG)]}}],
    ],
    ids=["in a dictionary", "in a list in a dictionary", "in a dictionary in a list", "at the bottom"],
)
def test_a_file_inside_of_a_value_reaches_the_model(name: str, content: Any) -> None:
    assert json.dumps(sent(name, content, PNG.digest)).count(CODED) == 1


@pytest.mark.parametrize("name", DIALECTS)
def test_a_label_stands_in_place_of_the_file(name: str) -> None:
    body = sent(name, {"caption": "here", "picture": recorded(PNG)}, PNG.digest)
    assert words(name, body) == {"caption": "here", "picture": LABELS[name]}


@pytest.mark.parametrize("name", ["anthropic", "chat", "responses"])
def test_the_file_is_shown_under_its_label(name: str) -> None:
    body = sent(name, {"picture": recorded(PNG)}, PNG.digest)
    shown = {
        "anthropic": lambda: body["messages"][0]["content"][0]["content"][1:],
        "chat": lambda: body["messages"][1]["content"],
        "responses": lambda: body["input"][0]["output"][1:],
    }[name]()
    assert "p.png" in shown[0]["text"]
    assert CODED in json.dumps(shown[1])


def test_a_file_inside_of_a_value_follows_where_a_result_can_not_hold_it() -> None:
    first, second = sent("google", {"picture": recorded(PNG)}, PNG.digest, model="gemini-2.5-flash")["contents"]
    assert "parts" not in first["parts"][0]["functionResponse"]
    assert second["parts"] == [{"inlineData": {"mimeType": "image/png", "data": CODED}}]


@every("name", DIALECTS)
@every("content", [recorded(ZIP), {"archive": recorded(ZIP)}], ids=["alone", "inside"])
def test_a_file_of_a_tool_that_nobody_takes_is_named_and_ends_nothing(name: str, content: Any) -> None:
    body = json.dumps(sent(name, content, ZIP.digest))
    assert "z.zip" in body
    assert base64.b64encode(b"zip").decode() not in body


def test_a_call_that_failed_shows_words_alone() -> None:
    body = sent("anthropic", {"picture": recorded(PNG)}, PNG.digest, state="error")
    assert [block["type"] for block in body["messages"][0]["content"][0]["content"]] == ["text"]


@pytest.mark.parametrize("name", DIALECTS)
def test_a_value_that_only_looks_like_a_file_stays_as_it_is(name: str) -> None:
    value = {"mine": recorded(PNG), "own": recorded(ZIP)}  # its result speaks of the archive alone
    body = sent(name, value, ZIP.digest)
    assert CODED not in json.dumps(body)
    assert "d-png" in json.dumps(body)


def nested(depth: int) -> Any:
    value: Any = recorded(PNG)
    for _ in range(depth):
        value = {"in": value}
    return value


@pytest.mark.parametrize(("depth", "found"), [(FILES_DEPTH, 1), (FILES_DEPTH + 1, 0), (900, 0)])
def test_files_are_looked_for_as_deep_as_they_are_kept(depth: int, found: int) -> None:
    result = ToolResult("c1", "shoot", nested(depth), files=(PNG.digest,))
    assert len([file for piece in split_result(result, FILES, str) for file in piece.files]) == found


def test_the_depth_of_a_list_counts() -> None:
    result = ToolResult("c1", "shoot", [nested(FILES_DEPTH)], files=(PNG.digest,))
    assert split_result(result, FILES, str) == []


def test_a_result_that_speaks_of_no_file_is_not_walked() -> None:
    assert split_result(ToolResult("c1", "shoot", {"picture": recorded(PNG)}), FILES, str) == []
