# SPDX-License-Identifier: Apache-2.0
"""Starts the cluster that the client tests talk to: `baton up` with one prefill and one decode worker.

BATON names the binary and BATON_TEST_MODEL the demo model; tools/test sets both.
"""
import os
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START_S = 120
STOP_S = 30


class Cluster:
    def __init__(self, *options):
        baton = os.environ.get("BATON", os.path.join(ROOT, ".bazel-bin/cli/baton"))
        model = os.environ.get("BATON_TEST_MODEL", os.path.join(ROOT, "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
        if not os.access(baton, os.X_OK) or not os.access(model, os.R_OK):
            raise unittest.SkipTest(f"there is no {baton} or no {model}")
        self.scratch = tempfile.TemporaryDirectory()
        ready = os.path.join(self.scratch.name, "ready")
        self.log_path = os.path.join(self.scratch.name, "log")
        # A pool that a host under a sanitizer, which takes several times the memory, has room for.
        pool = () if "--kv-pool-bytes" in options else ("--kv-pool-bytes", "256M")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [baton, "up", "--model", model, "--listen", "127.0.0.1:0", "--ready-file", ready, *pool, *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        until = time.monotonic() + START_S
        while not os.path.exists(ready):
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                raise RuntimeError("the cluster did not start:\n" + self.log())
            time.sleep(0.05)
        with open(ready, encoding="utf-8") as f:
            self.address, self.attach, self.http = f.read().splitlines()

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        """Ctrl-C; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.scratch.cleanup()
        return code
