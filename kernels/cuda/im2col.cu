#include "kernels/cuda/im2col.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/patch_geometry.h"

namespace starring::cuda {
namespace {

// One element of the columns, or four neighbours: they have one place in the kernel, because 4 divides the channels.
struct Im2colBody {
  PatchGeometry g;
  const float* x;
  float* columns;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const auto [row, in_patch] = g.patch.Split(static_cast<uint32_t>(i));
    // A patch has the order of a weight, (row, column, channel), so that a convolution is one matrix product.
    const auto [place, channel] = g.channels.Split(in_patch);
    const auto [kernel_row, kernel_column] = g.kernel_width.Split(place);
    const ImagePlace window = WindowOf(g, row);
    const int32_t h = window.h + static_cast<int32_t>(kernel_row), w = window.w + static_cast<int32_t>(kernel_column);
    // Padding is 0, and is stored: the scratch memory holds other numbers.
    Pack<float, kWidth> v = {};
    if (IsInside(g, h, w)) v = LoadPack<kWidth>(x + InputIndex(g, window.image, h, w) + channel);
    StorePack(v, columns + i);
  }
};

// One element of dx: gathers from the windows that see it, so that no two threads add to one address.
struct Col2imBody {
  PatchGeometry g;
  const float* columns;
  float* dx;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const auto [pixel, channel] = g.channels.Split(static_cast<uint32_t>(i));
    const PixelsOutputs outputs = OutputsOfPixel(g, pixel);
    Pack<float, kWidth> sum = {};
    // Descending outputs are ascending places of the kernel.
    for (int32_t r = outputs.rows.end - 1; r >= outputs.rows.begin; --r) {
      for (int32_t c = outputs.columns.end - 1; c >= outputs.columns.begin; --c) {
        const auto [out, place] = OutputAt(g, outputs.pixel, r, c);
        sum += LoadPack<kWidth>(columns + out * g.patch_size + int64_t{place} * g.channels_size + channel);
      }
    }
    StorePack(sum, dx + i);
  }
};

}  // namespace

cudaError_t Im2col(cudaStream_t stream, const PatchShape& s, const float* x, float* columns) {
  return ForEach(stream, s.rows() * s.patch(), AlignmentOfChannels(s.channels, x, columns),
                 Im2colBody{PatchGeometry(s), x, columns});
}

cudaError_t Col2im(cudaStream_t stream, const PatchShape& s, const float* columns, float* dx) {
  return ForEach(stream, s.images * s.in_height * s.in_width * s.channels, AlignmentOfChannels(s.channels, columns, dx),
                 Col2imBody{PatchGeometry(s), columns, dx});
}

}  // namespace starring::cuda
