#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does time tell one tenant what another one has cached?

Two API keys at one worker. For each round there is a prompt that Alice has asked for before and one that nobody has; Bob asks
for both, in turns first, and then again for his own. Medians of his times to the first token: what Alice has cached must look
like what nobody has; his own is quicker, which shows that the cache would have been seen."""
import argparse
import json
import os
import statistics
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/client"))
os.chdir(ROOT)
from members import Members, pb  # noqa: E402

ALICE, BOB = "secret-of-alice-0123456789", "secret-of-bob-0123456789"


def ttft_ms(members, key, text):
    request = pb.GenerateRequest(text=text, sampling=pb.Sampling(max_tokens=1, ignore_eos=True))
    replies = list(members.stub.Generate(request, timeout=120, metadata=(("authorization", "Bearer " + key),)))
    return replies[-1].finish.timings.ttft_ms, replies[-1].finish.usage.cached_tokens


def measure(members, o):
    times = {"of alice": [], "of nobody": [], "his own": []}
    n_leaked = n_own = 0
    for i in range(o.requests):
        seen, unseen = (f"{name} {i:05}" + " and so on" * o.words for name in ("seen", "else"))
        ttft_ms(members, ALICE, seen)
        order = [("of alice", seen), ("of nobody", unseen)]
        for name, text in order if i % 2 else order[::-1]:
            ms, cached = ttft_ms(members, BOB, text)
            times[name].append(ms)
            n_leaked += cached
        ms, cached = ttft_ms(members, BOB, seen)
        times["his own"].append(ms)
        n_own += cached
    return {name: statistics.median(values) for name, values in times.items()}, n_leaked, n_own


def main():
    p = argparse.ArgumentParser(prog="bench/run tenants", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.environ.get("BATON_TEST_MODEL"), help="GGUF file (the demo model)")
    p.add_argument("--requests", type=int, default=200, help="of each kind (200)")
    p.add_argument("--words", type=int, default=40, help="length of the prompts, in 3 words (40)")
    p.add_argument("--threads", type=int, default=1, help="of the worker (1)")
    p.add_argument("--json", help="file for the results")
    p.add_argument("--quick", action="store_true", help="5 requests of each kind: does it work?")
    o = p.parse_args()
    o.requests = 5 if o.quick else o.requests
    with tempfile.TemporaryDirectory(prefix="baton-tenants-") as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(f"alice {ALICE}\nbob {BOB}\n")
        members = Members(o.model, "--api-keys", keys)
        try:
            members.worker("w", "both", "--threads", str(o.threads), "--kv-pool-bytes", "256M")
            members.wait_log("router", "readiness changed: ready=1")
            medians, n_leaked, n_own = measure(members, o)
        finally:
            members.close()
    ratio = medians["of alice"] / medians["of nobody"]
    for name, ms in medians.items():
        print(f"median TTFT of {o.requests} prompts {name + ':':11} {ms:8.2f} ms")
    print(f"of alice / of nobody: {ratio:.3f} (1 if time tells nothing); of alice / his own: "
          f"{medians['of alice'] / medians['his own']:.2f}")
    print(f"cached tokens: {n_leaked} of others (must be 0), {n_own} of his own")
    if o.json:
        with open(o.json, "w", encoding="utf-8") as out:
            json.dump({"medians_ms": medians, "ratio": ratio, "leaked_tokens": n_leaked, "own_tokens": n_own}, out, indent=2)
            out.write("\n")
    return 1 if n_leaked else 0


if __name__ == "__main__":
    sys.exit(main())
