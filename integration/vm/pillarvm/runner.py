"""Runs the cases: one line per case, the machines' logs below a failure, `N passed, N failed` at the end."""

import argparse
import fnmatch
import itertools
import json
import os
import shutil
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

from . import net, prepare, registry, timing
from .vm import start_bound

REPO = Path(__file__).resolve().parents[3]
KEPT_RUNS = 10
BOOT_LIMIT = 180
# The limit of a case ends what hangs and proves nothing, and a machine may become slower than it was at the boot.
LIMIT_SLACK = 3


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
        # With JSON only lines of ours may come here; what a case prints goes to standard error.
        self.out, sys.stdout = sys.stdout, sys.stderr if as_json else sys.stdout
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def add(self, name, result, seconds, text=""):
        self.counts[result] += 1
        if self.as_json:
            row = {"name": name, "result": result, "seconds": seconds, "text": text}
            print(json.dumps(row), file=self.out, flush=True)
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
        started, limit = time.monotonic(), timing.scaled(case.timeout) * LIMIT_SLACK
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


def run(cases, image, folder, build, report):
    """The cases one after the other, in this process."""
    net.enter()
    signal.signal(signal.SIGALRM, on_alarm)
    for fixture, members in itertools.groupby(cases, key=lambda case: case.fixture):
        Group(fixture, list(members), image, folder, build, report).run()


# Several groups of machines at once: this runner starts others for parts of the cases.

def batches(cases, jobs):
    """The cases in parts for `jobs` runners, those that may take longest first. A fixture with many cases gives several
    parts, cut between modules, since each costs a boot."""
    limit = sum(case.timeout for case in cases) / (2 * jobs)
    parts = []
    for (fixture, _), members in itertools.groupby(cases, key=lambda case: (case.fixture, case.function.__module__)):
        members = list(members)
        fits = parts and parts[-1][0].fixture == fixture and sum(case.timeout for case in parts[-1] + members) <= limit
        parts[-1].extend(members) if fits else parts.append(members)
    return sorted(parts, key=lambda part: -sum(case.timeout for case in part))


class Parallel:
    """Runs parts of the cases in `jobs` runners at a time and reports their lines."""

    def __init__(self, parts, folder, build, report):
        self.waiting, self.folder, self.build, self.report = list(enumerate(parts, start=1)), folder, build, report
        self.lock, self.processes = threading.Lock(), []

    def run(self, jobs):
        threads = [threading.Thread(target=self.work, daemon=True) for _ in range(jobs)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            with self.lock:
                self.waiting.clear()
                for process in self.processes:
                    process.terminate()  # a runner takes its machines with it

    def work(self):
        while True:
            with self.lock:
                if not self.waiting:
                    return
                number, part = self.waiting.pop(0)
                process = self.start(number, part)
                self.processes.append(process)
            missing = [case.name for case in part]
            try:
                self.collect(process, missing)
            except Exception:  # nobody sees what a thread raises
                traceback.print_exc()
            with self.lock:
                for name in missing:
                    self.report.add(name, "failed", 0, "its runner ended before this case (its message is above)")

    def start(self, number, part):
        folder = self.folder / f"part-{number}"
        folder.mkdir()
        words = [word for case in part for word in ("--only", re.sub(r"([*?\[])", r"[\1]", case.name))]
        return start_bound([sys.executable, "-m", "pillarvm.runner", "--json", "--build-dir", self.build, "--logs", folder,
                            *words], stdout=subprocess.PIPE, text=True)

    def collect(self, process, missing):
        """Reports what the runner says, and takes it off the list."""
        for line in process.stdout:
            row = json.loads(line)
            missing.remove(row["name"])
            with self.lock:
                self.report.add(**row)
        process.wait()


def run_all(options, cases, report):
    """Finds out whether machines can run here at all, and runs the cases."""
    build = options.build_dir.resolve()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, on_stop)
    try:
        image = prepare.image()
        net.check()
    except prepare.PrepareError as error:
        for case in cases:
            report.add(case.name, "skipped", 0, str(error))
        return
    folder = options.logs or run_folder(build)
    if not options.logs:
        print(f"kernel {image.version}, {'KVM' if image.kvm else 'no KVM (emulated)'}, logs in {folder}",
              file=sys.stderr, flush=True)
    parts = batches(cases, options.jobs)
    if options.jobs > 1 and len(parts) > 1:
        Parallel(parts, folder, build, report).run(options.jobs)
    else:
        run(cases, image, folder, build, report)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="run these only; repeatable")
    parser.add_argument("--build-dir", default=os.environ.get("PILLAR_BUILD", REPO / "build"), type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object per case on standard output")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="as many groups of machines at a time")
    parser.add_argument("--logs", type=Path, help="folder for the logs instead of a new one in the build folder")
    options = parser.parse_args()
    cases = [case for case in registry.load()
             if not options.only or any(fnmatch.fnmatchcase(case.name, glob) for glob in options.only)]
    if options.list:
        print("".join(case.name + "\n" for case in cases), end="")
        return 0
    report = Report(options.json)
    run_all(options, cases, report)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
