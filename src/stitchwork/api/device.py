"""Where programs run."""

from __future__ import annotations

from dataclasses import dataclass

from stitchwork.backends.cpu.target import Target
from stitchwork.errors import CompileError


@dataclass(frozen=True)
class Device:
    """A device: its kind ("cpu") and number among its kind."""

    kind: str
    index: int = 0

    @staticmethod
    def parse(spec: str | Device) -> Device:
        """The device meant by "cpu" or "cpu:0". Raises CompileError for one that is not there."""
        if isinstance(spec, Device):
            return spec._checked()
        if not isinstance(spec, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # a user may pass anything
            raise CompileError("device", f"no device `{spec!r}`", expected=", ".join(map(str, devices())))
        kind, _, number = spec.partition(":")
        return Device(kind, int(number) if number.isdigit() else 0 if not number else -1)._checked()

    def _checked(self) -> Device:
        if self not in devices():
            raise CompileError("device", f"no device `{self}`", expected=", ".join(map(str, devices())))
        return self

    @property
    def description(self) -> str:
        """What the device is."""
        return Target.host().cpu

    def __str__(self) -> str:
        return self.kind if self.index == 0 else f"{self.kind}:{self.index}"


def devices() -> list[Device]:
    """The devices of this machine that programs can be compiled for."""
    return [Device("cpu")]
