"""Python bindings of our protobuf contracts, generated on first use and cached by the content of the files."""

import hashlib
import importlib
import shutil
import sys
import tempfile
from pathlib import Path

from .prepare import PrepareError, cache_dir

REPO = Path(__file__).resolve().parents[3]
SOURCE = REPO / "messages" / "proto"


def _generate(files, target):
    import grpc_tools
    from grpc_tools import protoc
    include = Path(grpc_tools.__file__).parent / "_proto"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        out = Path(scratch) / "out"
        out.mkdir()
        argv = ["protoc", f"-I{SOURCE}", f"-I{include}", "-I/usr/include", f"--python_out={out}",
                f"--grpc_python_out={out}", *map(str, files)]
        if protoc.main(argv) != 0:
            raise PrepareError(f"protoc failed on {', '.join(file.name for file in files)} (message above)")
        if not target.exists():
            shutil.move(out, target)


def load(name):
    """(messages, services) of <name>.proto: the modules <name>_pb2 and <name>_pb2_grpc."""
    files = sorted(SOURCE.glob("*.proto"))
    key = hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()[:16]
    target = cache_dir() / "protos" / key
    if not target.exists():
        _generate(files, target)
    if str(target) not in sys.path:
        sys.path.insert(0, str(target))
    return importlib.import_module(f"{name}_pb2"), importlib.import_module(f"{name}_pb2_grpc")
