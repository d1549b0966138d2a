"""Runs the cases: one line per case, the machines' logs below a failure, `N passed, N failed` at the end."""

import argparse
import fnmatch
import itertools
import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from . import net, prepare, registry, timing

REPO = Path(__file__).resolve().parents[3]
KEPT_RUNS = 10
BOOT_LIMIT = 180


class CaseTimeout(BaseException):
    """Not an Exception, so that no helper of a case takes it for a failed attempt."""


def on_alarm(signum, frame):
    raise CaseTimeout()


def on_stop(signum, frame):
    raise SystemExit(f"stopped by {signal.Signals(signum).name}")


class Limit:
    """Raises CaseTimeout in the main thread after `seconds`."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *failure):
        signal.setitimer(signal.ITIMER_REAL, 0)


class Report:
    """Prints a line per test, or a JSON object per test for tools/run-tests."""

    def __init__(self, as_json):
        self.as_json = as_json
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def add(self, name, result, seconds, text=""):
        self.counts[result] += 1
        if self.as_json:
            print(json.dumps({"name": name, "result": result, "seconds": seconds, "text": text}), flush=True)
            return
        print(f"{result:7} {name}  {seconds:.1f} s", flush=True)
        if text:
            print("    " + text.replace("\n", "\n    "), flush=True)

    def close(self):
        if not self.as_json:
            line = "{passed} passed, {failed} failed".format(**self.counts)
            print(line + (f", {self.counts['skipped']} skipped" if self.counts["skipped"] else ""), flush=True)
        return 0 if self.counts["passed"] and not self.counts["failed"] else 1


def tail(path, lines):
    text = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [f"  {line}" for line in text[-lines:]]


def evidence(machines):
    """The ends of all logs of a failed case."""
    shown = []
    for log in sorted(machines.folder.glob("**/*.log"), key=lambda path: (path.parent, path.name)):
        lines = tail(log, 12 if log.name in ("console.log", "kernel.log") else 25)
        if lines:
            shown += [f"{log.relative_to(machines.folder)}:", *lines]
    return "\n".join([*shown, f"all logs: {machines.folder}"])


def failure_text(error, machines):
    frames = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}: {frame.line}"
              for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(REPO))]
    return "\n".join([f"{type(error).__name__}: {error}", *frames[-6:], evidence(machines)])


class Group:
    """The cases of one fixture; boots it when needed, and again after a failure."""

    def __init__(self, fixture, cases, image, folder, build, report):
        self.fixture, self.cases, self.report = fixture, cases, report
        self.image, self.folder, self.build = image, folder, build
        self.machines, self.boots = None, itertools.count(1)

    def run(self):
        try:
            for index, case in enumerate(self.cases):
                if self.machines is None:
                    result, text = self.boot()
                    if result:
                        self.give_up(self.cases[index:], result, text)
                        return
                if not self.run_case(case):
                    self.close()
        finally:
            self.close()

    def give_up(self, cases, result, text):
        """Machines that do not come up once are not tried again for every case."""
        for case in cases:
            self.report.add(case.name, result, 0, text)
            text = text if result == "skipped" else f"the machines did not come up, see {cases[0].name}"

    def boot(self):
        """("", "") or the result for the cases that wanted these machines and why."""
        folder = self.folder / f"{self.fixture}-{next(self.boots)}"
        folder.mkdir(parents=True)
        self.machines = registry.FIXTURES[self.fixture](self.image, folder, self.build)
        try:
            with Limit(timing.scaled(BOOT_LIMIT)):
                self.machines.boot()
            return "", ""
        except (registry.Skip, prepare.PrepareError) as reason:
            return "skipped", str(reason)
        except (Exception, CaseTimeout) as error:
            return "failed", "booting the machines: " + failure_text(error, self.machines)

    def run_case(self, case):
        started, limit = time.monotonic(), timing.scaled(case.timeout)
        result, text = "passed", ""
        try:
            with Limit(limit):
                self.machines.before_case()
                case.function(self.machines)
                self.machines.after_case()
        except (registry.Skip, prepare.PrepareError) as reason:
            result, text = "skipped", str(reason)
        except CaseTimeout as error:
            result, text = "failed", f"no end after {limit:.0f} s\n" + failure_text(error, self.machines)
        except Exception as error:
            result, text = "failed", failure_text(error, self.machines)
        trouble = self.machines.kernel_trouble(case.allow_kernel)
        if trouble and result != "failed":
            result, text = "failed", "\n".join(["kernel trouble during the case:", *trouble, evidence(self.machines)])
        self.report.add(case.name, result, time.monotonic() - started, text)
        return result != "failed"

    def close(self):
        if self.machines is not None:
            machines, self.machines = self.machines, None
            machines.close()


def run_folder(build):
    """A fresh folder for the logs of this run; only the newest few are kept."""
    runs = build / "vm-runs"
    runs.mkdir(parents=True, exist_ok=True)
    for old in sorted(runs.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir()
    return folder


def run(cases, build, report):
    try:
        image = prepare.image()
        net.enter()
    except prepare.PrepareError as error:
        for case in cases:
            report.add(case.name, "skipped", 0, str(error))
        return
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, on_stop)
    signal.signal(signal.SIGALRM, on_alarm)
    folder = run_folder(build)
    print(f"kernel {image.version}, {'KVM' if image.kvm else 'no KVM (emulated)'}, logs in {folder}",
          file=sys.stderr, flush=True)
    for fixture, members in itertools.groupby(cases, key=lambda case: case.fixture):
        Group(fixture, list(members), image, folder, build, report).run()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="run these only; repeatable")
    parser.add_argument("--build-dir", default=os.environ.get("PILLAR_BUILD", REPO / "build"), type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object per case on standard output")
    options = parser.parse_args()
    cases = [case for case in registry.load()
             if not options.only or any(fnmatch.fnmatchcase(case.name, glob) for glob in options.only)]
    if options.list:
        print("".join(case.name + "\n" for case in cases), end="")
        return 0
    report = Report(options.json)
    run(cases, options.build_dir.resolve(), report)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
