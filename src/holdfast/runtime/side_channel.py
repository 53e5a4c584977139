"""The side channel: live events from the process that drives a session to all processes that follow it.

`LiveSender` serves the live events of this process's drives on a socket of the store. `LiveReceiver` connects to all
listening processes, but only while this process has readers, and keeps a `MirroredEvents` for each drive. Journals
never contain them, and nothing depends on them: without the side channel, readers get all records.

Both sides first prove that they have the key of the store. Then the receiver sends `_Follow`, and the sender answers
with its buffered events, and with later ones as they come. Copies have the numbers of the original, so that cursors are
the same in every process. The sender encodes each batch once, writes to a receiver at most once in `FRAME` (and when a
drive begins), and never waits: a receiver with more than `MAX_UNSENT` unread bytes gets the rest when it has read them,
or a gap.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args

import msgspec

from holdfast import events
from holdfast.errors import PeerRefused, SocketsUnusable
from holdfast.eventloop import spawn
from holdfast.runtime.changes import ALL_JOURNALS, LiveEventBuffer, LiveItem, MirroredEvents

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from holdfast.runtime.changes import ChangeFeed
    from holdfast.store.sqlite.sockets import StoreSockets


_log: Final = logging.getLogger("holdfast.live")
FRAME: Final = 0.016
"""Least time between two writes to the receivers in seconds: events in between are sent together."""
MAX_RECEIVERS: Final = 256
"""Processes that one driving process serves."""
MAX_FOLLOWED: Final = 4_096
"""Sessions that a receiver names; with more it follows all."""
MAX_UNSENT: Final = 256 * 1024
"""Bytes under way to one receiver, from which on it gets no more until it has read them."""
MAX_BEHIND: Final = 1_024
"""Drives with unsent events for one receiver; with more it is disconnected."""
MAX_MESSAGE: Final = 16 * 1024 * 1024
"""Bytes of one message."""
MAX_PROOF: Final = 1_024
"""Bytes of one message before both sides have proved themselves."""
MAX_EVENT: Final = 8 * 1024 * 1024
"""Bytes of one event; a larger one is a gap for other processes."""
PAGE_BYTES: Final = 64 * 1024
"""Bytes of events from which on a message is complete."""
ANSWER_WAIT: Final = 0.25
"""Longest time for which readers wait for another process to send its events, in seconds."""
PROOF_WAIT: Final = 5.0
"""Longest time for both proofs, in seconds."""
RETRY: Final = 2.0
"""Pause before another attempt to connect to the same process, in seconds."""
LINGER: Final = 10.0
"""Time for which a session without readers is still followed, in seconds."""
_NONCE_BYTES: Final = 32
_LENGTH_BYTES: Final = 4


# ---- messages ----


class _Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The sender's challenge."""

    release: str
    nonce: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The receiver's proof and challenge."""

    nonce: bytes
    mac: bytes


class _Welcome(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The sender's proof."""

    mac: bytes


class _Follow(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """More sessions that the receiver wants, and those it does not want any more.

    The answers up to `_Followed` have what there is of them. `ALL_JOURNALS` wants all.
    """

    ticket: int
    more: list[str]
    less: list[str]


class _Followed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    ticket: int


class _Batch(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Events of one drive from number `first` on. All events before record `head` are in this batch or earlier ones."""

    session: str
    drive: str
    epoch: int
    base: int
    first: int
    head: int
    lost: int
    closed: bool
    items: list[msgspec.Raw]


_WireItem: TypeAlias = tuple[int, str, str, int, dict[str, Any]]
_encode: Final = msgspec.msgpack.Encoder().encode
_of_receiver: Final = msgspec.msgpack.Decoder(_Proof | _Follow)
_of_sender: Final = msgspec.msgpack.Decoder(_Hello | _Welcome | _Followed | _Batch)
_item: Final = msgspec.msgpack.Decoder(_WireItem)
_TAGS: Final[dict[type[events.LiveEvent], str]] = {
    kind: str(kind.__struct_config__.tag) for kind in get_args(events.LiveEvent)
}
_KINDS: Final = {tag: kind for kind, tag in _TAGS.items()}


@cache
def release_name() -> str:
    """Names the format of messages and events: processes of releases with another one can't read each other."""
    kinds = sorted((tag, *kind.__struct_fields__) for tag, kind in _KINDS.items())
    messages = [kind.__struct_fields__ for kind in (_Follow, _Followed, _Batch)]
    return hashlib.sha256(_encode((kinds, messages))).hexdigest()[:16]


def proof_of(key: bytes, side: bytes, name: str, sender: bytes, receiver: bytes) -> bytes:
    """The proof of one side for one connection to the socket `name`."""
    return hmac.digest(key, b"\0".join((side, name.encode(), sender + receiver)), "sha256")


def _frame(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class _Link(asyncio.Protocol):
    """One end of a connection: whole messages in, a limit on their size, a named reason when it is refused."""

    def __init__(self, sockets: StoreSockets) -> None:
        self.sockets = sockets
        self.proved = False
        """The other end has proved that it may open the store."""
        self.transport: asyncio.Transport
        self._received = bytearray()
        self._timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(PROOF_WAIT, self._too_late)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        begin = 0
        while len(received) >= begin + _LENGTH_BYTES and not self.transport.is_closing():
            size = int.from_bytes(received[begin : begin + _LENGTH_BYTES], "big")
            if size > (limit := MAX_MESSAGE if self.proved else MAX_PROOF):
                self.refuse(f"it sent a message of {size:,} bytes, more than {limit:,}")
                return
            end = begin + _LENGTH_BYTES + size
            if len(received) < end:
                break
            try:
                self._take(bytes(received[begin + _LENGTH_BYTES : end]))
            except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
                self.refuse(f"it sent a message that can't be read: {error}")
            begin = end
        del received[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._lost()

    def leave(self) -> None:
        """Disconnect without waiting for an end that does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def refuse(self, reason: str) -> None:
        error = PeerRefused(self.sockets.store, reason)
        _log.error("%s", error)
        self._refused(error)
        self.transport.abort()

    def prove(self) -> None:
        """The other end has proved itself."""
        self.proved = True
        self._timer.cancel()

    def _too_late(self) -> None:
        """Disconnect without a word in the log: a process may be stopped, or its event loop blocked."""
        self.transport.abort()

    def _take(self, body: bytes) -> None:
        raise NotImplementedError

    def _lost(self) -> None:
        raise NotImplementedError

    def _refused(self, error: PeerRefused) -> None:
        """The reason is known."""


# ---- the side of the driving process ----


class LiveSender:
    """Serves the live events of this process's drives; raises `SocketsUnusable` if it can't listen."""

    def __init__(self, feed: ChangeFeed, sockets: StoreSockets) -> None:
        self.feed = feed
        self.sockets = sockets
        self.links: set[ReceiverLink] = set()
        self.followers: dict[str, set[ReceiverLink]] = {}
        """The receivers that follow each session, or all (`ALL_JOURNALS`); empty as long as nobody else watches."""
        self._listener = sockets.listen()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.socket, self._accept)
        self._changed: dict[LiveEventBuffer, None] = {}
        self._sent = 0.0
        """Loop time of the last write."""
        self._later: asyncio.Handle | None = None
        self.closed = False

    @property
    def name(self) -> str:
        """The name of our socket."""
        return self._listener.name

    def mark(self, buffer: LiveEventBuffer, *, begins: bool = False) -> None:
        """Send the news of a drive soon, if a receiver follows its session. Without `followers` this needs no call.

        A drive that `begins` is announced at once, before its first record is durable: so receivers know that the
        record has live events before it.
        """
        if buffer.session in self.followers or ALL_JOURNALS in self.followers:
            self._changed[buffer] = None
            if begins and self._later is not None:
                self._later.cancel()
            if begins or self._later is None:
                due = self._loop.time() if begins else self._sent + FRAME
                self._later = self._loop.call_at(due, self.send)

    def send(self) -> None:
        """Send the news of all drives now."""
        self._later, self._sent = None, self._loop.time()
        changed, self._changed = self._changed, {}
        pages: dict[tuple[str, int], tuple[bytes, int]] = {}
        touched: dict[ReceiverLink, None] = {}
        for buffer in changed:
            for name in (buffer.session, ALL_JOURNALS):
                for link in self.followers.get(name, ()):
                    link.add(buffer, pages)
                    touched[link] = None
        for link in touched:
            link.send()

    def follow(self, link: ReceiverLink, sessions: Iterable[str]) -> list[LiveEventBuffer]:
        """Serve these sessions to a receiver, and no others; returns the drives of those that are new to it."""
        wanted, before = frozenset(sessions), link.sessions
        link.sessions = wanted
        for session in before - wanted:
            self.followers[session].discard(link)
            if not self.followers[session]:
                del self.followers[session]
        for session in wanted - before:
            self.followers.setdefault(session, set()).add(link)
        if ALL_JOURNALS in wanted - before:
            return list(self.feed.buffers.values())
        drives = [self.feed.newest_buffer(session) for session in wanted - before]
        return [drive for drive in drives if isinstance(drive, LiveEventBuffer)]

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:  # no descriptors are left
            _log.error("%s", SocketsUnusable(self.sockets.store, str(error), "raise the limit of open files"))
            self._loop.remove_reader(self._listener.socket)
            self._loop.call_later(RETRY, self._accept_again)
            return
        peer.setblocking(False)
        reason = None
        if not self.sockets.own_user(peer):
            reason = "it runs as another user"
        elif len(self.links) >= MAX_RECEIVERS:
            reason = f"{MAX_RECEIVERS} processes follow this one already"
        if reason is not None:
            _log.error("%s", PeerRefused(self.sockets.store, reason))
            peer.close()
            return
        spawn(self._serve(peer))

    async def _serve(self, peer: socket.socket) -> None:
        await self._loop.connect_accepted_socket(lambda: ReceiverLink(self), peer)

    def _accept_again(self) -> None:
        if not self.closed:
            self._loop.add_reader(self._listener.socket, self._accept)

    def close(self) -> None:
        """Stop listening, send pending messages, and disconnect."""
        self.closed = True
        self._loop.remove_reader(self._listener.socket)
        self.sockets.close(self._listener)
        if self._later is not None:
            self._later.cancel()
            self.send()
        for link in list(self.links):
            link.leave()


class ReceiverLink(_Link):
    """The connection to one receiver."""

    def __init__(self, sender: LiveSender) -> None:
        super().__init__(sender.sockets)
        self.sessions: frozenset[str] = frozenset()
        self._sender = sender
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._out: list[bytes] = []
        self._numbers: dict[LiveEventBuffer, int] = {}
        """The number of the last event that was sent, for each drive that goes on."""
        self._full = False
        """The receiver has to read before it gets more."""
        self._behind: dict[LiveEventBuffer, None] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._sender.links.add(self)
        if self._sender.closed:
            self.leave()
        self.transport.set_write_buffer_limits(high=MAX_UNSENT)
        self.transport.write(_frame(_Hello(release_name(), self._nonce)))

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        behind, self._behind = self._behind, {}
        for buffer in behind:
            self.add(buffer, {})
        self.send()

    def add(self, buffer: LiveEventBuffer, pages: dict[tuple[str, int], tuple[bytes, int]]) -> None:
        """Take the events of a drive that the receiver has not got; `pages` has messages that others got as well."""
        sent = self._numbers.get(buffer, 0)
        while not self._full:
            page = pages.get((buffer.id, sent))
            if page is None:
                page = pages[buffer.id, sent] = _page(buffer, sent)
            body, sent = page
            self._out.append(body)
            self._numbers[buffer] = sent
            if sent >= buffer.last:
                if buffer.closed:
                    del self._numbers[buffer]
                return
            self.send()
        self._behind[buffer] = None
        if len(self._behind) > MAX_BEHIND:
            self.transport.abort()

    def send(self) -> None:
        """Write the added messages."""
        if self._out and not self.transport.is_closing():
            self.transport.write(b"".join(self._out))
        self._out.clear()

    def _take(self, body: bytes) -> None:
        match _of_receiver.decode(body):
            case _Proof(nonce, mac) if not self.proved:
                key, name = self.sockets.key, self._sender.name
                if len(nonce) != _NONCE_BYTES or not hmac.compare_digest(
                    mac, proof_of(key, b"receiver", name, self._nonce, nonce)
                ):
                    self.refuse("it does not have the key of the store")
                    return
                self.prove()
                self.transport.write(_frame(_Welcome(proof_of(key, b"sender", name, self._nonce, nonce))))
            case _Follow(ticket, more, less) if self.proved and len(self.sessions) + len(more) <= 2 * MAX_FOLLOWED:
                drives = self._sender.follow(self, self.sessions.difference(less).union(more))
                if ALL_JOURNALS not in self.sessions:
                    self._numbers = {one: sent for one, sent in self._numbers.items() if one.session in self.sessions}
                for drive in drives:
                    self.add(drive, {})
                self._out.append(_frame(_Followed(ticket)))
                self.send()
            case _:
                self.refuse("it does not keep to the protocol")

    def _lost(self) -> None:
        self._sender.follow(self, ())
        self._sender.links.discard(self)


def _page(buffer: LiveEventBuffer, after: int) -> tuple[bytes, int]:
    """A message with the events of a drive after a number, and the number of its last event."""
    buffer.trim()
    first = max(after + 1, buffer.first)
    items: list[msgspec.Raw] = []
    size = 0
    for item in buffer.items(first - 1):
        body = _encode((item.at, _TAGS[item.kind], item.turn, item.seq, item.fields))
        if len(body) > MAX_EVENT:
            left_out = {"reason": f"an event of {len(body):,} bytes is too large for other processes"}
            body = _encode((item.at, _TAGS[events.Gap], item.turn, item.seq, left_out))
        size += len(body)
        if items and size > PAGE_BYTES:
            break
        items.append(msgspec.Raw(body))
    last = first + len(items) - 1
    whole = last >= buffer.last
    head = buffer.head if whole else buffer.base
    buffer.mark_read(last)
    closed = buffer.closed and whole
    batch = _Batch(buffer.session, buffer.id, buffer.epoch, buffer.base, first, head, buffer.lost, closed, items)
    return _frame(batch), last


# ---- the side of the readers ----


class LiveReceiver:
    """Follows the live events of other processes while this process has readers."""

    def __init__(self, feed: ChangeFeed, sockets: StoreSockets) -> None:
        self.feed = feed
        self.sockets = sockets
        self.wanted: frozenset[str] = frozenset()
        """The sessions to follow."""
        self.links: dict[str, SenderLink] = {}
        """The connections, by the names of the sockets."""
        self._refused: dict[str, float] = {}
        """Sockets to leave alone, until a loop time."""
        self._slow: set[str] = set()
        """Sockets of processes that took too long: no reader waits for them."""
        self._left: dict[str, float] = {}
        """Sessions that readers have left or are about to follow, and the loop time."""
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._unusable = ""
        self._closed = False

    async def refresh(self, joining: str | None = None) -> None:
        """Connect to all processes that drive the store, and follow the sessions that readers here follow.

        Returns when all have sent their buffered events, or after `ANSWER_WAIT`. `joining` is a session whose reader
        begins.
        """
        if joining is not None:
            self._left[joining] = self._loop.time()
        self._count_wanted()
        if not self.wanted or self._closed:
            return
        try:
            names = self.sockets.names()
        except SocketsUnusable as error:
            self._cannot(error)
            return
        if self.feed.sender is not None:
            names.discard(self.feed.sender.name)
        now = self._loop.time()
        self._refused = {name: until for name, until in self._refused.items() if name in names}
        self._slow &= names
        for name in names:
            if name not in self.links and self._refused.get(name, 0.0) <= now:
                link = self.links[name] = SenderLink(self, name)
                spawn(self._connect(link))
        for link in self.links.values():
            link.follow()
        waiting = [
            link.answered for link in self.links.values() if not link.answered.done() and link.name not in self._slow
        ]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=ANSWER_WAIT)
            self._slow.update(link.name for link in self.links.values() if link.answered in late)

    def answered(self, link: SenderLink) -> None:
        """A process has sent its buffered events of the wanted sessions."""
        self._slow.discard(link.name)

    def leave(self, session: str) -> None:
        """A session has no readers any more: follow it a little longer."""
        self._left[session] = self._loop.time()
        if self._later is None and not self._closed:
            self._later = self._loop.call_later(LINGER, self._forget)

    def _forget(self) -> None:
        self._later = None
        self._count_wanted()
        for link in list(self.links.values()):
            if self.wanted:
                link.follow()
            elif link.proved:
                del self.links[link.name]
                link.leave()
        if ALL_JOURNALS not in self.wanted:
            for session in self.feed.mirrors.keys() - self.wanted:
                del self.feed.mirrors[session]
        if self._left and self._later is None:
            self._later = self._loop.call_later(LINGER, self._forget)

    def _count_wanted(self) -> None:
        before = self._loop.time() - LINGER
        followed, local = self.feed.followed, self.feed.local
        self._left = {name: at for name, at in self._left.items() if at > before and name not in followed}
        wanted = {name for name in followed if name not in local or name in self.wanted}.union(self._left)
        if ALL_JOURNALS in wanted or len(wanted) > MAX_FOLLOWED:
            wanted = {ALL_JOURNALS}
        self.wanted = frozenset(wanted)

    async def _connect(self, link: SenderLink) -> None:
        try:
            peer = await self.sockets.connect(link.name)
        except SocketsUnusable as error:
            self._cannot(error)
            peer = None
        if peer is None or self._closed:
            self.lost(link, None)
            if peer is not None:
                peer.close()
            return
        if not self.sockets.own_user(peer):
            peer.close()
            error = PeerRefused(self.sockets.store, "it runs as another user")
            _log.error("%s", error)
            self.lost(link, error)
            return
        await self._loop.create_connection(lambda: link, sock=peer)

    def _cannot(self, error: SocketsUnusable) -> None:
        """Log why live events of other processes can't come, and notify the readers; once for each reason."""
        if self._unusable != str(error):
            self._unusable = str(error)
            _log.error("%s", error)
            self.feed.miss(None, "live events of other processes can't be received")

    def lost(self, link: SenderLink, error: PeerRefused | None) -> None:
        """A connection has ended."""
        link.end()
        if self.links.get(link.name) is not link:
            return
        del self.links[link.name]
        again = float("inf") if error is not None and link.forged else self._loop.time() + RETRY
        self._refused[link.name] = again
        if error is not None:
            self.feed.miss(None, "live events of another process could not be trusted or read")
        if self.wanted and not self._closed:
            self._loop.call_later(RETRY, lambda: spawn(self.refresh()))

    def mirror_of(self, batch: _Batch) -> MirroredEvents | None:
        """A new copy for the drive of a batch; None if a later drive of the session has begun meanwhile."""
        newest = self.feed.newest_buffer(batch.session)
        if newest is not None and newest.epoch > batch.epoch and not batch.closed:
            return None
        mirror = MirroredEvents(batch.session, batch.drive, batch.base, batch.epoch)
        self.feed.add_mirror(mirror)
        return mirror

    def close(self) -> None:
        """Disconnect."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        for link in list(self.links.values()):
            if link.connected:
                link.leave()


class SenderLink(_Link):
    """The connection to one driving process."""

    def __init__(self, receiver: LiveReceiver, name: str) -> None:
        super().__init__(receiver.sockets)
        self.name = name
        self.connected = False
        self.forged = False
        """The other end has not the key of the store."""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it has sent its buffered events of the wanted sessions."""
        self._receiver = receiver
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._expected = b""
        self._ticket = 0
        self._sessions: frozenset[str] = frozenset()
        self._mirrors: dict[str, MirroredEvents] = {}
        """The copies of its drives that go on."""
        self._error: PeerRefused | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.connected = True

    def data_received(self, data: bytes) -> None:
        self._woken: set[str] = set()
        super().data_received(data)
        for session in self._woken:
            self._receiver.feed.wake_live(session)

    def follow(self) -> None:
        """Ask for the wanted sessions, if that has changed."""
        wanted = self._receiver.wanted
        if not self.proved or wanted == self._sessions:
            return
        for drive, mirror in list(self._mirrors.items()):
            if ALL_JOURNALS not in wanted and mirror.session not in wanted:
                del self._mirrors[drive]
        if wanted - self._sessions and self.answered.done():
            self.answered = asyncio.get_running_loop().create_future()
        more, less = wanted - self._sessions, self._sessions - wanted
        self._sessions = wanted
        self._ticket += 1
        self.transport.write(_frame(_Follow(self._ticket, sorted(more), sorted(less))))

    def end(self) -> None:
        """No reader waits for it any more, and its drives are out of reach."""
        if not self.answered.done():
            self.answered.set_result(None)
        feed = self._receiver.feed
        for mirror in self._mirrors.values():
            if not mirror.closed:
                feed.miss(mirror.session, "the connection to the process that drives the session was lost")
                feed.close_mirror(mirror)
        self._mirrors.clear()

    def _take(self, body: bytes) -> None:
        match _of_sender.decode(body):
            case _Hello(release, nonce) if not self._expected:
                if release != release_name():
                    self.refuse("it is of another release of Holdfast: run the same in all processes of a store")
                    return
                key = self.sockets.key
                self._expected = proof_of(key, b"sender", self.name, nonce, self._nonce)
                mac = proof_of(key, b"receiver", self.name, nonce, self._nonce)
                self.transport.write(_frame(_Proof(self._nonce, mac)))
            case _Welcome(mac) if self._expected and not self.proved:
                if not hmac.compare_digest(mac, self._expected):
                    self.forged = True
                    self.refuse("it does not have the key of the store")
                    return
                self.prove()
                self.follow()
            case _Followed(ticket) if self.proved:
                if ticket == self._ticket and not self.answered.done():
                    self.answered.set_result(None)
                    self._receiver.answered(self)
            case _Batch() as batch if self.proved:
                self._add(batch)
            case _:
                self.refuse("it does not keep to the protocol")

    def _add(self, batch: _Batch) -> None:
        mirror = self._mirrors.get(batch.drive)
        if mirror is None:
            mirror = self._receiver.mirror_of(batch)
            if mirror is None:
                return
            self._mirrors[batch.drive] = mirror
        items = [
            LiveItem(at, _KINDS[kind], turn, seq, fields)
            for at, kind, turn, seq, fields in map(_item.decode, batch.items)
        ]
        mirror.extend(batch.first, items, batch.head, batch.lost)
        self._woken.add(batch.session)
        if batch.closed:
            del self._mirrors[batch.drive]
            self._receiver.feed.close_mirror(mirror)

    def _refused(self, error: PeerRefused) -> None:
        self._error = error

    def _lost(self) -> None:
        self._receiver.lost(self, self._error)


def open_side_channel(feed: ChangeFeed, *, drives: bool) -> None:
    """Let `feed` receive the live events of other processes and, if this one `drives`, send its own."""
    sockets = feed.store.sockets
    if sockets is None:
        return
    feed.receiver = LiveReceiver(feed, sockets)
    if drives:
        try:
            feed.sender = LiveSender(feed, sockets)
        except SocketsUnusable as error:
            _log.error("%s", error)
