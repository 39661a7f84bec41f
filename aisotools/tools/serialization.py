"""Pickle functions by value, so that a worker process can run them without the caller's modules.

Only this module uses cloudpickle. Pickles go from the host to workers only: nothing that a worker sends is
ever unpickled on the host.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from aisotools.core.exceptions import SignatureError, as_clause

MAX_PAYLOAD_BYTES = 32 << 20
"""The largest pickle of one function, with the data it refers to."""

NAMESPACE = "namespace"
"""The persistent id that stands for the namespace in the output of `pickle_namespace`."""

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_PLAIN_TYPES = _PLAIN | {list, dict, tuple, set}
_PLAIN_NAMES = frozenset({"None", *(kind.__name__ for kind in _PLAIN_TYPES)})

# cloudpickle keeps its list of modules to pickle by value in a global, shared by all threads.
_registry_lock = threading.Lock()


def pickle_by_value(name: str, value: object) -> bytes:
    """Pickle a tool, including what it uses from modules that are not installed in the worker.

    Args:
        name: The tool's name, for error messages.
        value: The object to pickle.

    Raises:
        SignatureError: If it refers to something that cannot be pickled, or to more than
            `MAX_PAYLOAD_BYTES`.
    """
    import cloudpickle

    buffer = io.BytesIO()
    with _registry_lock:
        registered = cloudpickle.list_registry_pickle_by_value()
        names = [name for name in _uninstalled_modules(tuple(sys.modules)) if name not in registered]
        modules = [sys.modules[name] for name in names if name in sys.modules]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            _pickler()(buffer).dump(value)
        except Exception as error:
            raise SignatureError(
                f"Tool {name} cannot be sent to the sandbox: {type(error).__name__}: {as_clause(error)}. "
                "It refers to an object that exists only in this process. Create that inside the function, "
                "or use runs_in='host'.",
            ) from error
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
    payload = buffer.getvalue()
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise SignatureError(
            f"Tool {name} cannot be sent to the sandbox: it has {len(payload):,} bytes with its data; at "
            f"most {MAX_PAYLOAD_BYTES:,} can be sent. Save the data to a file in the workspace.",
        )
    return payload


def pickle_namespace(variables: Mapping[str, Any], namespace: Mapping[str, Any]) -> bytes:
    """Pickle variables in one piece, so that objects they share stay shared.

    The globals of functions are not copied: the pickle refers to the namespace by the persistent id
    `NAMESPACE`. Only workers call this, and only workers unpickle the output.

    Args:
        variables: The variables to pickle.
        namespace: The namespace they belong to.

    Raises:
        Exception: Anything that the pickling of an object raises.
    """
    import cloudpickle

    # cloudpickle replaces the globals of a function by this dict, which is recognized by its identity.
    placeholder = {"__name__": "__main__"}

    class NamespacePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
        def persistent_id(self, obj: object) -> str | None:
            return NAMESPACE if obj is placeholder else None

    buffer = io.BytesIO()
    pickler = NamespacePickler(buffer)
    pickler.globals_ref[id(namespace)] = placeholder
    pickler.dump(dict(variables))
    return buffer.getvalue()


def is_self_contained(function: object) -> bool:
    """Return whether a function refers to nothing that could change, so that its pickle can be cached.

    Such a function uses no globals but builtins, has no closure and no attributes, and its defaults and
    annotations are of plain types.
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_freevars or getattr(function, "__dict__", None):
        return False
    names = getattr(function, "__globals__", {})
    if any(name in names for name in _names_in(code)):
        return False
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())  # type: ignore[attr-defined]  # it has code, so it is a function
    annotations = getattr(function, "__annotations__", {}).values()
    return all(type(value) in _PLAIN for value in defaults) and all(_is_plain_type(a) for a in annotations)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_plain_type(annotation: object) -> bool:
    if isinstance(annotation, str):
        # `from __future__ import annotations`
        return annotation in _PLAIN_NAMES
    return annotation is None or (isinstance(annotation, type) and annotation in _PLAIN_TYPES)


@cache
def _pickler() -> Any:
    import cloudpickle

    class ToolPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle ships no types
        """Pickle by name what the receiver compares by identity."""

        def reducer_override(self, obj: Any) -> Any:
            if obj is dataclasses.MISSING:
                # `dataclasses` tests `default is MISSING`: a copy would count as a default.
                return "MISSING"
            return super().reducer_override(obj)

    return ToolPickler


@lru_cache(maxsize=1)
def _uninstalled_modules(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that a worker cannot import: it may read installed packages only."""
    # cloudpickle pickles __main__ by value anyway.
    return tuple(name for name in names if name != "__main__" and not _is_installed(name))


def _is_installed(name: str) -> bool:
    module, top = sys.modules.get(name), sys.modules.get(name.partition(".")[0])
    if not isinstance(module, ModuleType) or module.__name__ != name or top is None:
        # Some libraries put other objects into sys.modules. No function or class refers to them.
        return True
    spec = getattr(top, "__spec__", None)
    if spec is None:
        # Created in memory, as by `types.ModuleType`, or built into the interpreter.
        return name in sys.builtin_module_names
    file = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    return file is None or str(file).startswith(_installation_folders())


@cache
def _installation_folders() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {str(Path(__file__).parents[1]), *(sysconfig.get_path(kind) for kind in kinds)}
    # The user site and distributions (dist-packages) use folders that sysconfig does not name.
    folders |= {entry for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"}}
    return tuple(f"{folder}/" for folder in folders if folder)
