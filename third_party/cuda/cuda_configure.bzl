"""The repository @cuda: a CUDA toolkit of version 12 or newer where there is one, else an empty library.

The toolkit is looked for in $CUDA_HOME, then in /usr/local/cuda. STARRING_CUDA=off leaves it out. So a machine with
CUDA can try the build of a machine without it:

    bazel test --config=no_cuda //...

@cuda//:defs.bzl holds CUDA_AVAILABLE (a bool) and NVCC (a path), known when BUILD files are loaded: rules that need
nvcc do not exist without it, so that no target has to be skipped.
"""

_BUILD_WITH_CUDA = """
cc_library(
    name = "cuda",
    srcs = ["lib/libcudart_static.a"],
    # The compiler of .cu files brings its own copy; these are for the host compiler.
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/**",
        "include/nv/**",
        "include/cccl/nv/**",
    ]),
    includes = [
        "include",
        "include/cccl",
    ],
    # Libraries that the static runtime needs. It loads the driver, libcuda.so.1, only when it is first used, so a
    # program starts without a driver.
    linkopts = [
        "-ldl",
        "-lpthread",
        "-lrt",
    ],
    visibility = ["//visibility:public"],
)
"""

_BUILD_WITHOUT_CUDA = """
cc_library(
    name = "cuda",
    visibility = ["//visibility:public"],
)
"""

_MAJOR_MIN = 12  # the first whose nvcc speaks C++20

def _find_toolkit(repository_ctx):
    if repository_ctx.os.environ.get("STARRING_CUDA", "auto") == "off":
        return None
    for root in [repository_ctx.os.environ.get("CUDA_HOME"), "/usr/local/cuda"]:
        if not root:
            continue
        files = ["bin/nvcc", "include/cuda_runtime.h", "include/cublasLt.h", "lib64/libcudart_static.a"]
        if [file for file in files if not repository_ctx.path(root + "/" + file).exists]:
            continue
        version = repository_ctx.execute([root + "/bin/nvcc", "--version"])
        words = version.stdout.split("release ")
        major = words[1].split(".")[0] if version.return_code == 0 and len(words) == 2 else ""
        if major.isdigit() and int(major) >= _MAJOR_MIN:
            return root

        # buildifier: disable=print
        print("CUDA in %s is release %s, %d is the oldest that works: building without it" % (root, major, _MAJOR_MIN))
    return None

def _cuda_configure_impl(repository_ctx):
    root = _find_toolkit(repository_ctx)
    if root:
        repository_ctx.symlink(root + "/include", "include")
        repository_ctx.symlink(root + "/lib64", "lib")
    repository_ctx.file("BUILD", _BUILD_WITH_CUDA if root else _BUILD_WITHOUT_CUDA)
    repository_ctx.file("defs.bzl", "CUDA_AVAILABLE = %s\nNVCC = \"%s/bin/nvcc\"\n" % (root != None, root or ""))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    environ = ["CUDA_HOME", "STARRING_CUDA"],
    local = True,
)
