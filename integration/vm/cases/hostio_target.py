"""The storage node's kernel work (LVM, nvmet configfs) on the real kernel, without our programs around it."""

from pillarvm.registry import Skip, case

PROGRAM = "unit/hostio/unit_hostio_kernel"


@case("hostio/target", timeout=400)
def target(fx):
    """Every test of unit/hostio/target_kernel_test.cpp passes; /dev/vdb is used up and given back."""
    program = fx.build / PROGRAM
    if not program.exists():
        raise Skip(f"{PROGRAM} is not built in {fx.build}")
    env = {"PILLAR_KERNEL_TEST": "1", "PILLAR_TEST_DISK": "/dev/vdb", "TMPDIR": "/run"}
    done = fx.vm.run([program], timeout=1140, check=False, env=env)
    (fx.folder / "hostio-target.log").write_text(done.out + done.err)
    assert done.rc == 0, f"status {done.rc}\n{done.out[-6000:]}"
