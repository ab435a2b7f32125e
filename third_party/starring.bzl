"""The rules that our BUILD files use: cc_library, cc_test and cc_binary with our options, and gRPC stubs.

    load("//third_party:starring.bzl", "starring_cc_library", "starring_cc_test", "starring_cc_unit")

    starring_cc_unit(                      # layout.h and layout.cc
        name = "layout",
        visibility = ["//worker:__subpackages__"],
        deps = ["//third_party/absl"],
    )

    starring_cc_library(                   # any other sources
        name = "coordinator",
        srcs = ["coordinator.cc", "coordinator_commit.cc"],
        hdrs = ["coordinator.h"],
        deps = [":generation_log"],
    )

    starring_cc_test(                      # in tests/<folder>/BUILD
        name = "layout_test",
        size = "small",                    # every test has one
        srcs = ["layout_test.cc"],
        tags = ["tsan"],                   # runs under ThreadSanitizer too: has threads, and neither gRPC nor MPI
        deps = ["//common/job:layout"],    # gtest, gmock and a main are added
    )

Messages and services (proto_library and cc_proto_library are native: no load):

    proto_library(name = "run_record_proto", srcs = ["run_record.proto"])
    cc_proto_library(name = "run_record_cc_proto", deps = [":run_record_proto"])
    starring_cc_grpc_library(              # "proto/starring/v1/parameter_server.grpc.pb.h"
        name = "parameter_server_cc_grpc",
        proto = ":parameter_server_proto",
        cc_proto = ":parameter_server_cc_proto",
    )

There is no -march: a binary runs on any x86-64. A hot loop gets further instructions in its source, by
common/arithmetic/instruction_set.h.
(GCC's target_clones crashes under ThreadSanitizer, before main.)

A test that starts several busy processes has tags = ["cpu:2"], or "exclusive" if it measures time.
"""

load("//third_party:precompiled_header.bzl", "precompiled_header")

# Options for our own code. System headers and generated code are compiled without them.
_COPTS = [
    "-Wall",
    "-Wextra",
    # A designated initialiser names the fields that differ from their defaults and leaves out the others on purpose.
    "-Wno-missing-field-initializers",
    "-Wshadow",
    "-Werror",
    # A multiplication and an addition stay two operations, with two roundings, for every instruction set. Otherwise the
    # same loop would give other bits on a machine with FMA.
    "-ffp-contract=off",
    # GCC 12 reports overlapping copies inside std::string where there are none (GCC bug 105651).
    "-Wno-restrict",
] + select({
    # The sanitizers' checks confuse GCC's flow analysis. -O1 comes from .bazelrc.
    "//:sanitized": ["-Wno-maybe-uninitialized"],
    "//conditions:default": ["-O3"],
})

# A test's own source runs once. Optimising the test takes longer than it saves; the tested code keeps its options.
_TEST_COPTS = select({
    "//:sanitized": [],
    "//conditions:default": ["-O1"],
})

# Parsing the headers of a source takes a third of its compilation, or more. So the headers that most sources include
# are parsed once. clang-tidy does without the parsed headers, and so shows whether each source that ships includes what
# it uses. A target with options of its own does without them, too: the compiler would refuse them for -fopenmp, for
# example.
def _precompiled_copts(header):
    return [
        "-include",
        "$(BINDIR)/" + header,
        "-Winvalid-pch",
        # Inside std::string, GCC 12 then reports more errors that do not exist (see -Wno-restrict).
        "-Wno-array-bounds",
        "-Wno-stringop-overflow",
    ]

_HEADERS_COPTS = _precompiled_copts("third_party/absl/library_headers.h")
_TEST_HEADERS_COPTS = _precompiled_copts("third_party/gtest/test_headers.h")

# The options that .bazelrc's per_file_copt gives to a test's source in the sanitizers' builds.
_TEST_PER_FILE_COPTS = select({
    "//:sanitized": ["-O0", "-fno-sanitize=undefined"],
    "//conditions:default": [],
})

# Linked into every program and test.
_PROCESS_DEPS = select({
    "//:sanitized": ["//third_party/sanitizers:suppressions"],
    "//conditions:default": [],
})

# A program of a bundle (//deploy:bundle) is in libexec/bin there and finds its libraries in lib, before those in
# LD_LIBRARY_PATH, and also the libraries that its libraries need. A RUNPATH, the linker's default, does neither.
# Outside a bundle there is no such folder.
_PROCESS_LINKOPTS = ["-Wl,--disable-new-dtags,-rpath,$$ORIGIN/../../lib"]

def starring_cc_library(name, copts = [], deps = [], **kwargs):
    native.cc_library(
        name = name,
        copts = _COPTS + (copts or _HEADERS_COPTS),
        deps = deps + ["//third_party/absl:precompiled"],
        **kwargs
    )

def starring_cc_unit(name, **kwargs):
    """A library of one header and its source, both of which have its name."""
    starring_cc_library(name = name, srcs = [name + ".cc"], hdrs = [name + ".h"], **kwargs)

def starring_cc_binary(name, copts = [], deps = [], linkopts = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = _COPTS + copts,
        linkopts = _PROCESS_LINKOPTS + linkopts,
        deps = deps + _PROCESS_DEPS,
        **kwargs
    )

def starring_cc_test(
        name,
        size,
        copts = [],
        deps = [],
        linkopts = [],
        main = "//third_party/gtest:gtest_main",
        precompiled = True,
        **kwargs):
    """A GoogleTest binary.

    Args:
      name: ends in _test.
      size: small, medium, large or enormous: 1, 5, 15 or 60 minutes at most.
      copts: after ours. With any, nothing is precompiled.
      deps: the libraries under test.
      linkopts: after ours.
      main: the target with main(); "//third_party/gtest" for a test that writes its own.
      precompiled: False where .bazelrc's per_file_copt gives the source other options than a test's.
      **kwargs: as for cc_test.
    """
    native.cc_test(
        name = name,
        size = size,
        copts = _COPTS + _TEST_COPTS + (copts or (_TEST_HEADERS_COPTS if precompiled else [])),
        linkopts = _PROCESS_LINKOPTS + linkopts,
        deps = deps + [main, "//third_party/gtest:precompiled"] + _PROCESS_DEPS,
        **kwargs
    )

def starring_library_headers(name, headers):
    """The headers that are precompiled for starring_cc_library.

    Args:
      name: a rule with NAME.h and NAME.h.gch.
      headers: headers of the system, as after #include.
    """
    precompiled_header(name = name, headers = headers, copts = _COPTS)

def starring_test_headers(name, headers):
    """The same for starring_cc_test.

    Args:
      name: a rule with NAME.h and NAME.h.gch.
      headers: headers of the system, as after #include.
    """
    precompiled_header(name = name, headers = headers, copts = _COPTS + _TEST_COPTS + _TEST_PER_FILE_COPTS)

def _grpc_stubs_impl(ctx):
    proto = ctx.attr.proto[ProtoInfo]
    outputs = []
    for source in proto.direct_sources:
        stem = source.basename[:-len(".proto")]
        stubs = [ctx.actions.declare_file(stem + suffix) for suffix in (".grpc.pb.h", ".grpc.pb.cc")]
        outputs += stubs
        arguments = ctx.actions.args()
        arguments.add(ctx.executable._plugin, format = "--plugin=protoc-gen-grpc=%s")
        arguments.add(ctx.bin_dir.path, format = "--grpc_out=%s")
        arguments.add("--proto_path=.")
        arguments.add(source)
        ctx.actions.run(
            executable = ctx.executable._protoc,
            arguments = [arguments],
            inputs = proto.transitive_sources,
            tools = [ctx.executable._plugin],
            outputs = stubs,
            mnemonic = "GrpcStubs",
            progress_message = "Generating gRPC stubs for %s" % source.short_path,
        )
    return [DefaultInfo(files = depset(outputs))]

_grpc_stubs = rule(
    implementation = _grpc_stubs_impl,
    attrs = {
        "proto": attr.label(mandatory = True, providers = [ProtoInfo]),
        "_protoc": attr.label(
            default = "//third_party/protobuf:protoc",
            executable = True,
            cfg = "exec",
        ),
        "_plugin": attr.label(
            default = "//third_party/grpc:grpc_cpp_plugin",
            executable = True,
            cfg = "exec",
        ),
    },
)

def starring_cc_grpc_library(name, proto, cc_proto, testonly = False, **kwargs):
    """Client stubs and service base classes: <stem>.grpc.pb.h for each <stem>.proto of `proto`.

    Args:
      name: the cc_library.
      proto: a proto_library of this package.
      cc_proto: its cc_proto_library.
      testonly: as for any rule.
      **kwargs: as for cc_library, e.g. visibility.
    """
    _grpc_stubs(
        name = name + "_stubs",
        testonly = testonly,
        proto = proto,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name,
        testonly = testonly,
        srcs = [name + "_stubs"],
        hdrs = [name + "_stubs"],
        deps = [cc_proto, "//third_party/grpc"],
        **kwargs
    )
