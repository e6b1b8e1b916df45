# SPDX-License-Identifier: Apache-2.0
"""Members come and go while clients are served, and nobody notices: every worker and both routers are restarted in turn
under load, with zero failed requests and zero changed tokens, compared with == to an undisturbed run.

The clients know both routers' addresses, as an operator would tell them: one that refuses a request because it drains
(UNAVAILABLE before the first message) is left for the other one. A stream that has begun is never begun again.
"""
import os
import random
import signal
import subprocess
import sys
import threading
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from failover_test import draw_requests  # noqa: E402
from members import TIMEOUT_S, Members, baton, generate, get, pb, services, tokens_of, wait_for  # noqa: E402
from same_tokens_test import outcome  # noqa: E402

SLOW = "--threads", "1", "--running-max", "8", "--kernels", "reference"  # a token takes a millisecond or two
N_CLIENTS = 4


class Fleet(Members):
    """Members with a second router that all workers are attached to as well."""

    def __init__(self, *router_options):
        super().__init__("wide", *router_options)
        self.router_options = router_options
        self.ports = {"router": (self.address, self.attach)}
        self.start_router("router-2")
        self.channels = {}
        for name, (address, _) in self.ports.items():
            self.channels[name] = grpc.insecure_channel(address, [("grpc.max_reconnect_backoff_ms", 200)])
        self.stubs = {name: services.GenerationStub(channel) for name, channel in self.channels.items()}

    def start_router(self, name):
        listen, attach = self.ports.get(name, ("127.0.0.1:0", "127.0.0.1:0"))
        self.start(name, "router", "--name", name, "--model", self.model, "--listen", listen, "--attach", attach,
                   "--http", "none", "--admin", "127.0.0.1:0", *self.router_options)
        ports = self.wait_log(name, r"client_port=(\d+) attach_port=(\d+)")
        self.ports[name] = tuple(f"127.0.0.1:{port}" for port in ports.groups())

    def start_worker(self, name, role):
        attach = [ports[1] for ports in self.ports.values()]
        self.start(name, "worker", "--name", name, "--role", role, "--model", self.model, "--router", attach[0], "--router",
                   attach[1], "--admin", "127.0.0.1:0", "--kv-pool-bytes", "32M", *SLOW)

    def states(self, router):
        status = self.stubs[router].GetClusterStatus(pb.GetClusterStatusRequest(), timeout=TIMEOUT_S)
        return {worker.name: worker.state for worker in status.workers}

    def wait_all_ready(self, names):
        def ready():
            try:
                return all(self.states(router) == {name: pb.WORKER_STATE_READY for name in names} for router in self.ports)
            except grpc.RpcError:
                return False
        wait_for(f"readiness of {names} at both routers", ready, 30)

    def metric(self, router, sample):
        _, text = get(self.admin(router) + "/metrics")
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample + " "))

    def close(self):
        for channel in getattr(self, "channels", {}).values():
            channel.close()
        return super().close()

    def close_clean(self, case):
        for name, code in self.close().items():
            case.assertEqual(code, 0, f"{name} ended with {code}")
        for name, log in self.audits.items():
            if not name.startswith("router"):
                case.assertIn("audit=OK", log, name)


class Clients:
    """Threads that ask, again and again, whichever router takes it, and compare every answer."""

    def __init__(self, fleet, requests, truth):
        self.fleet, self.requests, self.truth = fleet, requests, truth
        self.failures, self.n_done, self.n_refused = [], 0, 0
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=[i]) for i in range(N_CLIENTS)]
        for thread in self.threads:
            thread.start()

    def ask(self, request, names):
        """The replies; each router is left for the other one when it refuses to begin."""
        for name in names * 3:
            replies = []
            try:
                for reply in self.fleet.stubs[name].Generate(request, timeout=TIMEOUT_S):
                    replies.append(reply)
                return replies
            except grpc.RpcError as error:
                if replies or error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                with self.lock:
                    self.n_refused += 1
        raise AssertionError("both routers refuse")

    def run(self, seed):
        rng = random.Random(seed)
        while not self.stop.is_set():
            i = rng.randrange(len(self.requests))
            names = sorted(self.fleet.ports, key=lambda name: rng.random())
            try:
                got = outcome(self.ask(self.requests[i], names))
                failure = None if got == self.truth[i] else f"request {i}: {got} instead of {self.truth[i]}"
            except Exception as error:  # pylint: disable=broad-except
                failure = f"request {i}: {error}"
            with self.lock:
                self.n_done += 1
                if failure:
                    self.failures.append(failure)

    def wait_more(self, n):
        with self.lock:
            until = self.n_done + n
        wait_for(f"{n} more requests", lambda: self.n_done >= until)

    def join(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


class DrainTest(unittest.TestCase):
    def test_rolling_restart_of_all_members_loses_and_changes_nothing(self):
        fleet = Fleet("--recoveries-max", "0")
        self.addCleanup(fleet.close)
        roles = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}
        for name, role in roles.items():
            fleet.start_worker(name, role)
        fleet.wait_all_ready(roles)
        requests = draw_requests(60, 50, 300, 41)
        truth = [outcome(generate(fleet.stubs["router"], request)) for request in requests]
        clients = Clients(fleet, requests, truth)
        self.addCleanup(clients.join)
        clients.wait_more(N_CLIENTS)

        def restart_worker(name):
            fleet.signal(name, signal.SIGTERM)
            self.assertEqual(fleet.processes[name].wait(30), 0, fleet.log(name))
            self.assertIn("audit=OK", fleet.log(name))
            self.assertEqual(clients.failures, [])
            clients.wait_more(N_CLIENTS)
            fleet.start_worker(name, roles[name])
            fleet.wait_all_ready(roles)
            clients.wait_more(N_CLIENTS)

        def moved():
            return sum(fleet.metric(name, 'baton_router_moves_total{end="done"}') for name in ("router", "router-2"))

        for name in roles:
            restart_worker(name)
        for _ in range(10):  # it may have had no stream that was long enough
            if moved() > 0:
                break
            restart_worker("d0")
        self.assertGreater(moved(), 0, "no stream was handed on")
        for name in ("router", "router-2"):
            self.assertEqual(fleet.metric(name, "baton_router_recoveries_total"), 0)
            fleet.signal(name, signal.SIGTERM)
            self.assertEqual(fleet.processes[name].wait(30), 0, fleet.log(name))
            self.assertEqual(clients.failures, [])
            clients.wait_more(N_CLIENTS)
            fleet.start_router(name)
            fleet.wait_all_ready(roles)
            clients.wait_more(N_CLIENTS)
        clients.join()
        self.assertEqual(clients.failures, [])
        self.assertGreater(clients.n_refused, 0, "no router was left for the other one")
        fleet.close_clean(self)

    def start(self, *names):
        """A router and slow workers: names begin with their role's letter."""
        members = Members("wide", "--recoveries-max", "0")
        self.addCleanup(members.close)
        for name in names:
            members.worker(name, {"p": "prefill", "d": "decode"}[name[0]], *SLOW)
        members.wait_ready()
        return members

    @staticmethod
    def request(tokens):
        sampling = pb.Sampling(ignore_eos=True, max_tokens=tokens, temperature=1, seed=7, repetition_penalty=1.1,
                               logprobs=True)
        return pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(1, 90)), sampling=sampling)

    def stream(self, members, tokens=300):
        """A long request's replies, the first of which has come, and what they must be."""
        request = self.request(tokens)
        truth = outcome(generate(members.stub, request))
        replies = members.stub.Generate(request, timeout=TIMEOUT_S)
        begun = [next(replies)]
        while not tokens_of(begun):
            begun.append(next(replies))
        return begun, replies, truth

    def test_drain_without_another_decode_worker_ends_the_streams_first(self):
        members = self.start("p0", "d0")
        begun, replies, truth = self.stream(members)
        members.signal("d0", signal.SIGTERM)
        self.assertEqual(outcome(begun + list(replies)), truth)
        self.assertEqual(members.processes["d0"].wait(30), 0)
        self.assertIn("audit=OK", members.log("d0"))

    def test_command_drains_a_worker_and_tells_how_far_it_is(self):
        members, busy = self.start("p0", "d0"), "d0"
        begun, replies, truth = self.stream(members, 900)
        members.worker("d1", "decode", *SLOW)
        members.wait_ready()
        done = subprocess.run([baton(), "drain", busy, "--attach", members.attach, "--wait"], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, rf"{busy} drains: \d+ running, \d+ waiting, \d+ handed over")
        self.assertIn(f"{busy} is gone", done.stdout)
        self.assertEqual(members.processes[busy].wait(30), 0)
        self.assertEqual(outcome(begun + list(replies)), truth)
        log = members.log("router")
        self.assertRegex(log, rf"request moves: .*from={busy}")
        again = subprocess.run([baton(), "drain", busy, "--attach", members.attach], capture_output=True, text=True,
                               timeout=TIMEOUT_S, check=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn(f"no worker named '{busy}'", again.stderr)
        stranger = dict(os.environ, BATON_CLUSTER_KEY="another key than theirs")
        refused = subprocess.run([baton(), "drain", "p0", "--attach", members.attach], capture_output=True, text=True,
                                 timeout=TIMEOUT_S, check=False, env=stranger)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("cluster key", refused.stderr)
        self.assertEqual(set(members.workers()), {"p0", "d0", "d1"} - {busy})
        members.close_clean(self)

    def test_prefix_of_the_only_holder_is_found_elsewhere_after_a_drain(self):
        for role, names in (("p", ("p0", "d0", "p1")), ("d", ("p0", "d0", "d1"))):
            with self.subTest(role=role):
                self.hand_prefix_on(role, names)

    def hand_prefix_on(self, role, names):
        members = self.start(*names[:2])
        holder, other = role + "0", role + "1"
        system = list(range(1, 161))  # ten blocks
        sampling = pb.Sampling(ignore_eos=True, max_tokens=8, temperature=1, seed=3, logprobs=True)

        def request(end, salt=""):
            return pb.GenerateRequest(token_ids=pb.TokenIds(ids=system + list(end)), sampling=sampling, cache_salt=salt)
        truth = outcome(generate(members.stub, request(range(200, 220), "apart")))
        generate(members.stub, request(range(180, 190)))
        members.wait_idle()
        members.worker(other, {"p": "prefill", "d": "decode"}[role], *SLOW)
        members.wait_ready()
        subprocess.run([baton(), "drain", holder, "--attach", members.attach, "--wait"], capture_output=True, timeout=TIMEOUT_S,
                       check=True)
        self.assertEqual(members.processes[holder].wait(30), 0)
        self.assertIn("audit=OK", members.log(holder))
        self.assertRegex(members.log(other), r"prefix fetched: .*status=OK blocks=1\d")
        self.assertRegex(members.log("router"), rf"prefix is handed on: from={holder} to={other} ")
        replies = generate(members.stub, request(range(200, 220)))
        self.assertEqual(outcome(replies), truth)
        if role == "p":
            self.assertGreaterEqual(replies[-1].finish.usage.cached_tokens, len(system))
        else:
            self.assertLess(replies[-1].finish.route.blocks_moved, 3)
        hits = next(float(line.split()[-1]) for line in get(members.admin(other) + "/metrics")[1].splitlines()
                    if line.startswith('baton_worker_tokens_total{kind="cached"} '))
        self.assertGreaterEqual(hits, len(system))
        members.close_clean(self)

    def test_signal_after_a_drain_by_command_is_the_first_one(self):
        members = self.start("p0", "d0")
        begun, replies, truth = self.stream(members, 900)
        subprocess.run([baton(), "drain", "d0", "--attach", members.attach], capture_output=True, timeout=TIMEOUT_S, check=True)
        members.wait_log("d0", "stopping: ")
        members.signal("d0", signal.SIGTERM)
        self.assertEqual(outcome(begun + list(replies)), truth)
        self.assertEqual(members.processes["d0"].wait(30), 0)

    def test_second_signal_ends_at_once(self):
        members = self.start("p0", "d0")
        begun, replies, _ = self.stream(members, 900)
        self.assertTrue(begun)
        # Work enough to outlast a test that the machine lets wait.
        behind = [members.stub.Generate(self.request(900), timeout=TIMEOUT_S) for _ in range(24)]
        for name in ("d0", "router"):
            members.signal(name, signal.SIGTERM)
            members.wait_log(name, "stopping: ")
            self.assertIsNone(members.processes[name].poll())
            members.signal(name, signal.SIGTERM)
            self.assertEqual(members.processes[name].wait(5), 130)
        for stream in (replies, *behind):
            with self.assertRaises(grpc.RpcError):
                list(stream)

    def test_draining_router_refuses_at_once_and_finishes_its_streams(self):
        members = self.start("p0", "d0")
        admin = members.admin("router")
        begun, replies, truth = self.stream(members)
        members.signal("router", signal.SIGTERM)
        members.wait_log("router", "stopping: ")
        # On the connection that is open, and on a new one.
        with self.assertRaises(grpc.RpcError) as refused:
            generate(members.stub, pb.GenerateRequest(text="x", sampling=pb.Sampling(max_tokens=2)), timeout=10)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(get(admin + "/readyz")[0], 503)
        self.assertEqual(get(admin + "/healthz")[0], 200)
        self.assertEqual(outcome(begun + list(replies)), truth)
        self.assertEqual(members.processes["router"].wait(30), 0)
        for name in ("p0", "d0"):
            self.assertIsNone(members.processes[name].poll(), f"{name} went with its router")


if __name__ == "__main__":
    unittest.main()
