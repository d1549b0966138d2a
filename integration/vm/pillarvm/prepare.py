"""What a VM is booted from: kernel, initramfs, the verdict on KVM; and csi-sanity. All cached outside the checkout."""

import argparse
import contextlib
import fcntl
import hashlib
import lzma
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

GUEST = Path(__file__).resolve().parent.parent / "guest"
KERNEL_META = "linux-image-amd64"
BOOT_MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_blk", "virtio_net", "configfs", "ext4"]
APPLETS = "sh mount insmod mkdir cat echo switch_root dd poweroff printf uname hostname ip"
CSI_SANITY = "5.6.0"
CSI_SANITY_GO = (1, 25)
KERNEL_ARGS = ("console=ttyS0 loglevel=4 panic=-1 nokaslr mitigations=off apparmor=0 audit=0 random.trust_cpu=on "
               "no_timer_check tsc=reliable nowatchdog rcupdate.rcu_cpu_stall_suppress=1")
PROBE_EXIT = 33


class PrepareError(Exception):
    """Something a VM needs is missing; the text says what and how to get it."""


@dataclass(frozen=True)
class Image:
    """A bootable kernel: the ELF image, the initramfs, the folder of its modules and whether KVM works."""
    version: str
    vmlinux: Path
    initramfs: Path
    modules: Path
    kvm: bool


def cache_dir():
    root = os.environ.get("PILLAR_CACHE")
    path = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pillar-csi"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextlib.contextmanager
def locked(name):
    """Two runs that need the same thing fetch it once."""
    with open(cache_dir() / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def command(argv, what, **kwargs):
    try:
        return subprocess.run(argv, check=True, capture_output=True, text=True, **kwargs).stdout
    except FileNotFoundError:
        raise PrepareError(f"{what}: {argv[0]} is not installed; run tools/install-deps") from None
    except subprocess.CalledProcessError as error:
        raise PrepareError(f"{what}: `{' '.join(argv)}` failed: {(error.stderr or error.stdout).strip()}") from None


def newest_kernel_package():
    listing = command(["apt-cache", "depends", KERNEL_META], "finding the kernel package")
    for line in listing.splitlines():
        if "Depends: linux-image-" in line:
            return line.split()[-1]
    raise PrepareError(f"apt knows no {KERNEL_META}: run `apt-get update` with Debian 12 'main' in the sources")


def extract_vmlinux(bzimage):
    """The ELF image inside a bzImage. It has a PVH note, so qemu boots it without the slow decompression."""
    data = bzimage.read_bytes()
    for magic, unpack in ((b"\xfd7zXZ\x00", lambda blob: lzma.LZMADecompressor().decompress(blob)),
                          (b"\x28\xb5\x2f\xfd", lambda blob: subprocess.run(
                              ["zstd", "-dcq"], input=blob, capture_output=True).stdout)):
        start = data.find(magic)
        while start >= 0:
            try:
                image = unpack(data[start:])
            except lzma.LZMAError:
                image = b""
            if image.startswith(b"\x7fELF"):
                return image
            start = data.find(magic, start + 1)
    raise PrepareError(f"{bzimage}: no xz or zstd compressed kernel inside")


def fetch_kernel(package):
    """Downloads and unpacks one kernel package; its maintainer scripts never run."""
    version = package[len("linux-image-"):]
    home = cache_dir() / "kernel" / version
    if (home / "vmlinux").exists():
        return home
    home.parent.mkdir(exist_ok=True)
    print(f"fetching {package}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        os.chmod(scratch, 0o755)  # apt reads it as its own user
        command(["apt-get", "download", "-qq", package], f"downloading {package} (is the network there?)", cwd=scratch)
        tree = Path(scratch) / "tree"
        deb = next(Path(scratch).glob("*.deb"))
        command(["dpkg-deb", "-x", str(deb), str(tree)], "unpacking the kernel")
        deb.unlink()
        command(["depmod", "-b", str(tree), version], "indexing kernel modules")
        image = extract_vmlinux(tree / "boot" / f"vmlinuz-{version}")
        (tree / "vmlinux").write_bytes(image)
        shutil.rmtree(tree / "usr", ignore_errors=True)
        tree.rename(home)
    return home


def kernel_home():
    """PILLAR_KERNEL=<version> picks one; otherwise the newest fetched one, so that a test run needs no network."""
    wanted = os.environ.get("PILLAR_KERNEL")
    if wanted:
        return fetch_kernel("linux-image-" + wanted)
    fetched = sorted((cache_dir() / "kernel").glob("*/vmlinux"), key=lambda path: path.stat().st_mtime)
    return fetched[-1].parent if fetched else fetch_kernel(newest_kernel_package())


def boot_modules(home):
    """The module files of the initramfs, in load order."""
    order = []
    for module in BOOT_MODULES:
        listing = command(["modprobe", "-d", str(home), "-S", home.name, "--show-depends", module], "module order")
        for line in listing.splitlines():
            kind, _, path = line.partition(" ")
            if kind == "insmod" and path.strip() not in order:
                order.append(path.strip())
    return [Path(path) for path in order]


def module_image(path):
    data = path.read_bytes()
    return (path.name[:-3], lzma.decompress(data)) if path.suffix == ".xz" else (path.name, data)


def cpio(entries):
    """A newc archive of (name, mode, content)."""
    out = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        raw = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + raw
        out += b"\0" * (-len(out) % 4) + content
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def initramfs(home):
    """Keyed by everything that goes into it; a few milliseconds when it is there."""
    init = (GUEST / "init").read_bytes()
    key = hashlib.sha256(init + repr((BOOT_MODULES, APPLETS)).encode() + Path(__file__).read_bytes()).hexdigest()[:12]
    target = home / f"initramfs-{key}.cpio"
    if target.exists():
        return target
    busybox = shutil.which("busybox")
    if not busybox:
        raise PrepareError("busybox is not installed; run tools/install-deps")
    folder, program, link = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
    entries = [(name, folder, b"") for name in ("bin", "proc", "sys", "dev", "mods", "ro", "rw", "newroot")]
    entries += [("init", program, init), ("bin/busybox", program, Path(busybox).read_bytes())]
    entries += [("bin/" + applet, link, b"busybox") for applet in APPLETS.split()]
    modules = [module_image(path) for path in boot_modules(home)]
    entries += [("mods/" + name, program, content) for name, content in modules]
    entries += [("mods/order", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name, _ in modules).encode())]
    partial = target.with_suffix(f".{os.getpid()}")
    partial.write_bytes(cpio(entries))
    partial.rename(target)
    return target


def qemu():
    path = shutil.which("qemu-system-x86_64")
    if not path:
        raise PrepareError("qemu-system-x86_64 is not installed; run tools/install-deps")
    return path


def machine_args(kvm):
    accel = ["-accel", "kvm", "-cpu", "host"] if kvm else ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]
    return ["-M", "q35", *accel, "-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot"]


def probe_kvm(vmlinux, image):
    """Boots for real: /dev/kvm may exist and still not work."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    argv = [qemu(), *machine_args(True), "-m", "256M", "-kernel", str(vmlinux), "-initrd", str(image),
            "-append", KERNEL_ARGS + " pillar.probe=1", "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20).returncode == PROBE_EXIT
    except subprocess.TimeoutExpired:
        return False


def kvm_works(vmlinux, image):
    """The verdict is kept per host kernel and qemu; PILLAR_KVM=0 or 1 overrides it."""
    forced = os.environ.get("PILLAR_KVM")
    if forced:
        return forced == "1"
    seen = f"{platform.node()} {platform.release()} {os.stat(qemu()).st_mtime_ns} {os.path.exists('/dev/kvm')}"
    verdict = cache_dir() / ("kvm-" + hashlib.sha256(seen.encode()).hexdigest()[:12])
    if not verdict.exists():
        verdict.write_text("1" if probe_kvm(vmlinux, image) else "0")
    return verdict.read_text() == "1"


def image():
    """Everything a VM boots from, fetched or built when it is not in the cache. Raises PrepareError."""
    with locked("kernel"):
        home = kernel_home()
        archive = initramfs(home)
        return Image(home.name, home / "vmlinux", archive, home / "lib" / "modules" / home.name,
                     kvm_works(home / "vmlinux", archive))


def csi_sanity_path():
    return cache_dir() / f"csi-sanity-{CSI_SANITY}" / "csi-sanity"


def csi_sanity():
    """The path of csi-sanity, built once. Raises PrepareError when Go is missing or too old."""
    with locked("csi-sanity"):
        target = csi_sanity_path()
        if target.exists():
            return target
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        need = "go %d.%d or newer (https://go.dev/dl; Debian 12's golang is too old)" % CSI_SANITY_GO
        if not go:
            raise PrepareError(f"csi-sanity {CSI_SANITY} needs {need}: no go found")
        version = command([go, "env", "GOVERSION"], "asking go its version").strip()
        if tuple(int(part) for part in version[2:].split(".")[:2]) < CSI_SANITY_GO:
            raise PrepareError(f"csi-sanity {CSI_SANITY} needs {need}: found {version}")
        print(f"building csi-sanity {CSI_SANITY}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
            command([go, "install", f"github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v{CSI_SANITY}"],
                    "building csi-sanity", env=dict(os.environ, GOBIN=scratch, CGO_ENABLED="0"))
            target.parent.mkdir(exist_ok=True)
            shutil.move(Path(scratch) / "csi-sanity", target)
        return target


def main():
    parser = argparse.ArgumentParser(description="Fetches what the test VMs need into the cache folder.")
    parser.add_argument("--kernel", action="store_true", help="kernel, initramfs and the KVM verdict")
    parser.add_argument("--csi-sanity", action="store_true", help="build csi-sanity with go")
    options = parser.parse_args()
    status = 0
    for wanted, prepare in ((options.kernel, image), (options.csi_sanity, csi_sanity)):
        if wanted:
            try:
                print(f"ready: {prepare()}")
            except PrepareError as error:
                print(f"error: {error}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
