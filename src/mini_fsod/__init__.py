"""Few-shot object detection: show it K boxes of a new class, and it finds that class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mini_fsod.errors import UserError as UserError
    from mini_fsod.predict.load import load_model as load
    from mini_fsod.predict.model import Model as Model
    from mini_fsod.predict.prediction import Prediction as Prediction
    from mini_fsod.script import run_config as run

__version__ = "0.2.0"
__all__ = ["Model", "Prediction", "UserError", "__version__", "load", "run"]

# The public names of Python, and where they are defined; imported when they are first used
_PUBLIC = {
    "Model": ("mini_fsod.predict.model", "Model"),
    "Prediction": ("mini_fsod.predict.prediction", "Prediction"),
    "UserError": ("mini_fsod.errors", "UserError"),
    "load": ("mini_fsod.predict.load", "load_model"),
    "run": ("mini_fsod.script", "run_config"),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
