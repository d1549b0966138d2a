"""Checks the table of reported faults in docs/testing.md against the tests: a lint of tools/run-tests."""

import ast
import re
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
TABLE = REPO / "docs" / "testing.md"
CASES = REPO / "integration" / "vm" / "cases"
UNIT = REPO / "unit"
ROW = re.compile(r"\b[A-R]\d\d\b")
NAME = r'(?:"(?:[^"\\]|\\.)*"\s*)+'  # a C++ string literal, perhaps in pieces
UNIT_CASE = re.compile(rf"\bTEST_CASE\w*\s*\(\s*(?:\w+,\s*)?({NAME})")


def table(text):
    """({row: (tests, note)}, complaints); tests are names of VM cases, "unit" and "kube"."""
    rows, bad = {}, []
    for line in text.splitlines():
        match = re.match(r"\| ((?:[A-R]\d\d(?:, )?)+) \|(.*)\|(.*)\|$", line)
        if not match:
            continue
        ids, tests, note = match.group(1).split(", "), match.group(2).strip(), match.group(3).strip()
        names = [] if tests == "-" else [name.strip("`") for name in tests.split(", ")]
        if not all(name in ("unit", "kube") or re.fullmatch(r"vm/[\w/-]+", name) for name in names):
            bad.append(f"{match.group(1)}: {tests!r} is neither `-` nor a list of VM cases, unit and kube")
        if not names and not note:
            bad.append(f"{match.group(1)}: neither a test nor a note why there is none")
        bad += [f"{row}: twice in the table" for row in ids if row in rows]
        rows.update((row, (set(names), note)) for row in ids)
    return rows, bad


def vm_cases():
    """{name of a VM case: rows that its text names}."""
    found = {}
    for module in sorted(CASES.glob("*.py")):
        for function in ast.walk(ast.parse(module.read_bytes())):
            for call in getattr(function, "decorator_list", []):
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "case":
                    found["vm/" + ast.literal_eval(call.args[0])] = set(ROW.findall(ast.get_docstring(function) or ""))
    return found


def unit_rows(kube):
    """Rows that names of unit tests carry, or of those on a real API server."""
    paths = [path for path in UNIT.rglob("*.cpp") if (path.parent.name == "kube") == kube]
    names = [name for path in paths for name in UNIT_CASE.findall(path.read_text())]
    return {row for name in names for row in ROW.findall(name)}


def check():
    """What the table says and the tests do not, or the other way; empty when they agree."""
    rows, bad = table(TABLE.read_text())
    proved = {**vm_cases(), "unit": unit_rows(False), "kube": unit_rows(True)}
    for row, (tests, _) in rows.items():
        for name in sorted(tests):
            if name not in proved:
                bad.append(f"{row}: there is no VM case {name}")
            elif row not in proved[name]:
                bad.append(f"{row}: {f'no {name} test' if name in ('unit', 'kube') else name} names it")
    for name, named in proved.items():
        for row in sorted(named):
            if name not in rows.get(row, (set(), ""))[0]:
                bad.append(f"{row}: {name} names it, the table does not have it in that row")
    return "".join(f"docs/testing.md: {one}\n" for one in bad)


if __name__ == "__main__":
    print(check(), end="")
