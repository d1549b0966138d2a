"""Waiting and timeouts that fit the machine they run on."""

import os
import time

_factor = float(os.environ.get("PILLAR_TIMEOUT_SCALE", "1"))
_measured = 1.0


def learn_boot(seconds, machines):
    """Takes the time a boot needed as the measure of how loaded and slow this machine is."""
    global _measured
    nominal = 8.0 * max(1.0, machines / 1.5)
    _measured = min(10.0, max(1.0, seconds / nominal))


def factor():
    """How much longer than on an idle 2-core machine things take; at least 1."""
    return _factor * _measured


def scaled(seconds):
    return seconds * factor()


def until(condition, timeout, what="condition", step=0.05):
    """Polls until condition() is true and returns its value; AssertionError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} (waited {timeout:.1f} s)")
        time.sleep(step)
