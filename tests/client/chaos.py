# SPDX-License-Identifier: Apache-2.0
"""Seeded schedules of faults on a cluster of real processes: SIGKILL and restart, SIGSTOP and SIGCONT, connections to the
router that are cut or stand still, workers that drain. Streams run meanwhile, and each ends with the tokens of an
undisturbed run.

    python tests/client/chaos.py --seed N          # one schedule again
    python tests/client/chaos.py --minutes M       # new seeds for so long, which are printed
    python tests/client/chaos.py --stop SECONDS    # each member stands still once for so long, with the default timers

BATON and BATON_MAKE_TINY_MODEL as in members.py.
"""
import argparse
import os
import random
import select
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from members import Members  # noqa: E402
from storm import OPTIONS, Asks, Storm  # noqa: E402

WORKERS = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}
ROUTER_OPTIONS = "--worker-timeout", "1s", "--queue-max", "256", "--recoveries-max", "50", "--attempts-max", "16"
FAULTS = "kill", "kill", "stop", "stop for long", "cut", "hold", "drain"
N_REQUESTS = 24
CONCURRENCY = 12


class Proxy:
    """Stands between a worker and its router: passes bytes on, holds them, or cuts."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = host, int(port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.pairs, self.held, self.closed = [], False, False
        self.lock = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.closed:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
            except OSError:
                continue
            with self.lock:
                self.pairs.append((near, far))
            threading.Thread(target=self.carry, args=[near, far], daemon=True).start()

    def carry(self, near, far):
        try:
            while True:
                if self.held:
                    time.sleep(0.005)
                    continue
                for sender in select.select([near, far], [], [], 0.05)[0]:
                    data = sender.recv(65536)
                    if not data:
                        return
                    (far if sender is near else near).sendall(data)
        except (OSError, ValueError):
            pass
        finally:
            near.close()
            far.close()

    def cut(self):
        with self.lock:
            pairs, self.pairs = self.pairs, []
        for pair in pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self.closed = True
        self.listener.close()
        self.cut()


class Chaos:
    def __init__(self, router_options=ROUTER_OPTIONS):
        self.members = Members("odd", *router_options)
        self.router = self.members.attach
        self.proxies = {}
        for name in WORKERS:
            self.start(name)
        self.members.wait_ready()
        self.asks = Asks(self.members, 1)

    def start(self, name):
        if name in self.proxies:
            self.proxies[name].close()
        self.proxies[name] = Proxy(self.router)
        self.members.attach = self.proxies[name].address
        self.members.worker(name, WORKERS[name], *OPTIONS)

    def strike(self, fault, name, rng, said):
        said.append(f"{fault} {name}")
        members, proxy = self.members, self.proxies[name]
        if fault == "kill":
            members.kill(name)
            time.sleep(rng.random() * 0.3)
            self.start(name)
        elif fault.startswith("stop"):
            members.signal(name, signal.SIGSTOP)
            time.sleep(1.5 if fault == "stop for long" else rng.random() * 0.2)  # the worker timeout is 1 s
            members.signal(name, signal.SIGCONT)
        elif fault == "cut":
            proxy.cut()
        elif fault == "hold":
            proxy.held = True
            time.sleep(rng.random() * 0.3)
            proxy.held = False
        else:
            members.signal(name, signal.SIGTERM)
            assert members.processes[name].wait(30) == 0, f"{name} drained with {members.processes[name].returncode}"
            assert "audit=OK" in members.log(name), members.log(name)
            self.start(name)

    def run(self, seed):
        """One schedule; raises AssertionError with the seed and what was done."""
        rng = random.Random(seed)
        storm = Storm(self.members, self.asks, CONCURRENCY, seed)
        said = []

        def disturb():
            for _ in range(rng.randint(1, 2)):
                self.strike(rng.choice(FAULTS), rng.choice(list(WORKERS)), rng, said)
                time.sleep(rng.random() * 0.1)
        storm.run(N_REQUESTS, disturb)
        self.members.wait_ready()
        self.members.wait_idle()
        assert not storm.wrong, f"chaos --seed {seed}: {', '.join(said)}: {storm.wrong[:3]}"
        return ", ".join(said)

    def stop_each(self, seconds):
        """Every member in turn is stopped under load and goes on after so long."""
        for seed, name in enumerate(["router", *WORKERS]):
            storm = Storm(self.members, self.asks, CONCURRENCY, seed)

            def disturb(name=name):
                self.members.signal(name, signal.SIGSTOP)
                time.sleep(seconds)
                self.members.signal(name, signal.SIGCONT)
            storm.run(N_REQUESTS, disturb)
            self.members.wait_ready()
            self.members.wait_idle()
            assert not storm.wrong, f"chaos --stop {seconds}: {name}: {storm.wrong[:3]}"
            print(f"chaos: {name} stood still for {seconds} s: {dict(storm.ends)}", flush=True)

    def close(self):
        for proxy in self.proxies.values():
            proxy.held = False
        codes = self.members.close()
        for proxy in self.proxies.values():
            proxy.close()
        assert not any(codes.values()), f"exit codes: {codes}"
        assert all("audit=OK" in log for log in self.members.audits.values()), "a pool's audit failed"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--stop", type=float)
    options = parser.parse_args()
    chaos = Chaos(()) if options.stop else Chaos()
    try:
        if options.stop:
            chaos.stop_each(options.stop)
            return
        until = time.monotonic() + 60 * options.minutes
        seed = options.seed or int(time.time())
        while True:
            print(f"chaos: seed={seed} {chaos.run(seed)}", flush=True)
            seed += 1
            if options.seed or time.monotonic() > until:
                break
    finally:
        chaos.members.attach = chaos.router
        chaos.close()


if __name__ == "__main__":
    main()
