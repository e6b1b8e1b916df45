# SPDX-License-Identifier: Apache-2.0
"""The HTTP door with the stock `openai` client, and with bare sockets where it matters what is on the wire: answers
whole and streamed, errors, a client that leaves, a router that stops. The model is a random one whose tokens are bytes,
behind a prefill and a decode worker; what gRPC gives for the same seed is the truth."""
import http.client
import json
import os
import signal
import socket
import sys
import threading
import unittest

import openai

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from members import TIMEOUT_S, Members, generate, pb, text_of, tokens_of, wait_for  # noqa: E402

PROMPT = "once upon a time"
VOCAB = 259

members = None
client = None


def setUpModule():
    global members, client
    members = Members("odd", "--no-local-prefill", "--worker-timeout", "1m", "--http-keepalive", "1s")
    members.worker("p", "prefill", "--threads", "1")
    members.worker("d", "decode", "--threads", "1")
    members.wait_ready()
    client = connect(members)


def tearDownModule():
    client.close()
    members.close_clean(unittest.TestCase())


def connect(to):
    return openai.OpenAI(base_url=f"http://{to.http}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)


def complete(prompt=PROMPT, max_tokens=16, ignore_eos=True, extra_body=None, **fields):
    return client.completions.create(model="odd", prompt=prompt, max_tokens=max_tokens,
                                     extra_body={"ignore_eos": ignore_eos, **(extra_body or {})}, **fields)


def truth(prompt=PROMPT, max_tokens=16, ignore_eos=True, temperature=1.0, **sampling):
    request = pb.GenerateRequest(sampling=pb.Sampling(max_tokens=max_tokens, ignore_eos=ignore_eos,
                                                      temperature=temperature, **sampling))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return generate(members.stub, request)


def body_of(**fields):
    return json.dumps({"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True, "temperature": 0, **fields})


def post(body, path="/v1/completions", headers=None, to=None):
    """One request by the standard library; returns (status, headers, body)."""
    connection = http.client.HTTPConnection((to or members).http, timeout=TIMEOUT_S)
    connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    answer = response.status, response.headers, response.read()
    connection.close()
    return answer


class Raw:
    """A stream read off a socket, with nothing in between."""

    def __init__(self, body, to=None, wait_head=True):
        host, port = (to or members).http.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                            % len(body) + body.encode())
        self.file = self.socket.makefile("rb")
        self.status = self.file.readline() if wait_head else None

    def lines(self):
        return iter(self.file.readline, b"")

    def wait_line(self, part):
        seen = []
        for line in self.lines():
            if part in line:
                return line
            seen.append(line)
        raise AssertionError(f"the stream ended without {part}: {self.status} {seen[-3:]}")

    def close(self):
        self.file.close()
        self.socket.close()


class CompletionTest(unittest.TestCase):
    def test_seeds_give_the_tokens_of_grpc(self):
        for seed in (0, 1, 7, 2**63 - 1):
            replies = truth(seed=seed)
            whole = complete(seed=seed)
            self.assertEqual(whole.choices[0].text, text_of(replies))
            streamed = list(complete(seed=seed, stream=True))
            self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), text_of(replies))
            self.assertEqual(streamed[-1].choices[0].finish_reason, "length")
        self.assertEqual(complete(seed=-5).choices[0].text, text_of(truth(seed=2**64 - 5)))

    def test_every_sampling_field_acts_as_over_grpc(self):
        shared = [{"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.5}, {"presence_penalty": 1.5},
                  {"frequency_penalty": -1.5}, {"logit_bias": {65: 5.0, 66: -100.0}}]
        extra = [{"top_k": 3}, {"min_p": 0.2}, {"repetition_penalty": 1.5}, {"min_tokens": 8}]
        for fields in shared:
            want = text_of(truth(seed=3, **fields))
            self.assertEqual(complete(seed=3, **fields).choices[0].text, want, fields)
        for fields in extra:
            want = text_of(truth(seed=3, **fields))
            self.assertEqual(complete(seed=3, extra_body=fields).choices[0].text, want, fields)

    def test_prompts_come_as_text_ids_and_lists_of_both(self):
        ids = list(PROMPT.encode())
        want = text_of(truth(seed=5))
        self.assertEqual(complete(ids, seed=5).choices[0].text, want)
        other = text_of(truth("hello", seed=5))
        for prompts in ([PROMPT, "hello"], [ids, list(b"hello")]):
            answer = complete(prompts, seed=5)
            self.assertEqual([choice.text for choice in answer.choices], [want, other])
            self.assertEqual(answer.usage.prompt_tokens, len(ids) + 5)
            self.assertEqual(answer.usage.completion_tokens, 32)

    def test_n_choices_are_the_seeds_that_follow(self):
        answer = complete(seed=11, n=3)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        self.assertEqual([choice.text for choice in answer.choices], [text_of(truth(seed=11 + i)) for i in range(3)])
        self.assertEqual(answer.usage.prompt_tokens, len(PROMPT))
        self.assertEqual(answer.usage.completion_tokens, 48)
        texts = ["", "", ""]
        for chunk in complete(seed=11, n=3, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(texts, [choice.text for choice in answer.choices])

    def test_logprobs_and_echo_are_those_of_grpc(self):
        replies = truth(seed=2, logprobs=True, n_top_logprobs=3, echo=True)
        scores = [score for reply in replies for score in reply.logprobs]
        answer = complete(seed=2, logprobs=3, echo=True)
        found = answer.choices[0].logprobs
        self.assertEqual(answer.choices[0].text, PROMPT + text_of(replies))
        self.assertIsNone(found.token_logprobs[0])
        self.assertEqual(found.token_logprobs[1:], [score.logprob for score in scores[1:]])
        self.assertEqual(found.tokens[:len(PROMPT)], list(PROMPT))
        self.assertEqual(found.text_offset[:len(PROMPT)], list(range(len(PROMPT))))
        for top, score in zip(found.top_logprobs[1:], scores[1:]):
            self.assertEqual(sorted(set(top.values()) - {score.logprob}),
                             sorted({t.logprob for t in score.top} - {score.logprob}))
        streamed = list(complete(seed=2, logprobs=3, echo=True, stream=True))
        self.assertEqual([p for chunk in streamed if chunk.choices[0].logprobs
                          for p in chunk.choices[0].logprobs.token_logprobs], found.token_logprobs)
        self.assertEqual([o for chunk in streamed if chunk.choices[0].logprobs
                          for o in chunk.choices[0].logprobs.text_offset], found.text_offset)
        scored = complete(max_tokens=0, logprobs=1, echo=True)
        self.assertEqual(scored.choices[0].text, PROMPT)
        self.assertEqual(scored.usage.completion_tokens, 0)

    def test_stop_strings_end_the_text(self):
        text = text_of(truth(seed=4, max_tokens=64))
        stop = text[20:22]
        for stops in (stop, [stop, "never in there"]):
            answer = complete(seed=4, max_tokens=64, stop=stops)
            self.assertEqual(answer.choices[0].text, text[:text.index(stop)])
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            self.assertEqual(answer.choices[0].stop_reason, stop)

    def test_usage_comes_when_it_is_asked_for(self):
        chunks = list(complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.prompt_tokens, len(PROMPT))
        self.assertEqual(chunks[-1].usage.completion_tokens, 16)
        self.assertEqual(chunks[-1].usage.total_tokens, len(PROMPT) + 16)
        self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))
        self.assertTrue(all(chunk.usage is None for chunk in complete(stream=True)))

    def test_cached_tokens_are_told(self):
        prompt = "a long prompt that the prefix cache will know the second time, of more than a block"
        self.assertEqual(complete(prompt).usage.prompt_tokens_details.cached_tokens, 0)
        self.assertGreater(complete(prompt).usage.prompt_tokens_details.cached_tokens, 0)
        salted = complete(prompt, extra_body={"cache_salt": "mine"})
        self.assertEqual(salted.usage.prompt_tokens_details.cached_tokens, 0)

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in client.models.list()], ["odd"])
        self.assertEqual(client.models.retrieve("odd").id, "odd")
        with self.assertRaises(openai.NotFoundError):
            client.models.retrieve("other/one")

    def test_request_id_is_taken_and_given_back(self):
        raw = client.completions.with_raw_response.create(model="odd", prompt=PROMPT, max_tokens=1,
                                                          extra_headers={"x-request-id": "abc-1.2_3"})
        self.assertEqual(raw.headers["x-request-id"], "abc-1.2_3")
        self.assertEqual(raw.parse().id, "cmpl-abc-1.2_3")
        self.assertIn("req=abc-1.2_3", members.wait_log("router", r"request done: req=abc-1.2_3").group(0))
        self.assertTrue(client.completions.with_raw_response.create(model="odd", prompt=PROMPT).headers["x-request-id"])


class ErrorTest(unittest.TestCase):
    def fails(self, error, code=None, param=None, **fields):
        with self.assertRaises(error) as caught:
            complete(**fields)
        if code:
            self.assertEqual(caught.exception.code, code)
        if param:
            self.assertEqual(caught.exception.param, param)
        return caught.exception

    def test_wrong_requests_are_told_which_field(self):
        for param, value in (("temperature", 3), ("top_p", 0), ("n", 0), ("logprobs", 21), ("frequency_penalty", 2.5),
                             ("stop", ["x"] * 17), ("max_tokens", -1)):
            error = self.fails(openai.BadRequestError, param=param, **{param: value})
            self.assertIn(param, error.message)
        self.fails(openai.BadRequestError, param="prompt", prompt="")
        self.fails(openai.BadRequestError, param="prompt", prompt="x" * 2000)
        self.fails(openai.BadRequestError, prompt=[VOCAB])
        self.fails(openai.BadRequestError, code="unsupported_parameter", param="suffix", suffix="end")
        for stream in (False, True):  # a status code, as long as nothing has been streamed
            self.fails(openai.BadRequestError, prompt="x" * 2000, stream=stream)

    def test_unknown_model_and_path(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            client.completions.create(model="gpt-4", prompt="hi")
        self.assertEqual(caught.exception.code, "model_not_found")
        self.assertIn("odd", caught.exception.message)
        status, _, body = post("{}", "/v1/embeddings")
        self.assertEqual((status, json.loads(body)["error"]["code"]), (404, "not_found"))

    def test_bodies_that_are_no_requests(self):
        for body in ("", "{", "[]", "7", '{"prompt":"x","prompt":"y"}', "\0\xff" * 40, '{"prompt":"\\ud800"}'):
            status, headers, answer = post(body)
            self.assertEqual(status, 400, body)
            self.assertEqual(headers["Content-Type"], "application/json")
            self.assertTrue(json.loads(answer)["error"]["message"])
        error = self.fails(openai.APIStatusError, prompt="x" * (5 << 20))
        self.assertEqual((error.status_code, error.type), (413, "invalid_request_error"))
        self.assertEqual(post(body_of())[0], 200)

    def test_deadline_is_an_error_before_and_in_a_stream(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            complete(max_tokens=900, extra_body={"timeout_ms": 0.001})
        self.assertEqual((caught.exception.status_code, caught.exception.code), (504, "deadline_exceeded"))
        stream = complete(max_tokens=1000, stream=True, extra_body={"timeout_ms": 2000})
        try:
            with self.assertRaises(openai.APIError) as caught:
                for i, _ in enumerate(stream):
                    if i == 0:
                        members.signal("d", signal.SIGSTOP)
        finally:
            members.signal("d", signal.SIGCONT)
        self.assertEqual(caught.exception.code, "deadline_exceeded")
        self.assertIn("deadline", caught.exception.message)


class WireTest(unittest.TestCase):
    def cancelled(self):
        return members.status().router.requests_cancelled

    def wait_cancelled(self, before):
        wait_for("the cancelled request", lambda: self.cancelled() == before + 1, 5)
        self.assertEqual(members.status().router.requests_running, 0)

    def test_client_that_leaves_before_the_first_byte_is_cancelled(self):
        before = self.cancelled()
        members.signal("p", signal.SIGSTOP)
        try:
            for stream in (True, False):
                raw = Raw(body_of(stream=stream), wait_head=False)
                wait_for("a running request", lambda: members.status().router.requests_running == 1)
                raw.close()
                self.wait_cancelled(before)
                before += 1
        finally:
            members.signal("p", signal.SIGCONT)
        members.wait_idle()

    def test_client_that_leaves_a_stream_is_cancelled(self):
        before = self.cancelled()
        raw = Raw(body_of(stream=True, max_tokens=1000))
        raw.wait_line(b'"text"')
        members.signal("d", signal.SIGSTOP)
        try:
            raw.close()
            self.wait_cancelled(before)
        finally:
            members.signal("d", signal.SIGCONT)
        members.wait_idle()

    def test_long_waits_have_comments(self):
        members.signal("p", signal.SIGSTOP)
        try:
            raw = Raw(body_of(stream=True))
            self.assertIn(b" 200 ", raw.status)
            raw.wait_line(b": keep-alive")
            raw.wait_line(b": keep-alive")
        finally:
            members.signal("p", signal.SIGCONT)
        self.assertIn(b"[DONE]", raw.wait_line(b"[DONE]"))
        raw.close()
        members.signal("p", signal.SIGSTOP)
        try:
            stream = complete(stream=True, seed=1)  # returns with the head
        finally:
            members.signal("p", signal.SIGCONT)
        self.assertEqual("".join(chunk.choices[0].text for chunk in stream), text_of(truth(seed=1)))

    def test_client_that_only_looks_for_lines_counts_every_token(self):
        """As simple load generators do: no chunks undone, no JSON read, an event is a line, and so a token."""
        raw = Raw(body_of(stream=True, stream_options={"include_usage": True}, max_tokens=200))
        events = [line for line in raw.lines() if line.startswith(b"data: ")]
        raw.close()
        self.assertTrue(events[-1].startswith(b"data: [DONE]"))
        self.assertIn(b'"choices":[]', events[-2])
        self.assertIn(b'"completion_tokens":200,', events[-2])
        tokens = [line for line in events[:-2] if not (b'"text":""' in line and b'"finish_reason":null' not in line)]
        self.assertLessEqual(len(tokens), 201)  # the end brings the text of a character that stays incomplete
        self.assertGreater(len(tokens), 20)
        for event in events[:-1]:
            json.loads(event[6:])

    def test_connections_are_kept_and_many_idle_ones_are_no_trouble(self):
        host, port = members.http.split(":")
        idle = [socket.create_connection((host, int(port)), timeout=TIMEOUT_S) for _ in range(300)]
        connection = http.client.HTTPConnection(members.http, timeout=TIMEOUT_S)
        for i in range(5):
            connection.request("POST", "/v1/completions", body_of(stream=bool(i % 2)))
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            self.assertTrue(response.read())
        connection.close()
        for one in idle:
            one.close()

    def test_health_and_readiness(self):
        for path in ("/healthz", "/readyz"):
            connection = http.client.HTTPConnection(members.http, timeout=TIMEOUT_S)
            connection.request("GET", path)
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()


class OverloadTest(unittest.TestCase):
    def test_what_is_too_much_is_refused_with_a_time_to_come_back(self):
        few = Members("odd", "--requests-max", "1", "--queue-max", "1", "--retry-pushback", "1500ms")
        self.addCleanup(few.close)
        few.worker("b", "both", "--threads", "1")
        few.wait_ready()
        few.signal("b", signal.SIGSTOP)
        raw = Raw(body_of(), to=few, wait_head=False)
        wait_for("a running request", lambda: few.status().router.requests_running == 1)
        with self.assertRaises(openai.RateLimitError) as caught:
            with connect(few) as one:
                one.completions.create(model="odd", prompt=PROMPT)
        self.assertEqual(caught.exception.code, "rate_limit_exceeded")
        self.assertGreaterEqual(int(caught.exception.response.headers["retry-after"]), 2)
        self.assertGreaterEqual(int(caught.exception.response.headers["retry-after-ms"]), 1500)
        few.signal("b", signal.SIGCONT)
        raw.wait_line(b"cmpl-")
        raw.close()

    def test_router_that_stops_finishes_its_streams(self):
        own = Members("odd", "--drain-time", "1m")
        self.addCleanup(own.close)
        own.worker("b", "both", "--threads", "1")
        own.wait_ready()
        raw = Raw(body_of(stream=True, max_tokens=900, stream_options={"include_usage": True}), to=own)
        raw.wait_line(b'"text"')
        own.signal("b", signal.SIGSTOP)
        own.signal("router", signal.SIGTERM)
        own.wait_log("router", "router stopping")
        status, headers, body = post(body_of(), to=own)
        self.assertEqual((status, json.loads(body)["error"]["code"]), (503, "unavailable"))
        self.assertTrue(headers["Retry-After"])
        own.signal("b", signal.SIGCONT)
        self.assertIn(b'"completion_tokens":900,', raw.wait_line(b'"choices":[]'))
        raw.wait_line(b"[DONE]")
        raw.close()
        self.assertEqual(own.processes["router"].wait(TIMEOUT_S), 0)

    def test_many_at_a_time_get_their_own_tokens(self):
        results = {}

        def ask(seed):
            results[seed] = "".join(chunk.choices[0].text for chunk in complete(seed=seed, stream=True))
        threads = [threading.Thread(target=ask, args=[seed]) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed in range(16):
            self.assertEqual(results[seed], text_of(truth(seed=seed)), seed)


if __name__ == "__main__":
    unittest.main()
