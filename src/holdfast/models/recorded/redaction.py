"""What must not get into a recording, and how it is taken out. Pure.

Four things are taken out. What went out as a credential, wherever it comes back; what has the shape of a key; what
stands before the host of an address, and parameters of its query; and in requests and in arguments of calls, every
value whose *name* says that it is a secret, at any depth. Headers and parameters of a request are kept by a list of
harmless names, so one that nobody has thought of is not written.

Redaction comes to the same when it is done twice, and when a part of it was done before, so that a request can be
compared with one that was written before.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.secrets.forms import forms_of, known_of, marker
from holdfast.secrets.redactor import redactors_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.secrets.forms import Forms, Known


REDACTED: Final = "REDACTED"
REQUEST_HEADERS: Final = re.compile(r"content-type|accept|anthropic-version|anthropic-beta|openai-beta")
RESPONSE_HEADERS: Final = re.compile(
    r"content-type|date|retry-after.*|x-should-retry|.*ratelimit.*|openai-version|openai-processing-ms|x-amzn-errortype"
)
QUERY: Final = frozenset(("alt", "api-version", "beta", "stream", "include"))
"""Parameters of a request that are written."""
_PUBLIC: Final = QUERY | {"version", "v", "format", "lang", "hl", "page", "limit", "offset"}
"""Parameters that stay in addresses that a request speaks of."""
_SHORTEST: Final = 8
"""What is shorter would be found in the middle of words."""
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
"""Below these a name is that of a field, and what it has is a schema."""
_SHAPES: Final = re.compile(
    # Only where a word begins: the same letters in the middle of encrypted reasoning are none of our business.
    r"(?<![\w+/=*.-])(?:"
    r"(?:sk|pk|rk)-(?=[\w*-]*[\d*])[\w*-]{8,}"
    r"|(?:hf|gsk|xai|nvapi|pplx|csk|fw|tgp_v1)[_-](?=[\w*-]*[\d*])[\w*-]{16,}"
    r"|AIza[\w*-]{16,}|(?:AKIA|ASIA)[A-Z0-9*]{12,}|gh[a-z]_\w{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
    r")"
)
_ARGUMENTS: Final = frozenset(("arguments", "input", "args"))
"""What providers call the arguments of a call."""
_NAMED_TEXT: Final = re.compile(r'("((?:[^"\\]|\\.){1,80})"\s*:\s*")((?:[^"\\]|\\.)*\\?)')
"""A name and its text in JSON that may be cut anywhere."""
_LAYOUTS: Final = ((",", ":"), (", ", ": "))
_BEARER: Final = re.compile(r"\b(bearer|basic)( +)(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}", re.IGNORECASE)
# Inside of JSON a slash may be written as "\/", and an ampersand as "\u0026".
_USERINFO: Final = re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,30}:(?:\\?/){2})[^\s/\\?#@\"'<>]+@", re.IGNORECASE)
_PARAMETER: Final = re.compile(r"([?&;#]|\\u0026)([\w.~%-]{1,80})=([^&;#\s\"'<>\\)\]}]+)", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\bhttps?://[^\s\"'<>\\]+", re.IGNORECASE)


def names_secret(name: str) -> bool:
    """Whether a field of this name holds a secret, such as ``Authorization``, ``clientSecret`` or ``GITHUB_TOKEN``."""
    words = _WORD_START.sub("_", name).lower().replace("-", "_").replace(" ", "_")
    return _SECRET_NAME.fullmatch(words) is not None


class Secrets:
    """Takes out of anything that is to be written what must not be read."""

    def __init__(self) -> None:
        self._values: dict[str, Forms] = {}
        self._known: Known | None = None
        self._odd: set[str] = set()
        """Credentials that have no bytes, because they hold half a character."""

    @property
    def known(self) -> int:
        """How many credentials there are to look for; it grows with what is learnt."""
        return len(self._values) + len(self._odd)

    def learn(self, url: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Remember the credentials of a request, to find them where somebody repeats them."""
        place = urlsplit(url)
        sent = [value for name, value in headers.items() if _CREDENTIAL_HEADER.search(name)]
        sent += [value for name, value in parse_qsl(place.query) if name.lower() not in QUERY]
        sent += [unquote(value) for value in (place.username, place.password) if value]
        for value in sent:
            for part in _parts(value):
                self._remember(part)
        with suppress(RecursionError):  # what is that deep is not written at all
            for value in _named_secrets(parsed(body.decode("utf-8", "replace"))):
                self._remember_named(value)

    def _remember_named(self, value: str) -> None:
        # A name alone does not tell a password from a word that stands everywhere.
        for part in _parts(value):
            if any(letter.isdigit() for letter in part) or len(part) >= 3 * _SHORTEST:
                self._remember(part)

    def _remember(self, value: str) -> None:
        value = value.strip()
        if len(value) < _SHORTEST or value == REDACTED or value in self._values:
            return
        try:
            self._values[value] = forms_of("credential", value)
        except UnicodeEncodeError:
            self._odd |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        else:
            self._known = known_of({"credential": self._values})

    def text(self, text: str) -> str:
        """A text without secrets."""
        text = _put(text, self._credentials(text))
        text = _SHAPES.sub(REDACTED, text)
        text = _BEARER.sub(rf"\1\2{REDACTED}", text)
        text = _USERINFO.sub(rf"\1{REDACTED}@", text)
        return _PARAMETER.sub(_without_secret, text)

    def places(self, text: str) -> list[tuple[int, int, str]]:
        """Where credentials and keys stand in a text, in order and apart from each other, and what replaces each."""
        return _apart([*self._credentials(text), *((*place.span(), REDACTED) for place in _SHAPES.finditer(text))])

    def _credentials(self, text: str) -> list[tuple[int, int, str]]:
        """Where credentials of requests stand, and secrets of the runtimes of this process, in any of their forms.

        A secret of a runtime is replaced as the runtime does it, so that what is played back is what was said.
        """
        found = [(*place.span(), REDACTED) for value in self._odd for place in re.finditer(re.escape(value), text)]
        if self._known is not None:
            found += [(span.start, span.end, REDACTED) for span in self._known.spans(text)]
        for redactor in redactors_in_use():
            found += [(span.start, span.end, marker(span.name)) for span in redactor.spans(text)]
        return _apart(found)

    def bytes(self, data: bytes) -> bytes:
        """Bytes that are no text, without secrets: each becomes as many stars."""
        for value in self._odd:
            found = value.encode("utf-8", "surrogatepass")
            data = data.replace(found, b"*" * len(found))
        data = data if self._known is None else self._known.masked(data)
        for redactor in redactors_in_use():
            data = redactor.bytes(data)
        return data

    def json(self, value: Any) -> Any:  # noqa: ANN401  any JSON value
        """A JSON value of a reply, names included. Its fields are the provider's: only in arguments do names count."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {
                self.text(name): (
                    self.arguments(item) if name in _ARGUMENTS and isinstance(item, str | dict) else self.json(item)
                )
                for name, item in cast("dict[str, Any]", value).items()
            }
        return value

    def arguments(self, value: Any) -> Any:  # noqa: ANN401
        """The arguments of a call in a reply, as JSON or as its text. What names call a secret there is learnt, too."""
        for secret in _named_secrets(value):
            self._remember_named(secret)
        return self._clean(value, self.text)

    def request(self, value: Any) -> Any:  # noqa: ANN401
        """A JSON value of a request, without what its names call a secret."""
        return self._clean(value, lambda text: self.text(_ADDRESS.sub(_without_parameters, text)))

    def _clean(self, value: Any, plain: Callable[[str], str], inside: str = "") -> Any:  # noqa: ANN401
        """A JSON value without what its names call a secret; it is the field `inside` of another one."""
        if isinstance(value, str):
            return self._clean_text(value, plain)
        if isinstance(value, list):
            return [self._clean(item, plain) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {
                self.text(name): (
                    _blank(item) if _is_secret(fields, name, inside) else self._clean(item, plain, _below(name, inside))
                )
                for name, item in fields.items()
            }
        return value

    def _clean_text(self, text: str, plain: Callable[[str], str]) -> str:
        inner = parsed(text)
        if inner is not None:  # arguments of calls and results of tools are often JSON in a string
            try:
                clean = self._clean(inner, plain)
            except RecursionError:
                return REDACTED  # too deep to look through
            # The text is looked through even so: of a name that stands in it twice, reading it gave one value.
            text = text if clean == inner else _laid_out(clean, inner, text)
            return self.text(_NAMED_TEXT.sub(_without_named, text))
        if text.lstrip().startswith(("{", "[")):  # JSON that is cut
            text = _NAMED_TEXT.sub(_without_named, text)
        return plain(text)


def _apart(found: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Places in order; those that overlap are one, with the words of the first."""
    apart: list[tuple[int, int, str]] = []
    for start, end, word in sorted(found):
        if apart and start < apart[-1][1]:
            apart[-1] = (apart[-1][0], max(end, apart[-1][1]), apart[-1][2])
        else:
            apart.append((start, end, word))
    return apart


def _put(text: str, places: Sequence[tuple[int, int, str]]) -> str:
    """A text with other words in these places."""
    kept: list[str] = []
    at = 0
    for start, end, word in places:
        kept += (text[at:start], word)
        at = end
    return "".join((*kept, text[at:])) if places else text


def _parts(value: str) -> set[str]:
    """A credential, and what of it comes after the word that says of what kind it is."""
    return {value, value.partition(" ")[2]}


def _laid_out(clean: Any, inner: Any, text: str) -> str:  # noqa: ANN401
    """A JSON value as text, with spaces where the text of `inner` has them: a part of it may be redacted elsewhere."""
    for separators in _LAYOUTS:
        for escaped in (False, True):
            if json.dumps(inner, ensure_ascii=escaped, separators=separators) == text:
                return json.dumps(clean, ensure_ascii=escaped, separators=separators)
    return json.dumps(clean, ensure_ascii=False, separators=_LAYOUTS[0])


def _without_named(found: re.Match[str]) -> str:
    before, name, said = found.groups()
    return f"{before}{REDACTED}" if said and names_secret(name) else found[0]


def _below(name: str, inside: str) -> str:
    """What the fields of a field are inside of. One that is described by a schema has no meaning of its own."""
    return "" if inside in _SCHEMAS else name


def _is_secret(fields: Mapping[str, Any], name: str, inside: str) -> bool:
    """Whether the field `name` of an object holds a secret. The object is the field `inside` of another one."""
    item = fields[name]
    if inside in _SCHEMAS and isinstance(item, dict):
        return False
    if inside.lower() == "headers":
        return not REQUEST_HEADERS.fullmatch(name.lower())
    if name.lower() == "value":  # a pair such as {"name": "Authorization", "value": "..."}
        called = fields.get("name", fields.get("key"))
        return isinstance(called, str) and names_secret(called)
    return names_secret(name)


def _blank(value: Any) -> Any:  # noqa: ANN401
    """The same shape, without what it says."""
    if isinstance(value, list):
        return [_blank(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _blank(item) for name, item in cast("dict[str, Any]", value).items()}
    return value if value is None or value == "" or isinstance(value, bool) else REDACTED


def _named_secrets(value: Any, inside: str = "") -> Iterator[str]:  # noqa: ANN401
    """The strings that stand in fields whose names call them secrets."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _named_secrets(item)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name, item in fields.items():
            if _is_secret(fields, name, inside):
                yield from _strings(item)
            else:
                yield from _named_secrets(item, _below(name, inside))
    elif isinstance(value, str):
        inner = parsed(value)
        if inner is not None:
            yield from _named_secrets(inner)


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _strings(item)


def parsed(text: str) -> dict[str, Any] | list[Any] | None:
    """The object or the list that a text is, if it is one."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, (dict, list)) else None  # pyright: ignore[reportUnknownVariableType]


def _without_secret(found: re.Match[str]) -> str:
    """A parameter of an address, without its value if its name calls that a secret."""
    before, name, _ = found.groups()
    plain = unquote(name)
    if plain.lower() in _SECRET_PARAMETERS or plain.lower().endswith("signature") or names_secret(plain):
        return f"{before}{name}={REDACTED}"
    return found[0]


def _without_parameters(found: re.Match[str]) -> str:
    """An address in a request, without the values of parameters that nobody knows to be harmless."""
    return _PARAMETER.sub(
        lambda parameter: (
            parameter[0] if unquote(parameter[2]).lower() in _PUBLIC else f"{parameter[1]}{parameter[2]}={REDACTED}"
        ),
        found[0],
    )


_LINE_END: Final = re.compile(r"(\r\n|\n|\r)")
_SPACE: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()
_NUMBERS: Final = ("index", "output_index", "content_index", "summary_index", "jsonPath")
"""Fields that tell the texts of one stream apart; so does the type of a frame as a whole."""
_STREAMS_ARGUMENTS: Final = frozenset(("arguments", "input", "partial_json"))
_ARGUMENT_FRAMES: Final = re.compile(r".*(?:arguments|input)\.delta")


class _Frame(NamedTuple):
    """One event: the lines that hold its data, and what they say."""

    lines: list[int]
    data: str
    value: Any


class _Piece(NamedTuple):
    """A string in a frame."""

    holder: Any
    key: str | int

    @property
    def text(self) -> str:
        return self.holder[self.key]

    def put(self, text: str) -> None:
        self.holder[self.key] = text


class _Place(NamedTuple):
    """Where a string stands: the same in all frames that tell pieces of one text."""

    path: tuple[str | int, ...] = ()
    numbers: tuple[tuple[str, Any], ...] = ()
    kind: str = ""
    """Whether it is told as the argument of a call, or as one that is a secret by its name."""


def stream_without_secrets(sse: str, secrets: Secrets) -> str:
    """The text of a stream of server-sent events, without secrets; frames that hold none stay as they are."""
    lines = _LINE_END.split(sse)
    try:
        frames = list(_frames(lines))
        for place, pieces in _texts(frames).items():
            _clean(place, pieces, secrets)
        for frame in frames:
            clean = secrets.json(frame.value)
            if clean != json.loads(frame.data):
                _write(lines, frame, clean)
    except RecursionError:
        pass  # too deep to look through: as any other text
    return secrets.text("".join(lines))


def _frames(lines: Sequence[str]) -> Iterator[_Frame]:
    """The events whose data is JSON. `lines` has lines and, between them, their ends."""
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
            if isinstance(value, dict | list):
                yield _Frame(held, data, value)
            held = []


def _write(lines: list[str], frame: _Frame, value: Any) -> None:  # noqa: ANN401  any JSON value
    first, *others = frame.lines
    lines[first] = f"data: {json.dumps(value, separators=(',', ':'))}"
    for at in others:
        lines[at - 1] = lines[at] = ""


def _texts(frames: Sequence[_Frame]) -> dict[_Place, list[_Piece]]:
    """The strings of all frames, by where they stand."""
    found: dict[_Place, list[_Piece]] = {}
    for frame in frames:
        value = frame.value
        kind = str(cast("dict[str, Any]", value).get("type")) if isinstance(value, dict) else ""
        for place, piece in _streams_strings(cast("Any", value), _Place((kind,))):
            found.setdefault(place, []).append(piece)
    return found


def _streams_strings(value: Any, place: _Place) -> Iterator[tuple[_Place, _Piece]]:  # noqa: ANN401
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        numbers = place.numbers + _numbers(fields)
        for name, item in fields.items():
            inner = _Place((*place.path, name), numbers, _kind(fields, name))
            yield from _strings_below(fields, name, item, inner)
    elif isinstance(value, list):
        for at, item in enumerate(cast("list[Any]", value)):
            # One that says which it is may stand anywhere: the second call comes alone in its frame.
            step = "*" if isinstance(item, dict) and "index" in item else at
            yield from _strings_below(value, at, item, _Place((*place.path, step), place.numbers))


def _strings_below(holder: Any, key: str | int, item: Any, place: _Place) -> Iterator[tuple[_Place, _Piece]]:  # noqa: ANN401
    if isinstance(item, str):
        yield place, _Piece(holder, key)
    else:
        yield from _streams_strings(item, place)


def _numbers(fields: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    names = _NUMBERS if "output_index" in fields else (*_NUMBERS, "item_id")
    return tuple((name, fields[name]) for name in names if isinstance(fields.get(name), int | str))


def _kind(fields: dict[str, Any], name: str) -> str:
    if name in _STREAMS_ARGUMENTS:
        return "arguments"
    if name == "delta" and _ARGUMENT_FRAMES.fullmatch(str(fields.get("type"))):
        return "arguments"
    called = fields.get("jsonPath")
    if name == "stringValue" and isinstance(called, str) and names_secret(called.rpartition(".")[2]):
        return "secret"
    return ""


def _clean(place: _Place, pieces: Sequence[_Piece], secrets: Secrets) -> None:
    whole = "".join(piece.text for piece in pieces)
    if place.kind == "secret":
        _replace(pieces, [(0, len(whole), REDACTED)])
    elif place.kind == "arguments":
        calls = [(start, end, secrets.arguments(whole[start:end])) for start, end in _values(whole)]
        _replace(pieces, [(start, end, clean) for start, end, clean in calls if clean != whole[start:end]])
    whole = "".join(piece.text for piece in pieces)
    _replace(pieces, secrets.places(whole))


def _values(text: str) -> Iterator[tuple[int, int]]:
    """The JSON values in a text, one after the other: not everybody numbers the calls. The last one may be cut."""
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
    """Put other words into these places of the whole text, each into the piece where its place begins."""
    if not places:
        return
    begin = 0
    for piece in pieces:
        text = piece.text
        end = begin + len(text)
        kept: list[str] = []
        at = begin
        for start, stop, words in places:
            if stop <= begin or start >= end:
                continue
            kept.append(text[at - begin : max(start, begin) - begin])
            if start >= begin:
                kept.append(words)
            at = min(stop, end)
        kept.append(text[at - begin :])
        piece.put("".join(kept))
        begin = end
