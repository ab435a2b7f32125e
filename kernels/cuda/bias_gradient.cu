#include "kernels/cuda/bfloat16.h"
#include "kernels/cuda/bias_gradient.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/launch.h"

namespace starring::cuda {
namespace {

// Run by the last block of a group: dbias = the sums of its tiles, in double, since there may be 512 of them.
__device__ inline void MergeSums(const ColumnTiles& tiles, const float* sums, float* dbias) {
  __shared__ double buffer[kBlockThreads];
  // Elements are added one by one, whatever the width of the kernel: the order of these sums is then the same on both
  // paths.
  const ColumnPlace<1> at(tiles, tiles.GroupOf(blockIdx.x));
  double sum = 0;
  if (at.has_channel) {
// Each thread adds every row_lanes-th tile, and a tree adds the threads: the order depends on the shape alone.
#pragma unroll 4
    for (int64_t tile = at.row_lane; tile < tiles.tiles; tile += at.row_lanes) {
      sum += sums[tile * tiles.channels + at.channel];
    }
  }
  sum = SumOfColumn<1>(sum, tiles, buffer);
  if (at.IsFirst()) dbias[at.channel] = static_cast<float>(sum);
}

// sums: (tiles, channels), or dbias itself where there is one tile, which then needs no merge.
template <Mask kMask, typename T, int kWidth>
__global__ void __launch_bounds__(kBlockThreads, kTileBlocksHeld)
    BiasGradientKernel(ColumnTiles tiles, BiasGradientArgs g, float* sums) {
  using Floats = Pack<float, kWidth>;
  __shared__ Floats buffer[kBlockThreads];
  const ColumnPlace<kWidth> at(tiles, blockIdx.x);
  const T* const all_y = g.y.As<T>();
  T* const all_dy = g.dy.As<T>();
  Floats sum = {};
  for (int64_t row = at.first_row; row < at.end_row; row += at.StepRows()) {
    const int64_t step = at.Element(tiles, row);
    // Threads beyond the last channel or row load zeros and take part: the barriers below need every thread.
    const int packs = at.has_channel ? at.PacksFrom(row) : 0;
    // All loads come before the first store: the compiler may not move a load past a store that might alias it, so each
    // would wait for the one before.
    Pack<T, kWidth> gradients[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int64_t element = step + i * at.pitch;
      gradients[i] = LoadPackIf<kWidth>(i < packs, all_dy + element);
      if (kMask == Mask::kNone) continue;
      const Floats y = FloatsOf(LoadPackIf<kWidth>(i < packs, all_y + element));
#pragma unroll
      for (int k = 0; k < kWidth; ++k) gradients[i].v[k] = y.v[k] > 0.0f ? gradients[i].v[k] : T{};
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      // dy is masked in place, for the products that read dy next. With kNone dy may be another reader's too, so it is
      // not written.
      if (kMask == Mask::kRelu && i < packs) StorePack(gradients[i], all_dy + step + i * at.pitch);
      sum += FloatsOf(gradients[i]);
    }
  }
  sum = SumOfColumn<kWidth>(sum, tiles, buffer);
  if (at.IsFirst()) StorePack(sum, sums + at.tile * tiles.channels + at.channel);
  // The tile is stored before the counter is increased: the last block then sees the sums of all others.
  if (tiles.tiles == 1 || !IsLastBlock(g.counters + tiles.GroupOf(blockIdx.x), tiles.tiles)) return;
  MergeSums(tiles, sums, g.dbias);
}

template <Mask kMask, typename T>
cudaError_t Run(cudaStream_t stream, const BiasGradientArgs& args) {
  const ColumnTiles tiles(args.rows, args.channels);
  // With one tile the sum is the result. `sums` counts for the alignment, because kernels store packs there.
  float* const sums = tiles.tiles > 1 ? args.partial : args.dbias;
  const T* const y = kMask == Mask::kRelu ? args.y.As<T>() : nullptr;
  const bool by_packs = AlignmentOfChannels<kColumnPack>(args.channels, y, args.dy.As<T>(), sums) == Alignment::kPacks;
  const auto kernel = by_packs ? BiasGradientKernel<kMask, T, kColumnPack> : BiasGradientKernel<kMask, T, 1>;
  return Launch(stream, tiles.Launch(), kernel, tiles, args, sums);
}

template <Mask kMask, typename T>
struct AddBiasBody {
  Divisor channels;
  const T* bias;
  T* y;

  template <int kWidth>
  __device__ void Run(int64_t i) const {
    auto v = LoadFloats<kWidth>(y + i);
    // A whole pack is within one row, since packs are used only where channels are whole packs: one division is enough
    // for all.
    if (bias != nullptr) v += LoadFloats<kWidth>(bias + channels.Split(static_cast<uint32_t>(i)).remainder);
    for (float& e : v.v) e = kMask == Mask::kRelu ? ReluOf(e) : e;
    StoreFloats(v, y + i);
  }
};

template <Mask kMask, typename T>
cudaError_t AddBiasTo(cudaStream_t stream, const AddBiasArgs& args) {
  constexpr int kPack = kPackOf<T>;
  const AddBiasBody<kMask, T> body = {Divisor(args.channels), args.bias.As<T>(), args.y.As<T>()};
  return ForEach<kPack>(stream, args.rows * args.channels, AlignmentOfChannels<kPack>(args.channels, body.bias, body.y),
                        body);
}

}  // namespace

int64_t BiasGradientPartialFloats(int64_t rows, int64_t channels) {
  const ColumnTiles tiles(rows, channels);
  return tiles.tiles > 1 ? tiles.tiles * channels : 0;
}

int64_t BiasGradientCounters(int64_t rows, int64_t channels) {
  const ColumnTiles tiles(rows, channels);
  return tiles.tiles > 1 ? tiles.groups : 0;
}

cudaError_t BiasGradient(cudaStream_t stream, const BiasGradientArgs& args) {
  return WithElement(
      [&]<typename T>() {
        return args.mask == Mask::kRelu ? Run<Mask::kRelu, T>(stream, args) : Run<Mask::kNone, T>(stream, args);
      },
      args.dy.element(), args.y);
}

cudaError_t AddBias(cudaStream_t stream, const AddBiasArgs& args) {
  return WithElement(
      [&]<typename T>() {
        return args.activation == Mask::kRelu ? AddBiasTo<Mask::kRelu, T>(stream, args)
                                              : AddBiasTo<Mask::kNone, T>(stream, args);
      },
      args.y.element(), args.bias);
}

}  // namespace starring::cuda
