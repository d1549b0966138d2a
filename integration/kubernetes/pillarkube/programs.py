"""The programs of a real Kubernetes, built from their published Go modules into a cache outside the checkout.

programs/go.mod names the versions and programs/go.sum their checksums; the cache folder is keyed by both, so that a
change of either builds anew and nothing else does. One module for everything that builds on k8s.io/*, all at one
release, so that each package compiles once.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULE = Path(__file__).resolve().parent.parent / "programs"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
CONTROL_PLANE = ("etcd", "kube-apiserver", "kubectl")
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "csi-provisioner": "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
    "csi-attacher": "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
    "csi-resizer": "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
}


class PrepareError(Exception):
    """A program cannot be had; the text says why and what helps."""


def version():
    """The Kubernetes release, without the v."""
    return re.search(r"k8s\.io/kubernetes v([0-9.]+)", (MODULE / "go.mod").read_text()).group(1)


def cache_dir():
    root = os.environ.get("PILLAR_CACHE")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pillar-csi"
    key = hashlib.sha256(b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))).hexdigest()[:12]
    path = base / f"kubernetes-{version()}-{key}"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextlib.contextmanager
def locked():
    """Two runs build a program once."""
    with open(cache_dir() / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_go():
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    wanted = re.search(r"^go ([0-9.]+)", (MODULE / "go.mod").read_text(), re.M).group(1)
    if not go:
        raise PrepareError(f"building Kubernetes {version()} needs go {wanted} or newer: no go found")
    found = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True).stdout.strip()
    numbers = lambda text: tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    if numbers(found) < numbers(wanted):
        raise PrepareError(f"building Kubernetes {version()} needs go {wanted} or newer: found {found}")
    return go


def build(name, target, low_priority):
    """Compiles one program; the linker writes its version into it, which the API server shows to clients."""
    release = version()
    flags = "-s -w " + " ".join(
        f"-X {package}.gitVersion=v{release} -X {package}.gitMajor=1 -X {package}.gitMinor={release.split('.')[1]}"
        for package in VERSION_PACKAGES)
    argv = [find_go(), "build", "-C", str(MODULE), "-mod=readonly", f"-ldflags={flags}", "-o"]
    polite = ["nice", "-n", "19", "ionice", "-c3"] if low_priority else []
    environment = dict(os.environ, CGO_ENABLED="0", GOTOOLCHAIN="local", GOWORK="off", GOFLAGS="")
    print(f"building {name} of Kubernetes {release}", file=sys.stderr, flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / name
        jobs = ["-p", "1"] if low_priority else []
        done = subprocess.run([*polite, *argv, str(made), *jobs, PACKAGES[name]], env=environment, capture_output=True,
                              text=True)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if not line.startswith("go: downloading")]
            raise PrepareError(f"{name} {release} cannot be built: " + " / ".join(lines[-3:]))
        made.rename(target)
    print(f"built    {name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def program(name, low_priority=False):
    """The path of one program, built when it is not in the cache. Raises PrepareError."""
    target = cache_dir() / name
    if not target.exists():
        with locked():
            if not target.exists():
                build(name, target, low_priority)
    return target


def main():
    parser = argparse.ArgumentParser(
        description="Builds the programs of a real Kubernetes for the tests into the cache folder. From nothing the "
                    "control plane takes about eight minutes of two cores, everything a quarter of an hour.")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help=f"any of: {', '.join(PACKAGES)} "
                                                                   f"(default: {' '.join(CONTROL_PLANE)})")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--low-priority", action="store_true", help="one core, and only when nothing else wants it")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PACKAGES]
    if unknown:
        parser.error(f"unknown program {unknown[0]} (known: {', '.join(PACKAGES)})")
    for name in PACKAGES if options.all else options.names or CONTROL_PLANE:
        try:
            print(program(name, options.low_priority))
        except PrepareError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
