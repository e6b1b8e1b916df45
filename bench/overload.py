#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goodput at capacity and at five times capacity, interleaved; and what idle and never reading clients do to others.

One prefill and one decode worker of one thread each, on a core of their own. T1 and D1 (time to first token of a lone
prompt of 1,024 tokens, time per token after it) are measured here unless given; the limits are TTFT 3 T1 and TPOT 2 D1,
and the router is told them (--ttft-max, --tpot-max). Capacity is the rate at which 90% of all requests meet both.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/client"))
from raw_h2 import Crowd  # noqa: E402

import grpc  # noqa: E402

os.chdir(ROOT)
sys.path.insert(0, ROOT)
pb, services = grpc.protos_and_services("proto/generation.proto")

GENERATE = "/baton.v1.Generation/Generate"


def say(text):
    print(text, flush=True)


class Cluster:
    def __init__(self, options, *router):
        self.folder = tempfile.TemporaryDirectory(prefix="baton-overload-")
        self.options, self.processes = options, {}
        cpus = sorted(os.sched_getaffinity(0))
        common = ["--model", options.model, "--admin", "127.0.0.1:0"]
        self.start("router", cpus, ["router", "--listen", "127.0.0.1:0", "--attach", "127.0.0.1:0", "--requests-max",
                                    "4096", *common, *router])
        line = self.wait_log("router", "router started:")
        fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
        self.address, attach = (f"127.0.0.1:{fields[name]}" for name in ("client_port", "attach_port"))
        for i, role in enumerate(("prefill", "decode")):
            self.start(role, [cpus[i % len(cpus)]], ["worker", "--role", role, "--name", role, "--threads", "1", "--router",
                                                     attach, *options.worker, *common])
        self.wait_log("router", "readiness changed: ready=1", 300)
        port = self.wait_log("router", "admin address served:").rsplit("port=", 1)[1].split()[0]
        self.metrics_url = f"http://127.0.0.1:{port}/metrics"

    def start(self, name, cpus, arguments):
        with open(self.path(name), "wb") as log:
            self.processes[name] = subprocess.Popen(
                [self.options.baton, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                preexec_fn=lambda: os.sched_setaffinity(0, cpus))

    def path(self, name):
        return os.path.join(self.folder.name, name + ".log")

    def wait_log(self, name, text, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.processes[name].poll() is None:
            with open(self.path(name), encoding="utf-8", errors="replace") as log:
                for line in log:
                    if text in line:
                        return line
            time.sleep(0.05)
        with open(self.path(name), encoding="utf-8", errors="replace") as log:
            raise SystemExit(f"overload: no '{text}' in the log of {name}:\n{log.read()[-2000:]}")

    def metrics(self):
        """{line without its value: value}"""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as page:
            lines = page.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def rss_mib(self, name="router"):
        with open(f"/proc/{self.processes[name].pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        return 0.0

    def close(self):
        for process in reversed(list(self.processes.values())):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()


class Load:
    """`baton bench serve` against a cluster, in the background."""

    def __init__(self, cluster, rate, seconds, seed, ttft_ms=0, tpot_ms=0, prompt=None, output=None):
        o = cluster.options
        self.rate, self.n = rate, max(1, round(rate * seconds))
        arguments = [o.baton, "bench", "serve", "--address", cluster.address, "--json", "--seed", str(seed), "--rate",
                     str(rate), "--requests", str(self.n), "--ttft-target", str(ttft_ms), "--tpot-target", str(tpot_ms),
                     "--prompt-tokens", prompt or o.prompt, "--output-tokens", output or o.output]
        if o.trace and not prompt:
            arguments += ["--trace", o.trace, "--length-divisor", str(o.divisor)]
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def result(self):
        out, _ = self.process.communicate()
        if self.process.returncode != 0:
            raise SystemExit(f"overload: the load failed: {out}")
        report = json.loads(out)
        # Each request has an expected time of 1 / rate to arrive in: the same window for all runs.
        report["goodput"] = report["attainment"] * report["requests"] / (self.n / self.rate)
        return report


def measure_alone(cluster):
    """T1, D1 in ms: medians of lone requests."""
    ttft, tpot = [], []
    for i in range(cluster.options.lone):
        report = Load(cluster, 1, 1, 1000 + i, prompt="1024", output="33").result()
        ttft.append(report["ttft_ms"]["p50"])
        tpot.append(report["tpot_ms"]["p50"])
    return statistics.median(ttft), statistics.median(tpot)


def meets(cluster, rate, seconds, seed, limits):
    report = Load(cluster, rate, seconds, seed, *limits).result()
    say(f"  {rate:.3f}/s: {100 * report['attainment']:.1f}% met, TTFT p90 {report['ttft_ms']['p90']:.0f} ms, TPOT p90 "
        f"{report['tpot_ms']['p90']:.1f} ms, {report['failures']}")
    return report["attainment"] >= 0.9


def find_capacity(cluster, seconds, limits, first):
    """The highest rate that 90% survive, to 5%: up or down by a quarter, then bisection."""
    seed, rate, good, bad = 1, first, None, None
    while good is None or bad is None:
        if meets(cluster, rate, seconds, seed, limits):
            good, rate = rate, rate * 1.25
        else:
            bad, rate = rate, rate / 1.25
        seed += 1
        if rate < 0.01:
            raise SystemExit("overload: no rate meets the limits")
    while bad / good > 1.05:
        rate = (good + bad) / 2
        if meets(cluster, rate, seconds, seed, limits):
            good = rate
        else:
            bad = rate
        seed += 1
    return good


def quantile_of_histogram(before, after, name, q):
    """Upper bound of the bucket that holds the quantile, in ms; None: nothing was observed."""
    prefix = name + '_bucket{le="'
    counts = sorted((float(key[len(prefix):-2].replace("+Inf", "inf")), value - before.get(key, 0))
                    for key, value in after.items() if key.startswith(prefix))
    total = counts[-1][1] if counts else 0
    return next((1000 * bound for bound, count in counts if total and count >= q * total), None)


class Probe:
    """From a moment on, small requests until one is served within the limits; how long that took."""

    def __init__(self, cluster, after_s, ttft_ms):
        self.recovered_s, self.cluster, self.ttft_ms = None, cluster, ttft_ms
        self.begin = time.monotonic() + after_s
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        time.sleep(max(0, self.begin - time.monotonic()))
        with grpc.insecure_channel(self.cluster.address) as channel:
            stub = services.GenerationStub(channel)
            request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=list(range(300, 364))),
                                         sampling=pb.Sampling(max_tokens=2, ignore_eos=True))
            while time.monotonic() < self.begin + 60:
                sent = time.monotonic()
                try:
                    next(iter(stub.Generate(request, timeout=60)))
                    if 1000 * (time.monotonic() - sent) <= self.ttft_ms:
                        self.recovered_s = sent - self.begin
                        return
                except grpc.RpcError:
                    pass
                time.sleep(0.25)


def run_overload(cluster, capacity, limits, o):
    rounds = []
    for i in range(o.rounds):
        calm = Load(cluster, capacity, o.seconds, 100 + i, *limits).result()
        rss_calm = cluster.rss_mib()
        before = cluster.metrics()
        probe = Probe(cluster, o.seconds, limits[0])
        busy = Load(cluster, o.times * capacity, o.seconds, 200 + i, *limits).result()
        probe.thread.join()
        refusal_ms = quantile_of_histogram(before, cluster.metrics(), "baton_router_refusal_seconds", 0.99)
        ratio = busy["goodput"] / calm["goodput"] if calm["goodput"] else 0.0
        rounds.append({"ratio": ratio, "goodput_calm": calm["goodput"], "goodput_busy": busy["goodput"],
                       "attainment_calm": calm["attainment"], "refusal_p99_ms": refusal_ms,
                       "rss_calm_mib": rss_calm, "rss_busy_mib": cluster.rss_mib(), "recovery_s": probe.recovered_s,
                       "client_cpu_busy": busy["client_cpu"], "failures_busy": busy["failures"]})
        say(f"round {i + 1}: {calm['goodput']:.3f}/s at capacity, {busy['goodput']:.3f}/s at {o.times}x: ratio {ratio:.3f}; "
            f"refusals p99 within {refusal_ms} ms, recovery {probe.recovered_s} s, router {rss_calm:.1f} -> "
            f"{cluster.rss_mib():.1f} MiB, client {100 * busy['client_cpu']:.0f}% of a core, {busy['failures']}")
    return rounds


def run_with_crowd(cluster, rate, seconds, seed, o, reads):
    """p99 TPOT of ordinary load beside requests of `never` more clients, which read or not, and idle connections."""
    message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[300]), sampling=pb.Sampling(
        max_tokens=32, ignore_eos=True)).SerializeToString()
    crowd = Crowd(cluster.address)
    try:
        for _ in range(0 if reads else o.idle):
            crowd.add()
        load = Load(cluster, rate, seconds, seed)
        for _ in range(o.never):
            crowd.add(GENERATE, message, (1 << 30) if reads else 0)
            time.sleep(seconds / o.never)
        report = load.result()
        return report["tpot_ms"]["p99"], crowd.n_open, cluster.rss_mib()
    finally:
        crowd.close()


def run_crowd(cluster, capacity, o):
    rounds = []
    for i in range(o.rounds):
        calm, _, rss_calm = run_with_crowd(cluster, capacity / 2, o.crowd_seconds, 300 + i, o, True)
        slow, n_open, rss_slow = run_with_crowd(cluster, capacity / 2, o.crowd_seconds, 300 + i, o, False)
        rounds.append({"ratio": slow / calm if calm else 0.0, "tpot_p99_calm_ms": calm, "tpot_p99_slow_ms": slow,
                       "connections": n_open, "rss_calm_mib": rss_calm, "rss_slow_mib": rss_slow})
        say(f"round {i + 1}: TPOT p99 of others {calm:.1f} ms beside {o.never} clients that read, {slow:.1f} ms beside "
            f"{o.never} that never do and {o.idle} idle connections ({n_open} open at the end): ratio "
            f"{rounds[-1]['ratio']:.3f}; router {rss_calm:.1f} -> {rss_slow:.1f} MiB")
    return rounds


def read_options():
    p = argparse.ArgumentParser(prog="bench/run overload", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--baton", default=os.environ.get("BATON"), help="binary (bench/run builds and names it)")
    p.add_argument("--model", default=os.environ.get("BATON_TEST_MODEL"), help="GGUF file")
    p.add_argument("--trace", help="lengths of a public trace (Azure's CSV); without it they are drawn evenly")
    p.add_argument("--divisor", type=int, default=4, help="divides the trace's lengths (4)")
    p.add_argument("--prompt", default="16-1024", help="prompt tokens, or the bounds of the trace's (16-1024)")
    p.add_argument("--output", default="4-256", help="output tokens, or their bounds (4-256)")
    p.add_argument("--seconds", type=float, default=120, help="of each run of a round (120)")
    p.add_argument("--probe-seconds", type=float, default=90, help="of each run that looks for the capacity (90)")
    p.add_argument("--crowd-seconds", type=float, default=60, help="of each run beside slow clients (60)")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--times", type=float, default=5, help="load of the overload, in capacities (5)")
    p.add_argument("--idle", type=int, default=1000, help="idle connections (1000)")
    p.add_argument("--never", type=int, default=100, help="clients that never read (100)")
    p.add_argument("--lone", type=int, default=5, help="lone requests that T1 and D1 are the median of (5)")
    p.add_argument("--t1", type=float, default=0, help="ms; measured if not given")
    p.add_argument("--d1", type=float, default=0, help="ms; measured if not given")
    p.add_argument("--capacity", type=float, default=0, help="requests/s; looked for if not given")
    p.add_argument("--first-rate", type=float, default=0, help="where the search begins; guessed if not given")
    p.add_argument("--worker", nargs="*", default=[], help="further options of both workers")
    p.add_argument("--json", help="file for the results")
    p.add_argument("--quick", action="store_true", help="10 s runs, one round, few connections: does it work?")
    o = p.parse_args()
    if o.quick:
        o.seconds, o.crowd_seconds, o.rounds, o.idle, o.never, o.lone = 10, 5, 1, 50, 10, 1
        o.capacity = o.capacity or 0.5
    if not o.baton or not o.model:
        p.error("--baton and --model are needed (bench/run gives them)")
    if o.trace:
        o.trace = os.path.realpath(o.trace)
    return o


def main():
    o = read_options()
    t1, d1 = o.t1, o.d1
    if not t1 or not d1:
        cluster = Cluster(o)
        try:
            t1, d1 = measure_alone(cluster)
        finally:
            cluster.close()
    limits = 3 * t1, 2 * d1
    say(f"T1 {t1:.0f} ms, D1 {d1:.1f} ms: limits TTFT {limits[0]:.0f} ms, TPOT {limits[1]:.1f} ms")
    cluster = Cluster(o, "--ttft-max", f"{round(limits[0])}ms", "--tpot-max", f"{max(1, round(limits[1]))}ms")
    try:
        Load(cluster, 0.5, 8, 1).result()  # the workers' times are known from here on
        capacity = o.capacity or find_capacity(cluster, o.probe_seconds, limits,
                                               o.first_rate or 0.8 * 1024 / t1 * 1000 / 300)
        say(f"capacity {capacity:.3f} requests/s")
        overload = run_overload(cluster, capacity, limits, o)
        crowd = run_crowd(cluster, capacity, o)
    finally:
        cluster.close()
    result = {
        "t1_ms": t1, "d1_ms": d1, "capacity": capacity,
        "overload_ratio": statistics.median(r["ratio"] for r in overload),
        "crowd_tpot_ratio": statistics.median(r["ratio"] for r in crowd),
        "overload": overload, "crowd": crowd,
    }
    say(f"median ratio of goodput at {o.times}x: {result['overload_ratio']:.3f} (at least 0.9); median ratio of p99 TPOT "
        f"beside slow clients: {result['crowd_tpot_ratio']:.3f} (at most 1.1)")
    if o.json:
        with open(o.json, "w", encoding="utf-8") as out:
            json.dump(result, out, indent=2)
            out.write("\n")


if __name__ == "__main__":
    main()
