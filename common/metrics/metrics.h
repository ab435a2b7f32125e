// Serves the numbers of a running process to a monitor: http://ADDRESS:PORT/metrics, in Prometheus' text format.
//
// Thread safety: any thread may call any method. prometheus-cpp answers requests in a thread of its own.
#ifndef STARRING_COMMON_METRICS_METRICS_H_
#define STARRING_COMMON_METRICS_METRICS_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace starring {

class Metrics {
 public:
  struct Options {
    std::string address = "127.0.0.1";
    int port = 0;  // 0 takes a free one
  };
  // Listens. Fails with InvalidArgument, which names the flags to change, if the address or port cannot be used.
  static absl::StatusOr<std::unique_ptr<Metrics>> Start(const Options& options);
  ~Metrics();

  const std::string& url() const { return url_; }  // with the port that was bound

  using Labels = std::map<std::string, std::string>;
  // One number. It lives as long as the Metrics.
  class Counter {
   public:
    virtual ~Counter() = default;
    virtual void Add(double amount) = 0;  // REQUIRES: amount >= 0
    // For a total that is counted elsewhere. REQUIRES: `total` never falls; one thread calls this.
    virtual void RaiseTo(double total) = 0;
  };
  class Gauge {
   public:
    virtual ~Gauge() = default;
    virtual void Set(double value) = 0;
  };
  // `name` follows Prometheus' rules, with the unit last: "starring_steps_total". REQUIRES: no counter or gauge has
  // this name and these labels yet.
  Counter* AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge* AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});

 private:
  class Impl;
  explicit Metrics(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
  std::string url_;
};

}  // namespace starring

#endif  // STARRING_COMMON_METRICS_METRICS_H_
