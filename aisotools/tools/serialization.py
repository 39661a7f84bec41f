"""How a function travels to a worker: by value, with everything of ours that it refers to.

The door to cloudpickle. It goes from host to worker only; nothing a worker sends is ever unpickled.
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

from aisotools.core.exceptions import SignatureError

MAX_PAYLOAD_BYTES = 32 << 20
"""How much one function may bring along."""

_registering = threading.Lock()


def pickle_by_value(name: str, thing: object) -> bytes:
    """A tool as bytes that a worker can unpickle, though it has none of the caller's modules.

    Args:
        name: The tool's name, for messages.
        thing: What to pickle.

    Raises:
        SignatureError: If it refers to something that cannot be sent, or to too much.
    """
    import cloudpickle

    buffer = io.BytesIO()
    with _registering:  # what is sent by value is a setting of cloudpickle's, for all threads
        already = cloudpickle.list_registry_pickle_by_value()
        ours = [
            sys.modules[m] for m in _strangers(tuple(sys.modules)) if m in sys.modules and m not in already
        ]
        for module in ours:
            cloudpickle.register_pickle_by_value(module)
        try:
            _pickler()(buffer).dump(thing)
        except Exception as error:
            raise SignatureError(
                f"Tool {name} cannot be sent to the sandbox: {type(error).__name__}: {error}. It refers to "
                "something that lives in this process; create that inside the function, or use "
                "runs_in='host'.",
            ) from error
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)
    payload = buffer.getvalue()
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise SignatureError(
            f"Tool {name} cannot be sent to the sandbox: it refers to {len(payload):,} bytes of data, and at "
            f"most {MAX_PAYLOAD_BYTES:,} travel with a function. Save the data to a file in the workspace.",
        )
    return payload


NAMESPACE = "namespace"
"""The persistent id of a namespace in what `pickle_namespace` gives."""


def pickle_namespace(variables: Mapping[str, Any], namespace: Mapping[str, Any]) -> bytes:
    """Variables as bytes, all together, so that what is shared stays shared.

    Functions keep in touch with the variables: their globals are the namespace itself, as `NAMESPACE`, and
    not a copy. For use in a worker only, as is the unpickling.

    Args:
        variables: Which to take.
        namespace: Where they live.

    Raises:
        Exception: Whatever an object has to say against it.
    """
    import cloudpickle

    place = {"__name__": "__main__"}

    class NamespacePickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
        def persistent_id(self, obj: object) -> str | None:
            return NAMESPACE if obj is place else None

    buffer = io.BytesIO()
    pickler = NamespacePickler(buffer)
    pickler.globals_ref[id(namespace)] = place
    pickler.dump(dict(variables))
    return buffer.getvalue()


def stands_alone(function: object) -> bool:
    """Whether a function refers to nothing that could change, so that what was packed once stays right.

    It uses no names from outside but builtins, no closure and no attributes, and its defaults and annotations
    are plain.
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


_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_PLAIN_TYPES = _PLAIN | {list, dict, tuple, set}
_PLAIN_NAMES = frozenset({"None", *(kind.__name__ for kind in _PLAIN_TYPES)})


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_plain_type(annotation: object) -> bool:
    if isinstance(annotation, str):  # as modules with postponed annotations have them
        return annotation in _PLAIN_NAMES
    return annotation is None or (isinstance(annotation, type) and annotation in _PLAIN_TYPES)


@cache
def _pickler() -> Any:
    import cloudpickle

    class ToolPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle ships no types
        """Sends by name what is compared by identity where it arrives."""

        def reducer_override(self, obj: Any) -> Any:
            if obj is dataclasses.MISSING:
                return "MISSING"  # a copy of it would count as a default
            return super().reducer_override(obj)

    return ToolPickler


@lru_cache(maxsize=1)
def _strangers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the imported modules a worker cannot import, for they are not installed where it may read."""
    # cloudpickle sends __main__ by value anyway.
    return tuple(name for name in names if name != "__main__" and not _installed(name))


def _installed(name: str) -> bool:
    module, top = sys.modules.get(name), sys.modules.get(name.partition(".")[0])
    if not isinstance(module, ModuleType) or module.__name__ != name or top is None:
        return True  # an entry of another kind, which no function or class names as its home
    spec = getattr(top, "__spec__", None)
    if spec is None:
        return name in sys.builtin_module_names  # made by hand
    file = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    return file is None or str(file).startswith(_homes())


@cache
def _homes() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {str(Path(__file__).parents[1]), *(sysconfig.get_path(kind) for kind in kinds)}
    # Packages of the user, or of the distribution, lie in folders that sysconfig does not name.
    folders |= {entry for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"}}
    return tuple(f"{folder}/" for folder in folders if folder)
