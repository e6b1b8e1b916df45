"""Fuzz targets: each is a libFuzzer program under --config=fuzz, and a plain test of its seeds."""

load("//third_party:defs.bzl", "bt_library", "bt_test")

def bt_fuzz(name, deps = [], srcs = None, size = "medium"):
    """`name`_fuzz (manual; tools/fuzz builds it) and `name`_replay_test, from `name`_fuzz.c and corpus/`name`/."""
    bt_library(
        name = name + "_target",
        testonly = True,
        srcs = srcs or [name + "_fuzz.c"],
        alwayslink = True,
        deps = deps + [":fuzz"],
    )
    bt_test(
        name = name + "_replay_test",
        size = size,
        srcs = ["replay.c"],
        args = ["tests/fuzz/corpus/" + name],
        data = native.glob(["corpus/" + name + "/*"]),
        deps = [
            ":fuzz",
            ":" + name + "_target",
            "//tests/support:mutation",
        ],
    )

    # libFuzzer's main(); there is none in it without --config=fuzz.
    native.cc_binary(
        name = name + "_fuzz",
        testonly = True,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":" + name + "_target"],
    )
