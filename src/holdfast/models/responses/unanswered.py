"""Calls of the provider's own kinds that wait for an answer of ours, and that nobody here carries out. Pure.

A conversation with such a call and without its answer is refused for good, so each gets one that says so.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Item: TypeAlias = dict[str, Any]

_NOBODY: Final = "This tool is not available here. The call was not carried out."
_SIDE: Final = 64
"""Of the picture that stands for a screen, in pixels."""


def answered(items: list[_Item]) -> list[_Item]:
    """The items of a reply, and behind them an answer to each call that has none among them."""
    waiting = [item for item in items if item.get("type") in _ANSWERS and _name(item)]
    if not waiting:
        return items
    # In lists, since a provider may have put anything there.
    known = [item.get("call_id") for item in items if str(item.get("type")).endswith("_output")]
    known += [item.get("approval_request_id") for item in items]
    return items + [
        answer for item in waiting if _name(item) not in known for answer in _ANSWERS[str(item["type"])](item)
    ]


def _name(item: _Item) -> str | None:
    """What the answer has to name; None where it needs none."""
    kind = item.get("type")
    if kind == "tool_search_call" and item.get("execution") != "client":
        return None  # the provider searches itself
    found = item.get("id" if kind == "mcp_approval_request" else "call_id")
    return found if isinstance(found, str) and found else None


def _patch(item: _Item) -> list[_Item]:
    return [
        {"type": "apply_patch_call_output", "call_id": item["call_id"], "status": "failed", "output": _NOBODY},
    ]


def _shell(item: _Item) -> list[_Item]:
    said = {"stdout": "", "stderr": _NOBODY, "outcome": {"type": "exit", "exit_code": 1}}
    return [{"type": "shell_call_output", "call_id": item["call_id"], "output": [said]}]


def _local_shell(item: _Item) -> list[_Item]:
    return [{"type": "local_shell_call_output", "call_id": item["call_id"], "output": _NOBODY}]


def _custom(item: _Item) -> list[_Item]:
    return [{"type": "custom_tool_call_output", "call_id": item["call_id"], "output": _NOBODY}]


def _search(item: _Item) -> list[_Item]:
    found: _Item = {"type": "tool_search_output", "call_id": item["call_id"], "execution": "client"}
    return [{**found, "status": "completed", "tools": []}]


def _approval(item: _Item) -> list[_Item]:
    return [
        {
            "type": "mcp_approval_response",
            "approval_request_id": item["id"],
            "approve": False,
            "reason": "Nobody here can be asked about it.",
        }
    ]


def _computer(item: _Item) -> list[_Item]:
    """Only a picture is taken for an answer, so words have to say that there is nothing to be seen on it."""
    shown = {"type": "computer_screenshot", "image_url": _blank()}
    answer: _Item = {"type": "computer_call_output", "call_id": item["call_id"], "output": shown}
    checks = item.get("pending_safety_checks")
    if isinstance(checks, list) and checks:  # unread warnings are refused; nothing they warn of was done
        answer["acknowledged_safety_checks"] = checks
    return [answer, {"role": "developer", "content": f"{_NOBODY} The screenshot is blank."}]


@lru_cache(maxsize=1)
def _blank() -> str:
    """A small black picture, as a data URL."""
    rows = (b"\0" + bytes(_SIDE // 8)) * _SIDE
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    picture = b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
    return f"data:image/png;base64,{picture}"


_ANSWERS: Final[Mapping[str, Callable[[_Item], list[_Item]]]] = {
    "apply_patch_call": _patch,
    "shell_call": _shell,
    "local_shell_call": _local_shell,
    "custom_tool_call": _custom,
    "computer_call": _computer,
    "tool_search_call": _search,
    "mcp_approval_request": _approval,
}
