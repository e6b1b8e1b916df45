# SPDX-License-Identifier: Apache-2.0
"""Reads Prometheus' text format 0.0.4, and refuses what a scraper would: for tests."""
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)')
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def read_labels(text):
    labels, at = [], 0
    while at < len(text):
        found = LABEL.match(text, at)
        if not found:
            raise ValueError(f"labels make no sense: {text}")
        labels.append(found.groups())
        at = found.end()
    return tuple(sorted(labels))


def check_histogram(name, samples):
    """Buckets grow with `le`, end with +Inf, and +Inf is the count."""
    series = {}
    for (sample, labels), value in samples.items():
        if sample == name + "_bucket":
            rest = tuple(pair for pair in labels if pair[0] != "le")
            series.setdefault(rest, []).append((float(dict(labels)["le"]), value))
    for rest, buckets in series.items():
        buckets.sort()
        counts = [count for _, count in buckets]
        if counts != sorted(counts) or buckets[-1][0] != float("inf") or (name + "_sum", rest) not in samples \
                or samples[name + "_count", rest] != counts[-1]:
            raise ValueError(f"histogram {name} {rest} does not add up")


def parse(text):
    """{(sample's name, sorted labels): value}. ValueError: a line, its order or a histogram is wrong."""
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    types, samples, family, done = {}, {}, None, set()
    for line in text.splitlines():
        if line.startswith("# HELP ") or line.startswith("# TYPE "):
            word, name, rest = line[2:].split(" ", 2)
            if word == "TYPE":
                if name in types or rest not in ("counter", "gauge", "histogram", "summary", "untyped"):
                    raise ValueError(f"a second or unknown type: {line}")
                types[name] = rest
            if name != family:
                if name in done:
                    raise ValueError(f"{name} is scattered")
                done.add(family)
                family = name
            continue
        found = SAMPLE.match(line)
        if not found:
            raise ValueError(f"no sample: {line}")
        key = found.group(1), read_labels(found.group(2) or "")
        if key in samples or family not in types:
            raise ValueError(f"a double, or without a type: {line}")
        if found.group(1) not in [family + s for s in SUFFIXES.get(types[family], ("",))]:
            raise ValueError(f"{line} is not of {family}")
        samples[key] = float(found.group(3))
    for name, kind in types.items():
        if kind == "histogram":
            check_histogram(name, samples)
    return samples
