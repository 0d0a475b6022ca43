# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of a run of the ladder: make or find the start, watch it, and go on to the next configuration.

A run is many calls. Between them nothing is remembered but the record of the unfinished run, so the next run goes on where a killed one stopped. Decisions
are taken alone, under a lock; the waiting is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
import typing as t

from .._core.changes import Change, plan_result
from .._core.errors import KproError
from .._engine.failures import Failure
from .._linux.processes_edge import ProcessTable
from .._linux.run_identity import RunIdentity, identity_from_dict
from .._linux.systemd_edge import Systemd
from .._service.cleanup_edge import end_leftovers, owner_of, survey
from .._service.edge import observe_service, put_service_file
from .._service.engine_parser_edge import check_options
from .._service.files import plan_diff, service_paths
from .._service.plan import ServicePresent, ServiceWanted, new_settings, plan_service
from .._service.record import Record, standing
from .._service.state_edge import ServiceState
from .after_answer_edge import after_answer, keep_what_serves, kept_check
from .check import Check, check_from, check_of, valid_check
from .choice import Choice, after_loss, choose, inputs_digest, rung_names, wanted_now
from .story import FAILED_CHECKS, NOT_OURS, WAIT_ON, left_alone, lost_for_good, rolled_back, runs_now
from .watch_edge import Seen, StartWatch, progress_words, seen_values, still_loading

Result = dict[str, t.Any]
_PAUSE_S = 2.0
# Another run holds the lock while it stops one engine and starts the next.
_PATIENCE_S = 30.0


@dataclasses.dataclass(frozen=True)
class Step:
    """A call's subject.

    :param changes: steps that bring the service to what is wanted; done already, but in check mode.
    :param identity: the start that is watched.
    :param owned: this run, or the unfinished one that it continues, made the start.
    :param record: the unfinished run as this call left it; None where nothing had to be noted.
    :param follows: another run has taken over, this one only looks.
    """

    choice: Choice
    wanted: ServiceWanted
    check: Check
    changes: tuple[Change, ...]
    identity: RunIdentity
    owned: bool = False
    record: Record | None = None
    follows: bool = False

    @property
    def restarts(self) -> bool:
        return any(change.action[0] == "restart" for change in self.changes)

    @property
    def key(self) -> str:
        """API key that the server asks for; empty without one."""
        return next(((file.text or "").strip() for file in self.wanted.files if file.role == "api_key"), "")

    @property
    def lost(self) -> tuple[dict[str, t.Any], ...]:
        """Starts that were lost before this one."""
        return self.record.lost if self.record else ()


class LadderRun:
    """One call.

    :param params: options of the module.
    """

    def __init__(self, params: t.Mapping[str, t.Any]) -> None:
        self._params = params
        self._systemd = Systemd(params["unit"])
        self._state = ServiceState(params["state_path"])
        self._paths = service_paths(params)
        self._run = str(params["run_id"])
        self._inputs = inputs_digest(params)
        self._check = check_of(params)

    def call(self) -> Result:
        """Do what is next, wait for an event or ``poll_s``, and say what is known.

        :raises KproError: if the run has ended without the wanted service.
        """
        with self._state.alone(self._params["poll_s"]) as alone:
            if not alone:
                return self._progress("another run is at work in this container")
            step = self._begin()
            if isinstance(step, dict):
                return step
            if self._params["level"] == "none":
                self._state.drop_record()
                return self._values(step)
        watch = self._watch(step)
        seen = watch.look(unlimited=step.choice.restored)
        with self._state.alone(_PATIENCE_S) as alone:
            return self._judge(step, watch, seen) if alone else self._progress("another run is at work in this container")

    def foretell(self) -> Result:
        """Say what a run would do, and ask the server once if it would be left as it is. Nothing is changed, whatever it answers.

        :raises KproError: if a run would end without the wanted service.
        """
        present = self._observe()
        step = self._planned(present, self._state.record())
        self._let_engine_judge(step, present, must_be_there=False)
        if step.restarts or self._params["level"] == "none":
            return self._values(step)
        watch = self._watch(step)
        seen = watch.look(once=True)
        if seen.outcome.kind == "lost":
            following = self._following(step, watch, seen) if self._is_lost(step, watch, seen) else None
            if not isinstance(following, Choice):
                raise self._left_alone(step, watch, seen)
            wanted = wanted_now(self._params, self._paths, present, following, force=True)
            return self._values(dataclasses.replace(step, choice=following, wanted=wanted, changes=tuple(plan_service(present, wanted))))
        answers = seen.outcome.kind == "ready"
        if answers and step.choice.restored:
            raise self._rolled_back(step, "The last good configuration stays and answers", {})
        return {**self._values(step), **seen_values(seen.outcome, seen.elapsed_s), "ready": answers}

    def stop(self, check_mode: bool) -> Result:
        """Stop the service, and do not start it at boot."""
        present = self._observe()
        choice = Choice(0, choose(self._params, self._state, present).memory, {})
        wanted = ServiceWanted((), "", running=False)
        changes = plan_service(present, wanted)
        if not check_mode:
            with self._state.alone(_PATIENCE_S):
                self._state.drop_record()
                for change in changes:
                    self._apply(change, wanted)
        return self._values(Step(choice, wanted, self._check, tuple(changes), self._identity(choice)))

    # --- the start ------------------------------------------------------------------------------------------------------------------------

    def _begin(self) -> Step | Result:
        """Return the start to watch, made if it has to be; or a result if there is none to watch in this call."""
        record = self._state.record()
        mine = record is not None and record.run == self._run
        if not mine and self._params["call"] > 1:
            return self._follow(record)
        present = self._observe()
        step = self._planned(present, record, mine=mine)
        if mine and step.identity.invocation_id and not step.restarts:
            return step
        self._let_engine_judge(step, present, must_be_there=True)
        if not step.restarts:
            self._do(step)
            if record is not None:
                step = dataclasses.replace(step, record=dataclasses.replace(self._record(step, present), identity=step.identity))
                self._state.keep_record(t.cast(Record, step.record))
            return step
        return self._make(step, present)

    def _planned(self, present: ServicePresent | None, record: Record | None, *, mine: bool = False) -> Step:
        """Compare what is there with what is wanted, in the light of an unfinished run."""
        params, present = self._params, present or self._observe()
        same = record is not None and record.inputs == self._inputs and (mine or (record.owned and not params["retry"]))
        choice = choose(params, self._state, present, record if same else None)
        wanted = wanted_now(params, self._paths, present, choice, force=params["force_restart"] and params["call"] == 1 and not mine)
        boot = self._systemd.boot_id()
        stands = standing(record, present.unit, boot, wanted.digest)
        if record is not None and not record.owned and not mine:
            stands = "none"
        if stands == "to_make":
            wanted = dataclasses.replace(wanted, force_restart=True)
        check = check_from(choice.good.get("check"), choice.texts, self._check) if choice.restored else self._check
        step = Step(choice, wanted, check, (), self._identity(choice), record=record if same else None)
        if record is not None and record.identity is not None and (stands in ("runs", "ended") or (mine and record.digest == wanted.digest)):
            identity = identity_from_dict({**record.identity.as_dict(), **choice.names})
            step = dataclasses.replace(step, identity=identity, owned=record.owned, record=record)
            if mine or stands == "ended":
                return step
        changes = tuple(plan_service(present, wanted))
        return dataclasses.replace(step, changes=changes, owned=step.owned or stands in ("unnoted", "again"))

    def _let_engine_judge(self, step: Step, present: ServicePresent, *, must_be_there: bool) -> None:
        python = self._params["engine_python"]
        if python and not step.choice.restored and not step.lost and new_settings(present, step.wanted):
            rungs = [str(rung["config_text"]) for rung in self._params["rungs"]]
            check_options(python, rungs, self._params["environment_text"], must_be_there=must_be_there)

    def _make(self, step: Step, present: ServicePresent) -> Step | Result:
        """Start the service. Whose start it is, and what ran before, is written down first."""
        if not step.lost:
            keep_what_serves(self._state, present, self._check)
        record = self._record(step, present)
        self._state.keep_record(record)
        if len(self._params["rungs"]) > 1:
            self._state.keep_rungs(step.choice.memory.as_dict())
        try:
            with _deaf_to_hang_up():
                ended = self._do(step)
        except KproError as error:
            if "diagnosis" not in error.details:
                raise
            return self._never_started(dataclasses.replace(step, owned=True, record=record, identity=self._identity(step.choice)), error)
        identity = self._identity(step.choice)
        record = dataclasses.replace(record, identity=identity, ended=(*record.ended, *ended))
        self._state.keep_record(record)
        return dataclasses.replace(step, identity=identity, owned=True, record=record)

    def _record(self, step: Step, present: ServicePresent) -> Record:
        earlier = step.record
        return Record(
            run=self._run,
            inputs=self._inputs,
            rung=step.choice.rung,
            digest=step.wanted.digest,
            owned=step.owned or step.restarts,
            boot_id=self._systemd.boot_id(),
            before=present.unit.invocation_id,
            check=earlier.check if earlier and earlier.check and earlier.digest == step.wanted.digest else step.check.as_dict(),
            lost=earlier.lost if earlier else (),
            ended=earlier.ended if earlier else (),
        )

    def _do(self, step: Step) -> list[Result]:
        ended: list[Result] = []
        for change in step.changes:
            ended += self._apply(change, step.wanted)
        if step.changes:
            self._assert_written(step.wanted)
        return ended

    def _apply(self, change: Change, wanted: ServiceWanted) -> list[Result]:
        """Do one step; returns the leftovers that were ended."""
        action, *arguments = change.action
        files = {file.role: file for file in wanted.files}
        params, systemd = self._params, self._systemd
        if action in ("write", "permit"):
            put_service_file(files[arguments[0]], whole=action == "write")
        elif action in ("daemon_reload", "enable", "disable"):
            {"daemon_reload": systemd.daemon_reload, "enable": systemd.enable, "disable": systemd.disable}[action]()
        else:
            systemd.stop(params["stop_timeout_s"])
            if action == "restart":
                table = ProcessTable()
                found = survey(table, owner_of(params["unit"], params["user"], params["roots"]), params["port"])[0]
                ended = end_leftovers(table, found, 10.0)
                systemd.start(params["start_timeout_s"])
                return ended
        return []

    def _assert_written(self, wanted: ServiceWanted) -> None:
        left = [change.sentence for change in plan_service(self._observe(), wanted) if change.action[0] in ("write", "permit", "enable")]
        if left:
            raise KproError(self._systemd.unit, f"after writing, this is still to be done: {'; '.join(left)}", "Look for another tool that writes these files")

    def _follow(self, record: Record | None) -> Step | Result:
        """Return what another run is about: it has taken over, and only it may act."""
        unit = self._systemd.state()
        if record is not None and record.inputs != self._inputs:
            raise self._taken_over()
        if record is not None and record.identity is None:
            time.sleep(_PAUSE_S)
            return self._progress("another run took over and is about to start the service")
        step = self._planned(None, record)
        if record is None and step.restarts:
            said = f"another run took over and ended, and the service is not as wanted. {runs_now(unit)}"
            raise KproError(self._systemd.unit, said, "See what the other run reported, then run the deployment again", stopped=False)
        return dataclasses.replace(step, changes=(), owned=False, follows=True)

    def _taken_over(self) -> KproError:
        said = f"another run took over with other settings, and this one ended. {runs_now(self._systemd.state())}"
        return KproError(self._systemd.unit, said, "Run one deployment of a container at a time", stopped=False)

    # --- the judgement ---------------------------------------------------------------------------------------------------------------------

    def _judge(self, step: Step, watch: StartWatch, seen: Seen) -> Result:
        record = self._state.record()
        if step.record is not None and (record is None or record.run != self._run):
            step = dataclasses.replace(step, follows=True)
        if step.follows and record is not None and record.inputs != self._inputs:
            raise self._taken_over()
        kind = seen.outcome.kind
        if kind == "ready":
            return self._ready(step, watch, seen)
        if kind == "waiting":
            return self._waiting(step, watch, seen)
        if step.follows and seen.outcome.loss[0] == Failure.IDENTITY_CHANGED:
            # What the other run has made of it is for the next call to see.
            return self._progress("another run took over")
        if step.follows and record is not None and seen.waited_s < self._params["timeout_s"]:
            time.sleep(_PAUSE_S)
            return self._progress("another run took over and goes on")
        if self._is_lost(step, watch, seen):
            return self._lost(step, watch.explained(seen, self._args(step.choice)))
        if not step.follows and seen.outcome.loss[0] != Failure.CONTAINER_STOPPING:
            self._state.drop_record()
        raise self._left_alone(step, watch, seen)

    def _ready(self, step: Step, watch: StartWatch, seen: Seen) -> Result:
        found = after_answer(self._params, self._state, watch.client, seen.outcome.log.lines, step.choice, step.wanted, step.check, self._args(step.choice))
        if not step.follows:
            self._state.drop_record()
        if step.choice.restored:
            word = "was restored" if step.lost else "stays"
            raise self._rolled_back(step, f"The last good configuration {word} and answers", found)
        values = self._values(step)
        warnings = [*values["warnings"], *found.pop("warnings")]
        return {**values, **seen_values(seen.outcome, seen.elapsed_s), **found, "ready": True, "warnings": warnings}

    def _waiting(self, step: Step, watch: StartWatch, seen: Seen) -> Result:
        if step.record is None and not step.follows:
            self._state.keep_record(dataclasses.replace(self._record(step, self._observe()), owned=False, identity=step.identity))
        if step.choice.restored or seen.waited_s < self._params["timeout_s"]:
            return {**self._progress(progress_words(seen.outcome, seen.elapsed_s), step), **seen_values(seen.outcome, seen.elapsed_s)}
        watch.forget()
        if step.record is None or not (step.owned or step.follows):
            self._state.drop_record()
        words = still_loading(seen.outcome, seen.waited_s)
        earlier = f" Before it, {step.lost[-1].get('name')} was lost: {step.lost[-1].get('reason')}." if step.lost else ""
        raise KproError(
            self._systemd.unit,
            f"{words}.{earlier} The start goes on",
            f"{WAIT_ON}; sglang_server__ready_timeout_s is how long a run waits",
            loss={"class": Failure.TIMEOUT.value, "words": words},
            stopped=False,
            identity=step.identity.as_dict(),
            lost=list(step.lost),
            **seen_values(seen.outcome, seen.elapsed_s),
        )

    def _is_lost(self, step: Step, watch: StartWatch, seen: Seen) -> bool:
        """Whether the start is this run's, and another configuration has to follow."""
        ours = step.owned and not step.follows and seen.outcome.loss[0] not in NOT_OURS
        return ours and not self._answers_as_before(step, watch, seen)

    def _answers_as_before(self, step: Step, watch: StartWatch, seen: Seen) -> bool:
        """Whether a server that misses what it is asked now still answers what this very configuration was asked before."""
        if seen.outcome.loss[0] not in FAILED_CHECKS:
            return False
        noted = valid_check(step.record.check) if step.record else None
        others = [noted, kept_check(self._state, step.wanted.digest, step.check)]
        return any(check is not None and check != step.check and watch.walk(check).ready for check in others)

    def _lost(self, step: Step, details: Result) -> Result:
        """Go on to the next configuration, or end the run."""
        row = {"rung": step.choice.rung, "name": self._name(step.choice), **details}
        following = self._after(step, details)
        if not isinstance(following, Choice):
            raise self._ended(step, row, following)
        # Before the next call systemd would start it again, and it may hold memory.
        self._systemd.stop_soon()
        return self._go_on(step, following, row)

    def _following(self, step: Step, watch: StartWatch, seen: Seen) -> Choice | str:
        return self._after(step, watch.explained(seen, self._args(step.choice)))

    def _after(self, step: Step, details: Result) -> Choice | str:
        class_, cause = str(details["diagnosis"]["class"]), str(details["reason"])
        return after_loss(self._params, self._state, step.choice, class_, cause, step.wanted.digest)

    def _go_on(self, step: Step, following: Choice, row: Result) -> Result:
        present = self._observe()
        wanted = wanted_now(self._params, self._paths, present, following)
        earlier = t.cast(Record, step.record)
        record = Record(
            run=self._run,
            inputs=self._inputs,
            rung=following.rung,
            digest=wanted.digest,
            boot_id=self._systemd.boot_id(),
            before=present.unit.invocation_id,
            check=check_from(following.good.get("check"), following.texts, self._check).as_dict() if following.restored else self._check.as_dict(),
            lost=(*earlier.lost, row),
            ended=earlier.ended,
        )
        self._state.keep_record(record)
        if len(self._params["rungs"]) > 1:
            self._state.keep_rungs(following.memory.as_dict())
        return self._progress(f"{row['name']} was lost: {str(row['reason']).rstrip('.')}; next: {self._name(following)}", step)

    def _ended(self, step: Step, row: Result, why: str) -> KproError:
        """End a run that has nothing left to start."""
        self._state.drop_record()
        serves = step.choice.restored and row["loss"]["class"] in FAILED_CHECKS
        stopped = self._params["on_failure"] == "stop" and not serves
        if stopped:
            self._systemd.stop_soon()
        unit = self._systemd.state()
        if step.choice.restored:
            end = "It was stopped, so the service does not run now" if stopped else f"It was left as it is. {runs_now(unit)}"
            cause = str(row["reason"]).rstrip(".")
            word = "does not answer as it did" if serves else "was lost as well"
            return self._rolled_back(step, f"The last good configuration was restored and {word}: {cause}. {end}", {"stopped": stopped})
        reason = lost_for_good(str(row["reason"]), why, stopped, unit)
        told = {**row, "lost": [*step.lost, row], "stopped": stopped}
        return KproError(self._systemd.unit, reason, str(row["remedy"]), **{name: value for name, value in told.items() if name not in ("reason", "remedy")})

    def _rolled_back(self, step: Step, ending: str, found: Result) -> KproError:
        last = dict(step.lost[-1]) if step.lost else {}
        reason = rolled_back(step.lost, step.choice.causes.values(), ending)
        remedy = str(last.get("remedy", "")) if last else "Change the options, or try again with sglang_server__retry: true"
        told = {**last, "lost": list(step.lost), "stopped": False, "restored": True, **found}
        return KproError(self._systemd.unit, reason, remedy, **{name: value for name, value in told.items() if name not in ("reason", "remedy", "warnings")})

    def _left_alone(self, step: Step, watch: StartWatch, seen: Seen) -> KproError:
        """Report a start that is not this run's to stop."""
        told = watch.explained(seen, self._args(step.choice))
        unit = self._systemd.state()
        if step.owned and seen.outcome.loss[0] in FAILED_CHECKS:
            ending = f"It still answers what it was asked before, so it was left as it is. {runs_now(unit)}"
        else:
            ending = left_alone(seen.outcome.loss[0], unit)
        reason = f"{str(told.pop('reason')).rstrip('.')}. {ending}"
        return KproError(self._systemd.unit, reason, str(told.pop("remedy")), stopped=False, lost=list(step.lost), **told)

    def _never_started(self, step: Step, error: KproError) -> Result:
        loss = {"class": Failure.NEVER_STARTED.value, "words": error.reason}
        details = {"reason": error.reason, "remedy": error.remedy, "diagnosis": error.details["diagnosis"], "loss": loss, "log_tail": []}
        return self._lost(step, {**details, "identity": step.identity.as_dict(), "level": "", "elapsed_s": 0.0, "phases_s": {}})

    # --- what is said ------------------------------------------------------------------------------------------------------------------------

    def _values(self, step: Step) -> Result:
        """Return what is known whether or not the service was waited for."""
        names, choice, record = rung_names(self._params), step.choice, step.record
        return {
            **plan_result(step.changes),
            "diff": plan_diff(step.changes, step.wanted),
            "identity": (step.identity if step.identity.invocation_id else self._identity(choice)).as_dict(),
            "restarted": step.restarts or bool(record and record.owned and record.run == self._run),
            "api_key_path": self._params["api_key_path"] if step.key else "",
            "ended": list(record.ended) if record else [],
            "rung": choice.rung,
            "rung_name": self._name(choice),
            "args": self._args(choice),
            "failed_rungs": choice.causes,
            "given_up": choice.given_up(names),
            "lost": list(step.lost),
            "warnings": [*choice.notes(names), *self._state.faults],
            "ready": False,
            "level": "",
            "elapsed_s": 0.0,
            "phases_s": {},
            "finished": True,
        }

    def _progress(self, words: str, step: Step | None = None) -> Result:
        changes = step.changes if step else ()
        diff = plan_diff(changes, step.wanted) if step else []
        return {**plan_result(changes), "diff": diff, "finished": False, "ready": False, "progress": words}

    def _name(self, choice: Choice) -> str:
        names = rung_names(self._params)
        return "last good" if choice.restored else names[choice.rung] if choice.rung < len(names) else f"rung {choice.rung}"

    def _args(self, choice: Choice) -> Result:
        rungs = self._params["rungs"]
        return {} if choice.restored or choice.rung >= len(rungs) else dict(rungs[choice.rung]["args"])

    def _observe(self) -> ServicePresent:
        return observe_service(self._paths, self._params["started_path"], self._systemd)

    def _identity(self, choice: Choice) -> RunIdentity:
        return self._systemd.identity(self._systemd.state(), **choice.names)

    def _watch(self, step: Step) -> StartWatch:
        return StartWatch(self._params, self._systemd, step.identity, step.check, step.key, self._run)


@contextlib.contextmanager
def _deaf_to_hang_up() -> t.Iterator[None]:
    """Between stop and start the service is down: a lost connection must not end us there."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def with_what_runs(error: KproError, unit: str) -> KproError:
    """Add to an error from before or between the starts what runs; the other ones say it themselves."""
    if "stopped" in error.details:
        return error
    try:
        ending = runs_now(Systemd(unit).state())
    except (KproError, OSError):
        return error
    return KproError(error.what, f"{error.reason.rstrip('.')}. {ending}", error.remedy, **error.details)
