// Numbers of a running process that a monitor fetches: http://ADDRESS:PORT/metrics, in Prometheus' text format.
//
// Thread safety: any thread may call any method. Threads of the library's own answer requests.
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
  // Listens. InvalidArgument, with the way out, if it cannot.
  static absl::StatusOr<std::unique_ptr<Metrics>> Start(const Options& options);
  ~Metrics();

  const std::string& url() const { return url_; }  // with the port that was bound

  using Labels = std::map<std::string, std::string>;
  // One number, which lives as long as the metrics.
  class Counter {
   public:
    virtual ~Counter() = default;
    virtual void Add(double amount) = 0;  // REQUIRES: amount >= 0
    // For a total that somebody else counts. REQUIRES: it never falls; one thread.
    virtual void RaiseTo(double total) = 0;
  };
  class Gauge {
   public:
    virtual ~Gauge() = default;
    virtual void Set(double value) = 0;
  };
  // Names as Prometheus has them: "starring_steps_total", with the unit last. Of one name and labels: once.
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
