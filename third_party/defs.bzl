"""Rules of this project: C with the project's warnings, and cmocka tests."""

WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Werror",
]

def bt_library(name, copts = [], **attrs):
    """A C library of the project: warnings are errors."""
    native.cc_library(name = name, copts = WARNINGS + copts, **attrs)

def bt_binary(name, copts = [], **attrs):
    native.cc_binary(name = name, copts = WARNINGS + copts, **attrs)

def bt_test(name, srcs = None, deps = [], copts = [], data = [], size = "small", **attrs):
    """A cmocka test, `name`.c unless srcs says otherwise."""
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".c"],
        copts = WARNINGS + copts,
        data = data + ["//tests:tsan.supp"],
        deps = deps + ["@system//:cmocka"],
        size = size,
        **attrs
    )
