"""Crash sweep on the real kernel: each program dies at every step of every call, is started again, the call is repeated, and
the machine looks as it does without the crash."""

import contextlib
import re

import grpc

from pillarvm import kernel
from pillarvm.csi import MIB, assert_equal
from pillarvm.driver import NQN_PREFIX, RETRIED, VG
from pillarvm.registry import case
from pillarvm.timing import scaled, until

SIZE = 16 * MIB
TARGET = "/var/lib/kubelet/pods/crash/mount"
# Calls of a life in the order of their depth: an inner one needs all outer ones.
LEVELS = (("create", "delete"), ("publish", "unpublish"), ("stage", "unstage"),
          ("node-publish", "expand", "node-expand", "node-unpublish"))
RESIZING = ("create", "expand", "delete")  # calls that change logical volumes; to ask LVM takes as long as a crash
MAX_HITS = 3  # a step that a call passes more often is crashed at its first few passes
SWEPT = re.compile(r"^\w+/volume:(?!begin$)")  # what calls do to a volume, from the first thing that may have happened


def facts(fx, what, size):
    """What the machine shows of our volume after the call `what`; LV sizes in terms of `size`, what this life has asked for."""
    host = fx.vm.read_text("/etc/nvme/hostnqn")
    exports = [dict(export, hosts=["node" if one == host else one for one in export["hosts"]])
               for nqn, export in sorted(kernel.exports(fx.vm).items()) if nqn.startswith(NQN_PREFIX)]
    seen = {"exports": exports, "sessions": len(fx.sessions("vm")), "records": len(fx.records("vm")),
            "mounts": sorted(re.sub("/staging/.*", "/staging", path) for path in fx.mounts("vm"))}
    if what in RESIZING:
        sizes = fx.vm.sh(f"lvs --noheadings --units b --nosuffix -o lv_size {VG}").split()
        seen["LV sizes"] = [int(one) / size for one in sizes]
    return seen


class Life:
    """One volume's life down to a level; every RPC goes through `each(what, size, function, *args)`."""

    def __init__(self, fx, name, each):
        self.fx, self.name, self.each = fx, name, each
        self.size = SIZE

    def call(self, what, function, *args):
        return self.each(what, self.size, function, *args)

    def run(self, depth):
        fx = self.fx
        volume = self.call("create", fx.create, self.name, SIZE)
        if depth > 0:
            self.publish(volume, depth)
        self.call("delete", fx.csi.delete, volume.volume_id)

    def publish(self, volume, depth):
        fx = self.fx
        context = self.call("publish", fx.csi.publish, volume, fx.node_ids["vm"])
        if depth > 1:
            self.call("stage", fx.stage, volume, "vm", context)
            if depth > 2:
                self.use(volume, context)
            self.call("unstage", fx.node_csi["vm"].unstage, volume.volume_id, fx.staging(volume))
        self.call("unpublish", fx.csi.unpublish, volume.volume_id, fx.node_ids["vm"])

    def use(self, volume, context):
        fx = self.fx
        self.call("node-publish", fx.mount, volume, "vm", context, TARGET)
        fx.vm.sh(f"echo {self.name} > {TARGET}/f; sync {TARGET}/f")
        self.size = 2 * SIZE
        self.call("expand", fx.csi.expand, volume.volume_id, self.size)
        self.call("node-expand", fx.node_csi["vm"].expand, volume.volume_id, TARGET, self.size, fx.staging(volume))
        assert_equal(fx.vm.sh(f"cat {TARGET}/f"), self.name, "file on the volume")
        self.call("node-unpublish", fx.unmount, volume, "vm", TARGET)


def learn(fx, program):
    """({call: [(step, hit)]}, {call: facts}) of a life without crashes."""
    plan, outcomes = {}, {}

    def each(what, size, function, *args):
        before = program.chaos()["steps"]
        answer = fx.retried(function, *args)  # the case before this one may have crashed another program
        after = program.chaos()["steps"]
        plan[what] = [(step, hit) for step, count in sorted(after.items()) if SWEPT.search(step)
                      for hit in range(1, min(count - before.get(step, 0), MAX_HITS) + 1)]
        outcomes[what] = facts(fx, what, size)
        return answer
    Life(fx, "crash-learn", each).run(len(LEVELS) - 1)
    return plan, outcomes


def deepest(plan):
    """The level of the deepest call that has something left."""
    return max((level for level, calls in enumerate(LEVELS) for what in calls if plan[what]), default=-1)


class Sweep:
    """Takes one step from each call's list per life."""

    def __init__(self, fx, program):
        self.fx, self.program = fx, program
        self.plan, self.outcomes = learn(fx, program)
        self.crashed, self.missed = 0, []

    def run(self):
        lives = 0
        while (depth := deepest(self.plan)) >= 0:
            Life(self.fx, f"crash-{lives}", self.each).run(depth)
            lives += 1
        self.fx.wait_served(self.program)
        told = f"{self.crashed} crashes in {lives} lives; not reached: {self.missed}\n"
        (self.fx.folder / f"crash-{self.program.name}.log").write_text(told)
        assert self.crashed, f"{self.program.name} announced no steps"
        assert len(self.missed) <= self.crashed // 5, f"steps that no repeat reached: {self.missed}"

    def each(self, what, size, function, *args):
        if not self.plan[what]:
            answer = self.fx.retried(function, *args)
        else:
            step, hit = self.plan[what].pop(0)
            try:
                answer = self.crash_in(f"{what} at {step} pass {hit}", step, hit, function, args)
            except Exception as error:
                raise AssertionError(f"{self.program.name} crashed in {what} at {step} (pass {hit}): {error}") from error
            self.compare(what, size, step, hit)
        return answer

    def crash_in(self, text, step, hit, function, args):
        kind, name = step.rsplit(":", 1)
        self.program.inject(f"{kind}*:{name}", "exit", after=hit)
        until(lambda: self.answers(function, args) or not self.program.alive(), scaled(60), "an answer, or the crash", step=0.1)
        # A step of the background, or one that this time was not needed.
        with contextlib.suppress(AssertionError):
            until(lambda: not self.program.alive(), 0.3, "crash")
        if self.program.alive():
            self.missed.append(text)
            self.program.chaos(clear=True)
        else:
            self.crashed += 1
            self.program.start()
            if self.program is self.fx.agent:
                kernel.wait_listening(self.fx.vm, 9500)  # the repeats come before the controller has restored it
            else:
                self.fx.wait_served(self.program)
        # Also after an answer: a repeat must find the same.
        return self.fx.retried(function, *args)

    @staticmethod
    def answers(function, args):
        """Calls; False if the answer asks for a repeat, as it does after the crash, or as long as another program is busy with
        the crash before this one."""
        try:
            function(*args)
            return True
        except grpc.RpcError as error:
            if error.code() not in RETRIED:
                raise
            return False

    def compare(self, what, size, step, hit):
        """The background may still be finishing what the crash interrupted."""
        seen = []

        def as_without_crash():
            seen[:] = [facts(self.fx, what, size)]
            return seen[0] == self.outcomes[what]
        try:
            until(as_without_crash, scaled(20), "the outcome")
        except AssertionError:
            assert_equal(seen[0], self.outcomes[what], f"{self.program.name} crashed in {what} at {step} (pass {hit})")


@case("crash/controller", fixture="driver", timeout=400)
def controller(fx):
    """docs/fencing.md sections 3 and 8: pillar-controller at every step."""
    Sweep(fx, fx.controller).run()


@case("crash/agent", fixture="driver", timeout=400)
def agent(fx):
    """F11, F04, docs/fencing.md sections 3 and 8: pillar-agent at every step."""
    Sweep(fx, fx.agent).run()


@case("crash/node", fixture="driver", timeout=400)
def node(fx):
    """docs/fencing.md sections 5 and 8: pillar-node at every step."""
    Sweep(fx, fx.nodes["vm"]).run()
