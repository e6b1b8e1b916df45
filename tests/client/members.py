# SPDX-License-Identifier: Apache-2.0
"""A router and workers, each a process started alone: each has its own options, and a test may stop or kill it.

BATON names the binary, BATON_MAKE_TINY_MODEL the program that writes random-weight models, BATON_TEST_MODEL the demo
model; tools/test sets all of them. Tests skip without what they need.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import grpc

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
pb, services = grpc.protos_and_services("proto/generation.proto")

TIMEOUT_S = 120
STOP_S = 30


def path_of(variable, default):
    path = os.environ.get(variable, os.path.join(ROOT, default))
    if not os.access(path, os.R_OK):
        raise unittest.SkipTest(f"there is no {path} ({variable} names it)")
    return path


def baton():
    return path_of("BATON", ".bazel-bin/cli/baton")


def demo_model():
    return path_of("BATON_TEST_MODEL", "models/SmolLM2-135M-Instruct.Q4_1.gguf")


def tiny_model(name, folder):
    """Writes the model `odd`, `wide` or `long` of tests/support/tiny_model.h; returns its path."""
    path = os.path.join(folder, name + ".gguf")
    subprocess.run([path_of("BATON_MAKE_TINY_MODEL", ".bazel-bin/tests/support/make_tiny_model"), name, path], check=True)
    return path


def wait_for(what, condition, timeout_s=TIMEOUT_S):
    """Asks until condition() is true, and returns what it returned."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not come within {timeout_s} s")
        time.sleep(0.02)


def get(url):
    """(HTTP status, text)."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def rss_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="utf-8") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def n_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Members:
    def __init__(self, model, *router_options):
        self.folder = tempfile.mkdtemp(prefix="baton-test-")
        self.processes = {}
        self.channel = None
        self.closed = False
        try:
            self.model = tiny_model(model, self.folder) if model in ("odd", "wide", "long") else model
            self.start("router", "router", "--model", self.model, "--listen", "127.0.0.1:0", "--attach", "127.0.0.1:0",
                       "--admin", "127.0.0.1:0", *router_options)
            ports = self.wait_log("router", r"client_port=(\d+) attach_port=(\d+)")
            self.address, self.attach = (f"127.0.0.1:{port}" for port in ports.groups())
            self.channel = grpc.insecure_channel(self.address)
            self.stub = services.GenerationStub(self.channel)
        except BaseException:
            self.close()
            raise

    def restart_router(self):
        """Kills it; another one takes its addresses, and finds the workers again."""
        self.kill("router")
        self.start("router", "router", "--model", self.model, "--listen", self.address, "--attach", self.attach, "--http",
                   "none")
        self.wait_ready()

    def start(self, name, *arguments):
        with open(self.log_path(name), "wb") as log:
            self.processes[name] = subprocess.Popen([baton(), *arguments], stdin=subprocess.DEVNULL, stdout=log,
                                                    stderr=subprocess.STDOUT)

    def worker(self, name, role, *options):
        pool = () if "--kv-pool-bytes" in options else ("--kv-pool-bytes", "64M")
        self.start(name, "worker", "--name", name, "--role", role, "--model", self.model, "--router", self.attach,
                   "--admin", "127.0.0.1:0", *pool, *options)

    def log_path(self, name):
        return os.path.join(self.folder, name + ".log")

    def log(self, name):
        with open(self.log_path(name), encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_log(self, name, pattern):
        def look():
            ended = self.processes[name].poll() is not None
            found = re.search(pattern, self.log(name))
            if ended and not found:
                raise AssertionError(f"{name} ended with {self.processes[name].returncode}:\n{self.log(name)}")
            return found
        return wait_for(f"'{pattern}' in the log of {name}", look, 30)

    @property
    def http(self):
        return "127.0.0.1:" + self.wait_log("router", r"http_port=(\d+)").group(1)

    def admin(self, name):
        return "http://127.0.0.1:" + self.wait_log(name, r"admin address served: port=(\d+)").group(1)

    def status(self):
        return self.stub.GetClusterStatus(pb.GetClusterStatusRequest(), timeout=TIMEOUT_S, wait_for_ready=True)

    def workers(self):
        return {worker.name: worker for worker in self.status().workers}

    def wait_ready(self):
        """Until every worker that was started and still runs is attached."""
        names = {name for name, process in self.processes.items() if name != "router" and process.poll() is None}

        def ready():
            for name in names:
                if self.processes[name].poll() is not None:
                    raise AssertionError(f"{name} ended:\n{self.log(name)}")
            try:
                return names == {n for n, w in self.workers().items() if w.state == pb.WORKER_STATE_READY}
            except grpc.RpcError:  # the connection to a router that was killed
                return False
        wait_for(f"readiness of {sorted(names)}", ready)

    def wait_idle(self):
        """Until no request is open anywhere and the pools say so; returns the workers."""
        def idle():
            workers = self.workers()
            busy = [w for w in workers.values() if w.requests_running or w.requests_waiting
                    or w.blocks_free + w.blocks_cached != w.blocks_total]
            return None if busy else workers
        return wait_for("an idle cluster with all blocks home", idle, 20)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def close(self):
        """Stops all; returns {name: exit code} of those that still ran. Again: does nothing."""
        if self.closed:
            return {}
        self.closed = True
        if self.channel:
            self.channel.close()
        running = {name: process for name, process in self.processes.items() if process.poll() is None}
        for process in running.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        codes = {}
        for name, process in running.items():
            try:
                codes[name] = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        self.audits = {name: self.log(name) for name in running if name != "router"}
        shutil.rmtree(self.folder, ignore_errors=True)
        return codes

    def close_clean(self, case):
        """The end of a test: everyone stops with 0, and every worker's pool passes its audit."""
        for name, code in self.close().items():
            case.assertEqual(code, 0, f"{name} ended with {code}")
        for name, log in self.audits.items():
            case.assertIn("audit=OK", log, name)


def generate(stub, request, timeout=TIMEOUT_S, **options):
    return list(stub.Generate(request, timeout=timeout, **options))


def tokens_of(replies):
    return [token for reply in replies if not reply.is_prompt for token in reply.token_ids]


def text_of(replies):
    return "".join(reply.text for reply in replies if not reply.is_prompt)
