"""The files of kernels/cuda, for its own BUILD file and for tests/cuda_emulation, which compiles the same ones."""

# Kernels: CUDA, std and plain structs only. Each has a header of its name.
KERNELS = [
    "batch_norm",
    "bias_gradient",
    "dropout",
    "elementwise",
    "im2col",
    "narrow_convolution",
    "non_finite",
    "optimizer",
    "pixels",
    "pool",
    "softmax_cross_entropy",
]

# What kernels share.
KERNEL_HDRS = [
    "column_tiles.h",
    "device_philox.h",
    "for_each.h",
    "last_block.h",
    "launch.h",
    "pack.h",
    "patch_geometry.h",
]

# What the host compiler compiles, each with a header; but for the doors to cuBLASLt and cuDNN, which the emulation
# replaces.
_HOST = [
    "cuda_layers",
    "cuda_memory",
    "cuda_operations",
    "cuda_stream",
    "cuda_vector_math",
    "cudnn_convolution",
    "cudnn_descriptor",
    "cudnn_product",
    "matrix_layer",
    "matrix_product",
    "pinned_memory",
]

HOST_SRCS = ["cuda_device.cc"] + [name + ".cc" for name in _HOST]

HOST_HDRS = [
    "cublaslt_library.h",
    "cuda_context.h",
    "cudnn_interface.h",
    "cudnn_library.h",
] + [name + ".h" for name in _HOST]
