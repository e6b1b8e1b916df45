# SPDX-License-Identifier: Apache-2.0
"""One cluster, one set of cases, several stock clients: gRPC, the `openai` package (whole answers and streams), and a
client that knows no more of HTTP than lines, as load generators are written. What they get must be equal: text,
tokens counted, why it ended, logprobs to the last bit, errors by kind, and a client that leaves is cancelled.

BATON_LOAD_CLIENT names a load generator to run as well: `FILE --url URL --model NAME --measure` prints a line of JSON
with `ok`, how many of its 5 requests went well."""
import dataclasses
import json
import os
import socket
import subprocess
import sys
import unittest

import grpc
import openai

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster  # noqa: E402
from members import TIMEOUT_S, generate, pb, services, text_of, tokens_of, wait_for  # noqa: E402

cluster = None
channel = None
client = None
stub = None


def setUpModule():
    global cluster, channel, client, stub
    cluster = Cluster("--threads", "1")
    channel = grpc.insecure_channel(cluster.address)
    stub = services.GenerationStub(channel)
    client = openai.OpenAI(base_url=f"http://{cluster.http}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)


def tearDownModule():
    client.close()
    channel.close()
    assert cluster.stop() == 0


@dataclasses.dataclass
class Answer:
    text: str
    finish: str
    prompt_tokens: int
    generated_tokens: int
    logprobs: list


# `prompt` is text or ids, or `messages` a conversation; the rest is sampling, by the names of the openai package.
CASES = {
    "greedy text": {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0},
    "token ids": {"prompt": [504, 3575, 282, 4649, 314], "max_tokens": 6, "temperature": 0},
    "chat": {"messages": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Hello?"}],
             "max_tokens": 6, "temperature": 0},
    "seed": {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0.9, "top_p": 0.9, "seed": 42},
    "chat with a seed": {"messages": [{"role": "user", "content": "Tell me a joke."}], "max_tokens": 8,
                         "temperature": 1.2, "seed": 7},
    "stop string": {"prompt": "Count: one, two, three, four, five", "max_tokens": 24, "temperature": 0, "stop": [" seven"]},
    "logprobs": {"prompt": "The sky is", "max_tokens": 4, "temperature": 0, "logprobs": 2},
    "chat with logprobs": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0,
                           "logprobs": 1},
    "penalties": {"prompt": "la la la la", "max_tokens": 8, "temperature": 0.8, "seed": 1, "presence_penalty": 1.5,
                  "frequency_penalty": 0.5, "logit_bias": {"18": 3}},
    "end of text": {"messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 40, "temperature": 0},
    "beyond the end": {"prompt": "Yes.", "max_tokens": 6, "temperature": 0, "ignore_eos": True, "min_tokens": 6},
}
OURS = ("ignore_eos", "min_tokens")  # not arguments of the openai package


def by_grpc(case):
    fields = {k: v for k, v in case.items() if k not in ("prompt", "messages", "logit_bias", "logprobs")}
    sampling = pb.Sampling(**fields, logprobs="logprobs" in case, n_top_logprobs=case.get("logprobs", 0))
    for token, bias in case.get("logit_bias", {}).items():
        sampling.logit_bias[int(token)] = bias
    request = pb.GenerateRequest(sampling=sampling)
    if "messages" in case:
        request.chat.messages.extend(pb.ChatMessage(**message) for message in case["messages"])
    elif isinstance(case["prompt"], str):
        request.text = case["prompt"]
    else:
        request.token_ids.ids.extend(case["prompt"])
    replies = generate(stub, request)
    finish = replies[-1].finish
    assert len(tokens_of(replies)) == finish.usage.generated_tokens
    return Answer(text_of(replies), {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}[finish.reason],
                  finish.usage.prompt_tokens, finish.usage.generated_tokens,
                  [p.logprob for reply in replies for p in reply.logprobs])


def openai_call(case, **more):
    fields = {k: v for k, v in case.items() if k not in OURS}
    extra = {k: v for k, v in case.items() if k in OURS}
    if "messages" in case:
        if "logprobs" in case:
            fields.update(logprobs=True, top_logprobs=case["logprobs"])
        return client.chat.completions.create(model=model(), **fields, extra_body=extra, **more)
    return client.completions.create(model=model(), **fields, extra_body=extra, **more)


def model():
    return client.models.list().data[0].id


def logprobs_of(choice):
    if choice.logprobs is None:
        return []
    return ([entry.logprob for entry in choice.logprobs.content] if hasattr(choice.logprobs, "content")
            else choice.logprobs.token_logprobs)


def by_openai(case):
    answer = openai_call(case)
    choice = answer.choices[0]
    return Answer(choice.message.content if "messages" in case else choice.text, choice.finish_reason,
                  answer.usage.prompt_tokens, answer.usage.completion_tokens, logprobs_of(choice))


def by_openai_stream(case):
    *chunks, usage = openai_call(case, stream=True, stream_options={"include_usage": True})
    parts = [chunk.choices[0] for chunk in chunks]
    text = "".join((part.delta.content or "") if "messages" in case else part.text for part in parts)
    if "messages" in case:
        assert parts[0].delta.role == "assistant"
    assert all(part.finish_reason is None for part in parts[:-1])
    return Answer(text, parts[-1].finish_reason, usage.usage.prompt_tokens, usage.usage.completion_tokens,
                  [p for part in parts for p in logprobs_of(part)])


def post_lines(path, body):
    host, port = cluster.http.split(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    data = json.dumps(body).encode()
    connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                       b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    return connection, connection.makefile("rb")


def by_lines(case):
    body = {**case, "model": model(), "stream": True, "stream_options": {"include_usage": True}}
    path = "/v1/completions"
    if "messages" in case:
        path = "/v1/chat/completions"
        if "logprobs" in case:
            body.update(logprobs=True, top_logprobs=case["logprobs"])
    connection, lines = post_lines(path, body)
    answer = Answer("", None, 0, 0, [])
    with connection, lines:
        assert b" 200" in lines.readline()
        for line in lines:
            if line.startswith(b"data: [DONE]"):
                return answer
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                answer.text += choice["delta"].get("content", "") if "messages" in case else choice["text"]
                answer.finish = choice["finish_reason"]
                if choice["logprobs"]:
                    answer.logprobs += (choice["logprobs"]["token_logprobs"] if "messages" not in case
                                        else [entry["logprob"] for entry in choice["logprobs"]["content"]])
            if event["usage"]:
                answer.prompt_tokens = event["usage"]["prompt_tokens"]
                answer.generated_tokens = event["usage"]["completion_tokens"]
    raise AssertionError("the stream has no end")


CLIENTS = {"grpc": by_grpc, "openai": by_openai, "openai, streamed": by_openai_stream, "lines": by_lines}


class ConformanceTest(unittest.TestCase):
    maxDiff = None

    def test_every_client_gets_the_same(self):
        finishes = set()
        for name, case in CASES.items():
            truth = by_grpc(case)
            finishes.add(truth.finish)
            self.assertEqual(len(truth.logprobs), truth.generated_tokens if "logprobs" in case else 0)
            for who, run in CLIENTS.items():
                with self.subTest(f"{name}, by {who}"):
                    self.assertEqual(run(case), truth)
        self.assertEqual(finishes, {"stop", "length"})

    def test_models_are_the_same(self):
        names = [m.name for m in stub.ListModels(pb.ListModelsRequest()).models]
        self.assertEqual([m.id for m in client.models.list()], names)

    def test_errors_are_of_one_kind(self):
        prompt = {"prompt": "x", "max_tokens": 1}
        cases = [
            ({**prompt, "temperature": 2.5}, "temperature is 2.5"),
            ({**prompt, "top_p": 1.5}, "top_p is 1.5"),
            ({**prompt, "presence_penalty": -3}, "presence_penalty is -3"),
            ({"prompt": "", "max_tokens": 1}, "the prompt is empty"),
            ({"prompt": [10**6], "max_tokens": 1}, "1000000"),
            ({"messages": [{"role": "user", "content": "x" * 60000}]}, "the prompt has "),
        ]
        for case, text in cases:
            with self.subTest(text):
                with self.assertRaises(grpc.RpcError) as by_call:
                    by_grpc(case)
                self.assertEqual(by_call.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
                self.assertIn(text, by_call.exception.details())
                for run in (by_openai, by_openai_stream):
                    with self.assertRaises(openai.BadRequestError) as by_package:
                        run(case)
                    self.assertIn(text, by_package.exception.message)
        with self.assertRaises(grpc.RpcError) as by_call:
            generate(stub, pb.GenerateRequest(model="other", text="x"))
        self.assertEqual(by_call.exception.code(), grpc.StatusCode.NOT_FOUND)
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model="other", prompt="x")

    def test_who_leaves_is_cancelled(self):
        long_one = {"prompt": "Once upon a time", "max_tokens": 500, "temperature": 0, "ignore_eos": True}

        def leave_grpc():
            call = stub.Generate(pb.GenerateRequest(text="Once upon a time", sampling=pb.Sampling(
                max_tokens=500, ignore_eos=True)), timeout=TIMEOUT_S)
            next(call)
            call.cancel()

        def leave_openai():
            stream = openai_call(long_one, stream=True)
            next(iter(stream))
            stream.close()

        def leave_lines():
            connection, lines = post_lines("/v1/completions", {**long_one, "stream": True})
            with connection, lines:
                while not lines.readline().startswith(b"data: "):
                    pass

        def leave_whole():  # the answer has not begun
            connection, lines = post_lines("/v1/completions", long_one)
            with connection, lines:
                wait_for("a running request", lambda: self.router().requests_running == 1)

        for leave in (leave_grpc, leave_openai, leave_lines, leave_whole):
            with self.subTest(leave.__name__):
                before = self.router().requests_cancelled
                leave()
                wait_for("the cancelled request", lambda: self.router().requests_cancelled == before + 1, 10)
                self.assertEqual(self.router().requests_running, 0)

    def router(self):
        return stub.GetClusterStatus(pb.GetClusterStatusRequest(), timeout=TIMEOUT_S).router

    def test_load_generator_runs_unchanged(self):
        path = os.environ.get("BATON_LOAD_CLIENT")
        if not path:
            self.skipTest("BATON_LOAD_CLIENT names none")
        done = subprocess.run([sys.executable, path, "--url", f"http://{cluster.http}", "--model", model(), "--measure"],
                              capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["ok"], 5, done.stdout)


if __name__ == "__main__":
    unittest.main()
