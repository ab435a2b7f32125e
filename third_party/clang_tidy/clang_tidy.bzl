"""Runs clang-tidy over every source that ships, with its target's own flags: bazel build --config=tidy //...

Tests and benchmarks are left out: they would take two thirds of the time, and a bug there hurts no user.

It is an aspect, so that Bazel knows the inputs of each check: a file is checked again only when it or a header changes.
.clang-tidy lists the checks. A header is checked as part of the sources that include it.
"""

_CHECKED_KINDS = ["cc_binary", "cc_library", "cc_test"]

def _clang_tidy_impl(target, ctx):
    if ctx.rule.kind not in _CHECKED_KINDS or not hasattr(ctx.rule.attr, "srcs"):
        return []
    if target.label.package.split("/")[0] in ["bench", "tests"]:
        return []
    if "no_tidy" in ctx.rule.attr.tags:  # code that only GCC can read
        return []
    sources = [
        source
        for sources in ctx.rule.attr.srcs
        for source in sources.files.to_list()
        # Skips protoc's output, and third_party's replacements for the code of others.
        if source.extension == "cc" and source.is_source and not source.path.startswith("third_party/")
    ]
    if not sources:
        return []

    contexts = [dep[CcInfo].compilation_context for dep in ctx.rule.attr.deps if CcInfo in dep]
    if CcInfo in target:
        contexts.append(target[CcInfo].compilation_context)
    headers = depset(transitive = [context.headers for context in contexts])
    # The headers of a binary are in none of the contexts.
    own = [file for sources in ctx.rule.attr.srcs for file in sources.files.to_list()]

    flags = ctx.actions.args()
    flags.add_all([
        "-std=c++20",
        "-DNDEBUG",
        # GCC's warnings are for our code; of clang's only the analysis of locks, which GCC lacks.
        "-Wno-everything",
        "-Wthread-safety",
        # For GCC's <omp.h>; clang prefers its own where it has one.
        "-idirafter",
        "/usr/lib/gcc/x86_64-linux-gnu/12/include",
    ])
    # The third and fourth are the precompiled header: a source must include what it uses without it, too.
    ours = ("-W", "-O", "-include", "$(BINDIR)")
    flags.add_all([copt for copt in ctx.rule.attr.copts if not copt.startswith(ours)])
    flags.add_all(depset(transitive = [context.defines for context in contexts]), before_each = "-D")
    for kind, folders in [
        ("-iquote", [context.quote_includes for context in contexts]),
        ("-isystem", [context.system_includes for context in contexts]),
        ("-I", [context.includes for context in contexts]),
    ]:
        flags.add_all(depset(transitive = folders), before_each = kind)

    outputs = []
    for source in sources:
        output = ctx.actions.declare_file("%s.%s.tidy" % (ctx.label.name, source.basename))
        outputs.append(output)
        ctx.actions.run_shell(
            command = """
output=$1 source=$2 config=$3
shift 3
clang-tidy --quiet --config-file="$config" "$source" -- "$@" >"$output" 2>/dev/null || { cat "$output"; exit 1; }
""",
            arguments = [output.path, source.path, ctx.file._config.path, flags],
            inputs = depset(own + [source, ctx.file._config], transitive = [headers]),
            outputs = [output],
            mnemonic = "ClangTidy",
            progress_message = "Checking %s" % source.short_path,
        )
    return [OutputGroupInfo(tidy = depset(outputs))]

clang_tidy = aspect(
    implementation = _clang_tidy_impl,
    attrs = {
        "_config": attr.label(
            default = "//:.clang-tidy",
            allow_single_file = True,
        ),
    },
)
