"""Hooks of user code that Python calls by itself: none is called in a snapshot, or a fork that waits there.

Python calls functions of user code in each fork (`os.register_at_fork`), at audit events
(`sys.addaudithook`), while it collects garbage (`gc.callbacks`, finalisers) and for each function and line
(`sys.settrace`, `sys.setprofile`, `sys.monitoring`).

Threat: such a function writes a file in a snapshot, or in a fork of one while an undo puts files back. The
undo then says that a file was brought back which has changed since, or finds a change of somebody else in it.
Mechanism: hooks of forks and of audit events are registered inside a function of ours, which looks at the
state of the process. The collector and the tracers are switched off from just before a fork of ours on,
behind the hooks that run before it. What a hook would have done in a child is done once, before any other
user code runs again in it: in the next call, by that call, or before the first task that goes on.
Race: another thread of the worker may register or call a hook during the fork; it does so in the worker, and
is missing in the fork.
Failure: what was registered in another way (from C, or before the worker served) runs, and so do profilers in
C other than `cProfile`, functions of Python that user code has replaced, methods of a subclass of `Thread`
that Python's own hook calls, and finalisers of what a missing thread kept for itself. Where that changes a
file before an undo has looked at it, the undo is refused.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import posix
import sys
import threading
import traceback
import weakref
from _lsprof import Profiler as _CProfiler
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

_MONITORING_TOOLS = range(6)
# What `logging` keeps for forks: its handlers, and the function that gives each a lock that nobody holds.
_HANDLERS = "_at_fork_reinit_lock_weakset"
_MEND_HANDLERS = "_after_at_fork_child_reinit_locks"

# As Python has them: user code may put others in their places, or delete them.
_register_at_fork = os.register_at_fork
_add_audit_hook = sys.addaudithook
_switch_collector_off = gc.disable
_switch_collector_on = gc.enable
_is_collecting = gc.isenabled
_get_trace = sys.gettrace
_set_trace = sys.settrace
_get_profile = sys.getprofile
_set_profile = sys.setprofile


def report_exception() -> None:
    """Write the present exception to standard error, past what user code may have put in its place."""
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))


@dataclass(slots=True)
class UserHooks:
    """What becomes of the hooks of user code in this process.

    Attributes:
        state: Whether hooks are called as usual; or a fork of ours is being made, in which those for children
            will not be; or this is a snapshot, or a fork of one that waits, in which none is; or such a fork
            was released, and calls them again when user code forks, or runs in a call.
        missed: Hooks for children that are due then.
        before: Hooks that are called before each fork, in the order in which they were registered.
    """

    state: Literal["running", "forking", "waiting", "released"] = "running"
    missed: list[Callable[[], object]] = field(default_factory=list)
    before: list[Callable[[], object]] = field(default_factory=list)
    _former: Literal["running", "forking", "waiting", "released"] = "running"
    _thread: int = 0
    _collects: bool = False
    _process: int = 0
    _trace: Any = None
    _profile: Any = None
    _report: Callable[[Any], object] = sys.__unraisablehook__
    _handlers: Any = None
    _monitored: dict[int, int] = field(default_factory=dict)

    def install(self) -> None:
        """Have hooks that are registered from now on called by way of this."""
        os.register_at_fork = posix.register_at_fork = self._register_at_fork
        sys.addaudithook = self._add_audit_hook

    def begin_fork(self) -> None:
        """Call no hook for children in the fork that is made next, and collect and trace nothing."""
        self._former = self.state
        if self.state == "running":
            # Not by Python itself: they might switch on again what is switched off here.
            for hook in reversed(self.before):
                try:
                    hook()
                except BaseException:  # Python reports it and forks, whatever it is
                    report_exception()
            self._collects, self._trace, self._profile = _is_collecting(), _get_trace(), _get_profile()
            self._switch_off()
        if self.state != "waiting":
            self._thread, self.state = threading.get_ident(), "forking"

    def end_fork(self, *, is_child: bool) -> None:
        """Go on as before the fork, in the process that has made it; wait, in the fork."""
        self.state = "waiting" if is_child else self._former
        if self.state == "running":
            self._switch_on()

    def release(self) -> None:
        """Let the hooks be called again as soon as user code runs; see `state`."""
        self.state = "released"

    def go_on(self) -> None:
        """Call what was missed, and hooks as usual from now on, if they are not called yet.

        An interrupt ends it; then the next time goes on behind the hook that it has struck.
        """
        if self.state in {"running", "forking"}:
            return
        self.state = "running"
        self._process = os.getpid()
        self._put_handlers_back()
        if mend := vars(logging).get(_MEND_HANDLERS):
            self.missed.insert(0, mend)
        while self.missed:
            hook = self.missed.pop(0)
            try:
                hook()
            except KeyboardInterrupt:
                self.state = "released"
                raise
            except BaseException:  # Python reports it and goes on, whatever it is
                report_exception()
        self._switch_on()

    def _switch_off(self) -> None:
        _switch_collector_off()
        self._process = os.getpid()
        self._report = vars(sys).get("unraisablehook", sys.__unraisablehook__)  # it may have been deleted
        sys.unraisablehook = self._report_in_parent
        # Python's own hook calls each handler of `logging`, which may be of a class of user code.
        self._handlers = vars(logging).get(_HANDLERS)
        if self._handlers is not None:
            vars(logging)[_HANDLERS] = weakref.WeakSet()
        if issubclass(type(self._profile), _CProfiler):
            _CProfiler.disable(self._profile)  # its clock may be a function of user code
        elif callable(self._profile):
            _set_profile(None)
        if callable(self._trace):
            _set_trace(None)
        if monitoring := getattr(sys, "monitoring", None):  # from Python 3.12 on
            for tool in _MONITORING_TOOLS:
                if monitoring.get_tool(tool) is not None and (events := monitoring.get_events(tool)):
                    self._monitored[tool] = events
                    monitoring.set_events(tool, 0)

    def _switch_on(self) -> None:
        if self._collects:
            _switch_collector_on()
        if vars(sys).get("unraisablehook") == self._report_in_parent:
            sys.unraisablehook = self._report
        self._put_handlers_back()
        monitored, self._monitored = self._monitored, {}
        for tool, events in monitored.items():
            sys.monitoring.set_events(tool, events)  # type: ignore[attr-defined]  # from Python 3.12 on
        if callable(self._trace):
            _set_trace(self._trace)
        if issubclass(type(self._profile), _CProfiler):
            _CProfiler.enable(self._profile)
        elif callable(self._profile):
            _set_profile(self._profile)
        self._trace = self._profile = None

    def _put_handlers_back(self) -> None:
        handlers, self._handlers = self._handlers, None
        if handlers is not None:
            handlers |= vars(logging)[_HANDLERS]  # race: another thread may have made one meanwhile
            vars(logging)[_HANDLERS] = handlers

    def _report_in_parent(self, report: Any) -> None:
        """Stand in for `sys.unraisablehook`: Python's own hooks may raise in a fork."""
        if os.getpid() == self._process:
            self._report(report)

    def _register_at_fork(self, **hooks: Any) -> None:
        """Stand in for `os.register_at_fork`, with its arguments."""
        # What is not a function is passed on as it is: Python raises the right error.
        wrapped = {name: self.wrap(name, hook) if callable(hook) else hook for name, hook in hooks.items()}
        _register_at_fork(**wrapped)

    def wrap(self, name: str, hook: Callable[[], object]) -> Callable[[], object]:
        """Return what is registered for a hook: it calls that where it is due.

        Args:
            name: When Python calls it: `before`, `after_in_parent` or `after_in_child`.
            hook: A function of user code, or one that may call some.
        """
        if name == "before":
            self.before.append(hook)

        def call() -> None:
            # Race: another thread of the worker may fork at this moment, for user code.
            if self.state == "forking" and threading.get_ident() == self._thread:
                # A fork that was released has missed its hooks, and still does: so has one of it.
                if self._former == "running" and name == "after_in_child":
                    self.missed.append(hook)
                elif self._former == "running" and name == "after_in_parent":
                    hook()
            elif self.state != "waiting":
                self.go_on()
                hook()

        return call

    def _add_audit_hook(self, hook: Callable[[str, tuple[Any, ...]], object]) -> None:
        """Stand in for `sys.addaudithook`."""

        def call(event: str, arguments: tuple[Any, ...]) -> None:
            if self.state not in {"waiting", "released"}:
                hook(event, arguments)

        with contextlib.suppress(AttributeError):
            call.__cantrace__ = hook.__cantrace__  # type: ignore[attr-defined]  # see `sys.addaudithook`
        _add_audit_hook(call)
