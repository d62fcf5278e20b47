"""msgpack with numpy arrays, in the three dialects that robot policy clients speak. Nothing is ever unpickled.

==========  ====================================  =====================================================
dialect     arrays                                spoken by
==========  ====================================  =====================================================
openpi      ``__ndarray__``, raw bytes            openpi, RoboArena, RoboLab, MolmoSpaces (pi); ourselves
lebedov     ``nd``, raw bytes (msgpack-numpy)     MolmoSpaces websocket clients, GR00T N1.7
gr00t       ``__ndarray_class__``, a ``.npy``     GR00T N1.5 and N1.6
==========  ====================================  =====================================================

A message is refused before anything is built from it: unknown or object dtypes, byte counts that do not match the
shape, sizes over the limit. Decoded arrays are owned and writable.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgpack
import numpy as np
from numpy.lib import format as npy

from cosmos_robot.errors import WireError

Dialect = Literal["openpi", "lebedov", "gr00t"]
DIALECTS: Final[tuple[Dialect, ...]] = ("openpi", "lebedov", "gr00t")

MAX_BYTES: Final = 32 * 2**20
"""Default limit of one message: thirty uncompressed 640x480 pictures."""

_MAX_ITEMS: Final = 100_000
_DTYPE: Final = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|U\d{1,4})")


class Decoded(NamedTuple):
    """A message's value, and the dialect of its arrays: None if it holds none, so that any dialect reads it."""

    value: Any
    dialect: Dialect | None


def encode(value: Any, dialect: Dialect = "openpi", max_bytes: int = MAX_BYTES) -> bytes:
    """``value`` (maps, lists, text, bytes, numbers, numpy arrays and scalars) as one message.

    Tuples arrive as lists, arrays in C order with their dtype. Raises WireError on anything else, on object, complex,
    structured and time arrays, and on a message over ``max_bytes``.
    """
    if dialect not in _ENVELOPES:
        raise WireError(f"unknown wire dialect {dialect!r}; known: {', '.join(DIALECTS)}")
    try:
        data = msgpack.packb(value, default=_ENVELOPES[dialect])
    except WireError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"this value cannot be sent: {error}") from error
    if len(data) > max_bytes:
        raise WireError(f"message of {len(data):,} bytes is over the limit of {max_bytes:,}; send smaller pictures")
    return bytes(data)


def decode(data: bytes | memoryview, max_bytes: int = MAX_BYTES) -> Decoded:
    """Read one message in whichever dialect it is written. Raises WireError saying what is wrong with it."""
    if len(data) > max_bytes:
        raise WireError(f"message of {len(data):,} bytes is over the limit of {max_bytes:,}")
    found: set[Dialect] = set()
    try:
        value = msgpack.unpackb(
            data,
            object_hook=lambda entries: _restore(entries, found),
            ext_hook=_refuse_extension,
            max_array_len=_MAX_ITEMS,
            max_map_len=_MAX_ITEMS,
        )
    except WireError:
        raise
    except RecursionError as error:
        raise WireError("message is nested too deeply") from error
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"this is no message we can read: {type(error).__name__}: {error}") from error
    if len(found) > 1:
        raise WireError(f"message mixes the array dialects {', '.join(sorted(found))}; use one")
    return Decoded(value, next(iter(found), None))


def _check_sendable(dtype: np.dtype[Any]) -> None:
    if not _DTYPE.fullmatch(dtype.str):
        raise WireError(f"arrays of dtype {dtype} cannot be sent; send bool, integer, float or text arrays")


def _openpi_envelope(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray):
        _check_sendable(value.dtype)
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        _check_sendable(value.dtype)
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise _unsendable(value)


def _lebedov_envelope(value: Any) -> dict[bytes, Any]:
    if isinstance(value, np.ndarray):
        _check_sendable(value.dtype)
        head = {b"nd": True, b"type": value.dtype.str, b"kind": b"", b"shape": value.shape}
        return {**head, b"data": value.tobytes()}
    if isinstance(value, np.generic):
        _check_sendable(value.dtype)
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    raise _unsendable(value)


def _gr00t_envelope(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        _check_sendable(value.dtype)
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": file.getvalue()}
    if isinstance(value, np.generic):
        raise WireError(f"the gr00t dialect has no numpy scalars; send {value!r} as a plain number or an array")
    raise _unsendable(value)


_ENVELOPES: Final[Mapping[Dialect, Callable[[Any], Any]]] = {
    "openpi": _openpi_envelope,
    "lebedov": _lebedov_envelope,
    "gr00t": _gr00t_envelope,
}


def _unsendable(value: Any) -> WireError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    hint = "; convert it with .cpu().numpy()" if kind.startswith("torch.") else ""
    return WireError(f"a {kind} cannot be sent{hint}")


def _refuse_extension(code: int, data: bytes) -> Any:
    raise WireError(f"message holds a msgpack extension of type {code}, which no dialect uses")


def _restore(entries: dict[Any, Any], found: set[Dialect]) -> Any:
    """An array or scalar where ``entries`` is an envelope, else ``entries``."""
    if entries.get(b"__ndarray__") is True:
        found.add("openpi")
        return _array(entries.get(b"dtype"), entries.get(b"shape"), entries.get(b"data"))
    if entries.get(b"__npgeneric__") is True:
        found.add("openpi")
        return _scalar(entries.get(b"dtype"), entries.get(b"data"))
    if b"nd" in entries:
        found.add("lebedov")
        return _from_lebedov(entries)
    if entries.get("__ndarray_class__") is True:
        found.add("gr00t")
        return _from_npy(entries.get("as_npy"))
    return entries


def _dtype(name: Any) -> np.dtype[Any]:
    name = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise WireError(f"array of dtype {name!r}; expected a bool, integer, float or text dtype such as '<f4'")
    return np.dtype(name)


def _array(dtype_name: Any, shape: Any, data: Any) -> np.ndarray[Any, np.dtype[Any]]:
    dtype = _dtype(dtype_name)
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > 32:
        raise WireError(f"array of shape {shape!r}; expected a list of at most 32 whole numbers from 0")
    if not isinstance(data, bytes):
        raise WireError(f"array data is {type(data).__name__}, expected bytes")
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise WireError(f"array of shape {shape} and dtype {dtype.str} needs {expected} bytes, got {len(data)}")
    return np.frombuffer(bytearray(data), dtype).reshape(shape)


def _scalar(dtype_name: Any, value: Any) -> np.generic:
    dtype = _dtype(dtype_name)
    if not isinstance(value, bool | int | float | str):
        raise WireError(f"numpy scalar holds {type(value).__name__}, expected a number or text")
    try:
        return dtype.type(value)  # type: ignore[no-any-return]
    except (ValueError, OverflowError) as error:
        raise WireError(f"numpy scalar {value!r} is no {dtype}") from error


def _from_lebedov(entries: dict[Any, Any]) -> Any:
    if entries.get(b"kind", b"") not in (b"", ""):
        raise WireError(f"array of kind {entries[b'kind']!r}; object and structured arrays are never read")
    if entries[b"nd"] is True:
        return _array(entries.get(b"type"), entries.get(b"shape"), entries.get(b"data"))
    return _array(entries.get(b"type"), [], entries.get(b"data"))[()]


def _from_npy(data: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if not isinstance(data, bytes):
        raise WireError(f"as_npy is {type(data).__name__}, expected the bytes of a .npy file")
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)  # type: ignore[no-untyped-call]
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, dtype = read_header(file)  # type: ignore[no-untyped-call]
    except (ValueError, KeyError, SyntaxError, TypeError) as error:
        raise WireError(f"as_npy is no .npy file of version 1 or 2: {error}") from error
    array = _array(dtype.str, list(shape[::-1] if fortran else shape), data[file.tell() :])
    return array.T if fortran else array
