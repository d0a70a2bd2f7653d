"""Handlers of ONNX ops, a file per family. Importing this package fills the table in registry.py."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
