#include "kernels/cuda/channel_copy.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {
namespace {

// The element of the narrow tensor is i; that of the wide one follows from it.
template <bool kIntoWide>
struct CopyBody {
  Divisor channels;
  int64_t wide_channels, offset;
  const float* from;
  float* to;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    // The cast is safe, and Split exact: the narrow tensor has no more elements than the wide one, below 2^31.
    const auto [pixel, channel] = channels.Split(static_cast<uint32_t>(i));
    const int64_t wide = pixel * wide_channels + offset + channel;
    // The narrow tensor has no gaps, so both directions walk its elements.
    StorePack(LoadPack<kWidth>(from + (kIntoWide ? i : wide)), to + (kIntoWide ? wide : i));
  }
};

template <bool kIntoWide>
cudaError_t Copy(cudaStream_t stream, const ChannelPart& p, const float* from, float* to) {
  // With all three divisible by four, each pack is aligned in both tensors and inside one pixel.
  const bool packs = p.channels % kPackFloats == 0 && p.wide_channels % kPackFloats == 0 &&
                     p.offset % kPackFloats == 0 && AlignedForPacks(from, to);
  return ForEach(stream, p.pixels * p.channels, packs ? Alignment::kPacks : Alignment::kElements,
                 CopyBody<kIntoWide>{Divisor(p.channels), p.wide_channels, p.offset, from, to});
}

}  // namespace

cudaError_t CopyIntoChannels(cudaStream_t stream, const ChannelPart& part, const float* narrow, float* wide) {
  return Copy<true>(stream, part, narrow, wide);
}

cudaError_t CopyFromChannels(cudaStream_t stream, const ChannelPart& part, const float* wide, float* narrow) {
  return Copy<false>(stream, part, wide, narrow);
}

}  // namespace starring::cuda
