#include "kernels/cuda/for_each.h"
#include "kernels/cuda/pixels.h"

namespace starring::cuda {
namespace {

struct PixelBody {
  PixelArgs g;
  Divisor channels;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const Pack<uint8_t, kWidth> in = LoadPack<kWidth>(g.pixels + i);
    Pack<float, kWidth> out;
    uint32_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    for (int k = 0; k < kWidth; ++k) {
      out.v[k] = (static_cast<float>(in.v[k]) - g.offset[c]) * g.scale[c];
      if (++c == g.channels) c = 0;
    }
    StorePack(out, g.out + i);
  }
};

}  // namespace

cudaError_t NormalizePixels(cudaStream_t stream, const PixelArgs& args) {
  const bool aligned = reinterpret_cast<uintptr_t>(args.pixels) % kPackFloats == 0 && AlignedForPacks(args.out);
  return ForEach(stream, args.count, aligned ? Alignment::kPacks : Alignment::kElements,
                 PixelBody{args, Divisor(args.channels)});
}

}  // namespace starring::cuda
