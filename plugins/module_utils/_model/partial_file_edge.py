# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to one partial file: written in pieces, journalled, finished."""

from __future__ import annotations

import os
import threading

from . import store_edge as store
from . import transfer_plan as plan
from .hub_protocol import RemoteFile
from .transfer_plan import Piece


class PartialFile:
    """A file on the way. Pieces are handed to connections by :meth:`take` and written by :meth:`write`, from any thread."""

    def __init__(self, snapshot: store.Snapshot, file: RemoteFile, sync_bytes: int, stretch_bytes: int) -> None:
        self.file = file
        self.path = snapshot.part(file)
        self._name = store.part_name(file)
        self._folder = snapshot.staging().parts
        self.stretch_bytes = stretch_bytes
        self._written = snapshot.part_ranges(file)
        self.resumed_bytes = sum(end - start for start, end in self._written)
        self.trouble = plan.unusable_words(file.path, snapshot.part_bytes(file), self.resumed_bytes, file.size_bytes)
        self._free = plan.pieces_of(file.size_bytes, self._written, stretch_bytes)
        self._active: list[Piece] = []
        self._sync_bytes = sync_bytes
        self._unsynced = 0
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._descriptor = -1

    @property
    def whole(self) -> bool:
        """Tell whether every byte has been written."""
        with self._lock:
            return not self._free and not self._active

    def take(self) -> Piece | None:
        """Return a piece that no connection has; None if there is none."""
        with self._lock:
            return self._begin(self._free.pop(0)) if self._free else None

    def take_half(self) -> Piece | None:
        """Return half of what the slowest connection still lacks; None if nothing is worth it."""
        with self._lock:
            slowest = max((one for one in self._active if not one.cancelled), key=lambda one: one.left, default=None)
            half = plan.split(slowest) if slowest else None
            return self._begin(half) if half else None

    def _begin(self, piece: Piece) -> Piece:
        self._open()
        self._active.append(piece)
        return piece

    def write(self, piece: Piece, data: memoryview) -> int:
        """Write what came for a piece; returns how many bytes of it were wanted (0: the piece is over or taken away)."""
        with self._lock:
            wanted = 0 if piece.cancelled else min(len(data), piece.left)
        if not wanted:
            return 0
        sent = 0
        while sent < wanted:
            sent += os.pwrite(self._descriptor, data[sent:wanted], piece.done + sent)
        with self._lock:
            piece.done += wanted
            self._unsynced += wanted
            due = self._unsynced >= self._sync_bytes
        if due:
            self.sync()
        return wanted

    def give_back(self, piece: Piece) -> None:
        """End the work on a piece; what it lacks is free again."""
        with self._lock:
            if piece not in self._active:
                return
            self._active.remove(piece)
            self._written = plan.merged([*self._written, (piece.start, piece.done)])
            self._free[:0] = plan.cut(piece.done, piece.end, self.stretch_bytes)

    def use_shorter_pieces(self, stretch_bytes: int) -> None:
        """Cut what is free into shorter pieces."""
        with self._lock:
            self.stretch_bytes = stretch_bytes
            self._free = [piece for one in self._free for piece in plan.cut(one.start, one.end, stretch_bytes)]

    def restart_in_one_piece(self, piece: Piece) -> Piece:
        """The server sends only whole files: drop all other pieces and return the one that is the file."""
        with self._lock:
            for one in self._active:
                one.cancelled = True
            whole = Piece(0, self.file.size_bytes, 0)
            self._free, self._active, self._written = [], [whole], []
            return whole

    def sync(self) -> None:
        """Bring what was written to the disk, then the journal that says so."""
        with self._sync_lock:
            with self._lock:
                if self._descriptor < 0:
                    return
                ranges = plan.merged([*self._written, *((one.start, one.done) for one in self._active)])
                self._unsynced = 0
            os.fdatasync(self._descriptor)
            self._folder.write(f"{self._name}.json", plan.journal_text(self.file.size_bytes, ranges).encode())

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        self.sync()
        with self._sync_lock, self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def discard(self) -> None:
        """Remove the partial file and its journal; the file starts anew."""
        with self._sync_lock, self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            for name in (f"{self._name}.json", self._name):
                self._folder.remove(name)
            self._written, self._active = [], []
            self._free = plan.pieces_of(self.file.size_bytes, [], self.stretch_bytes)

    def open_empty(self) -> None:
        """Create the file if it has no bytes to fetch."""
        with self._lock:
            self._open()

    def right(self) -> bool:
        """Tell whether the content is that of the commit."""
        with self._lock:
            self._open()
            descriptor = os.dup(self._descriptor)
        try:
            return store.descriptor_matches(descriptor, self.file)
        finally:
            os.close(descriptor)

    def head(self) -> bytes:
        """Return the first bytes."""
        return store.head_of(self._folder, self._name)

    def _open(self) -> None:
        if self._descriptor < 0:
            self._descriptor = self._folder.keep(self._name)
            os.ftruncate(self._descriptor, self.file.size_bytes)
