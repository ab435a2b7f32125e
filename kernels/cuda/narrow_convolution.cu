#include <algorithm>
#include <cmath>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/narrow_convolution.h"
#include "kernels/cuda/patch_geometry.h"

namespace starring::cuda {
namespace {

constexpr int kTileRows = 64;
constexpr int kTallTileRows = 128;
constexpr int kTileDepth = 32;
constexpr int kTileSide = 4;  // a thread sums kTileSide x kTileSide elements, in a tall tile twice as many rows
constexpr int64_t kMultiprocessors = 132;  // of an H100, for which shapes of grids are chosen on every GPU
// Blocks of a weight gradient: between two and three times as many as an H100 holds at a time, three each.
constexpr int64_t kWeightBlocksMax = 1024;
constexpr int64_t kSliceRowsMin = 256;
// A row or column that stays outside of the image whatever kernel row or column is added: such an element loads as 0,
// and the loops need no test for the last tile's missing rows.
constexpr int32_t kNowhere = -(1 << 30);

using Quad = Pack<float, kPackFloats>;

// Sizes are 32-bit, because 64-bit index arithmetic takes several instructions on a GPU. They fit: CheckShape allows
// 2^31 - 1 elements for a tensor.
struct Geometry : PatchGeometry {
  Divisor out_channels;
  int32_t out_channels_size, rows, pixels;

  Geometry(const PatchShape& s, int64_t out_channels_in)
      : PatchGeometry(s),
        out_channels(out_channels_in),
        out_channels_size(static_cast<int32_t>(out_channels_in)),
        rows(static_cast<int32_t>(s.rows())),
        pixels(static_cast<int32_t>(s.images * s.in_height * s.in_width)) {}
};

// The factors of the three products. Each says where it has neighbours in memory, of which Load returns kWidth: along
// the product's depth, or along its outer axis. At(outer) does the divisions that are the same for every step of the
// walk.
enum class Along { kDepth, kOuter };

// An element of a patch.
struct InPatch {
  int32_t h, w, channel;
};

__device__ inline InPatch SplitPatch(const Geometry& g, int32_t element) {
  const auto [place, channel] = g.channels.Split(static_cast<uint32_t>(element));
  const auto [h, w] = g.kernel_width.Split(place);
  return {static_cast<int32_t>(h), static_cast<int32_t>(w), static_cast<int32_t>(channel)};
}

template <int kWidth>
__device__ inline Pack<float, kWidth> LoadPixel(const Geometry& g, const float* x, const ImagePlace& window,
                                                const InPatch& in) {
  const int32_t h = window.h + in.h, w = window.w + in.w;
  if (!IsInside(g, h, w)) return {};
  return LoadPack<kWidth>(x + InputIndex(g, window.image, h, w) + in.channel);
}

// patches(x): outer is the output's place, depth the patch.
template <int kWidthIn>
struct Patches {
  static constexpr int kWidth = kWidthIn;
  static constexpr Along kAlong = Along::kDepth;
  Geometry g;
  const float* x;

  using Place = ImagePlace;
  __device__ Place At(int32_t row) const {
    return row < g.rows ? WindowOf(g, static_cast<uint32_t>(row)) : Place{0, kNowhere, kNowhere};
  }
  __device__ Pack<float, kWidth> Load(const Place& at, int32_t depth) const {
    return LoadPixel<kWidth>(g, x, at, SplitPatch(g, depth));
  }
};

// patches(x)^T: outer is the patch, depth the output's place.
template <int kWidthIn>
struct PatchesTransposed {
  static constexpr int kWidth = kWidthIn;
  static constexpr Along kAlong = Along::kOuter;
  Geometry g;
  const float* x;

  using Place = InPatch;
  __device__ Place At(int32_t element) const {
    return element < g.patch_size ? SplitPatch(g, element) : InPatch{kNowhere, kNowhere, 0};
  }
  __device__ Pack<float, kWidth> Load(const Place& at, int32_t depth) const {
    return LoadPixel<kWidth>(g, x, WindowOf(g, static_cast<uint32_t>(depth)), at);
  }
};

// The gradients of the outputs that saw a pixel of x: outer is the pixel, depth the kernel's place and output channel.
template <int kWidthIn>
struct Outputs {
  static constexpr int kWidth = kWidthIn;
  static constexpr Along kAlong = Along::kDepth;
  Geometry g;
  const float* dy;

  using Place = ImagePlace;
  __device__ Place At(int32_t pixel) const {
    return pixel < g.pixels ? PaddedPixel(g, static_cast<uint32_t>(pixel)) : Place{0, kNowhere, kNowhere};
  }
  __device__ Pack<float, kWidth> Load(const Place& at, int32_t depth) const {
    const auto [place, channel] = g.out_channels.Split(static_cast<uint32_t>(depth));
    const auto [kernel_row, kernel_column] = g.kernel_width.Split(place);
    const int32_t h = at.h - static_cast<int32_t>(kernel_row), w = at.w - static_cast<int32_t>(kernel_column);
    // No window has this place of its kernel over the pixel. A pixel that does not exist has the place kNowhere and
    // ends here too.
    if (h < 0 || w < 0) return {};
    const auto [row, row_rest] = g.stride_height.Split(static_cast<uint32_t>(h));
    const auto [column, column_rest] = g.stride_width.Split(static_cast<uint32_t>(w));
    // With a stride, no window has this place of its kernel over the pixel.
    if (row_rest != 0 || column_rest != 0) return {};
    if (static_cast<int32_t>(row) >= g.out_height_size || static_cast<int32_t>(column) >= g.out_width_size) return {};
    const int64_t out = (int64_t{at.image} * g.out_height_size + row) * g.out_width_size + column;
    return LoadPack<kWidth>(dy + out * g.out_channels_size + channel);
  }
};

// weight^T: outer is the output channel, depth the patch.
template <int kWidthIn>
struct Filters {
  static constexpr int kWidth = kWidthIn;
  static constexpr Along kAlong = Along::kDepth;
  Geometry g;
  const float* weight;

  using Place = int32_t;  // of the filter, or kNowhere
  __device__ Place At(int32_t out) const { return out < g.out_channels_size ? out * g.patch_size : kNowhere; }
  __device__ Pack<float, kWidth> Load(Place at, int32_t depth) const {
    if (at == kNowhere) return {};
    return LoadPack<kWidth>(weight + at + depth);
  }
};

// weight as the input gradient needs it: outer is the channel, depth the kernel's place and output channel. 4-byte
// loads of neighbours by neighbouring threads: the weights are few and come from the cache.
struct FiltersOfPlaces {
  static constexpr int kWidth = 1;
  static constexpr Along kAlong = Along::kOuter;
  Geometry g;
  const float* weight;

  using Place = int32_t;
  __device__ Place At(int32_t channel) const { return channel < g.channels_size ? channel : kNowhere; }
  __device__ Pack<float, kWidth> Load(Place at, int32_t depth) const {
    if (at == kNowhere) return {};
    const auto [place, out] = g.out_channels.Split(static_cast<uint32_t>(depth));
    return LoadPack<kWidth>(weight + out * g.patch_size + place * g.channels_size + at);
  }
};

// dy: outer is the output channel, depth the output's place.
template <int kWidthIn>
struct OutputGradients {
  static constexpr int kWidth = kWidthIn;
  static constexpr Along kAlong = Along::kOuter;
  Geometry g;
  const float* dy;

  using Place = int32_t;
  __device__ Place At(int32_t out) const { return out < g.out_channels_size ? out : kNowhere; }
  __device__ Pack<float, kWidth> Load(Place at, int32_t depth) const {
    if (at == kNowhere) return {};
    return LoadPack<kWidth>(dy + int64_t{depth} * g.out_channels_size + at);
  }
};

// Stores into a (rows, columns) matrix, after bias and activation.
struct StoreRows {
  int32_t rows, columns;
  Alignment alignment;
  Mask activation;
  const float* bias;
  float* out;

  __device__ void operator()(int32_t row, int32_t column, Quad sum) const {
    if (row >= rows) return;
    // Columns are padded to the tile's width, and sums of the padding are not stored. With kPacks a pack is whole or
    // absent, since 4 divides the columns.
    const int32_t left = columns - column;
#pragma unroll
    for (int j = 0; j < kTileSide; ++j) {
      if (bias != nullptr && j < left) sum.v[j] += bias[column + j];
      if (activation == Mask::kRelu) sum.v[j] = ReluOf(sum.v[j]);
    }
    float* const at = out + int64_t{row} * columns + column;
    if (alignment == Alignment::kPacks) {
      if (left > 0) StorePack(sum, at);
      return;
    }
#pragma unroll
    for (int j = 0; j < kTileSide; ++j) {
      if (j < left) at[j] = sum.v[j];
    }
  }
};

// Stores into the transpose of a (rows, columns) matrix, one for each slice: dweight is (out_channels, patch).
struct StoreSlice {
  int32_t rows, columns;
  float* out;

  __device__ void operator()(int32_t row, int32_t column, const Quad& sum) const {
    if (row >= rows) return;
    float* const at = out + int64_t{blockIdx.y} * rows * columns + row;
#pragma unroll
    for (int j = 0; j < kTileSide; ++j) {
      if (column + j < columns) at[int64_t{column + j} * rows] = sum.v[j];
    }
  }
};

// The part of a factor that one thread gathers. kOuter neighbours along `outer` are spread over the block's threads. So
// a thread's place is the same in all steps, and its divisions are done once; and neighbouring threads write to
// neighbouring banks of shared memory, without conflicts.
template <int kOuter, typename Factor>
class Gatherer {
 public:
  __device__ Gatherer(const Factor& factor, int32_t outer_first)
      : factor_(factor),
        lane_(static_cast<int>(threadIdx.x) / kLanes),
        outer_(static_cast<int>(threadIdx.x) % kLanes * (kOuter / kLanes)),
        place_(factor.At(outer_first + outer_)) {}

  // Loads the factor at the depths from `first` on, 0 from `end` on.
  __device__ void Load(int32_t first, int32_t end) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int d = DepthOf(i);
      held_[i] = {};
      if (d < kTileDepth && first + d < end) held_[i] = factor_.Load(place_, first + d);
    }
  }

  // tile[d] = what was loaded for depth first + d.
  __device__ void Store(Quad (*tile)[kOuter / kPackFloats]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int d = DepthOf(i);
      // With few columns there are more threads than places in the tile; the others have nothing to store.
      if (d >= kTileDepth) break;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const int outer = kAlongDepth ? outer_ : outer_ + j;
        // The tile is depth by outer whatever the factor's order in memory, so that the product reads both tiles alike.
        tile[kAlongDepth ? d + j : d][outer / kPackFloats].v[outer % kPackFloats] = held_[i].v[j];
      }
    }
  }

 private:
  static constexpr int kWidth = Factor::kWidth;
  static constexpr bool kAlongDepth = Factor::kAlong == Along::kDepth;
  static constexpr int kStep = kAlongDepth ? kWidth : 1;
  static constexpr int kLanes = kAlongDepth ? kOuter : kOuter / kWidth;  // threads along `outer`
  static constexpr int kLaneCount = kBlockThreads / kLanes;              // threads along the depth
  static constexpr int kLoads = (kTileDepth + kLaneCount * kStep - 1) / (kLaneCount * kStep);

  __device__ int DepthOf(int load) const { return (load * kLaneCount + lane_) * kStep; }

  const Factor& factor_;
  const int lane_, outer_;
  const typename Factor::Place place_;
  Pack<float, kWidth> held_[kLoads];
};

// One tile of kRows by kColumns, over slice_depth of the depth from blockIdx.y * slice_depth on.
//
// Each step fills both tiles and then multiplies them: for each depth a thread reads four numbers of each, by two
// 16-byte loads, for 16 multiply-adds; in a tall tile eight of a, for 32. The next step's parts are on their way from
// memory to registers meanwhile. kGroups groups of threads have the same outputs, and each takes every kGroups-th
// depth: a block has 256 threads even where its outputs need fewer.
template <int kRows, int kColumns, typename A, typename B, typename Store>
__global__ void __launch_bounds__(kBlockThreads, kRows == kTileRows ? 3 : 2)
    ProductKernel(const A a, const B b, const Store store, int32_t depth, int32_t slice_depth) {
  constexpr int kQuadRows = kTileRows / kTileSide;  // of the threads; in a tall tile each has two quads of rows
  constexpr int kRowQuads = kRows / kTileRows;
  constexpr int kSums = kRowQuads * kTileSide;
  constexpr int kGroupThreads = kQuadRows * kColumns / kTileSide;
  constexpr int kGroups = kBlockThreads / kGroupThreads;
  // a takes 8 or 16 KiB of shared memory, b 2 to 8 KiB.
  __shared__ Quad a_tile[kTileDepth][kRows / kPackFloats];
  __shared__ Quad b_tile[kTileDepth][kColumns / kPackFloats];
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kGroupThreads, in_group = thread % kGroupThreads;
  const int quad_row = in_group / (kColumns / kTileSide), quad_column = in_group % (kColumns / kTileSide);
  const int32_t row_first = static_cast<int32_t>(blockIdx.x) * kRows;
  // The divisions of a thread's place are done here, once for the whole walk.
  Gatherer<kRows, A> gather_a(a, row_first);
  Gatherer<kColumns, B> gather_b(b, 0);
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * slice_depth;
  const int32_t end = depth - begin < slice_depth ? depth : begin + slice_depth;

  Quad sums[kSums] = {};
  gather_a.Load(begin, end);
  gather_b.Load(begin, end);
  for (int32_t first = begin; first < end; first += kTileDepth) {
    gather_a.Store(a_tile);
    gather_b.Store(b_tile);
    __syncthreads();  // all threads have filled the tiles that all threads now read
    // Beyond `end` nothing is read.
    gather_a.Load(first + kTileDepth, end);
    gather_b.Load(first + kTileDepth, end);
    // The tile beyond `end` holds zeros, but counting less is cheaper than adding them.
    const int steps = end - first < kTileDepth ? end - first : kTileDepth;
#pragma unroll 4
    for (int d = group; d < steps; d += kGroups) {
      const Quad column = b_tile[d][quad_column];
#pragma unroll
      for (int r = 0; r < kRowQuads; ++r) {
        const Quad row = a_tile[d][r * kQuadRows + quad_row];
#pragma unroll
        for (int i = 0; i < kTileSide; ++i) {
          Quad& sum = sums[r * kTileSide + i];
#pragma unroll
          for (int j = 0; j < kTileSide; ++j) sum.v[j] = fmaf(row.v[i], column.v[j], sum.v[j]);
        }
      }
    }
    // All threads have read the tiles that the next step overwrites.
    __syncthreads();
  }

  // The groups' sums are added in order through a_tile, which holds those of one group at a time.
  static_assert(kGroups == 1 || kRows * kColumns <= kTileDepth * kRows);
  Quad* const others = &a_tile[0][0];
#pragma unroll
  for (int g = 1; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (group == g) others[i * kGroupThreads + in_group] = sums[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (group != 0) continue;
#pragma unroll
      for (int j = 0; j < kTileSide; ++j) sums[i].v[j] += others[i * kGroupThreads + in_group].v[j];
    }
    __syncthreads();
  }
  // No barrier follows, so threads may leave.
  if (group != 0) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int quad = i / kTileSide * kQuadRows + quad_row;
    store(row_first + quad * kTileSide + i % kTileSide, quad_column * kTileSide, sums[i]);
  }
}

struct ProductShape {
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t slices = 1;
  int64_t slice_depth = 0;
  bool is_tall = false;
};

template <int kRows, typename A, typename B, typename Store>
cudaError_t LaunchTiles(cudaStream_t stream, const ProductShape& s, const A& a, const B& b, const Store& store) {
  const LaunchShape shape = {.blocks = CeilDivide(s.rows, kRows), .blocks_y = s.slices};
  // The narrowest tile that holds all columns is taken: the rest of a tile is products with zeros.
  const auto kernel = s.columns <= 16   ? ProductKernel<kRows, 16, A, B, Store>
                      : s.columns <= 32 ? ProductKernel<kRows, 32, A, B, Store>
                                        : ProductKernel<kRows, 64, A, B, Store>;
  return Launch(stream, shape, kernel, a, b, store, static_cast<int32_t>(s.depth), static_cast<int32_t>(s.slice_depth));
}

// Tiles of either height add in the same order.
template <typename A, typename B, typename Store>
cudaError_t LaunchProduct(cudaStream_t stream, const ProductShape& s, const A& a, const B& b, const Store& store) {
  return s.is_tall ? LaunchTiles<kTallTileRows>(stream, s, a, b, store)
                   : LaunchTiles<kTileRows>(stream, s, a, b, store);
}

// A tall tile does a third more per byte of shared memory, but only two of its blocks fit a multiprocessor. It gains 6
// to 16 % where it takes several steps, and its blocks fill an H100 several times, or less than once; else most of the
// GPU would wait for the last ones.
bool IsTall(int64_t rows, int64_t columns, int64_t depth) {
  const int64_t blocks = CeilDivide(rows, kTallTileRows);
  return columns >= 16 && depth > 2 * kTileDepth && (blocks <= kMultiprocessors || blocks >= 7 * kMultiprocessors);
}

ProductShape WeightProduct(const PatchShape& s, int64_t out_channels) {
  // The thinner the patch, the fewer blocks it fills, and the more slices it is cut into.
  const int64_t slices_max = kWeightBlocksMax / CeilDivide(s.patch(), kTileRows);
  const int64_t slices = std::min(CeilDivide(s.rows(), kSliceRowsMin), slices_max);
  // A slice has whole steps, but for the last one. That may make fewer slices than were asked for.
  const int64_t slice_depth = CeilDivide(CeilDivide(s.rows(), slices), kTileDepth) * kTileDepth;
  return {.rows = s.patch(),
          .columns = out_channels,
          .depth = s.rows(),
          .slices = CeilDivide(s.rows(), slice_depth),
          .slice_depth = slice_depth};
}

// The floats of all slices, rounded up to whole packs, so that the memory after them is aligned as they are.
int64_t SliceFloats(const PatchShape& s, int64_t out_channels) {
  const int64_t floats = WeightProduct(s, out_channels).slices * s.patch() * out_channels;
  return CeilDivide(floats, kPackFloats) * kPackFloats;
}

}  // namespace

cudaError_t NarrowForward(cudaStream_t stream, const PatchShape& s, int64_t out_channels,
                          const NarrowForwardArgs& args) {
  // The product is patches(x) (rows, patch) by weight^T (patch, out_channels), in one slice.
  const Geometry g(s, out_channels);
  const StoreRows store = {.rows = g.rows,
                           .columns = g.out_channels_size,
                           .alignment = AlignmentOfChannels(out_channels, args.y),
                           .activation = args.activation,
                           .bias = args.bias,
                           .out = args.y};
  const ProductShape shape = {.rows = s.rows(),
                              .columns = out_channels,
                              .depth = s.patch(),
                              .slice_depth = s.patch(),
                              .is_tall = IsTall(s.rows(), out_channels, s.patch())};
  const auto launch = [&]<int kWidth>() {
    return LaunchProduct(stream, shape, Patches<kWidth>{g, args.x}, Filters<kWidth>{g, args.weight}, store);
  };
  const bool by_packs = AlignmentOfChannels(s.channels, args.x, args.weight) == Alignment::kPacks;
  return by_packs ? launch.template operator()<kPackFloats>() : launch.template operator()<1>();
}

cudaError_t NarrowInputGradient(cudaStream_t stream, const PatchShape& s, int64_t out_channels, const float* dy,
                                const float* weight, float* dx) {
  // Rows are the pixels of x. The depth is (kernel row, kernel column, output channel): dy has its output channels next
  // to each other, so a pack is four of them.
  const Geometry g(s, out_channels);
  const StoreRows store = {.rows = g.pixels,
                           .columns = g.channels_size,
                           .alignment = AlignmentOfChannels(s.channels, dx),
                           .activation = Mask::kNone,
                           .bias = nullptr,
                           .out = dx};
  const int64_t depth = s.kernel_height * s.kernel_width * out_channels;
  const ProductShape shape = {.rows = g.pixels,
                              .columns = s.channels,
                              .depth = depth,
                              .slice_depth = depth,
                              .is_tall = IsTall(g.pixels, s.channels, depth)};
  const auto launch = [&]<int kWidth>() {
    return LaunchProduct(stream, shape, Outputs<kWidth>{g, dy}, FiltersOfPlaces{g, weight}, store);
  };
  const bool by_packs = AlignmentOfChannels(out_channels, dy) == Alignment::kPacks;
  return by_packs ? launch.template operator()<kPackFloats>() : launch.template operator()<1>();
}

int64_t NarrowPartialFloats(const PatchShape& s, int64_t out_channels) {
  const int64_t slices = WeightProduct(s, out_channels).slices;
  if (slices == 1) return 0;
  return SliceFloats(s, out_channels) + BiasGradientPartialFloats(slices, s.patch() * out_channels);
}

int64_t NarrowCounters(const PatchShape& s, int64_t out_channels) {
  const int64_t slices = WeightProduct(s, out_channels).slices;
  return slices == 1 ? 0 : BiasGradientCounters(slices, s.patch() * out_channels);
}

cudaError_t NarrowWeightGradient(cudaStream_t stream, const PatchShape& s, int64_t out_channels,
                                 const NarrowWeightGradientArgs& args) {
  // The product is patches(x)^T (patch, rows) by dy (rows, out_channels). The result is small and the depth long, so
  // the depth is cut into slices; without them few blocks would work.
  const Geometry g(s, out_channels);
  const ProductShape shape = WeightProduct(s, out_channels);
  const StoreSlice store = {
      .rows = g.patch_size, .columns = g.out_channels_size, .out = shape.slices > 1 ? args.partial : args.dweight};
  const auto launch = [&]<int kXWidth, int kDyWidth>() {
    return LaunchTiles<kTileRows>(stream, shape, PatchesTransposed<kXWidth>{g, args.x},
                                  OutputGradients<kDyWidth>{g, args.dy}, store);
  };
  // x and dy take packs independently of each other.
  const auto launch_by_x = [&]<int kDyWidth>() {
    const bool by_packs = AlignmentOfChannels(s.channels, args.x) == Alignment::kPacks;
    return by_packs ? launch.template operator()<kPackFloats, kDyWidth>() : launch.template operator()<1, kDyWidth>();
  };
  const bool dy_by_packs = AlignmentOfChannels(out_channels, args.dy) == Alignment::kPacks;
  const cudaError_t error =
      dy_by_packs ? launch_by_x.template operator()<kPackFloats>() : launch_by_x.template operator()<1>();
  if (error != cudaSuccess || shape.slices == 1) return error;
  // A slice is a row of patch * out_channels numbers; their sum over the rows is what BiasGradient computes of dy.
  return BiasGradient(stream, {.rows = shape.slices,
                               .channels = s.patch() * out_channels,
                               .dy = args.partial,
                               .dbias = args.dweight,
                               .partial = args.partial + SliceFloats(s, out_channels),
                               .counters = args.counters});
}

}  // namespace starring::cuda
