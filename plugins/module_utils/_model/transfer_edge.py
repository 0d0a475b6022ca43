# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that fetches files over several connections, resumes, and waits out what passes."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import threading
import time
import typing as t

from .._core.errors import KproError
from .._core.shown_text import one_line
from . import manifest as manifests
from . import store_edge as store
from . import transfer_plan as plan
from .hub_edge import LINK_ERRORS, Closed, Crawling, Interrupted, NotThere, cut_off, declared_bytes, interrupted_by, read_block
from .hub_protocol import RemoteFile
from .partial_file_edge import PartialFile
from .transfer_pace import SHORT_STRETCH_BYTES, ConnectionLimit, SourceChoice
from .transfer_plan import MIB, Piece

BUFFER_BYTES = 1 << 18
# A kill or a power cut may lose this much, over all connections, with a margin below the promised 64 MiB.
UNSYNCED_BYTES = 40 * MIB
CRAWL_BYTES_PER_S = 4096
CRAWL_S = 30.0
# A buffer is written when it is full or this old. A single read takes no longer than the silence that a connection may have,
# unless a server sends the frame of a chunk, byte by byte, for ever: such a connection is ended from outside.
GATHER_S = 0.25
STUCK_S = 180.0
WRONG_ANSWERS = 6
WRONG_CONTENTS = 3
MOST_RESTARTS = 20
MOST_SCANT_TRIES = 4


class Answer(t.Protocol):
    """An HTTP answer whose body is read into a buffer."""

    status: int
    headers: t.Any

    def readinto(self, buffer: memoryview, /) -> int: ...

    def close(self) -> None: ...


# Opens one way to the bytes of a file: from ``start`` to ``end`` (None: whole, no range asked).
Opener = t.Callable[[RemoteFile, int, "int | None"], Answer]


@dataclasses.dataclass(frozen=True)
class TransferSettings:
    """Retry limits; ``patience_s``: longest time without a byte, or with hardly one."""

    connections: int = 8
    patience_s: float = 900.0
    stretch_bytes: int = plan.STRETCH_BYTES


class Transfer:
    """Fetches files into the partial files of a snapshot; each whole and right one is handed to ``finish``.

    :param ways: name and opener of each place that has the files, in order of preference.
    """

    def __init__(self, snapshot: store.Snapshot, ways: t.Sequence[tuple[str, Opener]], settings: TransferSettings) -> None:
        self._snapshot = snapshot
        self._openers = [opener for _name, opener in ways]
        self._settings = settings
        # Sources, limit and counters are changed by the holder of this condition only.
        self.ways = SourceChoice([name for name, _opener in ways], settings.patience_s)
        self._limit = ConnectionLimit(settings.connections)
        self._open = 0
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._pending: list[PartialFile] = []
        self._finishing: set[PartialFile] = set()
        self._wrong: dict[str, int] = {}
        self._contents: dict[str, int] = {}
        self._restarts: dict[str, int] = {}
        # Tries of a way for a file that broke off after a few bytes.
        self._scant: dict[tuple[int, str], int] = {}
        self._cuts: list[int] = []
        # When bytes last came, and when enough of them came to hope for the rest; what came since the latter was looked at.
        self._last_byte = self._last_flow = self._looked = time.monotonic()
        self._looked_bytes = 0
        self._window_s = min(CRAWL_S, settings.patience_s / 3)
        # Since when a thread waits in a read, and for what.
        self._reads: dict[int, tuple[float, Answer]] = {}
        self.received_bytes = 0
        self.resumed_bytes = 0
        self.note = ""
        # Notes for a person that do not stop the work.
        self.events: list[str] = []

    def run(self, files: t.Sequence[RemoteFile], finish: t.Callable[[RemoteFile, str], None], report: t.Callable[[], None]) -> None:
        """Fetch all files; ``report`` is called about twice a second from this thread.

        :raises KproError: if the hub refuses, the disk fails, a content stays wrong, or no byte comes for too long.
        """
        sync_bytes = max(MIB, UNSYNCED_BYTES // self._settings.connections)
        stretch_bytes = plan.first_stretch(sum(file.size_bytes for file in files), self._settings.connections, self._settings.stretch_bytes)
        self._pending = [PartialFile(self._snapshot, file, sync_bytes, stretch_bytes) for file in files]
        self.resumed_bytes = sum(one.resumed_bytes for one in self._pending)
        self.events = [one.trouble for one in self._pending if one.trouble]
        self.note = self.events[0] if self.events else ""
        self._last_byte = self._last_flow = self._looked = time.monotonic()
        threads = [threading.Thread(target=self._work, args=(finish,), daemon=True) for _number in range(self._settings.connections)]
        reserved = store.ReservedSpace(self._snapshot.staging().parts)
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                report()
                self._end_reads(STUCK_S)
                with self._changed:
                    if self._failure or not self._pending:
                        break
                    self._changed.wait(0.5)
        finally:
            self._stop.set()
            with self._changed:
                self._changed.notify_all()
            # Bytes that are still on their way are not wanted any more.
            self._end_reads(0.0)
            for thread in threads:
                thread.join(self._settings.patience_s if not self._failure else 5.0)
            # On a full disk the journals would find no room.
            reserved.drop()
            for one in self._pending:
                self._keep(one)
        if self._failure:
            raise self._failure
        if self._pending:
            names = ", ".join(one.file.path for one in self._pending[:3])
            raise KproError(f"model {self._snapshot.repository}", f"the download ended before {names} was there", "See the unit's journal, then run again")
        report()

    def _end_reads(self, older_than_s: float) -> None:
        with self._changed:
            late = [answer for began, answer in self._reads.values() if time.monotonic() - began >= older_than_s]
        for answer in late:
            cut_off(answer)

    def _keep(self, partial: PartialFile) -> None:
        try:
            partial.close()
        except OSError as error:
            self._failure = self._failure or store.disk_error(partial.path, error)

    def _work(self, finish: t.Callable[[RemoteFile, str], None]) -> None:
        try:
            while (work := self._next()) is not None:
                partial, piece = work
                if piece is not None:
                    self._fetch_and_return(partial, piece)
                else:
                    self._finish(partial, finish)
        except KproError as error:
            self._fail(error)
        except OSError as error:
            self._fail(store.disk_error(self._snapshot.store, error))

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._stop.set()
            self._changed.notify_all()

    def _next(self) -> tuple[PartialFile, Piece | None] | None:
        """Return a piece to fetch, or a whole file to check (no piece), or None when all is done."""
        with self._changed:
            while self._pending and not self._stop.is_set():
                ready = [one for one in self._pending if one not in self._finishing]
                for partial in ready:
                    if partial.whole:
                        self._finishing.add(partial)
                        return partial, None
                # Half of another connection's work only if there is nothing else to fetch.
                for choice in (PartialFile.take, PartialFile.take_half) if self._open < self._limit.allowed else ():
                    for partial in ready:
                        if piece := choice(partial):
                            self._open += 1
                            return partial, piece
                self._changed.wait(1.0)
        return None

    def _finish(self, partial: PartialFile, finish: t.Callable[[RemoteFile, str], None]) -> None:
        file = partial.file
        partial.open_empty()
        right = partial.right()
        partial.close()
        if right:
            finish(file, partial.path)
        else:
            self._came_wrong(partial)
        with self._changed:
            self._finishing.discard(partial)
            if right:
                self._pending.remove(partial)
                self._last_flow = time.monotonic()
            self._changed.notify_all()

    def _came_wrong(self, partial: PartialFile) -> None:
        file = partial.file
        words = manifests.damage_words(file.path, file.size_bytes, file.size_bytes, partial.head())
        with self._changed:
            # Another place that had a hand in it is not asked again for this file; the last one gets a few chances.
            if not self.ways.distrust(file.path):
                self._contents[file.path] = self._contents.get(file.path, 0) + 1
            if self._contents.get(file.path, 0) >= WRONG_CONTENTS:
                raise KproError(
                    f"model {self._snapshot.repository}",
                    f"{words}; it came wrong {WRONG_CONTENTS} times (expected {file.key})",
                    "Look for a proxy that changes downloads, or use another endpoint",
                )
            self.note = f"{words}. Fetching it again"
            self.received_bytes -= file.size_bytes
        partial.discard()

    def _fetch_and_return(self, partial: PartialFile, piece: Piece) -> None:
        try:
            alone = self._fetch(partial, piece)
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
        if alone:
            self._shorten(SHORT_STRETCH_BYTES)

    def _fetch(self, partial: PartialFile, piece: Piece) -> bool:
        """Fetch a piece, or what is possible of it; returns whether even a single connection stalled."""
        failures = 0
        name = partial.file.path
        try:
            while piece.left > 0 and not piece.cancelled and not self._stop.is_set():
                with self._changed:
                    number = self.ways.choose(name, time.monotonic())
                before = piece.done
                try:
                    with contextlib.closing(self._open_way(partial.file, piece, number)) as answer:
                        if not self._fits(answer, partial.file, piece):
                            # From here on this is the piece that is fetched, whatever becomes of the answer.
                            piece, before = self._restart(partial, piece), 0
                        self._copy(partial, piece, answer, number)
                except Interrupted as problem:
                    got_bytes = max(0, piece.done - before)
                    failures = 1 if got_bytes >= MIB else failures + 1
                    if self._interrupted(partial, number, problem, got_bytes):
                        continue
                    stalled = problem.stalled and not got_bytes
                    with self._changed:
                        alone = stalled and self._limit.stalled()
                        too_many = self._open > self._limit.allowed
                    if alone or too_many:
                        return alone
                    self._stop.wait(plan.wait_s(failures, problem.wait_s, random.random()))
        finally:
            partial.give_back(piece)
        return False

    def _open_way(self, file: RemoteFile, piece: Piece, number: int) -> Answer:
        whole = piece.done == 0 and piece.end == file.size_bytes
        return self._openers[number](file, piece.done, None if whole else piece.end)

    def _restart(self, partial: PartialFile, piece: Piece) -> Piece:
        """Begin a file anew, as the server sends it only whole.

        :raises KproError: if that has been of no use too often.
        """
        name = partial.file.path
        with self._changed:
            self._restarts[name] = self._restarts.get(name, 0) + 1
            if self._restarts[name] > MOST_RESTARTS:
                reason = f"the server does not serve ranges, and none of {MOST_RESTARTS} transfers came to the file's end"
                raise KproError(f"{name} of {self._snapshot.repository}", reason, "Use another endpoint or source")
        self.note = f"{name} comes in one piece: the server does not serve ranges"
        return partial.restart_in_one_piece(piece)

    def _copy(self, partial: PartialFile, piece: Piece, answer: Answer, number: int) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        since, since_bytes = time.monotonic(), 0
        while piece.left > 0 and not self._stop.is_set():
            count = self._gather(answer, buffer[: min(BUFFER_BYTES, piece.left)])
            if not count:
                raise Interrupted("the connection was cut")
            if not partial.write(piece, buffer[:count]):
                return
            now = time.monotonic()
            with self._changed:
                self._note_flow(count, now)
                self.received_bytes += count
                self.ways.worked(number, partial.file.path, count, now)
                self._limit.flowed(count)
            since_bytes += count
            if now - since >= self._window_s:
                if since_bytes < CRAWL_BYTES_PER_S * self._window_s:
                    raise Crawling("the connection crawled", stalled=True)
                since, since_bytes = now, 0

    def _note_flow(self, count: int, now: float) -> None:
        """Note bytes that came; a server that sends one now and then does not keep the transfer alive by that."""
        self._last_byte = now
        self._looked_bytes += count
        if self._looked_bytes >= CRAWL_BYTES_PER_S * self._window_s:
            self._last_flow = now
        if now - self._looked >= self._window_s:
            self._looked, self._looked_bytes = now, 0

    def _gather(self, answer: Answer, buffer: memoryview) -> int:
        """Fill a buffer with what arrives within a moment; returns how much that is, 0 at the end."""
        thread, began, count = threading.get_ident(), time.monotonic(), 0
        with self._changed:
            self._reads[thread] = (began, answer)
        try:
            while count < len(buffer) and (got := read_block(answer, buffer[count:])):
                count += got
                if time.monotonic() - began >= GATHER_S:
                    break
        except LINK_ERRORS as error:
            if not count:
                raise interrupted_by(error) from error
        finally:
            with self._changed:
                self._reads.pop(thread, None)
        return count

    def _fits(self, answer: Answer, file: RemoteFile, piece: Piece) -> bool:
        """Tell whether the answer is what was asked for (False: it is the whole file instead).

        :raises Interrupted: if it is neither.
        """
        if answer.status == 206:
            told = answer.headers.get("Content-Range") or ""
            found = re.fullmatch(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})", told)
            if found and int(found[1]) == piece.done and int(found[3]) == file.size_bytes:
                return True
            raise Interrupted(f"it sent {one_line(told, 80)} where byte {piece.done} of {file.size_bytes} was asked for", status=206)
        if not file.path.endswith((".html", ".htm")) and "text/html" in (answer.headers.get("Content-Type") or ""):
            raise Interrupted("a web page came instead of the file", status=200)
        length = declared_bytes(answer.headers)
        if length is not None and length != file.size_bytes:
            raise Interrupted(f"it has {length} bytes there instead of {file.size_bytes}", status=200)
        return piece.done == 0 and piece.end == file.size_bytes

    def _interrupted(self, partial: PartialFile, number: int, problem: Interrupted, got_bytes: int) -> bool:
        """Draw the conclusions of one failed try; returns whether another way is there at once.

        :raises KproError: if there is no hope.
        """
        name, now = partial.file.path, time.monotonic()
        self.note = f"{name}: {problem}, trying again"
        with self._changed:
            if isinstance(problem, Closed) and self.ways.close_off(number, str(problem)):
                return True
            unlike = isinstance(problem, NotThere) or problem.status in (200, 206, 416)
            if 0 < got_bytes < CRAWL_BYTES_PER_S:
                self._scant[number, name] = self._scant.get((number, name), 0) + 1
            scant = isinstance(problem, Crawling) or self._scant.get((number, name), 0) >= MOST_SCANT_TRIES
            if (unlike or scant) and self.ways.unfit(number, name, str(problem)):
                return True
            self.ways.failed(number, str(problem), now)
            self._wrong[name] = self._wrong.get(name, 0) + unlike
        if isinstance(problem, NotThere) and self.ways.hopeless(name):
            words = f"no place has it ({self.ways.reasons(name)})"
            raise KproError(f"{name} of {self._snapshot.repository}", words, "Give a source that has it, or let the hub be asked")
        if self._wrong[name] >= WRONG_ANSWERS and not isinstance(problem, NotThere):
            words = "HTTP 416: the server's file is shorter than the hub says" if problem.status == 416 else str(problem)
            raise KproError(f"{name} of {self._snapshot.repository}", words, "Look for a proxy or mirror that holds something else")
        silent_s = now - self._last_flow
        if silent_s > self._settings.patience_s:
            bytes_words = "no byte has" if now - self._last_byte >= silent_s else "hardly a byte has"
            raise KproError(
                f"model {self._snapshot.repository}",
                f"{bytes_words} come for {plan.time_words(silent_s)} ({problem})",
                "Check the link and the hub, then run again: what has arrived is kept",
            )
        if got_bytes:
            self._learn_from_cut(got_bytes)
        return False

    def _learn_from_cut(self, got_bytes: int) -> None:
        with self._changed:
            self._cuts.append(got_bytes)
            limit = plan.cut_limit(self._cuts)
            if not limit:
                return
            stretch_bytes = plan.stretch_below(limit)
            self.note = plan.cut_words(self._cuts[-3:], stretch_bytes)
            self.events.append(self.note)
            self._cuts.clear()
        self._shorten(stretch_bytes)

    def _shorten(self, stretch_bytes: int) -> None:
        with self._changed:
            for one in self._pending:
                one.use_shorter_pieces(min(stretch_bytes, one.stretch_bytes))
