"""How many tokens things take, as far as one can say without a tokeniser."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.messages import (
    AssistantMessage,
    Attachment,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    encode,
)
from holdfast.turns.compaction.budget import IMAGE, PDF_PAGE, Estimator, attachment_tokens, text_tokens

PROSE = (
    "Every model call, tool call, sleep, wait and background job is written to a journal before anyone relies on it; "
    "kill the process at any instant, start it again, and each agent goes on from the exact step it had reached. "
)
CODE = "def respond(state: TurnState, effect: int) -> TurnState:\n    if effect != state.id:\n        return 1\n"
JSON = json.dumps({"orders": [{"id": 17, "email": "a@b.c", "cents": 4250, "paid": True}] * 5})
NOISE = base64.b64encode(b"".join(hashlib.sha256(bytes([n])).digest() for n in range(30))).decode()


def per_character(text: str) -> float:
    return text_tokens(text) / len(text)


@every(
    ("text", "least", "most"),
    [
        pytest.param(PROSE, 0.20, 0.35, id="prose"),
        pytest.param(CODE, 0.25, 0.50, id="code"),
        pytest.param(JSON, 0.30, 0.60, id="json"),
        pytest.param(NOISE, 0.60, 0.85, id="base64"),
        pytest.param("重要的是保持对话的完整性。" * 20, 0.9, 1.4, id="chinese"),
        pytest.param("これは長い会話の要約です。" * 20, 0.9, 1.4, id="japanese"),
        pytest.param("대화가 길어지면 요약합니다. " * 20, 0.7, 1.4, id="korean"),
        pytest.param("Разговор становится слишком длинным. " * 20, 0.4, 0.8, id="russian"),
        pytest.param("🚀🎉👍" * 20, 2.0, 3.5, id="pictures"),
        pytest.param("3.14159 2.71828 1.41421 " * 20, 0.4, 0.8, id="numbers"),
    ],
)
def test_a_text_is_counted_by_what_it_is_made_of(text: str, least: float, most: float) -> None:
    assert least <= per_character(text) <= most


@given(st.text(max_size=200), st.text(max_size=200))
def test_more_text_is_never_fewer_tokens(one: str, two: str) -> None:
    assert text_tokens(one + "\n" + two) >= max(text_tokens(one), text_tokens(two))


@given(st.text(max_size=400))
def test_no_text_is_counted_as_less_than_a_quarter_of_its_words(text: str) -> None:
    assert text_tokens(text) * 4 >= len(text.split())


def test_half_of_a_character_can_be_counted() -> None:
    assert text_tokens("\ud800") > 0


def test_a_picture_takes_the_same_whatever_its_size() -> None:
    sizes = [attachment_tokens(Attachment("d", "image/png", size)) for size in (10, 10_000_000)]
    assert sizes == [IMAGE, IMAGE]


def test_a_pdf_takes_a_page_at_least_and_grows_with_its_bytes() -> None:
    small, large = (attachment_tokens(Attachment("d", "application/pdf", size)) for size in (100, 1_000_000))
    assert small == PDF_PAGE
    assert large > 10 * PDF_PAGE


def test_a_text_file_takes_what_its_text_takes() -> None:
    file = Attachment("d", "text/plain; charset=utf-8", len(PROSE))
    assert attachment_tokens(file) >= text_tokens(PROSE)


@pytest.mark.parametrize(
    "content",
    [
        json.loads(encode(Attachment("d", "image/png", 9))),
        ["see", Attachment("d", "image/png", 9)],
        {"pages": [{"shot": json.loads(encode(Attachment("d", "image/png", 9)))}]},
    ],
    ids=["alone", "in a list", "deep"],
)
def test_a_picture_in_a_result_is_counted(content: Any) -> None:
    result = ToolResult("c", "look", content, files=("d",))
    assert Estimator().tokens(ToolMessage("m", (result,))) >= IMAGE


def test_what_only_looks_like_an_attachment_is_counted_as_text() -> None:
    result = ToolResult("c", "look", {"type": "attachment", "size": "large"}, files=("d",))
    assert Estimator().tokens(ToolMessage("m", (result,))) < 100


def test_arguments_thoughts_and_their_data_count() -> None:
    bare = Estimator().tokens(AssistantMessage("m", (Text("x"),)))
    call = ToolCall("c", "write", {"text": PROSE})
    thought = Reasoning(PROSE, {"signature": NOISE}, "route")
    full = Estimator().tokens(AssistantMessage("m", (thought, Text("x"), call)))
    assert full - bare >= 2 * text_tokens(PROSE) + len(NOISE) // 4


def test_arguments_that_are_no_json_count() -> None:
    call = ToolCall("c", "write", None, malformed=PROSE)
    assert Estimator().tokens(AssistantMessage("m", (call,))) >= text_tokens(PROSE)


def test_an_empty_message_takes_something() -> None:
    assert Estimator().tokens(UserMessage("m", (Text(""),))) > 0
