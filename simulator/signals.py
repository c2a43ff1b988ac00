"""Values of simulated sensors, also of those that fail. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from simulator.kinds import SensorFault, SimulatedSensor
from simulator.shapes import day_phase

SPIKES: Final = 0.05
"""Share of the values of a sensor with spikes that are one."""
SPIKE: Final = 10.0
DRIFT_PER_HOUR: Final = 0.1
"""Part of the base by which a drifting sensor moves in an hour."""


class DeviceSensors:
    """Sensors of one device; the first of them fails, if any does."""

    def __init__(
        self,
        sensors: Sequence[SimulatedSensor],
        chance: random.Random,
        day_s: float,
        fault: SensorFault | None = None,
        fails_at_s: float = 0.0,
    ) -> None:
        """`fault`: what happens to the first sensor, `fails_at_s` seconds after the start."""
        self._sensors: Final = tuple(sensors)
        self._chance = chance
        self._day_s = day_s
        self._fault = fault
        self._fails_at_s = fails_at_s
        self._last: float | None = None
        """Value of the first sensor before it failed."""

    def read(self, now_s: float, day_s: float) -> dict[str, float | None]:
        """Return the values. `now_s`: seconds since the start; `day_s`: those of the clock that the days follow."""
        found: dict[str, float | None] = {}
        for number, sensor in enumerate(self._sensors):
            value: float | None = self._value(sensor, now_s, day_s)
            if number == 0 and self._fault is not None and now_s >= self._fails_at_s:
                value = self._failed(sensor, float(value or 0.0), now_s - self._fails_at_s)
            elif number == 0:
                self._last = value
            found[sensor.name] = value
        return found

    def _value(self, sensor: SimulatedSensor, now_s: float, day_s: float) -> float:
        value = sensor.base + sensor.swing * day_phase(day_s, self._day_s) + sensor.drift_per_hour * now_s / 3600
        if sensor.noise:
            value += self._chance.gauss(0.0, sensor.noise)
        return round(value, sensor.decimals)

    def _failed(self, sensor: SimulatedSensor, value: float, failed_s: float) -> float | None:
        match self._fault:
            case SensorFault.SILENT:
                return None
            case SensorFault.STUCK:
                if self._last is None:
                    self._last = value
                return self._last
            case SensorFault.SPIKES if self._chance.random() < SPIKES:
                return round(sensor.base + SPIKE * (value - sensor.base), sensor.decimals)
            case SensorFault.DRIFTING:
                moved = (sensor.base or 1.0) * DRIFT_PER_HOUR * failed_s / 3600
                return round(value + moved, sensor.decimals)
        return value
