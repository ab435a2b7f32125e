#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Prometheus, WritesACounterAsText) {
  prometheus::Registry registry;
  prometheus::BuildCounter().Name("steps_total").Help("steps").Register(registry).Add({{"rank", "1"}}).Increment(2);
  const std::string text = prometheus::TextSerializer().Serialize(registry.Collect());
  EXPECT_THAT(text, testing::HasSubstr("steps_total{rank=\"1\"} 2"));
}

}  // namespace
}  // namespace starring
