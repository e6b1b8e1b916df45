# SPDX-License-Identifier: Apache-2.0
"""Nothing leaks: thousands of requests at a time of which many are cancelled or miss their deadline, while workers are
killed (SIGKILL) and started again.

    python tests/client/storm.py [--requests N] [--concurrency N] [--kill-every N] [--seed N]
    python tests/client/storm.py --no-kills     # measures the workers' memory too

What must hold: each request ends once, in a way that its kind allows; what runs to its end has the
tokens of an undisturbed run; every block comes home; descriptors are as at the start; memory does not grow; and after a
restart a new request gets its first token within five seconds. BATON and BATON_MAKE_TINY_MODEL as in members.py.
"""
import argparse
import collections
import os
import random
import re
import sys
import threading
import time

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from members import TIMEOUT_S, Members, generate, get, n_descriptors, pb, rss_bytes, tokens_of, wait_for  # noqa: E402

N_VOCAB = 256  # ids that every tiny model has
N_ASKS = 60
FIRST_TOKEN_S = 5
RSS_GROWTH_KIB = 2048
WORKERS = {"p": "prefill", "d": "decode"}
OPTIONS = "--threads", "1", "--kv-pool-bytes", "4M"
ROUTER_OPTIONS = "--queue-max", "256", "--recoveries-max", "20", "--attempts-max", "16"


def draw_ask(rng, tokens_min=2, tokens_max=60):
    sampling = pb.Sampling(temperature=rng.choice([0, 1]), repetition_penalty=rng.choice([0, 1.2]), seed=rng.getrandbits(62),
                           ignore_eos=True, max_tokens=rng.randint(tokens_min, tokens_max), logprobs=rng.random() < 0.2)
    ids = [rng.randrange(N_VOCAB) for _ in range(rng.randint(1, 150))]
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=sampling)


class Asks:
    """Requests and their answers in an undisturbed cluster."""

    def __init__(self, members, seed):
        rng = random.Random(seed)
        self.requests = [draw_ask(rng) for _ in range(N_ASKS)]
        self.truth = [tokens_of(generate(members.stub, request)) for request in self.requests]
        # For deadlines that strike. With a stop string nobody can say how long it will take: it is let in.
        self.long = draw_ask(rng, 800, 800)
        self.long.sampling.stop.append("never to be found")


class Storm:
    def __init__(self, members, asks, concurrency, seed):
        self.members, self.asks, self.concurrency = members, asks, concurrency
        self.rng = random.Random(seed)
        self.ends = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()

    def one(self, kind, ask, rng, salt):
        request = pb.GenerateRequest()
        request.CopyFrom(self.asks.long if kind == "deadline" else self.asks.requests[ask])
        request.cache_salt = salt
        timeout = rng.uniform(0.002, 0.03) if kind == "deadline" else TIMEOUT_S
        call = self.members.stub.Generate(request, timeout=timeout)
        timer = threading.Timer(rng.expovariate(20), call.cancel) if kind == "cancel" else None
        if timer:
            timer.start()
        replies, code, details = [], grpc.StatusCode.OK, ""
        try:
            for reply in call:
                replies.append(reply)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
        if timer:
            timer.cancel()
        self.judge(kind, ask, tokens_of(replies), bool(replies) and replies[-1].HasField("finish"), code, details)

    def judge(self, kind, ask, tokens, finished, code, details):
        codes = grpc.StatusCode
        allowed = {"run": [codes.OK], "cancel": [codes.OK, codes.CANCELLED],
                   # A router that sees that it can't be in time says so at once.
                   "deadline": [codes.DEADLINE_EXCEEDED, codes.RESOURCE_EXHAUSTED]}[kind]
        # The finish may cross a cancel or a deadline of the client.
        right = code in allowed and (finished or code != codes.OK)
        if kind != "deadline":
            truth = self.asks.truth[ask]
            right = right and (tokens == truth if code == codes.OK else tokens == truth[:len(tokens)])
        with self.lock:
            self.ends[kind, code.name] += 1
            if not right:
                self.wrong.append(f"{kind}: {code} {details} tokens={len(tokens)} finished={finished}")

    def worker(self, jobs):
        while True:
            with self.lock:
                if not jobs:
                    return
                kind, ask, seed, salt = jobs.pop()
            self.one(kind, ask, random.Random(seed), salt)

    def run(self, n, disturb=None):
        """n requests; disturb() once, when half of them have begun. Returns when all have ended."""
        kinds = ["cancel"] * (n // 3) + ["deadline"] * (n // 10)
        kinds += ["run"] * (n - len(kinds))
        self.rng.shuffle(kinds)
        jobs = [(kind, self.rng.randrange(N_ASKS), self.rng.random(), self.rng.choice(["", "a", "b", str(i)]))
                for i, kind in enumerate(kinds)]
        threads = [threading.Thread(target=self.worker, args=[jobs]) for _ in range(self.concurrency)]
        for thread in threads:
            thread.start()
        if disturb:
            wait_for("half of the requests", lambda: len(jobs) <= n // 2)
            disturb()
        for thread in threads:
            thread.join()


def first_token_s(members, ask):
    """Seconds from now until a new request has its first token."""
    began = time.monotonic()
    for reply in members.stub.Generate(ask, timeout=TIMEOUT_S, wait_for_ready=True):
        if tokens_of([reply]):
            return time.monotonic() - began
    raise AssertionError("a request without a token")


def restart_all(members, storm, waits):
    for name in WORKERS:
        members.kill(name)
    for name, role in WORKERS.items():
        members.worker(name, role, *OPTIONS)
    probe = pb.GenerateRequest()
    probe.CopyFrom(storm.asks.requests[0])
    probe.cache_salt = "probe"
    waits.append(first_token_s(members, probe))


def check_router_log(members):
    """Each request that came to the router has one end there, in the log and in the metrics; none was refused unread."""

    def is_idle():
        router = members.status().router
        return router.requests_running + router.requests_queued == 0
    wait_for("the router's last ends", is_idle)
    done = re.findall(r"request done: req=\S+ id=(\S+) client=\S+ end=(\S+) ", members.log("router"))
    doubled = [request for request, n in collections.Counter(request for request, _ in done).items() if n != 1]
    assert done and not doubled, f"of {len(done)} requests these have more than one end: {doubled[:5]}"
    logged = collections.Counter(end for _, end in done)
    _, text = get(members.admin("router") + "/metrics")
    counted = {end: int(n) for end, n in re.findall(r'^baton_router_requests_total\{end="(\w+)"\} (\d+)$', text, re.M)}
    assert {end: n for end, n in counted.items() if n > 0} == logged, f"the metrics say {counted}, the log {logged}"
    return len(done)


def run(n_requests, concurrency, batch, kills, seed, say=print):
    """Returns what was measured; raises AssertionError where something does not hold."""
    members = Members("odd", *ROUTER_OPTIONS)
    try:
        for name, role in WORKERS.items():
            members.worker(name, role, *OPTIONS)
        members.wait_ready()
        asks = Asks(members, seed)
        storm = Storm(members, asks, concurrency, seed)
        storm.run(2 * concurrency)  # connections, pools and tables are there
        members.wait_idle()
        processes = members.processes
        before = {name: n_descriptors(process.pid) for name, process in processes.items()}
        waits, rss, done = [], {}, 0
        while done < n_requests:
            n = min(batch, n_requests - done)
            storm.run(n, (lambda: restart_all(members, storm, waits)) if kills else None)
            done += n
            members.wait_ready()
            members.wait_idle()  # free + cached = total on every worker
            assert not storm.wrong, f"{len(storm.wrong)} requests ended wrongly (seed {seed}): {storm.wrong[:5]}"
            rss[done] = {name: rss_bytes(process.pid) // 1024 for name, process in processes.items()}
            say(f"storm: done={done} ends={sum(storm.ends.values())} rss_kib={rss[done]} "
                f"first_token_s={max(waits, default=0):.2f}")
        assert max(waits, default=0) <= FIRST_TOKEN_S, f"first token {max(waits):.1f} s after a restart"
        after = {name: n_descriptors(process.pid) for name, process in processes.items()}
        assert after["router"] <= before["router"], f"descriptors: {before} before, {after} after"
        if not kills:
            assert all(after[name] <= before[name] for name in before), f"descriptors: {before} before, {after} after"
        measured = {"ends": {f"{kind}/{code}": n for (kind, code), n in sorted(storm.ends.items())}, "rss": rss,
                    "first_token_s_max": max(waits, default=0), "descriptors": (before, after)}
        if n_requests >= 5 * batch:  # the first fifth warms up
            first, last = rss[min(k for k in rss if k >= n_requests // 5)], rss[n_requests]
            for name in processes if not kills else ["router"]:
                grown = last[name] - first[name]
                assert grown <= RSS_GROWTH_KIB, f"{name} grew by {grown} KiB from {first[name]} KiB"
        measured["ends at the router"] = check_router_log(members)
        codes = members.close()
        assert not any(codes.values()), f"exit codes: {codes}"
        assert all("audit=OK" in log for log in members.audits.values()), "a pool's audit failed"
        return measured
    finally:
        members.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--kill-every", type=int, default=1000)
    parser.add_argument("--no-kills", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    measured = run(options.requests, options.concurrency, options.kill_every, not options.no_kills, options.seed)
    for key, value in measured.items():
        print(f"{key}: {value}")
    print("storm: passed")


if __name__ == "__main__":
    main()
