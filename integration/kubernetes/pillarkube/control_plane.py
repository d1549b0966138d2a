"""A real etcd and kube-apiserver on free ports of 127.0.0.1, for one command; everything is gone afterwards.

What the command gets in its environment:
  KUBECONFIG            admin by client certificate
  PILLAR_KUBE_SERVER    https://127.0.0.1:PORT
  PILLAR_KUBE_PKI       folder of ca.crt, admin.crt, admin.key, stranger.crt, stranger.key (another CA), sa.key
  PILLAR_KUBE_TOKENS    file of static tokens (token,user,uid,"group"): admin-token and nobody-token
  PILLAR_KUBE_ETCD      http://127.0.0.1:PORT of etcd
  PILLAR_KUBE_KUBECTL   path of kubectl
"""

import argparse
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from . import programs

SKIPPED = 77
START_LIMIT = 90
TOKENS = 'admin-token,token-admin,1,"system:masters"\nnobody-token,nobody,2\n'
POLICY = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"


def free_ports(count):
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def openssl(*words, **kwargs):
    try:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True, **kwargs)
    except FileNotFoundError:
        raise programs.PrepareError("openssl is not installed; run tools/install-deps") from None


class Pki:
    """Two authorities and the certificates that they sign."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        for name in ("ca", "other-ca"):
            self.key(name)
            openssl("req", "-x509", "-new", "-key", folder / f"{name}.key", "-days", "30", "-subj", f"/CN={name}",
                    "-out", folder / f"{name}.crt")

    def key(self, name):
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.folder / f"{name}.key")

    def sign(self, name, subject, extensions, authority="ca"):
        self.key(name)
        path = lambda suffix: self.folder / f"{name}.{suffix}"
        path("ext").write_text(extensions)
        openssl("req", "-new", "-key", path("key"), "-subj", subject, "-out", path("csr"))
        openssl("x509", "-req", "-in", path("csr"), "-CA", self.folder / f"{authority}.crt", "-CAkey",
                self.folder / f"{authority}.key", "-CAcreateserial", "-days", "30", "-extfile", path("ext"), "-out",
                path("crt"))


class ControlPlane:
    """Starts with `with`; stops and removes everything at its end, however that comes."""

    def __init__(self, keep=False):
        self.keep = keep
        self.processes = []

    def __enter__(self):
        self.paths = {name: programs.program(name) for name in programs.CONTROL_PLANE}
        self.folder = Path(tempfile.mkdtemp(prefix="pillar-kube-"))
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *failure):
        self.stop()

    def start(self):
        pki = Pki(self.folder / "pki")
        pki.sign("apiserver", "/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc")
        pki.sign("admin", "/O=system:masters/CN=admin", "extendedKeyUsage=clientAuth")
        pki.sign("stranger", "/O=system:masters/CN=admin", "extendedKeyUsage=clientAuth", "other-ca")
        pki.key("sa")
        openssl("ec", "-in", pki.folder / "sa.key", "-pubout", "-out", pki.folder / "sa.pub")
        (self.folder / "tokens.csv").write_text(TOKENS)
        (self.folder / "audit.yaml").write_text(POLICY)
        client, peer, self.port = free_ports(3)
        self.etcd = f"http://127.0.0.1:{client}"
        self.server = f"https://127.0.0.1:{self.port}"
        self.run("etcd", self.paths["etcd"], "--data-dir", self.folder / "etcd", "--listen-client-urls", self.etcd,
                 "--advertise-client-urls", self.etcd, "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                 "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster",
                 f"default=http://127.0.0.1:{peer}", "--unsafe-no-fsync")
        self.run("kube-apiserver", self.paths["kube-apiserver"], f"--etcd-servers={self.etcd}", "--bind-address=127.0.0.1",
                 "--advertise-address=127.0.0.1", f"--secure-port={self.port}", f"--cert-dir={self.folder}",
                 f"--tls-cert-file={pki.folder}/apiserver.crt", f"--tls-private-key-file={pki.folder}/apiserver.key",
                 f"--client-ca-file={pki.folder}/ca.crt", f"--token-auth-file={self.folder}/tokens.csv",
                 "--service-account-issuer=https://kubernetes.default.svc",
                 f"--service-account-key-file={pki.folder}/sa.pub",
                 f"--service-account-signing-key-file={pki.folder}/sa.key", "--service-cluster-ip-range=10.0.0.0/24",
                 "--authorization-mode=Node,RBAC", "--endpoint-reconciler-type=none")
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "admin",
            "clusters": [{"name": "test", "cluster": {"server": self.server,
                                                      "certificate-authority": "pki/ca.crt"}}],
            "users": [{"name": "admin", "user": {"client-certificate": "pki/admin.crt", "client-key": "pki/admin.key"}}],
            "contexts": [{"name": "admin", "context": {"cluster": "test", "user": "admin"}}]}))
        self.wait_ready()

    def run(self, name, *words):
        log = open(self.folder / f"{name}.log", "wb")
        self.processes.append((name, subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=log,
                                                      stderr=subprocess.STDOUT, start_new_session=True)))

    def wait_ready(self):
        context = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        request = urllib.request.Request(self.server + "/readyz", headers={"Authorization": "Bearer admin-token"})
        end = time.monotonic() + START_LIMIT
        while True:
            for name, process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with status {process.returncode}:\n{self.log_tail(name)}")
            try:
                with urllib.request.urlopen(request, context=context, timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            if time.monotonic() > end:
                raise RuntimeError(f"the API server is not ready after {START_LIMIT} s:\n{self.log_tail('kube-apiserver')}")
            time.sleep(0.1)

    def log_tail(self, name):
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:])

    def environment(self):
        return dict(os.environ, KUBECONFIG=str(self.kubeconfig), PILLAR_KUBE_SERVER=self.server,
                    PILLAR_KUBE_PKI=str(self.folder / "pki"), PILLAR_KUBE_TOKENS=str(self.folder / "tokens.csv"),
                    PILLAR_KUBE_ETCD=self.etcd, PILLAR_KUBE_KUBECTL=str(self.paths["kubectl"]))

    def stop(self):
        """The API server first, so that it does not wait for an etcd that is gone."""
        for _, process in reversed(self.processes):
            process.kill()
            process.wait()
        if self.keep:
            print(f"kept: {self.folder}", file=sys.stderr)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description="Runs a command beside a real etcd and kube-apiserver.")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("name a command")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    started = time.monotonic()
    try:
        with ControlPlane(options.keep) as plane:
            print(f"control plane: ready after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
            return subprocess.run(options.command, env=plane.environment()).returncode
    except programs.PrepareError as reason:
        print(reason)
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
