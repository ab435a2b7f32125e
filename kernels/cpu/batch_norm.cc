// Batch normalisation on NHWC float32, with an optional ReLU after it.
//
// Words: a *row* is the channels of one position of one image; a *chunk* is as many rows as fill about 16 KiB.
//
// Statistics are computed chunk by chunk, while the chunk is in the first-level cache: first its sum, then the squared
// distances from its own mean, in float. Then all chunks are merged in order, in double (Chan, Golub, LeVeque 1983). So
// memory is read once; no difference of two large sums loses digits, as sum(x^2) - sum(x)^2 / n would; and chunks are
// the same for every number of threads, and so are the bits. Forward reads x twice and writes y; backward reads x and
// dy twice.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/instruction_set.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "kernels/cpu/cpu_context.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/shape_checks.h"

namespace starring {
namespace {

// Sixteen lanes as a GCC vector type: one AVX-512 register, or two or four narrower ones in the clones for older
// instruction sets (common/arithmetic/instruction_set.h). Loads and stores need no alignment. The type may appear only
// in functions that are inlined into a clone: how it is passed to a function that is not would depend on the clone.
constexpr int64_t kLanes = 16;
using Float16 = float __attribute__((vector_size(64)));

[[gnu::always_inline]] inline Float16 Load(const float* p) {
  Float16 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
[[gnu::always_inline]] inline void Store(Float16 v, float* p) { std::memcpy(p, &v, sizeof(v)); }

// The arguments of one pass over one chunk: its rows, and vectors of one value per channel. Unused pointers are null.
struct Args {
  const float* x = nullptr;
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;  // forward: beta. Backward: the mean of dy
  const float* slope = nullptr;  // backward: the factor of (x - mean)
  const float* y = nullptr;
  float* dy = nullptr;
  float* out = nullptr;
  float* sums = nullptr;  // two per channel: (channels), then (channels)
  int64_t rows = 0, channels = 0;
};

template <typename V>
[[gnu::always_inline]] inline V LoadAs(const float* p) {
  if constexpr (std::is_same_v<V, float>) {
    return *p;
  } else {
    return Load(p);
  }
}
[[gnu::always_inline]] inline void StoreAs(float v, float* p) { *p = v; }
[[gnu::always_inline]] inline void StoreAs(Float16 v, float* p) { Store(v, p); }

// Calls body.template operator()<V>(c) for vectors of 16 channels, then for the rest one by one.
template <typename Body>
[[gnu::always_inline]] inline void ForChannels(int64_t channels, const Body& body) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) body.template operator()<Float16>(c);
  for (; c < channels; ++c) body.template operator()<float>(c);
}

// The sum of term(row) over rows. There are four sums, because one would wait for each addition to end before the next.
template <typename V, typename Term>
[[gnu::always_inline]] inline V SumRows(int64_t rows, const Term& term) {
  V s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    s0 += term(r);
    s1 += term(r + 1);
    s2 += term(r + 2);
    s3 += term(r + 3);
  }
  for (; r < rows; ++r) s0 += term(r);
  return (s0 + s1) + (s2 + s3);
}

// sums = (sum of x, sum of squared distances from the chunk's mean).
[[gnu::always_inline]] inline void StatisticsLoop(const Args& g) {
  ForChannels(
      g.channels, [&]<typename V>(int64_t c) __attribute__((always_inline)) {
        const float* const x = g.x + c;
        const V sum = SumRows<V>(
            g.rows, [&](int64_t r) __attribute__((always_inline)) { return LoadAs<V>(x + r * g.channels); });
        // The chunk is read a second time, from the first-level cache.
        const V mean = sum / static_cast<float>(g.rows);
        const V squares = SumRows<V>(
            g.rows, [&](int64_t r) __attribute__((always_inline)) {
              const V d = LoadAs<V>(x + r * g.channels) - mean;
              return d * d;
            });
        StoreAs(sum, g.sums + c);
        StoreAs(squares, g.sums + g.channels + c);
      });
}

// y = act((x - mean) * scale + shift).
template <Activation activation>
[[gnu::always_inline]] inline void NormaliseLoop(const Args& g) {
  ForChannels(
      g.channels, [&]<typename V>(int64_t c) __attribute__((always_inline)) {
        const V mean = LoadAs<V>(g.mean + c), scale = LoadAs<V>(g.scale + c), shift = LoadAs<V>(g.shift + c);
        for (int64_t i = c; i < g.rows * g.channels; i += g.channels) {
          V y = (LoadAs<V>(g.x + i) - mean) * scale + shift;
          // In this form a NaN stays a NaN: no comparison with it is true.
          if constexpr (activation == Activation::kRelu) y = y < V{} ? V{} : y;
          StoreAs(y, g.out + i);
        }
      });
}

// sums = (sum of dy, sum of dy * (x - mean)); with kRelu dy is masked first, in place.
template <Activation activation>
[[gnu::always_inline]] inline void GradientSumsLoop(const Args& g) {
  ForChannels(
      g.channels, [&]<typename V>(int64_t c) __attribute__((always_inline)) {
        // The masked dy is stored: InputGradientLoop reads it again when all chunks are summed.
        if constexpr (activation == Activation::kRelu) {
          for (int64_t i = c; i < g.rows * g.channels; i += g.channels) {
            StoreAs(LoadAs<V>(g.y + i) > V{} ? LoadAs<V>(g.dy + i) : V{}, g.dy + i);
          }
        }
        const float* const dy = g.dy + c;
        const float* const x = g.x + c;
        const V mean = LoadAs<V>(g.mean + c);
        const V sum = SumRows<V>(
            g.rows, [&](int64_t r) __attribute__((always_inline)) { return LoadAs<V>(dy + r * g.channels); });
        const V product = SumRows<V>(
            g.rows, [&](int64_t r) __attribute__((always_inline)) {
              return LoadAs<V>(dy + r * g.channels) * (LoadAs<V>(x + r * g.channels) - mean);
            });
        StoreAs(sum, g.sums + c);
        StoreAs(product, g.sums + g.channels + c);
      });
}

// dx = scale * (dy - shift - (x - mean) * slope).
[[gnu::always_inline]] inline void InputGradientLoop(const Args& g) {
  ForChannels(
      g.channels, [&]<typename V>(int64_t c) __attribute__((always_inline)) {
        const V mean = LoadAs<V>(g.mean + c), scale = LoadAs<V>(g.scale + c);
        const V shift = LoadAs<V>(g.shift + c), slope = LoadAs<V>(g.slope + c);
        for (int64_t i = c; i < g.rows * g.channels; i += g.channels) {
          StoreAs(scale * (LoadAs<V>(g.dy + i) - shift - (LoadAs<V>(g.x + i) - mean) * slope), g.out + i);
        }
      });
}

STARRING_DEFINE_CLONES(kStatistics, StatisticsLoop, Args);
STARRING_DEFINE_CLONES(kNormalise, NormaliseLoop<Activation::kNone>, Args);
STARRING_DEFINE_CLONES(kNormaliseRelu, NormaliseLoop<Activation::kRelu>, Args);
STARRING_DEFINE_CLONES(kGradientSums, GradientSumsLoop<Activation::kNone>, Args);
STARRING_DEFINE_CLONES(kGradientSumsRelu, GradientSumsLoop<Activation::kRelu>, Args);
STARRING_DEFINE_CLONES(kInputGradient, InputGradientLoop, Args);

constexpr int64_t kChunkFloats = 4096;  // 16 KiB: half of a first-level cache of 32 KiB

class CpuBatchNorm : public FloatBatchNorm {
 public:
  CpuBatchNorm(const CpuContext* context, const BatchNormSpec& spec)
      : context_(context),
        spec_(spec),
        rows_(spec.batch * spec.height * spec.width),
        // Chunks depend on the shape alone, never on the number of threads: they decide the order of sums.
        chunk_rows_(std::min(rows_, std::max<int64_t>(1, kChunkFloats / spec.channels))),
        chunks_((rows_ + chunk_rows_ - 1) / chunk_rows_),
        sums_(static_cast<size_t>(chunks_ * 2 * spec.channels)),
        first_(static_cast<size_t>(spec.channels)),
        second_(first_.size()),
        mean_(first_.size()),
        inverse_deviation_(first_.size()),
        scale_(first_.size()),
        shift_(first_.size()),
        slope_(first_.size()) {}

  void Forward(const float* x, const float* gamma, const float* beta, float* running_mean, float* running_variance,
               float* y) override {
    ForChunks(kStatistics, {.x = x});
    MergeStatistics();
    UpdateRunning(running_mean, running_variance);
    for (int64_t c = 0; c < spec_.channels; ++c) {
      mean_[c] = static_cast<float>(first_[c]);
      inverse_deviation_[c] =
          static_cast<float>(1.0 / std::sqrt(second_[c] / static_cast<double>(rows_) + double{spec_.epsilon}));
      scale_[c] = gamma[c] * inverse_deviation_[c];
    }
    Normalise({.x = x, .mean = mean_.data(), .scale = scale_.data(), .shift = beta, .out = y});
  }

  void Infer(const float* x, const float* gamma, const float* beta, const float* running_mean,
             const float* running_variance, float* y) override {
    for (int64_t c = 0; c < spec_.channels; ++c) {
      slope_[c] = gamma[c] / std::sqrt(running_variance[c] + spec_.epsilon);
    }
    Normalise({.x = x, .mean = running_mean, .scale = slope_.data(), .shift = beta, .out = y});
  }

  void Backward(const float* x, const float* gamma, const float* y, float* dy, float* dx, float* dgamma,
                float* dbeta) override {
    ForChunks(spec_.activation == Activation::kRelu ? kGradientSumsRelu : kGradientSums,
              {.x = x, .mean = mean_.data(), .y = y, .dy = dy});
    MergeSums();
    for (int64_t c = 0; c < spec_.channels; ++c) {
      const double inverse_deviation = inverse_deviation_[c];
      dbeta[c] = static_cast<float>(first_[c]);
      dgamma[c] = static_cast<float>(second_[c] * inverse_deviation);
      scale_[c] = gamma[c] * inverse_deviation_[c];
      shift_[c] = static_cast<float>(first_[c] / static_cast<double>(rows_));
      slope_[c] = static_cast<float>(second_[c] * inverse_deviation * inverse_deviation / static_cast<double>(rows_));
    }
    ForChunks(kInputGradient, {.x = x,
                               .mean = mean_.data(),
                               .scale = scale_.data(),
                               .shift = shift_.data(),
                               .slope = slope_.data(),
                               .dy = dy,
                               .out = dx});
  }

 private:
  using Clones = void (*const[kInstructionSetCount])(const Args&);

  void Normalise(const Args& args) {
    ForChunks(spec_.activation == Activation::kRelu ? kNormaliseRelu : kNormalise, args);
  }

  // Runs a pass over all chunks. The pointers of `whole` are those of the first row.
  void ForChunks(const Clones& clones, const Args& whole) {
    const auto pass = clones[static_cast<int>(context_->instruction_set)];
    ParallelRanges(context_->threads, chunks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t offset = chunk * chunk_rows_ * spec_.channels;
        Args args = whole;
        args.x += offset;
        if (args.y != nullptr) args.y += offset;
        if (args.dy != nullptr) args.dy += offset;
        if (args.out != nullptr) args.out += offset;
        args.sums = sums_.data() + chunk * 2 * spec_.channels;
        args.rows = ChunkRows(chunk);
        args.channels = spec_.channels;
        pass(args);
      }
    });
  }

  int64_t ChunkRows(int64_t chunk) const { return std::min(chunk_rows_, rows_ - chunk * chunk_rows_); }

  // first_ = sum of the chunks' first sums, second_ of their second.
  void MergeSums() {
    // One thread adds, in the order of the chunks.
    std::fill(first_.begin(), first_.end(), 0.0);
    std::fill(second_.begin(), second_.end(), 0.0);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const float* const sums = sums_.data() + chunk * 2 * spec_.channels;
      for (int64_t c = 0; c < spec_.channels; ++c) {
        first_[c] += double{sums[c]};
        second_[c] += double{sums[spec_.channels + c]};
      }
    }
  }

  // first_ = mean; second_ = sum of squared distances from it.
  void MergeStatistics() {
    MergeSums();
    for (double& mean : first_) mean /= static_cast<double>(rows_);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const float* const sums = sums_.data() + chunk * 2 * spec_.channels;
      const double rows = static_cast<double>(ChunkRows(chunk));
      for (int64_t c = 0; c < spec_.channels; ++c) {
        // A chunk's squares are of distances from its own mean. Distances from the common mean add rows * distance^2 to
        // them.
        const double distance = double{sums[c] / static_cast<float>(ChunkRows(chunk))} - first_[c];
        second_[c] += rows * distance * distance;
      }
    }
  }

  void UpdateRunning(float* running_mean, float* running_variance) const {
    const double momentum = spec_.momentum;
    for (int64_t c = 0; c < spec_.channels; ++c) {
      running_mean[c] = static_cast<float>((1 - momentum) * running_mean[c] + momentum * first_[c]);
      // A single value has no variance, and the division below would be by zero: the running variance stays.
      if (rows_ == 1) continue;
      const double unbiased = second_[c] / static_cast<double>(rows_ - 1);
      running_variance[c] = static_cast<float>((1 - momentum) * running_variance[c] + momentum * unbiased);
    }
  }

  const CpuContext* const context_;
  const BatchNormSpec spec_;
  const int64_t rows_, chunk_rows_, chunks_;
  std::vector<float> sums_;
  std::vector<double> first_, second_;
  std::vector<float> mean_, inverse_deviation_;  // of the last Forward
  std::vector<float> scale_, shift_, slope_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BatchNorm>> CreateCpuBatchNorm(CpuContext* context, const BatchNormSpec& spec) {
  RETURN_IF_ERROR(CheckShape(spec));
  try {
    return std::make_unique<CpuBatchNorm>(context, spec);
  } catch (const std::bad_alloc&) {  // by a vector; no exception may leave this target
    return absl::ResourceExhaustedError(absl::StrCat("batch norm: no memory for the statistics of ", spec.batch, " x ",
                                                     spec.height, " x ", spec.width, " x ", spec.channels,
                                                     " elements"));
  }
}

}  // namespace starring
