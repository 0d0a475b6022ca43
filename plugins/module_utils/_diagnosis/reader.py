# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A log of any usual shape read as records: without colours and envelopes, each with its rank and level, and the tracebacks with their chains."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import typing as t

# Of a long log its begin is kept (options, sizes) and its end (why it ended); the middle is requests.
HEAD, TAIL, WIDTH = 3000, 9000, 8192

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f]")
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# What journal, syslog, container runtimes and launchers put before a program's own line; peeled off as often as one fits.
_ENVELOPES = re.compile(
    r"<\d{1,3}>"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? \S+ [^\s:\[\]]+(?:\[\d+\])?:(?: |$)"
    rf"|{_STAMP} \S+ [^\s:\[\]]+(?:\[\d+\])?:(?: |$)"
    rf"|{_STAMP} (?:stdout|stderr) [FP](?: |$)"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)(?: |$)"
    r"|[\w.-]+\[\d+\]:(?: |$)"
    r"|[\w.-]+ +\|(?: |$)"
    r"|\[pod/[^\]]+\](?: |$)"
    r"|\([\w:.-]+ (?:pid|rank)=\d+(?:, ip=[\w.:]+)?\)(?: |$)"
)
_EXPORT = re.compile(r"[A-Z_]+=")
_ENGINE = re.compile(r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)?(?P<rank>(?: ?(?:[A-Z]+_)*(?:TP|DP|PP|EP|CP)\d+)*)\] ?")
_TORCH_RANK = re.compile(r"\[(?:rank|default)(\d+)\]: ?")
_LEVEL = re.compile(r"(?:[\w.]+ - )?(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b[:\s\]]", re.IGNORECASE)
_GLOG = re.compile(r"\[?([IWEF])\d{4} \d\d:\d\d:\d\d")
_GLOG_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "critical"}
_WARNING = re.compile(r"\b[A-Z]\w*Warning: |\bNCCL (?:INFO|WARN)\b|^\W*warn(?:ing)?\b", re.IGNORECASE)
# What a client sent, and the access log of what it asked.
_CLIENT = re.compile(
    r"\b(?:Receive|Finish|Receive request|Finish request): |\b(?:obj|prompt|text|content|messages)=|\"(?:GET|POST|HEAD|PUT"
    r"|DELETE) \S+ HTTP/1"
)
_FRAME = re.compile(r'^[\s|+]*File "?(?P<file>[^",]+)"?(?:, line (?P<line>\d+))?(?:, (?:in )?(?P<name>.+))?')
_HEADER = "Traceback (most recent call last)"
_LINK = re.compile(r"^\W*(?:During handling of the above exception|The above exception was the direct cause)")
_EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|OutOfMemory\w*|Timeout|Failure|Failed|NotFound|Missing|Unavailable"
    r"|Expired|Refused|InvalidCxxCompiler|Group|OutOfResources|Abort\w*)|Exception))(?:: ?(?P<text>.*)|$)"
)
_ANY_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: (?P<text>.*)|:?$)")
# The process itself dies, without Python's words.
_NATIVE = re.compile(
    r"^(?:Fatal Python error: |terminate called |Segmentation fault|\*\*\* (?:SIG|Aborted|Process received signal|stack smashing)|Aborted\b|Bus error"
    r"|double free"
    r"|free\(\): |malloc\(\): |corrupted (?:size|double)|munmap_chunk|Floating point exception|Illegal instruction|!!!!!!! Segfault|thread '.*' panicked at"
    r"|\S+: symbol lookup error: |\S+: error while loading shared libraries: |\S+: .*: version `\S+' not found|LLVM ERROR: |\S+: Assertion `)"
)
_SYSTEMD = re.compile(r"^\S+\.(?:service|scope): |^(?:Stopping|Stopped|Starting|Started) ")
_ECHO = re.compile(
    r"sigquit|SIGQUIT received|^Killed\b|kill_process_tree|Subprocess \S+ .*crashed|crash diagnostics|No live scheduler|resource_tracker"
    r"|Waiting for application shutdown|Application shutdown|Finished server process|destroy_process_group|Shutting down",
)
_DYING = re.compile(r"hit an exception|^Process \S+:|Initialization failed|Exception in thread|failed to start|Unhandled|[Ff]atal")
# Exceptions that say only that something else failed.
_WRAPPER = re.compile(
    r"Ninja build failed|Error building extension|Command .* (?:returned non-zero|died with)|CalledProcessError|Error compiling objects"
    r"|[Cc]onnection (?:closed|reset) by|Broken pipe|^EOFError|scheduler died|Initialization failed|Rank \d+ .*(?:died|failed)|^SystemExit"
    r"|[Cc]hild failed|^ChildFailedError"
    r"|ncclRemoteError|DistBackendError.*(?:closed|reset)|worker .* died|BrokenProcessPool|Warmup failed"
)
_ERROR_LIKE = re.compile(
    r"\b\w*(?:[Ee]rror|ERROR|[Ff]atal|FATAL|[Ff]ailed|FAILED|[Ff]ailure|[Cc]annot|CRITICAL|[Kk]illed|[Dd]enied|[Aa]borted|[Rr]efused|[Uu]nable"
    r"|[Ee]xception)\w*\b"
    r"|out of memory|not found|No such|undefined symbol|[Cc]ould not|crashed|too old|mismatch|\bNo space"
)
_PHASE = re.compile(
    r"^(?:gate: ok|Init (?:torch distributed|parallel)|Load weight (?:begin|end)|Memory pool end|[Cc]apture (?:\w+ )*(?:cuda|CUDA) graphs? (?:begin|end)"
    r"|max_total_num_tokens=|KV Cache is allocated|The server is fired up|(?:INFO: +)?Uvicorn running|(?:Prefill|Decode) batch)"
)


@dataclasses.dataclass(frozen=True)
class Record:
    """A line of the log.

    :param text: without colours and envelope.
    :param message: also without the engine's own prefix.
    :param rank: as the engine writes it ("DP0 TP1"); empty for the main process and for lines without prefix.
    :param level: in small letters; ``client`` for what a client sent; empty if the line says none.
    :param own: the line begins a message of its own, so that it continues no other.
    """

    index: int
    text: str
    message: str
    rank: str = ""
    level: str = ""
    own: bool = False
    time: str = ""


@dataclasses.dataclass
class Frame:
    """A frame of a traceback."""

    file: str
    name: str
    code: str = ""


@dataclasses.dataclass
class Trace:
    """A traceback with its exception, or an exception line alone.

    :param said: the exception's own lines, whole.
    :param head: the line that announces it.
    :param end: index of its last line.
    :param earlier: the exceptions it came from ("during handling", "direct cause"), the nearest first.
    """

    rank: str
    head: Record
    frames: list[Frame] = dataclasses.field(default_factory=list)
    type: str = ""
    said: list[str] = dataclasses.field(default_factory=list)
    line: str = ""
    end: int = 0
    earlier: list[Trace] = dataclasses.field(default_factory=list)
    native: bool = False

    @property
    def chain(self) -> list[Trace]:
        """The exception and those it came from."""
        return [self, *self.earlier]

    @property
    def is_wrapper(self) -> bool:
        """It says only that something else failed."""
        return not self.said or bool(_WRAPPER.search(self.said[0]))


def bounded(lines: t.Iterable[str]) -> list[str]:
    """Return begin and end of a log, whatever its length, without empty lines."""
    head: list[str] = []
    tail: collections.deque[str] = collections.deque(maxlen=TAIL)
    for line in lines:
        if line.isspace() or not line:
            continue
        (head if len(head) < HEAD else tail).append(line[:WIDTH].rstrip())
    return [*head, *tail]


def unwrapped(line: str) -> str:
    """Return a program's own line: without colours, without what journal or container put before it."""
    text = _ANSI.sub("", line).rstrip()
    if "\r" in text:
        # A progress bar repaints itself; the last picture counts.
        text = text.rsplit("\r", 1)[-1]
    text = _from_json(text)
    for _turn in range(4):
        found = _ENVELOPES.match(text)
        if found is None:
            break
        text = text[found.end() :]
    return text


def _from_json(text: str) -> str:
    if not text.startswith("{") or not text.endswith("}") or ('"MESSAGE"' not in text and '"log"' not in text):
        return text
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    said = values.get("MESSAGE", values.get("log")) if isinstance(values, dict) else None
    return said.rstrip() if isinstance(said, str) else text


def program_lines(lines: t.Iterable[str]) -> list[str]:
    """Return what the program wrote, one entry a line."""
    kept = bounded(lines)
    if any(line.startswith("__REALTIME_TIMESTAMP=") for line in kept[:50]):
        kept = [line.removeprefix("MESSAGE=") for line in kept if line.startswith("MESSAGE=") or not _EXPORT.match(line)]
    parts = (part for line in kept for part in unwrapped(line).split("\n"))
    return [part.rstrip() for part in parts if part.strip()]


def record(index: int, text: str) -> Record:
    """Return a line with its rank and level."""
    message, rank, own, time = text, "", False, ""
    found = _TORCH_RANK.match(message)
    if found:
        rank, message = f"TP{found[1]}", message[found.end() :]
    found = _ENGINE.match(message)
    if found and (found["time"] or found["rank"]):
        message, rank, own, time = message[found.end() :], found["rank"].strip() or rank, True, found["time"] or ""
    level = _level(message)
    own = own or (bool(level) and level != "client") or bool(_SYSTEMD.match(message))
    return Record(index, text, message, rank, level, own, time)


def _level(message: str) -> str:
    if _CLIENT.search(message[:300]):
        return "client"
    if found := _GLOG.match(message):
        return _GLOG_LEVELS[found[1]]
    if (found := _LEVEL.match(message)) and not _EXCEPTION.match(message):
        return "warning" if found[1].upper() == "WARN" else found[1].lower()
    return "warning" if _WARNING.search(message[:300]) else ""


class Reading:
    """A log as records and tracebacks, and the passage that ended the start."""

    def __init__(self, lines: t.Iterable[str]) -> None:
        self.lines = program_lines(lines)
        self.records = [record(index, text) for index, text in enumerate(self.lines)]
        self.traces = _traces(self.records)
        self.fatal = self._fatal()

    def _fatal(self) -> Trace | None:
        """The first traceback of the first failing process after which that process did nothing more."""
        last_phase = max((row.index for row in self.records if _PHASE.match(row.message)), default=-1)
        alive = {row.rank: row.index for row in self.records if _is_progress(row)}
        left = [trace for trace in self.traces if not self._lived_on(trace, alive, last_phase)]
        telling = [trace for trace in left if not trace.is_wrapper] or left
        dying = [trace for trace in telling if _DYING.search(trace.head.message) or trace.native]
        return next(iter(dying or telling), None)

    def _lived_on(self, trace: Trace, alive: t.Mapping[str, int], last_phase: int) -> bool:
        after = alive.get(trace.rank, -1) > trace.end
        return (trace.head.level in ("warning", "info", "debug") and not trace.frames) or after or (not trace.rank and last_phase > trace.end)

    @property
    def passage(self) -> list[str]:
        """The lines that decide: the fatal exception with its chain; else the last words that look like an error."""
        if self.fatal is None:
            return self.last_words
        said = [line for trace in self.fatal.chain for line in trace.said]
        head = [self.fatal.head.text] if self.fatal.frames or not said else []
        before = self._before(self.fatal) if self.fatal.is_wrapper else []
        return [*said, *before, *head]

    def _before(self, trace: Trace) -> list[str]:
        """What the failing process said just before, where its exception only wraps it; a tool's output has no prefix."""
        rows = self.records[max(0, trace.chain[-1].head.index - 80) : trace.chain[-1].head.index]
        return [row.text for row in rows if not row.own and row.level == "" and _ERROR_LIKE.search(row.message)]

    @property
    def last_words(self) -> list[str]:
        """The lines near the end that look like an error and are neither a warning nor a client's; those after the last step of the start."""
        last_phase = max((row.index for row in self.records if _PHASE.match(row.message)), default=-1)
        begin = max(last_phase + 1, len(self.records) - 80)
        return [row.text for row in self.records[begin:] if row.level not in ("client", "warning", "info", "debug") and _ERROR_LIKE.search(row.message)]

    @property
    def frames(self) -> list[Frame]:
        """The frames of the fatal exception, the innermost last; those of the exceptions it came from before."""
        return [frame for trace in reversed(self.fatal.chain) for frame in trace.frames] if self.fatal else []

    @property
    def errors(self) -> list[str]:
        """All lines that look like an error, whoever wrote them."""
        return [
            row.text
            for row in self.records
            if row.level not in ("client", "info", "debug") and (row.level in ("error", "critical") or _ERROR_LIKE.search(row.message))
        ]


def _is_progress(row: Record) -> bool:
    quiet = row.level in ("", "info", "warning", "debug", "client")
    return (
        row.own
        and quiet
        and not _ECHO.search(row.message)
        and not _SYSTEMD.match(row.message)
        and _HEADER not in row.text
        and not _EXCEPTION.match(row.message)
    )


def _traces(records: t.Sequence[Record]) -> list[Trace]:
    """Return the tracebacks in order of their end, chains joined."""
    done: list[Trace] = []
    open_: dict[str, Trace] = {}
    linked: dict[str, Trace] = {}
    current: str | None = None
    for row in records:
        rank = row.rank if row.own or row.rank or current is None else current
        trace = open_.get(rank)
        if (_HEADER in row.text and row.level != "client") or (_FRAME.match(row.message) and trace is None):
            open_[rank] = trace = Trace(rank, row, end=row.index)
            current = rank
            _take(trace, row)
        elif _LINK.match(row.message):
            ended = trace or next((one for one in reversed(done) if one.rank == rank), None)
            if ended is not None:
                linked[rank] = ended
                open_.pop(rank, None)
        elif trace is not None and _take(trace, row):
            if trace.said and trace not in done:
                done.append(trace)
                _join(trace, linked, done)
        else:
            if trace is not None:
                open_.pop(rank, None)
                current = None if current == rank else current
            alone = _alone(row, rank)
            if alone is not None:
                done.append(alone)
                open_[rank], current = alone, rank
    # Cut before its exception.
    return sorted([*done, *(trace for trace in open_.values() if trace not in done and trace.frames)], key=lambda trace: trace.head.index)


def _join(trace: Trace, linked: dict[str, Trace], done: list[Trace]) -> None:
    first = linked.pop(trace.rank, None)
    if first is not None and first is not trace:
        trace.earlier = first.chain
        trace.head = first.head if _DYING.search(first.head.message) else trace.head
        done[:] = [one for one in done if one is not first]


def _alone(row: Record, rank: str) -> Trace | None:
    """An exception line without a traceback, or the last words of a process that aborts."""
    if row.level in ("client", "warning", "info", "debug") or _ECHO.search(row.message):
        return None
    message = re.sub(r"^(?:ERROR|CRITICAL|FATAL): +", "", row.message)
    found, native = _EXCEPTION.match(message), bool(_NATIVE.match(message))
    if not found and not native:
        return None
    return Trace(rank, row, type=found["type"] if found else "", said=[message], line=row.text, end=row.index, native=native)


def _take(trace: Trace, row: Record) -> bool:
    """Let a traceback take a line; False if the line is none of its own."""
    if _HEADER in row.text:
        return not trace.said
    if trace.said:
        ends = row.own or _ECHO.search(row.message) or _SYSTEMD.match(row.message) or row.level == "client" or len(trace.said) > 200
        if ends or (_FRAME.match(row.message) and not trace.native):
            return False
        trace.said.append(row.message)
        trace.end = row.index
        return True
    trace.end = row.index
    if frame := _FRAME.match(row.message):
        trace.frames.append(Frame(frame["file"].strip(), (frame["name"] or "").strip()))
        return True
    if row.message[:1] in (" ", "\t", "|", "+", "^", "~"):
        if trace.frames and not trace.frames[-1].code and row.message.strip(" |^~"):
            trace.frames[-1].code = row.message.strip()
        return True
    found = _EXCEPTION.match(row.message) or (_ANY_EXCEPTION.match(row.message) if not row.own else None)
    if not found or (row.own and row.rank != trace.rank):
        return False
    trace.type, trace.line = found["type"], row.text
    trace.said.append(row.message)
    return True
