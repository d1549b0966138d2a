"""csi-sanity against the real controller and node endpoints, on a real volume group and the real kernel."""

import xml.etree.ElementTree as ElementTree

import yaml

from pillarvm import prepare
from pillarvm.csi import MIB
from pillarvm.driver import CLASS, CLASS_KEY, CONTROLLER_SOCKET, NODE_SOCKET
from pillarvm.registry import case

# What csi-sanity may skip, and why: capabilities that are not advertised.
SKIPS = (
    ("CreateSnapshot", "snapshots are not advertised"), ("DeleteSnapshot", "snapshots are not advertised"),
    ("ListSnapshots", "snapshots are not advertised"), ("GetSnapshot", "snapshots are not advertised"),
    ("Snapshot", "snapshots are not advertised"), ("snapshot", "snapshots are not advertised"),
    ("source volume", "cloning is not advertised"), ("clone", "cloning is not advertised"),
    ("ModifyVolume", "volume attributes classes are not advertised"),
    ("volume attribute class", "volume attributes classes are not advertised"),
    ("should detect volumes added between pages", "marked pending in csi-sanity itself"),
    ("GroupController", "group snapshots are not advertised"), ("VolumeGroupSnapshot", "group snapshots are not advertised"),
    ("attach limit", "the limit test is off: it fills the node"), ("max_volumes_per_node", "the limit test is off"),
)


def run_sanity(fx, access_type):
    """Runs csi-sanity; returns (passed, [(name, reason)], [(name, text)])."""
    vm, folder = fx.vm, f"/run/sanity-{access_type}"
    vm.sh(f"mkdir -p {folder}")
    vm.write_file(f"{folder}/params.yaml", yaml.safe_dump({CLASS_KEY: CLASS}))
    done = vm.run([
        prepare.csi_sanity(), f"--csi.endpoint=unix://{NODE_SOCKET}", f"--csi.controllerendpoint=unix://{CONTROLLER_SOCKET}",
        f"--csi.mountdir={folder}/target", f"--csi.stagingdir={folder}/staging", f"--csi.testvolumesize={64 * MIB}",
        f"--csi.testvolumeexpandsize={128 * MIB}", f"--csi.testvolumeparameters={folder}/params.yaml",
        f"--csi.testvolumeaccesstype={access_type}", "--csi.createpathcmdtimeout=30s", "--csi.removepathcmdtimeout=30s",
        f"--ginkgo.junit-report={folder}/report.xml", "--ginkgo.no-color"], timeout=1200, check=False)
    (fx.folder / f"sanity-{access_type}.log").write_text(done.out + done.err)
    passed, skipped, failed = 0, [], []
    for one in ElementTree.fromstring(vm.read_file(f"{folder}/report.xml")).iter("testcase"):
        name = one.get("name")
        if not name.startswith("[It]") and one.find("failure") is None:
            continue  # set-up and report nodes
        if one.find("skipped") is not None:
            skipped.append((name, one.find("skipped").get("message", "")))
        elif one.find("failure") is not None or one.find("error") is not None:
            node = one.find("failure") if one.find("failure") is not None else one.find("error")
            failed.append((name, (node.get("message") or "") + (node.text or "")))
        else:
            passed += 1
    return passed, skipped, failed


def check(fx, access_type, least):
    passed, skipped, failed = run_sanity(fx, access_type)
    reasons = {name: next((why for word, why in SKIPS if word in name), None) for name, _ in skipped}
    lines = [f"{why or 'NO REASON'}: {name}" for name, why in reasons.items()]
    (fx.folder / f"sanity-{access_type}-skipped.txt").write_text("\n".join(sorted(lines)) + "\n")
    assert not failed, f"{passed} passed, {len(failed)} failed:\n" + "\n".join(f"- {name}\n  {text[:600]}" for name, text in failed)
    unexplained = [f"{name}: {text}" for name, text in skipped if reasons[name] is None]
    assert not unexplained, "skipped without a reason of ours: " + "; ".join(unexplained)
    assert passed >= least, f"only {passed} specs ran"


@case("sanity/mount", fixture="driver", timeout=420)
def sanity_mount(fx):
    """csi-sanity with mounted volumes: 0 failed; skipped is only what is not advertised."""
    check(fx, "mount", 50)


@case("sanity/block", fixture="driver", timeout=420)
def sanity_block(fx):
    """The same with raw block volumes."""
    check(fx, "block", 50)
