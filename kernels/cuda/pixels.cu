#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/device_philox.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pixels.h"

namespace starring::cuda {
namespace {

// The CPU's formula. A subtraction and then a multiplication cannot be fused, so the bits are the CPU's too.
template <typename Value, typename T>
struct NormalizeBody {
  NormalizeArgs g;
  Divisor channels;
  template <int kWidth>
  __device__ void Run(int64_t i) const {
    const Pack<Value, kWidth> in = LoadPack<kWidth>(static_cast<const Value*>(g.values) + i);
    Pack<float, kWidth> out;
    // One division serves a pack. Its values may belong to several pixels, because 4 need not divide the channels.
    uint32_t c = channels.Split(static_cast<uint32_t>(i)).remainder;
    for (int k = 0; k < kWidth; ++k) {
      out.v[k] = (static_cast<float>(in.v[k]) - g.offset[c]) * g.scale[c];
      if (++c == g.channels) c = 0;
    }
    StoreFloats(out, g.out.As<T>() + i);
  }
};

// Where the value at (y, x) of an augmented image comes from: row y + down; column x + right or, if flipped,
// right_end - x.
struct Crop {
  int32_t down = 0, right = 0, right_end = 0;
  bool flip = false;
};

__device__ inline Crop DrawCrop(const GatherArgs& g, uint32_t sample) {
  const int64_t epoch = g.bound != nullptr ? g.bound->epoch : g.values.epoch;
  // The same key, counter and use of the words as DrawCropFlip on the CPU, so that the crops are the same.
  const PhiloxWords words = Philox({{sample, 0, static_cast<uint32_t>(epoch), kAugmentPurpose << 24}}, g.seed);
  const auto padding = static_cast<int32_t>(g.padding);
  const uint32_t places = 2 * static_cast<uint32_t>(padding) + 1;
  Crop crop;
  // BelowN of common/arithmetic/philox.h: the upper word of a product is a number below `places`.
  crop.down = static_cast<int32_t>(__umulhi(words.v[0], places)) - padding;
  crop.right = static_cast<int32_t>(__umulhi(words.v[1], places)) - padding;
  crop.right_end = static_cast<int32_t>(g.width) - 1 + crop.right;
  crop.flip = words.v[2] >> 31 != 0;
  return crop;
}

// By the threads of one block.
__device__ inline void CopyTarget(const GatherArgs& g, uint32_t sample, int64_t b) {
  if (g.target_values == 0 && threadIdx.x == 0) g.out_labels[b] = g.labels[sample];
  for (int64_t k = threadIdx.x; k < g.target_values; k += kBlockThreads) {
    g.out_targets[b * g.target_values + k] = g.targets[int64_t{sample} * g.target_values + k];
  }
}

// A block treats a piece of one image, so that all of its threads draw the same crop.
template <typename Value, typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads)
    GatherKernel(GatherArgs g, Divisor pieces, Divisor channels, Divisor width, int64_t image_values) {
  const auto [b, piece] = pieces.Split(blockIdx.x);
  const int64_t first = kWidth * (int64_t{piece} * kBlockThreads + threadIdx.x);
  const uint32_t sample = g.samples[b];
  // The first block of the image does this. A second kernel, for few numbers of each image, would cost a launch.
  if (piece == 0) CopyTarget(g, sample, b);
  if (first >= image_values) return;
  Crop crop;
  // Without crops the fields of Crop are zeros: the value comes from where it goes.
  if (g.padding > 0) crop = DrawCrop(g, sample);
  const Value* const image = static_cast<const Value*>(g.images) + int64_t{sample} * image_values;
  const auto [pixel, channel] = channels.Split(static_cast<uint32_t>(first));
  const auto [row, column] = width.Split(pixel);
  // This is the place of the first value; the loop steps from value to value without another division.
  int64_t y = row, x = column, c = channel;
  Pack<float, kWidth> out;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const int64_t from_y = y + crop.down, from_x = crop.flip ? crop.right_end - x : crop.right + x;
    const bool inside = from_y >= 0 && from_y < g.height && from_x >= 0 && from_x < g.width;
    // Outside of the image is a pixel of zeros, which is normalised like any other, as on the CPU.
    const Value value = inside ? image[(from_y * g.width + from_x) * g.channels + c] : Value{0};
    out.v[k] = (static_cast<float>(value) - g.offset[c]) * g.scale[c];
    if (++c < g.channels) continue;
    c = 0;
    if (++x < g.width) continue;
    x = 0;
    ++y;
  }
  StoreFloats(out, g.out_images.As<T>() + b * image_values + first);
}

template <typename Value, typename T, int kWidth>
cudaError_t LaunchGather(cudaStream_t stream, const GatherArgs& args) {
  const int64_t values = args.height * args.width * args.channels;
  // No block crosses from one image to the next, so the last block of each image may be partly idle.
  const int64_t pieces = CeilDivide(values, kWidth * kBlockThreads);
  return Launch(stream, {.blocks = args.batch * pieces}, GatherKernel<Value, T, kWidth>, args, Divisor(pieces),
                Divisor(args.channels), Divisor(args.width), values);
}

// Packs have four values, of either type: a thread computes the places of all.
template <typename Value, typename T>
cudaError_t Gather(cudaStream_t stream, const GatherArgs& args) {
  const bool packs =
      args.height * args.width * args.channels % kPackFloats == 0 && AlignedForPacks(args.out_images.As<T>());
  return packs ? LaunchGather<Value, T, kPackFloats>(stream, args) : LaunchGather<Value, T, 1>(stream, args);
}

template <typename Value, typename T>
cudaError_t Normalize(cudaStream_t stream, const NormalizeArgs& args) {
  const bool aligned = reinterpret_cast<uintptr_t>(args.values) % (kPackFloats * sizeof(Value)) == 0 &&
                       AlignedForPacks(args.out.As<T>());
  return ForEach(stream, args.count, aligned ? Alignment::kPacks : Alignment::kElements,
                 NormalizeBody<Value, T>{args, Divisor(args.channels)});
}

}  // namespace

cudaError_t GatherSamples(cudaStream_t stream, const GatherArgs& args) {
  return WithElement(
      [&]<typename T>() {
        return args.value_bytes == 1 ? Gather<uint8_t, T>(stream, args) : Gather<float, T>(stream, args);
      },
      args.out_images.element());
}

cudaError_t NormalizeValues(cudaStream_t stream, const NormalizeArgs& args) {
  return WithElement(
      [&]<typename T>() {
        return args.value_bytes == 1 ? Normalize<uint8_t, T>(stream, args) : Normalize<float, T>(stream, args);
      },
      args.out.element());
}

}  // namespace starring::cuda
