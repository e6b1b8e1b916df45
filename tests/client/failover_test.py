# SPDX-License-Identifier: Apache-2.0
"""Streams outlive their workers: a member is killed (SIGKILL) while 16 requests run, and every stream goes on to its end
with the tokens, log-probabilities, text and usage of an undisturbed run, compared with ==. The kill comes as soon as the
streams are in the state that a test is about; streams are long and workers slow enough that it comes in time.
"""
import os
import random
import signal
import sys
import threading
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from members import TIMEOUT_S, Members, generate, pb, tokens_of, wait_for  # noqa: E402
from same_tokens_test import outcome  # noqa: E402

N_STREAMS = 16
N_VOCAB = 256  # ids that every tiny model has
SLOW = "--threads", "1", "--running-max", "4"  # so that a kill comes in time


def draw_requests(prompt_max, tokens_min, tokens_max, seed):
    rng = random.Random(seed)
    requests = []
    for _ in range(N_STREAMS):
        sampling = pb.Sampling(
            temperature=rng.choice([0, 0.5, 1, 1.5]), top_k=rng.choice([0, 20]), top_p=rng.choice([0, 0.9]),
            repetition_penalty=rng.choice([0, 1.2]), presence_penalty=rng.choice([0, 0.4]),
            frequency_penalty=rng.choice([0, 0.5]), seed=rng.getrandbits(63), ignore_eos=True,
            max_tokens=rng.randint(tokens_min, tokens_max))
        if rng.random() < 0.5:
            sampling.logprobs, sampling.n_top_logprobs = True, 3
            sampling.echo = rng.random() < 0.5
        ids = [rng.randrange(N_VOCAB) for _ in range(rng.randint(1, prompt_max))]
        requests.append(pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling=sampling))
    return requests


class Streams:
    """Requests that run at the same time; each reply is kept as it comes."""

    def __init__(self, members, requests):
        self.replies = [[] for _ in requests]
        self.errors = [None for _ in requests]
        self.threads = [threading.Thread(target=self.read, args=[members, i, request])
                        for i, request in enumerate(requests)]
        for thread in self.threads:
            thread.start()

    def read(self, members, i, request):
        try:
            for reply in members.stub.Generate(request, timeout=TIMEOUT_S):
                self.replies[i].append(reply)
        except grpc.RpcError as error:
            self.errors[i] = error

    def n_begun(self):
        return sum(bool(tokens_of(replies)) for replies in list(self.replies))

    def join(self):
        for thread in self.threads:
            thread.join()
        return self.replies


class FailoverTest(unittest.TestCase):
    def start(self, workers, *router_options, options=()):
        members = Members("wide", *router_options)
        self.addCleanup(members.close)
        for name, role in workers.items():
            members.worker(name, role, *SLOW, *options)
        members.wait_ready()
        return members

    def run_both_ways(self, members, requests, disturb):
        """All requests undisturbed, then again beside disturb(streams); returns the second replies."""
        truth = [outcome(replies) for replies in Streams(members, requests).join()]
        for request in requests:
            request.cache_salt = "again"  # what was computed for the truth is no help now
        streams = Streams(members, requests)
        disturb(streams)
        replies = streams.join()
        self.assertEqual(streams.errors, [None] * len(requests))
        for request, found, expected in zip(requests, replies, truth):
            self.assertEqual(outcome(found), expected)
            usage = found[-1].finish.usage
            self.assertEqual(usage.prompt_tokens, len(request.token_ids.ids))
            self.assertLessEqual(usage.cached_tokens, usage.prompt_tokens)
        return replies

    def wait_busy(self, members, names, streams, n_begun=N_STREAMS // 4):
        """Until some streams have begun, and one of the workers has some to do; returns the one that has most."""
        def look():
            if streams.n_begun() < n_begun:
                return None
            workers = members.workers()
            load = {name: workers[name].requests_running + workers[name].requests_waiting for name in names}
            busiest = max(names, key=load.get)
            return busiest if load[busiest] > 1 else None
        return wait_for("a busy worker", look)

    def kill_busy(self, members, names, streams, n_begun=N_STREAMS // 4):
        name = self.wait_busy(members, names, streams, n_begun)
        members.kill(name)
        self.killed = name

    def expect_recovered(self, members, replies, dead):
        attempts = [reply[-1].finish.route.attempts for reply in replies]
        self.assertGreater(max(attempts), 1)
        for reply in replies:
            route = reply[-1].finish.route
            if route.attempts > 1:
                self.assertNotIn(dead, (route.prefill_worker, route.decode_worker))
        log = members.log("router")
        self.assertRegex(log, r"request retried: .* recoveries=1 .*why=")
        self.assertRegex(log, r"request done: .* attempts=2 recoveries=1 ")

    def test_decode_worker_killed_in_mid_stream_is_not_noticed(self):
        members = self.start({"p": "prefill", "d0": "decode", "d1": "decode"}, "--no-local-prefill")
        requests = draw_requests(prompt_max=100, tokens_min=600, tokens_max=900, seed=1)
        replies = self.run_both_ways(
            members, requests,
            lambda streams: self.kill_busy(members, ["d0", "d1"], streams))
        self.expect_recovered(members, replies, self.killed)
        members.wait_idle()
        members.close_clean(self)

    def test_combined_worker_killed_in_mid_stream_is_not_noticed(self):
        members = self.start({"b0": "both", "b1": "both"})
        requests = draw_requests(prompt_max=100, tokens_min=600, tokens_max=900, seed=2)
        replies = self.run_both_ways(
            members, requests,
            lambda streams: self.kill_busy(members, ["b0", "b1"], streams))
        self.expect_recovered(members, replies, self.killed)
        members.wait_idle()
        members.close_clean(self)

    def test_prefill_worker_killed_under_load_is_not_noticed(self):
        members = self.start({"p0": "prefill", "p1": "prefill", "d": "decode"}, "--no-local-prefill",
                             options=("--token-budget", "80", "--chunk", "16"))
        requests = draw_requests(prompt_max=500, tokens_min=50, tokens_max=200, seed=3)
        # Some have their first token then, and some have not.
        replies = self.run_both_ways(
            members, requests, lambda streams: self.kill_busy(members, ["p0", "p1"], streams, n_begun=1))
        self.assertGreater(max(reply[-1].finish.route.attempts for reply in replies), 1)
        members.wait_idle()
        members.close_clean(self)

    def test_prefill_worker_killed_between_its_first_token_and_the_pull_is_not_noticed(self):
        members = self.start({"p0": "prefill", "p1": "prefill", "d": "decode"}, "--no-local-prefill",
                             "--worker-timeout", "30s")
        requests = draw_requests(prompt_max=200, tokens_min=50, tokens_max=200, seed=7)
        truth = [outcome(replies) for replies in Streams(members, requests).join()]
        for request in requests:
            request.cache_salt = "again"
        members.signal("d", signal.SIGSTOP)
        streams = Streams(members, requests)
        wait_for("first tokens", lambda: streams.n_begun() == N_STREAMS)
        members.kill("p0")
        members.signal("d", signal.SIGCONT)
        self.assertEqual([outcome(replies) for replies in streams.join()], truth)
        self.assertEqual(streams.errors, [None] * N_STREAMS)
        self.assertRegex(members.log("router"), r"request retried: .* recoveries=1 generated_tokens=1 ")
        members.wait_idle()
        members.close_clean(self)

    def test_streams_wait_for_another_decode_worker_and_go_on(self):
        members = self.start({"p": "prefill", "d0": "decode"}, "--no-local-prefill")

        def disturb(streams):
            self.kill_busy(members, ["d0"], streams)
            wait_for("the loss of d0", lambda: set(members.workers()) == {"p"})
            members.worker("d1", "decode", *SLOW)
        replies = self.run_both_ways(members, draw_requests(100, 600, 900, seed=4), disturb)
        self.expect_recovered(members, replies, "d0")
        members.wait_idle()
        members.close_clean(self)

    def test_decode_worker_that_stands_still_is_left_and_comes_back(self):
        members = self.start({"p": "prefill", "d0": "decode", "d1": "decode"}, "--no-local-prefill",
                             "--worker-timeout", "1s")

        def disturb(streams):
            self.victim = self.wait_busy(members, ["d0", "d1"], streams)
            members.signal(self.victim, signal.SIGSTOP)
            wait_for("its loss", lambda: self.victim not in members.workers())
        replies = self.run_both_ways(members, draw_requests(100, 600, 900, seed=6), disturb)
        self.expect_recovered(members, replies, self.victim)
        members.signal(self.victim, signal.SIGCONT)
        members.wait_ready()
        members.wait_idle()  # what it had begun is gone there too
        members.close_clean(self)

    def test_streams_that_break_off_too_often_end_with_a_clear_error(self):
        members = self.start({"p": "prefill", "d0": "decode", "d1": "decode"}, "--no-local-prefill",
                             "--recoveries-max", "0")
        streams = Streams(members, draw_requests(100, 600, 900, seed=5))
        self.kill_busy(members, ["d0", "d1"], streams)
        streams.join()
        errors = [error for error in streams.errors if error]
        self.assertGreater(len(errors), 0)
        for error in errors:
            self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertRegex(error.details(), r"^the reply broke off after \d+ tokens and could not be resumed "
                             r"\(recoveries: 0, attempts: 1\); the last reason: decode worker 'd[01]': it is gone")
        self.assertEqual(len(tokens_of(generate(members.stub, pb.GenerateRequest(
            text="hi", sampling=pb.Sampling(max_tokens=9, ignore_eos=True))))), 9)
        members.wait_idle()
        members.close_clean(self)


if __name__ == "__main__":
    unittest.main()
