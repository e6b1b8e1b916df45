# SPDX-License-Identifier: Apache-2.0
"""Metrics, log lines and `baton explain` against what a client counted by itself, on a random-weight model.

Each test starts its own cluster, so counters begin at 0 and are compared with `==`.
"""
import math
import os
import re
import signal
import subprocess
import sys
import unittest
import urllib.request

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prometheus  # noqa: E402
from members import ROOT, TIMEOUT_S, Members, baton, generate, pb, tokens_of, wait_for  # noqa: E402

BLOCK = 16
STATES = ["tokenizing", "queued", "prefilling", "decoding", "ending", "reading"]


def ask(ids, max_tokens, **fields):
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids),
                              sampling=pb.Sampling(max_tokens=max_tokens, ignore_eos=True), **fields)


def prompt(seed, n):
    return [(seed * 7919 + i * i * 31 + i * 17) % 256 for i in range(n)]


def start(case, prefill=(), decode=(), router=()):
    members = Members("odd", "--no-local-prefill", "--log-level", "info", *router)
    case.addCleanup(members.close)
    members.worker("p", "prefill", "--threads", "1", *prefill)
    members.worker("d", "decode", "--threads", "1", *decode)
    members.wait_ready()
    return members


class Reader:
    """What a member's /metrics says."""

    def __init__(self, members, name):
        with urllib.request.urlopen(members.admin(name) + "/metrics", timeout=TIMEOUT_S) as reply:
            self.samples = prometheus.parse(reply.read().decode())
        self.prefix = "baton_router_" if name == "router" else "baton_worker_"

    def __call__(self, name, **labels):
        return self.samples[self.prefix + name, tuple(sorted(labels.items()))]


def slots(n_prompt, n_output):
    """K and V that a sequence alone has on D after each of its steps, and the slots of its blocks."""
    lengths = [n_prompt + i for i in range(1, n_output)]
    return sum(lengths), sum(math.ceil(n / BLOCK) * BLOCK for n in lengths)


class CountersTest(unittest.TestCase):
    def test_counters_and_histograms_agree_with_what_the_client_counted(self):
        members = start(self)
        shared = prompt(1, 100)
        # The second one finds six full blocks of the first on both workers.
        wanted = [(shared, 9), (shared + prompt(2, 28), 17), (prompt(3, 16), 2), (prompt(4, 47), 1), (prompt(5, 5), 30)]
        finishes, spans = [], [0, 0]
        for ids, n in wanted:
            replies = generate(members.stub, ask(ids, n))
            self.assertEqual(len(tokens_of(replies)), n)
            finishes.append(replies[-1].finish)
            written, allocated = slots(len(ids), n)
            spans = [spans[0] + written, spans[1] + allocated]
        with self.assertRaises(grpc.RpcError) as caught:
            generate(members.stub, ask([], 1))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        members.wait_idle()

        n_prompts, n_tokens = sum(len(ids) for ids, _ in wanted), sum(n for _, n in wanted)
        n_moved = sum(f.route.bytes_moved for f in finishes)
        n_split = sum(f.route.blocks_moved > 0 for f in finishes)
        self.assertEqual([f.usage.cached_tokens for f in finishes], [0, 96, 0, 0, 0])
        self.assertEqual(n_split, 4)

        # Gauges follow with the router's next tick.
        wait_for("an idle router", lambda: not any(Reader(members, "router")("requests", state=s) for s in STATES))
        router = Reader(members, "router")
        ends = {"length": 5, "invalid": 1}
        for end in ["stop", "length", "invalid", "exhausted", "deadline", "cancelled", "slow_client", "unavailable",
                    "error"]:
            self.assertEqual(router("requests_total", end=end), ends.get(end, 0), end)
        self.assertEqual(router("prompt_tokens_total"), n_prompts)
        self.assertEqual(router("generated_tokens_total"), n_tokens)
        self.assertEqual(router("cached_tokens_total"), 96)
        self.assertEqual(router("kv_bytes_moved_total"), n_moved)
        self.assertEqual(router("kv_blocks_moved_total"), sum(f.route.blocks_moved for f in finishes))
        self.assertEqual(router("retries_total"), 0)
        self.assertEqual(router("recoveries_total"), 0)
        counts = {"ttft": 5, "tpot": 4, "request": 5, "queue": 5, "prefill": 5, "transfer": 4, "tokenize": 5}
        for name, count in counts.items():
            self.assertEqual(router(name + "_seconds_count"), count, name)
        for name, unit in (("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("request", "total_ms"), ("queue", "queue_ms"),
                           ("prefill", "prefill_ms"), ("transfer", "transfer_ms")):
            told = sum(getattr(f.timings, unit) for f in finishes)
            self.assertAlmostEqual(router(name + "_seconds_sum") * 1e3, told, delta=0.01 + told * 1e-3, msg=name)
        # The gaps between a request's tokens, however many came at a time, add up to its mean times the rest.
        gaps = sum(f.timings.tpot_ms * (n - 1) for f, (_, n) in zip(finishes, wanted))
        self.assertAlmostEqual(router("inter_token_seconds_sum") * 1e3, gaps, delta=0.01 + gaps * 1e-3)
        self.assertLessEqual(router("inter_token_seconds_count"), n_tokens - 5)
        self.assertEqual(router("workers"), 2)

        p, d = Reader(members, "p"), Reader(members, "d")
        self.assertEqual(p("prefix_queries_total"), 5)
        self.assertEqual(p("prefix_hits_total"), 1)
        self.assertEqual(p("prefix_tokens_total", found="yes"), 96)
        self.assertEqual(p("prefix_tokens_total", found="no"), n_prompts - 96)
        self.assertEqual(p("tokens_total", kind="prefill"), n_prompts - 96)
        self.assertEqual(p("blocks_stored_total"), 6 + 2 + 1 + 2)
        self.assertEqual(p("blocks_evicted_total"), 0)
        self.assertEqual(p("blocks", state="cached"), 11)
        self.assertEqual(p("runs_total", end="ok"), 5)
        self.assertEqual(p("queue_seconds_count"), 5)
        self.assertEqual(p("prefill_seconds_count"), 5)
        self.assertEqual(p("leases_expired_total"), 0)

        self.assertEqual(d("prefix_queries_total"), 4)
        self.assertEqual(d("prefix_hits_total"), 1)
        self.assertEqual(d("pulls_total", outcome="done"), 4)
        self.assertEqual(d("partial_pulls_total"), 1)
        self.assertEqual(d("pulled_blocks_total"), sum(f.route.blocks_moved for f in finishes))
        self.assertEqual(d("transfer_bytes_total", direction="pulled"), n_moved)
        self.assertEqual(d("tokens_total", kind="decode"), n_tokens - 5)
        self.assertEqual(d("slots_total", kind="written"), spans[0])
        self.assertEqual(d("slots_total", kind="allocated"), spans[1])
        self.assertEqual(d("runs_total", end="ok"), 4)
        self.assertEqual(d("transfer_seconds_count"), 4)
        self.assertEqual(d("decode_seconds_count"), 4)
        for reader in (p, d):
            for cause in ("corrupt", "duplicate", "late", "unknown"):
                self.assertEqual(reader("transfer_rejected_total", cause=cause), 0)
            self.assertEqual(reader("preemptions_total"), 0)
            self.assertEqual(reader("kv_handshakes_refused_total"), 0)
        for reader in (router, p, d):
            self.assertGreater(reader.samples["process_resident_memory_bytes", ()], 1 << 20)
            self.assertGreater(reader.samples["process_open_fds", ()], 3)

        def status_agrees():  # with the next load report
            workers = members.workers()
            return (workers["d"].slots_written, workers["d"].slots_allocated) == tuple(spans) \
                and (workers["p"].prefix_queries, workers["p"].prefix_hits) == (5, 1)
        wait_for("a status that agrees", status_agrees, 20)
        members.close_clean(self)

    def test_alerting_rules_name_metrics_that_are_there(self):
        members = start(self)
        told = {name for member in ("router", "p", "d") for name, _ in Reader(members, member).samples}
        with open(os.path.join(ROOT, "deploy/prometheus/baton-alerts.yaml"), encoding="utf-8") as f:
            wanted = set(re.findall(r"\b(?:baton_(?:router|worker)|process)_\w+", f.read()))
        self.assertGreater(len(wanted), 10)
        self.assertEqual(wanted - told, set())
        members.close_clean(self)

    def test_living_requests_show_by_state_and_their_end_is_counted(self):
        members = start(self)
        call = members.stub.Generate(ask(prompt(1, 20), 900), timeout=TIMEOUT_S)
        replies = [next(call)]
        while len(tokens_of(replies)) < 2:  # the first is the prefill worker's
            replies.append(next(call))
        members.signal("d", signal.SIGSTOP)  # it would soon be through
        self.addCleanup(members.signal, "d", signal.SIGCONT)
        wait_for("a decoding request", lambda: Reader(members, "router")("requests", state="decoding") == 1)
        self.assertEqual(Reader(members, "router")("requests_running"), 1)
        call.cancel()
        wait_for("its end", lambda: Reader(members, "router")("requests_total", end="cancelled") == 1)
        members.signal("d", signal.SIGCONT)
        members.wait_idle()
        router, d = Reader(members, "router"), Reader(members, "d")
        self.assertEqual(router("requests_total", end="cancelled"), 1)
        self.assertEqual(router("request_seconds_count"), 0)  # of those that ended well
        self.assertEqual(d("runs_total", end="cancelled"), 1)
        members.close_clean(self)

    def test_cap_of_the_prefix_cache_holds_and_evictions_are_counted(self):
        members = start(self, prefill=["--prefix-cache-bytes", "0"], decode=["--prefix-cache-bytes", "23000"])
        for seed in range(4):
            generate(members.stub, ask(prompt(seed, 64), 2))
        again = generate(members.stub, ask(prompt(3, 64), 2))[-1].finish
        self.assertEqual(again.usage.cached_tokens, 0)  # P keeps nothing
        members.wait_idle()
        p, d = Reader(members, "p"), Reader(members, "d")
        self.assertEqual(p("blocks", state="cached"), 0)
        self.assertEqual(p("blocks_stored_total"), 0)
        cap = 23000 // (3 * 2 * 5 * 8 * 2 * BLOCK)  # layers, K and V, heads, their size, bytes of a bf16, tokens
        cached = d("blocks", state="cached")
        self.assertLessEqual(cached, cap)
        self.assertGreater(cached, 0)
        self.assertEqual(d("blocks_stored_total") - d("blocks_evicted_total"), cached)
        self.assertEqual(again.route.blocks_skipped, cached)  # the newest prompt's head is what stayed
        wait_for("a status that agrees", lambda: members.workers()["d"].blocks_evicted == d("blocks_evicted_total"), 20)
        worker = members.workers()["d"]
        self.assertEqual(worker.evicted_last_minute, worker.blocks_evicted)
        shown = subprocess.run([baton(), "status", "--address", members.address], capture_output=True, text=True,
                               timeout=TIMEOUT_S, check=True).stdout
        row = next(line for line in shown.splitlines() if line.startswith("d "))
        self.assertRegex(row, rf" {worker.evicted_last_minute} +\d+% ")
        members.close_clean(self)


class LogTest(unittest.TestCase):
    def test_label_and_id_join_the_lines_of_router_and_workers(self):
        members = start(self)
        list(members.stub.Generate(ask(prompt(1, 40), 5), timeout=TIMEOUT_S, metadata=[("x-request-id", "order-66")]))
        members.wait_idle()
        line = members.wait_log("router", r"request done: req=order-66 id=([0-9a-f]{32}) .*").group(0)
        fields = dict(re.findall(r"(\w+)=(\S+)", line))
        moments = [float(fields[key]) for key in ("tokenized_at", "placed_at", "prefill_start_at", "prefill_end_at",
                                                  "transferred_at")]
        self.assertEqual(moments, sorted(moments), line)
        self.assertGreater(moments[2], 0, line)
        self.assertLessEqual(moments[-1], float(fields["total_ms"]) + 1, line)
        for name, mode in (("p", "prefill"), ("d", "decode")):
            members.wait_log(name, rf"request done: req=order-66 id={fields['id']} attempt=1 mode={mode} status=OK")
        members.close_clean(self)


class ExplainTest(unittest.TestCase):
    def explain(self, members, request, code=0, **environment):
        done = subprocess.run([baton(), "explain", request, "--attach", members.attach], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False, env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def moments(self, text):
        """[(ms, where, what)] of the lines; they must be in order."""
        found = [(float(ms), where.strip(), what)
                 for ms, where, what in re.findall(r"^ *([0-9.]+) ms  (.*?)  +(.*)$", text, re.M)]
        self.assertEqual([ms for ms, _, _ in found], sorted(ms for ms, _, _ in found), text)
        return found

    def generate(self, members, label, ids, n):
        return list(members.stub.Generate(ask(ids, n), timeout=TIMEOUT_S, metadata=[("x-request-id", label)]))

    def test_ended_request_is_told_by_label_and_by_id(self):
        members = start(self)
        self.generate(members, "order-66", prompt(1, 40), 5)
        self.generate(members, "another", prompt(2, 20), 2)
        members.wait_idle()
        text = self.explain(members, "order-66")
        whats = [(where, what) for _, where, what in self.moments(text)]
        for wanted in [("router", "received"), ("router", "tokenized: 40 tokens"),
                       ("router", "attempt 1: prefill on p, decode on d"), ("p prefill", "starts, 0 tokens cached"),
                       ("p prefill", "prompt computed, first token sampled"), ("router", "first token"),
                       ("d decode", "ends, length: 5 tokens"), ("router", "over: length")]:
            self.assertIn(wanted, whats, text)
        self.assertRegex(text, r"d decode +KV is here: 3 blocks, .* from p over shm, 0 were here already")
        self.assertNotIn("another", text)
        identity = re.search(r"id ([0-9a-f]{32})", text).group(1)
        self.assertEqual(self.explain(members, identity), text)
        self.assertIn("remember", self.explain(members, "nobody", code=1))
        self.assertIn("cluster key", self.explain(members, "order-66", code=1, BATON_CLUSTER_KEY="00" * 32))
        members.close_clean(self)

    def test_recovered_stream_tells_where_it_was_and_why_it_moved_on(self):
        members = start(self)
        members.worker("d2", "decode", "--threads", "1")
        members.wait_ready()
        call = members.stub.Generate(ask(prompt(1, 40), 900), timeout=TIMEOUT_S, metadata=[("x-request-id", "unlucky")])
        next(call)
        for name in ("d", "d2"):
            members.signal(name, signal.SIGSTOP)
        living = self.explain(members, "unlucky")
        self.assertIn("now: decoding", living)
        self.assertIn("2 workers did not answer", living)
        first = re.search(r"attempt 1: prefill on p, decode on (d2?)$", living, re.M).group(1)
        other = "d2" if first == "d" else "d"
        members.kill(first)
        members.signal(other, signal.SIGCONT)
        list(call)
        members.wait_idle()
        text = self.explain(members, "unlucky")
        self.assertRegex(text, rf"attempt 1 is over: decode worker '{first}'")
        self.assertRegex(text, rf"attempt 2: prefill on p, decode on {other}\n")
        self.assertIn("1 recoveries", text)
        self.assertEqual(members.status().router.recoveries, 1)
        self.assertEqual(Reader(members, "router")("recoveries_total"), 1)
        self.assertIn((f"{other} decode", "ends, length: 900 tokens"), [m[1:] for m in self.moments(text)])
        members.close_clean(self)

    def test_workers_remember_what_a_restarted_router_forgot(self):
        members = start(self)
        self.generate(members, "before", prompt(1, 40), 5)
        members.wait_idle()
        members.restart_router()
        text = self.explain(members, "before")
        self.assertIn("this router does not know it; its workers do", text)
        self.assertEqual({where for _, where, _ in self.moments(text)}, {"p prefill", "d decode"})
        members.close_clean(self)


if __name__ == "__main__":
    unittest.main()
