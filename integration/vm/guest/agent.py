"""Runs inside a test VM and does there what the test runner on the host asks for.

One TCP connection per request on the management network, so requests are independent and a stuck one blocks nobody.
Frame, both ways: 4 bytes big-endian length, that many bytes of JSON, then the byte strings whose lengths are in its
"parts". Started by guest/init; talks to pillarvm/vm.py.
"""

import errno
import json
import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import traceback

PORT = 7700
OUT = "/run/vm/out"

children = {}
children_lock = threading.Lock()
marks = {}


def read_exact(sock, size):
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise ConnectionError("peer closed the connection")
        data += chunk
    return bytes(data)


def receive(sock):
    header = json.loads(read_exact(sock, struct.unpack(">I", read_exact(sock, 4))[0]))
    return header, [read_exact(sock, size) for size in header.get("parts", [])]


def send(sock, header, parts=()):
    header = dict(header, parts=[len(p) for p in parts])
    text = json.dumps(header).encode()
    sock.sendall(struct.pack(">I", len(text)) + text + b"".join(parts))


def environment(extra):
    env = dict(os.environ)
    for key, value in (extra or {}).items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = str(value)
    return env


def op_ping(req, parts):
    return {"boot": open("/proc/sys/kernel/random/boot_id").read().strip()}, []


def op_run(req, parts):
    proc = subprocess.Popen(
        req["argv"], stdin=subprocess.PIPE if parts else subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=environment(req.get("env")), cwd=req.get("cwd"), start_new_session=True)
    try:
        out, err = proc.communicate(parts[0] if parts else None, timeout=req.get("timeout"))
        return {"rc": proc.returncode}, [out, err]
    except subprocess.TimeoutExpired:
        os.killpg(proc.pid, signal.SIGKILL)
    try:
        out, err = proc.communicate(timeout=2)
    except subprocess.TimeoutExpired as stuck:  # in D state: nothing can end it, so leave it behind
        out, err = stuck.stdout or b"", stuck.stderr or b""
    return {"rc": None}, [out, err]


def op_spawn(req, parts):
    with open(os.path.join(OUT, req["log"]), "ab", buffering=0) as log:
        proc = subprocess.Popen(req["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                env=environment(req.get("env")), cwd=req.get("cwd"), start_new_session=True)
    with children_lock:
        children[proc.pid] = proc
    return {"pid": proc.pid}, []


def op_wait(req, parts):
    with children_lock:
        proc = children[req["pid"]]
    try:
        return {"rc": proc.wait(req.get("timeout"))}, []
    except subprocess.TimeoutExpired:
        return {"rc": None}, []


def op_kill(req, parts):
    with children_lock:
        proc = children.get(req["pid"])
    if proc is None or proc.poll() is None:
        os.kill(req["pid"], req["sig"])
    return {}, []


def op_read(req, parts):
    with open(req["path"], "rb") as file:
        return {}, [file.read()]


def op_write(req, parts):
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if req.get("append") else os.O_TRUNC)
    fd = os.open(req["path"], flags, req.get("mode", 0o644))
    try:
        view = memoryview(parts[0])
        while True:  # an attribute file gets its value in one write, even an empty one
            view = view[os.write(fd, view):]
            if not view:
                return {}, []
    finally:
        os.close(fd)


def op_py(req, parts):
    scope = {"args": req.get("args"), "result": None}
    exec(compile(req["code"], "<vm.py>", "exec"), scope)
    return {"result": scope["result"]}, []


def op_flush_kernel_log(req, parts):
    """Returns when everything that the kernel logged before the call is in the out share."""
    mark, seen = f"pillar-vm: mark {threading.get_ident()}", threading.Event()
    marks[mark.encode()] = seen
    with open("/dev/kmsg", "w") as log:
        log.write(mark + "\n")  # without the newline the record would stay open
    seen.wait(10)
    return {}, []


def pump(source, target):
    try:
        while True:
            data = source.recv(1 << 16)
            if not data:
                break
            target.sendall(data)
    except OSError:
        pass
    for sock, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            sock.shutdown(how)
        except OSError:
            pass


def bridge(client, path):
    """Joins one TCP client to the unix socket; without a listener there, the client sees a closed connection."""
    with client, socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
        except OSError:
            return
        back = threading.Thread(target=pump, args=(server, client), daemon=True)
        back.start()
        pump(client, server)
        back.join()


def op_forward(req, parts):
    listener = socket.create_server((sys.argv[1], req.get("port", 0)), backlog=64)

    def serve():
        while True:
            client, _ = listener.accept()
            threading.Thread(target=bridge, args=(client, req["unix"]), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return {"port": listener.getsockname()[1]}, []


OPS = {name[3:]: function for name, function in list(globals().items()) if name.startswith("op_")}


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            req, parts = receive(self.request)
        except (OSError, ValueError, struct.error):
            return
        try:
            reply, out = OPS[req["op"]](req, parts)
        except OSError as error:
            reply, out = {"errno": error.errno or errno.ETIMEDOUT, "error": str(error)}, []
        except Exception:
            reply, out = {"error": traceback.format_exc()}, []
        try:
            send(self.request, reply, out)
        except OSError:
            pass  # the host gave up waiting


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def copy_kernel_log():
    """Follows the kernel log into the out share, so that the host has it even after a power cut."""
    with open("/dev/kmsg", "rb", buffering=0) as source, open(OUT + "/kernel.log", "ab", buffering=0) as target:
        target.write(b"--- boot ---\n")
        while True:
            try:
                record = source.read(8192)
            except BrokenPipeError:  # messages were overwritten before we came
                target.write(b"--- messages lost ---\n")
                continue
            prefix, _, text = record.partition(b";")
            text = text.split(b"\n")[0]
            if text in marks:
                marks.pop(text).set()
                continue
            stamp = int(prefix.split(b",")[2])
            target.write(b"[%12.6f] " % (stamp / 1e6) + text + b"\n")


if __name__ == "__main__":
    threading.Thread(target=copy_kernel_log, daemon=True).start()
    Server((sys.argv[1], PORT), Handler).serve_forever()
