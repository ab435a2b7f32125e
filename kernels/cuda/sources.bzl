"""The files of kernels/cuda, for its own BUILD file and for tests/cuda_emulation, which compiles the same ones."""

# Kernels: CUDA, std and plain structs only. Each has a header of its name.
KERNELS = [
    "activation",
    "batch_norm",
    "bias_gradient",
    "channel_copy",
    "channel_windows",
    "elementwise",
    "group_norm",
    "im2col",
    "loss",
    "narrow_convolution",
    "optimizer",
    "peer_update",
    "pixels",
    "pool",
    "stamp",
]

# Headers that kernels share.
KERNEL_HDRS = [
    "bfloat16.h",
    "column_tiles.h",
    "device_philox.h",
    "launch.h",
    "pack.h",
    "patch_geometry.h",
    "system_scope.h",
    "update_formula.h",
]

# The sources for the host compiler, each with a header of its name, except gpu_libraries.cc, which the emulation
# replaces.
_HOST = [
    "cuda_memory",
    "cuda_operations",
    "cuda_peer_board",
    "cuda_peer_memory",
    "cuda_stream",
    "cudnn_descriptor",
    "cudnn_product",
    "matrix_product",
]

HOST_SRCS = [
    "cuda_device.cc",
    "cuda_operations_cudnn.cc",
    "cuda_operations_matrix.cc",
] + [name + ".cc" for name in _HOST]

HOST_HDRS = [
    "cuda_context.h",
    "cudnn_interface.h",
    "gpu_libraries.h",
] + [name + ".h" for name in _HOST]
