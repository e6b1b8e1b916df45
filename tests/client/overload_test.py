# SPDX-License-Identifier: Apache-2.0
"""Overload, slow and idle clients against real processes: who is refused hears at once why and when to come back, all
others get their tokens, and what was held comes home. Nothing here asserts a time.
"""
import os
import signal
import sys
import threading
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prometheus  # noqa: E402
from members import TIMEOUT_S, Members, generate, get, pb, tokens_of, wait_for  # noqa: E402
from raw_h2 import Crowd  # noqa: E402

GENERATE = "/baton.v1.Generation/Generate"


def ask(n_prompt, max_tokens, **fields):
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=[7 * i % 250 for i in range(n_prompt)]),
                              sampling=pb.Sampling(max_tokens=max_tokens, ignore_eos=True), **fields)


class OverloadTest(unittest.TestCase):
    def start(self, model="odd", router=(), worker=()):
        members = Members(model, "--no-local-prefill", *router)
        self.addCleanup(members.close)
        members.worker("p", "prefill", "--threads", "1", *worker)
        members.worker("d", "decode", "--threads", "1", *worker)
        members.wait_ready()
        return members

    def metric(self, members, name, who="router"):
        samples = prometheus.parse(get(members.admin(who) + "/metrics")[1])
        return sum(value for (sample, _), value in samples.items() if sample == name)

    def test_burst_is_served_or_refused_with_a_time_to_come_back(self):
        members = self.start("wide", router=("--ttft-max", "300ms"))
        truth = tokens_of(generate(members.stub, ask(200, 8)))  # the workers' speed is known from here on
        results = [None] * 60

        def read(i):
            try:
                results[i] = tokens_of(generate(members.stub, ask(200, 8, cache_salt=str(i))))
            except grpc.RpcError as error:
                results[i] = error
        threads = [threading.Thread(target=read, args=[i]) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [result for result in results if isinstance(result, grpc.RpcError)]
        served = [result for result in results if not isinstance(result, grpc.RpcError)]
        self.assertEqual(served, [truth] * len(served))
        self.assertTrue(served)
        for error in refused:
            self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED, error.details())
            self.assertGreaterEqual(int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"]), 1000)
        self.assertEqual(self.metric(members, "baton_router_refusal_seconds_count"), len(refused))
        members.wait_idle()
        members.close_clean(self)

    def test_impossible_target_is_refused_only_when_asked_to(self):
        members = self.start("wide")
        truth = tokens_of(generate(members.stub, ask(300, 4)))
        request = ask(300, 4, ttft_target_ms=0.001, cache_salt="a")
        self.assertEqual(tokens_of(generate(members.stub, request)), truth)
        request = ask(300, 4, ttft_target_ms=0.001, cache_salt="b", refuse_late=True)
        with self.assertRaises(grpc.RpcError) as caught:
            generate(members.stub, request)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("the first token would take", caught.exception.details())
        members.close_clean(self)

    def test_client_beyond_its_limit_is_refused_and_others_are_not(self):
        members = self.start(router=("--client-requests-max", "2", "--worker-timeout", "1m"))
        members.signal("p", signal.SIGSTOP)  # both requests hang there
        calls = [members.stub.Generate(ask(5, 9), timeout=TIMEOUT_S) for _ in range(2)]
        wait_for("two requests", lambda: members.status().router.requests_running == 2)
        with self.assertRaises(grpc.RpcError) as caught:
            generate(members.stub, ask(5, 9))
        members.signal("p", signal.SIGCONT)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("client '127.0.0.1' has 2 requests under way, the limit of a client", caught.exception.details())
        self.assertEqual([len(tokens_of(call)) for call in calls], [9, 9])
        self.assertEqual(len(tokens_of(generate(members.stub, ask(5, 9)))), 9)
        members.close_clean(self)

    def test_idle_connections_and_clients_that_never_read_do_no_harm(self):
        members = self.start(router=("--slow-client-time", "1s"))
        truth = tokens_of(generate(members.stub, ask(50, 40)))
        crowd = Crowd(members.address)
        self.addCleanup(crowd.close)
        for _ in range(200):
            crowd.add()
        message = ask(3, 200).SerializeToString()
        for _ in range(30):
            crowd.add(GENERATE, message, 0)
        for _ in range(20):
            self.assertEqual(tokens_of(generate(members.stub, ask(50, 40))), truth)
        # Those that never read lose their streams; idle ones stay.
        wait_for("the end of all calls that nobody reads", lambda: crowd.n_ended == 30)
        self.assertEqual((crowd.n_open, crowd.n_cut), (230, 0))
        members.wait_idle()
        wait_for("no request", lambda: members.status().router.requests_running == 0)
        self.assertEqual(tokens_of(generate(members.stub, ask(50, 40))), truth)
        members.close_clean(self)

    def test_stopped_worker_comes_back_as_a_new_session_and_frees_what_it_had(self):
        members = self.start(router=("--worker-timeout", "1s"))
        truth = tokens_of(generate(members.stub, ask(20, 700)))
        members.worker("d2", "decode", "--threads", "1")
        members.wait_ready()
        calls = [members.stub.Generate(ask(20, 700, cache_salt=str(i)), timeout=TIMEOUT_S) for i in range(4)]
        first = [next(call) for call in calls]
        members.signal("d", signal.SIGSTOP)
        replies = [tokens_of([reply, *call]) for reply, call in zip(first, calls)]
        self.assertEqual(replies, [truth] * len(calls))
        wait_for("the loss of d", lambda: "d" not in members.workers()
                 or members.workers()["d"].state == pb.WORKER_STATE_SILENT)
        members.signal("d", signal.SIGCONT)
        members.wait_ready()
        members.wait_idle()  # it dropped what was bound to it
        self.assertEqual(tokens_of(generate(members.stub, ask(20, 700))), truth)
        self.assertEqual(get(members.admin("d") + "/readyz")[0], 200)
        self.assertEqual(self.metric(members, "baton_worker_stuck", "d"), 0)
        members.close_clean(self)

    def test_worker_is_ready_without_its_router_and_the_router_not_without_workers(self):
        members = self.start()
        wait_for("readiness", lambda: get(members.admin("router") + "/readyz")[0] == 200)
        members.kill("d")
        wait_for("the router's unreadiness", lambda: get(members.admin("router") + "/readyz")[0] == 503)
        self.assertEqual(get(members.admin("p") + "/readyz")[0], 200)
        members.kill("router")
        members.wait_log("p", "router lost: ")
        self.assertEqual(get(members.admin("p") + "/readyz")[0], 200)


if __name__ == "__main__":
    unittest.main()
