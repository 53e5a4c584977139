"""Secrets stay out of the log, out of records, and out of the causes of errors."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from holdfast import records
from holdfast.errors.caller import SecretExposed
from holdfast.errors.world import HiddenError
from holdfast.records import Admitted, Done, EffectRequest, Ended, ErrorInfo, Failed, Intended, Progressed, Started
from holdfast.secrets.logs import LOGGERS, RedactingFilter, redact_logs, safe_cause
from holdfast.secrets.redactor import Redactor, redact_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.records import Record

KEY = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
SOURCE = Path(records.__file__).parent


@pytest.fixture
def redactor() -> Redactor:
    found = Redactor()
    found.register("KEY", KEY)
    return found


def fail(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


# ---- the log ----


class Log:
    """A handler of the host on the root logger, and what it wrote."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
        self.lines: list[logging.LogRecord] = []
        self.handler.addFilter(lambda line: self.lines.append(line) or True)

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
def log(redactor: Redactor) -> Iterator[Log]:
    found, root = Log(), logging.getLogger()
    root.addHandler(found.handler)
    with redact_logs(redactor):
        yield found
    root.removeHandler(found.handler)


def test_a_message_is_logged_without_the_secret(log: Log) -> None:
    logging.getLogger("holdfast.tools").warning("the key is %s, %d times", KEY, 2)
    assert log.text == "holdfast.tools the key is [secret KEY], 2 times\n"


def test_a_message_without_secrets_keeps_its_arguments(log: Log) -> None:
    logging.getLogger("holdfast.tools").warning("%d of %s", 2, "three")
    assert log.lines[0].args == (2, "three")


def test_an_error_is_logged_without_the_secret(log: Log) -> None:
    try:
        fail(ValueError(f"no such key: {KEY}"))
    except ValueError:
        logging.getLogger("holdfast.engine").exception("it failed")
    assert "ValueError: no such key: [secret KEY]" in log.text
    assert log.lines[0].exc_info is None


def test_an_error_without_secrets_reaches_the_handlers_as_it_is(log: Log) -> None:
    try:
        fail(ValueError("no such key"))
    except ValueError:
        logging.getLogger("holdfast.engine").exception("it failed")
    assert log.lines[0].exc_info is not None


def test_the_cause_of_an_error_is_logged_without_the_secret(log: Log) -> None:
    try:
        fail(RuntimeError("it failed"), KeyError(KEY))
    except RuntimeError:
        logging.getLogger("holdfast.engine").exception("it failed")
    assert KEY not in log.text


def test_an_extra_field_is_logged_without_the_secret(log: Log) -> None:
    logging.getLogger("holdfast.on").warning("hello", extra={"headers": {"authorization": f"Bearer {KEY}"}})
    assert vars(log.lines[0])["headers"] == {"authorization": "Bearer [secret KEY]"}


@pytest.mark.parametrize("given", [(KEY,), {"key": KEY}], ids=["by place", "by name"])
def test_arguments_that_do_not_fit_the_message_are_without_the_secret(redactor: Redactor, given: Any) -> None:
    line = logging.makeLogRecord({"msg": f"%d %d {KEY}", "args": given})
    assert RedactingFilter(redactor).filter(line)
    assert KEY not in f"{line.msg} {line.args}"


def test_a_message_that_can_not_be_read_breaks_nothing(log: Log) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError(KEY)

    logging.getLogger("holdfast.tools").warning(Broken())
    assert "left out" in log.text


def test_a_lost_error_of_the_event_loop_is_logged_without_the_secret(log: Log) -> None:
    logging.getLogger("asyncio").error("Task exception was never retrieved: %r", ValueError(KEY))
    assert KEY not in log.text


def test_the_log_is_as_it_was_afterwards(redactor: Redactor) -> None:
    before = {name: list(logging.getLogger(name).filters) for name in LOGGERS}
    with redact_logs(redactor):
        pass
    assert {name: list(logging.getLogger(name).filters) for name in LOGGERS} == before


def test_two_runtimes_hide_what_each_of_them_knows(log: Log) -> None:
    other = Redactor()
    other.register("OTHER", "another-secret")
    with redact_logs(other):
        logging.getLogger("holdfast").warning("%s another-secret", KEY)
    assert log.text == "holdfast [secret KEY] [secret OTHER]\n"


def test_a_host_may_put_the_filter_on_a_handler_of_its_own(redactor: Redactor) -> None:
    log, logger = Log(), logging.getLogger("app.of.the.host")
    log.handler.addFilter(RedactingFilter(redactor))
    logger.addHandler(log.handler)
    logger.warning("the key is %s", KEY)
    logger.removeHandler(log.handler)
    assert KEY not in log.text


def test_every_logger_of_the_package_is_known() -> None:
    said = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    named = {name for text in said for name in re.findall(r"getLogger\(\"([^\"]+)\"", text)}
    assert named <= set(LOGGERS), "name it in holdfast/secrets/logs.py"


# ---- records ----

ASK = EffectRequest("step", "charge", "0" * 64, msgspec.Raw(msgspec.json.encode([KEY, 1])))
LEAKS: list[Record] = [
    Done(at=1, key="r/charge", ask=ASK, value=msgspec.Raw(msgspec.json.encode({"said": KEY}))),
    Failed(
        at=1, key="r/charge", error=ErrorInfo("ValueError", f"bad {KEY}"), detail=msgspec.Raw(f'["{KEY}"]'.encode())
    ),
    Intended(at=1, key="r/charge", ask=ASK),
    Ended(at=1, run="r", status="failed", error=ErrorInfo(f"E{KEY}", KEY), value=msgspec.Raw(f'"{KEY}"'.encode())),
    Progressed(at=1, run="r", note=f"using {KEY}"),
    Admitted(at=1, input=1, key="k", body=msgspec.Raw(msgspec.json.encode({"parts": [KEY]}))),
]


@pytest.mark.parametrize("record", LEAKS, ids=lambda record: type(record).__name__)
def test_a_record_is_written_without_the_secret(redactor: Redactor, record: Record) -> None:
    clean, body = redact_record(record, records.encode(record), redactor)
    assert KEY.encode() not in body
    assert records.decode(body) == clean


@pytest.mark.parametrize("record", LEAKS, ids=lambda record: type(record).__name__)
def test_what_is_around_a_secret_in_a_record_stays(redactor: Redactor, record: Record) -> None:
    _, body = redact_record(record, records.encode(record), redactor)
    assert body.replace(b"[secret KEY]", KEY.encode()) == records.encode(record)


def test_a_record_without_secrets_is_the_same_object(redactor: Redactor) -> None:
    record = Done(at=1, key="r/step", value=msgspec.Raw(b'"fine"'))
    body = records.encode(record)
    clean, written = redact_record(record, body, redactor)
    assert clean is record
    assert written is body


@pytest.mark.parametrize(
    "record",
    [Done(at=1, key=f"r/{KEY}", value=msgspec.Raw(b"1")), Started(at=1, run=KEY), Started(at=1, run="r", code=KEY)],
    ids=["key", "run", "code"],
)
def test_a_record_with_a_secret_in_a_name_is_refused(redactor: Redactor, record: Record) -> None:
    with pytest.raises(SecretExposed) as caught:
        redact_record(record, records.encode(record), redactor)
    assert caught.value.name == "KEY"


def test_the_numbers_of_a_record_are_no_secrets() -> None:
    redactor = Redactor()
    redactor.register("PIN", "1712345678901")
    record = Done(at=1712345678901, key="r/step", value=msgspec.Raw(b'"1712345678901"'))
    clean, body = redact_record(record, records.encode(record), redactor)
    assert clean.at == 1712345678901
    assert b'"[secret PIN]"' in body


# ---- errors ----


def test_an_error_that_tells_a_secret_is_replaced(redactor: Redactor) -> None:
    hidden = safe_cause(ValueError(f"bad {KEY}"), redactor)
    assert isinstance(hidden, HiddenError)
    assert str(hidden) == "ValueError: bad [secret KEY]"


def test_an_error_whose_cause_tells_a_secret_is_replaced(redactor: Redactor) -> None:
    error = RuntimeError("it failed")
    error.__cause__ = KeyError(KEY)
    assert isinstance(safe_cause(error, redactor), HiddenError)


def test_an_error_in_a_group_that_tells_a_secret_is_replaced(redactor: Redactor) -> None:
    group = ExceptionGroup("two", [ValueError("fine"), ValueError(KEY)])
    assert isinstance(safe_cause(group, redactor), HiddenError)


def test_an_error_with_a_note_that_tells_a_secret_is_replaced(redactor: Redactor) -> None:
    error = ValueError("fine")
    error.add_note(f"used {KEY}")
    assert isinstance(safe_cause(error, redactor), HiddenError)


def test_an_error_without_secrets_stays_the_same(redactor: Redactor) -> None:
    error = ValueError("fine")
    assert safe_cause(error, redactor) is error
