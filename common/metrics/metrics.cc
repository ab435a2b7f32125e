#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <deque>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"

namespace starring {
namespace {

// prometheus-cpp's types stay in this file: programs depend on common/metrics/metrics.h alone.
class CounterImpl final : public Metrics::Counter {
 public:
  explicit CounterImpl(prometheus::Counter* counter) : counter_(*counter) {}
  void Add(double amount) override { counter_.Increment(amount); }
  // This reads and adds in two calls: two threads could add one difference twice, which the contract rules out.
  void RaiseTo(double total) override { counter_.Increment(total - counter_.Value()); }

 private:
  prometheus::Counter& counter_;
};

class GaugeImpl final : public Metrics::Gauge {
 public:
  explicit GaugeImpl(prometheus::Gauge* gauge) : gauge_(*gauge) {}
  void Set(double value) override { gauge_.Set(value); }

 private:
  prometheus::Gauge& gauge_;
};

}  // namespace

class Metrics::Impl {
 public:
  // With Merge, a counter with further labels gets the family that exists already.
  explicit Impl(const std::string& where)
      : registry_(std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge)),
        exposer_(where, kThreads) {
    exposer_.RegisterCollectable(registry_);
  }

  int port() const { return exposer_.GetListeningPorts().front(); }

  // prometheus-cpp locks its registry itself. The mutex is for the deques, which any thread may extend.
  Counter* AddCounter(const std::string& name, const std::string& help, const Labels& labels) {
    const MutexLock lock(mutex_);
    return &counters_.emplace_back(&prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels));
  }

  Gauge* AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
    const MutexLock lock(mutex_);
    return &gauges_.emplace_back(&prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels));
  }

 private:
  static constexpr size_t kThreads = 1;

  const std::shared_ptr<prometheus::Registry> registry_;  // shared, because the exposer keeps a weak_ptr to it
  Mutex mutex_;
  std::deque<CounterImpl> counters_ ABSL_GUARDED_BY(mutex_);  // addresses stay
  std::deque<GaugeImpl> gauges_ ABSL_GUARDED_BY(mutex_);
  prometheus::Exposer exposer_;  // last, so that its threads end before the members that they read
};

Metrics::Metrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Metrics::~Metrics() = default;

absl::StatusOr<std::unique_ptr<Metrics>> Metrics::Start(const Options& options) {
  // A port follows, so an IPv6 address is in brackets.
  const bool is_six = options.address.find(':') != std::string::npos;
  const std::string host =
      is_six && options.address.front() != '[' ? absl::StrCat("[", options.address, "]") : options.address;
  const std::string where = absl::StrCat(host, ":", options.port);
  // The library's constructors throw, and no exception may leave this folder.
  try {
    std::unique_ptr<Metrics> metrics(new Metrics(std::make_unique<Impl>(where)));
    // With port 0 the number is known only now that the socket listens.
    metrics->url_ = absl::StrCat("http://", host, ":", metrics->impl_->port(), "/metrics");
    return metrics;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot serve metrics at ", where, " (", error.what(),
                     "): is the port taken, or is the address not this machine's? Give another --metrics_port, 0 takes "
                     "a free one, or another --metrics_address",
                     is_six ? " of IPv4: CivetWeb, as Debian compiles it, has no IPv6" : ""));
  }
}

Metrics::Counter* Metrics::AddCounter(const std::string& name, const std::string& help, const Labels& labels) {
  return impl_->AddCounter(name, help, labels);
}

Metrics::Gauge* Metrics::AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
  return impl_->AddGauge(name, help, labels);
}

}  // namespace starring
