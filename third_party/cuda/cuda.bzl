"""CUDA sources as libraries.

    load("//third_party/cuda:cuda.bzl", "starring_cuda_library")

    starring_cuda_library(
        name = "kernels",
        srcs = ["elementwise.cu"],
        hdrs = ["elementwise.h"],          # without types of CUDA but cudaStream_t and cudaError_t
    )

    starring_cuda_image(
        name = "image",                    # a fat binary for the driver's cuModuleLoadData
        src = "sums.cu",
        hdrs = ["sums.h"],
    )

Each .cu is compiled by nvcc for sm_80 and sm_90, and to PTX of compute_90, which a driver compiles for newer GPUs. The
report of ptxas about every kernel (registers, spills) becomes <stem>.ptxas, in the target NAME_ptxas, for a test to
read.

Without a toolkit (@cuda//:defs.bzl) the rule may not be used.
"""

load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "NVCC")

_NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    # A multiplication and an addition stay two roundings, as everywhere in Starring. So results that the CPU computes
    # by the same formula (optimizers, normalisation, batch norm's last step) have the same bits here. Our kernels wait
    # for memory, not for arithmetic, and products are cuBLAS's or call fmaf (narrow_convolution.cu). No fast math for
    # the same reason: divisions and square roots are IEEE's, and denormals stay.
    "-fmad=false",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
    # Lambdas and constexpr functions of std are not used in kernels: no flag for them.
    "-Xptxas=-v,-warn-spills,-warn-lmem-usage",
    "-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-fPIC,-ffp-contract=off",
    "-Werror=all-warnings",
    # Bazel caches outputs by their inputs, so an output must have no name of a temporary file and no path of a machine.
    "-I.",
]

def _nvcc_objects_impl(ctx):
    objects = []
    reports = []
    headers = depset(ctx.files.hdrs)
    for source in ctx.files.srcs:
        stem = source.basename[:-len(".cu")]
        object_file = ctx.actions.declare_file(stem + ".cu.o")
        report = ctx.actions.declare_file(stem + ".ptxas")
        objects.append(object_file)
        reports.append(report)
        arguments = ctx.actions.args()
        arguments.add_all(_NVCC_FLAGS)
        arguments.add_all(["-c", source, "-o", object_file])
        ctx.actions.run_shell(
            # The output of nvcc is the report. It is shown only if nvcc fails.
            command = "report=$1 && shift && (\"$@\" >\"$report\" 2>&1 || { cat \"$report\"; exit 1; })",
            arguments = [report.path, NVCC, arguments],
            inputs = depset([source], transitive = [headers]),
            outputs = [object_file, report],
            mnemonic = "Nvcc",
            progress_message = "Compiling %s" % source.short_path,
            use_default_shell_env = True,
        )
    return [
        DefaultInfo(files = depset(objects)),
        OutputGroupInfo(ptxas = depset(reports)),
    ]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [".h"]),
    },
)

def _cuda_image_impl(ctx):
    image = ctx.actions.declare_file(ctx.label.name + ".fatbin")
    arguments = ctx.actions.args()
    arguments.add_all(_NVCC_FLAGS)
    arguments.add_all(["-fatbin", ctx.file.src, "-o", image])
    ctx.actions.run_shell(
        # The report of ptxas is shown only if nvcc fails, as it does where a kernel spills registers.
        command = "report=$(\"$@\" 2>&1) || { echo \"$report\"; exit 1; }",
        arguments = [NVCC, arguments],
        inputs = [ctx.file.src] + ctx.files.hdrs,
        outputs = [image],
        mnemonic = "NvccImage",
        progress_message = "Compiling %s" % ctx.file.src.short_path,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([image]))]

starring_cuda_image = rule(
    implementation = _cuda_image_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [".h"]),
    },
)

def starring_cuda_library(name, srcs, hdrs, visibility = None, **kwargs):
    """A cc_library of .cu files.

    Args:
      name: the cc_library. NAME_ptxas holds the reports.
      srcs: .cu files of this package.
      hdrs: every header of the repository that they include.
      visibility: of both.
      **kwargs: as for cc_library.
    """
    if not CUDA_AVAILABLE:
        fail("%s needs nvcc: load CUDA_AVAILABLE of @cuda//:defs.bzl and leave it out without" % name)
    _nvcc_objects(
        name = name + "_objects",
        srcs = srcs,
        hdrs = hdrs,
        visibility = ["//visibility:private"],
    )
    native.filegroup(
        name = name + "_ptxas",
        srcs = [name + "_objects"],
        output_group = "ptxas",
        visibility = visibility,
    )
    native.cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        visibility = visibility,
        deps = ["//third_party/cuda"],
        **kwargs
    )
