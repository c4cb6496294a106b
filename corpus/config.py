"""TOML or a plain mapping to frozen dataclasses, and nothing else."""

import dataclasses
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration file that cannot be used as it stands."""


def load(path: Path, config_type: type[T]) -> T:
    """Read the TOML file at ``path`` as a ``config_type``.

    Raises
    ------
    ConfigError
        Not TOML, an unknown or missing key, a value of the wrong type, or one that the
        dataclass itself refuses; the message names file, table and key.
    """
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return build(config_type, table, where=str(path))


def build(config_type: type[T], table: Mapping[str, Any], *, where: str) -> T:
    """Make a ``config_type`` from ``table``; nested dataclasses are nested tables."""
    hints = get_type_hints(config_type)
    if unknown := sorted(table.keys() - hints.keys()):
        raise ConfigError(f"{where}: unknown key(s) {unknown}; known keys are {sorted(hints)}")
    values = {
        name: _convert(hints[name], value, where=f"{where} [{name}]")
        for name, value in table.items()
    }
    try:
        return config_type(**values)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _convert(hint: Any, value: Any, *, where: str) -> Any:
    """``value`` as ``hint`` asks for; ints pass for floats, strings for paths, lists for tuples."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(hint), value, where=where)
    if origin is tuple and isinstance(value, list):
        (item, *_) = get_args(hint)
        return tuple(_convert(item, element, where=where) for element in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: found {value!r}, a table of keys is needed")
        return build(hint, value, where=where)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    expected = origin or hint
    if isinstance(expected, type) and (
        not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool)
    ):
        raise ConfigError(f"{where}: found {value!r}, {expected.__name__} is needed")
    return value


def _convert_union(hints: tuple[Any, ...], value: Any, *, where: str) -> Any:
    errors = []
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return _convert(hint, value, where=where)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]
