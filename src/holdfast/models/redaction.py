"""Redaction of recordings. Pure.

A recording holds none of these: credentials of requests, wherever they come back; texts in the shape of a key; logins
and secret parameters in URLs; and, in requests and arguments of calls, values with *names* that mark them as secrets,
at any depth. Headers and parameters of a request are written only if their names are known to be harmless. Redaction is
idempotent, so that a request can be compared with a recorded one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.models.json_values import as_dict, as_list, is_dict, is_list
from holdfast.secrets.forms import SecretFinder, SecretForms, make_finder, secret_forms, secret_marker
from holdfast.secrets.redactor import active_redactors

REDACTED: Final = "REDACTED"
REQUEST_HEADERS: Final = re.compile(r"content-type|accept|anthropic-version|anthropic-beta|openai-beta")
RESPONSE_HEADERS: Final = re.compile(
    r"content-type|date|retry-after.*|x-should-retry|.*ratelimit.*|openai-version|openai-processing-ms|x-amzn-errortype"
)
QUERY: Final = frozenset(("alt", "api-version", "beta", "stream", "include"))
"""Query parameters that are recorded."""
_PUBLIC: Final = QUERY | {"version", "v", "format", "lang", "hl", "page", "limit", "offset"}
"""Query parameters that stay in URLs inside a request."""
_MIN_LENGTH: Final = 8
"""Shorter values would match inside words."""
_CREDENTIAL_HEADER: Final = re.compile(r"auth|key|token|secret|cookie|password|credential|signature", re.IGNORECASE)
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME: Final = re.compile(
    # The last word decides: a token is a secret, but max_tokens and token_count are numbers.
    r"(?:.*_)?(?:"
    r"authori[sz]ation|auth|bearer|jwt|token|secrets?|passwords?|passwd|pwd|passphrase|cookies?|credentials?"
    r"|api_?keys?|(?:access|secret|private|subscription|account|encryption|signing|master)_?key|access_key_id"
    r"|connection_string|dsn"
    r")"
)
_SECRET_PARAMETERS: Final = frozenset(("key", "sig", "signature", "code"))
_SCHEMAS: Final = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keywords of JSON Schema with fields that hold schemas, not values."""
_SHAPES: Final = re.compile(
    # Only at the beginning of a word: the same letters may appear inside encrypted reasoning.
    r"(?<![\w+/=*.-])(?:"
    r"(?:sk|pk|rk)-(?=[\w*-]*[\d*])[\w*-]{8,}"
    r"|(?:hf|gsk|xai|nvapi|pplx|csk|fw|tgp_v1)[_-](?=[\w*-]*[\d*])[\w*-]{16,}"
    r"|AIza[\w*-]{16,}|(?:AKIA|ASIA)[A-Z0-9*]{12,}|gh[a-z]_\w{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
    r")"
)
_ARGUMENTS: Final = frozenset(("arguments", "input", "args"))
"""Fields with the arguments of a call."""
_NAMED_TEXT: Final = re.compile(r'("((?:[^"\\]|\\.){1,80})"\s*:\s*")((?:[^"\\]|\\.)*\\?)')
"""A field and its text, in JSON that may be cut anywhere."""
_LAYOUTS: Final = [
    json.JSONEncoder(ensure_ascii=is_escaped, separators=separators)
    for separators in ((",", ":"), (", ", ": "))
    for is_escaped in (False, True)
]
_BEARER: Final = re.compile(r"\b(bearer|basic)( +)(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}", re.IGNORECASE)
# Inside of JSON a slash may be written as "\/", and an ampersand as "\u0026".
_USERINFO: Final = re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,30}:(?:\\?/){2})[^\s/\\?#@\"'<>]+@", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"([?&;#]|\\u0026)([\w.~%-]{1,80})=([^&;#\s\"'<>\\)\]}]+)", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\bhttps?://[^\s\"'<>\\]+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """True if a field of this name holds a secret, such as ``Authorization``, ``clientSecret`` or ``GITHUB_TOKEN``."""
    words = _WORD_START.sub("_", name).lower().replace("-", "_").replace(" ", "_")
    return _SECRET_NAME.fullmatch(words) is not None


class RecordingRedactor:
    """Redacts everything that goes into a recording."""

    def __init__(self) -> None:
        self._values: dict[str, SecretForms] = {}
        self._finder: SecretFinder | None = None

    @property
    def known(self) -> int:
        return len(self._values)

    def learn(self, url: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Remember the credentials of a request, to redact them wherever they come back."""
        place = urlsplit(url)
        sent = [value for name, value in headers.items() if _CREDENTIAL_HEADER.search(name)]
        sent += [value for name, value in parse_qsl(place.query) if name.lower() not in QUERY]
        sent += [unquote(value) for value in (place.username, place.password) if value]
        for value in sent:
            self._remember(value)
        with suppress(RecursionError):  # such a body is not written at all
            for value in _named_secrets(parse_container(body.decode("utf-8", "replace"))):
                self._remember(value, named=True)

    def _remember(self, credential: str, *, named: bool = False) -> None:
        """Remember a credential with and without its scheme, such as "Bearer".

        The value of a secret field (`named`) may also be an ordinary word, which is not remembered.
        """
        for value in {credential.strip(), credential.partition(" ")[2].strip()}:
            is_word = named and len(value) < 3 * _MIN_LENGTH and not any(letter.isdigit() for letter in value)
            if len(value) < _MIN_LENGTH or value == REDACTED or value in self._values or is_word:
                continue
            self._values[value] = secret_forms("credential", value)
            self._finder = make_finder({"credential": self._values})

    def text(self, text: str) -> str:
        kept = [text]
        _replace([(kept, 0)], self._credentials(text))
        text = _SHAPES.sub(REDACTED, kept[0])
        text = _BEARER.sub(rf"\1\2{REDACTED}", text)
        text = _USERINFO.sub(rf"\1{REDACTED}@", text)
        return _PARAMETER.sub(_redact_parameter, text)

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """Find credentials and keys in a text: start, end and replacement, in order and without overlap."""
        shapes = [(*place.span(), REDACTED) for place in _SHAPES.finditer(text)]
        return _merge_spans([*self._credentials(text), *shapes])

    def _credentials(self, text: str) -> list[tuple[int, int, str]]:
        """Find credentials of requests, and secrets of the runtimes of this process, in any form.

        A secret of a runtime gets the runtime's own marker, so that a replay shows the same text.
        """
        spans = [] if self._finder is None else self._finder.spans(text)
        found = [(span.start, span.end, REDACTED) for span in spans]
        for redactor in active_redactors():
            found += [(span.start, span.end, secret_marker(span.name)) for span in redactor.spans(text)]
        return _merge_spans(found)

    def bytes(self, data: bytes) -> bytes:
        """Redact binary data: each secret becomes as many asterisks."""
        data = data if self._finder is None else self._finder.mask(data)
        for redactor in active_redactors():
            data = redactor.bytes(data)
        return data

    def json(self, value: Any, name: str = "") -> Any:  # any JSON value
        """Redact a JSON value of a reply, the field `name` of its parent.

        The provider chose the names: they mark secrets only in arguments.
        """
        if name in _ARGUMENTS and isinstance(value, str | dict):
            return self.arguments(value)
        if isinstance(value, str):
            return self.text(value)
        if is_list(value):
            return [self.json(item) for item in value]
        if is_dict(value):
            return {self.text(name): self.json(item, name) for name, item in value.items()}
        return value

    def arguments(self, value: Any) -> Any:
        """Redact the arguments of a call, as JSON or as its text, and remember their secret fields."""
        for secret in _named_secrets(value):
            self._remember(secret, named=True)
        return self._clean(value, self.text)

    def request(self, value: Any) -> Any:
        """Redact a JSON value of a request, with its secret fields, and all unknown parameters of its URLs."""

        def plain(text: str) -> str:
            return self.text(_ADDRESS.sub(lambda address: _PARAMETER.sub(_redact_unknown, address[0]), text))

        return self._clean(value, plain)

    def _clean(self, value: Any, plain: Callable[[str], str], inside: str = "") -> Any:
        """Redact a JSON value and its secret fields; it is the field `inside` of its parent."""
        if isinstance(value, str):
            return self._clean_text(value, plain)
        if is_list(value):
            return [self._clean(item, plain) for item in value]
        if not is_dict(value):
            return value
        return {
            self.text(name): _blank(item) if is_secret else self._clean(item, plain, context)
            for name, item, is_secret, context in _fields(value, inside)
        }

    def _clean_text(self, text: str, plain: Callable[[str], str]) -> str:
        inner = parse_container(text)
        if inner is not None:  # arguments and results are often JSON in a string
            try:
                clean = self._clean(inner, plain)
            except RecursionError:
                return REDACTED  # too deep to search
            # Search the text as well: the parser keeps only one value of a repeated name.
            text = text if clean == inner else _format_like(clean, inner, text)
            return self.text(_NAMED_TEXT.sub(_redact_named, text))
        if text.lstrip().startswith(("{", "[")):  # JSON that is cut
            text = _NAMED_TEXT.sub(_redact_named, text)
        return plain(text)


def _merge_spans(found: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Sort spans and merge those that overlap; the first replacement counts."""
    apart: list[tuple[int, int, str]] = []
    for start, end, word in sorted(found):
        if apart and start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]), apart[-1][2])
        else:
            apart.append((start, end, word))
    return apart


def _format_like(clean: Any, inner: Any, text: str) -> str:
    """Write a JSON value in the format of `text`, the text of `inner`: a part of it may be redacted elsewhere."""
    return next((layout for layout in _LAYOUTS if layout.encode(inner) == text), _LAYOUTS[0]).encode(clean)


def _redact_named(found: re.Match[str]) -> str:
    before, name, said = found.groups()
    return f"{before}{REDACTED}" if said and is_secret_name(name) else found[0]


def _fields(fields: Mapping[str, Any], inside: str) -> Iterator[tuple[str, Any, bool, str]]:
    """Yield the fields of an object: name, value, True for a secret, and the context of the field's own fields.

    The object is the field `inside` of its parent. Inside a schema, a name has no meaning.
    """
    in_schema = inside in _SCHEMAS
    for name, item in fields.items():
        if in_schema and isinstance(item, dict):
            is_secret = False
        elif inside.lower() == "headers":
            is_secret = not REQUEST_HEADERS.fullmatch(name.lower())
        elif name.lower() == "value":  # a pair such as {"name": "Authorization", "value": "..."}
            called = fields.get("name", fields.get("key"))
            is_secret = isinstance(called, str) and is_secret_name(called)
        else:
            is_secret = is_secret_name(name)
        yield name, cast("Any", item), is_secret, "" if in_schema else name


def _blank(value: Any) -> Any:
    """Redact all values, and keep the shape."""
    if is_list(value):
        return [_blank(item) for item in value]
    if is_dict(value):
        return {name: _blank(item) for name, item in value.items()}
    return value if value is None or value == "" or isinstance(value, bool) else REDACTED


def _named_secrets(value: Any, inside: str = "", *, named: bool = False) -> Iterator[str]:
    """Yield the texts of secret fields; with `named`, the value belongs to one, and all its texts are secret."""
    if isinstance(value, str):
        yield from [value] if named else _named_secrets(parse_container(value))
    for item in as_list(value):
        yield from _named_secrets(item, named=named)
    for _, item, is_secret, context in _fields(as_dict(value), inside):
        yield from _named_secrets(item, context, named=named or is_secret)


def parse_container(text: str) -> dict[str, Any] | list[Any] | None:
    """Parse a JSON object or array; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if is_dict(found) or is_list(found) else None


def _redact_parameter(found: re.Match[str]) -> str:
    name = unquote(found[2])
    is_secret = name.lower() in _SECRET_PARAMETERS or name.lower().endswith("signature") or is_secret_name(name)
    return f"{found[1]}{found[2]}={REDACTED}" if is_secret else found[0]


def _redact_unknown(found: re.Match[str]) -> str:
    return found[0] if unquote(found[2]).lower() in _PUBLIC else f"{found[1]}{found[2]}={REDACTED}"


_LINE_END: Final = re.compile(r"(\r\n|\n|\r)")
_SPACE: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()
_INDEX_FIELDS: Final = ("index", "output_index", "content_index", "summary_index", "jsonPath")
"""Fields that tell the texts of a stream apart, besides the type of the frame."""
_ARGUMENT_FIELDS: Final = frozenset(("arguments", "input", "partial_json"))
_ARGUMENT_FRAMES: Final = re.compile(r".*(?:arguments|input)\.delta")


class _StringPlace(NamedTuple):
    """Position of a text: the same in all frames with pieces of it."""

    path: tuple[str | int, ...]
    numbers: tuple[tuple[str, Any], ...]
    kind: str
    """``arguments`` of a call, ``secret`` by its name, or empty."""


_Piece: TypeAlias = tuple[Any, str | int]
"""A text in a frame: the object or array that holds it, and its key there."""


def redact_stream(sse: str, secrets: RecordingRedactor) -> str:
    """Redact a stream of server-sent events, also secrets across frames. Other frames are unchanged."""
    lines = _LINE_END.split(sse)
    try:
        frames = list(_frames(lines))
        found: dict[_StringPlace, list[_Piece]] = {}
        for _, _, value in frames:
            for place, piece in _find_strings(value, (str(as_dict(value).get("type")),), ()):
                found.setdefault(place, []).append(piece)
        for place, pieces in found.items():
            whole = "".join([holder[key] for holder, key in pieces])
            if place.kind == "secret":
                _replace(pieces, [(0, len(whole), REDACTED)])
            elif place.kind == "arguments":
                calls = [(start, end, secrets.arguments(whole[start:end])) for start, end in _json_values(whole)]
                _replace(pieces, [(start, end, clean) for start, end, clean in calls if clean != whole[start:end]])
            _replace(pieces, secrets.spans("".join([holder[key] for holder, key in pieces])))
        for (first, *others), data, value in frames:
            clean = secrets.json(value)
            if clean != json.loads(data):
                lines[first] = f"data: {json.dumps(clean, separators=(',', ':'))}"
                for at in others:
                    lines[at - 1] = lines[at] = ""
    except RecursionError:
        pass  # too deep: redact it as plain text
    return secrets.text("".join(lines))


def _frames(lines: Sequence[str]) -> Iterator[tuple[list[int], str, Any]]:
    """Yield the events with JSON data: the lines of their data, the data, and its value.

    `lines` are lines and, between them, line ends.
    """
    held: list[int] = []
    for at in range(0, len(lines) + 1, 2):
        line = lines[at].removeprefix("\ufeff") if at < len(lines) else ""
        if line.startswith("data:"):
            held.append(at)
        elif not line and held:
            data = "\n".join(lines[each].removeprefix("\ufeff")[5:] for each in held)
            try:
                value = json.loads(data)
            except ValueError:
                value = None
            if is_dict(value) or is_list(value):
                yield held, data, value
            held = []


def _find_strings(
    value: Any,  # any JSON value
    path: tuple[str | int, ...],
    numbers: tuple[tuple[str, Any], ...],
) -> Iterator[tuple[_StringPlace, _Piece]]:
    holder: Any = value
    steps: list[tuple[str | int, str | int, str]] = []
    """Key, step in the path, and kind of each item."""
    if is_dict(value):
        names = _INDEX_FIELDS if "output_index" in value else (*_INDEX_FIELDS, "item_id")
        numbers += tuple((name, value[name]) for name in names if isinstance(value.get(name), int | str))
        steps += [(name, name, _kind(value, name)) for name in value]
    elif is_list(value):
        # An item with an index may be anywhere: the second call comes alone in its frame.
        steps += [(at, "*" if "index" in as_dict(item) else at, "") for at, item in enumerate(value)]
    for key, step, kind in steps:
        inner = (*path, step)
        if isinstance(holder[key], str):
            yield _StringPlace(inner, numbers, kind), (holder, key)
        else:
            yield from _find_strings(holder[key], inner, numbers)


def _kind(fields: dict[str, Any], name: str) -> str:
    if name in _ARGUMENT_FIELDS or (name == "delta" and _ARGUMENT_FRAMES.fullmatch(str(fields.get("type")))):
        return "arguments"
    called = fields.get("jsonPath")
    is_secret = name == "stringValue" and isinstance(called, str) and is_secret_name(called.rpartition(".")[2])
    return "secret" if is_secret else ""


def _json_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield the JSON values in a text: some servers do not number calls. The last one may be cut."""
    at = 0
    while at < len(text):
        try:
            _, end = _DECODER.raw_decode(text, at)
        except ValueError:
            end = len(text)
        yield at, end
        space = _SPACE.match(text, end)
        at = end if space is None else space.end()


def _replace(pieces: Sequence[_Piece], places: Sequence[tuple[int, int, str]]) -> None:
    """Replace spans of the whole text, each in the piece where it begins."""
    begin = 0
    for holder, key in pieces:
        text = holder[key]
        end = begin + len(text)
        kept = ""
        at = begin
        for start, stop, words in places:
            if stop > begin and start < end:
                kept += text[at - begin : max(start, begin) - begin] + (words if start >= begin else "")
                at = min(stop, end)
        holder[key] = kept + text[at - begin :]
        begin = end
