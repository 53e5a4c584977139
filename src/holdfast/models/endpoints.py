"""Known endpoints: their addresses, key variables and deviations.

Nothing is guessed: an endpoint that deviates from its dialect has a flag, which `Dialect.flags` documents. This module
never reads keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import InvalidArgument, ModelUnknown
from holdfast.models.dialect import Endpoint

DIALECTS: Final = ("anthropic", "responses", "chat", "google")
_OWN_AUTH: Final = {"anthropic": "x-api-key", "google": "x-goog-api-key"}
"""Auth scheme of a user's own endpoint, if it has a key: that of the dialect, otherwise a bearer token."""
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CREDENTIALS: Final = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})
_FRAMING: Final = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding"}
)
_VERSION: Final = re.compile(r"20\d\d-\d\d-\d\d(?:-preview)?|preview|latest|v1")


class KnownEndpoint(Endpoint, frozen=True, kw_only=True):
    """An endpoint, and the environment variables of its address."""

    variables: tuple[str, ...] = ()
    """Environment variables with another address, or the parts of one."""
    default_path: str = ""
    """Path for an address from a variable that has none."""


def resolve_endpoint(
    name: str,
    *,
    base_url: str | None = None,
    dialect: str | None = None,
    headers: Mapping[str, str] | None = None,
    flags: Iterable[str] | None = None,
    query: Mapping[str, str] | None = None,
    api_version: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Endpoint:
    """Return the endpoint of a name, with the given fields in place of the known ones.

    An unknown name with a `base_url` is the user's own endpoint, in the chat dialect unless `dialect` is set. The
    address is `base_url`, else that of the endpoint's variables, else the known one. Flags belong to a dialect: with
    another `dialect` the known flags are dropped. `api_version` is for Azure: a date selects the older API of that
    version, which names the deployment in the path.
    """
    if dialect is not None and dialect not in DIALECTS:
        raise InvalidArgument("dialect", dialect, f"one of {', '.join(DIALECTS)}")
    known = ENDPOINTS.get(name)
    if known is None:
        if base_url is None or not name:
            raise ModelUnknown(name, tuple(sorted(ENDPOINTS)))
        own = dialect or "chat"
        known = KnownEndpoint(provider=name, dialect=own, base_url="", auth=_OWN_AUTH.get(own, "none"))
    if api_version is not None:
        known = _with_api_version(known, api_version)
    if dialect is not None and dialect != known.dialect:
        known = msgspec.structs.replace(known, dialect=dialect, flags=frozenset())
    return msgspec.structs.replace(
        known,
        base_url=_address(known, base_url, os.environ if environ is None else environ),
        headers={} if headers is None else check_headers(headers),
        flags=known.flags if flags is None else frozenset(flags),
        query=known.query if query is None else {**known.query, **_check_query(query)},
    )


def _address(known: KnownEndpoint, given: str | None, environ: Mapping[str, str]) -> str:
    if given is not None:
        address = _check_url(given)
        if known.provider not in _AZURE_NAMES:
            return address
        # The portal shows addresses without a path, and the newer API has another path than dated versions.
        bare = address.removesuffix(_AZURE_PATH) if known.default_path != _AZURE_PATH else address
        return bare if urlsplit(bare).path else bare + known.default_path
    if known.variables == _VERTEX:
        return _vertex_url(environ)
    for variable in known.variables:
        value = environ.get(variable, "").strip()
        if value:
            address = _check_url(value if "://" in value else f"http://{value}")
            return address if urlsplit(address).path else address + known.default_path
    if not known.base_url:
        wanted = f"an address (base_url, or one of {', '.join(known.variables)})"
        raise InvalidArgument(f"the base_url of {known.provider}", given, wanted)
    return known.base_url


def _check_url(address: str) -> str:
    """Check an address, and drop the slash at its end."""
    wanted = "an address such as 'https://host/v1', without a query or a password"
    try:
        split = urlsplit(address)
        usable = split.scheme in {"http", "https"} and split.hostname and split.port != 0
    except (ValueError, AttributeError, TypeError):
        raise InvalidArgument("base_url", address, wanted) from None
    unwanted = split.query or split.fragment or split.username or split.password or address.split() != [address]
    if not usable or unwanted:
        # A login in an address is a secret, so the address is not shown.
        raise InvalidArgument("base_url", "***" if split.password or split.username else address, wanted)
    return address.rstrip("/")


def _with_api_version(known: KnownEndpoint, version: object) -> KnownEndpoint:
    if known.provider not in _AZURE_NAMES:
        wanted = f"left out: it is for {', '.join(_AZURE_NAMES)}; query takes any parameter"
        raise InvalidArgument("api_version", version, wanted)
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        wanted = "a date such as '2024-10-21', perhaps with '-preview', or 'preview'"
        raise InvalidArgument("api_version", version, wanted)
    dated = version[0].isdigit()
    if not dated and "deployment_path" in known.flags:
        raise InvalidArgument("api_version", version, "a date: the deployments have no other versions")
    flags = known.flags | {"deployment_path"} if dated and known.dialect == "chat" else known.flags
    path = "/openai" if dated else _AZURE_PATH
    return msgspec.structs.replace(known, flags=flags, query={"api-version": version}, default_path=path)


def _check_query(query: object) -> dict[str, str]:
    """Check query parameters. Errors do not show values, which may be secrets."""
    wanted = "a mapping of names to texts"
    if not isinstance(query, Mapping):
        raise InvalidArgument("query", type(query), wanted)
    given = dict(cast("Mapping[object, object]", query))
    for name, value in given.items():
        if not isinstance(name, str) or not name or not isinstance(value, str):
            raise InvalidArgument("the query", name, wanted)
    return cast("dict[str, str]", given)


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Check headers, and return them by lower-case names. Errors do not show values, which may be secrets."""
    checked: dict[str, str] = {}
    try:
        items = list(headers.items())
    except (AttributeError, TypeError):
        raise InvalidArgument("headers", type(headers), "a mapping of names to values") from None
    for name, value in items:
        if not isinstance(name, str) or not _HEADER.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgument("the header", name, "a name of letters, digits and dashes")
        lower = name.lower()
        if lower in _CREDENTIALS:
            raise InvalidArgument("the header", name, "a header other than the one of the key, which is api_key,")
        if lower in _FRAMING:
            raise InvalidArgument("the header", name, "a header that the connection does not set itself")
        text = isinstance(value, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not text or not value.isascii() or not value.isprintable():
            raise InvalidArgument(f"the header {name}", "***", "one line of plain characters")
        checked[lower] = value
    return checked


def _read_endpoint(line: str) -> KnownEndpoint:
    name, url, *words = line.split()
    bare = [word for word in words if "=" not in word]
    fields = dict(word.split("=") for word in words if "=" in word)
    return KnownEndpoint(
        provider=name,
        dialect=fields.get("dialect", "chat"),
        base_url="" if url == "-" else url,
        keys=tuple(filter(str.isupper, bare)),
        auth=fields.get("auth", "bearer"),
        flags=frozenset(filter(str.islower, bare)),
        query={"api-version": fields["version"]} if "version" in fields else {},
        variables=tuple(fields["address"].split(",")) if "address" in fields else (),
        default_path=fields.get("path", ""),
    )


def _vertex_url(environ: Mapping[str, str]) -> str:
    project, location = (environ.get(variable, "").strip() for variable in _VERTEX)
    # The patterns exclude any text that could lead to another host.
    patterns = (r"[a-z0-9][a-z0-9.:-]*", "[a-z0-9-]+")
    for variable, value, allowed in zip(_VERTEX, (project, location), patterns, strict=True):
        if not re.fullmatch(allowed, value):
            wanted = "a name of small letters, digits and dashes (or give base_url)"
            raise InvalidArgument(f"the environment variable {variable}", value or None, wanted)
    host = _VERTEX_HOSTS.get(location, f"{location}-aiplatform.googleapis.com")
    return f"https://{host}/v1/projects/{project}/locations/{location}/publishers/google"


_AZURE_NAMES: Final = ("azure", "azure-responses", "azure-deployments")
_AZURE_PATH: Final = "/openai/v1"
_VERTEX_HOSTS: Final = {
    "global": "aiplatform.googleapis.com",
    "us": "aiplatform.us.rep.googleapis.com",
    "eu": "aiplatform.eu.rep.googleapis.com",
}
"""Locations that are no region."""
_VERTEX: Final = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
_TABLE: Final = """
anthropic    https://api.anthropic.com                 ANTHROPIC_API_KEY   dialect=anthropic auth=x-api-key
    address=ANTHROPIC_BASE_URL
openai       https://api.openai.com/v1                 OPENAI_API_KEY      dialect=responses address=OPENAI_BASE_URL
google       https://generativelanguage.googleapis.com GEMINI_API_KEY GOOGLE_API_KEY  dialect=google auth=x-goog-api-key
vertex       -                                         GOOGLE_OAUTH_ACCESS_TOKEN  dialect=google whole_url
    address=GOOGLE_CLOUD_PROJECT,GOOGLE_CLOUD_LOCATION
xai          https://api.x.ai/v1                       XAI_API_KEY         dialect=responses
azure-responses  -  AZURE_OPENAI_API_KEY  auth=api-key address=AZURE_OPENAI_ENDPOINT path=/openai/v1 dialect=responses
openai-chat  https://api.openai.com/v1                 OPENAI_API_KEY      strict_tools refusal_field call_ids_40
    address=OPENAI_BASE_URL
azure        -  AZURE_OPENAI_API_KEY  auth=api-key address=AZURE_OPENAI_ENDPOINT path=/openai/v1
    strict_tools refusal_field call_ids_40
azure-deployments  -  AZURE_OPENAI_API_KEY  auth=api-key address=AZURE_OPENAI_ENDPOINT path=/openai version=2024-10-21
    strict_tools refusal_field call_ids_40 deployment_path
google-chat  https://generativelanguage.googleapis.com/v1beta/openai  GEMINI_API_KEY GOOGLE_API_KEY  max_tokens
xai-chat     https://api.x.ai/v1                       XAI_API_KEY
groq         https://api.groq.com/openai/v1            GROQ_API_KEY        schema_in_words
mistral      https://api.mistral.ai/v1                 MISTRAL_API_KEY     no_stream_usage max_tokens random_seed
    no_effort call_ids_9 assistant_after_tools document_url send_thinking_parts
openrouter   https://openrouter.ai/api/v1              OPENROUTER_API_KEY  max_tokens effort_object cache_control
    send_reasoning_details send_reasoning
deepseek     https://api.deepseek.com                  DEEPSEEK_API_KEY    max_tokens json_object thinking_switch
    send_reasoning_content empty_reasoning_content
cerebras     https://api.cerebras.ai/v1                CEREBRAS_API_KEY    send_reasoning
together     https://api.together.xyz/v1               TOGETHER_API_KEY    max_tokens
fireworks    https://api.fireworks.ai/inference/v1     FIREWORKS_API_KEY   max_tokens send_reasoning_content
huggingface  https://router.huggingface.co/v1          HF_TOKEN            max_tokens
zai          https://api.z.ai/api/paas/v4              ZAI_API_KEY Z_AI_API_KEY  max_tokens json_object thinking_switch
    no_effort send_reasoning_content
zai-coding   https://api.z.ai/api/coding/paas/v4       ZAI_API_KEY Z_AI_API_KEY  max_tokens json_object thinking_switch
    no_effort send_reasoning_content
moonshot     https://api.moonshot.ai/v1                MOONSHOT_API_KEY    max_tokens json_object thinking_switch
    no_effort send_reasoning_content blank_reasoning_content
perplexity   https://api.perplexity.ai     PERPLEXITY_API_KEY PPLX_API_KEY max_tokens no_stream_usage alternate
nvidia       https://integrate.api.nvidia.com/v1       NVIDIA_API_KEY      max_tokens
deepinfra    https://api.deepinfra.com/v1/openai       DEEPINFRA_API_KEY   max_tokens
sambanova    https://api.sambanova.ai/v1               SAMBANOVA_API_KEY   max_tokens
novita       https://api.novita.ai/v3/openai           NOVITA_API_KEY      max_tokens
minimax      https://api.minimax.io/v1                 MINIMAX_API_KEY     max_tokens schema_in_words
    send_reasoning_details
cohere       https://api.cohere.ai/compatibility/v1    COHERE_API_KEY CO_API_KEY  max_tokens
qwen         https://dashscope-intl.aliyuncs.com/compatible-mode/v1  DASHSCOPE_API_KEY  max_tokens json_object no_effort
ollama       http://localhost:11434/v1   OLLAMA_API_KEY    auth=none address=OLLAMA_HOST path=/v1
    max_tokens send_reasoning
vllm         http://localhost:8000/v1    VLLM_API_KEY      auth=none address=VLLM_BASE_URL path=/v1 send_reasoning
sglang       http://localhost:30000/v1   SGLANG_API_KEY    auth=none address=SGLANG_BASE_URL path=/v1
    send_reasoning_content
lmstudio     http://localhost:1234/v1    LMSTUDIO_API_KEY  auth=none address=LMSTUDIO_BASE_URL path=/v1 max_tokens
llamacpp     http://localhost:8080/v1    LLAMA_API_KEY     auth=none address=LLAMACPP_BASE_URL path=/v1
    max_tokens send_reasoning_content
"""
"""All known endpoints: name, address (``-`` for none), KEY_VARIABLES, flags and other fields. The dialect is ``chat``
unless another one is named, `address` names the variables of the address, `path` is the default path, `version` the
API version. An indented line continues the one before.
"""
ENDPOINTS: Final[Mapping[str, KnownEndpoint]] = {
    known.provider: known for known in map(_read_endpoint, _TABLE.replace("\n    ", " ").strip().splitlines())
}
"""All known endpoints, by name."""
