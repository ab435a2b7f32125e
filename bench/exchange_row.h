// A measured exchange as a line of JSON, as bench/compare, bench/growth and bench/gate read it.
#ifndef STARRING_BENCH_EXCHANGE_ROW_H_
#define STARRING_BENCH_EXCHANGE_ROW_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "bench/processor_cost.h"

namespace starring {

struct ExchangeRow {
  std::string sync;
  int workers = 0;
  int64_t bytes = 0;        // of the parameter vector, or of the summed array
  double latency_us = 0;    // of a step, beyond the time that it computes: the median
  double p95_us = 0;        // of a whole step
  ProcessorCost cost;       // of a worker's step
  double messages = 0;      // that a worker sends in a step; 0 if no Transport carries them
  double resident_kib = 0;  // the largest resident memory of a process so far, a mean over all processes of the job
};

// Bus bandwidth is 2 (N - 1) / N * bytes / time, also for a star, which moves other amounts: so both compare.
inline void PrintExchangeRow(const ExchangeRow& row) {
  const double bus_bytes = 2.0 * (row.workers - 1) / row.workers * static_cast<double>(row.bytes);
  std::printf(
      "{\"sync\": \"%s\", \"workers\": %d, \"bytes\": %lld, \"latency_us\": %.2f, \"p95_us\": %.2f, "
      "\"bus_gb_per_s\": %.5f, \"cpu_us\": %.2f, \"voluntary_switches\": %.3f, \"involuntary_switches\": %.3f, "
      "\"messages\": %.2f, \"resident_kib\": %.0f}\n",
      row.sync.c_str(), row.workers, static_cast<long long>(row.bytes), row.latency_us, row.p95_us,
      bus_bytes / row.latency_us / 1e3, row.cost.cpu_us, row.cost.voluntary_switches, row.cost.involuntary_switches,
      row.messages, row.resident_kib);
  std::fflush(stdout);
}

}  // namespace starring

#endif  // STARRING_BENCH_EXCHANGE_ROW_H_
