"""Importing this package defines every op; FUNCTIONS holds the public ones by name, aliases included."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from stitchwork.ops._build import function
from stitchwork.ops._op import REGISTRY as REGISTRY

for _m in pkgutil.iter_modules(__path__):
    if not _m.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_m.name}")

FUNCTIONS: dict[str, Callable[..., Any]] = {}
for _cls in REGISTRY.values():
    _function = function(_cls)
    if not _cls.internal:
        FUNCTIONS.update(dict.fromkeys((_cls.name, *_cls.aliases), _function))
