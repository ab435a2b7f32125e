"""A precompiled header: headers that many sources include, parsed once."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ctx.actions.write(header, "".join(["#include %s\n" % one for one in ctx.attr.headers]))
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # A compiler takes a precompiled header only for a source that is compiled with the same options. These are the
    # ones that Bazel gives to such a source, in its order.
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        # As .bazelrc's --force_pic.
        use_pic = True,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
    )
    command = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    tool = cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)

    arguments = [tool, "-x", "c++-header"]
    if toolchain.compiler == "clang":
        # From standard input: Clang would note the header's path in the sandbox, and look for it there. GCC takes a
        # file.
        shell = "exec \"$@\" < " + header.path
        arguments += ["-" if word == header.path else word for word in command]
    else:
        shell = "exec \"$@\""
        arguments += command
    ctx.actions.run_shell(
        command = shell,
        arguments = arguments,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "PrecompiledHeader",
        progress_message = "Precompiling %s" % header.short_path,
    )
    return [DefaultInfo(files = depset([header, compiled]))]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    doc = "Makes NAME.h, which includes `headers`, and NAME.h.gch, which GCC and Clang read instead.",
    attrs = {
        "copts": attr.string_list(doc = "the options of the sources that include it"),
        "headers": attr.string_list(mandatory = True, doc = "as after #include: headers of the system alone"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
