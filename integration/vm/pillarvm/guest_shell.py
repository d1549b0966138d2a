"""guest_shell ADDRESS CMD ARGS...: runs a command in a machine of the demo and shows its output."""

import json
import socket
import struct
import sys

from .vm import AGENT_PORT, _read_exact


def main():
    address, argv = sys.argv[1], sys.argv[2:] or ["uname", "-a"]
    piped = [] if sys.stdin.isatty() else [sys.stdin.buffer.read()]
    with socket.create_connection((address, AGENT_PORT), timeout=10) as sock:
        sock.settimeout(None)
        header = {"op": "run", "argv": argv, "timeout": 3600, "env": None, "cwd": None, "parts": [len(part) for part in piped]}
        text = json.dumps(header).encode()
        sock.sendall(struct.pack(">I", len(text)) + text + b"".join(piped))
        reply = json.loads(_read_exact(sock, struct.unpack(">I", _read_exact(sock, 4))[0]))
        bodies = [_read_exact(sock, size) for size in reply["parts"]]
    if reply.get("error"):
        sys.exit(reply["error"])
    for stream, body in zip((sys.stdout.buffer, sys.stderr.buffer), bodies):
        stream.write(body)
        stream.flush()
    sys.exit(reply["rc"])


if __name__ == "__main__":
    main()
