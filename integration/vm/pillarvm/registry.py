"""Test cases, the machines they share, and how a case says that it cannot run."""

import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path

CASES = []
FIXTURES = {}


class Skip(Exception):
    """Raised by a case or a fixture that cannot run here; the text is the reason shown."""


@dataclass(frozen=True)
class Case:
    name: str  # with the prefix vm/
    function: object
    fixture: str
    timeout: float
    allow_kernel: tuple


def case(name, fixture="one", timeout=60, allow_kernel=()):
    """Registers `function(fx)` as the test vm/<name>. Cases of one fixture share its boot, in order of file name and
    definition; after a failure the machines are booted afresh. timeout: seconds on an idle machine, after
    three times as many the case has failed. allow_kernel:
    regular expressions of kernel log lines that would fail the case otherwise but are expected."""
    def register(function):
        full = "vm/" + name
        if any(other.name == full for other in CASES):
            raise ValueError(f"two cases are named {full}")
        CASES.append(Case(full, function, fixture, timeout, tuple(allow_kernel)))
        return function
    return register


def fixture(name):
    """Registers a subclass of machines.Machines under the name that cases give."""
    def register(cls):
        FIXTURES[name] = cls
        return cls
    return register


def load():
    """Imports every module of cases/ and returns the cases, grouped by fixture."""
    folder = Path(__file__).resolve().parent.parent / "cases"
    importlib.import_module("pillarvm.machines")
    for module in sorted(info.name for info in pkgutil.iter_modules([str(folder)])):
        importlib.import_module("cases." + module)
    order = {name: index for index, name in enumerate(dict.fromkeys(one.fixture for one in CASES))}
    for one in CASES:
        if one.fixture not in FIXTURES:
            raise ValueError(f"{one.name}: no fixture {one.fixture!r} (known: {', '.join(sorted(FIXTURES))})")
    return sorted(CASES, key=lambda one: order[one.fixture])
