#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/channel_copy.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"

namespace starring::cuda {
namespace {

// The element of the narrow tensor is i; that of the wide one follows from it.
template <bool kIntoWide, typename T>
struct CopyBody {
  Divisor channels;
  int64_t wide_channels, offset;
  const T* from;
  T* to;

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
cudaError_t Copy(cudaStream_t stream, const ChannelPart& p, ConstElements from, Elements to) {
  return WithElement(
      [&]<typename T>() {
        constexpr int kPack = kPackOf<T>;
        const CopyBody<kIntoWide, T> body = {Divisor(p.channels), p.wide_channels, p.offset, from.As<T>(), to.As<T>()};
        // With all three in whole packs, each pack is aligned in both tensors and inside one pixel.
        const bool packs = p.channels % kPack == 0 && p.wide_channels % kPack == 0 && p.offset % kPack == 0 &&
                           AlignedForPacks(body.from, body.to);
        return ForEach<kPack>(stream, p.pixels * p.channels, packs ? Alignment::kPacks : Alignment::kElements, body);
      },
      from.element(), to);
}

}  // namespace

cudaError_t CopyIntoChannels(cudaStream_t stream, const ChannelPart& part, ConstElements narrow, Elements wide) {
  return Copy<true>(stream, part, narrow, wide);
}

cudaError_t CopyFromChannels(cudaStream_t stream, const ChannelPart& part, ConstElements wide, Elements narrow) {
  return Copy<false>(stream, part, wide, narrow);
}

}  // namespace starring::cuda
